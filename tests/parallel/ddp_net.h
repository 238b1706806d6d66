/* A small net for tests of data parallelism. */
#ifndef TERN_TESTS_DDP_NET_H
#define TERN_TESTS_DDP_NET_H

#include "tests/distributed/rank_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NET_IN = 6, NET_HIDDEN = 10, NET_OUT = 3, NET_BATCH = 4 };

/* Registered in a different order from its use, so readiness is not the reverse of registration. */
typedef struct net {
    tn_module base;
    tn_linear out, in, extra;
    tn_tensor *mean;  /* (HIDDEN), a buffer */
    tn_tensor *flags; /* (2, 2) bool, a buffer that forward does not use */
    bool use_extra;
} net;

static inline tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    tn_tensor *h = tn_relu(tn_call(&m->in, x));
    if (m->use_extra) { h = tn_add(h, tn_call(&m->extra, h)); }
    return tn_call(&m->out, h);
}

/* The weights depend on `seed` only. */
static inline void net_init(net *m, uint64_t seed) {
    tn_generator before = *tn_default_generator();
    tn_seed(seed);
    *m = (net){.use_extra = true};
    tn_module_init(m, "net", net_forward);
    tn_linear_init(&m->out, NET_HIDDEN, NET_OUT, tn_linear_defaults());
    tn_linear_init(&m->in, NET_IN, NET_HIDDEN, tn_linear_defaults());
    tn_linear_init(&m->extra, NET_HIDDEN, NET_HIDDEN, tn_linear_defaults());
    tn_module_add(m, "out", &m->out);
    tn_module_add(m, "in", &m->in);
    tn_module_add(m, "extra", &m->extra);
    tn_tensor *mean = tn_full(TN_DIMS(NET_HIDDEN, 2), (double)seed, TN_F32);
    tn_module_buffer(m, "mean", &m->mean, tn_select(mean, 1, 0)); /* not contiguous */
    bool flags[4] = {seed & 1, seed & 2, seed & 4, seed & 8};
    tn_module_buffer(m, "flags", &m->flags,
                     tn_transpose(TN_FROM(flags, TN_DIMS(2, 2), TN_BOOL), 0, 1));
    *tn_default_generator() = before;
}

/* The loss of micro-batch `number`: a mean. */
static inline tn_tensor *net_loss(net *m, int64_t number) {
    tn_generator g = {.seed = 3, .stream = (uint64_t)number};
    tn_tensor *x = tn_empty(TN_DIMS(NET_BATCH, NET_IN), TN_F32);
    tn_tensor *y = tn_empty(TN_DIMS(NET_BATCH, NET_OUT), TN_F32);
    return tn_mse(tn_call(m, tn_normal_(x, 0, 1, &g)), tn_normal_(y, 0, 1, &g), TN_MEAN);
}

static inline void net_backward(net *m, int64_t number) {
    TN_SCOPE;
    tn_backward(net_loss(m, number));
}

/* Options with every parameter in a bucket of its own. */
static inline tn_ddp_options small_buckets(void) {
    tn_ddp_options o = TN_WITH(tn_ddp, .bucket_bytes = 1);
    return o;
}

/* ---- All numbers of a kind, in order of registration ----------------------------------------- */

enum { NET_NUMBERS = 256 };
typedef struct numbers {
    float at[NET_NUMBERS];
    int count;
} numbers;

static inline void numbers_add(numbers *n, tn_tensor *t) {
    tn_copy_out(t, n->at + n->count);
    n->count += (int)tn_count(t);
}

static inline bool numbers_param(const tn_entry *entry, void *user) {
    numbers_add(user, *entry->field);
    return true;
}

/* A parameter without a gradient counts as -77. */
static inline bool numbers_grad(const tn_entry *entry, void *user) {
    TN_SCOPE;
    tn_tensor *grad = tn_grad_of(*entry->field);
    numbers_add(user, grad ? grad : tn_full(tn_shape(*entry->field), -77, TN_F32));
    return true;
}

static inline numbers params_of(void *m) {
    numbers n = {.count = 0};
    tn_module_each(m, (tn_walk){0}, numbers_param, &n);
    return n;
}

static inline numbers grads_of(void *m) {
    numbers n = {.count = 0};
    tn_module_each(m, (tn_walk){0}, numbers_grad, &n);
    return n;
}

/* Bit for bit. */
static inline bool same_numbers(const numbers *a, const numbers *b) {
    return a->count == b->count && a->count > 0 &&
           memcmp(a->at, b->at, (size_t)a->count * sizeof(float)) == 0;
}

/* Bit for bit, on all ranks. */
static inline bool same_on_ranks(tn_group *g, const numbers *n) {
    enum { MOST = 8 };
    void *all[MOST] = {NULL};
    size_t bytes[MOST];
    bool same = tn_all_gather_bytes(g, n, sizeof(*n), all, bytes) == TN_OK;
    for (int r = 0; r < tn_group_size(g) && all[r]; r++) {
        same = same && same_numbers(n, all[r]);
        tn_bytes_free(all[r]);
    }
    return same;
}

/* The gradients of one micro-batch, on one rank, of a net with this seed. */
static inline numbers grads_alone(uint64_t seed, bool use_extra, int64_t number) {
    net m;
    net_init(&m, seed);
    m.use_extra = use_extra;
    net_backward(&m, number);
    numbers n = grads_of(&m);
    tn_module_finish(&m);
    return n;
}

/* (a + b) / divide, element by element. */
static inline numbers numbers_sum(const numbers *a, const numbers *b, float divide) {
    numbers n = {.count = a->count};
    for (int i = 0; i < n.count; i++) {
        n.at[i] = (a->at[i] + b->at[i]) / divide;
    }
    return n;
}

#endif
