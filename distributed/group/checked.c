/* The option `checked`: before an operation the ranks exchange what they are about to do, and a
 * difference is an error that names both sides, instead of wrong numbers or a wait for the
 * deadline.
 *
 * The fingerprints are sent through the group's engine: by an all_gather before a collective and
 * before an allocation; before a send by a message to the receiver, which compares. That costs one
 * small operation each.
 */
#include "core/error.h"
#include "distributed/group/fingerprint.h"

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

static tn_status compare_all(const tn_group *g, const tn_transfer *t, const tn__fingerprint *mine) {
    tn_engine *e = g->engine->engine;
    const tn_transfer exchange = carrier_of(t, TN_ALL_GATHER, mine, g->prints);
    tn_status status = e->run(e, &exchange);
    char text[TN_ENGINE_WHY];
    if (status == TN_OK &&
        tn__fingerprint_differ(g->prints, sizeof(*mine), g->size, text, sizeof(text))) {
        status = tn__raise(TN_EMISMATCH, NULL, "%s", text);
    }
    return status;
}

/* The two ends of one message must agree on what is sent. */
static tn_status compare_pair(const tn_group *g, const tn_transfer *t,
                              const tn__fingerprint *mine) {
    tn_engine *e = g->engine->engine;
    tn__fingerprint theirs = {0};
    const tn_transfer exchange = t->kind == TN_SEND ? carrier_of(t, TN_SEND, mine, NULL)
                                                    : carrier_of(t, TN_RECV, NULL, &theirs);
    tn_status status = e->run(e, &exchange);
    if (status == TN_OK && t->kind == TN_RECV &&
        (theirs.dtype != mine->dtype || theirs.count != mine->count)) {
        status =
            tn__raise(TN_EMISMATCH, NULL,
                      "rank %d sends %s [%lld] (operation %llu), but rank %d receives %s [%lld] "
                      "(operation %llu)",
                      t->root, tn_dtype_name((tn_dtype)theirs.dtype), (long long)theirs.count,
                      (unsigned long long)theirs.sequence, g->rank, tn_dtype_name(t->dtype),
                      (long long)t->count, (unsigned long long)t->sequence);
    }
    return status;
}

tn_status tn__group_compare(const tn_group *g, const tn_work *w) {
    tn_engine *e = g->engine->engine;
    bool message = !w->is_alloc && (w->t.kind == TN_SEND || w->t.kind == TN_RECV);
    const tn__fingerprint mine =
        w->is_alloc ? tn__fingerprint_of_alloc(w->alloc_bytes) : tn__fingerprint_of(&w->t);
    tn_transfer t = w->t;
    t.sequence = w->is_alloc ? 0 : t.sequence; /* ranks may differ in it */
    tn_status status = message ? compare_pair(g, &t, &mine) : compare_all(g, &t, &mine);
    if (status == TN_EMISMATCH) { e->abort(e, tn__error_why()); }
    return status;
}
