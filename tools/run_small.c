/* Small things that every part of the launcher needs. */
#include "tools/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

void memory_needed(bool there) {
    static const char text[] = "tern: no memory\n";
    if (!there) {
        ssize_t put = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)put;
        _exit(1);
    }
}

char *text_new(const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    memory_needed(vasprintf(&text, format, arguments) >= 0);
    va_end(arguments);
    return text;
}

void *memory_new(size_t count, size_t bytes) {
    void *memory = calloc(count ? count : 1, bytes);
    memory_needed(memory != NULL);
    return memory;
}

char *text_take(tn__buffer *b) {
    char *text = tn__buffer_take(b);
    memory_needed(text != NULL);
    return text;
}

tn_error_record error_take(void) {
    tn_error_record error = {0};
    tn_error_take(&error);
    memmove(error.message, error.message + error.why, sizeof(error.message) - (size_t)error.why);
    error.why = 0;
    return error;
}

void random_text(char *text, int bytes) {
    unsigned char random[32];
    while (getrandom(random, (size_t)bytes, 0) != bytes) {} /* a signal came first */
    for (int i = 0; i < bytes; i++) {
        sprintf(text + 2 * i, "%02x", random[i]);
    }
}
