/* The first call of a process with a wrong struct_size: init_sizes. Nothing is started, and no
 * other field is read. */
#include "check.h"

static void refused(const semantic_init_options *options) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;

    CHECK(semantic_init(options, &error) == SEMANTIC_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "struct_size") != NULL);
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->running == 0);
    semantic_free(stats);
}

int main(void) {
    static const size_t sizes[] = {0, 8, 24, sizeof(semantic_init_options) - 1, 1u << 20, SIZE_MAX};
    semantic_init_options options = SEMANTIC_INIT_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(&options, 0xA5, sizeof options); /* the environment points nowhere */
        options.struct_size = sizes[i];
        refused(&options);
    }
    CHECK_OK(semantic_init(NULL, &error), &error);
    return 0;
}
