/* The format of numpy.lib.format: a magic, a version, the length of a header, the header, elements.
 *
 * The header is a dictionary as Python writes it, with exactly three keys, in any order; the values
 * are parsed by hand.
 */
#include "io/npy/array.h"

#include "core/error.h"
#include "tern/ops.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <string.h>

static const unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* ---- The header ------------------------------------------------------------------------------ */

typedef struct head {
    const char *at, *end;
    const char *wrong; /* static text; NULL: nothing yet */
    char descr[64];
    bool fortran;
    bool records; /* not one number per element */
    bool seen[3]; /* descr, fortran_order, shape */
    tn_dims dims;
    bool many; /* too many dimensions */
} head;

static bool head_fails(head *h, const char *wrong) {
    h->wrong = h->wrong ? h->wrong : wrong;
    return false;
}

static void skip_blanks(head *h) {
    while (h->at < h->end && strchr(" \n\t\r\f", *h->at) && *h->at) {
        h->at++;
    }
}

/* Skips this text if it is next; false if not. */
static bool take_text(head *h, const char *text) {
    size_t length = strlen(text);
    skip_blanks(h);
    bool there = (size_t)(h->end - h->at) >= length && memcmp(h->at, text, length) == 0;
    h->at += there ? length : 0;
    return there;
}

/* 'text' or "text". */
static bool take_string(head *h, char *text, size_t size) {
    skip_blanks(h);
    char quote = h->at < h->end ? *h->at : 0;
    if (quote != '\'' && quote != '"') { return head_fails(h, "a string is missing"); }
    const char *last = memchr(h->at + 1, quote, (size_t)(h->end - h->at - 1));
    size_t length = last ? (size_t)(last - h->at - 1) : size;
    if (length >= size) { return head_fails(h, "a string does not end, or is too long"); }
    memcpy(text, h->at + 1, length);
    text[length] = 0;
    h->at = last + 1;
    return true;
}

static bool take_size(head *h, int64_t *size) {
    int digits = 0;
    skip_blanks(h);
    for (*size = 0; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++) {
        if (++digits > 18) { return head_fails(h, "a size is too large"); }
        *size = *size * 10 + (*h->at - '0');
    }
    return digits > 0 || head_fails(h, "a size is missing");
}

/* (), (3,), (2, 3) */
static bool take_shape(head *h) {
    if (!take_text(h, "(")) { return head_fails(h, "the shape is not a tuple"); }
    while (!take_text(h, ")")) {
        int64_t size;
        if (!take_size(h, &size)) { return false; }
        h->many |= h->dims.ndim == TN_MAX_DIMS;
        if (!h->many) { h->dims.size[h->dims.ndim++] = size; }
        if (!take_text(h, ",")) {
            return take_text(h, ")") || head_fails(h, "the shape does not end");
        }
    }
    return true;
}

static bool take_descr(head *h) {
    h->records = take_text(h, "[") || take_text(h, "(");
    return !h->records && take_string(h, h->descr, sizeof(h->descr));
}

static bool take_order(head *h) {
    h->fortran = take_text(h, "True");
    return h->fortran || take_text(h, "False") ||
           head_fails(h, "fortran_order is not True or False");
}

static bool take_member(head *h) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[16];
    if (!take_string(h, key, sizeof(key)) || !take_text(h, ":")) {
        return head_fails(h, "a key is missing");
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(key, keys[i]) == 0) {
            if (h->seen[i]) { return head_fails(h, "a key occurs twice"); }
            h->seen[i] = true;
            return i == 0 ? take_descr(h) : i == 1 ? take_order(h) : take_shape(h);
        }
    }
    return head_fails(h, "a key is not descr, fortran_order or shape");
}

static bool read_head(head *h) {
    if (!take_text(h, "{")) { return head_fails(h, "it is not a dictionary"); }
    while (!take_text(h, "}")) {
        if (!take_member(h)) { return false; }
        if (!take_text(h, ",")) {
            if (!take_text(h, "}")) { return head_fails(h, "the dictionary does not end"); }
            break;
        }
    }
    skip_blanks(h);
    return (h->seen[0] && h->seen[1] && h->seen[2] && h->at == h->end) ||
           head_fails(h, "a key is missing, or something follows the dictionary");
}

/* ---- Elements -------------------------------------------------------------------------------- */

typedef struct element {
    const char *name; /* without the byte order */
    tn_dtype dtype;
    size_t bytes;
    bool sign;
} element;

static const element elements[] = {
    {"f4", TN_F32, 4, false}, {"f8", TN_F64, 8, false},  {"f2", TN_F16, 2, false},
    {"i8", TN_I64, 8, false}, {"i4", TN_I32, 4, false},  {"i1", TN_I8, 1, false},
    {"u1", TN_U8, 1, false},  {"b1", TN_BOOL, 1, false}, {"i2", TN_I32, 2, true},
    {"u2", TN_I32, 2, false}, {"u4", TN_I64, 4, false},
};

/* NULL: none. */
static const element *find_element(const char *name) {
    for (size_t i = 0; i < sizeof(elements) / sizeof(*elements); i++) {
        if (strcmp(elements[i].name, name) == 0) { return &elements[i]; }
    }
    return NULL;
}

/* An element's bits as a 64-bit integer. */
static uint64_t element_bits(const unsigned char *from, const tn__npy_about *a) {
    uint64_t bits = 0;
    for (size_t i = 0; i < a->each; i++) {
        bits = bits << 8 | from[a->big ? i : a->each - 1 - i];
    }
    return a->sign ? (uint64_t)(int64_t)(int16_t)(uint16_t)bits : bits;
}

void tn__npy_convert(const tn__npy_about *a, const unsigned char *from, size_t count, void *data) {
    size_t wide = tn_dtype_size(a->dtype);
    unsigned char *to = data;
    if (wide == a->each && (!a->big || wide == 1) && a->dtype != TN_BOOL) {
        memcpy(to, from, count * wide);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = element_bits(from + i * a->each, a);
        bits = a->dtype == TN_BOOL ? bits != 0 : bits;
        for (size_t k = 0; k < wide; k++) {
            to[i * wide + k] = (unsigned char)(bits >> 8 * k);
        }
    }
}

/* The bytes of the shape's elements; SIZE_MAX if they do not fit into a size_t. */
static size_t shape_bytes(tn_dims dims, size_t each) {
    size_t bytes = each;
    for (int i = 0; i < dims.ndim; i++) {
        if (dims.size[i] == 0) { return 0; }
    }
    for (int i = 0; i < dims.ndim; i++) {
        if (__builtin_mul_overflow(bytes, (size_t)dims.size[i], &bytes)) { return SIZE_MAX; }
    }
    return bytes;
}

/* `there` bytes follow the header, but the elements take `wanted`. */
static bool raise_length(size_t wanted, size_t there, const char *what, const char *operation) {
    if (wanted < there) {
        tn__raise(TN_EFORMAT, operation,
                  "%s: %zu bytes follow the %zu of its elements, but a file has one array here "
                  "(numpy.savez writes several)",
                  what, there - wanted, wanted);
    } else if (wanted == SIZE_MAX) {
        tn__raise(TN_EFORMAT, operation, "%s: its shape has more bytes than 2^64", what);
    } else {
        tn__raise(TN_EFORMAT, operation, "%s: its elements take %zu bytes, but it has %zu of them",
                  what, wanted, there);
    }
    return false;
}

static bool look_at_elements(const head *h, size_t bytes, tn__npy_about *a, const char *what,
                             const char *operation) {
    const char *order = strchr("<>|=", h->descr[0]) && h->descr[0] ? h->descr : "";
    const element *e = find_element(h->descr + (*order != 0));
    if (h->many) {
        return tn__fail(TN_EUNSUPPORTED, operation, "%s has more than %d dimensions", what,
                        TN_MAX_DIMS);
    }
    if (!e) {
        return tn__fail(TN_EUNSUPPORTED, operation,
                        "%s has elements of type \"%s\", which Tern does not have", what, h->descr);
    }
    size_t wanted = shape_bytes(h->dims, e->bytes);
    if (wanted != bytes) { return raise_length(wanted, bytes, what, operation); }
    *a = (tn__npy_about){.dims = h->dims,
                         .dtype = e->dtype,
                         .each = e->bytes,
                         .sign = e->sign,
                         .big = *order == '>',
                         .fortran = h->fortran};
    return true;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* The header's length has two bytes in version 1, four in later ones. */
static size_t bytes_before_header(const unsigned char *at, size_t all) {
    return all > 6 && at[6] == 1 ? 10 : TN__NPY_FIRST;
}

size_t tn__npy_before(const unsigned char *at, size_t all, const char *what,
                      const char *operation) {
    size_t before = bytes_before_header(at, all), length = 0;
    if (all >= 4 && memcmp(at, "PK\3\4", 4) == 0) {
        tn__raise(TN_EFORMAT, operation, "%s is an archive, not an array: tn_npz_open reads it",
                  what);
        return 0;
    }
    if (all < before || memcmp(at, magic, sizeof(magic)) != 0 || at[6] < 1 || at[6] > 3) {
        tn__raise(TN_EFORMAT, operation, "%s is not a NumPy array of version 1 to 3", what);
        return 0;
    }
    for (size_t i = before; i > 8; i--) {
        length = length << 8 | at[i - 1];
    }
    if (length > all - before) {
        tn__raise(TN_EFORMAT, operation, "%s: its header of %zu bytes goes beyond its end", what,
                  length);
        return 0;
    }
    return before + length;
}

bool tn__npy_look(const unsigned char *at, size_t before, size_t all, tn__npy_about *a,
                  const char *what, const char *operation) {
    const char *begin = (const char *)at + bytes_before_header(at, all);
    head h = {.at = begin, .end = (const char *)at + before};
    if (!read_head(&h)) {
        if (h.records) {
            return tn__fail(
                TN_EUNSUPPORTED, operation,
                "%s has elements of several numbers (its descr is a list or a tuple), which "
                "Tern does not have",
                what);
        }
        return tn__fail(TN_EFORMAT, operation, "%s: its header at byte %zu: %s", what,
                        (size_t)(h.at - (const char *)at), h.wrong);
    }
    bool done = look_at_elements(&h, all - before, a, what, operation);
    a->begin = before;
    return done;
}

static tn_tensor *make_array(const tn__npy_about *a, const unsigned char *data) {
    tn_dims dims = a->dims, back = a->dims;
    for (int i = 0; a->fortran && i < dims.ndim; i++) {
        dims.size[i] = a->dims.size[dims.ndim - 1 - i];
        back.size[i] = dims.ndim - 1 - i;
    }
    tn_tensor *t = tn_to(tn_empty(dims, a->dtype), tn_cpu());
    if (tn_is_inert(t)) { return t; }
    tn__npy_convert(a, data, (size_t)tn_count(t), tn_data_mut(t));
    return a->fortran && dims.ndim > 1 ? tn_contiguous(tn_permute(t, back)) : t;
}

tn_tensor *tn__npy_read(const unsigned char *at, size_t bytes, const char *what,
                        const char *operation) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__npy_about a;
    size_t before = tn__npy_before(at, bytes, what, operation);
    if (before == 0 || !tn__npy_look(at, before, bytes, &a, what, operation)) { return tn_inert(); }
    return tn_return(make_array(&a, at + before));
}

/* ---- Writing --------------------------------------------------------------------------------- */

size_t tn__npy_head(const tn_tensor *t, unsigned char *to, const char *what,
                    const char *operation) {
    const char *name = NULL;
    tn_dtype dtype = tn_dtype_of(t);
    for (size_t i = 0; i < sizeof(elements) / sizeof(*elements) && !name; i++) {
        bool same = elements[i].dtype == dtype && elements[i].bytes == tn_dtype_size(dtype);
        name = same ? elements[i].name : NULL;
    }
    if (!name) {
        tn__raise(TN_EDTYPE, operation, "%s is %s, which NumPy does not have (tn_cast it to f32)",
                  what, tn_dtype_name(dtype));
        return 0;
    }
    char *text = (char *)to + 10;
    size_t size = TN__NPY_HEAD - 10;
    int used = snprintf(text, size, "{'descr': '%s%s', 'fortran_order': False, 'shape': (",
                        tn_dtype_size(dtype) == 1 ? "|" : "<", name);
    for (int i = 0; i < tn_ndim(t); i++) {
        used += snprintf(text + used, size - (size_t)used, "%s%lld", i ? ", " : "",
                         (long long)tn_size(t, i));
    }
    used += snprintf(text + used, size - (size_t)used, "%s), }", tn_ndim(t) == 1 ? "," : "");
    while ((used + 11) % 64) { /* to align the elements */
        text[used++] = ' ';
    }
    text[used++] = '\n';
    memcpy(to, magic, sizeof(magic));
    memcpy(to + 6, (unsigned char[]){1, 0, (unsigned char)used, (unsigned char)(used >> 8)}, 4);
    return (size_t)used + 10;
}
