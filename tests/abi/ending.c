/* The process ends while eight calls are under way, four of which ask the model twice, partly on
 * helpers of the library: ending MODEL HOW. HOW is
 *   return | exit        from the main thread
 *   killed               by SIGTERM, as the system handles it
 *   handled              by SIGTERM, with a handler that calls exit
 *   handled-inside       the same, while the main thread too is inside a call
 * It says on a line of its own when all calls are in flight, by the monotonic clock. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define CALLERS 8
#define ROWS 64
#define EXIT_CODE 7

static semantic_model model;

/* Twice and not in one: the requests differ in what is scored. */
static semantic_status ask_twice(const semantic_text *texts, const void **result,
                                 semantic_error *error) {
    semantic_run_options less = SEMANTIC_RUN_OPTIONS_INIT;
    const semantic_request requests[] = {{sizeof *requests, model, NULL},
                                         {sizeof *requests, model, &less}};

    less.max_tokens = 60;
    return semantic_run_models(requests, 2, texts, ROWS, (const semantic_answers **)result, error);
}

static semantic_status ask_once(const semantic_text *texts, const void **result,
                                semantic_error *error) {
    return semantic_classify(model, texts, ROWS, NULL, (const semantic_classification **)result,
                             error);
}

static void *call_for_ever(void *twice) {
    static char words[600];
    semantic_text texts[ROWS];

    for (size_t i = 0; i + 1 < sizeof words; i++)
        words[i] = "math "[i % 5];
    for (int i = 0; i < ROWS; i++)
        texts[i] = (semantic_text){words, sizeof words - 1};
    for (;;) {
        const void *result;
        semantic_error error = SEMANTIC_ERROR_INIT;
        semantic_status status = (twice ? ask_twice : ask_once)(texts, &result, &error);

        /* At the end it is cancelled, whole or in part, or refused. */
        CHECK(status == SEMANTIC_OK || status == SEMANTIC_PARTIAL || status == SEMANTIC_CANCELLED ||
              status == SEMANTIC_CLOSED);
        CHECK((result != NULL) == (status == SEMANTIC_OK || status == SEMANTIC_PARTIAL));
        semantic_free(result);
        if (status == SEMANTIC_CLOSED)
            for (;;)
                pause();
    }
    return NULL;
}

static uint64_t rows_in_flight(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;
    uint64_t sum = 0;

    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    for (size_t i = 0; i < stats->call_count; i++)
        sum += stats->in_flight[i];
    semantic_free(stats);
    return sum;
}

static void leave(int number) {
    (void)number;
    exit(EXIT_CODE);
}

int main(int argc, char **argv) {
    const struct timespec pause_length = {0, 1000000};
    semantic_error error = SEMANTIC_ERROR_INIT;
    struct timespec now;
    pthread_t thread;
    const char *how;
    char line[32];
    int length;

    CHECK(argc == 3);
    how = argv[2];
    if (strncmp(how, "handled", strlen("handled")) == 0)
        CHECK(signal(SIGTERM, leave) != SIG_ERR);
    CHECK_OK(semantic_load_model(argv[1], NULL, &model, &error), &error);
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&thread, NULL, call_for_ever, i % 2 ? &model : NULL) == 0);
    while (rows_in_flight() < CALLERS * ROWS)
        nanosleep(&pause_length, NULL);
    printf("the end\n"); /* buffered: whoever ends the process by exit writes it */
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    length = snprintf(line, sizeof line, "%.3f\n", (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    CHECK(write(STDOUT_FILENO, line, (size_t)length) == length); /* now the signal may come */
    if (strcmp(how, "exit") == 0)
        exit(EXIT_CODE);
    if (strcmp(how, "return") == 0)
        return EXIT_CODE;
    if (strcmp(how, "handled-inside") == 0)
        call_for_ever(NULL);
    for (;;)
        pause();
}
