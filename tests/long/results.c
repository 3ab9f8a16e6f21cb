/* Reads every byte of every kind of result, with 0, 1, 2 and 1,000 elements, frees it once, and
 * frees NULL: results MODELS. To be run under a memory checker, which must find what the two
 * functions `.._on_purpose` do wrong, and nothing else. */
#include "../abi/check.h"

#include <stdatomic.h>

#define MOST 1000

static const size_t sizes[] = {0, 1, 2, MOST};
static volatile unsigned sink;
static _Atomic long logged;

static void touch(const void *data, size_t bytes) {
    const unsigned char *byte = data;

    for (size_t i = 0; i < bytes; i++)
        sink += byte[i];
}

#define TOUCH(array, count)                                                                        \
    do {                                                                                           \
        CHECK((count) == 0 || (array) != NULL);                                                    \
        touch(array, (count) * sizeof *(array));                                                   \
    } while (0)

static void touch_text(semantic_text text) {
    touch(text.data, text.data == NULL ? 0 : text.length + 1);
}

static void touch_texts(const semantic_text *texts, size_t count) {
    TOUCH(texts, count);
    for (size_t i = 0; i < count; i++)
        touch_text(texts[i]);
}

static void touch_rows(const semantic_rows *rows, size_t n) {
    CHECK(rows->struct_size == sizeof *rows && rows->count == n);
    TOUCH(rows->token_count, n);
    TOUCH(rows->scored_token_count, n);
    TOUCH(rows->truncated, n);
    TOUCH(rows->window_count, n);
    TOUCH(rows->status, n);
    touch_texts(rows->message, n);
}

static void touch_classification(const semantic_classification *result, size_t n) {
    size_t cells = n * result->label_count;

    touch(result, result->struct_size);
    touch_rows(result->rows, n);
    touch_texts(result->labels, result->label_count);
    TOUCH(result->label_index, n);
    TOUCH(result->score, n);
    TOUCH(result->probabilities, cells);
    TOUCH(result->logits, cells);
    TOUCH(result->selected, cells);
    TOUCH(result->class_max, cells);
    TOUCH(result->class_window, cells);
}

static void touch_tokens(const semantic_token_classification *result, size_t n, int all) {
    size_t items = result->item_count;

    touch(result, result->struct_size);
    touch_rows(result->rows, n);
    touch_texts(result->labels, result->label_count);
    TOUCH(result->row_start, n + 1);
    CHECK(result->row_start[n] == (int64_t)items);
    TOUCH(result->row, items);
    TOUCH(result->label_index, items);
    TOUCH(result->score, items);
    TOUCH(result->start, items);
    TOUCH(result->end, items);
    CHECK(all || result->probabilities == NULL);
    TOUCH(result->probabilities, all ? items * result->label_count : 0);
}

static void touch_embedding(const semantic_embedding *result, size_t n) {
    touch(result, result->struct_size);
    touch_rows(result->rows, n);
    TOUCH(result->values, n * result->dimension);
}

static void touch_counts(const semantic_token_counts *result, size_t n) {
    touch(result, result->struct_size);
    touch_rows(result->rows, n);
    TOUCH(result->row_start, n + 1);
    TOUCH(result->window_start, result->window_total);
    TOUCH(result->window_end, result->window_total);
    TOUCH(result->window_tokens, result->window_total);
    semantic_free(result);
}

static void touch_list(size_t n) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_model_list *list;

    CHECK_OK(semantic_list_models(&list, &error), &error);
    CHECK(list->count == n);
    touch(list, list->struct_size);
    TOUCH(list->model_id, n);
    touch_texts(list->name, n);
    TOUCH(list->task, n);
    TOUCH(list->state, n);
    semantic_free(list);
}

static void touch_info(semantic_model model) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_model_info *info;

    CHECK_OK(semantic_get_model_info(model, &info, &error), &error);
    touch(info, info->struct_size);
    const semantic_text texts[] = {info->name,   info->path,     info->family, info->architecture,
                                   info->source, info->provider, info->dtype,  info->json};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        touch_text(texts[i]);
    touch_texts(info->labels, info->label_count);
    TOUCH(info->dimensions, info->dimension_count);
    TOUCH(info->layers, info->layer_count);
    touch_texts(info->prompt_names, info->prompt_count);
    touch_texts(info->file_names, info->file_count);
    TOUCH(info->file_sizes, info->file_count);
    touch_texts(info->warnings, info->warning_count);
    semantic_free(info);
}

static void touch_stats(size_t models) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;

    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->model_count == models);
    touch(stats, stats->struct_size);
    TOUCH(stats->model_id, models);
    touch_texts(stats->model_name, models);
    TOUCH(stats->model_task, models);
    TOUCH(stats->model_state, models);
    const size_t calls = stats->call_count;
    const uint64_t *const columns[] = {stats->accepted,      stats->completed, stats->failed,
                                       stats->expired,       stats->cancelled, stats->in_flight,
                                       stats->refused,       stats->tokens,    stats->truncated,
                                       stats->call_model_id, stats->batches};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        TOUCH(columns[i], calls);
    touch_texts(stats->call_model_name, calls);
    TOUCH(stats->call, calls);
    TOUCH(stats->bucket_bounds, stats->bucket_count == 0 ? 0 : stats->bucket_count - 1);
    TOUCH(stats->latency, calls * stats->bucket_count);
    TOUCH(stats->latency_seconds, calls);
    TOUCH(stats->phase_latency, calls * stats->phase_count * stats->bucket_count);
    TOUCH(stats->phase_seconds, calls * stats->phase_count);
    TOUCH(stats->batch_bounds, stats->batch_bucket_count == 0 ? 0 : stats->batch_bucket_count - 1);
    TOUCH(stats->batch_rows, calls * stats->batch_bucket_count);
    TOUCH(stats->batch_rows_sum, calls);
    TOUCH(stats->padding_tokens, calls);
    touch_texts(stats->memory_owner, stats->memory_count);
    TOUCH(stats->memory_bytes, stats->memory_count);
    CHECK(stats->results_unfreed == 0 && stats->results_unfreed_bytes == 0);
    semantic_free(stats);
}

static semantic_model load(const char *root, const char *folder) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model model;
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", root, folder);
    CHECK_OK(semantic_load_model(path, NULL, &model, &error), &error);
    return model;
}

static semantic_model classes, parts, vectors;

static void answered(semantic_status status, size_t n, const semantic_error *error) {
    if (n < MOST)
        CHECK_OK(status, error);
    else
        CHECK(status == SEMANTIC_PARTIAL && error->input_index == 2);
}

/* Several models in one block. */
static void answers_together(const semantic_text *texts, size_t n) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const size_t size = sizeof(semantic_request);
    const semantic_request requests[] = {
        {size, classes, NULL}, {size, parts, NULL}, {size, {0}, NULL}, {size, vectors, NULL}};
    const size_t count = sizeof requests / sizeof *requests;
    const semantic_answers *answers;

    CHECK(semantic_run_models(requests, count, texts, n, &answers, &error) == SEMANTIC_PARTIAL);
    CHECK(error.input_index == (n < MOST ? 2 : 0));
    CHECK(answers->count == count);
    touch(answers, answers->struct_size);
    TOUCH(answers->status, count);
    TOUCH(answers->input_index, count);
    touch_texts(answers->message, count);
    TOUCH(answers->classification, count);
    TOUCH(answers->token_classification, count);
    TOUCH(answers->embedding, count);
    touch_classification(answers->classification[0], n);
    touch_tokens(answers->token_classification[1], n, 0);
    touch_embedding(answers->embedding[3], n);
    semantic_free(answers);
}

/* Of many rows most fail, which is as many bytes of result and less to wait for. */
static void answers_of(const semantic_text *texts, size_t n) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
    const semantic_classification *classification;
    const semantic_token_classification *tokens;
    const semantic_embedding *embedding;
    const semantic_token_counts *counts;

    answered(semantic_classify(classes, texts, n, NULL, &classification, &error), n, &error);
    touch_classification(classification, n);
    semantic_free(classification);
    answered(semantic_classify_pairs(classes, texts, texts, n, NULL, &classification, &error), n,
             &error);
    touch_classification(classification, n);
    semantic_free(classification);
    answered(semantic_classify_tokens(parts, texts, n, NULL, &tokens, &error), n, &error);
    touch_tokens(tokens, n, 0);
    semantic_free(tokens);
    run.output = SEMANTIC_OUTPUT_TOKENS;
    answered(semantic_classify_tokens(parts, texts, n, &run, &tokens, &error), n, &error);
    touch_tokens(tokens, n, 1);
    semantic_free(tokens);
    answered(semantic_classify_token_pairs(parts, texts, texts, n, NULL, &tokens, &error), n,
             &error);
    touch_tokens(tokens, n, 0);
    semantic_free(tokens);
    answered(semantic_embed(vectors, texts, n, NULL, &embedding, &error), n, &error);
    touch_embedding(embedding, n);
    semantic_free(embedding);
    answered(semantic_count_tokens(parts, texts, n, NULL, &counts, &error), n, &error);
    touch_counts(counts, n);
    answers_together(texts, n);
    touch_stats(3);
}

/* One row with many elements, and one row of two that fails. */
static void odd_answers(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
    semantic_model nobody;
    static char words[5 * MOST];
    semantic_text texts[] = {{words, sizeof words}, {"\xff", 1}};
    const semantic_classification *classification;
    const semantic_token_classification *tokens;
    const semantic_token_counts *counts;

    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "math "[i % 5];
    run.long_text = SEMANTIC_LONG_TEXT_WINDOWS;
    CHECK_OK(semantic_classify(classes, texts, 1, &run, &classification, &error), &error);
    CHECK(classification->rows->window_count[0] > 8);
    touch_classification(classification, 1);
    semantic_free(classification);
    run.output = SEMANTIC_OUTPUT_TOKENS;
    CHECK_OK(semantic_classify_tokens(parts, texts, 1, &run, &tokens, &error), &error);
    CHECK(tokens->item_count == MOST);
    touch_tokens(tokens, 1, 1);
    semantic_free(tokens);
    run.output = SEMANTIC_OUTPUT_ENTITIES;
    CHECK_OK(semantic_count_tokens(parts, texts, 1, &run, &counts, &error), &error);
    touch_counts(counts, 1);
    CHECK(semantic_classify(classes, texts, 2, NULL, &classification, &error) == SEMANTIC_PARTIAL);
    touch_classification(classification, 2);
    semantic_free(classification);
    CHECK(semantic_classify(classes, texts + 1, 1, NULL, &classification, &error) ==
          SEMANTIC_INVALID_ARGUMENT);
    CHECK(classification == NULL);
    semantic_free(classification);
    words[sizeof words - 1] = '\0'; /* a message that is cut */
    CHECK(semantic_find_model(words, &nobody, &error) == SEMANTIC_NOT_FOUND);
    touch(&error, sizeof error);
}

static void collect(void *user, semantic_log_level level, const char *message, size_t length) {
    (void)user;
    (void)level;
    touch(message, length + 1);
    atomic_fetch_add(&logged, 1);
}

/* Often: freed memory of the interpreter may still hold the address of one list or another, which
 * is then not seen as lost. */
__attribute__((noinline)) static void forget_on_purpose(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_model_list *list;

    for (int i = 0; i < 32; i++)
        CHECK_OK(semantic_list_models(&list, &error), &error);
}

__attribute__((noinline)) static void read_too_far_on_purpose(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_model_list *list;

    CHECK_OK(semantic_list_models(&list, &error), &error);
    sink += *((const unsigned char *)list + sizeof *list);
    semantic_free(list);
}

int main(int argc, char **argv) {
    semantic_init_options init = SEMANTIC_INIT_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    static semantic_text texts[MOST];

    CHECK(argc == 2);
    semantic_free(NULL);
    touch_stats(0); /* before the start it is made in C */
    for (size_t i = 0; i < MOST; i++)
        texts[i] = i % 16 < 2 ? (semantic_text){"math", 4} : (semantic_text){"\xff", 1};
    CHECK(semantic_set_log_callback(collect, NULL) == SEMANTIC_OK);
    init.log_level = SEMANTIC_LOG_INFO;
    init.intra_op_threads = init.parallel_runs = 1;
    CHECK_OK(semantic_init(&init, &error), &error);
    touch_list(0);
    classes = load(argv[1], "bert-seq");
    touch_list(1);
    parts = load(argv[1], "bert-token");
    touch_list(2);
    vectors = load(argv[1], "bert-embed-mean");
    touch_list(3);
    touch_info(classes);
    touch_info(parts);
    touch_info(vectors);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        answers_of(texts, sizes[i]);
    odd_answers();
    CHECK_OK(semantic_cleanup(5000, &error), &error);
    touch_stats(0);
    CHECK(semantic_set_log_callback(NULL, NULL) == SEMANTIC_OK);
    CHECK(logged > 0);
    forget_on_purpose();
    read_too_far_on_purpose();
    semantic_free(NULL);
    printf("%ld lines\n", logged);
    return 0;
}
