/* Data parallelism: attaching, what a step does to gradients, and what is refused. Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <unistd.h>

#include <cmocka.h>

#include "core/allocator.h"
#include "ddp_net.h"
#include "tests/support/temp.h"

/* Every parameter in a bucket of its own. */
static tn_ddp_options small_buckets(void) {
    tn_ddp_options o = tn_ddp_defaults();
    o.first_bucket = o.bucket_bytes = 1;
    return o;
}

/* ---- Attaching ---------------------------------------------------------------------------------- */

static void takes_rank_0s_state(tn_group *g, void *user) {
    net m, want;
    net_init(&m, 5 + (uint64_t)tn_group_rank(g));
    net_init(&want, 5);
    CHECK(tn_ddp(&m, g, tn_ddp_defaults()) != NULL);
    numbers a = params_of(&m), b = params_of(&want);
    CHECK(same_numbers(&a, &b));
    CHECK(tn_equal(m.mean, want.mean));
    CHECK(tn_equal(m.flags, want.flags));
    tn_module_finish(&m);
    tn_module_finish(&want);
}

static void test_all_take_rank_0s_state(void **state) {
    (void)state;
    run_ok(3, takes_rank_0s_state, NULL);
}

typedef struct difference {
    const char *what;
    bool naive;
    char says[1024]; /* rank 2's error */
} difference;

static void differs(tn_group *g, void *user) {
    difference *d = user;
    bool odd = tn_group_rank(g) == 1;
    tn_sequential m;
    tn_linear a, b;
    tn_sequential_init(&m);
    bool wide = odd && !strcmp(d->what, "shape"), narrow = odd && !strcmp(d->what, "dtype");
    tn_linear_options o = tn_linear_defaults();
    o.bias = !(odd && !strcmp(d->what, "missing"));
    o.dtype = narrow ? TN_BF16 : TN_F32;
    tn_linear_init(&a, 4, 5, tn_linear_defaults());
    tn_linear_init(&b, 5, wide ? 7 : 6, o);
    tn_sequential_add(&m, &a);
    tn_sequential_add(&m, &b);
    tn_module_requires_grad(&a, !(odd && !strcmp(d->what, "frozen")));
    tn_ddp_options options = tn_ddp_defaults();
    options.sum = odd && !strcmp(d->what, "options");
    if (d->naive && odd) {
        CHECK(tn_ddp_naive(&m, g) == TN_EMISMATCH);
    } else {
        CHECK(tn_ddp(&m, g, options) == NULL);
    }
    CHECK(tn_error() == TN_EMISMATCH);
    CHECK(strstr(tn_error_message(), "rank 0 has") && strstr(tn_error_message(), "rank 1 has"));
    if (tn_group_rank(g) == 2) {
        snprintf(d->says, sizeof(d->says), "%s", tn_error_message());
    }
    tn_error_clear();
    CHECK(tn_barrier(g) == TN_OK); /* all ranks know, so the group lives */
    tn_module_finish(&m);
}

static void test_a_difference_is_named(void **state) {
    (void)state;
    static const struct {
        difference d;
        const char *says[2];
    } cases[] = {
        {{.what = "shape"}, {"rank 0 has parameter 1.weight f32 [6, 5], but", "1.weight f32 [7, 5]"}},
        {{.what = "dtype"}, {"parameter 1.weight f32 [6, 5]", "parameter 1.weight bf16 [6, 5]"}},
        {{.what = "missing"}, {"rank 0 has parameter 1.bias f32 [6]", "rank 1 has nothing more"}},
        {{.what = "frozen"}, {"0.weight f32 [5, 4],", "0.weight f32 [5, 4], frozen"}},
        {{.what = "options"}, {"sum 0", "sum 1"}},
        {{.what = "", .naive = true}, {"options bucket_bytes", "options of ddp_naive"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        difference d = cases[i].d;
        run_ok(3, differs, &d);
        assert_has(d.says, cases[i].says[0]);
        assert_has(d.says, cases[i].says[1]);
    }
}

static int told; /* ranks that have heard of rank 1's error */

/* The rank that failed stays until the others know: it is not its leaving that tells them. */
static void stay_until_told(tn_group *g) {
    if (tn_group_rank(g) != 1) {
        __atomic_fetch_add(&told, 1, __ATOMIC_RELEASE);
        return;
    }
    int others = tn_group_size(g) - 1;
    for (int i = 0; i < 1000 && __atomic_load_n(&told, __ATOMIC_ACQUIRE) < others; i++) {
        usleep(10000);
    }
    CHECK(__atomic_load_n(&told, __ATOMIC_ACQUIRE) == others);
}

/* Rank 1 cannot attach: it has an error already, or finds one that the others do not have. */
static void cannot_attach(tn_group *g, void *user) {
    const char *why = user;
    bool mine = tn_group_rank(g) == 1, naive = strstr(why, "naive");
    tn_ddp_options o = tn_ddp_defaults();
    net m;
    net_init(&m, 1);
    if (mine && strstr(why, "pending")) {
        tn_raise(TN_EVALUE, "of old");
    } else if (mine && strstr(why, "options")) {
        o.bucket_bytes = 0;
    }
    void *module = mine && strstr(why, "module") ? NULL : &m;
    CHECK(naive ? tn_ddp_naive(module, g) != TN_OK : !tn_ddp(module, g, o));
    CHECK(tn_error() == (mine ? TN_EVALUE : TN_EPEER));
    CHECK(mine || strstr(tn_error_message(), "rank 1 gave up"));
    stay_until_told(g);
    tn_module_finish(&m);
}

static void test_who_cannot_attach_tells_the_others(void **state) {
    (void)state;
    static const char *const why[] = {"pending", "options", "module", "naive, pending",
                                      "naive, module"};
    for (int i = 0; i < 5; i++) {
        char text[32];
        snprintf(text, sizeof(text), "%s", why[i]);
        told = 0;
        run_failing(3, cannot_attach, text, TN_EVALUE);
    }
}

static void assert_refused(void *m, tn_group *g, tn_ddp_options o, tn_status status,
                           const char *says) {
    assert_null(tn_ddp(m, g, o));
    assert_int_equal(tn_error(), status);
    assert_has(tn_error_message(), says);
    tn_error_clear();
}

static void test_what_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_ddp_options o = tn_ddp_defaults(), zero = o;
    zero.bucket_bytes = 0;
    net m;
    net_init(&m, 1);
    assert_refused(NULL, NULL, o, TN_EVALUE, "the module is NULL");
    assert_refused(&m, NULL, zero, TN_EVALUE, "at least 1");
    assert_non_null(tn_ddp(&m.in, NULL, o));
    assert_refused(&m, NULL, o, TN_ESTATE, "linear in is under data parallelism already");
    assert_refused(&m.in, NULL, o, TN_ESTATE, "already");
    assert_int_equal(tn_ddp_naive(&m, NULL), TN_ESTATE);
    tn_error_clear();
    tn_module_finish(&m);

    net_init(&m, 1);
    assert_int_equal(tn_ddp_naive(&m, NULL), TN_OK);
    assert_refused(&m.in, NULL, o, TN_ESTATE, "net is under data parallelism already");
    tn_module_finish(&m);
    assert_refused(&m, NULL, o, TN_ESTATE, "finished");

    net_init(&m, 1);
    assert_int_equal(tn_module_set_slice(&m.base, "in.weight", TN_DIMS(100, NET_IN), 0, 60), TN_OK);
    assert_refused(&m, NULL, o, TN_ESTATE, "in.weight is sharded: here is [10, 6] of [100, 6]");
    tn_module_finish(&m);

    net_init(&m, 1);
    tn_optim *opt = tn_sgd(&m.in, tn_sgd_defaults());
    assert_refused(&m, NULL, o, TN_ESTATE, "linear in is held by an optimiser");
    assert_int_equal(tn_ddp_naive(&m, NULL), TN_ESTATE);
    tn_error_clear();
    tn_optim_free(opt);
    assert_non_null(tn_ddp(&m, NULL, o));
    opt = tn_sgd(&m, tn_sgd_defaults());
    tn_optim_free(opt);
    tn_module_finish(&m);

    assert_null(tn_no_sync_begin(NULL));
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
    tn_no_sync_end(NULL);
    assert_int_equal(tn_ddp_join(NULL, NULL), TN_EVALUE);
    tn_error_clear();
    assert_int_equal(tn_ddp_statistics(NULL).buckets, 0);
}

/* ---- Steps -------------------------------------------------------------------------------------- */

static void averages(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, *o);
    for (int step = 0; step < 3; step++) {
        tn_module_zero_grad(&m);
        net_backward(&m, 2 * step + rank);
        numbers a = grads_alone(1, true, 2 * step), b = grads_alone(1, true, 2 * step + 1);
        numbers want = numbers_sum(&a, &b, o->sum ? 1 : 2), is = grads_of(&m);
        CHECK(same_numbers(&is, &want));
    }
    tn_ddp_stats stats = tn_ddp_statistics(ddp);
    CHECK(stats.steps == 3);
    CHECK(stats.buckets == (o->bucket_bytes == 1 ? 6 : 1));
    CHECK(stats.bytes >= 213 * 4 && stats.bytes <= (213 + 6 * 16) * 4);
    CHECK(stats.traffic > 0 && stats.waiting >= 0);
    CHECK(tn_error() == TN_OK);
    tn_module_finish(&m);
}

static void test_gradients_are_averaged_or_summed(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        tn_ddp_options o = i & 1 ? small_buckets() : tn_ddp_defaults();
        o.sum = i & 2;
        o.overlap = i & 4;
        run_ok(2, averages, &o);
    }
}

/* The module is a part of another one, which runs again in backward. */
static void inside_recompute(tn_group *g, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(g);
    net m, alone[2];
    tn_sequential outer;
    net_init(&m, 1);
    tn_sequential_init(&outer);
    tn_sequential_add(&outer, &m);
    tn_module_set_recompute(&outer, true);
    tn_ddp_state *ddp = tn_ddp(&m, g, small_buckets());
    tn_fill_(m.mean, rank);
    for (int step = 0; step < 2; step++) {
        tn_module_zero_grad(&m);
        tn_backward(tn_sum_all(tn_call(&outer, tn_full(TN_DIMS(3, NET_IN), rank + 1, TN_F32))));
    }
    CHECK(tn_at(m.mean, (int64_t[]){0}) == 0); /* buffers came, although nothing seemed recorded */
    CHECK(tn_ddp_statistics(ddp).steps == 2);
    CHECK(tn_default_generator()->stream == (uint64_t)(2 * 2 + rank + 1));
    numbers own[2];
    for (int r = 0; r < 2; r++) {
        net_init(&alone[r], 1);
        tn_backward(tn_sum_all(tn_call(&alone[r], tn_full(TN_DIMS(3, NET_IN), r + 1, TN_F32))));
        own[r] = grads_of(&alone[r]);
        tn_module_finish(&alone[r]);
    }
    numbers want = numbers_sum(&own[0], &own[1], 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&outer);
}

typedef struct dropping {
    tn_module base;
    tn_linear linear;
    tn_dropout drop;
} dropping;

static tn_tensor *dropping_forward(tn_module *self, tn_tensor *x) {
    dropping *m = (dropping *)self;
    return tn_call(&m->drop, tn_call(&m->linear, x));
}

/* The generator is keyed inside of what runs again: dropout must leave out the same both times. */
static void drops_inside_recompute(tn_group *g, void *user) {
    enum { WIDTH = 32 };
    TN_SCOPE;
    dropping m;
    tn_sequential outer;
    tn_module_init(&m.base, "dropping", dropping_forward);
    tn_linear_init(&m.linear, 4, WIDTH, tn_linear_defaults());
    tn_dropout_init(&m.drop, 0.5);
    tn_module_add(&m.base, "linear", &m.linear);
    tn_module_add(&m.base, "drop", &m.drop);
    tn_sequential_init(&outer);
    tn_sequential_add(&outer, &m);
    tn_module_set_recompute(&outer, true);
    if (user) {
        CHECK(tn_ddp_naive(&m, g) == TN_OK);
    } else {
        CHECK(tn_ddp(&m, g, tn_ddp_defaults()) != NULL);
    }
    tn_seed(7); /* on the stream of no round: the forward keys it */
    tn_tensor *y = tn_call(&outer, tn_ones(TN_DIMS(1, 4), TN_F32)),
              *kept = tn_zeros(TN_DIMS(WIDTH), TN_F32);
    for (int64_t i = 0; i < WIDTH; i++) {
        ((float *)tn_data_mut(kept))[i] = tn_at(y, (int64_t[]){0, i}) != 0 ? 2 : 0;
    }
    tn_work_wait(tn_all_reduce(g, kept, TN_REDUCE_MEAN), 0);
    tn_backward(tn_sum_all(y));
    CHECK(tn_equal(kept, tn_grad_of(m.linear.bias)));
    tn_module_finish(&outer);
}

static void test_a_part_of_a_recomputed_module(void **state) {
    (void)state;
    run_ok(2, inside_recompute, NULL);
    run_ok(2, drops_inside_recompute, NULL);
    run_ok(2, drops_inside_recompute, "naive");
}

static void accumulates(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp_options o = tn_ddp_defaults();
    o.sum = true;
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    numbers mine[2];
    for (int r = 0; r < 2; r++) {
        numbers a = grads_alone(1, true, r), b = grads_alone(1, true, r + 2);
        mine[r] = numbers_sum(&a, &b, 1);
    }
    for (int step = 0; step < 2; step++) { /* the second time with buckets laid out again */
        tn_module_zero_grad(&m);
        {
            TN_NO_SYNC(ddp);
            net_backward(&m, rank);
            numbers is = grads_of(&m), own = grads_alone(1, true, rank);
            CHECK(same_numbers(&is, &own)); /* nothing has travelled */
            CHECK(tn_ddp_statistics(ddp).steps == step);
        }
        net_backward(&m, rank + 2);
        numbers want = numbers_sum(&mine[0], &mine[1], 1), is = grads_of(&m);
        CHECK(same_numbers(&is, &want));
    }
    tn_module_finish(&m);
}

static void test_no_sync_accumulates(void **state) {
    (void)state;
    run_ok(2, accumulates, NULL);
}

/* Averages may be added to; sums may not. */
static void adds_to_averages(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, tn_ddp_defaults());
    net_backward(&m, rank);
    numbers first = grads_of(&m);
    net_backward(&m, 2 + rank);
    numbers a = grads_alone(1, true, 2), b = grads_alone(1, true, 3);
    a = numbers_sum(&first, &a, 1);
    b = numbers_sum(&first, &b, 1);
    numbers want = numbers_sum(&a, &b, 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

static void adds_to_sums(tn_group *g, void *user) {
    bool no_sync = user != NULL;
    net m;
    net_init(&m, 1);
    tn_ddp_options o = tn_ddp_defaults();
    o.sum = true;
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    net_backward(&m, tn_group_rank(g));
    CHECK(tn_error() == TN_OK);
    if (no_sync) {
        TN_NO_SYNC(ddp);
        net_backward(&m, 2);
    } else {
        net_backward(&m, 2);
    }
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    tn_module_finish(&m);
}

static void test_a_second_backward_without_zeroing(void **state) {
    (void)state;
    run_ok(2, adds_to_averages, NULL);
    assert_has(run_failing(2, adds_to_sums, NULL, TN_ESTATE), "summed over the ranks already");
    assert_has(run_failing(2, adds_to_sums, "", TN_ESTATE), "TN_NO_SYNC");
}

static void buffers(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    float rank = (float)tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, *o);
    tn_fill_(m.mean, rank + 10);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        net_loss(&m, 0);
    }
    CHECK(tn_at(m.mean, (int64_t[]){0}) == rank + 10); /* nothing is recorded: they stay */
    if (rank == 1) {
        TN_NO_SYNC(ddp);
        net_backward(&m, 0);
    }
    CHECK(tn_at(m.mean, (int64_t[]){0}) == rank + 10);
    net_backward(&m, 0);
    CHECK(tn_at(m.mean, (int64_t[]){0}) == (o->broadcast_buffers ? 10 : rank + 10));
    tn_fill_(m.mean, rank + 20);
    tn_module_train(&m, false);
    net_backward(&m, 0);
    CHECK(tn_at(m.mean, (int64_t[]){0}) == rank + 20);
    tn_module_finish(&m);
}

typedef struct scaled {
    tn_module base;
    tn_linear linear;
    tn_tensor *scale; /* buffer that backward needs */
} scaled;

static tn_tensor *scaled_forward(tn_module *self, tn_tensor *x) {
    scaled *m = (scaled *)self;
    return tn_mul(tn_call(&m->linear, x), m->scale);
}

/* Two forwards and one backward, as a discriminator has them. */
static void saves_buffers(tn_group *g, void *user) {
    scaled m;
    tn_module_init(&m.base, "scaled", scaled_forward);
    tn_linear_init(&m.linear, 4, 3, tn_linear_defaults());
    tn_module_add(&m.base, "linear", &m.linear);
    tn_module_buffer(&m.base, "scale", &m.scale, tn_ones(TN_DIMS(3), TN_F32));
    if (user) {
        CHECK(tn_ddp_naive(&m, g) == TN_OK);
    } else {
        CHECK(tn_ddp(&m, g, tn_ddp_defaults()) != NULL);
    }
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        tn_module_zero_grad(&m);
        tn_fill_(m.scale, 10 * step + 2 + tn_group_rank(g));
        tn_tensor *x = tn_ones(TN_DIMS(2, 4), TN_F32), *real = tn_call(&m, x);
        CHECK(tn_backward(tn_sum_all(tn_add(real, tn_call(&m, x)))) == TN_OK);
        CHECK(tn_at(tn_grad_of(m.linear.bias), (int64_t[]){0}) == 4 * (10 * step + 2));
    }
    tn_module_finish(&m);
}

static void test_two_forwards_and_one_backward(void **state) {
    (void)state;
    run_ok(2, saves_buffers, NULL);
    run_ok(2, saves_buffers, "naive");
}

static void test_buffers_come_from_rank_0(void **state) {
    (void)state;
    tn_ddp_options o = tn_ddp_defaults();
    run_ok(3, buffers, &o);
    o.broadcast_buffers = false;
    run_ok(3, buffers, &o);
}

/* ---- Unused and frozen parameters --------------------------------------------------------------- */

static void leaves_out(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    m.use_extra = tn_group_rank(g) != 1;
    tn_ddp(&m, g, small_buckets());
    net_backward(&m, 0);
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_ESTATE : TN_EPEER));
    CHECK(strstr(tn_error_message(), "extra.weight, extra.bias"));
    CHECK(strstr(tn_error_message(), "find_unused"));
    tn_module_finish(&m);
}

static void test_unused_parameters_are_named(void **state) {
    (void)state;
    double begin = tn_flight_now();
    const char *text = run_failing(3, leaves_out, NULL, TN_ESTATE);
    assert_has(text, "backward did not reach 2 of 6 parameters: extra.weight, extra.bias");
    assert_true(tn_flight_now() - begin < 30); /* at once: not when the time of 600 s is out */
}

static void finds_unused(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, *o);
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, false, 1),
            none = grads_alone(1, false, 0);
    for (int i = 0; i < b.count; i++) {
        b.at[i] = b.at[i] == -77 ? 0 : b.at[i];
    }
    for (int step = 0; step < 2; step++) {
        tn_module_zero_grad(&m);
        m.use_extra = rank == 0;
        net_backward(&m, rank);
        numbers want = numbers_sum(&a, &b, 2), is = grads_of(&m);
        CHECK(same_numbers(&is, &want));

        tn_module_zero_grad(&m);
        m.use_extra = false; /* on no rank */
        net_backward(&m, rank);
        numbers want_none = numbers_sum(&none, &b, 2);
        is = grads_of(&m);
        CHECK(tn_grad_of(m.extra.weight) == NULL && tn_grad_of(m.extra.bias) == NULL);
        CHECK(memcmp(is.at, want_none.at, (33 + 70) * sizeof(float)) == 0);
    }
    CHECK(tn_error() == TN_OK);
    tn_module_finish(&m);
}

/* A sum that nobody adds to is not taken again. */
static void keeps_unused_sums(tn_group *g, void *user) {
    tn_ddp_options o = tn_ddp_defaults();
    o.find_unused = o.sum = true;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, tn_group_rank(g));
    numbers first = grads_of(&m);
    tn_module_zero_grad(&m.in);
    tn_module_zero_grad(&m.out);
    m.use_extra = false;
    net_backward(&m, tn_group_rank(g));
    numbers second = grads_of(&m);
    CHECK(memcmp(first.at + 33 + 70, second.at + 33 + 70, 110 * sizeof(float)) == 0);
    CHECK(first.at[0] != second.at[0]);
    CHECK(tn_error() == TN_OK);
    tn_module_finish(&m);
}

typedef struct skipping {
    tn_module base;
    tn_linear linear;
    bool skip;
} skipping;

static tn_tensor *skipping_forward(tn_module *self, tn_tensor *x) {
    skipping *m = (skipping *)self;
    return m->skip ? tn_square(x) : tn_call(&m->linear, x);
}

/* Rank 1 uses the module's output, but none of its parameters. */
static void skips_all(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    TN_SCOPE;
    skipping m = {.skip = tn_group_rank(g) == 1};
    tn_module_init(&m.base, "skipping", skipping_forward);
    tn_linear_init(&m.linear, 4, 4, tn_linear_defaults());
    tn_module_add(&m.base, "linear", &m.linear);
    tn_ddp_state *ddp = tn_ddp(&m, g, *o);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 4), TN_F32), true), *grad;
    tn_tensor *y = tn_sum_all(tn_call(&m, x));
    CHECK(tn_grad(&y, NULL, 1, &x, 1, &grad, (tn_grad_options){.retain_graph = true}) == TN_OK);
    CHECK(tn_ddp_statistics(ddp).steps == 0); /* nothing of a parameter was asked for */
    tn_backward(y);
    if (o->find_unused) {
        CHECK(tn_error() == TN_OK && tn_ddp_statistics(ddp).steps == 1);
        CHECK(tn_at(tn_grad_of(m.linear.bias), (int64_t[]){1}) == 1); /* 2 and none */
    } else {
        CHECK(tn_error() == (m.skip ? TN_ESTATE : TN_EPEER));
        CHECK(strstr(tn_error_message(), "did not reach 2 of 2 parameters"));
        stay_until_told(g);
    }
    tn_module_finish(&m);
}

static void test_a_rank_that_uses_no_parameter(void **state) {
    (void)state;
    tn_ddp_options o = tn_ddp_defaults();
    told = 0;
    run_failing(2, skips_all, &o, TN_ESTATE);
    o.find_unused = true;
    run_ok(2, skips_all, &o);
}

static void test_unused_parameters_are_found(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        tn_ddp_options o = i ? small_buckets() : tn_ddp_defaults();
        o.find_unused = true;
        run_ok(2, finds_unused, &o);
    }
    run_ok(2, keeps_unused_sums, NULL);
}

static void checks_frozen(net *m, int rank, const numbers *before, float divide) {
    tn_zero_grad(m->in.weight);
    tn_zero_grad(m->in.bias);
    tn_module_requires_grad(&m->out, false);
    tn_module_requires_grad(&m->extra, false);
    net_backward(m, rank);
    tn_module_requires_grad(m, true);
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, true, 1);
    numbers want = numbers_sum(&a, &b, divide);
    memcpy(want.at, before->at, 33 * sizeof(float)); /* out, then in, then extra */
    memcpy(want.at + 33 + 70, before->at + 33 + 70, 110 * sizeof(float));
    numbers is = grads_of(m);
    CHECK(same_numbers(&is, &want));
}

/* Parameters that are frozen in a step keep the gradient they had, also in a sum. */
static void freezes(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, *o);
    for (int step = 0; step < 2; step++) {
        tn_module_requires_grad(&m, true);
        tn_module_zero_grad(&m);
        net_backward(&m, 5 + rank);
        numbers all = grads_of(&m);
        checks_frozen(&m, rank, &all, 1);
    }
    tn_module_requires_grad(&m, false);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, NET_IN), TN_F32), true);
    if (rank == 0) { /* a backward without parameters is this rank's alone */
        CHECK(tn_backward(tn_sum_all(tn_call(&m, x))) == TN_OK);
    } else {
        tn_call(&m, x);
    }
    CHECK(tn_grad_of(x) || rank != 0);
    tn_module_finish(&m);
}

/* What a rank accumulated for itself before it froze a module stays its own. */
static void freezes_own(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, tn_ddp_defaults());
    {
        TN_NO_SYNC(ddp);
        net_backward(&m, rank);
    }
    numbers own = grads_of(&m);
    checks_frozen(&m, rank, &own, 2);
    net_backward(&m, rank); /* now it travels */
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, true, 1), is = grads_of(&m);
    CHECK(is.at[0] == (2 * a.at[0] + 2 * b.at[0]) / 2);
    tn_module_finish(&m);
}

/* Frozen when it was attached, trained later. */
static void thaws(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.extra, false);
    tn_ddp_options o = small_buckets();
    o.rebuild = user != NULL;
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    net_backward(&m, rank);
    CHECK(tn_ddp_statistics(ddp).buckets == 4);
    tn_module_requires_grad(&m.extra, true);
    {
        TN_NO_SYNC(ddp);
        net_backward(&m, 4 + rank); /* on top of averages; extra is not in a bucket yet */
    }
    net_backward(&m, 8 + rank);
    CHECK(tn_ddp_statistics(ddp).buckets == 6);
    numbers ranks[2];
    for (int r = 0; r < 2; r++) {
        numbers first = grads_alone(1, true, 0), other = grads_alone(1, true, 1);
        numbers sum = numbers_sum(&first, &other, 2), next = grads_alone(1, true, 4 + r);
        memset(sum.at + 33 + 70, 0, 110 * sizeof(float));
        numbers last = grads_alone(1, true, 8 + r), two = numbers_sum(&sum, &next, 1);
        ranks[r] = numbers_sum(&two, &last, 1);
    }
    numbers want = numbers_sum(&ranks[0], &ranks[1], 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

/* Thawed, and no synchronised forward since: its gradient would stay this rank's own. */
static void thaws_too_late(tn_group *g, void *user) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.extra, false);
    tn_ddp_options o = tn_ddp_defaults();
    o.join = user != NULL;
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    tn_module_requires_grad(&m.extra, true);
    tn_tensor *loss;
    {
        TN_NO_SYNC(ddp);
        loss = net_loss(&m, 0);
    }
    tn_backward(loss);
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    CHECK(strstr(tn_error_message(), "extra.weight has a gradient but no bucket"));
    tn_module_finish(&m);
}

static void test_thawed_too_late(void **state) {
    (void)state;
    run_failing(2, thaws_too_late, NULL, TN_ESTATE);
    run_failing(2, thaws_too_late, "join", TN_ESTATE);
}

static void test_frozen_parameters(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        tn_ddp_options o = i & 1 ? small_buckets() : tn_ddp_defaults();
        o.sum = true;
        o.find_unused = i & 2;
        run_ok(2, freezes, &o);
    }
    run_ok(2, freezes_own, NULL);
    run_ok(2, thaws, NULL);
    run_ok(2, thaws, "");
}

/* ---- Buckets ------------------------------------------------------------------------------------ */

enum { SENT = 64 };
typedef struct sent {
    int64_t counts[SENT];
    int n, seen;
} sent;

static tn_work *note_bucket(tn_group *g, tn_tensor *bucket, tn_reduce how, void *user) {
    sent *s = user;
    if (s->n < SENT) {
        s->counts[s->n++] = tn_count(bucket);
    }
    return tn_all_reduce(g, bucket, how);
}

static tn_tensor *note_progress(tn_tensor *grad, void *user) {
    (void)grad;
    sent *s = user;
    s->seen = s->n;
    return NULL;
}

static void checks_order(tn_group *g, tn_ddp_options o) {
    sent s = {.n = 0};
    o.hook = note_bucket;
    o.hook_user = &s;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    /* extra.bias, extra.weight, in.bias, in.weight, out.bias, out.weight; padded to 64 bytes */
    static const int64_t registered[] = {16, 112, 16, 64, 16, 32};
    net_backward(&m, 0);
    CHECK(s.n == 6 && memcmp(s.counts, registered, sizeof(registered)) == 0);
    s.n = 0;
    numbers before = grads_of(&m);
    TN_SCOPE;
    tn_tensor *loss = net_loss(&m, 0); /* lays out again, and keeps what is there */
    numbers after = grads_of(&m);
    CHECK(same_numbers(&before, &after));
    tn_backward(loss);
    CHECK(s.n == 6);
    if (o.rebuild) { /* out, extra, in */
        CHECK(s.counts[0] + s.counts[1] == 48 && s.counts[2] + s.counts[3] == 128);
    } else {
        CHECK(memcmp(s.counts, registered, sizeof(registered)) == 0);
    }
    tn_module_finish(&m);
}

static void rebuilds(tn_group *g, void *user) {
    tn_ddp_options o = small_buckets();
    checks_order(g, o);
    o.rebuild = false;
    checks_order(g, o);
}

static void overlaps(tn_group *g, void *user) {
    sent s = {.n = 0};
    tn_ddp_options o = small_buckets();
    o.hook = note_bucket;
    o.hook_user = &s;
    o.overlap = user != NULL;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, 0);
    tn_module_zero_grad(&m);
    s.n = 0;
    tn_on_grad(m.in.weight, note_progress, &s); /* among the last */
    net_backward(&m, 0);
    CHECK(o.overlap ? s.seen >= 4 : s.seen == 0);
    CHECK(s.n == 6);
    tn_module_finish(&m);
}

static void test_buckets_follow_readiness(void **state) {
    (void)state;
    run_ok(2, rebuilds, NULL);
    run_ok(2, overlaps, "");
    run_ok(2, overlaps, NULL);
}

/* Gradients of two dtypes; bf16 parameters whose gradients are f32. */
static void mixes_dtypes(tn_group *g, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(g);
    tn_linear_options o = tn_linear_defaults();
    tn_linear m, alone[2];
    o.dtype = TN_BF16;
    tn_seed(9);
    tn_linear_init(&m, 4, 4, o);
    CHECK(tn_set_grad_dtype(m.weight, TN_F32) == TN_OK);
    tn_ddp_state *ddp = tn_ddp(&m, g, tn_ddp_defaults());
    CHECK(tn_ddp_statistics(ddp).buckets == 2);
    for (int r = 0; r < 2; r++) {
        tn_seed(9);
        tn_linear_init(&alone[r], 4, 4, o);
        tn_set_grad_dtype(alone[r].weight, TN_F32);
        tn_backward(tn_sum_all(tn_square(tn_call(&alone[r], tn_full(TN_DIMS(3, 4), r + 1, TN_BF16)))));
    }
    tn_backward(tn_sum_all(tn_square(tn_call(&m, tn_full(TN_DIMS(3, 4), rank + 1, TN_BF16)))));
    tn_tensor *weight =
        tn_mul_scalar(tn_add(tn_grad_of(alone[0].weight), tn_grad_of(alone[1].weight)), 0.5);
    tn_tensor *bias = tn_cast(tn_mul_scalar(tn_add(tn_cast(tn_grad_of(alone[0].bias), TN_F32),
                                                   tn_cast(tn_grad_of(alone[1].bias), TN_F32)),
                                            0.5),
                              TN_BF16);
    CHECK(tn_dtype_of(tn_grad_of(m.weight)) == TN_F32);
    CHECK(tn_equal(tn_grad_of(m.weight), weight));
    CHECK(tn_equal(tn_grad_of(m.bias), bias));
    tn_module_finish(&m);
    tn_module_finish(&alone[0]);
    tn_module_finish(&alone[1]);
}

static void compresses(tn_group *g, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(g), ranks = tn_group_size(g);
    tn_ddp_options o = small_buckets();
    o.hook = tn_ddp_bf16;
    o.sum = user != NULL;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, rank);
    numbers want = {.count = 0};
    for (int r = 0; r < ranks; r++) {
        numbers mine = grads_alone(1, true, r);
        want.count = mine.count;
        for (int i = 0; i < mine.count; i++) {
            want.at[i] += tn_bf16_to_float(tn_bf16_from_float(mine.at[i]));
        }
    }
    for (int i = 0; i < want.count; i++) {
        float sum = o.sum ? want.at[i] : want.at[i] / (float)ranks;
        want.at[i] = tn_bf16_to_float(tn_bf16_from_float(sum));
    }
    numbers is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

static void test_dtypes(void **state) {
    (void)state;
    run_ok(2, mixes_dtypes, NULL);
    run_ok(2, compresses, NULL);
    run_ok(4, compresses, "");
}

/* ---- Random numbers ----------------------------------------------------------------------------- */

static void keys(tn_group *g, void *user) {
    uint64_t rank = (uint64_t)tn_group_rank(g), ranks = (uint64_t)tn_group_size(g);
    tn_generator *generator = tn_default_generator();
    tn_seed(77);
    generator->call = 13;
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, tn_ddp_defaults());
    CHECK(generator->stream == rank + 1 && generator->call == 0 && generator->seed == 77);
    generator->call = 5;
    net_backward(&m, 0);
    CHECK(generator->stream == ranks + rank + 1 && generator->call == 0);
    {
        TN_NO_SYNC(ddp);
        net_backward(&m, 0); /* a micro-batch all the same */
    }
    CHECK(generator->stream == 2 * ranks + rank + 1);
    generator->stream = 5 * ranks + 1; /* rank 0's, from a checkpoint */
    generator->call = 3;
    {
        TN_SCOPE;
        net_loss(&m, 0);
        CHECK(generator->stream == 5 * ranks + rank + 1 && generator->call == 3);
        net_loss(&m, 0);
        CHECK(generator->stream == 5 * ranks + rank + 1);
        TN_NO_GRAD;
        generator->stream = 0;
        net_loss(&m, 0);
        CHECK(generator->stream == 0);
    }
    tn_module_finish(&m);
}

static void test_random_numbers_are_the_micro_batchs(void **state) {
    (void)state;
    run_ok(1, keys, NULL);
    run_ok(3, keys, NULL);
}

/* ---- Errors in the middle ----------------------------------------------------------------------- */

static tn_tensor *fail_here(tn_tensor *grad, void *user) {
    (void)grad;
    (void)user;
    tn_raise(TN_EVALUE, "a hook does not like this gradient");
    return NULL;
}

/* Rank 1 fails before its first bucket, between buckets, or at the module's output. */
static void fails_in_backward(tn_group *g, void *user) {
    const char *where = user;
    bool naive = !strcmp(where, "naive");
    net m;
    net_init(&m, 1);
    if (naive) {
        tn_ddp_naive(&m, g);
    } else {
        tn_ddp(&m, g, small_buckets());
    }
    net_backward(&m, 0);
    CHECK(tn_error() == TN_OK);
    tn_module_zero_grad(&m);
    if (tn_group_rank(g) == 1 && strcmp(where, "output")) {
        tn_on_grad(!strcmp(where, "first") ? m.out.weight : m.in.weight, fail_here, NULL);
    }
    {
        TN_SCOPE;
        tn_tensor *y = tn_call(&m, tn_ones(TN_DIMS(2, NET_IN), TN_F32));
        if (tn_group_rank(g) == 1 && !strcmp(where, "output")) {
            tn_on_grad(m.in.weight, fail_here, NULL);
            tn_on_grad(m.out.weight, fail_here, NULL);
        }
        tn_backward(tn_sum_all(y));
    }
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_EVALUE : TN_EPEER));
    CHECK(strstr(tn_error_message(), "does not like"));
    CHECK(tn_group_rank(g) == 1 || strstr(tn_error_message(), "rank 1 gave up"));
    CHECK(!strstr(tn_error_message(), "tn_ddp_join")); /* it is clear what happened */
    stay_until_told(g);
    tn_module_finish(&m);
}

static void test_an_error_in_backward_reaches_all(void **state) {
    (void)state;
    static const char *const where[] = {"first", "middle", "output", "naive"};
    for (int i = 0; i < 4; i++) {
        char text[16];
        snprintf(text, sizeof(text), "%s", where[i]);
        told = 0;
        run_failing(3, fails_in_backward, text, TN_EVALUE);
    }
}

/* The error of rank 1 comes at the module's output, before any parameter, and is cleared: its next
 * step must not meet the others' last. */
static tn_values output_fails(tn_module *m, tn_values in, tn_values out, void *user) {
    (void)m;
    (void)in;
    tn_on_grad(out.v[0], fail_here, user);
    return out;
}

static void goes_on_after_an_error(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    bool mine = tn_group_rank(g) == 1;
    if (mine) {
        tn_module_hook(&m, (tn_module_hooks){.after = output_fails});
    }
    tn_ddp(&m, g, tn_ddp_defaults());
    net_backward(&m, 0);
    if (mine) {
        CHECK(tn_error() == TN_EVALUE);
        tn_error_clear();
        net_backward(&m, 1);
    }
    CHECK(tn_error() == TN_EPEER);
    tn_module_finish(&m);
}

static void test_a_cleared_error_does_not_shift_steps(void **state) {
    (void)state;
    run_failing(2, goes_on_after_an_error, NULL, TN_EPEER);
}

static void test_a_buffer_that_was_exchanged(void **state) {
    (void)state;
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, NULL, tn_ddp_defaults());
    tn_set_grad_buffer(m.in.bias, tn_zeros(TN_DIMS(NET_HIDDEN), TN_F32));
    net_backward(&m, 0);
    assert_int_equal(tn_error(), TN_ESTATE);
    assert_has(tn_error_message(), "the gradient buffer of in.bias was exchanged");
    tn_error_clear();
    tn_module_finish(&m);
}

/* ---- The end ------------------------------------------------------------------------------------ */

static void keeps_its_module(tn_group *g, void *user) {
    net *m = (net *)user + tn_group_rank(g);
    net_init(m, 1);
    tn_ddp(m, g, tn_ddp_defaults());
    net_backward(m, 0);
    CHECK(tn_error() == TN_OK);
}

/* The group is gone first. Gradients live as long as somebody holds them. */
static void test_the_group_may_go_first(void **state) {
    (void)state;
    TN_SCOPE;
    net m[2];
    run_ok(2, keeps_its_module, m);
    tn_tensor *held = tn_keep(tn_grad_of(m[0].in.weight)), *leaf = tn_keep(m[1].in.weight);
    tn_module_finish(&m[0]);
    tn_module_finish(&m[1]);
    assert_true(tn_at(held, (int64_t[]){0, 0}) == tn_at(held, (int64_t[]){0, 0}));
    tn_backward(tn_sum_all(leaf)); /* the leaf's hooks are gone with the module */
    assert_int_equal(tn_error(), TN_OK);
    tn_release(held);
    tn_release(leaf);
}

static void finish_module(tn_tensor *leaf, void *user) {
    (void)leaf;
    tn_module_finish(user);
}

static void test_a_module_may_end_in_its_backward(void **state) {
    (void)state;
    for (int naive = 0; naive < 2; naive++) {
        TN_SCOPE;
        net m;
        net_init(&m, 1);
        if (naive) {
            tn_ddp_naive(&m, NULL);
        } else {
            tn_ddp(&m, NULL, small_buckets());
        }
        tn_on_accumulated(m.out.bias, finish_module, &m);
        net_backward(&m, 0);
        tn_error_clear();
        tn_module_finish(&m);
    }
}

static void attach_and_step(net *m) {
    tn_ddp_options o = small_buckets();
    o.join = o.find_unused = true;
    if (tn_ddp(m, NULL, o)) {
        net_backward(m, 0);
        net_backward(m, 1);
    }
}

static void test_out_of_memory_anywhere(void **state) {
    (void)state;
    bool failed = true;
    for (int64_t n = 0; failed; n++) {
        TN_SCOPE;
        net m;
        net_init(&m, 1);
        tn__alloc_fail_at(n);
        attach_and_step(&m);
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_int_equal(tn_error(), failed ? TN_ENOMEM : TN_OK);
        tn_error_clear();
        tn_module_finish(&m);
        assert_true(n < 20000);
    }
}

/* What the flight recorder writes about failures goes with the test. */
static int divert_flights(void **state) {
    (void)state;
    temp_path("");
    return setenv("TERN_FLIGHT_DIR", temp_folder, 1);
}

int main(void) {
    tn_set_threads(1);
    live_before = tn_live_tensors();
#define TEST(name) cmocka_unit_test_teardown(name, no_leak)
    const struct CMUnitTest tests[] = {
        TEST(test_all_take_rank_0s_state),
        TEST(test_a_difference_is_named),
        TEST(test_who_cannot_attach_tells_the_others),
        TEST(test_what_is_refused),
        TEST(test_gradients_are_averaged_or_summed),
        TEST(test_a_part_of_a_recomputed_module),
        TEST(test_no_sync_accumulates),
        TEST(test_a_second_backward_without_zeroing),
        TEST(test_buffers_come_from_rank_0),
        TEST(test_two_forwards_and_one_backward),
        TEST(test_unused_parameters_are_named),
        TEST(test_unused_parameters_are_found),
        TEST(test_a_rank_that_uses_no_parameter),
        TEST(test_frozen_parameters),
        TEST(test_thawed_too_late),
        TEST(test_buckets_follow_readiness),
        TEST(test_dtypes),
        TEST(test_random_numbers_are_the_micro_batchs),
        TEST(test_an_error_in_backward_reaches_all),
        TEST(test_a_cleared_error_does_not_shift_steps),
        TEST(test_a_buffer_that_was_exchanged),
        TEST(test_the_group_may_go_first),
        TEST(test_a_module_may_end_in_its_backward),
        TEST(test_out_of_memory_anywhere),
    };
    return cmocka_run_group_tests_name("data parallelism", tests, divert_flights, temp_clean);
}
