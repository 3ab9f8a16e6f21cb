/* 64 threads make the first call at the same moment: first_callers MODEL. */
#include "check.h"

#include <pthread.h>

#define CALLERS 64
#define MODELS 4

static pthread_barrier_t barrier;
static const char *folder;
static float scores[CALLERS];

/* Whatever comes first starts the runtime. */
static void first_call(int caller, semantic_error *error) {
    const semantic_model_list *list = NULL;
    semantic_status status;
    semantic_model none = {0};

    switch (caller % 4) {
    case 0:
        CHECK_OK(semantic_init(NULL, error), error);
        break;
    case 1:
        CHECK_OK(semantic_list_models(&list, error), error);
        semantic_free(list);
        break;
    case 2:
        status = semantic_unload_model(none, 0, error);
        CHECK(status == SEMANTIC_INVALID_ARGUMENT);
        break;
    default: /* the load itself */
        break;
    }
}

static void *call(void *argument) {
    int caller = (int)(size_t)argument;
    semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text();
    const semantic_classification *result;
    semantic_model model;
    semantic_status status;
    char name[32];

    snprintf(name, sizeof name, "model %d", caller / 4 % MODELS);
    options.name = name;
    pthread_barrier_wait(&barrier);

    first_call(caller, &error);
    status = semantic_load_model(folder, &options, &model, &error);
    if (status == SEMANTIC_ALREADY_EXISTS) { /* another thread was first */
        while ((status = semantic_find_model(name, &model, &error)) == SEMANTIC_NOT_READY)
            usleep(1000);
    }
    CHECK_OK(status, &error);
    CHECK_OK(semantic_classify(model, &text, 1, NULL, &result, &error), &error);
    CHECK(result->label_index[0] == 0);
    scores[caller] = result->score[0];
    semantic_free(result);
    return NULL;
}

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;
    pthread_t threads[CALLERS];

    CHECK(argc == 2);
    folder = argv[1];
    CHECK(pthread_barrier_init(&barrier, NULL, CALLERS) == 0);
    for (size_t i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&threads[i], NULL, call, (void *)i) == 0);
    for (int i = 0; i < CALLERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(scores[i] > 0.5142f && scores[i] < 0.5144f);
    }
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->models_ready == MODELS);
    CHECK(stats->results_unfreed == 0);
    semantic_free(stats);
    return 0;
}
