/* The C functions that the Go package candle-binding declares, in the form in which it declares
 * them: nothing of this comes from the headers of the library, so that what links here links there.
 */
#ifndef CANDLE_DECLARATIONS_H
#define CANDLE_DECLARATIONS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int class;
    float confidence;
    char *label;
} ClassificationResult;

typedef struct {
    float confidence;
    int class;
    char *label;
    float *probabilities;
    int num_classes;
} ClassificationResultWithProbs;

typedef struct {
    int class;
    float confidence;
    float *probabilities;
    int num_classes;
} ModernBertClassificationResultWithProbs;

typedef struct {
    char *entity_type;
    int start;
    int end;
    char *text;
    float confidence;
} BertTokenEntity;

typedef struct {
    BertTokenEntity *entities;
    int num_entities;
} BertTokenClassificationResult;

typedef struct {
    char *category;
    float confidence;
} LoRAIntentResult;

typedef struct {
    bool has_pii;
    char **pii_types;
    int num_pii_types;
    float confidence;
} LoRAPIIResult;

typedef struct {
    bool is_jailbreak;
    char *threat_type;
    float confidence;
} LoRASecurityResult;

typedef struct {
    LoRAIntentResult *intent_results;
    LoRAPIIResult *pii_results;
    LoRASecurityResult *security_results;
    int batch_size;
    float avg_confidence;
} LoRABatchResult;

typedef struct {
    int class;
    float confidence;
} ModernBertClassificationResult;

typedef struct {
    char *entity_type;
    int start;
    int end;
    char *text;
    float confidence;
} ModernBertTokenEntity;

typedef struct {
    ModernBertTokenEntity *entities;
    int num_entities;
} ModernBertTokenClassificationResult;

typedef struct {
    char *text;
    int start;
    int end;
    float confidence;
    char *label;
} HallucinationSpan;

typedef struct {
    bool has_hallucination;
    float confidence;
    HallucinationSpan *spans;
    int num_spans;
    bool error;
    char *error_message;
} HallucinationDetectionResult;

typedef enum {
    NLI_ENTAILMENT = 0,
    NLI_NEUTRAL = 1,
    NLI_CONTRADICTION = 2,
    NLI_ERROR = -1
} NLILabel;

typedef struct {
    NLILabel label;
    float confidence;
    float entailment_prob;
    float neutral_prob;
    float contradiction_prob;
    bool error;
    char *error_message;
} NLIResult;

typedef struct {
    char *text;
    int start;
    int end;
    float hallucination_confidence;
    NLILabel nli_label;
    float nli_confidence;
    int severity;
    char *explanation;
} EnhancedHallucinationSpan;

typedef struct {
    bool has_hallucination;
    float confidence;
    EnhancedHallucinationSpan *spans;
    int num_spans;
    bool error;
    char *error_message;
} EnhancedHallucinationDetectionResult;

typedef struct {
    float *data;
    int length;
    bool error;
    int model_type;
    int sequence_length;
    float processing_time_ms;
} EmbeddingResult;

typedef struct {
    float similarity;
    int model_type;
    float processing_time_ms;
    bool error;
} EmbeddingSimilarityResult;

typedef struct {
    int index;
    float similarity;
} SimilarityMatch;

typedef struct {
    SimilarityMatch *matches;
    int num_matches;
    int model_type;
    float processing_time_ms;
    bool error;
} BatchSimilarityResult;

typedef struct {
    char *model_name;
    bool is_loaded;
    int max_sequence_length;
    int default_dimension;
    char *model_path;
} EmbeddingModelInfo;

typedef struct {
    EmbeddingModelInfo *models;
    int num_models;
    bool error;
} EmbeddingModelsInfoResult;

typedef struct {
    float *data;
    int length;
    bool error;
    int modality;
    float processing_time_ms;
} MultiModalEmbeddingResult;

typedef struct {
    int class_id;
    float confidence;
    char *category_name;
    float *probabilities;
    int num_categories;
    bool error;
    char *error_message;
} GenerativeClassificationResult;

typedef struct {
    char *raw_output;
    bool error;
    char *error_message;
} GuardResult;

typedef struct {
    int *token_ids;
    int token_count;
    char **tokens;
    bool error;
} TokenizationResult;

typedef struct {
    int index;
    float score;
} SimilarityResult;

extern bool init_generic_classifier(const char *model_id, int num_classes, bool use_cpu);
extern ClassificationResult classify_text(const char *text);
extern ClassificationResultWithProbs classify_text_with_probabilities(const char *text);
extern ClassificationResult classify_pii_text(const char *text);
extern ClassificationResult classify_jailbreak_text(const char *text);
extern ModernBertClassificationResultWithProbs
classify_jailbreak_text_with_probabilities(const char *text);
extern BertTokenClassificationResult classify_bert_pii_tokens(const char *text,
                                                              const char *id2label_json);
extern BertTokenClassificationResult
classify_candle_bert_tokens_with_labels(const char *text, const char *config_path);
extern BertTokenClassificationResult classify_candle_bert_tokens(const char *text);
extern ClassificationResult classify_candle_bert_text(const char *text);
extern ClassificationResult classify_bert_text(const char *text);
extern LoRABatchResult classify_batch_with_lora(const char **texts, int num_texts);
extern ModernBertClassificationResult classify_modernbert_text(const char *text);
extern ModernBertClassificationResultWithProbs
classify_modernbert_text_with_probabilities(const char *text);
extern ModernBertClassificationResult classify_modernbert_pii_text(const char *text);
extern ModernBertClassificationResult classify_modernbert_jailbreak_text(const char *text);
extern ModernBertClassificationResultWithProbs
classify_modernbert_jailbreak_text_with_probabilities(const char *text);
extern ClassificationResult classify_deberta_jailbreak_text(const char *text);
extern ModernBertClassificationResult classify_fact_check_text(const char *text);
extern ModernBertClassificationResult classify_feedback_text(const char *text);
extern ModernBertTokenClassificationResult classify_modernbert_pii_tokens(const char *text,
                                                                          const char *config_path);
extern HallucinationDetectionResult detect_hallucinations(const char *context, const char *question,
                                                          const char *answer, float threshold);
extern NLIResult classify_nli(const char *premise, const char *hypothesis);
extern EnhancedHallucinationDetectionResult detect_hallucinations_with_nli(const char *context,
                                                                           const char *question,
                                                                           const char *answer,
                                                                           float threshold);
extern ModernBertClassificationResult classify_mmbert_32k_intent(const char *text);
extern ModernBertClassificationResult classify_mmbert_32k_factcheck(const char *text);
extern ModernBertClassificationResult classify_mmbert_32k_jailbreak(const char *text);
extern ModernBertClassificationResultWithProbs
classify_mmbert_32k_jailbreak_with_probabilities(const char *text);
extern ModernBertClassificationResult classify_mmbert_32k_feedback(const char *text);
extern ModernBertTokenClassificationResult classify_mmbert_32k_pii_tokens(const char *text);
extern ModernBertClassificationResult classify_mmbert_32k_modality(const char *text);
extern bool init_mmbert_embedding_model(const char *model_path, bool use_cpu);
extern bool init_embedding_models_with_mmbert(const char *qwen3_model_path,
                                              const char *gemma_model_path,
                                              const char *mmbert_model_path, bool use_cpu);
extern bool init_embedding_models(const char *qwen3_model_path, const char *gemma_model_path,
                                  bool use_cpu);
extern int get_embedding_smart(const char *text, float quality_priority, float latency_priority,
                               EmbeddingResult *result);
extern int get_embedding_with_dim(const char *text, float quality_priority, float latency_priority,
                                  int target_dim, EmbeddingResult *result);
extern int get_embedding_with_model_type(const char *text, const char *model_type_str,
                                         int target_dim, EmbeddingResult *result);
extern int get_embedding_2d_matryoshka(const char *text, const char *model_type_str,
                                       int target_layer, int target_dim, EmbeddingResult *result);
extern int calculate_embedding_similarity(const char *text1, const char *text2,
                                          const char *model_type_str, int target_dim,
                                          EmbeddingSimilarityResult *result);
extern int calculate_similarity_batch(const char *query, const char **candidates,
                                      int num_candidates, int top_k, const char *model_type_str,
                                      int target_dim, BatchSimilarityResult *result);
extern void free_batch_similarity_result(BatchSimilarityResult *result);
extern int get_embedding_models_info(EmbeddingModelsInfoResult *result);
extern void free_embedding_models_info(EmbeddingModelsInfoResult *result);
extern bool init_embedding_models_batched(const char *qwen3_model_path, int max_batch_size,
                                          unsigned long long max_wait_ms, bool use_cpu);
extern int get_embedding_batched(const char *text, const char *model_type, int target_dim,
                                 EmbeddingResult *result);
extern bool init_multimodal_embedding_model(const char *model_path, bool use_cpu);
extern int multimodal_encode_text(const char *text, int target_dim,
                                  MultiModalEmbeddingResult *result);
extern int multimodal_encode_image_from_bytes(const unsigned char *bytes_ptr, size_t bytes_len,
                                              int target_dim, MultiModalEmbeddingResult *result);
extern int multimodal_encode_image(const float *pixel_data, int height, int width, int target_dim,
                                   MultiModalEmbeddingResult *result);
extern int multimodal_encode_audio(const float *mel_data, int n_mels, int time_frames,
                                   int target_dim, MultiModalEmbeddingResult *result);
extern void free_multimodal_embedding(float *data, int length);
extern void free_generative_classification_result(GenerativeClassificationResult *result);
extern void free_categories(char **categories, int num_categories);
extern int init_qwen3_multi_lora_classifier(const char *base_model_path);
extern int load_qwen3_lora_adapter(const char *adapter_name, const char *adapter_path);
extern int classify_with_qwen3_adapter(const char *text, const char *adapter_name,
                                       GenerativeClassificationResult *result);
extern int get_qwen3_loaded_adapters(char ***adapters_out, int *num_adapters);
extern int classify_zero_shot_qwen3(const char *text, const char **categories, int num_categories,
                                    GenerativeClassificationResult *result);
extern int is_qwen3_multi_lora_initialized(void);
extern void free_guard_result(GuardResult *result);
extern int init_qwen3_guard(const char *model_path);
extern int classify_with_qwen3_guard(const char *text, const char *mode, GuardResult *result);
extern int is_qwen3_guard_initialized(void);
extern bool init_similarity_model(const char *model_id, bool use_cpu);
extern bool is_similarity_model_initialized(void);
extern bool init_classifier(const char *model_id, int num_classes, bool use_cpu);
extern bool init_pii_classifier(const char *model_id, int num_classes, bool use_cpu);
extern bool init_jailbreak_classifier(const char *model_id, int num_classes, bool use_cpu);
extern bool init_modernbert_classifier(const char *model_id, bool use_cpu);
extern bool init_modernbert_pii_classifier(const char *model_id, bool use_cpu);
extern bool init_modernbert_pii_token_classifier(const char *model_id, bool use_cpu);
extern bool init_modernbert_jailbreak_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_classifier_auto(const char *model_id, bool use_cpu);
extern bool init_mmbert_token_classifier(const char *model_id, bool use_cpu);
extern bool is_mmbert_model(const char *config_path);
extern bool init_mmbert_32k_intent_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_32k_factcheck_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_32k_jailbreak_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_32k_feedback_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_32k_pii_classifier(const char *model_id, bool use_cpu);
extern bool init_mmbert_32k_modality_classifier(const char *model_id, bool use_cpu);
extern bool is_mmbert_32k_model(const char *config_path);
extern bool init_fact_check_classifier(const char *model_id, bool use_cpu);
extern bool init_feedback_detector(const char *model_id, bool use_cpu);
extern bool init_deberta_jailbreak_classifier(const char *model_id, bool use_cpu);
extern bool init_bert_token_classifier(const char *model_path, int num_classes, bool use_cpu);
extern bool init_candle_bert_classifier(const char *model_path, int num_classes, bool use_cpu);
extern bool init_candle_bert_token_classifier(const char *model_path, int num_classes,
                                              bool use_cpu);
extern bool init_lora_unified_classifier(const char *intent_model, const char *pii_model,
                                         const char *security_model, const char *architecture,
                                         bool use_cpu);
extern bool init_hallucination_model(const char *model_path, bool use_cpu);
extern bool init_nli_model(const char *model_path, bool use_cpu);
extern bool is_nli_model_initialized(void);
extern void free_tokenization_result(TokenizationResult result);
extern void free_cstring(char *s);
extern void free_embedding(float *data, int length);
extern void free_probabilities(float *probabilities, int num_classes);
extern void free_bert_token_classification_result(BertTokenClassificationResult result);
extern void free_lora_batch_result(LoRABatchResult result);
extern void free_modernbert_probabilities(float *probabilities, int num_classes);
extern void free_modernbert_token_result(ModernBertTokenClassificationResult result);
extern void free_hallucination_detection_result(HallucinationDetectionResult result);
extern void free_nli_result(NLIResult result);
extern void
free_enhanced_hallucination_detection_result(EnhancedHallucinationDetectionResult result);
extern void *candle_mlp_new(void);
extern void *candle_mlp_new_with_device(int device_type);
extern void *candle_mlp_new_with_device_and_dtype(int device_type, int dtype);
extern void candle_mlp_free(void *handle);
extern char *candle_mlp_select(void *handle, double *query, size_t query_len);
extern int candle_mlp_is_trained(void *handle);
extern char *candle_mlp_to_json(void *handle);
extern void *candle_mlp_from_json(char *json);
extern void *candle_mlp_from_json_with_device(char *json, int device_type);
extern void *candle_mlp_from_json_with_device_and_dtype(char *json, int device_type, int dtype);
extern void candle_mlp_free_string(char *ptr);
extern EmbeddingResult get_text_embedding(const char *text, int max_length);
extern float calculate_similarity(const char *text1, const char *text2, int max_length);
extern SimilarityResult find_most_similar(const char *query, const char **candidates,
                                          int num_candidates, int max_length);
extern TokenizationResult tokenize_text(const char *text, int max_length);

#endif
