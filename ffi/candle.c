/* How a call of libcandle_semantic_router.so enters the library and leaves it. */
#include "boundary.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A child of a fork must not wait for locks that its parent held: it writes to stderr itself. */
static void tell(const char *line) {
    if (boundary_forked())
        dprintf(STDERR_FILENO, "libsemantic: %s\n", line);
    else
        boundary_log(SEMANTIC_LOG_ERROR, line, strlen(line));
}

int boundary_candle_enter(const char *function, char **message) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    char line[sizeof error.message + 128];

    if (boundary_enter(NULL, &error) == SEMANTIC_OK)
        return 0;
    snprintf(line, sizeof line, "%s: %s", function, error.message);
    tell(line);
    if (message != NULL) {
        size_t size = strlen(error.message) + 1;
        *message = boundary_block_alloc(size);
        if (*message != NULL)
            memcpy(*message, error.message, size);
    }
    return -1;
}

void boundary_candle_leave(void) {
    (void)boundary_leave(SEMANTIC_OK, NULL, NULL);
}
