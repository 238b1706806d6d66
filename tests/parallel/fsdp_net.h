/* A small net for tests of sharding: blocks, each with a child, and a head; and what the tests
 * compare. */
#ifndef TERN_TESTS_PARALLEL_FSDP_NET_H
#define TERN_TESTS_PARALLEL_FSDP_NET_H

#include "tests/distributed/rank_check.h"

#include <stdlib.h>

enum { VOCAB = 11, WIDTH = 6, TOKENS = 5, MOST = 3 };

/* A block with a child that has a linear, and a net whose head is tied to the embedding. */
typedef struct layer {
    tn_module base;
    tn_linear out;
    struct {
        tn_module base;
        tn_linear in;
    } inner;
    bool skips; /* the inner part is left out */
} layer;

typedef struct net {
    tn_module base;
    tn_embedding wte;
    layer h[2];
    tn_linear head;
    tn_tensor *mean; /* a buffer, in one test */
    bool backwards;  /* h.1 before h.0 */
    bool twice;      /* all layers once more */
} net;

static inline tn_tensor *inner_forward(tn_module *self, tn_tensor *x) {
    return tn_tanh(tn_call(tn_module_child(self, "in"), x));
}

static inline tn_tensor *layer_forward(tn_module *self, tn_tensor *x) {
    layer *m = (layer *)self;
    x = m->skips ? x : tn_call(&m->inner, x);
    return tn_dropout_op(tn_call(&m->out, x), self->training ? 0.2 : 0);
}

static inline tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    x = tn_call(&m->wte, x);
    for (int i = 0; i < (m->twice ? 4 : 2); i++) {
        x = tn_call(&m->h[m->backwards ? 1 - i % 2 : i % 2], x);
    }
    return tn_call(&m->head, x);
}

static inline void layer_init(layer *m) {
    tn_module_init(m, "block", layer_forward);
    tn_module_init(&m->inner, "inner", inner_forward);
    tn_linear_init(&m->inner.in, WIDTH, WIDTH, tn_linear_defaults());
    tn_module_add(&m->inner, "in", &m->inner.in);
    tn_linear_init(&m->out, WIDTH, WIDTH, tn_linear_defaults());
    tn_module_add(m, "inner", &m->inner);
    tn_module_add(m, "out", &m->out);
}

static inline void net_init(net *m, uint64_t seed) {
    *m = (net){.backwards = false};
    tn_seed(seed);
    tn_module_init(m, "net", net_forward);
    tn_embedding_init(&m->wte, VOCAB, WIDTH, tn_embedding_defaults());
    tn_linear_init(&m->head, WIDTH, VOCAB, TN_WITH(tn_linear, .bias = false));
    tn_module_add(m, "wte", &m->wte);
    layer_init(&m->h[0]);
    layer_init(&m->h[1]);
    tn_module_add(m, "h.0", &m->h[0]);
    tn_module_add(m, "h.1", &m->h[1]);
    tn_module_add(m, "head", &m->head);
    tn_module_tie(m, "head.weight", "wte.weight");
    tn_seed(5);
}

static inline tn_tensor *net_tokens(int64_t number) {
    tn_generator g = {.seed = 3, .stream = (uint64_t)number};
    int64_t t[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        t[i] = tn_random_below(&g, VOCAB);
    }
    return TN_FROM(t, TN_DIMS(TOKENS), TN_I64);
}

static inline tn_tensor *net_loss(net *m, int64_t number) {
    return tn_cross_entropy(tn_call(m, net_tokens(2 * number)), net_tokens(2 * number + 1),
                            TN_MEAN);
}

static inline void net_backward(net *m, int64_t number) {
    TN_SCOPE;
    tn_backward(net_loss(m, number));
}

/* All parameters, gathered. */
typedef struct numbers {
    float at[512];
    int64_t count;
} numbers;

static inline bool add_numbers(const tn_entry *entry, void *user) {
    numbers *n = user;
    tn_copy_out(*entry->field, n->at + n->count);
    n->count += tn_count(*entry->field);
    return true;
}

static inline numbers numbers_of(void *m) {
    numbers n = {.count = 0};
    TN_WHOLE(m);
    tn_module_each(m, (tn_walk){0}, add_numbers, &n);
    return n;
}

static inline bool same_numbers(const numbers *a, const numbers *b) {
    return a->count == b->count && a->count > 0 &&
           memcmp(a->at, b->at, (size_t)a->count * sizeof(float)) == 0;
}

/* ---- Strategies ------------------------------------------------------------------------------ */

typedef enum strategy { DDP, NAIVE, FSDP } strategy;

typedef struct run {
    strategy how;
    tn_fsdp_options options;
    bool bf16;
    numbers *ends; /* per rank */
} run;

static inline void attach_as(net *m, tn_group *g, const run *r) {
    if (r->how == DDP) {
        CHECK(tn_ddp(m, g, TN_WITH(tn_ddp, .find_unused = r->options.find_unused)) != NULL);
    } else if (r->how == NAIVE) {
        CHECK(tn_fsdp_naive(m, g) == TN_OK);
    } else {
        CHECK(tn_fsdp(m, g, NULL, r->options) != NULL);
    }
}

#endif
