/* What the generated entry points and the C parts of the library share. */
#ifndef SEMANTIC_BOUNDARY_H
#define SEMANTIC_BOUNDARY_H

#include "semantic.h"

/* status.c: the caller's error value */

/* Check the caller's error struct and fill it with the failure answer, so that a
 * call that dies on its way has already failed. */
semantic_status boundary_begin(semantic_error *error);
semantic_status boundary_fail(semantic_error *error, semantic_status status, const char *message);
semantic_status boundary_null(semantic_error *error, const char *parameter);
semantic_status boundary_wrong_size(semantic_error *error, const char *type, size_t found,
                                    size_t expected);
/* The message is cut at a character; text need not end with a NUL. */
void boundary_set_error(semantic_error *error, semantic_status status, int64_t input_index,
                        const char *text, size_t length);

/* start.c: the interpreter and the calls in flight */

/* Make sure Python runs and count the caller as in flight. environment: NULL or the
 * folder asked for. Every OK is paired with one boundary_leave. */
semantic_status boundary_enter(const char *environment, semantic_error *error);
/* Take the caller out and check what Python answered: result (NULL: the function
 * has none) must be there exactly when the status is OK or PARTIAL. */
semantic_status boundary_leave(semantic_status status, const void **result, semantic_error *error);
int boundary_started(void);
/* Whether this is the child of a process that used the library. */
int boundary_forked(void);
/* Called by the start-up code in Python: NULL when everything is attached. */
void boundary_report_start(const char *failure);
/* Called when an adopted interpreter ends: refuse new calls and end those in flight. */
void boundary_end_calls(void);
/* Resident memory of the process just before Python was started or adopted. */
int64_t boundary_resident_before_start(void);

/* Bound by the generated code: run cffi's start, and cancel all work at exit. */
extern int (*boundary_bind_python)(void);
extern void (*boundary_cancel_everything)(void);

/* candle.c: calls of libcandle_semantic_router.so */

/* As boundary_enter, with the reason of a failure in the log and, where message is not NULL, as a
 * block in *message. Every 0 is paired with one leave. */
int boundary_candle_enter(const char *function, char **message);
void boundary_candle_leave(void);

/* memory.c: result blocks */

void *boundary_block_alloc(size_t size); /* zeroed, NULL when memory is refused */
/* A block with a copy of data. words tells, as count uint64_t, where in it there are offsets of
 * the block, which become addresses. NULL when memory is refused. */
void *boundary_block_copy(const void *data, size_t size, const void *words, size_t count);
uint64_t boundary_blocks_unfreed(void);
uint64_t boundary_blocks_unfreed_bytes(void);
semantic_status boundary_empty_stats(const semantic_stats **stats, semantic_error *error);

/* log.c: log lines */

void boundary_log(semantic_log_level level, const char *message, size_t length);
uint64_t boundary_log_dropped(void);

#endif
