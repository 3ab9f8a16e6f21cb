/* Result blocks: one allocation each, counted until it is freed. */
#include "boundary.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MAGIC 0x53454d414e544943u /* "SEMANTIC" */

typedef struct block_header {
    uint64_t magic;
    size_t size;
    max_align_t block[]; /* what the caller sees */
} block_header;

static _Atomic uint64_t unfreed_count;
static _Atomic uint64_t unfreed_bytes;

void *boundary_block_alloc(size_t size) {
    block_header *header;

    if (size > SIZE_MAX - sizeof *header)
        return NULL;
    header = calloc(1, sizeof *header + size);
    if (header == NULL)
        return NULL;
    header->magic = BLOCK_MAGIC;
    header->size = size;
    atomic_fetch_add(&unfreed_count, 1);
    atomic_fetch_add(&unfreed_bytes, size);
    return header->block;
}

void *boundary_block_copy(const void *data, size_t size, const void *words, size_t count) {
    char *block = boundary_block_alloc(size);

    if (block == NULL)
        return NULL;
    memcpy(block, data, size);
    for (size_t i = 0; i < count; i++) {
        uint64_t at;
        uintptr_t address;
        memcpy(&at, (const char *)words + i * sizeof at, sizeof at);
        memcpy(&address, block + at, sizeof address);
        address += (uintptr_t)block;
        memcpy(block + at, &address, sizeof address);
    }
    return block;
}

void semantic_free(const void *block) {
    block_header *header;

    if (block == NULL)
        return;
    header = (block_header *)((char *)(uintptr_t)block - offsetof(block_header, block));
    if (header->magic != BLOCK_MAGIC)
        return; /* not a block of ours, as far as can be told */
    header->magic = 0;
    atomic_fetch_sub(&unfreed_count, 1);
    atomic_fetch_sub(&unfreed_bytes, header->size);
    free(header);
}

uint64_t boundary_blocks_unfreed(void) {
    return atomic_load(&unfreed_count);
}

uint64_t boundary_blocks_unfreed_bytes(void) {
    return atomic_load(&unfreed_bytes);
}

semantic_status boundary_empty_stats(const semantic_stats **stats, semantic_error *error) {
    semantic_stats *empty = boundary_block_alloc(sizeof *empty);

    if (empty == NULL)
        return boundary_fail(error, SEMANTIC_OUT_OF_MEMORY, "no memory for the statistics");
    empty->struct_size = sizeof *empty;
    *stats = empty;
    boundary_set_error(error, SEMANTIC_OK, -1, "", 0);
    return SEMANTIC_OK;
}
