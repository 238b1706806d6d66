/* Messages: lists of values; and how they become frames and back. */
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "tensor/tensor.h"
#include "tern/autograd.h"

#include <string.h>

/* ---- Making ---------------------------------------------------------------------------------- */

tn_message *tn_message_new(void) {
    return tn__pending() ? NULL : tn__calloc_for(1, sizeof(tn_message), "message_new");
}

static void value_finish(tn__value *v) {
    tn_release(v->tensor);
    free(v->data);
    tn_remote_free(v->remote);
}

void tn_message_free(tn_message *m) {
    if (m) {
        for (int64_t i = 0; i < m->count; i++) {
            value_finish(&m->values[i]);
        }
        free(m->values);
        free(m);
    }
}

/* Room for one value more. */
static bool may_add(tn_message *m, const char *operation) {
    if (tn__pending() || !m) {
        return tn__pending() ? false
                             : (tn__raise(TN_EVALUE, operation, "the message is NULL"), false);
    }
    if (m->count == TN__RPC_VALUES) {
        tn__raise(TN_EVALUE, operation, "the message already has %d values (at most that many)",
                  TN__RPC_VALUES);
        return false;
    }
    return tn__grow(&m->values, m->count + 1, &m->capacity, sizeof(*m->values), operation);
}

tn_status tn_message_add(tn_message *m, tn_tensor *t) {
    if (may_add(m, "message_add") && tn__usable(t, "message_add")) {
        m->values[m->count++] = (tn__value){.kind = TN__VALUE_TENSOR, .tensor = tn_keep(t)};
    }
    return tn_error();
}

static tn_status add_data(tn_message *m, tn__value_kind kind, const void *data, size_t bytes,
                          const char *operation) {
    if (!may_add(m, operation)) {
        return tn_error();
    }
    if (!data && bytes > 0) {
        return tn__raise(TN_EVALUE, operation, "the data is NULL, with %zu bytes", bytes);
    }
    char *copy = tn__malloc_for(bytes + 1, operation);
    if (copy) {
        if (bytes) {
            memcpy(copy, data, bytes);
        }
        copy[bytes] = 0;
        m->values[m->count++] = (tn__value){.kind = (uint8_t)kind, .data = copy, .bytes = bytes};
    }
    return tn_error();
}

tn_status tn_message_add_bytes(tn_message *m, const void *data, size_t bytes) {
    return add_data(m, TN__VALUE_BYTES, data, bytes, "message_add_bytes");
}

tn_status tn_message_add_text(tn_message *m, const char *text) {
    return !text && !tn__pending()
               ? tn__raise(TN_EVALUE, "message_add_text", "the text is NULL")
               : add_data(m, TN__VALUE_TEXT, text, text ? strlen(text) : 0, "message_add_text");
}

tn_status tn_message_add_int(tn_message *m, int64_t number) {
    if (may_add(m, "message_add_int")) {
        m->values[m->count++] = (tn__value){.kind = TN__VALUE_INT, .number = number};
    }
    return tn_error();
}

tn_status tn_message_add_remote(tn_message *m, tn_remote *r) {
    if (!may_add(m, "message_add_remote")) {
        return tn_error();
    }
    if (!r) {
        return tn__raise(TN_EVALUE, "message_add_remote", "the reference is NULL");
    }
    m->values[m->count++] = (tn__value){.kind = TN__VALUE_REMOTE, .remote = tn__remote_keep(r)};
    return TN_OK;
}

tn_message *tn_message_of(tn_values tensors) {
    tn_message *m = tn_message_new();
    if (m && (tensors.n < 0 || tensors.n > TN_MAX_VALUES)) {
        tn__raise(TN_EVALUE, "message_of", "%d tensors (0 to %d)", tensors.n, TN_MAX_VALUES);
    }
    for (int i = 0; i < tensors.n && !tn__pending(); i++) {
        tn_message_add(m, tensors.v[i]);
    }
    if (tn__pending()) {
        tn_message_free(m);
        return NULL;
    }
    return m;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static const char *const kinds[TN__VALUE_KINDS] = {"nothing", "a tensor", "bytes",
                                                   "a text",  "an int",   "a reference"};

/* NULL after raising, or if an error is pending. */
static const tn__value *value_at(const tn_message *m, int i, tn__value_kind kind,
                                 const char *operation) {
    if (tn__pending()) {
        return NULL;
    }
    if (!m) {
        tn__raise(TN_EVALUE, operation, "the message is NULL");
    } else if (i < 0 || i >= m->count) {
        tn__raise(TN_EINDEX, operation, "value %d of a message with %lld", i, (long long)m->count);
    } else if (m->values[i].kind != kind) {
        tn__raise(TN_EVALUE, operation, "value %d is %s, not %s", i, kinds[m->values[i].kind],
                  kinds[kind]);
    }
    return !m || tn__pending() ? NULL : &m->values[i];
}

int tn_message_count(const tn_message *m) {
    return m ? (int)m->count : 0;
}

tn_tensor *tn_message_tensor(const tn_message *m, int i) {
    const tn__value *v = value_at(m, i, TN__VALUE_TENSOR, "message_tensor");
    return v ? tn_adopt(tn_keep(v->tensor)) : tn_inert();
}

const void *tn_message_bytes(const tn_message *m, int i, size_t *bytes) {
    const tn__value *v = value_at(m, i, TN__VALUE_BYTES, "message_bytes");
    if (bytes) {
        *bytes = v ? v->bytes : 0;
    }
    return v ? v->data : NULL;
}

const char *tn_message_text(const tn_message *m, int i) {
    const tn__value *v = value_at(m, i, TN__VALUE_TEXT, "message_text");
    return v ? v->data : "";
}

int64_t tn_message_int(const tn_message *m, int i) {
    const tn__value *v = value_at(m, i, TN__VALUE_INT, "message_int");
    return v ? v->number : 0;
}

tn_remote *tn_message_remote(const tn_message *m, int i) {
    const tn__value *v = value_at(m, i, TN__VALUE_REMOTE, "message_remote");
    return v ? tn__remote_keep(v->remote) : NULL;
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static size_t value_bytes(const tn__value *v) {
    switch (v->kind) {
    case TN__VALUE_TENSOR:
        return 8 * (size_t)tn_ndim(v->tensor) +
               (size_t)tn_count(v->tensor) * tn_dtype_size(tn_dtype_of(v->tensor));
    case TN__VALUE_BYTES:
    case TN__VALUE_TEXT:
        return v->bytes;
    default:
        return 0;
    }
}

/* Writes v to `at`; returns where the next one goes. */
static uint8_t *encode_value(uint8_t *at, const tn__value *v, bool learns) {
    tn__value_head h = {.kind = v->kind};
    uint8_t *data = at + TN__VALUE_HEAD;
    if (v->kind == TN__VALUE_TENSOR) {
        tn_tensor *t = v->tensor;
        h.dtype = (uint8_t)tn_dtype_of(t);
        h.ndim = (uint8_t)tn_ndim(t);
        h.flags = learns && tn_requires_grad(t) ? TN__VALUE_LEARNS : 0;
        h.number = (uint64_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
        for (int i = 0; i < h.ndim; i++, data += 8) {
            tn__put_number(data, 8, (uint64_t)tn_size(t, i));
        }
        tn_copy_out(t, data);
        data += h.number;
    } else if (v->kind == TN__VALUE_INT) {
        h.number = (uint64_t)v->number;
    } else if (v->kind == TN__VALUE_REMOTE) {
        int owner;
        tn__remote_place(v->remote, &owner, &h.number);
        h.owner = (uint32_t)owner;
    } else {
        h.number = v->bytes;
        memcpy(data, v->data, v->bytes);
        data += v->bytes;
    }
    tn__value_write(at, &h);
    return data;
}

bool tn__message_measure(const tn_rpc *r, int to, tn__rpc_head *h, const char *name,
                         const tn_message *m, const char *operation) {
    h->name_bytes = name ? (uint16_t)strlen(name) : 0;
    h->values = m ? (uint16_t)m->count : 0;
    h->references = 0;
    h->bytes = h->name_bytes;
    for (int64_t i = 0; m && i < m->count; i++) {
        h->bytes += TN__VALUE_HEAD + value_bytes(&m->values[i]);
        h->references += m->values[i].kind == TN__VALUE_REMOTE;
    }
    if (h->bytes <= (uint64_t)r->options.message_limit) {
        return true;
    }
    tn__raise(TN_EVALUE, operation,
              "%s%s%s rank %d: the message has %llu bytes (message_limit: "
              "%lld)",
              name ? "\"" : "the result for", name ? name : "", name ? "\" of" : "", to,
              (unsigned long long)h->bytes, (long long)r->options.message_limit);
    return false;
}

tn__rpc_frame *tn__message_encode(tn_rpc *r, int to, const tn__rpc_head *h, const char *name,
                                  const tn_message *m, const char *operation, double deadline) {
    tn__rpc_frame *f = tn__rpc_frame_new(h);
    if (!f) {
        tn__raise(TN_ENOMEM, operation, "no memory for a message of %llu bytes",
                  (unsigned long long)h->bytes);
        return NULL;
    }
    uint8_t *at = tn__frame_body(f);
    if (name) {
        memcpy(at, name, h->name_bytes);
        at += h->name_bytes;
    }
    for (int64_t i = 0; m && i < m->count; i++) {
        at = encode_value(at, &m->values[i], h->flags & TN__RPC_LEARNS);
    }
    bool fine = !tn__pending();
    int64_t passed = 0;
    for (; fine && m && passed < m->count; passed += fine) {
        if (m->values[passed].kind == TN__VALUE_REMOTE) {
            fine = tn__remote_pass(r, m->values[passed].remote, to, deadline);
        }
    }
    if (!fine) {
        while (passed-- > 0) {
            if (m->values[passed].kind == TN__VALUE_REMOTE) {
                tn__remote_recall(m->values[passed].remote, to);
            }
        }
        free(f);
        return NULL;
    }
    return f;
}

/* ---- Decoding -------------------------------------------------------------------------------- */

/* Bytes that are neither 0 nor 1 would be no bool. */
static void copy_elements(tn_tensor *t, const uint8_t *from, size_t bytes) {
    uint8_t *to = tn_data_mut(t);
    if (t->dtype != TN_BOOL) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++) {
        to[i] = from[i] != 0;
    }
}

/* A reference of the caller's; NULL after raising. */
static tn_tensor *decode_tensor(const tn__value_head *v, tn_dims dims, const uint8_t *bytes,
                                bool learns) {
    tn_tensor *t = tn__new(dims, (tn_dtype)v->dtype, tn_cpu());
    if (tn_is_inert(t)) {
        return NULL;
    }
    if (v->number) {
        copy_elements(t, bytes, (size_t)v->number);
    }
    if (learns && (v->flags & TN__VALUE_LEARNS) && tn_dtype_is_float(t->dtype)) {
        tn_set_requires_grad(t, true);
    }
    tn_keep(t);
    tn_drop(t);
    return t;
}

static void decode_value(tn_rpc *r, tn_message *m, const tn__value_head *v, tn_dims dims,
                         const uint8_t *bytes, bool learns) {
    static const char *const operation = "rpc_message";
    if (v->kind == TN__VALUE_TENSOR) {
        tn_tensor *t = decode_tensor(v, dims, bytes, learns);
        if (t && may_add(m, operation)) {
            m->values[m->count++] = (tn__value){.kind = TN__VALUE_TENSOR, .tensor = t};
        } else {
            tn_release(t);
        }
    } else if (v->kind == TN__VALUE_INT) {
        tn_message_add_int(m, (int64_t)v->number);
    } else if (v->kind == TN__VALUE_REMOTE) {
        tn_remote *remote = tn__remote_new(r, (int)v->owner, v->number);
        if (remote && may_add(m, operation)) {
            m->values[m->count++] = (tn__value){.kind = TN__VALUE_REMOTE, .remote = remote};
        } else {
            tn_remote_free(remote);
        }
    } else {
        add_data(m, (tn__value_kind)v->kind, bytes, (size_t)v->number, operation);
    }
}

tn_message *tn__message_decode(tn_rpc *r, const tn__rpc_frame *f, bool learns) {
    tn_message *m = tn_message_new();
    tn__body b = tn__frame_values(f);
    uint32_t references = 0; /* that m has, or that are let go already */
    for (int i = 0; i < f->head.values && !tn__pending(); i++) {
        tn__value_head v;
        tn_dims dims;
        const uint8_t *bytes;
        if (!tn__body_next(&b, &v, &dims, &bytes) ||
            (v.kind == TN__VALUE_REMOTE && references == f->head.references) ||
            (v.kind == TN__VALUE_REMOTE && r && v.owner >= (uint32_t)r->ranks)) {
            tn__raise(TN_EFORMAT, "rpc_message", "value %d of %d is malformed", i, f->head.values);
        } else {
            references += v.kind == TN__VALUE_REMOTE;
            decode_value(r, m, &v, dims, bytes, learns);
        }
    }
    if (!tn__pending() && b.left) {
        tn__raise(TN_EFORMAT, "rpc_message", "%zu bytes are left after %d values", b.left,
                  f->head.values);
    }
    if (tn__pending()) {
        if (r) {
            tn__references_dropped(r, f, references);
        }
        tn_message_free(m);
        return NULL;
    }
    return m;
}

void tn__message_references(tn_rpc *r, const tn__rpc_frame *f, tn__reference_visitor *visit,
                            void *user) {
    tn__body b = tn__frame_values(f);
    uint32_t seen = 0;
    for (int i = 0; i < f->head.values && seen < f->head.references; i++) {
        tn__value_head v;
        tn_dims dims;
        const uint8_t *bytes;
        if (!tn__body_next(&b, &v, &dims, &bytes)) {
            return;
        }
        if (v.kind == TN__VALUE_REMOTE && v.owner < (uint32_t)r->ranks) {
            seen++;
            visit(r, (int)v.owner, v.number, user);
        }
    }
}
