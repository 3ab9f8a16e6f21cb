/*
 * The C functions of candle-binding, answered by libsemantic.
 *
 * libcandle_semantic_router.so exports exactly these functions, so that programs that were
 * written for candle-binding, its Go package among them, run on libsemantic without a change.
 * Programs that are new have more from semantic.h.
 *
 * Conventions, valid for every function unless it says otherwise:
 *
 * Models   An init function loads a folder in Hugging Face layout into a slot, which is a model
 *          named "candle/..." of semantic.h. A repository name such as "org/model" stands for
 *          its folder in the local Hugging Face cache; nothing is downloaded. The same path again
 *          is true without a load; another path is false, and the first model keeps working. An
 *          init that failed may be repeated. use_cpu false means device "auto" of semantic.h.
 * Text     NUL-terminated UTF-8. Offsets are UTF-8 byte offsets into it.
 * Errors   NULL, invalid UTF-8, an empty slot and whatever fails give the error value that stands
 *          at each function; the reason is in the log of libsemantic. Where nothing else is said,
 *          bool functions answer false, int functions -1.
 * Length   Texts are cut at the model's own limit; what is classified also at 8,192 tokens, or at
 *          what the environment variable SEMANTIC_CANDLE_MAX_TOKENS says instead. Token
 *          classification scans all of the text unless that variable is set.
 * Memory   What a function returns is freed by the function named there; NULL is harmless. The
 *          strings inside of a result are freed with it. `label` is never freed, and free_cstring
 *          leaves it alone.
 * Threads  Any function, from any thread, at any time.
 */
#ifndef CANDLE_SEMANTIC_ROUTER_H
#define CANDLE_SEMANTIC_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Results ------------------------------------------------------------ */

/* The winning class of a text; error value: class -1. */
typedef struct ClassificationResult {
    int predicted_class; /* index of the model's own order */
    float confidence;    /* softmax probability of that class */
    char *label;         /* its name, never freed */
} ClassificationResult;

/* The same with all probabilities; error value: class -1. */
typedef struct ClassificationResultWithProbs {
    float confidence;
    int predicted_class;
    char *label;
    float *probabilities; /* in class order; free_probabilities */
    int num_classes;
} ClassificationResultWithProbs;

/* The winning class of a text; error value: class -1. */
typedef struct ModernBertClassificationResult {
    int predicted_class;
    float confidence;
} ModernBertClassificationResult;

/* The same with all probabilities; error value: class -1. */
typedef struct ModernBertClassificationResultWithProbs {
    int predicted_class;
    float confidence;
    float *probabilities; /* in class order; free_modernbert_probabilities */
    int num_classes;
} ModernBertClassificationResultWithProbs;

/* A vector; error value: error true, model_type -1. */
typedef struct EmbeddingResult {
    float *data; /* free_embedding */
    int length;
    bool error;
    int model_type;      /* 0 qwen3, 1 gemma, 2 mmbert, 3 multimodal, -1 other */
    int sequence_length; /* words of the text; of get_embedding_batched: tokens */
    float processing_time_ms;
} EmbeddingResult;

/* The tokens of a text; error value: error true. */
typedef struct TokenizationResult {
    int *token_ids;
    int token_count;
    char **tokens;
    bool error;
} TokenizationResult;

/* The cosine of two texts; error value: error true, similarity and model_type -1. */
typedef struct EmbeddingSimilarityResult {
    float similarity;
    int model_type;
    float processing_time_ms;
    bool error;
} EmbeddingSimilarityResult;

/* The best of several candidates, in the 8-byte form that Go declares; error value: -1, -1. */
typedef struct SimilarityResult {
    int index;
    float similarity;
} SimilarityResult;

/* One part of a text with a label. */
typedef struct ModernBertTokenEntity {
    char *entity_type; /* without B- or I- */
    int start;
    int end;
    char *text;
    float confidence; /* mean probability of the type over the tokens */
} ModernBertTokenEntity;

/* The labelled parts of a text. */
typedef struct ModernBertTokenClassificationResult {
    ModernBertTokenEntity *entities;
    int num_entities; /* -1: error, where the function says so */
} ModernBertTokenClassificationResult;

/* One part of a text with a label. */
typedef struct BertTokenEntity {
    char *entity_type; /* without B- or I- */
    int start;
    int end;
    char *text;
    float confidence; /* mean probability of the type over the tokens */
} BertTokenEntity;

/* The labelled parts of a text; error value: -1 entities. */
typedef struct BertTokenClassificationResult {
    BertTokenEntity *entities;
    int num_entities;
} BertTokenClassificationResult;

/* The intent of one text of a batch. */
typedef struct IntentResult {
    char *category;
    float confidence;
    float *probabilities;
    int num_probabilities;
} IntentResult;

/* The personal data in one text of a batch. */
typedef struct PIIResult {
    bool has_pii;
    char **pii_types; /* each once, in order of appearance */
    int num_pii_types;
    float confidence; /* mean probability over the tokens of a type, without any: over the others */
} PIIResult;

/* The safety of one text of a batch. */
typedef struct SecurityResult {
    bool is_jailbreak;
    char *threat_type; /* "none" where there is no threat */
    float confidence;
} SecurityResult;

/* One result of each kind for each text; error value: error true with its message. */
typedef struct UnifiedBatchResult {
    IntentResult *intent_results;
    PIIResult *pii_results;
    SecurityResult *security_results;
    int batch_size;
    bool error;
    char *error_message;
} UnifiedBatchResult;

/* The intent of one text of a batch. */
typedef struct LoRAIntentResult {
    char *category;
    float confidence;
} LoRAIntentResult;

/* The personal data in one text of a batch, as PIIResult. */
typedef struct LoRAPIIResult {
    bool has_pii;
    char **pii_types;
    int num_pii_types;
    float confidence;
} LoRAPIIResult;

/* The safety of one text of a batch, as SecurityResult. */
typedef struct LoRASecurityResult {
    bool is_jailbreak;
    char *threat_type;
    float confidence;
} LoRASecurityResult;

/* One result of each kind for each text; error value: batch_size 0. */
typedef struct LoRABatchResult {
    LoRAIntentResult *intent_results;
    LoRAPIIResult *pii_results;
    LoRASecurityResult *security_results;
    int batch_size;
    float avg_confidence; /* mean of all confidences */
} LoRABatchResult;

/* One candidate and its cosine. */
typedef struct SimilarityMatch {
    int index;
    float similarity;
} SimilarityMatch;

/* The best candidates, best first; error value: error true, model_type -1. */
typedef struct BatchSimilarityResult {
    SimilarityMatch *matches;
    int num_matches;
    int model_type;
    float processing_time_ms;
    bool error;
} BatchSimilarityResult;

/* One embedding model. */
typedef struct EmbeddingModelInfo {
    char *model_name;
    bool is_loaded;
    int max_sequence_length; /* in tokens, 0: not loaded */
    int default_dimension;   /* 0: not loaded */
    char *model_path;        /* empty: not loaded */
} EmbeddingModelInfo;

/* The embedding models; error value: error true. */
typedef struct EmbeddingModelsInfoResult {
    EmbeddingModelInfo *models;
    int num_models;
    bool error;
} EmbeddingModelsInfoResult;

/* One part of an answer that the context does not support. */
typedef struct HallucinationSpan {
    char *text;
    int start; /* bytes of the answer */
    int end;
    float confidence; /* the highest probability of a token */
    char *label;      /* "HALLUCINATED" */
} HallucinationSpan;

/* What of an answer is not supported; error value: error true with its message. */
typedef struct HallucinationDetectionResult {
    bool has_hallucination;
    float confidence; /* the highest probability of a token of a span; 1 without a span */
    HallucinationSpan *spans;
    int num_spans;
    bool error;
    char *error_message;
} HallucinationDetectionResult;

/* How a hypothesis relates to a premise. */
typedef enum NLILabel {
    NLI_ENTAILMENT = 0,
    NLI_NEUTRAL = 1,
    NLI_CONTRADICTION = 2,
    NLI_ERROR = -1
} NLILabel;

/* The answer of classify_nli; error value: label NLI_ERROR, error true with its message. */
typedef struct NLIResult {
    NLILabel label;
    float confidence;
    float entailment_prob;
    float neutral_prob;
    float contradiction_prob;
    bool error;
    char *error_message;
} NLIResult;

/* One part of an answer that the context does not support, and why. */
typedef struct EnhancedHallucinationSpan {
    char *text;
    int start; /* bytes of the answer */
    int end;
    float hallucination_confidence;
    NLILabel nli_label;
    float nli_confidence;
    int severity; /* 1 doubtful to 4 contradicted */
    char *explanation;
} EnhancedHallucinationSpan;

/* What of an answer is not supported, and why; error value: error true with its message. */
typedef struct EnhancedHallucinationDetectionResult {
    bool has_hallucination;
    float confidence; /* the highest of all confidences of the spans; 1 without a span */
    EnhancedHallucinationSpan *spans;
    int num_spans;
    bool error;
    char *error_message;
} EnhancedHallucinationDetectionResult;

/* A vector of a text, an image or a sound; error value: error true, modality -1. */
typedef struct MultiModalEmbeddingResult {
    float *data; /* free_multimodal_embedding */
    int length;
    bool error;
    int modality; /* 0 text, 1 image, 2 audio */
    float processing_time_ms;
} MultiModalEmbeddingResult;

/* The answer of a generative classifier; error value: class -1, error true with its message. */
typedef struct GenerativeClassificationResult {
    int class_id;
    float confidence;
    char *category_name;
    float *probabilities;
    int num_categories;
    bool error;
    char *error_message;
} GenerativeClassificationResult;

/* What a guard model wrote; error value: error true with its message. */
typedef struct GuardResult {
    char *raw_output;
    bool error;
    char *error_message;
} GuardResult;

/* Whether an argument is allowed, and if not, why. */
typedef struct ValidationResult {
    bool is_valid;
    int error_code; /* 0 fine, 1 NULL, 2 not UTF-8, 3 too long, 4 too short, 5 batch size,
                       6 confidence, 7 model path, 9 memory, 100 rule of path type 1 (LoRA) or an
                       unknown path type, 200 rule of path type 0 */
    char *error_message;
    char *suggestions;
} ValidationResult;

/* A model selector. */
typedef struct MLPHandle MLPHandle;

/* ---- Similarity and tokens ---------------------------------------------- */

/* Load the model of this section; an empty model_id is all-MiniLM-L6-v2 of the local cache. */
bool init_similarity_model(const char *model_id, bool use_cpu);

/* Whether init_similarity_model has succeeded; starts nothing. */
bool is_similarity_model_initialized(void);

/* The unit vector of a text, cut at max_length tokens (0 or less: 512); free_embedding. */
EmbeddingResult get_text_embedding(const char *text, int max_length);

/* The cosine of two texts; error value: -1. */
float calculate_similarity(const char *text1, const char *text2, int max_length);

/* The first of the candidates with the highest cosine. */
SimilarityResult find_most_similar(const char *query, const char **candidates, int num_candidates,
                                   int max_length);

/* The tokens of a text with the special tokens, cut at max_length; free_tokenization_result. */
TokenizationResult tokenize_text(const char *text, int max_length);

/* ---- Classifiers of whole texts ----------------------------------------- */

/* Load the classifier of classify_text; num_classes, 2 or more, must be that of the model. */
bool init_classifier(const char *model_id, int num_classes, bool use_cpu);

/* The same as init_classifier, and the same slot. */
bool init_generic_classifier(const char *model_id, int num_classes, bool use_cpu);

/* The class of a text. */
ClassificationResult classify_text(const char *text);

/* The class of a text with all probabilities; free_probabilities. */
ClassificationResultWithProbs classify_text_with_probabilities(const char *text);

/* Load the classifier of classify_pii_text; num_classes, 2 or more, must be that of the model. */
bool init_pii_classifier(const char *model_id, int num_classes, bool use_cpu);

/* Whether a text holds personal data, as a class of the whole text. */
ClassificationResult classify_pii_text(const char *text);

/* Load the classifier of classify_jailbreak_text; num_classes as above, adapters aside. */
bool init_jailbreak_classifier(const char *model_id, int num_classes, bool use_cpu);

/* Whether a text is a jailbreak. */
ClassificationResult classify_jailbreak_text(const char *text);

/* The same with all probabilities; free_modernbert_probabilities. */
ModernBertClassificationResultWithProbs
classify_jailbreak_text_with_probabilities(const char *text);

/* Load the classifier of classify_candle_bert_text; num_classes as above, adapters aside. */
bool init_candle_bert_classifier(const char *model_path, int num_classes, bool use_cpu);

/* The class of a text. */
ClassificationResult classify_candle_bert_text(const char *text);

/* The same as classify_candle_bert_text. */
ClassificationResult classify_bert_text(const char *text);

/* Load a ModernBERT classifier. */
bool init_modernbert_classifier(const char *model_id, bool use_cpu);

/* The class of a text. */
ModernBertClassificationResult classify_modernbert_text(const char *text);

/* The class of a text with all probabilities; free_modernbert_probabilities. */
ModernBertClassificationResultWithProbs
classify_modernbert_text_with_probabilities(const char *text);

/* Load a ModernBERT classifier of personal data. */
bool init_modernbert_pii_classifier(const char *model_id, bool use_cpu);

/* Whether a text holds personal data, as a class of the whole text. */
ModernBertClassificationResult classify_modernbert_pii_text(const char *text);

/* Load a ModernBERT classifier of jailbreaks. */
bool init_modernbert_jailbreak_classifier(const char *model_id, bool use_cpu);

/* Whether a text is a jailbreak. */
ModernBertClassificationResult classify_modernbert_jailbreak_text(const char *text);

/* The same with all probabilities; free_modernbert_probabilities. */
ModernBertClassificationResultWithProbs
classify_modernbert_jailbreak_text_with_probabilities(const char *text);

/* Load a DeBERTa v3 classifier of prompt injections. */
bool init_deberta_jailbreak_classifier(const char *model_id, bool use_cpu);

/* Whether a text is a prompt injection: the index of the model's own label. */
ClassificationResult classify_deberta_jailbreak_text(const char *text);

/* Load a ModernBERT classifier that tells whether a text needs a fact check. */
bool init_fact_check_classifier(const char *model_id, bool use_cpu);

/* Whether a text needs a fact check. */
ModernBertClassificationResult classify_fact_check_text(const char *text);

/* Load a ModernBERT classifier of user feedback. */
bool init_feedback_detector(const char *model_id, bool use_cpu);

/* What a user's text says about the answer before it. */
ModernBertClassificationResult classify_feedback_text(const char *text);

/* Load an mmBERT classifier; no function of this header asks it. */
bool init_mmbert_classifier(const char *model_id, bool use_cpu);

/* The same as init_mmbert_classifier, and the same slot. */
bool init_mmbert_classifier_auto(const char *model_id, bool use_cpu);

/* Whether a config.json is that of a multilingual ModernBERT. */
bool is_mmbert_model(const char *config_path);

/* Whether a config.json is that of a multilingual ModernBERT for 32,768 tokens. */
bool is_mmbert_32k_model(const char *config_path);

/* Load an mmBERT-32K classifier of intents. */
bool init_mmbert_32k_intent_classifier(const char *model_id, bool use_cpu);

/* The intent of a text. */
ModernBertClassificationResult classify_mmbert_32k_intent(const char *text);

/* Load an mmBERT-32K classifier that tells whether a text needs a fact check. */
bool init_mmbert_32k_factcheck_classifier(const char *model_id, bool use_cpu);

/* Whether a text needs a fact check. */
ModernBertClassificationResult classify_mmbert_32k_factcheck(const char *text);

/* Load an mmBERT-32K classifier of jailbreaks. */
bool init_mmbert_32k_jailbreak_classifier(const char *model_id, bool use_cpu);

/* Whether a text is a jailbreak. */
ModernBertClassificationResult classify_mmbert_32k_jailbreak(const char *text);

/* The same with all probabilities; free_modernbert_probabilities. */
ModernBertClassificationResultWithProbs
classify_mmbert_32k_jailbreak_with_probabilities(const char *text);

/* Load an mmBERT-32K classifier of user feedback. */
bool init_mmbert_32k_feedback_classifier(const char *model_id, bool use_cpu);

/* What a user's text says about the answer before it. */
ModernBertClassificationResult classify_mmbert_32k_feedback(const char *text);

/* Load an mmBERT-32K classifier of the modality that a text asks for. */
bool init_mmbert_32k_modality_classifier(const char *model_id, bool use_cpu);

/* What a text asks for: 0 text, 1 an image, 2 both. */
ModernBertClassificationResult classify_mmbert_32k_modality(const char *text);

/* ---- Classifiers of tokens ---------------------------------------------- */

/* Load the classifier of classify_bert_pii_tokens; num_classes is not looked at. */
bool init_bert_token_classifier(const char *model_path, int num_classes, bool use_cpu);

/* The entities above 0.5; id2label_json is not looked at;
 * free_bert_token_classification_result. */
BertTokenClassificationResult classify_bert_pii_tokens(const char *text, const char *id2label_json);

/* Load the classifier of classify_candle_bert_tokens; num_classes is not looked at. */
bool init_candle_bert_token_classifier(const char *model_path, int num_classes, bool use_cpu);

/* The first 1,000 entities above 0.5, of this, the BERT or the ModernBERT token classifier. */
BertTokenClassificationResult classify_candle_bert_tokens(const char *text);

/* The same of this or the BERT token classifier; what config_path names is not looked at. */
BertTokenClassificationResult classify_candle_bert_tokens_with_labels(const char *text,
                                                                      const char *config_path);

/* Load a ModernBERT classifier of personal data. */
bool init_modernbert_pii_token_classifier(const char *model_id, bool use_cpu);

/* The entities above 0.5, named by id2label of a config.json; error value: -1 entities. */
ModernBertTokenClassificationResult classify_modernbert_pii_tokens(const char *text,
                                                                   const char *config_path);

/* Load an mmBERT token classifier; no function of this header asks it. */
bool init_mmbert_token_classifier(const char *model_id, bool use_cpu);

/* Load an mmBERT-32K classifier of personal data. */
bool init_mmbert_32k_pii_classifier(const char *model_id, bool use_cpu);

/* The entities; error value: none, since a caller in Go would stop at a negative number. */
ModernBertTokenClassificationResult classify_mmbert_32k_pii_tokens(const char *text);

/* ---- Batches of intent, personal data and safety ------------------------ */

/* Load three classifiers, whole or adapters of modernbert_path; labels are compared, not used. */
bool init_unified_classifier_c(const char *modernbert_path, const char *intent_head_path,
                               const char *pii_head_path, const char *security_head_path,
                               const char **intent_labels, int intent_labels_count,
                               const char **pii_labels, int pii_labels_count,
                               const char **security_labels, int security_labels_count,
                               bool use_cpu);

/* Intent, personal data and safety of each text; free_unified_batch_result. */
UnifiedBatchResult classify_unified_batch(const char **texts, int num_texts);

/* Load three classifiers, whole or adapters; architecture is not looked at. */
bool init_lora_unified_classifier(const char *intent_model, const char *pii_model,
                                  const char *security_model, const char *architecture,
                                  bool use_cpu);

/* Intent, personal data and safety of up to 1,000 texts; free_lora_batch_result. */
LoRABatchResult classify_batch_with_lora(const char **texts, int num_texts);

/* ---- Hallucinations and inference --------------------------------------- */

/* Load a token classifier that marks what a context does not support. */
bool init_hallucination_model(const char *model_path, bool use_cpu);

/* The parts of an answer that are not supported; threshold outside (0, 1]: 0.5;
 * free_hallucination_detection_result. */
HallucinationDetectionResult detect_hallucinations(const char *context, const char *question,
                                                   const char *answer, float threshold);

/* Load a classifier of entailment, neutral and contradiction. */
bool init_nli_model(const char *model_path, bool use_cpu);

/* Whether init_nli_model has succeeded; starts nothing. */
bool is_nli_model_initialized(void);

/* How a hypothesis relates to a premise; free_nli_result. */
NLIResult classify_nli(const char *premise, const char *hypothesis);

/* As detect_hallucinations, each part explained by inference where that model is loaded;
 * free_enhanced_hallucination_detection_result. */
EnhancedHallucinationDetectionResult detect_hallucinations_with_nli(const char *context,
                                                                    const char *question,
                                                                    const char *answer,
                                                                    float threshold);

/* ---- Embeddings --------------------------------------------------------- */

/* Load Qwen3 and Gemma, all that are named or none; NULL or an empty path leaves one out, both are
 * false. */
bool init_embedding_models(const char *qwen3_model_path, const char *gemma_model_path,
                           bool use_cpu);

/* Load Qwen3, Gemma and mmBERT, all that are named or none; NULL or an empty path leaves one out,
 * all are false. */
bool init_embedding_models_with_mmbert(const char *qwen3_model_path, const char *gemma_model_path,
                                       const char *mmbert_model_path, bool use_cpu);

/* Load mmBERT. */
bool init_mmbert_embedding_model(const char *model_path, bool use_cpu);

/* Load a Qwen3 of its own for get_embedding_batched; it runs at most max_batch_size texts at once
 * (0: the default). What arrives during a run is run together, and nothing waits for max_wait_ms.
 */
bool init_embedding_models_batched(const char *qwen3_model_path, int max_batch_size,
                                   uint64_t max_wait_ms, bool use_cpu);

/* The vector of a text by the model that suits length and priorities; free_embedding. */
int get_embedding_smart(const char *text, float quality_priority, float latency_priority,
                        EmbeddingResult *result);

/* The same, cut to the first target_dim numbers and scaled to unit length (0 or less: whole; more
 * than the model has: error value); free_embedding. */
int get_embedding_with_dim(const char *text, float quality_priority, float latency_priority,
                           int target_dim, EmbeddingResult *result);

/* The vector of a text by "qwen3", "gemma" or "mmbert"; free_embedding. */
int get_embedding_with_model_type(const char *text, const char *model_type, int target_dim,
                                  EmbeddingResult *result);

/* The same; mmBERT answers after target_layer layers (0 or less: all): those that its files list,
 * else 3, 6, 11 and 22, and the last; free_embedding. */
int get_embedding_2d_matryoshka(const char *text, const char *model_type, int target_layer,
                                int target_dim, EmbeddingResult *result);

/* The vector of a text by the model of init_embedding_models_batched; free_embedding. */
int get_embedding_batched(const char *text, const char *model_type, int target_dim,
                          EmbeddingResult *result);

/* Unload the model of init_embedding_models_batched, after the calls in flight. */
void shutdown_embedding_batched(void);

/* The cosine of two texts by "qwen3" or "gemma", or by the one model that "auto" chooses for both.
 */
int calculate_embedding_similarity(const char *text1, const char *text2, const char *model_type,
                                   int target_dim, EmbeddingSimilarityResult *result);

/* The top_k candidates (0 or less: all), best first; free_batch_similarity_result. */
int calculate_similarity_batch(const char *query, const char **candidates, int num_candidates,
                               int top_k, const char *model_type, int target_dim,
                               BatchSimilarityResult *result);

/* "qwen3" and "gemma", loaded or not, and "mmbert" where it is loaded; error value where none is;
 * free_embedding_models_info. */
int get_embedding_models_info(EmbeddingModelsInfoResult *result);

/* ---- Embeddings of images and sound: not supported yet ------------------- */

/* Unsupported: false. */
bool init_multimodal_embedding_model(const char *model_path, bool use_cpu);

/* Unsupported: -1. */
int multimodal_encode_text(const char *text, int target_dim, MultiModalEmbeddingResult *result);

/* Unsupported: -1. */
int multimodal_encode_image(const float *pixel_data, int height, int width, int target_dim,
                            MultiModalEmbeddingResult *result);

/* Unsupported: -1. */
int multimodal_encode_image_from_bytes(const unsigned char *bytes_ptr, size_t bytes_len,
                                       int target_dim, MultiModalEmbeddingResult *result);

/* Unsupported: -1. */
int multimodal_encode_audio(const float *mel_data, int n_mels, int time_frames, int target_dim,
                            MultiModalEmbeddingResult *result);

/* ---- Generative models: not supported yet -------------------------------- */

/* Unsupported: -1. */
int init_qwen3_multi_lora_classifier(const char *base_model_path);

/* Unsupported: -1. */
int load_qwen3_lora_adapter(const char *adapter_name, const char *adapter_path);

/* Unsupported: -1. */
int classify_with_qwen3_adapter(const char *text, const char *adapter_name,
                                GenerativeClassificationResult *result);

/* Unsupported: -1. */
int get_qwen3_loaded_adapters(char ***adapters_out, int *num_adapters);

/* Unsupported: -1. */
int classify_zero_shot_qwen3(const char *text, const char **categories, int num_categories,
                             GenerativeClassificationResult *result);

/* 0: such a model cannot be loaded; starts nothing. */
int is_qwen3_multi_lora_initialized(void);

/* Unsupported: -1. */
int init_qwen3_guard(const char *model_path);

/* Unsupported: -1. */
int classify_with_qwen3_guard(const char *text, const char *mode, GuardResult *result);

/* 0: such a model cannot be loaded; starts nothing. */
int is_qwen3_guard_initialized(void);

/* ---- Model selector ------------------------------------------------------ */

/* A selector without a network; error value: NULL; candle_mlp_free. A handle is a number, not to be
 * looked into, and never given out twice: one that was freed is answered with the error value.
 * Selectors are no models: the statistics of semantic.h do not list them, and semantic_cleanup
 * leaves them alone. */
MLPHandle *candle_mlp_new(void);

/* The same; device_type 0 CPU, 1 CUDA, 2 Metal: it always runs on the CPU. */
MLPHandle *candle_mlp_new_with_device(int device_type);

/* The same; dtype 0 f32, 1 f16, 2 bf16: it always computes in f32. */
MLPHandle *candle_mlp_new_with_device_and_dtype(int device_type, int dtype);

/* A selector from its JSON; error value: NULL; candle_mlp_free. */
MLPHandle *candle_mlp_from_json(const char *json);

/* The same; it always runs on the CPU. */
MLPHandle *candle_mlp_from_json_with_device(const char *json, int device_type);

/* The same; it always computes in f32. */
MLPHandle *candle_mlp_from_json_with_device_and_dtype(const char *json, int device_type, int dtype);

/* The model that the network chooses; error value: NULL, also where it is not trained and for
 * another query_len than its own; candle_mlp_free_string. */
char *candle_mlp_select(const MLPHandle *handle, const double *query, size_t query_len);

/* 1 if the network is trained, else 0; error value: 0. */
int candle_mlp_is_trained(const MLPHandle *handle);

/* The selector as JSON that candle_mlp_from_json reads; error value: NULL;
 * candle_mlp_free_string. */
char *candle_mlp_to_json(const MLPHandle *handle);

/* Free a selector. */
void candle_mlp_free(MLPHandle *handle);

/* Free a string of a selector. */
void candle_mlp_free_string(char *ptr);

/* ---- Validation ----------------------------------------------------------- */

/* Whether a text is allowed; free_validation_result. */
ValidationResult validate_text_input(const char *text, int path_type);

/* Whether a batch of texts is allowed; free_validation_result. */
ValidationResult validate_batch_input(const char **texts, int texts_count, int path_type);

/* Whether a model path is allowed; free_validation_result. */
ValidationResult validate_model_path(const char *model_path, int path_type);

/* Whether a confidence threshold is allowed; free_validation_result. */
ValidationResult validate_confidence_threshold(float confidence, int path_type);

/* Whether size and alignment of a block are allowed; free_validation_result. */
ValidationResult validate_memory_parameters(size_t size, size_t alignment);

/* ---- Memory ----------------------------------------------------------------- */

/* A zeroed block; error value: NULL; safe_free. */
unsigned char *safe_alloc_traditional(size_t size);

/* The same, counted by get_lora_memory_usage. */
unsigned char *safe_alloc_lora(size_t size);

/* Free a block of the two functions above; false for any other pointer, and a second time. */
bool safe_free(unsigned char *ptr);

/* Whether fewer than 100 blocks of safe_alloc_... are not freed. */
bool get_memory_safety_status(void);

/* The bytes of blocks of safe_alloc_lora that are not freed. */
size_t get_lora_memory_usage(void);

/* Free all blocks of safe_alloc_... */
void cleanup_dual_path_memory(void);

/* Free the vector of an EmbeddingResult. */
void free_embedding(float *data, int length);

/* Free the vector of a MultiModalEmbeddingResult. */
void free_multimodal_embedding(float *data, int length);

/* Free the probabilities of a ClassificationResultWithProbs. */
void free_probabilities(float *probabilities, int num_classes);

/* Free the probabilities of a ModernBertClassificationResultWithProbs. */
void free_modernbert_probabilities(float *probabilities, int num_classes);

/* Free what a TokenizationResult points to. */
void free_tokenization_result(TokenizationResult result);

/* Free a string; a label is left alone. */
void free_cstring(char *s);

/* Free what a BertTokenClassificationResult points to. */
void free_bert_token_classification_result(BertTokenClassificationResult result);

/* Free what a ModernBertTokenClassificationResult points to. */
void free_modernbert_token_result(ModernBertTokenClassificationResult result);

/* Free what a UnifiedBatchResult points to, its message too. */
void free_unified_batch_result(UnifiedBatchResult result);

/* Free what a LoRABatchResult points to. */
void free_lora_batch_result(LoRABatchResult result);

/* Free what a HallucinationDetectionResult points to. */
void free_hallucination_detection_result(HallucinationDetectionResult result);

/* Free what an EnhancedHallucinationDetectionResult points to. */
void free_enhanced_hallucination_detection_result(EnhancedHallucinationDetectionResult result);

/* Free what an NLIResult points to. */
void free_nli_result(NLIResult result);

/* Free the matches and forget them; model_type and processing_time_ms stay readable. */
void free_batch_similarity_result(BatchSimilarityResult *result);

/* Free the models and forget them. */
void free_embedding_models_info(EmbeddingModelsInfoResult *result);

/* Free what a GenerativeClassificationResult points to. */
void free_generative_classification_result(GenerativeClassificationResult *result);

/* Free what get_qwen3_loaded_adapters gave. */
void free_categories(char **categories, int num_categories);

/* Free what a GuardResult points to. */
void free_guard_result(GuardResult *result);

/* Free what a ValidationResult points to. */
void free_validation_result(ValidationResult result);

/* Free an array of strings that a function of this library gave. */
void free_c_string_array(char **array, int length);

/* Free an array of numbers that a function of this library gave. */
void free_c_int_array(int *array, int length);

/* Free an array of numbers that a function of this library gave. */
void free_c_float_array(float *array, int length);

#ifdef __cplusplus
}
#endif

#endif /* CANDLE_SEMANTIC_ROUTER_H */
