/* The median time of an exported call that reaches Python and does nothing there:
 * cancelling a key that no work carries. Prints nanoseconds. */
#include <semantic.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    long left = *(const long *)a, right = *(const long *)b;

    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    long count = argc > 1 ? atol(argv[1]) : 100000;
    long *times = count > 0 ? malloc(sizeof *times * (size_t)count) : NULL;

    if (times == NULL || semantic_init(NULL, &error) != SEMANTIC_OK) {
        fprintf(stderr, "error: %s\n", error.message);
        return 1;
    }
    for (long i = 0; i < count; i++) {
        long start = now();
        semantic_status status = semantic_cancel(1);
        times[i] = now() - start;
        if (status != SEMANTIC_NOT_FOUND)
            return 1;
    }
    qsort(times, (size_t)count, sizeof *times, compare);
    printf("%ld\n", times[count / 2]);
    free(times);
    return 0;
}
