/* Forks while other threads take and free memory: candle_forked. */
#include "check.h"

#include <candle_semantic_router.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { THREADS = 3, FORKS = 500, SECONDS = 10 };

static _Atomic int stop;

static void *take_and_free(void *unused) {
    (void)unused;
    while (!stop)
        CHECK(safe_free(safe_alloc_lora(32)));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    unsigned char *kept = safe_alloc_lora(100);

    CHECK(kept != NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, take_and_free, NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        int status = 0;
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            alarm(SECONDS); /* it hangs */
            _exit(get_memory_safety_status() && get_lora_memory_usage() >= 100 && safe_free(kept)
                      ? 0
                      : 1);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(get_lora_memory_usage() == 100);
    return 0;
}
