/* Times calls of candle's functions inside C, with the freeing of what they return, so that the
 * caller's own cost is not counted. Each returns nanoseconds, -1 where the call failed. */
#include <candle_semantic_router.h>

#include <time.h>

#define SIDE "the router picks a model for each request"

static int64_t now(void) {
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

/* A variable r holds what was returned or filled. */
#define TIMED(name, type, call, failed, release)                                                   \
    int64_t time_##name(const char *text);                                                         \
    int64_t time_##name(const char *text) {                                                        \
        type r;                                                                                    \
        int64_t start = now();                                                                     \
        call;                                                                                      \
        if (failed)                                                                                \
            return -1;                                                                             \
        release;                                                                                   \
        return now() - start;                                                                      \
    }

#define ANSWERED(name, type, failed, release, ...)                                                 \
    TIMED(name, type, r = name(__VA_ARGS__), failed, release)
#define FILLED(name, type, release, ...) TIMED(name, type, , name(__VA_ARGS__) != 0, release)

ANSWERED(classify_text, ClassificationResult, r.predicted_class < 0, , text)
ANSWERED(classify_modernbert_text, ModernBertClassificationResult, r.predicted_class < 0, , text)
ANSWERED(classify_modernbert_text_with_probabilities, ModernBertClassificationResultWithProbs,
         r.predicted_class < 0, free_modernbert_probabilities(r.probabilities, r.num_classes), text)
ANSWERED(classify_candle_bert_tokens, BertTokenClassificationResult, r.num_entities < 0,
         free_bert_token_classification_result(r), text)
ANSWERED(classify_batch_with_lora, LoRABatchResult, r.batch_size != 1, free_lora_batch_result(r),
         &text, 1)
ANSWERED(classify_nli, NLIResult, r.error, free_nli_result(r), SIDE, text)
ANSWERED(detect_hallucinations, HallucinationDetectionResult, r.error,
         free_hallucination_detection_result(r), SIDE, "", text, 0.5f)
ANSWERED(get_text_embedding, EmbeddingResult, r.error, free_embedding(r.data, r.length), text, 0)
ANSWERED(calculate_similarity, float, r < -0.9f, , text, SIDE, 0)
FILLED(get_embedding_with_model_type, EmbeddingResult, free_embedding(r.data, r.length), text,
       "mmbert", 0, &r)
