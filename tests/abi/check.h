/* What the test programs share. */
#ifndef SEMANTIC_TEST_CHECK_H
#define SEMANTIC_TEST_CHECK_H

#include <semantic.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The process ends with code 99 and the place where the condition did not hold. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

#define CHECK_OK(call, error)                                                                      \
    do {                                                                                           \
        semantic_status status_ = (call);                                                          \
        if (status_ != SEMANTIC_OK) {                                                              \
            fprintf(stderr, "%s:%d: %s: %s %s\n", __FILE__, __LINE__, #call,                       \
                    semantic_status_name(status_), (error)->message);                              \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

/* The first text of bert-seq's references; label 0 wins with 0.514327. */
static inline semantic_text reference_text(void) {
    const char *text = "What is the derivative of x squared?";
    semantic_text value = {text, strlen(text)};
    return value;
}

#endif
