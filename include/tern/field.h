/* Tables of fields: what the members of a struct are called and hold, a row for each. From a table
 * come the text that checkpoints keep and compare, the reading of it, and an export's attributes.
 *
 *     typedef struct pool {
 *         tn_module base;
 *         int window;
 *         double noise;
 *     } pool;
 *
 *     static const tn_field pool_fields[] = {
 *         TN_FIELD(pool, window),
 *         TN_FIELD(pool, noise, .training = true),
 *         {0}, // the end
 *     };
 *
 * Files keep the names: what has one keeps it. Read next: tensor/fields.c.
 */
#ifndef TERN_FIELD_H
#define TERN_FIELD_H

#include "tensor.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_field_kind {
    TN_FIELD_INT,   /* and enums */
    TN_FIELD_INT64, /* one or several */
    TN_FIELD_DOUBLE,
    TN_FIELD_BOOL,
    TN_FIELD_DIMS, /* not written without dimensions */
    TN_FIELD_UINT64,
    TN_FIELD_TEXT,  /* a const char *; NULL: "" */
    TN_FIELD_CHARS, /* a char[] that ends with 0 */
    TN_FIELD_DIGEST
} tn_field_kind;

/* What tells `bytes` of memory from others, made when it is asked for. Others are 0 at first; with
 * data NULL there is none. */
typedef struct tn_digest {
    const void *data;
    size_t bytes;
    char text[33]; /* XXH3, 128 bits */
    int state;     /* atomic */
} tn_digest;

typedef struct tn_field {
    const char *name; /* no ',', ';' or control character; NULL: the end of the table */
    tn_field_kind kind;
    size_t offset, bytes; /* of the member in the struct */
    /* What the numbers from 0 on are called, with NULL after the last (TN_FIELD_INT), or false and
     * true (TN_FIELD_BOOL); NULL: they are written as numbers and words. */
    const char *const *names;
    double least, most; /* what a number may be, both included; alike: any that is finite */
    bool training;      /* does not change what trained weights compute: a dropout */
    bool optional;      /* not written where it is 0, false or "" */
    size_t unless;      /* TN_UNLESS(type, member): a bool; not written where it is true; 0: none */
} tn_field;

#ifdef __cplusplus
}
template <typename T> constexpr tn_field_kind tn__field_kind_cxx(const T *) {
    static_assert(__is_enum(T), "TN_FIELD: a member is a number, a bool, tn_dims, or an enum");
    return TN_FIELD_INT;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const int *) {
    return TN_FIELD_INT;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const unsigned *) {
    return TN_FIELD_INT;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const int64_t *) {
    return TN_FIELD_INT64;
}
template <size_t n> constexpr tn_field_kind tn__field_kind_cxx(const int64_t (*)[n]) {
    return TN_FIELD_INT64;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const double *) {
    return TN_FIELD_DOUBLE;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const bool *) {
    return TN_FIELD_BOOL;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const tn_dims *) {
    return TN_FIELD_DIMS;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const uint64_t *) {
    return TN_FIELD_UINT64;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const char *const *) {
    return TN_FIELD_TEXT;
}
template <size_t n> constexpr tn_field_kind tn__field_kind_cxx(const char (*)[n]) {
    return TN_FIELD_CHARS;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const tn_digest *) {
    return TN_FIELD_DIGEST;
}
/* In C++ a row says no more than this; the other members are set by hand. */
#define TN_FIELD_AS(label, type, member)                                                       \
    {                                                                                          \
        label, tn__field_kind_cxx((decltype(((type *)0)->member) *)0), offsetof(type, member), \
            sizeof(((type *)0)->member), NULL, 0.0, 0.0, false, false, 0                       \
    }
#define TN_FIELD(type, member) TN_FIELD_AS(#member, type, member)
#define TN_FIELD_OPTION(type, member) TN_FIELD_AS(#member, type, options.member)
#else
#define TN__FIELD_ROW(label, type, member) \
    .name = label,                                                                 \
    .kind = _Generic(((type *)0)->member, int: TN_FIELD_INT, unsigned: TN_FIELD_INT, \
                     int64_t: TN_FIELD_INT64, int64_t *: TN_FIELD_INT64,           \
                     double: TN_FIELD_DOUBLE, bool: TN_FIELD_BOOL,                 \
                     tn_dims: TN_FIELD_DIMS, uint64_t: TN_FIELD_UINT64,            \
                     const char *: TN_FIELD_TEXT, char *: TN_FIELD_CHARS,          \
                     tn_digest: TN_FIELD_DIGEST),         \
    .offset = offsetof(type, member), .bytes = sizeof(((type *)0)->member)
/* The member under its own name, under another, and of the type's `options`; then what else the row
 * says: .least = 1, … */
#define TN_FIELD(type, member, ...) \
    { TN__FIELD_ROW(#member, type, member), __VA_ARGS__ }
#define TN_FIELD_AS(label, type, member, ...) \
    { TN__FIELD_ROW(label, type, member), __VA_ARGS__ }
#define TN_FIELD_OPTION(type, member, ...) \
    { TN__FIELD_ROW(#member, type, options.member), __VA_ARGS__ }
#endif
#define TN_UNLESS(type, member) (offsetof(type, member) + 1)
#endif
