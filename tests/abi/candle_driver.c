/* Calls the functions of candle_semantic_router.h as lines of text say, and tells in one line of
 * JSON each what they answered. A program (lines on stdin) and a shared object (candle_run) alike.
 *
 *     NAME ARGUMENT...   call a function; what it answered is freed by the function that is meant
 *     & NAME ...         call it with the others of its kind, from threads of their own, at `wait`
 *     repeat N NAME ...  call it N times, tell the last answer; with ` ; ` between them several
 *     hold, release      keep the answers from now on; free what was kept
 *     lose               forget what was kept without freeing it, for checkers to find
 *     stats, resident, cleanup MS, unload sNAME, load sPATH sNAME
 *
 * Arguments: `-` NULL, `s` and hexadecimal bytes a text, `a` and these with commas an array of
 * texts, `f` and numbers an array of floats, `d` of doubles, `h` and a number what an earlier call
 * has answered, `p` what the latest one has, which is forgotten; `o` a place for the result, else a
 * number. */
#include <candle_semantic_router.h>
#include <semantic.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_ARGUMENTS 12
#define MOST_CALLS 4
#define MOST_TOKENS (MOST_CALLS * (MOST_ARGUMENTS + 1) + 2)
#define MOST_HANDLES 4096
#define MOST_HELD 4096

typedef struct argument {
    char kind;
    char *text;
    char **list;
    double *doubles;
    float *floats;
    double number;
    void *handle;
    long length;
} argument;

/* Answers that are not structs, so that each kind has a name of one word. */
typedef char *mlp_text;
typedef void *mlp_handle;
typedef unsigned char *memory;
typedef struct adapters {
    char **names;
    int count;
} adapters;

static void *handles[MOST_HANDLES];
static int handle_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct held {
    void (*release)(void *);
    void *answer;
} held[MOST_HELD];
static int held_count, holding;

static void settle(const void *answer, size_t size, void (*release)(void *)) {
    void *copy = malloc(size);

    memcpy(copy, answer, size);
    pthread_mutex_lock(&lock);
    if (holding && held_count < MOST_HELD) {
        held[held_count++] = (struct held){release, copy};
        copy = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (copy != NULL) {
        release(copy);
        free(copy);
    }
}

static int keep_handle(void *handle) {
    pthread_mutex_lock(&lock);
    int place = handle == NULL || handle_count == MOST_HANDLES ? -1 : handle_count++;
    if (place >= 0)
        handles[place] = handle;
    pthread_mutex_unlock(&lock);
    return place;
}

static void *take_handle(void) {
    pthread_mutex_lock(&lock);
    void *handle = handle_count > 0 ? handles[--handle_count] : NULL;
    pthread_mutex_unlock(&lock);
    return handle;
}

/* ---- JSON --------------------------------------------------------------- */

static void put_text(FILE *out, const char *text) {
    if (text == NULL) {
        fputs("null", out);
        return;
    }
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++)
        if (*at == '"' || *at == '\\' || *at < ' ')
            fprintf(out, "\\u%04x", *at);
        else
            fputc(*at, out);
    fputc('"', out);
}

static void put_number(FILE *out, double number) {
    if (isnan(number))
        fputs("NaN", out);
    else if (isinf(number))
        fputs(number < 0 ? "-Infinity" : "Infinity", out);
    else
        fprintf(out, "%.9g", number);
}

static void put_floats(FILE *out, const float *values, int count) {
    if (values == NULL) {
        fputs("null", out);
        return;
    }
    fputc('[', out);
    for (int i = 0; i < count; i++) {
        fputs(i ? ", " : "", out);
        put_number(out, (double)values[i]);
    }
    fputc(']', out);
}

static void put_ids(FILE *out, const int *ids, int count) {
    if (ids == NULL) {
        fputs("null", out);
        return;
    }
    fputc('[', out);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s%d", i ? ", " : "", ids[i]);
    fputc(']', out);
}

/* A bool that is neither 0 nor 1 is told as the number it is. */
static void put_bool(FILE *out, const bool *value) {
    unsigned char byte;

    memcpy(&byte, value, 1);
    if (byte > 1)
        fprintf(out, "%d", byte);
    else
        fputs(byte ? "true" : "false", out);
}

static void put_texts(FILE *out, char *const *texts, int count) {
    if (texts == NULL) {
        fputs("null", out);
        return;
    }
    fputc('[', out);
    for (int i = 0; i < count; i++) {
        fputs(i ? ", " : "", out);
        put_text(out, texts[i]);
    }
    fputc(']', out);
}

#define FIELD(name) fprintf(out, "%s\"%s\": ", separator(&first), name)
#define INT(field) (FIELD(#field), fprintf(out, "%d", (int)r->field))
#define NUMBER(field) (FIELD(#field), put_number(out, (double)r->field))
#define FLAG(field) (FIELD(#field), put_bool(out, &r->field))
#define TEXT(field) (FIELD(#field), put_text(out, r->field))
#define FLOATS(field, count) (FIELD(#field), put_floats(out, r->field, r->count))
#define TEXTS(field, count) (FIELD(#field), put_texts(out, r->field, r->count))
#define ARRAY(field, count, show)                                                                  \
    do {                                                                                           \
        FIELD(#field);                                                                             \
        if (r->field == NULL) {                                                                    \
            fputs("null", out);                                                                    \
            break;                                                                                 \
        }                                                                                          \
        fputc('[', out);                                                                           \
        for (int i_ = 0; i_ < r->count; i_++) {                                                    \
            fputs(i_ ? ", " : "", out);                                                            \
            show(out, &r->field[i_]);                                                              \
        }                                                                                          \
        fputc(']', out);                                                                           \
    } while (0)

static const char *separator(int *first) {
    const char *text = *first ? "{" : ", ";

    *first = 0;
    return text;
}

#define SHOW(type, fields)                                                                         \
    static void show_##type(FILE *out, const type *r) {                                            \
        int first = 1;                                                                             \
        fields;                                                                                    \
        fputs(first ? "{}" : "}", out);                                                            \
    }

/* ---- The structs: how they are told, and who frees them ------------------ */

SHOW(ClassificationResult, INT(predicted_class); NUMBER(confidence); TEXT(label))
SHOW(ClassificationResultWithProbs, INT(predicted_class); NUMBER(confidence); TEXT(label);
     FLOATS(probabilities, num_classes); INT(num_classes))
SHOW(ModernBertClassificationResult, INT(predicted_class); NUMBER(confidence))
SHOW(ModernBertClassificationResultWithProbs, INT(predicted_class); NUMBER(confidence);
     FLOATS(probabilities, num_classes); INT(num_classes))
SHOW(BertTokenEntity, TEXT(entity_type); INT(start); INT(end); TEXT(text); NUMBER(confidence))
SHOW(ModernBertTokenEntity, TEXT(entity_type); INT(start); INT(end); TEXT(text); NUMBER(confidence))
SHOW(BertTokenClassificationResult, ARRAY(entities, num_entities, show_BertTokenEntity);
     INT(num_entities))
SHOW(ModernBertTokenClassificationResult, ARRAY(entities, num_entities, show_ModernBertTokenEntity);
     INT(num_entities))
SHOW(EmbeddingResult, FLOATS(data, length); INT(length); FLAG(error); INT(model_type);
     INT(sequence_length); NUMBER(processing_time_ms))
SHOW(TokenizationResult, FIELD("token_ids"); put_ids(out, r->token_ids, r->token_count);
     INT(token_count); TEXTS(tokens, token_count); FLAG(error))
SHOW(SimilarityResult, INT(index); NUMBER(similarity))
SHOW(IntentResult, TEXT(category); NUMBER(confidence); FLOATS(probabilities, num_probabilities);
     INT(num_probabilities))
SHOW(PIIResult, FLAG(has_pii); TEXTS(pii_types, num_pii_types); INT(num_pii_types);
     NUMBER(confidence))
SHOW(SecurityResult, FLAG(is_jailbreak); TEXT(threat_type); NUMBER(confidence))
SHOW(UnifiedBatchResult, ARRAY(intent_results, batch_size, show_IntentResult);
     ARRAY(pii_results, batch_size, show_PIIResult);
     ARRAY(security_results, batch_size, show_SecurityResult); INT(batch_size); FLAG(error);
     TEXT(error_message))
SHOW(LoRAIntentResult, TEXT(category); NUMBER(confidence))
SHOW(LoRAPIIResult, FLAG(has_pii); TEXTS(pii_types, num_pii_types); INT(num_pii_types);
     NUMBER(confidence))
SHOW(LoRASecurityResult, FLAG(is_jailbreak); TEXT(threat_type); NUMBER(confidence))
SHOW(LoRABatchResult, ARRAY(intent_results, batch_size, show_LoRAIntentResult);
     ARRAY(pii_results, batch_size, show_LoRAPIIResult);
     ARRAY(security_results, batch_size, show_LoRASecurityResult); INT(batch_size);
     NUMBER(avg_confidence))
SHOW(HallucinationSpan, TEXT(text); INT(start); INT(end); NUMBER(confidence); TEXT(label))
SHOW(HallucinationDetectionResult, FLAG(has_hallucination); NUMBER(confidence);
     ARRAY(spans, num_spans, show_HallucinationSpan); INT(num_spans); FLAG(error);
     TEXT(error_message))
SHOW(NLIResult, INT(label); NUMBER(confidence); NUMBER(entailment_prob); NUMBER(neutral_prob);
     NUMBER(contradiction_prob); FLAG(error); TEXT(error_message))
SHOW(EnhancedHallucinationSpan, TEXT(text); INT(start); INT(end); NUMBER(hallucination_confidence);
     INT(nli_label); NUMBER(nli_confidence); INT(severity); TEXT(explanation))
SHOW(EnhancedHallucinationDetectionResult, FLAG(has_hallucination); NUMBER(confidence);
     ARRAY(spans, num_spans, show_EnhancedHallucinationSpan); INT(num_spans); FLAG(error);
     TEXT(error_message))
SHOW(EmbeddingSimilarityResult, NUMBER(similarity); INT(model_type); NUMBER(processing_time_ms);
     FLAG(error))
SHOW(SimilarityMatch, INT(index); NUMBER(similarity))
SHOW(BatchSimilarityResult, ARRAY(matches, num_matches, show_SimilarityMatch); INT(num_matches);
     INT(model_type); NUMBER(processing_time_ms); FLAG(error))
SHOW(EmbeddingModelInfo, TEXT(model_name); FLAG(is_loaded); INT(max_sequence_length);
     INT(default_dimension); TEXT(model_path))
SHOW(EmbeddingModelsInfoResult, ARRAY(models, num_models, show_EmbeddingModelInfo); INT(num_models);
     FLAG(error))
SHOW(MultiModalEmbeddingResult, FLOATS(data, length); INT(length); FLAG(error); INT(modality);
     NUMBER(processing_time_ms))
SHOW(GenerativeClassificationResult, INT(class_id); NUMBER(confidence); TEXT(category_name);
     FLOATS(probabilities, num_categories); INT(num_categories); FLAG(error); TEXT(error_message))
SHOW(GuardResult, TEXT(raw_output); FLAG(error); TEXT(error_message))
SHOW(ValidationResult, FLAG(is_valid); INT(error_code); TEXT(error_message); TEXT(suggestions))
SHOW(adapters, TEXTS(names, count); INT(count))

#define RELEASE(type, calls)                                                                       \
    static void release_##type(void *answer) {                                                     \
        type *r = answer;                                                                          \
        (void)r;                                                                                   \
        calls;                                                                                     \
    }

RELEASE(ClassificationResult, free_cstring(r->label))
RELEASE(ClassificationResultWithProbs, free_cstring(r->label);
        free_probabilities(r->probabilities, r->num_classes))
RELEASE(ModernBertClassificationResult, )
RELEASE(ModernBertClassificationResultWithProbs,
        free_modernbert_probabilities(r->probabilities, r->num_classes))
RELEASE(BertTokenClassificationResult, free_bert_token_classification_result(*r))
RELEASE(ModernBertTokenClassificationResult, free_modernbert_token_result(*r))
RELEASE(EmbeddingResult, free_embedding(r->data, r->length))
RELEASE(TokenizationResult, free_tokenization_result(*r))
RELEASE(SimilarityResult, )
RELEASE(UnifiedBatchResult, free_unified_batch_result(*r))
RELEASE(LoRABatchResult, free_lora_batch_result(*r))
RELEASE(HallucinationDetectionResult, free_hallucination_detection_result(*r))
RELEASE(NLIResult, free_nli_result(*r))
RELEASE(EnhancedHallucinationDetectionResult, free_enhanced_hallucination_detection_result(*r))
RELEASE(EmbeddingSimilarityResult, )
RELEASE(MultiModalEmbeddingResult, free_multimodal_embedding(r->data, r->length))
RELEASE(GenerativeClassificationResult, free_generative_classification_result(r))
RELEASE(GuardResult, free_guard_result(r))
RELEASE(ValidationResult, free_validation_result(*r))
RELEASE(adapters, free_categories(r->names, r->count))
RELEASE(bool, )
RELEASE(int, )
RELEASE(float, )
RELEASE(size_t, )
RELEASE(mlp_text, candle_mlp_free_string(*r))
RELEASE(mlp_handle, ) /* kept among the handles; candle_mlp_free ends it */
RELEASE(memory, )

/* These reset what they have freed: whoever frees twice must meet nothing. */
#define RELEASE_TWICE(type, free_it, reset)                                                        \
    static void release_##type(void *answer) {                                                     \
        type *r = answer;                                                                          \
        free_it(r);                                                                                \
        if (!(reset)) {                                                                            \
            fprintf(stderr, "%s leaves pointers to what it has freed\n", #free_it);                \
            abort();                                                                               \
        }                                                                                          \
        free_it(r);                                                                                \
    }

RELEASE_TWICE(BatchSimilarityResult, free_batch_similarity_result,
              r->matches == NULL && r->num_matches == 0)
RELEASE_TWICE(EmbeddingModelsInfoResult, free_embedding_models_info,
              r->models == NULL && r->num_models == 0)
static void show_bool(FILE *out, const bool *value) {
    put_bool(out, value);
}

static void show_int(FILE *out, const int *value) {
    fprintf(out, "%d", *value);
}

static void show_float(FILE *out, const float *value) {
    put_number(out, (double)*value);
}

static void show_size_t(FILE *out, const size_t *value) {
    fprintf(out, "%zu", *value);
}

static void show_mlp_text(FILE *out, const mlp_text *value) {
    put_text(out, *value);
}

static void show_mlp_handle(FILE *out, const mlp_handle *value) {
    int place = keep_handle(*value);

    if (place < 0)
        fputs("null", out);
    else
        fprintf(out, "\"h%d\"", place);
}

static void show_memory(FILE *out, const memory *value) {
    int place = keep_handle(*value);

    if (place < 0)
        fputs("null", out);
    else
        fprintf(out, "\"h%d\"", place);
}

/* ---- The functions ------------------------------------------------------- */

#define S(i) (a[i].text)
#define I(i) ((int)a[i].number)
#define B(i) (a[i].number != 0)
#define F(i) ((float)a[i].number)
#define Z(i) ((size_t)a[i].number)
#define U(i) ((uint64_t)a[i].number)
#define A(i) ((const char **)a[i].list)
#define D(i) (a[i].doubles)
#define V(i) (a[i].floats)
#define H(i) (a[i].kind == 'p' ? take_handle() : a[i].handle)
#define OUT(i) (a[i].kind == '-' ? NULL : &result)
#define ZERO(type) ((type){0})

/* ANSWER: returns its result. FILLS: returns a status and fills a struct. DOES: returns nothing. */
#define FUNCTIONS(ANSWER, FILLS, DOES)                                                             \
    ANSWER(bool, init_similarity_model, S(0), B(1))                                                \
    ANSWER(bool, is_similarity_model_initialized)                                                  \
    ANSWER(EmbeddingResult, get_text_embedding, S(0), I(1))                                        \
    ANSWER(float, calculate_similarity, S(0), S(1), I(2))                                          \
    ANSWER(SimilarityResult, find_most_similar, S(0), A(1), I(2), I(3))                            \
    ANSWER(TokenizationResult, tokenize_text, S(0), I(1))                                          \
    ANSWER(bool, init_classifier, S(0), I(1), B(2))                                                \
    ANSWER(bool, init_generic_classifier, S(0), I(1), B(2))                                        \
    ANSWER(bool, init_pii_classifier, S(0), I(1), B(2))                                            \
    ANSWER(bool, init_jailbreak_classifier, S(0), I(1), B(2))                                      \
    ANSWER(bool, init_candle_bert_classifier, S(0), I(1), B(2))                                    \
    ANSWER(bool, init_bert_token_classifier, S(0), I(1), B(2))                                     \
    ANSWER(bool, init_candle_bert_token_classifier, S(0), I(1), B(2))                              \
    ANSWER(bool, init_modernbert_classifier, S(0), B(1))                                           \
    ANSWER(bool, init_modernbert_pii_classifier, S(0), B(1))                                       \
    ANSWER(bool, init_modernbert_pii_token_classifier, S(0), B(1))                                 \
    ANSWER(bool, init_modernbert_jailbreak_classifier, S(0), B(1))                                 \
    ANSWER(bool, init_fact_check_classifier, S(0), B(1))                                           \
    ANSWER(bool, init_feedback_detector, S(0), B(1))                                               \
    ANSWER(bool, init_deberta_jailbreak_classifier, S(0), B(1))                                    \
    ANSWER(bool, init_mmbert_classifier, S(0), B(1))                                               \
    ANSWER(bool, init_mmbert_classifier_auto, S(0), B(1))                                          \
    ANSWER(bool, init_mmbert_token_classifier, S(0), B(1))                                         \
    ANSWER(bool, init_mmbert_32k_intent_classifier, S(0), B(1))                                    \
    ANSWER(bool, init_mmbert_32k_factcheck_classifier, S(0), B(1))                                 \
    ANSWER(bool, init_mmbert_32k_jailbreak_classifier, S(0), B(1))                                 \
    ANSWER(bool, init_mmbert_32k_feedback_classifier, S(0), B(1))                                  \
    ANSWER(bool, init_mmbert_32k_pii_classifier, S(0), B(1))                                       \
    ANSWER(bool, init_mmbert_32k_modality_classifier, S(0), B(1))                                  \
    ANSWER(bool, init_hallucination_model, S(0), B(1))                                             \
    ANSWER(bool, init_nli_model, S(0), B(1))                                                       \
    ANSWER(bool, is_nli_model_initialized)                                                         \
    ANSWER(bool, is_mmbert_model, S(0))                                                            \
    ANSWER(bool, is_mmbert_32k_model, S(0))                                                        \
    ANSWER(bool, init_lora_unified_classifier, S(0), S(1), S(2), S(3), B(4))                       \
    ANSWER(bool, init_unified_classifier_c, S(0), S(1), S(2), S(3), A(4), I(5), A(6), I(7), A(8),  \
           I(9), B(10))                                                                            \
    ANSWER(ClassificationResult, classify_text, S(0))                                              \
    ANSWER(ClassificationResultWithProbs, classify_text_with_probabilities, S(0))                  \
    ANSWER(ClassificationResult, classify_pii_text, S(0))                                          \
    ANSWER(ClassificationResult, classify_jailbreak_text, S(0))                                    \
    ANSWER(ModernBertClassificationResultWithProbs, classify_jailbreak_text_with_probabilities,    \
           S(0))                                                                                   \
    ANSWER(ClassificationResult, classify_candle_bert_text, S(0))                                  \
    ANSWER(ClassificationResult, classify_bert_text, S(0))                                         \
    ANSWER(ClassificationResult, classify_deberta_jailbreak_text, S(0))                            \
    ANSWER(ModernBertClassificationResult, classify_modernbert_text, S(0))                         \
    ANSWER(ModernBertClassificationResultWithProbs, classify_modernbert_text_with_probabilities,   \
           S(0))                                                                                   \
    ANSWER(ModernBertClassificationResult, classify_modernbert_pii_text, S(0))                     \
    ANSWER(ModernBertClassificationResult, classify_modernbert_jailbreak_text, S(0))               \
    ANSWER(ModernBertClassificationResultWithProbs,                                                \
           classify_modernbert_jailbreak_text_with_probabilities, S(0))                            \
    ANSWER(ModernBertClassificationResult, classify_fact_check_text, S(0))                         \
    ANSWER(ModernBertClassificationResult, classify_feedback_text, S(0))                           \
    ANSWER(ModernBertClassificationResult, classify_mmbert_32k_intent, S(0))                       \
    ANSWER(ModernBertClassificationResult, classify_mmbert_32k_factcheck, S(0))                    \
    ANSWER(ModernBertClassificationResult, classify_mmbert_32k_jailbreak, S(0))                    \
    ANSWER(ModernBertClassificationResultWithProbs,                                                \
           classify_mmbert_32k_jailbreak_with_probabilities, S(0))                                 \
    ANSWER(ModernBertClassificationResult, classify_mmbert_32k_feedback, S(0))                     \
    ANSWER(ModernBertClassificationResult, classify_mmbert_32k_modality, S(0))                     \
    ANSWER(BertTokenClassificationResult, classify_bert_pii_tokens, S(0), S(1))                    \
    ANSWER(BertTokenClassificationResult, classify_candle_bert_tokens, S(0))                       \
    ANSWER(BertTokenClassificationResult, classify_candle_bert_tokens_with_labels, S(0), S(1))     \
    ANSWER(ModernBertTokenClassificationResult, classify_modernbert_pii_tokens, S(0), S(1))        \
    ANSWER(ModernBertTokenClassificationResult, classify_mmbert_32k_pii_tokens, S(0))              \
    ANSWER(UnifiedBatchResult, classify_unified_batch, A(0), I(1))                                 \
    ANSWER(LoRABatchResult, classify_batch_with_lora, A(0), I(1))                                  \
    ANSWER(HallucinationDetectionResult, detect_hallucinations, S(0), S(1), S(2), F(3))            \
    ANSWER(EnhancedHallucinationDetectionResult, detect_hallucinations_with_nli, S(0), S(1), S(2), \
           F(3))                                                                                   \
    ANSWER(NLIResult, classify_nli, S(0), S(1))                                                    \
    ANSWER(bool, init_embedding_models, S(0), S(1), B(2))                                          \
    ANSWER(bool, init_embedding_models_with_mmbert, S(0), S(1), S(2), B(3))                        \
    ANSWER(bool, init_mmbert_embedding_model, S(0), B(1))                                          \
    ANSWER(bool, init_embedding_models_batched, S(0), I(1), U(2), B(3))                            \
    FILLS(EmbeddingResult, get_embedding_smart, S(0), F(1), F(2), OUT(3))                          \
    FILLS(EmbeddingResult, get_embedding_with_dim, S(0), F(1), F(2), I(3), OUT(4))                 \
    FILLS(EmbeddingResult, get_embedding_with_model_type, S(0), S(1), I(2), OUT(3))                \
    FILLS(EmbeddingResult, get_embedding_2d_matryoshka, S(0), S(1), I(2), I(3), OUT(4))            \
    FILLS(EmbeddingResult, get_embedding_batched, S(0), S(1), I(2), OUT(3))                        \
    FILLS(EmbeddingSimilarityResult, calculate_embedding_similarity, S(0), S(1), S(2), I(3),       \
          OUT(4))                                                                                  \
    FILLS(BatchSimilarityResult, calculate_similarity_batch, S(0), A(1), I(2), I(3), S(4), I(5),   \
          OUT(6))                                                                                  \
    FILLS(EmbeddingModelsInfoResult, get_embedding_models_info, OUT(0))                            \
    DOES(shutdown_embedding_batched)                                                               \
    ANSWER(bool, init_multimodal_embedding_model, S(0), B(1))                                      \
    FILLS(MultiModalEmbeddingResult, multimodal_encode_text, S(0), I(1), OUT(2))                   \
    FILLS(MultiModalEmbeddingResult, multimodal_encode_image, V(0), I(1), I(2), I(3), OUT(4))      \
    FILLS(MultiModalEmbeddingResult, multimodal_encode_image_from_bytes,                           \
          (const unsigned char *)S(0), Z(1), I(2), OUT(3))                                         \
    FILLS(MultiModalEmbeddingResult, multimodal_encode_audio, V(0), I(1), I(2), I(3), OUT(4))      \
    ANSWER(int, init_qwen3_multi_lora_classifier, S(0))                                            \
    ANSWER(int, load_qwen3_lora_adapter, S(0), S(1))                                               \
    FILLS(GenerativeClassificationResult, classify_with_qwen3_adapter, S(0), S(1), OUT(2))         \
    FILLS(GenerativeClassificationResult, classify_zero_shot_qwen3, S(0), A(1), I(2), OUT(3))      \
    FILLS(adapters, get_qwen3_loaded_adapters, a[0].kind == '-' ? NULL : &result.names,            \
          a[1].kind == '-' ? NULL : &result.count)                                                 \
    ANSWER(int, is_qwen3_multi_lora_initialized)                                                   \
    ANSWER(int, init_qwen3_guard, S(0))                                                            \
    FILLS(GuardResult, classify_with_qwen3_guard, S(0), S(1), OUT(2))                              \
    ANSWER(int, is_qwen3_guard_initialized)                                                        \
    ANSWER(mlp_handle, candle_mlp_new)                                                             \
    ANSWER(mlp_handle, candle_mlp_new_with_device, I(0))                                           \
    ANSWER(mlp_handle, candle_mlp_new_with_device_and_dtype, I(0), I(1))                           \
    ANSWER(mlp_handle, candle_mlp_from_json, S(0))                                                 \
    ANSWER(mlp_handle, candle_mlp_from_json_with_device, S(0), I(1))                               \
    ANSWER(mlp_handle, candle_mlp_from_json_with_device_and_dtype, S(0), I(1), I(2))               \
    ANSWER(mlp_text, candle_mlp_select, H(0), D(1), Z(2))                                          \
    ANSWER(int, candle_mlp_is_trained, H(0))                                                       \
    ANSWER(mlp_text, candle_mlp_to_json, H(0))                                                     \
    DOES(candle_mlp_free, H(0))                                                                    \
    DOES(candle_mlp_free_string, S(0))                                                             \
    ANSWER(ValidationResult, validate_text_input, S(0), I(1))                                      \
    ANSWER(ValidationResult, validate_batch_input, A(0), I(1), I(2))                               \
    ANSWER(ValidationResult, validate_model_path, S(0), I(1))                                      \
    ANSWER(ValidationResult, validate_confidence_threshold, F(0), I(1))                            \
    ANSWER(ValidationResult, validate_memory_parameters, Z(0), Z(1))                               \
    ANSWER(memory, safe_alloc_traditional, Z(0))                                                   \
    ANSWER(memory, safe_alloc_lora, Z(0))                                                          \
    ANSWER(bool, safe_free, H(0))                                                                  \
    ANSWER(bool, get_memory_safety_status)                                                         \
    ANSWER(size_t, get_lora_memory_usage)                                                          \
    DOES(cleanup_dual_path_memory)                                                                 \
    DOES(free_cstring, S(0))                                                                       \
    DOES(free_embedding, V(0), I(1))                                                               \
    DOES(free_multimodal_embedding, V(0), I(1))                                                    \
    DOES(free_probabilities, V(0), I(1))                                                           \
    DOES(free_modernbert_probabilities, V(0), I(1))                                                \
    DOES(free_c_string_array, NULL, I(0))                                                          \
    DOES(free_c_int_array, NULL, I(0))                                                             \
    DOES(free_c_float_array, NULL, I(0))                                                           \
    DOES(free_categories, NULL, I(0))                                                              \
    DOES(free_tokenization_result, ZERO(TokenizationResult))                                       \
    DOES(free_bert_token_classification_result, ZERO(BertTokenClassificationResult))               \
    DOES(free_modernbert_token_result, ZERO(ModernBertTokenClassificationResult))                  \
    DOES(free_unified_batch_result, ZERO(UnifiedBatchResult))                                      \
    DOES(free_lora_batch_result, ZERO(LoRABatchResult))                                            \
    DOES(free_hallucination_detection_result, ZERO(HallucinationDetectionResult))                  \
    DOES(free_enhanced_hallucination_detection_result, ZERO(EnhancedHallucinationDetectionResult)) \
    DOES(free_nli_result, ZERO(NLIResult))                                                         \
    DOES(free_validation_result, ZERO(ValidationResult))                                           \
    DOES(free_batch_similarity_result, a[0].kind == '-' ? NULL : &ZERO(BatchSimilarityResult))     \
    DOES(free_embedding_models_info, a[0].kind == '-' ? NULL : &ZERO(EmbeddingModelsInfoResult))   \
    DOES(free_generative_classification_result,                                                    \
         a[0].kind == '-' ? NULL : &ZERO(GenerativeClassificationResult))                          \
    DOES(free_guard_result, a[0].kind == '-' ? NULL : &ZERO(GuardResult))

#define CALL_ANSWER(type, name, ...)                                                               \
    static void call_##name(FILE *out, const argument *a) {                                        \
        (void)a;                                                                                   \
        type result = name(__VA_ARGS__);                                                           \
        show_##type(out, &result);                                                                 \
        settle(&result, sizeof result, release_##type);                                            \
    }

#define CALL_FILLS(type, name, ...)                                                                \
    static void call_##name(FILE *out, const argument *a) {                                        \
        type result, poison;                                                                       \
        memset(&poison, 0xA5, sizeof poison);                                                      \
        memset(&result, 0xA5, sizeof result);                                                      \
        (void)a;                                                                                   \
        int status = name(__VA_ARGS__);                                                            \
        if (memcmp(&result, &poison, sizeof result) == 0) {                                        \
            fprintf(out, "{\"status\": %d, \"untouched\": true}", status);                         \
            return;                                                                                \
        }                                                                                          \
        fprintf(out, "{\"status\": %d, \"result\": ", status);                                     \
        show_##type(out, &result);                                                                 \
        fputc('}', out);                                                                           \
        settle(&result, sizeof result, release_##type);                                            \
    }

#define CALL_DOES(name, ...)                                                                       \
    static void call_##name(FILE *out, const argument *a) {                                        \
        (void)a;                                                                                   \
        name(__VA_ARGS__);                                                                         \
        fputs("null", out);                                                                        \
    }

FUNCTIONS(CALL_ANSWER, CALL_FILLS, CALL_DOES)

#define ROW_ANSWER(type, name, ...) {#name, call_##name},
#define ROW_DOES(name, ...) {#name, call_##name},

static const struct {
    const char *name;
    void (*call)(FILE *, const argument *);
} rows[] = {FUNCTIONS(ROW_ANSWER, ROW_ANSWER, ROW_DOES)};

/* ---- Arguments ----------------------------------------------------------- */

static int digit(char hex) {
    return hex <= '9' ? hex - '0' : hex - 'a' + 10;
}

static char *from_hex(const char *hex, size_t digits) {
    char *text = calloc(digits / 2 + 1, 1);

    for (size_t i = 0; i + 1 < digits; i += 2)
        text[i / 2] = (char)(digit(hex[i]) << 4 | digit(hex[i + 1]));
    return text;
}

static void read_argument(argument *value, const char *token) {
    memset(value, 0, sizeof *value);
    value->kind = token[0];
    switch (token[0]) {
    case 's':
        value->text = from_hex(token + 1, strlen(token + 1));
        break;
    case 'a':
    case 'f':
    case 'd':
        for (const char *at = token + 1; *at != '\0';) {
            size_t length = strcspn(at, ",");
            size_t count = (size_t)value->length + 1;
            if (token[0] == 'a') {
                value->list = realloc(value->list, count * sizeof *value->list);
                value->list[count - 1] = *at == '-' ? NULL : from_hex(at + 1, length - 1);
            } else if (token[0] == 'f') {
                value->floats = realloc(value->floats, count * sizeof *value->floats);
                value->floats[count - 1] = strtof(at, NULL);
            } else {
                value->doubles = realloc(value->doubles, count * sizeof *value->doubles);
                value->doubles[count - 1] = strtod(at, NULL);
            }
            value->length++;
            at += length + (at[length] == ',');
        }
        /* An array of nothing is there all the same. */
        if (value->length == 0) {
            value->list = calloc(1, sizeof *value->list);
            value->floats = calloc(1, sizeof *value->floats);
            value->doubles = calloc(1, sizeof *value->doubles);
        }
        break;
    case 'h':
        value->handle = handles[atoi(token + 1) % MOST_HANDLES];
        break;
    case 'o':
    case 'p':
        break;
    case '-':
        if (token[1] == '\0')
            break;
        __attribute__((fallthrough)); /* a negative number */
    default:
        value->kind = 'n';
        value->number = strtod(token, NULL);
    }
}

static void forget_argument(argument *value) {
    free(value->text);
    for (long i = 0; i < value->length && value->list != NULL; i++)
        free(value->list[i]);
    free(value->list);
    free(value->floats);
    free(value->doubles);
}

/* ---- Lines --------------------------------------------------------------- */

typedef struct job {
    char *line;
    char *answer;
    pthread_barrier_t *together;
    pthread_t thread;
} job;

static job *jobs;
static int job_count;

static void tell_stats(FILE *out) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats = NULL;
    uint64_t truncated = 0, completed = 0;

    if (semantic_get_stats(&stats, &error) != SEMANTIC_OK) {
        put_text(out, error.message);
        return;
    }
    for (size_t i = 0; i < stats->call_count; i++) {
        truncated += stats->truncated[i];
        completed += stats->completed[i];
    }
    /* The statistics themselves are not freed yet, but counted before they were made. */
    fprintf(out,
            "{\"unfreed\": %llu, \"truncated\": %llu, \"completed\": %llu, \"ready\": %llu, "
            "\"loading\": %llu, \"stopping\": %llu, \"models\": [",
            (unsigned long long)stats->results_unfreed, (unsigned long long)truncated,
            (unsigned long long)completed, (unsigned long long)stats->models_ready,
            (unsigned long long)stats->models_loading, (unsigned long long)stats->models_stopping);
    for (size_t i = 0; i < stats->model_count; i++) {
        fputs(i ? ", " : "", out);
        put_text(out, stats->model_name[i].data);
    }
    fputs("]}", out);
    semantic_free(stats);
}

static void tell_resident(FILE *out) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file != NULL) {
        if (fscanf(file, "%*s %ld", &pages) != 1)
            pages = -1;
        fclose(file);
    }
    fprintf(out, "%ld", pages * sysconf(_SC_PAGESIZE));
}

static int find_row(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0)
            return (int)i;
    return -1;
}

typedef struct prepared {
    int row;
    argument arguments[MOST_ARGUMENTS];
    int count;
} prepared;

static void prepare(prepared *call, char **tokens, int count) {
    memset(call, 0, sizeof *call);
    call->row = find_row(tokens[0]);
    call->count = count - 1 < MOST_ARGUMENTS ? count - 1 : MOST_ARGUMENTS;
    for (int i = 0; i < call->count; i++)
        read_argument(&call->arguments[i], tokens[i + 1]);
}

static void forget(prepared *call) {
    for (int i = 0; i < call->count; i++)
        forget_argument(&call->arguments[i]);
}

static void repeat_calls(FILE *out, char **tokens, int count) {
    prepared calls[MOST_CALLS];
    int call_count = 0;
    FILE *nowhere = fopen("/dev/null", "w");

    for (int at = 1, end; at < count && call_count < MOST_CALLS; at = end + 1) {
        for (end = at; end < count && strcmp(tokens[end], ";") != 0; end++)
            ;
        prepare(&calls[call_count], &tokens[at], end - at);
        if (calls[call_count].row < 0) {
            fputs("\"no such function\"", out);
            count = 0;
        }
        call_count++;
    }
    for (long left = count > 0 ? atol(tokens[0]) : 0; left > 0; left--)
        for (int i = 0; i < call_count; i++)
            rows[calls[i].row].call(left == 1 && i == call_count - 1 ? out : nowhere,
                                    calls[i].arguments);
    for (int i = 0; i < call_count; i++)
        forget(&calls[i]);
    fclose(nowhere);
}

static void run_tokens(FILE *out, char **tokens, int count) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const char *name = tokens[0];
    prepared call;

    if (strcmp(name, "repeat") == 0 && count > 2) {
        repeat_calls(out, &tokens[1], count - 1);
        return;
    }
    prepare(&call, tokens, count);
    const argument *arguments = call.arguments;
    if (call.row >= 0) {
        rows[call.row].call(out, arguments);
    } else if (strcmp(name, "stats") == 0) {
        tell_stats(out);
    } else if (strcmp(name, "resident") == 0) {
        tell_resident(out);
    } else if (strcmp(name, "hold") == 0) {
        holding = 1;
        fputs("null", out);
    } else if (strcmp(name, "release") == 0) {
        holding = 0;
        fprintf(out, "%d", held_count);
        while (held_count > 0) {
            held_count--;
            held[held_count].release(held[held_count].answer);
            free(held[held_count].answer);
        }
    } else if (strcmp(name, "lose") == 0) {
        holding = 0;
        for (; held_count > 0; held_count--)
            free(held[held_count - 1].answer);
        memset(held, 0, sizeof held);
        fputs("null", out);
    } else if (strcmp(name, "cleanup") == 0) {
        put_text(out, semantic_status_name(semantic_cleanup((int64_t)arguments[0].number, &error)));
    } else if (strcmp(name, "unload") == 0) {
        semantic_model model;
        semantic_status status = semantic_find_model(arguments[0].text, &model, &error);
        if (status == SEMANTIC_OK)
            status = semantic_unload_model(model, 10000, &error);
        put_text(out, semantic_status_name(status));
    } else if (strcmp(name, "load") == 0) {
        semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
        semantic_model model;
        options.name = arguments[1].text;
        put_text(out, semantic_status_name(
                          semantic_load_model(arguments[0].text, &options, &model, &error)));
    } else {
        fputs("\"no such function\"", out);
    }
    forget(&call);
}

static char *run_line(char *line) {
    char *tokens[MOST_TOKENS], *rest = NULL, *answer = NULL;
    size_t size;
    int count = 0;
    FILE *out = open_memstream(&answer, &size);

    for (char *token = strtok_r(line, " ", &rest); token != NULL && count < MOST_TOKENS;
         token = strtok_r(NULL, " ", &rest))
        tokens[count++] = token;
    if (count > 0)
        run_tokens(out, tokens, count);
    fclose(out);
    return answer;
}

static void *run_job(void *given) {
    job *each = given;

    pthread_barrier_wait(each->together);
    each->answer = run_line(each->line);
    return NULL;
}

static void run_jobs(FILE *out) {
    pthread_barrier_t together;

    if (job_count == 0)
        return;
    pthread_barrier_init(&together, NULL, (unsigned)job_count);
    for (int i = 0; i < job_count; i++) {
        jobs[i].together = &together;
        pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]);
    }
    for (int i = 0; i < job_count; i++) {
        pthread_join(jobs[i].thread, NULL);
        fprintf(out, "%s\n", jobs[i].answer);
        free(jobs[i].answer);
        free(jobs[i].line);
    }
    pthread_barrier_destroy(&together);
    job_count = 0;
}

static void run_script_line(FILE *out, char *line) {
    if (line[0] == '&') {
        jobs = realloc(jobs, (size_t)(job_count + 1) * sizeof *jobs);
        jobs[job_count++] = (job){.line = strdup(line + 1)};
    } else if (strcmp(line, "wait") == 0) {
        run_jobs(out);
    } else if (line[0] != '\0') {
        char *answer = run_line(line);
        fprintf(out, "%s\n", answer);
        free(answer);
    }
}

/* Runs all lines; returns the answers, to be given to candle_forget. */
char *candle_run(const char *script);
void candle_forget(char *answers);

char *candle_run(const char *script) {
    char *answers = NULL, *copy = strdup(script), *rest = NULL;
    size_t size;
    FILE *out = open_memstream(&answers, &size);

    for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        run_script_line(out, line);
    fclose(out);
    free(copy);
    return answers;
}

void candle_forget(char *answers) {
    free(answers);
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    ssize_t length;

    while ((length = getline(&line, &room, stdin)) > 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = '\0';
        run_script_line(stdout, line);
        fflush(stdout);
    }
    free(line);
    return 0;
}
