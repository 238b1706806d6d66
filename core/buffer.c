#include "core/buffer.h"

#include "core/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool tn__buffer_hold(tn__buffer *b, size_t more) {
    int64_t wanted;
    if (__builtin_add_overflow(b->bytes + 1, more, &wanted)) {
        wanted = INT64_MAX; /* which tn__grow refuses */
    }
    b->failed = b->failed || !tn__grow(&b->at, wanted, &b->capacity, 1, b->operation) || !b->at;
    return !b->failed;
}

bool tn__buffer_add(tn__buffer *b, const void *from, size_t bytes) {
    if (tn__buffer_hold(b, bytes)) {
        if (bytes > 0) { memcpy(b->at + b->bytes, from, bytes); }
        b->bytes += bytes;
        b->at[b->bytes] = 0;
    }
    return !b->failed;
}

bool tn__buffer_text(tn__buffer *b, const char *text) {
    return tn__buffer_add(b, text, strlen(text));
}

static void format_list(tn__buffer *b, const char *format, va_list list) {
    if (!tn__buffer_hold(b, b->at ? 0 : 63)) { return; }
    va_list again;
    va_copy(again, list);
    size_t left = (size_t)b->capacity - b->bytes;
    int n = vsnprintf(b->at + b->bytes, left, format, list);
    if (n > 0 && (size_t)n >= left && tn__buffer_hold(b, (size_t)n)) {
        vsnprintf(b->at + b->bytes, (size_t)n + 1, format, again);
    }
    b->bytes += n > 0 && !b->failed ? (size_t)n : 0;
    va_end(again);
}

bool tn__buffer_format(tn__buffer *b, const char *format, ...) {
    va_list list;
    va_start(list, format);
    format_list(b, format, list);
    va_end(list);
    return !b->failed;
}

char *tn__buffer_take(tn__buffer *b) {
    char *text = tn__buffer_add(b, "", 0) ? b->at : NULL;
    if (!text) { free(b->at); }
    *b = (tn__buffer){.operation = b->operation};
    return text;
}

void tn__buffer_free(tn__buffer *b) {
    free(b->at);
    *b = (tn__buffer){.operation = b->operation};
}

char *tn__asprintf(const char *operation, const char *format, ...) {
    tn__buffer b = {.operation = operation};
    va_list list;
    va_start(list, format);
    format_list(&b, format, list);
    va_end(list);
    return tn__buffer_take(&b);
}
