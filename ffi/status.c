/* Versions, status names and the caller's error value: plain C, starts nothing. */
#include "boundary.h"

#include <stdio.h>
#include <string.h>

/* The size of semantic_error when it was first published; it never changes. */
#define ERROR_FIRST_SIZE 1048

_Static_assert(sizeof(semantic_error) == ERROR_FIRST_SIZE,
               "fields appended to semantic_error: write them only where struct_size has room");

uint32_t semantic_abi_version(void) {
    return (uint32_t)SEMANTIC_ABI_MAJOR << 16 | SEMANTIC_ABI_MINOR;
}

const char *semantic_version(void) {
    return SEMANTIC_VERSION;
}

const char *semantic_status_name(semantic_status status) {
    static const char *const names[] = {
        "OK",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "UNSUPPORTED",
        "NOT_READY",
        "CLOSED",
        "OVERLOADED",
        "DEADLINE",
        "TOO_LONG",
        "BAD_ARTIFACT",
        "DEVICE_UNAVAILABLE",
        "OUT_OF_MEMORY",
        "INTERPRETER",
        "INTERNAL",
        "CANCELLED",
        "PARTIAL",
    };
    if (status < 0 || (size_t)status >= sizeof names / sizeof *names)
        return "UNKNOWN";
    return names[status];
}

void boundary_set_error(semantic_error *error, semantic_status status, int64_t input_index,
                        const char *text, size_t length) {
    static const char ellipsis[] = "\xe2\x80\xa6"; /* … */
    const size_t room = sizeof error->message - 1;

    if (error == NULL)
        return;
    error->status = status;
    error->input_index = input_index;
    if (length > room) {
        length = room - (sizeof ellipsis - 1);
        while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80)
            length--; /* not inside a character */
        memcpy(error->message, text, length);
        memcpy(error->message + length, ellipsis, sizeof ellipsis);
        return;
    }
    memcpy(error->message, text, length);
    error->message[length] = '\0';
}

semantic_status boundary_begin(semantic_error *error) {
    if (error == NULL)
        return SEMANTIC_OK;
    if (error->struct_size < ERROR_FIRST_SIZE)
        return SEMANTIC_INVALID_ARGUMENT; /* too small to be told anything */
    boundary_fail(error, SEMANTIC_INTERNAL, "the call was not answered; please report this");
    return SEMANTIC_OK;
}

semantic_status boundary_fail(semantic_error *error, semantic_status status, const char *message) {
    boundary_set_error(error, status, -1, message, strlen(message));
    return status;
}

semantic_status boundary_null(semantic_error *error, const char *parameter) {
    char message[128];

    snprintf(message, sizeof message, "%s is NULL; pass a pointer", parameter);
    return boundary_fail(error, SEMANTIC_INVALID_ARGUMENT, message);
}

semantic_status boundary_wrong_size(semantic_error *error, const char *type, size_t found,
                                    size_t expected) {
    char message[160];

    snprintf(message, sizeof message,
             "%s.struct_size is %zu; set it to sizeof(%s), %zu in this version", type, found, type,
             expected);
    return boundary_fail(error, SEMANTIC_INVALID_ARGUMENT, message);
}
