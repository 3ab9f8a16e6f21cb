/* Forks without exec, before and after the first call: forked MODEL. */
#include "check.h"

#include <sys/wait.h>
#include <time.h>

static semantic_model model;

static void load_and_classify(const char *folder) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text();
    const semantic_classification *result;

    if (model.id == 0)
        CHECK_OK(semantic_load_model(folder, NULL, &model, &error), &error);
    CHECK_OK(semantic_classify(model, &text, 1, NULL, &result, &error), &error);
    CHECK(result->label_index[0] == 0);
    semantic_free(result);
}

/* Everything that needs Python is refused; the rest works. */
static void be_refused(const char *folder, const void *parents_result) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = reference_text();
    const semantic_classification *result = parents_result;
    const semantic_stats *stats = parents_result;
    semantic_model other = {5};

    CHECK(semantic_init(NULL, &error) == SEMANTIC_INTERPRETER);
    CHECK(strstr(error.message, "forked") != NULL);
    CHECK(semantic_load_model(folder, NULL, &other, &error) == SEMANTIC_INTERPRETER);
    CHECK(other.id == 0);
    CHECK(semantic_classify(model, &text, 1, NULL, &result, &error) == SEMANTIC_INTERPRETER);
    CHECK(result == NULL);
    CHECK(semantic_get_stats(&stats, &error) == SEMANTIC_INTERPRETER);
    CHECK(stats == NULL);
    CHECK(semantic_cleanup(0, &error) == SEMANTIC_INTERPRETER);
    CHECK(semantic_cancel(7) == SEMANTIC_INTERPRETER);
    CHECK(strcmp(semantic_version(), SEMANTIC_VERSION) == 0);
    semantic_free(parents_result);
}

static void wait_for(pid_t child, int code) {
    const struct timespec pause_length = {0, 1000000};
    int status = 0;

    for (int i = 0; waitpid(child, &status, WNOHANG) == 0; i++) {
        CHECK(i < 10000); /* it hangs */
        nanosleep(&pause_length, NULL);
    }
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == code);
}

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;
    pid_t child;

    CHECK(argc == 2);
    child = fork(); /* before the first call a child is a process like any other */
    CHECK(child >= 0);
    if (child == 0) {
        load_and_classify(argv[1]);
        exit(41);
    }
    wait_for(child, 41);

    load_and_classify(argv[1]);
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    for (int code = 42; code < 46; code++) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            be_refused(argv[1], stats);
            if (code % 2)
                exit(code); /* runs the handlers */
            _exit(code);
        }
        wait_for(child, code);
    }
    load_and_classify(argv[1]); /* the parent is none the worse */
    semantic_free(stats);
    return 0;
}
