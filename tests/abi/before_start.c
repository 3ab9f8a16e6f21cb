/* What works before the first start, and starts nothing: before_start. */
#include "check.h"

#include <dirent.h>
#include <dlfcn.h>

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    CHECK(tasks != NULL);
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks))
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static int python_runs(void) {
    int (*is_initialized)(void);

    *(void **)&is_initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    CHECK(is_initialized != NULL);
    return is_initialized();
}

int main(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats = NULL;
    semantic_stats zero;

    CHECK(semantic_abi_version() == (SEMANTIC_ABI_MAJOR << 16 | SEMANTIC_ABI_MINOR));
    CHECK(strcmp(semantic_version(), SEMANTIC_VERSION) == 0);
    CHECK(strcmp(semantic_status_name(SEMANTIC_CLOSED), "CLOSED") == 0);
    semantic_free(NULL);
    CHECK(semantic_set_log_callback(NULL, NULL) == SEMANTIC_OK);
    CHECK(semantic_cancel(7) == SEMANTIC_NOT_FOUND);
    CHECK_OK(semantic_cleanup(0, &error), &error);
    CHECK(semantic_cleanup(-1, &error) == SEMANTIC_INVALID_ARGUMENT);
    CHECK(semantic_get_stats(NULL, &error) == SEMANTIC_INVALID_ARGUMENT);

    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(error.status == SEMANTIC_OK && error.message[0] == '\0');
    memset(&zero, 0, sizeof zero);
    zero.struct_size = sizeof zero;
    CHECK(memcmp(stats, &zero, sizeof zero) == 0);
    semantic_free(stats);

    /* Wrong arguments are refused without a start. */
    CHECK(semantic_load_model(NULL, NULL, NULL, &error) == SEMANTIC_INVALID_ARGUMENT);
    CHECK(semantic_find_model("nobody", NULL, NULL) == SEMANTIC_INVALID_ARGUMENT);

    CHECK(threads() == 1);
    CHECK(!python_runs());

    /* The same questions see a start. */
    CHECK_OK(semantic_init(NULL, &error), &error);
    CHECK(threads() > 1);
    CHECK(python_runs());
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->running == 1);
    semantic_free(stats);
    CHECK_OK(semantic_cleanup(0, &error), &error);
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->running == 0);
    semantic_free(stats);
    return 0;
}
