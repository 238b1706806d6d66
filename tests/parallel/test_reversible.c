/* Reversible pairs under data parallelism and sharding: gradients of the formula, units that are
 * the pairs' modules, around them or below. Ranks are threads. */

#include "tests/distributed/rank_check.h"

#include <math.h>
#include <stdlib.h>

enum { WIDTH = 8, PAIRS = 3, STEPS = 3, NUMBERS = 4096 };

typedef struct net {
    tn_module base;
    tn_linear *in, *out;
    tn_reversible *pairs;
    bool composed; /* by the formula */
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    x = tn_call(m->in, x);
    tn_values y = {2, {x, x}};
    for (int i = 0; m->composed && i < PAIRS; i++) {
        y.v[0] = tn_add(y.v[0], tn_call(tn_module_at(m->pairs, 2 * i), y.v[1]));
        y.v[1] = tn_add(y.v[1], tn_call(tn_module_at(m->pairs, 2 * i + 1), y.v[0]));
    }
    y = m->composed ? y : tn_call_values(m->pairs, y, NULL);
    return tn_call(m->out, tn_add(y.v[0], y.v[1]));
}

static void *part_new(void) {
    return TN_SEQUENTIAL(tn_linear_new(WIDTH, WIDTH), TN_FN(tn_gelu), tn_dropout_new(0.2));
}

static void net_init(net *m, bool composed) {
    tn_seed(9);
    tn_module_init(m, "net", net_forward);
    m->composed = composed;
    void *f[PAIRS], *g[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        f[i] = part_new();
        g[i] = part_new();
    }
    TN_OWN(m, in, tn_linear_new(4, WIDTH));
    TN_OWN(m, pairs, tn_reversible_new(f, g, PAIRS));
    TN_OWN(m, out, tn_linear_new(WIDTH, 1));
}

/* ---- A few steps ----------------------------------------------------------------------------- */

typedef enum { DDP, NAIVE, FSDP } strategy;

typedef struct run {
    bool composed, around; /* around: the pairs are inside recompute */
    strategy how;
    const char *units;
    float end[NUMBERS]; /* rank 0's parameters afterwards */
    int count;
} run;

static bool add_numbers(const tn_entry *entry, void *user) {
    run *r = user;
    tn_copy_out(*entry->field, r->end + r->count);
    r->count += (int)tn_count(*entry->field);
    return true;
}

static void attach_net(net *m, tn_group *g, const run *r) {
    tn_module_set_recompute(m->pairs, r->around);
    if (r->how == DDP) {
        tn_ddp_options o = tn_ddp_defaults();
        o.bucket_bytes = 1; /* each parameter is sent as soon as it is there */
        CHECK(tn_ddp(m, g, o) != NULL);
    } else if (r->how == NAIVE) {
        CHECK(tn_fsdp_naive(m, g) == TN_OK);
    } else {
        CHECK(tn_fsdp(m, g, NULL, TN_WITH(tn_fsdp, .units = r->units)) != NULL);
    }
}

static void trains_net(tn_group *g, void *user) {
    run *r = user;
    net m;
    net_init(&m, r->composed);
    attach_net(&m, g, r);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_generator data = {.seed = 3, .stream = (uint64_t)(step * 8 + tn_group_rank(g))};
        tn_tensor *x = tn_normal_(tn_empty(TN_DIMS(6, 4), TN_F32), 0, 1, &data);
        tn_backward(tn_mean_all(tn_square(tn_call(&m, x))));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    {
        TN_WHOLE(&m);
        if (tn_group_rank(g) == 0) { tn_module_each(&m, (tn_walk){0}, add_numbers, r); }
    }
    CHECK(tn_error() == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* Within rounding of the formula's end under data parallelism. */
static void check_end(run r, const run *want) {
    run_ok(2, trains_net, &r);
    double apart = 0, size = 0;
    assert_int_equal(r.count, want->count);
    for (int i = 0; i < r.count; i++) {
        apart += pow((double)r.end[i] - (double)want->end[i], 2);
        size += pow((double)want->end[i], 2);
    }
    assert_true(r.count > 0 && sqrt(apart / size) < 1e-6);
}

static run composed_end(void) {
    run want = {.composed = true, .how = DDP};
    run_ok(2, trains_net, &want);
    return want;
}

TEST(under_data_parallelism) {
    run want = composed_end();
    check_end((run){.how = DDP}, &want);
    check_end((run){.how = DDP, .around = true}, &want);
}

TEST(under_sharding) {
    run want = composed_end();
    static const char *const units[] = {"", "pairs", "pairs.*.f pairs.*.g", "pairs pairs.*.f"};
    for (int i = 0; i < 8; i++) {
        check_end((run){.how = FSDP, .units = units[i / 2], .around = i & 1}, &want);
    }
    check_end((run){.how = NAIVE}, &want);
}
