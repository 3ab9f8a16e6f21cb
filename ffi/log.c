/* Log lines: to stderr, or through a bounded queue to the caller's function, which
 * runs on one thread of its own so that it never holds the interpreter lock. */
#include "boundary.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_LINES 1024

typedef struct log_line {
    semantic_log_level level;
    size_t length;
    char *text;
} log_line;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static log_line queue[QUEUE_LINES];
static size_t first, count;
static semantic_log_callback callback;
static void *callback_user;
static int calling;       /* the thread is inside the callback */
static uint64_t finished; /* calls of a callback */
static int thread_runs;
static pthread_t thread;
static _Atomic int forked; /* the thread and the holder of the lock are in the parent */
static _Atomic uint64_t dropped;

static void *deliver(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        log_line line;
        semantic_log_callback function;
        void *user;

        while (count == 0)
            pthread_cond_wait(&changed, &lock);
        line = queue[first];
        first = (first + 1) % QUEUE_LINES;
        count--;
        function = callback;
        user = callback_user;
        calling = function != NULL;
        pthread_mutex_unlock(&lock);
        if (function != NULL)
            function(user, line.level, line.text, line.length);
        else
            fprintf(stderr, "libsemantic: %s\n", line.text);
        free(line.text);
        pthread_mutex_lock(&lock);
        calling = 0;
        finished++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static void in_child(void) {
    atomic_store(&forked, 1);
}

static int start_thread(void) {
    sigset_t all, before;
    int failed;

    if (thread_runs)
        return 0;
    if (pthread_atfork(NULL, NULL, in_child) != 0)
        return -1;
    sigfillset(&all); /* signals belong to the host's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, NULL, deliver, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return failed;
    pthread_detach(thread);
    thread_runs = 1;
    return 0;
}

semantic_status semantic_set_log_callback(semantic_log_callback function, void *user) {
    semantic_status status = SEMANTIC_OK;
    uint64_t before;

    if (atomic_load(&forked))
        return SEMANTIC_INTERPRETER;
    pthread_mutex_lock(&lock);
    if (thread_runs && pthread_equal(pthread_self(), thread)) {
        pthread_mutex_unlock(&lock);
        return SEMANTIC_INVALID_ARGUMENT;
    }
    if (function != NULL && start_thread() != 0) {
        status = SEMANTIC_OUT_OF_MEMORY;
    } else {
        callback = function;
        callback_user = user;
        before = finished;
        while (calling && finished == before) /* the old function has returned when we do */
            pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void boundary_log(semantic_log_level level, const char *message, size_t length) {
    char *text = malloc(length + 1);

    if (text == NULL) {
        atomic_fetch_add(&dropped, 1);
        return;
    }
    memcpy(text, message, length);
    text[length] = '\0';
    pthread_mutex_lock(&lock);
    if (callback == NULL) {
        pthread_mutex_unlock(&lock);
        fprintf(stderr, "libsemantic: %s\n", text);
        free(text);
        return;
    }
    if (count == QUEUE_LINES) {
        atomic_fetch_add(&dropped, 1);
        free(text);
    } else {
        log_line *line = &queue[(first + count) % QUEUE_LINES];
        line->level = level;
        line->length = length;
        line->text = text;
        count++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

uint64_t boundary_log_dropped(void) {
    return atomic_load(&dropped);
}
