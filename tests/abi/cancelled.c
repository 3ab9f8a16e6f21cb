/* Threads that are cancelled while they call: cancelled MODEL. The call ends first, then the
 * thread; the others and the process go on. */
#include "check.h"

#include <pthread.h>

#define THREADS 8
#define TURNS 5

static semantic_model model;
static const char *folder;

static void classify(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text(), texts[256];
    const semantic_classification *result;

    for (int i = 0; i < 256; i++)
        texts[i] = text;
    CHECK_OK(semantic_classify(model, texts, 256, NULL, &result, &error), &error);
    CHECK(result->label_index[255] == 0 && result->score[255] > 0.5143);
    semantic_free(result);
}

static void *call_for_ever(void *first) {
    semantic_error error = SEMANTIC_ERROR_INIT;

    if (first != NULL) {
        semantic_status status = semantic_load_model(folder, NULL, &model, &error);
        CHECK_OK(status, &error);
    }
    for (;;) {
        pthread_testcancel();
        classify();
    }
    return NULL;
}

static void cancel(pthread_t thread) {
    void *ended;

    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
}

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;
    pthread_t threads[THREADS];

    CHECK(argc == 2);
    folder = argv[1];
    CHECK(pthread_create(&threads[0], NULL, call_for_ever, &model) == 0);
    usleep(10000); /* during the start of Python */
    cancel(threads[0]);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, call_for_ever, NULL) == 0);
        usleep(30000);
        for (int i = 0; i < THREADS; i++)
            cancel(threads[i]);
    }
    classify();
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->results_unfreed == 0);
    for (size_t i = 0; i < stats->call_count; i++)
        CHECK(stats->in_flight[i] == 0);
    semantic_free(stats);
    CHECK_OK(semantic_cleanup(1000, &error), &error);
    return 0;
}
