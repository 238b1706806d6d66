/* What ranks must agree on before they move bytes: shared by those that compare it. */
#ifndef TERN_DISTRIBUTED_GROUP_FINGERPRINT_H
#define TERN_DISTRIBUTED_GROUP_FINGERPRINT_H

#include "distributed/group/group.h"

/* The kind for an engine's alloc of `count` bytes. */
enum { TN__ALLOCATION = TN_COLLECTIVES };

/* The same bytes in every process. Fields that the kind does not use are 0. */
struct tn__fingerprint {
    int32_t kind, dtype, reduce, root;
    int32_t device, unused; /* the kind of device */
    int64_t count;
    uint64_t sequence; /* for messages: may differ, as sends and receives count too */
};

tn__fingerprint tn__fingerprint_of(const tn_transfer *t);
tn__fingerprint tn__fingerprint_of_alloc(size_t bytes);
bool tn__fingerprint_same(const tn__fingerprint *a, const tn__fingerprint *b);

/* Writes how the prints of `ranks` ranks, `stride` bytes apart, differ, naming two of them, or
 * returns false when all agree. The same text on every rank. */
bool tn__fingerprint_differ(const tn__fingerprint *first, size_t stride, int ranks, char *text,
                            size_t size);

#endif
