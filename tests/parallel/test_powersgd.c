/* PowerSGD, and gradients in f16: what arrives, what is kept, and how much is sent. Ranks are
 * threads. */

#include "tests/support/temp.h"

#include "core/allocator.h"

#include "ddp_net.h"
#include "powersgd_train.h"

#include <math.h>

/* P Q^T of full rank: nothing is left out. */
static tn_powersgd_options full_rank(void) {
    return TN_WITH(tn_powersgd, .rank = 99, .start_step = 0, .min_compression_rate = 0.0);
}

static bool all_near(const numbers *is, const numbers *want, double tolerance) {
    bool good = is->count == want->count && want->count > 0;
    for (int i = 0; i < want->count; i++) {
        good = good && fabs((double)is->at[i] - (double)want->at[i]) <= tolerance;
    }
    return good;
}

static double norm_of(const numbers *n) {
    double sum = 0.0;
    for (int i = 0; i < n->count; i++) {
        sum += (double)n->at[i] * (double)n->at[i];
    }
    return sqrt(sum);
}

/* The mean or the sum of all ranks' gradients of the nth micro-batches. */
static numbers exact_grads(tn_group *g, int step, bool sum) {
    int ranks = tn_group_size(g);
    numbers want = {.count = 0};
    for (int r = 0; r < ranks; r++) {
        numbers mine = grads_alone(1, true, step * ranks + r);
        want.count = mine.count;
        for (int i = 0; i < mine.count; i++) {
            want.at[i] += mine.at[i] / (float)(sum ? 1 : ranks);
        }
    }
    return want;
}

static tn_module *compressed_net(net *m, tn_group *g, tn_ddp_options o, tn_powersgd_options p) {
    net_init(m, 1);
    return tn_ddp_powersgd(tn_ddp(m, g, o), p);
}

static void step_net(net *m, tn_group *g, int step) {
    tn_module_zero_grad(m);
    net_backward(m, step * tn_group_size(g) + tn_group_rank(g));
}

/* ---- What arrives ---------------------------------------------------------------------------- */

static void sums_in_full(tn_group *g, void *user) {
    tn_powersgd_options p = full_rank();
    for (int i = 0; i < 8; i++) {
        tn_ddp_options o = i & 1 ? small_buckets() : tn_ddp_defaults();
        o.sum = user != NULL;
        p.warm_start = i & 2;
        p.error_feedback = i & 4;
        net m;
        compressed_net(&m, g, o, p);
        for (int step = 0; step < 3; step++) {
            step_net(&m, g, step);
            numbers is = grads_of(&m), want = exact_grads(g, step, o.sum);
            CHECK(all_near(&is, &want, 1e-5));
            CHECK(same_on_ranks(g, &is));
        }
        tn_module_finish(&m);
    }
}

TEST(test_full_rank_is_the_mean) {
    run_ok(2, sums_in_full, NULL);
    run_ok(3, sums_in_full, "");
}

/* All ranks have the same input, so the mean of their gradients has rank 1: one vector, and a
 * second which is rounding errors. */
static void sends_rank_one(tn_group *g, void *user) {
    for (int64_t rank = 1; rank <= 2; rank++) {
        TN_SCOPE;
        tn_linear m, alone;
        tn_seed(2);
        tn_linear_init(&m, 12, 9, TN_WITH(tn_linear, .bias = false));
        tn_linear_init(&alone, 12, 9, TN_WITH(tn_linear, .bias = false));
        tn_copy_(tn_detach(alone.weight), tn_detach(m.weight));
        tn_ddp_powersgd(
            tn_ddp(&m, g, tn_ddp_defaults()),
            TN_WITH(tn_powersgd, .rank = rank, .start_step = 0, .min_compression_rate = 0.0));
        tn_generator shared = {.seed = 4}, own = {.seed = 5};
        tn_tensor *x = tn_normal_(tn_empty(TN_DIMS(1, 12), TN_F32), 0, 1, &shared);
        for (int r = 0; r < tn_group_size(g); r++) {
            tn_tensor *y = tn_normal_(tn_empty(TN_DIMS(1, 9), TN_F32), 0, 1, &own);
            tn_backward(tn_mse(tn_call(&alone, x), y, TN_SUM));
            if (r == tn_group_rank(g)) {
                tn_backward(tn_mse(tn_call(&m, x), y, TN_SUM));
            }
        }
        tn_tensor *want = tn_div_scalar(tn_grad_of(alone.weight), tn_group_size(g));
        CHECK(tn_all_close(tn_grad_of(m.weight), want, 1e-5, 1e-6));
        tn_module_finish(&m);
        tn_module_finish(&alone);
    }
}

TEST(test_rank_one_is_exact) {
    run_ok(2, sends_rank_one, NULL);
    run_ok(3, sends_rank_one, NULL);
}

/* Gradients in bf16 are computed, sent and kept in f32, and rounded once at the end. */
static void sends_low_precision(tn_group *g, void *user) {
    TN_SCOPE;
    tn_linear m[2];
    for (int i = 0; i < 2; i++) {
        tn_seed(2);
        tn_linear_init(&m[i], 12, 9, TN_WITH(tn_linear, .dtype = TN_BF16));
        tn_ddp_state *ddp = tn_ddp(&m[i], g, tn_ddp_defaults());
        if (i == 1) {
            tn_ddp_powersgd(ddp, full_rank());
        }
        tn_generator own = {.seed = 4, .stream = (uint64_t)tn_group_rank(g)};
        tn_tensor *x = tn_normal_(tn_empty(TN_DIMS(5, 12), TN_BF16), 0, 1, &own);
        tn_backward(tn_sum_all(tn_square(tn_call(&m[i], x))));
        CHECK(i == 0 || tn_ddp_statistics(ddp).sent == 4 * (9 + 9 * (9 + 12)));
    }
    CHECK(tn_all_close(tn_grad_of(m[1].weight), tn_grad_of(m[0].weight), 0.008, 0.01));
    CHECK(tn_all_close(tn_grad_of(m[1].bias), tn_grad_of(m[0].bias), 0.008, 0.01));
    tn_module_finish(&m[0]);
    tn_module_finish(&m[1]);
}

TEST(test_bf16_gradients) {
    run_ok(2, sends_low_precision, NULL);
}

/* Until start_step the same bits as without a hook. */
static void starts_later(tn_group *g, void *user) {
    net m, plain;
    compressed_net(&m, g, tn_ddp_defaults(),
                   TN_WITH(tn_powersgd, .start_step = 2, .min_compression_rate = 0.0));
    net_init(&plain, 1);
    tn_ddp(&plain, g, tn_ddp_defaults());
    for (int step = 0; step < 4; step++) {
        step_net(&m, g, step);
        step_net(&plain, g, step);
        numbers is = grads_of(&m), want = grads_of(&plain);
        CHECK(same_numbers(&is, &want) == (step < 2));
        CHECK(same_on_ranks(g, &is));
    }
    tn_module_finish(&m);
    tn_module_finish(&plain);
}

TEST(test_starts_with_whole_gradients) {
    run_ok(2, starts_later, NULL);
}

static bool sum_errors(const tn_entry *entry, void *user) {
    TN_SCOPE;
    double *norm = user;
    if (strncmp(entry->path, "error", 5) == 0) {
        *norm += tn_item(tn_sum_all(tn_square(*entry->field)));
    }
    return true;
}

/* What has arrived after n steps, and the mean of what is still kept, are n gradients: so the
 * distance from n means is what the ranks keep, and stays bounded. Without feedback it grows. */
static void keeps_errors(tn_group *g, void *user) {
    enum { STEPS = 24 };
    double left[2];
    for (int feedback = 0; feedback < 2; feedback++) {
        net m;
        tn_module *kept =
            compressed_net(&m, g, tn_ddp_defaults(),
                           TN_WITH(tn_powersgd, .start_step = 0, .min_compression_rate = 0.0,
                                   .error_feedback = feedback, .warm_start = false));
        numbers want = exact_grads(g, 0, false), sum = {.count = want.count};
        for (int step = 0; step < STEPS; step++) {
            step_net(&m, g, 0);
            numbers is = grads_of(&m);
            for (int i = 0; i < is.count; i++) {
                sum.at[i] += is.at[i] - want.at[i];
            }
        }
        double own = 0.0;
        tn_module_each(kept, (tn_walk){.buffers = true}, sum_errors, &own);
        left[feedback] = norm_of(&sum);
        CHECK(!feedback || left[1] <= sqrt(tn_group_mean(g, own, 1)) + 1e-4);
        tn_module_finish(&m);
    }
    CHECK(left[0] > 0.1 && left[1] < 0.7 * left[0]);
}

TEST(test_error_feedback) {
    run_ok(2, keeps_errors, NULL);
}

/* How far what was left out of the gradient of extra.weight is from orthogonal, row by row, to what
 * was sent: 0 if that is the best approximation of its rank. */
static double overlap_of(const numbers *sent, const numbers *want) {
    enum { WIDTH = NET_HIDDEN, FIRST = (NET_HIDDEN + 1) * NET_OUT + (NET_IN + 1) * NET_HIDDEN };
    double most = 0.0, scale = 0.0;
    for (int i = 0; i < WIDTH * WIDTH; i++) {
        const float *w = want->at + FIRST + i / WIDTH * WIDTH;
        const float *s = sent->at + FIRST + i / WIDTH * WIDTH, *o = sent->at + FIRST;
        double product = 0.0;
        for (int j = 0; j < WIDTH; j++) {
            product += (double)(w[j] - s[j]) * (double)o[i % WIDTH * WIDTH + j];
            scale += (double)w[j] * (double)w[j] / WIDTH;
        }
        most = fmax(most, fabs(product));
    }
    return most / scale;
}

/* Of the same gradients, steps that begin with the last Q find the best approximation in the end;
 * those that begin at random do not. */
static void finds_direction(tn_group *g, void *user) {
    for (int warm = 0; warm < 2; warm++) {
        net m;
        compressed_net(&m, g, tn_ddp_defaults(),
                       TN_WITH(tn_powersgd, .start_step = 0, .min_compression_rate = 0.0,
                               .error_feedback = false, .warm_start = warm));
        for (int step = 0; step < 30; step++) {
            step_net(&m, g, 0);
        }
        numbers is = grads_of(&m), want = exact_grads(g, 0, false);
        double overlap = overlap_of(&is, &want);
        CHECK(warm ? overlap < 1e-5 : overlap > 1e-3);
        tn_module_finish(&m);
    }
}

TEST(test_warm_start) {
    run_ok(2, finds_direction, NULL);
}

/* ---- What must not spoil it ------------------------------------------------------------------ */

static void scaled_backward(net *m, tn_group *g, int step, double scale) {
    TN_SCOPE;
    tn_module_zero_grad(m);
    tn_tensor *loss = net_loss(m, step * tn_group_size(g) + tn_group_rank(g));
    tn_backward(tn_mul_scalar(loss, scale));
}

static void takes_anything(tn_group *g, void *user) {
    static const double scales[] = {0.0, 1.0, 1e-30, 1.0, INFINITY, 1.0};
    net m;
    compressed_net(&m, g, small_buckets(), full_rank());
    for (int step = 0; step < 6; step++) {
        bool overflows = isinf(scales[step]);
        scaled_backward(&m, g, step, overflows && tn_group_rank(g) == 0 ? 1.0 : scales[step]);
        numbers is = grads_of(&m), want = exact_grads(g, step, false);
        CHECK(overflows || scales[step] != 1.0 || all_near(&is, &want, 1e-5));
        CHECK(isfinite(norm_of(&is)) != overflows);
        CHECK(same_on_ranks(g, &is));
    }
    tn_module_finish(&m);
}

TEST(test_zeros_and_overflows) {
    run_ok(2, takes_anything, NULL);
}

static numbers error_of(tn_module *kept, const char *name) {
    numbers n = {.count = 0};
    numbers_add(&n, tn_module_get(kept, name));
    return n;
}

/* What was left out of a gradient waits while the parameter is frozen, whether or not the gradient
 * is still there. */
static void waits_frozen(tn_group *g, void *user) {
    for (int zeroed = 0; zeroed < 2; zeroed++) {
        net m;
        tn_module *kept =
            compressed_net(&m, g, tn_ddp_defaults(),
                           TN_WITH(tn_powersgd, .start_step = 0, .min_compression_rate = 0.0));
        step_net(&m, g, 0);
        numbers extra = error_of(kept, "error.4"), in = error_of(kept, "error.2");
        CHECK(norm_of(&extra) > 0.0);
        tn_module_requires_grad(&m.extra, false);
        if (zeroed) {
            tn_module_zero_grad(&m);
        }
        net_backward(&m, tn_group_rank(g));
        numbers extra_after = error_of(kept, "error.4"), in_after = error_of(kept, "error.2");
        CHECK(same_numbers(&extra, &extra_after) && !same_numbers(&in, &in_after));
        tn_module_finish(&m);
    }
}

/* A rank that does not use a parameter sends its error: with full rank those of all ranks cancel.
 */
static void counts_unused(tn_group *g, void *user) {
    net m;
    compressed_net(&m, g, TN_WITH(tn_ddp, .find_unused = true), full_rank());
    step_net(&m, g, 0);
    m.use_extra = tn_group_rank(g) > 0;
    step_net(&m, g, 1);
    m.use_extra = true;
    step_net(&m, g, 2);
    numbers is = grads_of(&m), want = exact_grads(g, 2, false);
    CHECK(all_near(&is, &want, 1e-5) && same_on_ranks(g, &is));
    tn_module_finish(&m);
}

TEST(test_without_a_gradient) {
    run_ok(2, waits_frozen, NULL);
    run_ok(2, counts_unused, NULL);
}

/* A rank whose data has ended keeps sending what it has left out: with full rank, all that ranks
 * have left out of their own gradients always cancels. */
static void joins_early(tn_group *g, void *user) {
    tn_ddp_options o = small_buckets();
    o.join = true;
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    tn_powersgd_options p = full_rank();
    p.start_step = 1;
    tn_module *kept = tn_ddp_powersgd(ddp, p);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
    for (int step = 0; step < 2 + 3 * tn_group_rank(g); step++) {
        step_net(&m, g, step);
        tn_optim_step(opt);
    }
    CHECK(tn_ddp_join(ddp, opt) == TN_OK);
    TN_SCOPE;
    numbers left = error_of(kept, "error.4"), all = {.count = 0};
    tn_tensor *error = tn_copy(tn_module_get(kept, "error.4"));
    CHECK(tn_work_wait(tn_all_reduce(g, error, TN_SUM), 0) == TN_OK);
    numbers_add(&all, error);
    CHECK(norm_of(&left) > 1e-3 && norm_of(&all) < 1e-5);
    numbers is = params_of(&m);
    CHECK(same_on_ranks(g, &is) && isfinite(norm_of(&is)));
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(test_join) {
    run_ok(3, joins_early, NULL);
}

/* ---- Bytes, losses --------------------------------------------------------------------------- */

static void train_power(bool compressed, power_run *run) {
    enum { BATCH = 32 };
    power_net teacher;
    tn_seed(1);
    power_init(&teacher);
    TN_NO_GRAD;
    tn_dims in = TN_DIMS(POWER_STEPS, POWER_RANKS, BATCH, POWER_IN);
    tn_tensor *x = tn_normal_(tn_empty(in, TN_F32), 0, 1, NULL);
    tn_tensor *y = tn_mul_scalar(tn_call(&teacher, x), 2.0);
    tn_tensor *noise = tn_normal_(tn_empty(tn_shape(y), TN_F32), 0, 0.02, NULL);
    run->x = x;
    run->y = tn_add(y, noise);
    run->compressed = compressed;
    assert_int_equal(tn_local_run(POWER_RANKS, power_rank, run), TN_OK);
    tn_module_finish(&teacher);
}

TEST(test_learns_with_a_tenth_of_the_bytes) {
    power_run run = {.options = TN_WITH(tn_powersgd, .rank = 4, .start_step = 5)};
    train_power(false, &run);
    double loss = run.loss, sent = (double)run.sent;
    train_power(true, &run);
    assert_true(loss > 0.0 && fabs(run.loss - loss) < 0.02 * loss);
    assert_true((double)run.sent * 10.0 <= sent);
    int64_t vectors = POWER_HIDDEN + POWER_HIDDEN + POWER_OUT;
    int64_t sides = 4 * POWER_HIDDEN + POWER_IN + POWER_OUT;
    int64_t padded = (int64_t)sent / POWER_STEPS; /* of a whole step */
    assert_int_equal(run.sent, 5 * padded + (POWER_STEPS - 5) * 4 * (vectors + 4 * sides));
}

/* ---- Resuming -------------------------------------------------------------------------------- */

static void train_net(net *m, tn_group *g, tn_optim *opt, int first, int end) {
    for (int step = first; step < end; step++) {
        step_net(m, g, step);
        tn_optim_step(opt);
    }
}

static void resumes_run(tn_group *g, void *user) {
    const char *base = user;
    tn_powersgd_options p =
        TN_WITH(tn_powersgd, .start_step = 1, .min_compression_rate = 0.0, .seed = 3);
    char weights[600], errors[600];
    snprintf(weights, sizeof(weights), "%s-%d.weights", base, tn_group_rank(g));
    snprintf(errors, sizeof(errors), "%s-%d.errors", base, tn_group_rank(g));
    numbers ends[3];
    for (int i = 0; i < 3; i++) { /* through; with the state; without it */
        net m;
        tn_module *kept = compressed_net(&m, g, tn_ddp_defaults(), p);
        tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
        if (i == 0) {
            train_net(&m, g, opt, 0, 4);
            CHECK(tn_save(&m, weights) == TN_OK && tn_save(kept, errors) == TN_OK);
        } else {
            CHECK(tn_load(&m, weights) == TN_OK);
            CHECK(i == 2 || tn_load(kept, errors) == TN_OK);
        }
        train_net(&m, g, opt, 4, 7);
        ends[i] = params_of(&m);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
    CHECK(same_numbers(&ends[0], &ends[1]) && !same_numbers(&ends[0], &ends[2]));
}

TEST(test_resumes_bit_for_bit) {
    char base[512];
    snprintf(base, sizeof(base), "%s", temp_path("rank"));
    run_ok(2, resumes_run, base);
}

/* ---- Refused --------------------------------------------------------------------------------- */

static tn_work *some_hook(tn_group *g, tn_ddp_bucket *b, int stage, void *user) {
    return stage == 0 ? tn_all_reduce(g, b->flat, b->how) : NULL;
}

TEST(test_refusals) {
    for (int i = 0; i < 6; i++) {
        tn_powersgd_options p = tn_powersgd_defaults();
        tn_ddp_options o = tn_ddp_defaults();
        net m;
        net_init(&m, 1);
        o.hook = i == 0 ? some_hook : NULL;
        p.rank = i == 1 ? 0 : 1;
        p.start_step = i == 2 ? -1 : 0;
        p.min_compression_rate = i == 3 ? NAN : 2.0;
        p.from_defaults = i != 4;
        tn_ddp_state *ddp = tn_ddp(&m, NULL, o);
        if (i == 5) {
            net_backward(&m, 0);
        }
        assert_null(tn_ddp_powersgd(ddp, p));
        assert_error(i == 0 || i == 5 ? TN_ESTATE : TN_EVALUE, "ddp_powersgd");
        tn_module_finish(&m);
    }
}

static void options_differ(tn_group *g, void *user) {
    net m;
    CHECK(!compressed_net(&m, g, tn_ddp_defaults(),
                          TN_WITH(tn_powersgd, .rank = 1 + tn_group_rank(g))));
    tn_module_finish(&m);
}

TEST(test_options_that_differ) {
    assert_non_null(strstr(run_failing(2, options_differ, NULL, TN_EMISMATCH), "rank 2"));
}

/* One rank sends nothing, and leaves nothing out. */
TEST(test_one_rank) {
    net m;
    net_init(&m, 1);
    tn_ddp_state *ddp = tn_ddp(&m, NULL, tn_ddp_defaults());
    tn_module *kept = tn_ddp_powersgd(ddp, full_rank());
    assert_non_null(kept);
    net_backward(&m, 0);
    numbers is = grads_of(&m), want = grads_alone(1, true, 0);
    assert_true(same_numbers(&is, &want));
    assert_int_equal(tn_ddp_statistics(ddp).sent, 0);
    double left_out = 0.0;
    tn_module_each(kept, (tn_walk){.buffers = true}, sum_errors, &left_out);
    assert_true(left_out == 0.0);
    tn_module_finish(&m);
}

/* Whichever allocation fails, it is an error that says so, and nothing is lost. */
TEST(test_no_memory) {
    bool failed = true;
    for (int n = 0; failed; n++) {
        net m;
        net_init(&m, 1);
        tn_ddp_state *ddp = tn_ddp(&m, NULL, tn_ddp_defaults());
        tn__alloc_fail_at(n);
        const tn_module *kept = tn_ddp_powersgd(ddp, full_rank());
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_true(!kept == failed);
        if (failed) {
            assert_error(TN_ENOMEM, "");
        }
        tn_module_finish(&m);
        assert_true(n < 1000);
    }
}

/* ---- f16 ------------------------------------------------------------------------------------- */

static void sends_f16(tn_group *g, void *user) {
    int ranks = tn_group_size(g);
    tn_ddp_options o = small_buckets();
    o.hook = tn_ddp_f16;
    o.sum = user != NULL;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, tn_group_rank(g));
    numbers want = {.count = 0};
    for (int r = 0; r < ranks; r++) {
        numbers mine = grads_alone(1, true, r);
        want.count = mine.count;
        for (int i = 0; i < mine.count; i++) {
            want.at[i] += tn_f16_to_float(tn_f16_from_float(mine.at[i] / (float)ranks));
        }
    }
    for (int i = 0; i < want.count; i++) {
        want.at[i] = tn_f16_to_float(tn_f16_from_float(want.at[i])) * (float)(o.sum ? ranks : 1);
    }
    numbers is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
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

TEST(test_f16) {
    run_ok(2, sends_f16, NULL);
    run_ok(4, sends_f16, "");
    double values[] = {60000.0, 1e6};
    run_ok(4, fills_f16, &values[0]);
    run_ok(4, fills_f16, &values[1]);
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
