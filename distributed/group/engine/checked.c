/* The engine "checked", around any other: before an operation the ranks exchange what they are
 * about to do, and a difference is an error that names both sides, instead of wrong numbers or a
 * wait for the deadline.
 *
 * The fingerprints are sent through the engine itself: by an all_gather before a collective and
 * before an allocation; before a send by a message to the receiver, which compares. That costs one
 * small operation each.
 */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/fingerprint.h"

#include <stdio.h>
#include <string.h>

typedef struct checked {
    tn_engine base;
    tn_engine *inner;
    tn__fingerprint *all;             /* [ranks] */
    const tn__fingerprint **pointers; /* to each of them */
} checked;

/* `t` without its data: sends the fingerprint in the same direction. An all_gather has no root: one
 * that differs must not keep the ranks apart. */
static tn_transfer carrier_of(const tn_transfer *t, tn_collective kind, const void *in, void *out) {
    return (tn_transfer){.kind = kind,
                         .dtype = TN_U8,
                         .reduce = TN_SUM,
                         .root = kind == TN_ALL_GATHER ? 0 : t->root,
                         .in = in,
                         .out = out,
                         .count = sizeof(tn__fingerprint),
                         .sequence = t->sequence,
                         .deadline = t->deadline};
}

static tn_status compare_all(checked *c, const tn_transfer *t, const tn__fingerprint *mine) {
    const tn_transfer exchange = carrier_of(t, TN_ALL_GATHER, mine, c->all);
    tn_status status = c->inner->run(c->inner, &exchange);
    char text[TN_ENGINE_WHY];
    if (status == TN_OK && tn__fingerprint_differ(c->pointers, c->base.ranks, text, sizeof(text))) {
        status = tn__raise(TN_EMISMATCH, NULL, "%s", text);
        c->inner->abort(c->inner, text);
    }
    return status;
}

/* The two ends of one message must agree on what is sent. */
static tn_status compare_pair(checked *c, const tn_transfer *t, const tn__fingerprint *mine) {
    tn__fingerprint theirs = {0};
    const tn_transfer exchange = t->kind == TN_SEND ? carrier_of(t, TN_SEND, mine, NULL)
                                                    : carrier_of(t, TN_RECV, NULL, &theirs);
    tn_status status = c->inner->run(c->inner, &exchange);
    if (status == TN_OK && t->kind == TN_RECV &&
        (theirs.dtype != mine->dtype || theirs.count != mine->count)) {
        status =
            tn__raise(TN_EMISMATCH, NULL,
                      "rank %d sends %s [%lld] (operation %llu), but rank %d receives %s [%lld] "
                      "(operation %llu)",
                      t->root, tn_dtype_name((tn_dtype)theirs.dtype), (long long)theirs.count,
                      (unsigned long long)theirs.sequence, c->base.rank, tn_dtype_name(t->dtype),
                      (long long)t->count, (unsigned long long)t->sequence);
        c->inner->abort(c->inner, tn__error_why());
    }
    return status;
}

static tn_status compare_transfer(checked *c, const tn_transfer *t) {
    const tn__fingerprint mine = tn__fingerprint_of(t);
    return t->kind == TN_SEND || t->kind == TN_RECV ? compare_pair(c, t, &mine)
                                                    : compare_all(c, t, &mine);
}

static tn_status checked_run(tn_engine *base, const tn_transfer *t) {
    checked *c = (checked *)base;
    tn_status status = compare_transfer(c, t);
    return status == TN_OK ? c->inner->run(c->inner, t) : status;
}

static tn_status checked_launch(tn_engine *base, const tn_transfer *t) {
    checked *c = (checked *)base;
    tn_status status = compare_transfer(c, t);
    return status == TN_OK ? c->inner->launch(c->inner, t) : status;
}

static tn_status checked_poll(tn_engine *base, const tn_transfer *t, bool *over) {
    checked *c = (checked *)base;
    return c->inner->poll(c->inner, t, over);
}

static void checked_stop(tn_engine *base, const char *reason) {
    checked *c = (checked *)base;
    c->inner->abort(c->inner, reason);
}

/* Whether all ranks are about to allocate the same number of bytes. */
static bool same_alloc(checked *c, size_t bytes, double deadline) {
    const tn__fingerprint mine = tn__fingerprint_of_alloc(bytes);
    const tn_transfer t = {.deadline = deadline};
    return compare_all(c, &t, &mine) == TN_OK;
}

static void *checked_alloc(tn_engine *base, size_t bytes, double deadline) {
    checked *c = (checked *)base;
    return same_alloc(c, bytes, deadline) ? c->inner->alloc(c->inner, bytes, deadline) : NULL;
}

static void checked_release(tn_engine *base, void *memory) {
    checked *c = (checked *)base;
    c->inner->free(c->inner, memory);
}

static void *device_alloc(tn_engine *base, size_t bytes, double deadline) {
    checked *c = (checked *)base;
    return same_alloc(c, bytes, deadline) ? c->inner->device_alloc(c->inner, bytes, deadline)
                                          : NULL;
}

static void device_release(tn_engine *base, void *memory) {
    checked *c = (checked *)base;
    c->inner->device_free(c->inner, memory);
}

static tn_status checked_check(tn_engine *base, bool all) {
    checked *c = (checked *)base;
    return c->inner->check(c->inner, all);
}

static void checked_leave(tn_engine *base) {
    checked *c = (checked *)base;
    c->inner->leave(c->inner);
}

static void checked_destroy(tn_engine *base) {
    checked *c = (checked *)base;
    if (c) {
        c->inner->destroy(c->inner);
        free(c->pointers);
        free(c->all);
        free(c);
    }
}

tn_engine *tn__checked_new(tn_engine *inner) {
    if (!inner) { return NULL; }
    checked *c = tn__calloc_for(1, sizeof(*c), NULL);
    tn__fingerprint *all = tn__calloc_for((size_t)inner->ranks, sizeof(*all), NULL);
    const tn__fingerprint **pointers =
        tn__malloc_for((size_t)inner->ranks * sizeof(tn__fingerprint *), NULL);
    if (!c || !all || !pointers) {
        free(c);
        free(all);
        free(pointers);
        inner->destroy(inner);
        return NULL;
    }
    for (int r = 0; r < inner->ranks; r++) {
        pointers[r] = &all[r];
    }
    *c = (checked){.inner = inner, .all = all, .pointers = pointers};
    c->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .name = "checked",
                          .rank = inner->rank,
                          .ranks = inner->ranks,
                          .vague = inner->vague,
                          .devices = inner->devices,
                          .queues = inner->queues,
                          .run = checked_run,
                          .launch = inner->queues ? checked_launch : NULL,
                          .poll = inner->queues ? checked_poll : NULL,
                          .abort = checked_stop,
                          .alloc = inner->alloc ? checked_alloc : NULL,
                          .free = inner->alloc ? checked_release : NULL,
                          .device_alloc = inner->device_alloc ? device_alloc : NULL,
                          .device_free = inner->device_alloc ? device_release : NULL,
                          .check = inner->check ? checked_check : NULL,
                          .leave = inner->leave ? checked_leave : NULL,
                          .destroy = checked_destroy};
    return &c->base;
}
