/* Times one embedding inside C, so that the caller's own cost is not counted. */
#include <semantic.h>

#include <string.h>
#include <time.h>

/* Embeds text, copies the vector to out and returns nanoseconds, -1 on an error. */
int64_t timed_embed(uint64_t id, const char *data, size_t length, float *out) {
    semantic_model model = {id};
    semantic_text text = {data, length};
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_embedding *result;
    struct timespec start, end;

    clock_gettime(CLOCK_MONOTONIC, &start);
    if (semantic_embed(model, &text, 1, NULL, &result, &error) != SEMANTIC_OK)
        return -1;
    memcpy(out, result->values, result->dimension * sizeof *out);
    semantic_free(result);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec;
}
