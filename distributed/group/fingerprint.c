/* What ranks must agree on before they move bytes. */
#include "distributed/group/fingerprint.h"

#include <stdio.h>

tn__fingerprint tn__fingerprint_of(const tn_transfer *t) {
    tn__fingerprint f = {.kind = (int32_t)t->kind, .sequence = t->sequence};
    if (t->kind == TN_BARRIER) { return f; }
    f.dtype = (int32_t)t->dtype;
    f.count = t->count;
    f.device = (int32_t)t->device.kind;
    switch (t->kind) {
    case TN_ALL_REDUCE:
    case TN_REDUCE_SCATTER:
        f.reduce = (int32_t)t->reduce;
        break;
    case TN_REDUCE_TO_ROOT:
        f.reduce = (int32_t)t->reduce;
        f.root = t->root;
        break;
    case TN_BROADCAST:
    case TN_GATHER:
    case TN_SCATTER:
    case TN_SEND:
    case TN_RECV:
        f.root = t->root;
        break;
    default:
        break;
    }
    return f;
}

tn__fingerprint tn__fingerprint_of_alloc(size_t bytes) {
    return (tn__fingerprint){.kind = TN__ALLOCATION, .count = (int64_t)bytes};
}

bool tn__fingerprint_same(const tn__fingerprint *a, const tn__fingerprint *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->root == b->root && a->device == b->device && a->count == b->count;
}

static void describe_fingerprint(const tn__fingerprint *f, char *text, size_t size) {
    if (f->kind == TN__ALLOCATION) {
        snprintf(text, size, "allocates %lld bytes", (long long)f->count);
        return;
    }
    char what[128];
    const tn_transfer t = {.kind = (tn_collective)f->kind,
                           .dtype = (tn_dtype)f->dtype,
                           .reduce = (tn_reduction)f->reduce,
                           .root = f->root,
                           .count = f->count};
    tn__transfer_text(&t, what, sizeof(what));
    snprintf(text, size, "is in %s%s (operation %llu)", what,
             f->device == TN_CPU ? "" : " on a device", (unsigned long long)f->sequence);
}

bool tn__fingerprint_differ(const tn__fingerprint *first, size_t stride, int ranks, char *text,
                            size_t size) {
    for (int r = 1; r < ranks; r++) {
        const tn__fingerprint *other = (const void *)((const char *)first + (size_t)r * stride);
        if (!tn__fingerprint_same(first, other)) {
            char ours[192], theirs[192];
            describe_fingerprint(first, ours, sizeof(ours));
            describe_fingerprint(other, theirs, sizeof(theirs));
            snprintf(text, size, "rank 0 %s, but rank %d %s", ours, r, theirs);
            return true;
        }
    }
    return false;
}
