/* Functions of candle_semantic_router.h that need no Python, the free functions aside. */
#include "candle_calls.h"

#include <semantic.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

const candle_calls *candle_find_calls(const char *function) {
    const candle_calls *calls = semantic_candle_calls(CANDLE_INTERFACE);

    if (calls == NULL)
        fprintf(stderr,
                "libsemantic: %s: libcandle_semantic_router.so and libsemantic.so.0 are of "
                "different builds; install both again\n",
                function);
    return calls;
}

int is_qwen3_multi_lora_initialized(void) {
    return 0;
}

int is_qwen3_guard_initialized(void) {
    return 0;
}

/* ---- Blocks by safe_alloc_... -------------------------------------------- */

#define MANY_BLOCKS 100

typedef struct record {
    struct record *next;
    void *block;
    size_t size; /* 0: not counted as memory of adapters */
} record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static record *records;
static size_t record_count;
static size_t lora_bytes;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

/* Else a child would wait for a lock that another thread of its parent held. */
__attribute__((constructor)) static void watch_forks(void) {
    (void)pthread_atfork(before_fork, after_fork, after_fork);
}

static unsigned char *allocate(const char *function, size_t size, size_t counted) {
    const candle_calls *calls = candle_find_calls(function);
    record *made;

    if (calls == NULL || size == 0)
        return NULL;
    made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    made->block = calls->allocate(size);
    if (made->block == NULL) {
        free(made);
        return NULL;
    }
    unsigned char *block = made->block;
    made->size = counted;
    pthread_mutex_lock(&lock);
    made->next = records;
    records = made;
    record_count++;
    lora_bytes += counted;
    pthread_mutex_unlock(&lock);
    return block;
}

unsigned char *safe_alloc_traditional(size_t size) {
    return allocate("safe_alloc_traditional", size, 0);
}

unsigned char *safe_alloc_lora(size_t size) {
    return allocate("safe_alloc_lora", size, size);
}

/* Called with the lock held. */
static void release(record **place) {
    record *found = *place;

    *place = found->next;
    record_count--;
    lora_bytes -= found->size;
    semantic_free(found->block);
    free(found);
}

bool safe_free(unsigned char *ptr) {
    bool freed = false;

    pthread_mutex_lock(&lock);
    for (record **place = &records; *place != NULL; place = &(*place)->next)
        if ((*place)->block == ptr) {
            release(place);
            freed = true;
            break;
        }
    pthread_mutex_unlock(&lock);
    return freed;
}

bool get_memory_safety_status(void) {
    pthread_mutex_lock(&lock);
    bool few = record_count < MANY_BLOCKS;
    pthread_mutex_unlock(&lock);
    return few;
}

size_t get_lora_memory_usage(void) {
    pthread_mutex_lock(&lock);
    size_t bytes = lora_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void cleanup_dual_path_memory(void) {
    pthread_mutex_lock(&lock);
    while (records != NULL)
        release(&records);
    pthread_mutex_unlock(&lock);
}
