/* Signals stay the host's: signals MODEL. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define FIRST_REAL_TIME 32 /* beyond are those of the C library */
/* Without the one that the C library adds itself. */
#define FLAGS (SA_ONSTACK | SA_RESTART | SA_SIGINFO | SA_NODEFER | SA_RESETHAND | SA_NOCLDWAIT)

static volatile sig_atomic_t handled;
static pthread_t handled_by;

static void handle(int number) {
    handled = number;
    handled_by = pthread_self();
}

int main(int argc, char **argv) {
    const struct timespec pause_length = {0, 50000000};
    struct sigaction before[FIRST_REAL_TIME], action;
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model model;
    sigset_t user, mask_before, mask;

    CHECK(argc == 2);
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0);
    action.sa_handler = handle;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int number = 1; number < FIRST_REAL_TIME; number++)
        CHECK(sigaction(number, NULL, &before[number]) == 0);
    /* Started by a thread that takes the signal, used by one that does not. */
    CHECK_OK(semantic_init(NULL, &error), &error);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask_before) == 0);
    CHECK(!sigismember(&mask_before, SIGUSR1));
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &user, NULL) == 0);
    CHECK_OK(semantic_load_model(argv[1], NULL, &model, &error), &error);

    for (int number = 1; number < FIRST_REAL_TIME; number++) {
        CHECK(sigaction(number, NULL, &action) == 0);
        CHECK(action.sa_handler == before[number].sa_handler);
        CHECK((action.sa_flags & FLAGS) == (before[number].sa_flags & FLAGS));
    }

    CHECK(kill(getpid(), SIGUSR1) == 0);
    nanosleep(&pause_length, NULL);
    CHECK(!handled); /* no thread of the library takes it */
    CHECK(pthread_sigmask(SIG_SETMASK, &mask_before, NULL) == 0);
    CHECK(handled == SIGUSR1);
    CHECK(pthread_equal(handled_by, pthread_self()));
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
    CHECK(!sigismember(&mask, SIGUSR1));
    return 0;
}
