/* The log callback: log_lines MODEL. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static pthread_t main_thread;
static _Atomic int lines, entered, left, entered_too;
static char mark; /* the user pointer */

static void collect(void *user, semantic_log_level level, const char *message, size_t length) {
    CHECK(user == &mark);
    CHECK(level == SEMANTIC_LOG_INFO);
    CHECK(strlen(message) == length && length > 0);
    CHECK(strchr(message, '\n') == NULL);
    CHECK(!pthread_equal(pthread_self(), main_thread));
    CHECK(semantic_set_log_callback(NULL, NULL) == SEMANTIC_INVALID_ARGUMENT);
    if (lines == 0)
        CHECK(strstr(message, "model quiet loaded from") != NULL);
    lines++;
}

static void be_slow(void *user, semantic_log_level level, const char *message, size_t length) {
    const struct timespec length_of_call = {0, 300000000};

    (void)user, (void)level, (void)message, (void)length;
    entered++;
    nanosleep(&length_of_call, NULL);
    left++;
}

static void be_slow_too(void *user, semantic_log_level level, const char *message, size_t length) {
    const struct timespec length_of_call = {0, 100000000};

    (void)user, (void)level, (void)message, (void)length;
    entered_too++;
    nanosleep(&length_of_call, NULL);
}

static void wait_until(_Atomic int *counter, int value) {
    const struct timespec pause_length = {0, 1000000};

    for (int i = 0; *counter < value; i++) {
        CHECK(i < 5000);
        nanosleep(&pause_length, NULL);
    }
}

static semantic_model load(const char *folder, const char *name) {
    semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model model;

    options.name = name;
    CHECK_OK(semantic_load_model(folder, &options, &model, &error), &error);
    return model;
}

int main(int argc, char **argv) {
    semantic_init_options init = SEMANTIC_INIT_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model quiet;

    CHECK(argc == 2);
    main_thread = pthread_self();
    CHECK(semantic_set_log_callback(collect, &mark) == SEMANTIC_OK);
    init.log_level = SEMANTIC_LOG_INFO;
    CHECK_OK(semantic_init(&init, &error), &error);
    quiet = load(argv[1], "quiet");
    wait_until(&lines, 1);
    CHECK_OK(semantic_unload_model(quiet, 1000, &error), &error);
    wait_until(&lines, 2);

    /* NULL returns after the call that is under way has ended. */
    CHECK(semantic_set_log_callback(be_slow, NULL) == SEMANTIC_OK);
    load(argv[1], "slow");
    wait_until(&entered, 1);
    CHECK(left == 0);
    CHECK(semantic_set_log_callback(NULL, NULL) == SEMANTIC_OK);
    CHECK(left == 1);

    /* From here on the lines go to stderr. */
    load(argv[1], "printed");
    CHECK(lines == 2 && entered == 1);

    /* Another function takes over at once, although there is a queue of lines. */
    CHECK(semantic_set_log_callback(be_slow, NULL) == SEMANTIC_OK);
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "many %d", i);
        load(argv[1], name);
    }
    CHECK(semantic_set_log_callback(be_slow_too, NULL) == SEMANTIC_OK);
    CHECK(left == entered && left < 10 && entered_too < 3);
    CHECK(semantic_set_log_callback(collect, &mark) == SEMANTIC_OK);
    wait_until(&lines, 23 - left - entered_too); /* the first slow line was another one */
    return 0;
}
