#include "io/protobuf.h"

#include <string.h>

/* Wire types. */
enum { VARINT = 0, WIDE = 1, COUNTED = 2, NARROW = 5 };

/* Seven bits per byte, the lowest first; the highest bit says that there are more. */
static void append_varint(tn__buffer *m, uint64_t value) {
    unsigned char text[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) {
        text[n++] = (unsigned char)(value | 0x80);
    }
    text[n++] = (unsigned char)value;
    tn__buffer_add(m, text, n);
}

/* The low bytes of a value, the lowest first. */
static void append_fixed(tn__buffer *m, uint64_t value, size_t bytes) {
    unsigned char text[8];
    for (size_t i = 0; i < bytes; i++) {
        text[i] = (unsigned char)(value >> 8 * i);
    }
    tn__buffer_add(m, text, bytes);
}

static void append_tag(tn__buffer *m, int field, int wire) {
    append_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

static uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void tn__message_whole(tn__buffer *m, int field, uint64_t value) {
    append_tag(m, field, VARINT);
    append_varint(m, value);
}

void tn__message_double(tn__buffer *m, int field, double value) {
    append_tag(m, field, WIDE);
    append_fixed(m, double_bits(value), sizeof value);
}

void tn__message_float(tn__buffer *m, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    append_tag(m, field, NARROW);
    append_fixed(m, bits, sizeof value);
}

void tn__message_ahead(tn__buffer *m, int field, size_t bytes) {
    append_tag(m, field, COUNTED);
    append_varint(m, bytes);
}

void tn__message_bytes(tn__buffer *m, int field, const void *from, size_t bytes) {
    tn__message_ahead(m, field, bytes);
    tn__buffer_add(m, from, bytes);
}

void tn__message_text(tn__buffer *m, int field, const char *text) {
    tn__message_bytes(m, field, text, strlen(text));
}

void tn__message_doubles(tn__buffer *m, int field, const double *values, int n) {
    append_tag(m, field, COUNTED);
    append_varint(m, (uint64_t)n * sizeof *values);
    for (int i = 0; i < n; i++) {
        append_fixed(m, double_bits(values[i]), sizeof *values);
    }
}

void tn__message_put(tn__buffer *m, int field, tn__buffer *inner) {
    m->failed = m->failed || inner->failed;
    tn__message_bytes(m, field, inner->at, inner->bytes);
    tn__buffer_free(inner);
}

void tn__message_append(tn__buffer *m, tn__buffer *more) {
    m->failed = m->failed || more->failed;
    tn__buffer_add(m, more->at, more->bytes);
    tn__buffer_free(more);
}
