/* Data parallelism: which gradients share a bucket, when buckets are sent, and their dtypes. Ranks
 * are threads. */

#include "tests/support/test.h"

#include "ddp_net.h"

#include <math.h>

enum { SENT = 64 };
typedef struct sent {
    int64_t counts[SENT];
    int n, seen;
} sent;

static tn_work *note_bucket(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user) {
    sent *s = user;
    if (stage > 0) { return NULL; }
    if (s->n < SENT) { s->counts[s->n++] = tn_count(bucket->flat); }
    return tn_all_reduce(g, bucket->flat, bucket->how);
}

static tn_tensor *note_progress(tn_tensor *grad, void *user) {
    sent *s = user;
    s->seen = s->n;
    return NULL;
}

static void checks_order(tn_group *g, void *user) {
    sent s = {.n = 0};
    tn_ddp_options o = small_buckets();
    o.hook = note_bucket;
    o.hook_user = &s;
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    /* extra.bias, extra.weight, in.bias, in.weight, out.bias, out.weight; padded to 64 bytes */
    static const int64_t registered[] = {16, 112, 16, 64, 16, 32};
    net_backward(&m, 0);
    CHECK(s.n == 6 && memcmp(s.counts, registered, sizeof(registered)) == 0);
    tn_ddp_stats stats = tn_ddp_statistics(ddp);
    CHECK(stats.steps == 1 && stats.buckets == 6 && stats.bytes == 256 * 4 && stats.waiting >= 0);
    s.n = 0;
    numbers before = grads_of(&m);
    TN_SCOPE;
    tn_tensor *loss = net_loss(&m, 0); /* rebuilds the buckets, and keeps the gradients */
    numbers after = grads_of(&m);
    CHECK(same_numbers(&before, &after));
    tn_backward(loss);
    CHECK(s.n == 6);
    /* out, extra, in */
    CHECK(s.counts[0] + s.counts[1] == 48 && s.counts[2] + s.counts[3] == 128);
    tn_module_finish(&m);
}

static void overlaps_backward(tn_group *g, void *user) {
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
    tn_on_grad(m.in.weight, note_progress, &s); /* one of the last gradients */
    net_backward(&m, 0);
    CHECK(o.overlap ? s.seen >= 4 : s.seen == 0);
    CHECK(s.n == 6);
    tn_module_finish(&m);
}

TEST(test_buckets_follow_readiness) {
    run_ok(2, checks_order, NULL);
    run_ok(2, overlaps_backward, "");
    run_ok(2, overlaps_backward, NULL);
}

/* The first bucket is closed at 1 MiB, and the others at 25. */
RANKS_TEST(test_the_first_bucket_is_small, 2) {
    tn_sequential *m = tn_sequential_new();
    for (int i = 0; i < 3; i++) {
        tn_sequential_add(m, tn_linear_new(512, 1024)); /* 2 MiB */
    }
    CHECK(tn_ddp_statistics(tn_ddp(m, world, tn_ddp_defaults())).buckets == 2);
    tn_module_free(m);
}

/* Gradients of two dtypes: bf16, and f32 for a bf16 parameter. */
static void mixes_dtypes(tn_group *g, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(g);
    tn_linear m, alone[2];
    tn_linear_options o = TN_WITH(tn_linear, .dtype = TN_BF16);
    tn_seed(9);
    tn_linear_init(&m, 4, 4, o);
    CHECK(tn_set_grad_dtype(m.weight, TN_F32) == TN_OK);
    tn_ddp_state *ddp = tn_ddp(&m, g, tn_ddp_defaults());
    CHECK(tn_ddp_statistics(ddp).buckets == 2);
    for (int r = 0; r < 2; r++) {
        tn_seed(9);
        tn_linear_init(&alone[r], 4, 4, o);
        tn_set_grad_dtype(alone[r].weight, TN_F32);
        tn_backward(
            tn_sum_all(tn_square(tn_call(&alone[r], tn_full(TN_DIMS(3, 4), r + 1, TN_BF16)))));
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

/* ---- Hooks with several stages --------------------------------------------------------------- */

/* The order of the calls, as bucket * 10 + stage. */
typedef struct stages {
    int calls[SENT], n;
    int lasts; /* calls with .last */
    double elements;
    bool failing;
} stages;

/* Sends a bucket in two halves: first the elements at even places, then the rest. */
static tn_work *two_halves(tn_group *g, tn_ddp_bucket *b, int stage, void *user) {
    stages *s = user;
    s->calls[s->n++] = 10 * b->index + stage;
    CHECK(b->how == TN_MEAN && (stage > 0) == (b->arrived != NULL));
    int64_t n = tn_count(b->flat) / 2, in_views = 0;
    for (int i = 0; i < b->count; i++) {
        in_views += tn_count(b->gradients[i]);
        CHECK(tn_shares_storage(b->gradients[i], b->flat));
    }
    tn_tensor *halves = tn_reshape(b->flat, TN_DIMS(n, 2));
    if (stage == 0) {
        s->lasts += b->last;
        s->elements += (double)in_views;
    } else {
        tn_copy_(tn_select(halves, 1, stage - 1), b->arrived);
    }
    if (s->failing && stage == 1 && tn_group_rank(g) == 1) {
        tn_raise(TN_EVALUE, "nothing goes any further");
        return NULL;
    }
    return stage < 2 ? tn_all_reduce(g, tn_contiguous(tn_select(halves, 1, stage)), b->how) : NULL;
}

/* The same bits as with one stage: ranks add each element in the same order. */
RANKS_TEST(test_stages_of_a_hook, 2, 3) {
    stages s = {.n = 0};
    tn_ddp_options o = small_buckets();
    net m, want;
    net_init(&m, 1);
    net_init(&want, 1);
    tn_ddp(&want, world, o);
    o.hook = two_halves;
    o.hook_user = &s;
    tn_ddp(&m, world, o);
    net_backward(&m, tn_group_rank(world));
    net_backward(&want, tn_group_rank(world));
    numbers is = grads_of(&m), should = grads_of(&want);
    CHECK(same_numbers(&is, &should));
    CHECK(s.n == 3 * 6 && s.lasts == 1 && s.elements == (double)tn_module_count(&m));
    for (int i = 0; i < 18; i++) { /* all buckets of a stage before any of the next */
        CHECK(s.calls[i] == 10 * (i % 6) + i / 6);
    }
    tn_module_finish(&m);
    tn_module_finish(&want);
}

/* An error on one rank between two stages is an error on all. */
static void fails_between(tn_group *g, void *user) {
    stages s = {.failing = true};
    tn_ddp_options o = small_buckets();
    o.hook = two_halves;
    o.hook_user = &s;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, 1);
    CHECK(tn_error() != TN_OK);
    stay_until_told(g);
    tn_module_finish(&m);
}

TEST(test_a_hook_that_fails) {
    const char *text = run_failing(2, fails_between, NULL, TN_EVALUE);
    assert_contains(text, "nothing goes any further");
}

static float round_through(float x, bool half) {
    return half ? tn_f16_to_float(tn_f16_from_float(x)) : tn_bf16_to_float(tn_bf16_from_float(x));
}

/* What arrives was rounded twice: where it was sent, and as a sum; f16 is divided before. */
static void compress_buckets(tn_group *g, bool half, bool sum) {
    TN_SCOPE;
    int ranks = tn_group_size(g);
    tn_ddp_options o = small_buckets();
    o.hook = half ? tn_ddp_f16 : tn_ddp_bf16;
    o.sum = sum;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, tn_group_rank(g));
    numbers want = {.count = 0};
    for (int r = 0; r < ranks; r++) {
        numbers mine = grads_alone(1, true, r);
        want.count = mine.count;
        for (int i = 0; i < mine.count; i++) {
            want.at[i] += round_through(half ? mine.at[i] / (float)ranks : mine.at[i], half);
        }
    }
    for (int i = 0; i < want.count; i++) {
        float total = half || sum ? want.at[i] : want.at[i] / (float)ranks;
        want.at[i] = round_through(total, half) * (float)(half && sum ? ranks : 1);
    }
    numbers is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

static void compresses_buckets(tn_group *g, void *user) {
    compress_buckets(g, false, user != NULL);
    compress_buckets(g, true, user != NULL);
}

/* Each rank's gradient is `value`. The sum of four would not fit into f16, their mean does; above
 * 65504 every rank gets infinity. */
static void fills_f16(tn_group *g, void *user) {
    double value = *(double *)user;
    TN_SCOPE;
    tn_linear m;
    tn_seed(1);
    tn_linear_init(&m, 3, 2, TN_WITH(tn_linear, .bias = false));
    tn_ddp_state *ddp = tn_ddp(&m, g, TN_WITH(tn_ddp, .hook = tn_ddp_f16, .sum = value < 1e5));
    tn_tensor *x = tn_full(TN_DIMS(1, 3), value, TN_F32);
    bool alone = value > 1e5 && tn_group_rank(g) != 1; /* one rank overflows */
    tn_backward(tn_sum_all(tn_call(&m, alone ? tn_mul_scalar(x, 1e-6) : x)));
    tn_tensor *grad = tn_grad_of(m.weight);
    double is = tn_item(tn_max(grad, TN_DIMS(), false));
    CHECK(value < 1e5 ? is == 4.0 * value : isinf(is));
    CHECK(tn_ddp_statistics(ddp).sent == tn_ddp_statistics(ddp).bytes / 2);
    tn_module_finish(&m);
}

TEST(test_dtypes) {
    run_ok(2, mixes_dtypes, NULL);
    run_ok(2, compresses_buckets, NULL);
    run_ok(4, compresses_buckets, "");
    double values[] = {60000.0, 1e6};
    run_ok(4, fills_f16, &values[0]);
    run_ok(4, fills_f16, &values[1]);
}
