/* The public operations: they check the tensors, then issue a transfer of the elements. */
#include "core/error.h"
#include "distributed/group/group.h"
#include "distributed/group/values.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Checks ---------------------------------------------------------------------------------- */

static bool good_tensor(const tn_group *g, const tn_tensor *t, const char *operation) {
    if (!tn__usable(t, operation)) { return false; }
    unsigned devices = g && g->engine ? g->engine->engine->devices : ~0u;
    if (!(devices >> t->storage->device.kind & 1)) {
        tn__raise(TN_EDEVICE, operation,
                  "the tensor %s is on %s, but group %s (%s) moves tensors on the CPU",
                  tn_shape_text(t), tn_device_text(t->storage->device), g->name, g->engine_name);
    } else if (!tn_is_contiguous(t)) {
        tn__raise(TN_ESHAPE, operation, "the tensor %s is not contiguous (tn_contiguous makes one)",
                  tn_shape_text(t));
    } else if (t->dtype == TN_BOOL) {
        tn__raise(TN_EDTYPE, operation, "bool tensors cannot be sent (tn_cast them to u8)");
    } else {
        return true;
    }
    return false;
}

static bool good_rank(const tn_group *g, int rank, bool may_be_me, const char *operation) {
    if (rank < 0 || rank >= tn_group_size(g)) {
        return tn__fail(TN_EINDEX, operation, "rank %d, but group %s has ranks 0 … %d", rank,
                        tn_group_name(g), tn_group_size(g) - 1);
    }
    return may_be_me || rank != tn_group_rank(g) ||
           tn__fail(TN_EVALUE, operation, "rank %d is this rank itself", rank);
}

static bool good_reduce(tn_reduction how, const char *operation) {
    switch (how) {
    case TN_MEAN:
    case TN_SUM:
    case TN_PRODUCT:
    case TN_MIN:
    case TN_MAX:
        return true;
    default:
        return tn__fail(TN_EVALUE, operation,
                        "reduction is %d (TN_SUM, TN_MEAN, TN_PRODUCT, TN_MIN or TN_MAX)",
                        (int)how);
    }
}

static bool same_place(const tn_tensor *a, const tn_tensor *b, const char *operation) {
    return tn__same_device(a->storage->device, b->storage->device) ||
           tn__fail(TN_EDEVICE, operation, "one tensor is on %s and the other on %s",
                    tn_device_text(a->storage->device), tn_device_text(b->storage->device));
}

/* `all` must be (N, the shape of one). */
static bool good_parts(const tn_group *g, const tn_tensor *all, const tn_tensor *one,
                       const char *operation) {
    tn_dims want = {.ndim = one->dims.ndim + 1, .size = {tn_group_size(g)}};
    if (want.ndim <= TN_MAX_DIMS) {
        memcpy(want.size + 1, one->dims.size, (size_t)one->dims.ndim * sizeof(int64_t));
    }
    if (!tn_dims_equal(all->dims, want)) {
        return tn__fail(
            TN_ESHAPE, operation,
            "with %d ranks the tensors are %s and %s (the first must be [%d] and then the "
            "second's dimensions)",
            tn_group_size(g), tn_shape_text(all), tn_shape_text(one), tn_group_size(g));
    }
    if (all->dtype != one->dtype) {
        return tn__fail(TN_EDTYPE, operation, "the tensors are %s and %s",
                        tn_dtype_name(all->dtype), tn_dtype_name(one->dtype));
    }
    return same_place(all, one, operation);
}

/* Both must be (N, …). */
static bool good_exchange(const tn_group *g, const tn_tensor *in, const tn_tensor *out,
                          const char *operation) {
    int n = tn_group_size(g);
    if (in->dims.ndim < 1 || in->dims.size[0] != n || !tn_dims_equal(in->dims, out->dims) ||
        in->dtype != out->dtype) {
        return tn__fail(in->dtype != out->dtype ? TN_EDTYPE : TN_ESHAPE, operation,
                        "with %d ranks the tensors are %s %s and %s %s (both must begin with [%d])",
                        n, tn_dtype_name(out->dtype), tn_shape_text(out), tn_dtype_name(in->dtype),
                        tn_shape_text(in), n);
    }
    return same_place(in, out, operation);
}

/* Checks an operation's in and out. */
static bool good_pair(const tn_group *g, tn_collective kind, const tn_tensor *in,
                      const tn_tensor *out, const char *operation) {
    switch (kind) {
    case TN_ALL_GATHER:
    case TN_GATHER:
        return good_parts(g, out, in, operation);
    case TN_REDUCE_SCATTER:
    case TN_SCATTER:
        return good_parts(g, in, out, operation);
    case TN_ALL_TO_ALL:
        return good_exchange(g, in, out, operation);
    default:
        return true; /* they are one tensor */
    }
}

/* Every operation begins with this. A NULL group is one rank. An error on this rank aborts the
 * group. */
static bool may_begin(tn_group *g, const char *operation) {
    return g ? tn__group_usable(g, operation) : !tn__pending();
}

/* ---- Issuing --------------------------------------------------------------------------------- */

/* With one rank every collective copies its input. */
static void copy_alone(const tn_transfer *t) {
    if (t->in && t->out && t->in != t->out && t->count > 0) {
        tn__copy_bytes(t->device, t->out, t->device, t->in,
                       (size_t)t->count * tn_dtype_size(t->dtype), tn_collective_name(t->kind));
    }
}

static tn_work *issue_transfer(tn_group *g, tn_transfer t, tn_tensor *in, tn_tensor *out) {
    const tn_tensor *any = in ? in : out;
    if (any) {
        t.dtype = any->dtype;
        t.device = any->storage->device;
    }
    t.in = in ? tn__address(in) : NULL;
    t.out = out ? tn__address(out) : NULL;
    if (out) { tn__touch(out); }
    if (tn_group_size(g) == 1) {
        copy_alone(&t);
        return NULL;
    }
    return tn__group_issue(g, &t, in, out);
}

/* Checks an operation on tensors by its kind and issues it. Where only the root reads, or only it
 * writes, the other ranks' tensor is not looked at. */
static tn_work *run_transfer(tn_group *g, tn_transfer t, tn_tensor *in, tn_tensor *out) {
    tn_collective kind = t.kind;
    const char *name = tn_collective_name(kind);
    if (!may_begin(g, name)) { return NULL; }
    bool mine = tn_group_rank(g) == t.root, message = kind == TN_SEND || kind == TN_RECV;
    bool to_root = kind == TN_REDUCE_TO_ROOT || kind == TN_GATHER, from_root = kind == TN_SCATTER;
    bool rooted = message || to_root || from_root || kind == TN_BROADCAST;
    bool reduces = kind == TN_ALL_REDUCE || kind == TN_REDUCE_SCATTER || kind == TN_REDUCE_TO_ROOT;
    bool reads = kind != TN_RECV && (mine || !from_root);
    bool writes = kind != TN_SEND && (mine || !to_root);
    in = reads ? in : NULL;
    out = writes ? out : NULL;
    if ((rooted && !good_rank(g, t.root, !message, name)) ||
        (reduces && !good_reduce(t.reduce, name)) || (reads && !good_tensor(g, in, name)) ||
        (writes && !good_tensor(g, out, name)) ||
        (reads && writes && !good_pair(g, kind, in, out, name))) {
        tn_group_abort(g, tn_error_message()); /* the peers must not wait */
        return NULL;
    }
    bool scatters = kind == TN_REDUCE_SCATTER || from_root;
    int64_t count = tn_count(in && !scatters ? in : out);
    t.count = kind == TN_ALL_TO_ALL ? count / tn_group_size(g) : count;
    return issue_transfer(g, t, in, out);
}

tn_work *tn_all_reduce(tn_group *g, tn_tensor *t, tn_reduction how) {
    return run_transfer(g, (tn_transfer){.kind = TN_ALL_REDUCE, .reduce = how}, t, t);
}

tn_work *tn_all_gather(tn_group *g, tn_tensor *out, tn_tensor *t) {
    return run_transfer(g, (tn_transfer){.kind = TN_ALL_GATHER}, t, out);
}

tn_work *tn_reduce_scatter(tn_group *g, tn_tensor *out, tn_tensor *t, tn_reduction how) {
    return run_transfer(g, (tn_transfer){.kind = TN_REDUCE_SCATTER, .reduce = how}, t, out);
}

tn_work *tn_broadcast(tn_group *g, tn_tensor *t, int root) {
    return run_transfer(g, (tn_transfer){.kind = TN_BROADCAST, .root = root}, t, t);
}

tn_work *tn_reduce_to(tn_group *g, tn_tensor *t, int root, tn_reduction how) {
    return run_transfer(g, (tn_transfer){.kind = TN_REDUCE_TO_ROOT, .reduce = how, .root = root}, t,
                        t);
}

tn_work *tn_gather_to(tn_group *g, tn_tensor *out, tn_tensor *t, int root) {
    return run_transfer(g, (tn_transfer){.kind = TN_GATHER, .root = root}, t, out);
}

tn_work *tn_scatter_from(tn_group *g, tn_tensor *out, tn_tensor *t, int root) {
    return run_transfer(g, (tn_transfer){.kind = TN_SCATTER, .root = root}, t, out);
}

tn_work *tn_all_to_all(tn_group *g, tn_tensor *out, tn_tensor *t) {
    return run_transfer(g, (tn_transfer){.kind = TN_ALL_TO_ALL}, t, out);
}

tn_work *tn_send(tn_group *g, tn_tensor *t, int to) {
    return run_transfer(g, (tn_transfer){.kind = TN_SEND, .root = to}, t, NULL);
}

tn_work *tn_recv(tn_group *g, tn_tensor *t, int from) {
    return run_transfer(g, (tn_transfer){.kind = TN_RECV, .root = from}, NULL, t);
}

/* ---- Barriers and means ---------------------------------------------------------------------- */

tn_status tn_barrier(tn_group *g) {
    if (!may_begin(g, "barrier")) { return tn_error(); }
    return tn_work_wait(
        issue_transfer(g, (tn_transfer){.kind = TN_BARRIER, .dtype = TN_U8}, NULL, NULL), 0);
}

/* Lists in `missing` the ranks whose keys have not arrived by the deadline, as " 1 3"; "" for
 * none. */
static void await_keys(tn_group *g, uint64_t number, double deadline, char *missing,
                       size_t missing_size) {
    size_t length = 0;
    *missing = 0;
    for (int r = 0; r < g->size && length < missing_size; r++) {
        char key[64];
        tn_store_call c = {.kind = TN_STORE_GET, .key = key, .deadline = deadline};
        snprintf(key, sizeof(key), "barrier/%llu/%d", (unsigned long long)number, r);
        if (g->store->run(g->store, &c) != TN_OK) {
            length += (size_t)snprintf(missing + length, missing_size - length, " %d", r);
        }
        free(c.value.data);
    }
}

/* Each rank writes a key and waits for all keys. The first to know the outcome publishes it, so
 * that a late rank learns that another has given up. */
static tn_status meet_at_keys(tn_group *g, uint64_t number, double seconds, char *missing,
                              size_t missing_size, tn_store_call *c) {
    tn_store *s = g->store;
    char key[64];
    double deadline = tn__now() + seconds;
    snprintf(key, sizeof(key), "barrier/%llu/%d", (unsigned long long)number, g->rank);
    *c = (tn_store_call){.kind = TN_STORE_SET, .key = key, .deadline = deadline};
    tn_status status = s->run(s, c);
    if (status != TN_OK) { return status; }
    await_keys(g, number, deadline, missing, missing_size - 1);
    snprintf(key, sizeof(key), "barrier/%llu/end", (unsigned long long)number);
    const char *mine = *missing ? missing : "all";
    *c = (tn_store_call){.kind = TN_STORE_COMPARE_SET,
                         .key = key,
                         .data = mine,
                         .bytes = strlen(mine),
                         .deadline = tn__now() + 1};
    status = s->run(s, c);
    if (status == TN_OK) {
        bool all = c->value.bytes == 3 && memcmp(c->value.data, "all", 3) == 0;
        snprintf(missing, missing_size, "%.*s", all ? 0 : (int)c->value.bytes,
                 (const char *)c->value.data);
    }
    free(c->value.data);
    return *missing ? TN_OK : status;
}

tn_status tn_monitored_barrier(tn_group *g, double timeout) {
    static const char name[] = "monitored_barrier";
    if (!may_begin(g, name)) { return tn_error(); }
    if (tn_group_size(g) == 1) { return TN_OK; }
    double seconds = timeout > 0 && timeout <= TN__TIMEOUT_MOST ? timeout : g->options.timeout;
    uint64_t number = ++g->barriers;
    char missing[256] = "";
    tn_store_call c;
    tn_status status = meet_at_keys(g, number, seconds, missing, sizeof(missing), &c);
    if (status != TN_OK) {
        tn__raise(status, name, "group %s: %s", g->name, c.why);
    } else if (*missing) {
        tn__raise(TN_EPEER, name, "group %s, barrier %llu: missing after %g s: rank%s", g->name,
                  (unsigned long long)number, seconds, missing);
    }
    if (tn__pending()) { tn_group_abort(g, tn_error_message()); }
    return tn_error();
}

double tn_group_mean(tn_group *g, double sum, double count) {
    double both[2] = {sum, count};
    tn_status status = tn__reduce_values(g, both, 2, TN_F64, TN_SUM);
    return status == TN_OK && both[1] != 0 ? both[0] / both[1] : (double)NAN;
}
