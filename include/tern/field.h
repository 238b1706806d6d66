/* Tables of fields: one row for each member of a struct, with its name and type. Checkpoints write,
 * read and compare options by them, and exports take attributes from them.
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
 * Files contain the names, so a name must never change. Read next: tensor/fields.c.
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
    TN_FIELD_DIMS, /* not written if 0-dimensional */
    TN_FIELD_UINT64,
    TN_FIELD_TEXT,  /* a const char *; NULL: "" */
    TN_FIELD_CHARS, /* a char[] that ends with 0 */
    TN_FIELD_DIGEST
} tn_field_kind;

/* A digest of `bytes` of memory, computed when asked for. The other members are 0 at first; data
 * NULL: no digest. */
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
    /* Names of the numbers from 0, with NULL after the last (TN_FIELD_INT), or of false and true
     * (TN_FIELD_BOOL); NULL: written as numbers, or "true" and "false". */
    const char *const *names;
    double least, most; /* the range of a number, inclusive; both the same: any finite one */
    bool training;      /* does not change what trained weights compute, like a dropout */
    bool optional;      /* not written if it is 0, false or "" */
    size_t unless;      /* TN_UNLESS(type, member): not written if that bool is true; 0: none */
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
/* In C++ a row has only these; set the other members by hand. */
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
/* A member under its own name, under another, and a member of the type's `options`; then the row's
 * other members: .least = 1, … */
#define TN_FIELD(type, member, ...) \
    { TN__FIELD_ROW(#member, type, member), __VA_ARGS__ }
#define TN_FIELD_AS(label, type, member, ...) \
    { TN__FIELD_ROW(label, type, member), __VA_ARGS__ }
#define TN_FIELD_OPTION(type, member, ...) \
    { TN__FIELD_ROW(#member, type, options.member), __VA_ARGS__ }
#endif
#define TN_UNLESS(type, member) (offsetof(type, member) + 1)
#endif
