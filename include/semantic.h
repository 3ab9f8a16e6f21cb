/*
 * libsemantic: classify, tag and embed text inside the calling process.
 *
 * A program loads models from folders in Hugging Face layout, calls them with
 * texts, reads read-only result blocks and frees them. Everything runs in the
 * process itself; the library never opens a network connection.
 *
 * Conventions, valid for every function unless it says otherwise:
 *
 * Errors   A function that can fail returns a semantic_status; SEMANTIC_OK is 0.
 *          The text comes back in the same call in the caller's semantic_error,
 *          which may be NULL. On an error the out value is NULL (handle: 0).
 * Handles  A semantic_model is a number, passed by value and never reused.
 *          0 is INVALID_ARGUMENT, a number never issued NOT_FOUND, a number
 *          issued whose model is gone CLOSED.
 * Text     A semantic_text is UTF-8 with a length; NUL is a character like any
 *          other. {NULL, 0} is the empty text. Texts in results also end with a
 *          NUL that the length does not count. Names and paths are NUL-terminated
 *          UTF-8. All offsets are UTF-8 byte offsets into the caller's text.
 * Rows     Functions that take texts answer row by row. One bad text fails its
 *          row only: the call returns SEMANTIC_PARTIAL with the result, each row
 *          has a status and a message, and the error describes the first failed
 *          row. If every row failed, the call returns that row's status and no
 *          result. A failed row has label index -1, NaN for numbers and counts
 *          of 0. No texts (n = 0) is OK with an empty result; more than 65,536
 *          are INVALID_ARGUMENT.
 * Structs  Options, results and errors start with struct_size, set by whoever
 *          made them. Fields are only ever appended. Zero in an option means its
 *          default; NULL options mean all defaults. Unknown non-zero bytes behind
 *          the known fields and unknown enum values are INVALID_ARGUMENT.
 * Memory   Arguments are read only during the call. Every result is one
 *          read-only block, freed by one semantic_free.
 * Threads  Any function, from any thread with at least 256 KiB of stack, at any
 *          time. The first start makes other callers wait. After fork() the
 *          child's calls are INTERPRETER.
 */
#ifndef SEMANTIC_H
#define SEMANTIC_H

#include <stddef.h>
#include <stdint.h>

#ifndef SEMANTIC_API
#define SEMANTIC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------ */

#define SEMANTIC_ABI_MAJOR 0
#define SEMANTIC_ABI_MINOR 1
#define SEMANTIC_VERSION "0.1.0"

/* major << 16 | minor of the loaded library; the minor grows with appended
 * fields and functions. Plain C, starts nothing. */
SEMANTIC_API uint32_t semantic_abi_version(void);

/* The loaded library's version, such as "0.1.0". Plain C, starts nothing. */
SEMANTIC_API const char *semantic_version(void);

/* ---- Status and errors -------------------------------------------------- */

typedef int32_t semantic_status;

enum {
    SEMANTIC_OK = 0,
    SEMANTIC_INVALID_ARGUMENT = 1,    /* an argument or option is wrong */
    SEMANTIC_NOT_FOUND = 2,           /* a file, model, prompt or base is not there */
    SEMANTIC_ALREADY_EXISTS = 3,      /* the name is taken; running with other options */
    SEMANTIC_UNSUPPORTED = 4,         /* this library, model or provider cannot do it */
    SEMANTIC_NOT_READY = 5,           /* the model is loading or stopping */
    SEMANTIC_CLOSED = 6,              /* the handle's model is gone */
    SEMANTIC_OVERLOADED = 7,          /* the model's queue is full */
    SEMANTIC_DEADLINE = 8,            /* timeout_ms has passed */
    SEMANTIC_TOO_LONG = 9,            /* a text is longer than allowed */
    SEMANTIC_BAD_ARTIFACT = 10,       /* a model folder is damaged or contradictory */
    SEMANTIC_DEVICE_UNAVAILABLE = 11, /* the device asked for cannot run the model */
    SEMANTIC_OUT_OF_MEMORY = 12,      /* the system refused memory */
    SEMANTIC_INTERPRETER = 13,        /* Python could not start or does not fit */
    SEMANTIC_INTERNAL = 14,           /* a fault of this library */
    SEMANTIC_CANCELLED = 15,          /* semantic_cancel was called */
    SEMANTIC_PARTIAL = 16             /* some rows failed; the result is there */
};

/* The status in words, such as "INVALID_ARGUMENT"; an unknown number is
 * "UNKNOWN". Plain C, starts nothing. */
SEMANTIC_API const char *semantic_status_name(semantic_status status);

typedef struct semantic_error {
    size_t struct_size;
    semantic_status status;
    int64_t input_index; /* the row it concerns, -1: none */
    char message[1024];  /* one line, NUL-terminated, cut at a character with "…" */
} semantic_error;

#define SEMANTIC_ERROR_INIT {sizeof(semantic_error), 0, -1, {0}}

/* ---- Values ------------------------------------------------------------- */

typedef struct semantic_model {
    uint64_t id; /* 0: none */
} semantic_model;

typedef struct semantic_text {
    const char *data;
    size_t length; /* bytes */
} semantic_text;

typedef int32_t semantic_task;
enum {
    SEMANTIC_TASK_AUTO = 0, /* as the model folder says */
    SEMANTIC_TASK_SEQUENCE_CLASSIFICATION = 1,
    SEMANTIC_TASK_TOKEN_CLASSIFICATION = 2,
    SEMANTIC_TASK_EMBEDDING = 3
};

typedef int32_t semantic_precision;
enum {
    SEMANTIC_PRECISION_AUTO = 0, /* as the model folder says; what is built from safetensors
                                     computes in fp32 */
    SEMANTIC_PRECISION_FP32 = 1,
    SEMANTIC_PRECISION_FP16 = 2,
    SEMANTIC_PRECISION_BF16 = 3,
    SEMANTIC_PRECISION_INT8 = 4 /* made of safetensors, or a ready ONNX file */
};

typedef int32_t semantic_adapter_mode;
enum {
    SEMANTIC_ADAPTER_SHARED = 0, /* all adapters of one base run on one copy of it */
    SEMANTIC_ADAPTER_MERGED = 1  /* the adapter is added to weights of its own */
};

typedef int32_t semantic_model_state;
enum {
    SEMANTIC_STATE_LOADING = 1,
    SEMANTIC_STATE_READY = 2,
    SEMANTIC_STATE_STOPPING = 3 /* no new calls; waits for those in flight */
};

typedef int32_t semantic_log_level;
enum {
    SEMANTIC_LOG_DEFAULT = 0, /* = warning */
    SEMANTIC_LOG_OFF = 1,
    SEMANTIC_LOG_ERROR = 2,
    SEMANTIC_LOG_WARNING = 3,
    SEMANTIC_LOG_INFO = 4,
    SEMANTIC_LOG_DEBUG = 5 /* says no more than INFO in this version */
};

/* ---- Runtime ------------------------------------------------------------ */

typedef struct semantic_init_options {
    size_t struct_size;
    const char *device;       /* "auto" (default): for each model the first that works of cuda,
                                 openvino, cpu, as far as this ONNX Runtime has them; or "cpu",
                                 "openvino", "cuda", "cuda:N", "tensorrt", "tensorrt:N": all
                                 products and attention of a model run there, or the load is
                                 DEVICE_UNAVAILABLE with the reason */
    const char *environment;  /* folder of the Python environment; fixed once Python runs */
    int32_t intra_op_threads; /* threads of one run; default: the CPUs of the process. Where runs
                                 meet, models of up to 192 MiB use one thread each */
    int32_t parallel_runs;    /* runs at a time on the CPUs, of all models together: more wait their
                                 turn, the oldest first; default: one more than the CPUs of the
                                 process */
    int64_t queue_rows;       /* waiting rows per model (a long text counts once per window);
                                 default 65,536 */
    int64_t queue_tokens;     /* waiting padded tokens per model, and the most that the windows of
                                 one text may have; default 16,777,216. Work that meets an empty
                                 queue is taken whatever its size */
    semantic_log_level log_level;
} semantic_init_options;

#define SEMANTIC_INIT_OPTIONS_INIT {sizeof(semantic_init_options), 0, 0, 0, 0, 0, 0, 0}

/* Start the runtime. Optional: the first load starts it with defaults. The same
 * options again are OK; others while it runs are ALREADY_EXISTS; NOT_READY while
 * a cleanup is under way. */
SEMANTIC_API semantic_status semantic_init(const semantic_init_options *options,
                                           semantic_error *error);

/* Refuse new calls, wait for those in flight, stop loads (they answer CLOSED),
 * unload every model, stop the runtime. Python stays; semantic_init may follow.
 * timeout_ms 0 does not wait. DEADLINE: calls are still in flight, models are
 * stopping; call again to go on waiting. Before the first start there is nothing
 * to do: OK. */
SEMANTIC_API semantic_status semantic_cleanup(int64_t timeout_ms, semantic_error *error);

/* ---- Models ------------------------------------------------------------- */

typedef struct semantic_load_options {
    size_t struct_size;
    const char *name;             /* default: base name of the resolved folder */
    semantic_task task;           /* must agree with the folder */
    semantic_precision precision; /* fp32 and int8 on cpu, fp32 and bf16 on openvino, fp32 and fp16
                                     on cuda and tensorrt; another one is UNSUPPORTED */
    const char *device;           /* default: that of semantic_init */
    int64_t max_tokens;           /* longest text or window that is scored; default: the
                                     smallest length that the folder declares; at most the
                                     model's positions */
    int32_t max_batch_rows;       /* texts or windows in one run; default 32 */
    int32_t max_batch_tokens;     /* padded tokens in one run of several; default 256 */
    int64_t max_text_bytes;       /* a longer row is TOO_LONG before it is tokenised;
                                     default 1 MiB */
    const char *base_path;        /* adapter folders only: the folder of the base; default: the
                                     recorded base, if it is a folder (relative to the adapter) */
    semantic_model replaces;      /* this model's name and handle are taken over once the
                                     new one is ready; the task must be equal */
    int32_t intra_op_threads;     /* default: that of semantic_init */
    int32_t parallel_runs;        /* runs of this model at a time; default and, on the CPUs, the
                                     most: that of semantic_init. On cuda and tensorrt no other
                                     model counts, and where neither says a number it is 1 */
    int64_t queue_rows;           /* default: that of semantic_init */
    int64_t queue_tokens;         /* default: that of semantic_init */
    int64_t timeout_ms;           /* 0: none; looked at between the steps of a load */
    semantic_adapter_mode adapter_mode; /* adapter folders only */
    int64_t arena_bytes;                /* the most that the model takes of the memory of a cuda
                                           device, or of workspace for tensorrt; default 4 GiB */
} semantic_load_options;

#define SEMANTIC_LOAD_OPTIONS_INIT                                                                 \
    {sizeof(semantic_load_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0, 0, 0, 0}

/* Load a model from a folder: verify its files, compare labels with the head,
 * open it on the device, run a self-test, then publish it. Whole or not at all.
 * The name taken by another model is ALREADY_EXISTS.
 *
 * The folder may be a LoRA adapter of PEFT. It becomes a model like any other,
 * with its own labels, head and pooling. Adapters of one base folder, device and
 * intra_op_threads share the base, which is no model of its own: it is there from
 * the first of them to the last. */
SEMANTIC_API semantic_status semantic_load_model(const char *path,
                                                 const semantic_load_options *options,
                                                 semantic_model *model, semantic_error *error);

/* The handle of a name. A model that is still loading is NOT_READY. */
SEMANTIC_API semantic_status semantic_find_model(const char *name, semantic_model *model,
                                                 semantic_error *error);

typedef struct semantic_model_list {
    size_t struct_size;
    size_t count;
    const uint64_t *model_id; /* semantic_model.id */
    const semantic_text *name;
    const semantic_task *task; /* AUTO while it is not known yet */
    const semantic_model_state *state;
} semantic_model_list;

/* All models that are loading, ready or stopping, in order of their handles. */
SEMANTIC_API semantic_status semantic_list_models(const semantic_model_list **list,
                                                  semantic_error *error);

typedef struct semantic_model_info {
    size_t struct_size;
    uint64_t generation; /* 1, and one more with every replace */
    semantic_text name;
    semantic_text path;         /* resolved folder */
    semantic_text family;       /* model_type of config.json */
    semantic_text architecture; /* of config.json, may be empty */
    semantic_text source;       /* "safetensors" or "onnx" */
    semantic_text provider;     /* execution provider that runs it */
    semantic_text dtype;        /* of the weights: of the files, or "int8" made of them */
    semantic_task task;
    int32_t multi_label; /* 1: sigmoid per label, else softmax over them */
    size_t label_count;
    const semantic_text *labels;
    int64_t max_tokens;     /* longest text or window that is scored */
    int64_t position_limit; /* the most max_tokens may be */
    int64_t max_text_bytes;
    int64_t dimension; /* of a full embedding, else 0 */
    size_t dimension_count;
    const int64_t *dimensions; /* values that run options may ask for */
    size_t layer_count;
    const int64_t *layers; /* likewise; empty: only the last */
    size_t prompt_count;
    const semantic_text *prompt_names;
    int64_t mapped_bytes; /* size of the weight files, of which parts stay mapped; of an adapter
                             that shares its base: of its own file (json has the base's) */
    int64_t grown_bytes;  /* growth of resident memory measured while it loaded; likewise */
    size_t file_count;
    const semantic_text *file_names; /* relative to path */
    const int64_t *file_sizes;
    size_t warning_count;
    const semantic_text *warnings; /* what was odd about the folder */
    semantic_text json;            /* all of it, as a JSON object */
    semantic_text device;          /* where it runs: "cpu", "openvino", "cuda:0" */
    semantic_text precision;       /* what it computes in: "fp32", "bf16" */
} semantic_model_info;

SEMANTIC_API semantic_status semantic_get_model_info(semantic_model model,
                                                     const semantic_model_info **info,
                                                     semantic_error *error);

/* Take no new calls, wait for those in flight, free the model. timeout_ms 0 does
 * not wait. DEADLINE: calls are still in flight, new ones are NOT_READY; call
 * again to go on waiting. A second time is CLOSED. */
SEMANTIC_API semantic_status semantic_unload_model(semantic_model model, int64_t timeout_ms,
                                                   semantic_error *error);

/* ---- Calls -------------------------------------------------------------- */

typedef int32_t semantic_long_text;
enum {
    SEMANTIC_LONG_TEXT_AUTO = 0,   /* token classification and pairs WINDOWS, others CUT */
    SEMANTIC_LONG_TEXT_REFUSE = 1, /* a text above max_tokens is TOO_LONG */
    SEMANTIC_LONG_TEXT_CUT = 2,    /* its first tokens are scored, truncated is 1 */
    SEMANTIC_LONG_TEXT_WINDOWS = 3 /* all of it is scored, in overlapping windows */
};

typedef int32_t semantic_shorten;
enum {
    SEMANTIC_SHORTEN_AUTO = 0,  /* FIRST with two or more labels and for token pairs,
                                   SECOND for one-label heads (query, document) */
    SEMANTIC_SHORTEN_FIRST = 1, /* the other part is never shortened: TOO_LONG if it */
    SEMANTIC_SHORTEN_SECOND = 2 /* leaves no room */
};

typedef int32_t semantic_output;
enum {
    SEMANTIC_OUTPUT_ENTITIES = 0, /* neighbouring tokens of one type merged */
    SEMANTIC_OUTPUT_TOKENS = 1    /* every scored token of the text */
};

typedef int32_t semantic_normalize;
enum {
    SEMANTIC_NORMALIZE_AUTO = 0, /* as the folder says; unit length where it is silent */
    SEMANTIC_NORMALIZE_ON = 1,
    SEMANTIC_NORMALIZE_OFF = 2
};

typedef struct semantic_run_options {
    size_t struct_size;
    int64_t timeout_ms;  /* 0: none; enforced while queued and while running, where a run that
                            other callers share goes on until none of them waits */
    uint64_t cancel_key; /* 0: none; any number for semantic_cancel */
    semantic_long_text long_text;
    int32_t window_overlap;       /* tokens; default min(128, max_tokens / 4) */
    semantic_shorten shorten;     /* pairs only */
    int32_t dimension;            /* embedding only; one of the info's dimensions */
    int32_t layer;                /* embedding only; one of the info's layers, or the last */
    float threshold;              /* multi-label: selected from here on, default 0.5;
                                     entities: those below are dropped, default none */
    const char *prompt_name;      /* embedding only; NULL: the model's default; "": none */
    semantic_output output;       /* token classification only */
    semantic_normalize normalize; /* embedding only */
    int64_t max_tokens;           /* of this call; default, and the most: that of the model */
} semantic_run_options;

#define SEMANTIC_RUN_OPTIONS_INIT {sizeof(semantic_run_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* What every result says about its rows. token_count counts the tokens of the
 * whole text with the special tokens; scored_token_count those that the model
 * saw, each once. They are equal exactly where truncated is 0. */
typedef struct semantic_rows {
    size_t struct_size;
    size_t count;
    const int64_t *token_count;
    const int64_t *scored_token_count;
    const uint8_t *truncated;
    const int32_t *window_count;
    const semantic_status *status;
    const semantic_text *message; /* empty where the status is OK */
} semantic_rows;

/* Matrices are row-major: [row][label]. */
typedef struct semantic_classification {
    size_t struct_size;
    uint64_t generation; /* of the model that answered */
    const semantic_rows *rows;
    size_t label_count;
    const semantic_text *labels;
    int32_t multi_label;
    const int32_t *label_index;  /* the winner, -1 where the row failed */
    const float *score;          /* the winner's probability */
    const float *probabilities;  /* softmax; sigmoid for multi-label and one-label heads;
                                    for WINDOWS the token-weighted mean of the windows */
    const float *logits;         /* for WINDOWS the token-weighted mean of the windows */
    const uint8_t *selected;     /* probability >= threshold */
    const float *class_max;      /* per label the highest probability of any window */
    const int32_t *class_window; /* and the window that has it */
} semantic_classification;

/* Answer each text with one of the model's labels (several for multi-label). */
SEMANTIC_API semantic_status semantic_classify(semantic_model model, const semantic_text *texts,
                                               size_t n, const semantic_run_options *options,
                                               const semantic_classification **result,
                                               semantic_error *error);

/* The same for pairs left[i], right[i]: natural language inference, reranking,
 * any cross-encoder. Every sequence classifier answers both calls. */
SEMANTIC_API semantic_status semantic_classify_pairs(semantic_model model,
                                                     const semantic_text *left,
                                                     const semantic_text *right, size_t n,
                                                     const semantic_run_options *options,
                                                     const semantic_classification **result,
                                                     semantic_error *error);

/* ENTITIES: items are entities, ordered by row, start and end. The label is the
 * type without B- or I-; the score is the mean probability of that type over the
 * entity's tokens. TOKENS: items are tokens, with all probabilities; special
 * tokens that the tokenizer adds are no part of the text and are left out. */
typedef struct semantic_token_classification {
    size_t struct_size;
    uint64_t generation;
    const semantic_rows *rows;
    size_t label_count;
    const semantic_text *labels; /* ENTITIES: types; TOKENS: the model's labels */
    size_t item_count;
    const int64_t *row_start;   /* count + 1: items of row i are row_start[i] .. [i + 1] - 1 */
    const int64_t *row;         /* per item: the row it belongs to */
    const int32_t *label_index; /* per item */
    const float *score;         /* per item */
    const int64_t *start;       /* per item: first byte */
    const int64_t *end;         /* per item: the byte after the last */
    const float *probabilities; /* TOKENS: [item][label]; ENTITIES: NULL */
} semantic_token_classification;

/* Label the parts of each text. */
SEMANTIC_API semantic_status semantic_classify_tokens(semantic_model model,
                                                      const semantic_text *texts, size_t n,
                                                      const semantic_run_options *options,
                                                      const semantic_token_classification **result,
                                                      semantic_error *error);

/* Label the parts of answer[i] given context[i] (hallucination detection).
 * Offsets are relative to the answer. In windows over the context a token of the
 * answer takes the window in which `O` (without an `O`: label 0) is likeliest. */
SEMANTIC_API semantic_status semantic_classify_token_pairs(
    semantic_model model, const semantic_text *context, const semantic_text *answer, size_t n,
    const semantic_run_options *options, const semantic_token_classification **result,
    semantic_error *error);

typedef struct semantic_embedding {
    size_t struct_size;
    uint64_t generation;
    const semantic_rows *rows;
    size_t dimension;
    const float *values; /* [row][dimension] */
} semantic_embedding;

/* Turn each text into a vector. A dimension below the full one is cut first, and
 * then the vector is normalised as the options say. */
SEMANTIC_API semantic_status semantic_embed(semantic_model model, const semantic_text *texts,
                                            size_t n, const semantic_run_options *options,
                                            const semantic_embedding **result,
                                            semantic_error *error);

/* One of several models that a call asks about the same texts. */
typedef struct semantic_request {
    size_t struct_size; /* the same in all requests of a call */
    semantic_model model;
    const semantic_run_options *options; /* as of the call for the model's task; may be NULL */
} semantic_request;

#define SEMANTIC_REQUEST_INIT {sizeof(semantic_request), {0}, 0}

/* One entry per request. Where a model answered, all rows or some of them (PARTIAL),
 * its result stands in the column of its task; all else is NULL. */
typedef struct semantic_answers {
    size_t struct_size;
    size_t count;
    const semantic_status *status; /* as of a call to that model alone */
    const int64_t *input_index;    /* the row that it concerns, -1: none */
    const semantic_text *message;  /* empty where the status is OK */
    const semantic_classification *const *classification;
    const semantic_token_classification *const *token_classification;
    const semantic_embedding *const *embedding;
} semantic_answers;

/* Ask up to 64 models about the same texts; each does its own task: classify,
 * classify_tokens or embed. Texts are tokenised once per distinct tokenizer, the
 * models run side by side, and requests of one model that differ only in what is
 * made of its numbers (threshold, output, dimension, normalize) share its runs if
 * their timeout_ms and cancel_key are equal.
 *
 * Requests fail as rows do: a wrong handle or option, a full queue, a deadline or a
 * cancellation fails its request only. The call is then PARTIAL, and if every
 * request failed it returns the first one's status and no result; the input_index
 * of its error is the number of the request. No requests are OK with an empty
 * result. All is in one block: free the answers, never what is in them. */
SEMANTIC_API semantic_status semantic_run_models(const semantic_request *requests,
                                                 size_t request_count, const semantic_text *texts,
                                                 size_t n, const semantic_answers **result,
                                                 semantic_error *error);

typedef struct semantic_token_counts {
    size_t struct_size;
    uint64_t generation;
    const semantic_rows *rows;
    size_t window_total;
    const int64_t *row_start;    /* count + 1: windows of row i */
    const int64_t *window_start; /* bytes of the text that the window covers */
    const int64_t *window_end;
    const int64_t *window_tokens; /* with special tokens */
} semantic_token_counts;

/* Count tokens and cut windows exactly as a call with these options would; the
 * model does not run. A REFUSE that would refuse fails its row. */
SEMANTIC_API semantic_status semantic_count_tokens(semantic_model model, const semantic_text *texts,
                                                   size_t n, const semantic_run_options *options,
                                                   const semantic_token_counts **result,
                                                   semantic_error *error);

/* Stop queued and running work that carries the key; it ends with CANCELLED, unless
 * it was done already. Nothing carries it: NOT_FOUND; key 0: INVALID_ARGUMENT. Starts
 * nothing. */
SEMANTIC_API semantic_status semantic_cancel(uint64_t cancel_key);

/* ---- Statistics and log ------------------------------------------------- */

typedef int32_t semantic_call;
enum {
    SEMANTIC_CALL_CLASSIFY = 1,
    SEMANTIC_CALL_CLASSIFY_PAIRS = 2,
    SEMANTIC_CALL_CLASSIFY_TOKENS = 3,
    SEMANTIC_CALL_CLASSIFY_TOKEN_PAIRS = 4,
    SEMANTIC_CALL_EMBED = 5,
    SEMANTIC_CALL_COUNT_TOKENS = 6
};

/* The unit is the row: accepted = completed + failed + expired + cancelled +
 * in_flight (from the moment the queue has taken them; rows that fail by themselves
 * never reach it); refused rows (overload, wrong arguments) are counted apart. The counters of
 * unloaded models move to rows with model id 0 and name "(closed)". */
/* What a call does one after the other: it makes tokens of its texts, waits for its first
 * run, is in runs (or between those of many rows), and makes its result. */
typedef int32_t semantic_phase;
enum {
    SEMANTIC_PHASE_TOKENIZE = 1,
    SEMANTIC_PHASE_QUEUE = 2,
    SEMANTIC_PHASE_RUN = 3,
    SEMANTIC_PHASE_DECODE = 4
};

typedef struct semantic_stats {
    size_t struct_size;
    int32_t running; /* 1 between the first start and a cleanup */
    size_t models_loading;
    size_t models_ready;
    size_t models_stopping;

    size_t model_count; /* one entry per model, as semantic_list_models */
    const uint64_t *model_id;
    const semantic_text *model_name;
    const semantic_task *model_task;
    const semantic_model_state *model_state;

    size_t call_count; /* one entry per model and kind of call that was made */
    const uint64_t *call_model_id;
    const semantic_text *call_model_name;
    const semantic_call *call;
    const uint64_t *accepted;
    const uint64_t *completed;
    const uint64_t *failed;
    const uint64_t *expired;
    const uint64_t *cancelled;
    const uint64_t *in_flight;
    const uint64_t *refused;
    const uint64_t *tokens;    /* scored */
    const uint64_t *truncated; /* rows */
    const uint64_t *batches;   /* runs of the model, shared ones counted once */
    size_t bucket_count;
    const double *bucket_bounds; /* bucket_count - 1 upper bounds in seconds; the last is open */
    const uint64_t *latency;     /* calls, [entry][bucket], not cumulative */

    size_t memory_count; /* one entry per owner: each model, each base that adapters share, the
                            tokenizers, the interpreter */
    const semantic_text *memory_owner;
    const int64_t *memory_bytes;
    uint64_t results_unfreed; /* blocks not yet given to semantic_free */
    uint64_t results_unfreed_bytes;
    uint64_t log_dropped; /* log lines lost because the callback was slow */

    const double *latency_seconds; /* sum over the calls, [entry] */
    size_t phase_count;
    const uint64_t *phase_latency; /* calls that ended the phase, [entry][phase - 1][bucket] */
    const double *phase_seconds;   /* sum over these calls, [entry][phase - 1] */
    size_t batch_bucket_count;
    const uint64_t *batch_bounds;   /* batch_bucket_count - 1 upper bounds; the last is open */
    const uint64_t *batch_rows;     /* runs by their texts and windows, [entry][bucket] */
    const uint64_t *batch_rows_sum; /* texts and windows of all runs, [entry] */
    const uint64_t *padding_tokens; /* computed beside those scored, [entry] */

    const semantic_text *model_device; /* as model_id: where it runs; empty while it loads */
} semantic_stats;

/* Before the first start all numbers are zero, and Python is not started. */
SEMANTIC_API semantic_status semantic_get_stats(const semantic_stats **stats,
                                                semantic_error *error);

/* Gets one log line, without a newline and NUL-terminated. It runs on a thread of
 * the library and must not call the library. */
typedef void (*semantic_log_callback)(void *user, semantic_log_level level, const char *message,
                                      size_t length);

/* Send the log to a function; NULL sends it to stderr again and returns after the
 * last call of the old function has ended. Plain C, starts no Python. From within
 * the callback: INVALID_ARGUMENT. */
SEMANTIC_API semantic_status semantic_set_log_callback(semantic_log_callback callback, void *user);

/* ---- Memory ------------------------------------------------------------- */

/* Free one result block; NULL is harmless. Plain C. */
SEMANTIC_API void semantic_free(const void *block);

#ifdef __cplusplus
}
#endif

#endif /* SEMANTIC_H */
