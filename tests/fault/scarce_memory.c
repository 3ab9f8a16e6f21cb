/* A process to which the system gives little more memory than it has:
 * scarce_memory MODEL LARGE HUNGRY, folders of a model that always works, of one whose load takes
 * 64 MB, and of one that takes 4 MB a token in its runs. */
#include "../abi/check.h"

#include <sys/resource.h>

#define MEGABYTE (1L << 20)

static semantic_model model, hungry;
static char words[1 << 20];

static long mapped_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;

    CHECK(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Lets the process have so many bytes more than now; a negative number takes the limit away. */
static void limit(long bytes) {
    struct rlimit now;

    CHECK(getrlimit(RLIMIT_AS, &now) == 0);
    now.rlim_cur = bytes < 0 ? now.rlim_max : (rlim_t)(mapped_bytes() + bytes);
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
}

static semantic_status classify(semantic_model chosen, size_t length, semantic_error *error) {
    semantic_run_options options = SEMANTIC_RUN_OPTIONS_INIT;
    semantic_text text = {words, length};
    const semantic_classification *result;

    options.long_text = SEMANTIC_LONG_TEXT_WINDOWS;
    semantic_status status = semantic_classify(chosen, &text, 1, &options, &result, error);
    CHECK((status == SEMANTIC_OK) == (result != NULL));
    semantic_free(result);
    return status;
}

static semantic_status load(const char *path, semantic_error *error) {
    semantic_model large;
    semantic_error ignored = SEMANTIC_ERROR_INIT;
    semantic_status status = semantic_load_model(path, NULL, &large, error);

    if (status == SEMANTIC_OK)
        CHECK_OK(semantic_unload_model(large, 1000, &ignored), &ignored);
    else
        CHECK(large.id == 0);
    return status;
}

/* Everything that was there before works, and gives the answer that it gave. */
static void check_the_others(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text();
    const semantic_classification *result;

    limit(-1);
    CHECK_OK(semantic_classify(model, &text, 1, NULL, &result, &error), &error);
    CHECK(result->label_index[0] == 0);
    CHECK(result->score[0] > 0.5143 && result->score[0] < 0.5144);
    semantic_free(result);
    CHECK_OK(classify(hungry, 4, &error), &error);
}

static void refused(const char *what, semantic_status status, const semantic_error *error) {
    check_the_others();
    printf("%s: %s %s\n", what, semantic_status_name(status), error->message);
}

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;

    CHECK(argc == 4);
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "math "[i % 5];
    CHECK_OK(semantic_load_model(argv[1], NULL, &model, &error), &error);
    CHECK_OK(semantic_load_model(argv[3], NULL, &hungry, &error), &error);
    check_the_others();

    limit(16 * MEGABYTE);
    refused("load", load(argv[2], &error), &error);
    limit(32 * MEGABYTE);
    refused("run", classify(hungry, 500, &error), &error);
    limit(64 * MEGABYTE);
    refused("tokens", classify(model, sizeof words, &error), &error);

    CHECK_OK(load(argv[2], &error), &error);
    CHECK_OK(classify(hungry, 500, &error), &error);
    CHECK_OK(classify(model, sizeof words, &error), &error);

    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->model_count == 2 && stats->results_unfreed == 0);
    for (size_t i = 0; i < stats->call_count; i++)
        CHECK(stats->in_flight[i] == 0);
    semantic_free(stats);
    CHECK_OK(semantic_cleanup(1000, &error), &error);
    return 0;
}
