/* The C parts that need no Python, from many threads at once; to be compiled together with
 * memory.c, status.c and log.c under a sanitizer. */
#include "../../ffi/boundary.h"
#include "../abi/check.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define TURNS 3000

static _Atomic long lines;
static char marks[2];

static void collect(void *user, semantic_log_level level, const char *message, size_t length) {
    CHECK(user == &marks[0] || user == &marks[1]);
    CHECK(level == SEMANTIC_LOG_INFO && strlen(message) == length);
    CHECK(semantic_set_log_callback(NULL, NULL) == SEMANTIC_INVALID_ARGUMENT);
    atomic_fetch_add(&lines, 1);
}

static void allocate_and_free(int turn) {
    static const size_t sizes[] = {0, 1, 2, 1000};
    unsigned char *blocks[4];

    for (int i = 0; i < 4; i++) {
        blocks[i] = boundary_block_alloc(sizes[i]);
        CHECK(blocks[i] != NULL && (uintptr_t)blocks[i] % _Alignof(max_align_t) == 0);
        for (size_t at = 0; at < sizes[i]; at++) {
            CHECK(blocks[i][at] == 0);
            blocks[i][at] = (unsigned char)turn;
        }
    }
    CHECK(boundary_blocks_unfreed() >= 4 && boundary_blocks_unfreed_bytes() >= 1003);
    for (int i = 0; i < 4; i++)
        semantic_free(blocks[i]);
    semantic_free(NULL);
}

/* Every length around the room of a message, of characters of two, three and four bytes. */
static void fill_errors(int turn) {
    static const char *const characters[] = {"a", "é", "数", "😀"};
    const char *character = characters[turn % 4];
    size_t width = strlen(character), length = 0;
    char text[1100];

    for (; length + width <= sizeof text - (size_t)(turn % 80); length += width)
        memcpy(text + length, character, width);
    semantic_error error = SEMANTIC_ERROR_INIT;
    CHECK(boundary_begin(&error) == SEMANTIC_OK && error.status == SEMANTIC_INTERNAL);
    boundary_set_error(&error, SEMANTIC_TOO_LONG, 3, text, length);
    CHECK(error.status == SEMANTIC_TOO_LONG && error.input_index == 3);
    size_t kept = strlen(error.message);
    CHECK(kept <= sizeof error.message - 1);
    if (length <= sizeof error.message - 1) {
        CHECK(kept == length && memcmp(error.message, text, length) == 0);
    } else {
        CHECK(kept >= sizeof error.message - 4 && (kept - 3) % width == 0);
        CHECK(strcmp(error.message + kept - 3, "…") == 0);
    }
    boundary_set_error(NULL, SEMANTIC_INTERNAL, -1, text, length);
    CHECK(boundary_null(&error, "texts") == SEMANTIC_INVALID_ARGUMENT);
    error.struct_size = 8;
    CHECK(boundary_begin(&error) == SEMANTIC_INVALID_ARGUMENT);
    for (semantic_status status = -2; status < 20; status++)
        CHECK(semantic_status_name(status)[0] != '\0');
}

static void *work(void *argument) {
    int number = (int)(size_t)argument;

    for (int turn = 0; turn < TURNS; turn++) {
        allocate_and_free(turn);
        fill_errors(turn);
        boundary_log(SEMANTIC_LOG_INFO, "a line", strlen("a line"));
        if (turn % 50 == number)
            CHECK(semantic_set_log_callback(collect, &marks[turn % 2]) == SEMANTIC_OK);
        (void)boundary_log_dropped();
    }
    return NULL;
}

int main(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;
    pthread_t threads[THREADS];

    CHECK(semantic_set_log_callback(collect, &marks[0]) == SEMANTIC_OK);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    while (atomic_load(&lines) + (long)boundary_log_dropped() < (long)THREADS * TURNS)
        usleep(1000); /* every line is delivered or counted */
    CHECK(lines > 0);
    CHECK(semantic_set_log_callback(NULL, NULL) == SEMANTIC_OK);
    CHECK(boundary_empty_stats(&stats, &error) == SEMANTIC_OK);
    CHECK(boundary_blocks_unfreed() == 1);
    semantic_free(stats);
    CHECK(boundary_blocks_unfreed() == 0 && boundary_blocks_unfreed_bytes() == 0);
    CHECK(boundary_block_alloc(SIZE_MAX) == NULL);
    CHECK(boundary_block_alloc(SIZE_MAX - 8) == NULL);
    return 0;
}
