/* Sharding: known mistakes, each with the smallest model that shows it. Ranks are threads; the
 * reference is one rank that accumulates. */

#include "train.h"

#include "tests/distributed/rank_check.h"
#include "tests/support/temp.h"

enum { WIDTH = 5, VOCAB = 9, LAYERS = 3, TOKENS = 6 };

/* ---- A model with a head that may be tied, and layers that may skip a half ------------------- */

typedef struct pair {
    tn_module base;
    tn_linear a, b;
    bool skips_b;
} pair;

static tn_tensor *pair_forward(tn_module *self, tn_tensor *x) {
    pair *m = (pair *)self;
    tn_tensor *y = tn_tanh(tn_call(&m->a, x));
    return m->skips_b ? y : tn_add(y, tn_tanh(tn_call(&m->b, x)));
}

static void pair_init(pair *m) {
    tn_module_init(m, "pair", pair_forward);
    tn_linear_init(&m->a, WIDTH, WIDTH, tn_linear_defaults());
    tn_linear_init(&m->b, WIDTH, WIDTH, tn_linear_defaults());
    tn_module_add(m, "a", &m->a);
    tn_module_add(m, "b", &m->b);
}

typedef struct small {
    tn_module base;
    tn_embedding wte;
    pair in[LAYERS];
    tn_linear head;
    bool twice;
} small;

static tn_tensor *small_forward(tn_module *self, tn_tensor *x) {
    small *m = (small *)self;
    x = tn_call(&m->wte, x);
    for (int i = 0; i < LAYERS * (1 + m->twice); i++) {
        x = tn_call(&m->in[i % LAYERS], x);
    }
    return tn_call(&m->head, x);
}

static void small_init(small *m, bool tied, uint64_t seed) {
    static const char *const names[LAYERS] = {"in.0", "in.1", "in.2"};
    tn_seed(seed);
    *m = (small){.twice = false};
    tn_module_init(m, "small", small_forward);
    tn_embedding_init(&m->wte, VOCAB, WIDTH, tn_embedding_defaults());
    tn_module_add(m, "wte", &m->wte);
    for (int i = 0; i < LAYERS; i++) {
        pair_init(&m->in[i]);
        tn_module_add(m, names[i], &m->in[i]);
    }
    tn_linear_init(&m->head, WIDTH, VOCAB, tn_linear_defaults());
    tn_module_add(m, "head", &m->head);
    if (tied) {
        tn_module_tie(m, "head.weight", "wte.weight");
    }
}

static tn_tensor *small_tokens(int64_t number) {
    tn_generator g = {.seed = 3, .stream = (uint64_t)number};
    int64_t t[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        t[i] = tn_random_below(&g, VOCAB);
    }
    return TN_FROM(t, TN_DIMS(TOKENS), TN_I64);
}

/* The sum over this micro-batch's tokens, divided by the number of tokens in a step. */
static tn_tensor *small_loss(small *m, int64_t number, int micros) {
    tn_tensor *y = tn_call(m, small_tokens(2 * number));
    tn_tensor *loss = tn_cross_entropy(y, small_tokens(2 * number + 1), TN_SUM);
    return tn_mul_scalar(loss, 1.0 / (TOKENS * micros));
}

static tn_fsdp_options summing_options(const char *units) {
    tn_fsdp_options o = tn_fsdp_defaults();
    o.sum = true;
    o.units = units;
    return o;
}

/* ---- Training it ----------------------------------------------------------------------------- */

typedef struct small_run {
    bool alone, tied, twice;
    bool skips; /* micro-batch n of step s skips b in layers (n + s) % 2 and 2 */
    int micros; /* per step: one for each rank, or all on one */
    int steps;
    int frozen, thawed; /* steps before which the embedding is frozen and thawed; -1: never */
    tn_fsdp_options options;
    train_bits want; /* the bits that every rank must have */
} small_run;

static small_run small_run_of(int ranks, const char *units) {
    return (small_run){
        .micros = ranks, .steps = 3, .frozen = -1, .thawed = -1, .options = summing_options(units)};
}

static void small_micro(small *m, const small_run *run, int64_t step, int at) {
    TN_SCOPE;
    for (int i = 0; i < LAYERS; i++) {
        m->in[i].skips_b = run->skips && (i == (at + step) % 2 || i == 2);
    }
    tn_backward(small_loss(m, step * run->micros + at, run->micros));
}

static void small_step(small *m, const small_run *run, tn_group *g, int64_t step) {
    if (step == run->frozen || step == run->thawed) {
        CHECK((step == run->thawed ? tn_unfreeze : tn_freeze)(m, "wte") >= 0);
    }
    for (int i = 0; i < (run->alone ? run->micros : 1); i++) {
        small_micro(m, run, step, run->alone ? i : tn_group_rank(g));
    }
}

static train_bits small_train(tn_group *g, const small_run *run) {
    TN_SCOPE;
    small m;
    small_init(&m, run->tied, 40 + (uint64_t)tn_group_rank(g));
    m.twice = run->twice;
    if (run->frozen == 0) {
        tn_module_requires_grad(&m.wte, false);
    }
    if (!run->alone) {
        CHECK(tn_fsdp(&m, g, NULL, run->options) != NULL);
    }
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int step = 0; step < run->steps; step++) {
        small_step(&m, run, g, step);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    train_bits bits = train_whole(&m, g);
    CHECK(tn_error() == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
    return bits;
}

static void compare_rank(tn_group *g, void *user) {
    const small_run *run = user;
    train_bits is = small_train(g, run);
    CHECK(train_same(is, run->want));
    free(is.data);
}

/* Stages 1 to 3 must give one rank's bits. */
static void must_accumulate(small_run run) {
    run.alone = true;
    run.want = small_train(NULL, &run);
    run.alone = false;
    for (run.options.stage = 1; run.options.stage <= 3; run.options.stage++) {
        run_ok(run.micros, compare_rank, &run);
    }
    free(run.want.data);
}

/* ---- Recompute around units, and gathers ----------------------------------------------------- */

typedef struct counted {
    train_run run;
    int64_t gathers, scatters;
} counted;

static void counts_messages(tn_group *g, void *user) {
    const counted *want = user;
    TN_SCOPE;
    tn_gpt gpt;
    train_model(&gpt, &want->run, 1);
    train_groups groups = train_groups_of(g, &want->run);
    tn_fsdp_state *s = train_spread(&gpt, &want->run, &groups);
    for (int step = 0; step < 3; step++) {
        tn_fsdp_stats before = tn_fsdp_statistics(s);
        double losses[TRAIN_MOST_MICROS];
        train_step(&gpt, &want->run, &groups, step, losses);
        tn_module_zero_grad(&gpt);
        tn_fsdp_stats after = tn_fsdp_statistics(s);
        CHECK(after.gathers - before.gathers == want->gathers);
        CHECK(after.scatters - before.scatters == want->scatters);
        CHECK(after.whole == 0); /* nothing stays gathered */
    }
    tn_module_finish(&gpt);
}

/* A unit is gathered for its forward and for its backward, however often it is recomputed in
 * between; with keep_last, the last unit of forward stays for backward. */
TEST(test_gathers_of_a_step) {
    for (int i = 0; i < 4 * 3 * 2; i++) {
        counted c = {.run = train_run_of(TRAIN_FSDP, 2)};
        c.run.recompute = (train_recompute)(i % 4);
        c.run.options.prefetch = i / 4 % 3;
        c.run.options.keep_last = i / 12;
        int64_t units = c.run.model.layers * (c.run.recompute == RECOMPUTE_AROUND ? 2 : 1);
        c.gathers = 2 * units + 1 - c.run.options.keep_last;
        c.scatters = units + 1;
        run_ok(2, counts_messages, &c);
    }
}

/* ---- Tied, and called twice ------------------------------------------------------------------ */

/* The head is a separate unit, but its weight is the embedding's. */
TEST(test_a_tied_weight_in_two_units) {
    static const char *const units[] = {"wte in.* head", "in.* head", "head", "wte"};
    for (int i = 0; i < 4; i++) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            small_run run = small_run_of(ranks, units[i]);
            run.tied = true;
            must_accumulate(run);
        }
    }
}

TEST(test_a_unit_that_is_called_twice) {
    for (int prefetch = 0; prefetch <= 2; prefetch++) {
        small_run run = small_run_of(2, "in.*");
        run.twice = true;
        run.options.prefetch = prefetch;
        must_accumulate(run);
    }
}

/* ---- Parts of 0 elements --------------------------------------------------------------------- */

typedef struct names {
    char text[4096];
    double steps;
} names;

static bool note_state(const char *name, tn_tensor *state, void *user) {
    names *n = user;
    size_t at = strlen(n->text);
    snprintf(n->text + at, sizeof(n->text) - at, "%s ", name);
    n->steps += tn_ndim(state) == 0 ? tn_item(state) : 0;
    return true;
}

static bool note_path(const tn_entry *entry, void *user) {
    names *n = user;
    size_t at = strlen(n->text);
    snprintf(n->text + at, sizeof(n->text) - at, "%s ", entry->path);
    n->steps += tn_count(entry->stored) == 0;
    return true;
}

/* Every rank has every parameter's name and state, and steps it, even without an element of it. */
static void steps_nothing(tn_group *g, void *user) {
    TN_SCOPE;
    static names all[8]; /* of each rank */
    names *mine = &all[tn_group_rank(g)], empty = {.steps = 0};
    *mine = empty;
    small m;
    small_init(&m, false, 1);
    CHECK(tn_fsdp(&m, g, NULL, summing_options("in.*")) != NULL);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int step = 0; step < 3; step++) {
        tn_backward(small_loss(&m, step, 1));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    tn_module_each(&m, (tn_walk){0}, note_path, &empty);
    CHECK(empty.steps > 0); /* some parameters have no element here */
    tn_optim_each(opt, note_state, mine);
    CHECK(tn_optim_steps(opt) == 3 && mine->steps == 3 * (1 + 4 * LAYERS + 2));
    tn_barrier(g);
    CHECK(strcmp(all[0].text, mine->text) == 0 && strstr(mine->text, "in.2.b.bias.exp_avg"));
    tn_barrier(g);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(test_parts_of_no_elements) {
    run_ok(8, steps_nothing, NULL);
    must_accumulate(small_run_of(8, "in.*")); /* more ranks than rows */
}

/* ---- Frozen parameters ----------------------------------------------------------------------- */

TEST(test_frozen_beside_trainable) {
    static const int times[][2] = {{0, -1}, {1, -1}, {1, 2}};
    static const char *const units[] = {"in.*", "wte in.*"};
    for (int i = 0; i < 6; i++) {
        small_run run = small_run_of(3, units[i % 2]);
        run.frozen = times[i / 2][0];
        run.thawed = times[i / 2][1];
        must_accumulate(run);
    }
}

/* Two modules that are sharded separately; each is frozen while the other learns, and gradients
 * flow through both. The discriminator may have a gradient penalty: the double backward reads its
 * parameters without the hooks that gather them, so TN_WHOLE keeps them. */
typedef struct gan {
    tn_sequential g, d;
    pair g_layers[2], d_layers[2];
} gan;

typedef struct gan_run {
    int ranks, stage;
    bool penalty;
    train_bits want;
} gan_run;

static void gan_init(gan *n) {
    tn_seed(31);
    tn_sequential_init(&n->g);
    tn_sequential_init(&n->d);
    for (int i = 0; i < 2; i++) {
        pair_init(&n->g_layers[i]);
        pair_init(&n->d_layers[i]);
        tn_sequential_add(&n->g, &n->g_layers[i]);
        tn_sequential_add(&n->d, &n->d_layers[i]);
    }
}

static tn_tensor *gan_penalty(gan *n, tn_tensor *x) {
    x = tn_set_requires_grad(tn_detach(x), true);
    tn_tensor *score = tn_sum_all(tn_call(&n->d, x)), *slope;
    tn_grad_options o = tn_grad_defaults();
    o.create_graph = true;
    tn_grad(&score, NULL, 1, &x, 1, &slope, o);
    return tn_mean_all(tn_square(slope));
}

static void gan_backward(gan *n, const gan_run *run, bool judge, int64_t number) {
    TN_SCOPE;
    tn_generator data = {.seed = 6, .stream = (uint64_t)number};
    tn_tensor *noise = tn_normal_(tn_empty(TN_DIMS(4, WIDTH), TN_F32), 0, 1, &data);
    tn_tensor *loss = tn_mean_all(tn_call(&n->d, tn_call(&n->g, noise)));
    if (judge && run->penalty) {
        TN_WHOLE(&n->d);
        loss = tn_add(loss, gan_penalty(n, noise));
        tn_backward(tn_mul_scalar(loss, 1.0 / run->ranks));
        return;
    }
    tn_backward(tn_mul_scalar(judge ? loss : tn_neg(loss), 1.0 / run->ranks));
}

static train_bits gan_train(tn_group *g, const gan_run *run) {
    TN_SCOPE;
    static _Thread_local gan n;
    gan_init(&n);
    if (g) {
        tn_fsdp_options o = summing_options("*");
        o.stage = run->stage;
        CHECK(tn_fsdp(&n.g, g, NULL, o) != NULL && tn_fsdp(&n.d, g, NULL, o) != NULL);
    }
    tn_optim *g_opt = tn_adam(&n.g, tn_adam_defaults()), *d_opt = tn_adam(&n.d, tn_adam_defaults());
    for (int i = 0; i < 6; i++) {
        bool judge = i % 2 == 0;
        tn_module_requires_grad(&n.g, !judge);
        tn_module_requires_grad(&n.d, judge);
        for (int k = 0; k < (g ? 1 : run->ranks); k++) {
            gan_backward(&n, run, judge, i * run->ranks + (g ? tn_group_rank(g) : k));
        }
        tn_optim_step(judge ? d_opt : g_opt);
        tn_optim_zero_grad(judge ? d_opt : g_opt);
    }
    CHECK(tn_error() == TN_OK);
    train_bits bits = train_whole(&n.g, g);
    train_join(&bits, train_whole(&n.d, g));
    tn_optim_free(g_opt);
    tn_optim_free(d_opt);
    tn_module_finish(&n.g);
    tn_module_finish(&n.d);
    return bits;
}

static void compare_gan(tn_group *g, void *user) {
    const gan_run *run = user;
    train_bits is = gan_train(g, run);
    CHECK(train_same(is, run->want));
    free(is.data);
}

TEST(test_modules_that_learn_in_turns) {
    for (int i = 0; i < 2 * 3 * 2; i++) {
        gan_run run = {.ranks = 1 + i % 2, .stage = 1 + i / 2 % 3, .penalty = i / 6};
        run.want = gan_train(NULL, &run);
        run_ok(run.ranks, compare_gan, &run);
        free(run.want.data);
    }
}

/* ---- Parameters that some ranks do not use --------------------------------------------------- */

static void leaves_out(tn_group *g, void *user) {
    small m;
    small_init(&m, false, 1);
    m.in[1].skips_b = true;
    CHECK(tn_fsdp(&m, g, NULL, summing_options(user)) != NULL);
    TN_SCOPE;
    tn_backward(small_loss(&m, 0, 1));
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    CHECK(strstr(tn_error_message(), "in.1.b.weight, in.1.b.bias"));
    CHECK(strstr(tn_error_message(), "find_unused"));
    tn_module_finish(&m);
}

TEST(test_unused_parameters_are_named) {
    double begin = tn_flight_now();
    run_failing(3, leaves_out, (void *)(uintptr_t) "in.*", TN_ESTATE);
    run_failing(3, leaves_out, (void *)(uintptr_t) "head", TN_ESTATE);
    assert_true(tn_flight_now() - begin < 60); /* at once, not after the timeout of 600 s */
}

/* Parameters that no rank has used have no gradient, and are not stepped; the others match one
 * rank's. */
TEST(test_unused_parameters_are_found) {
    static const char *const units[] = {"in.*", "head", "in.*.a in.2"};
    for (int i = 0; i < 2 * 3; i++) {
        small_run run = small_run_of(1 + i / 2, units[i % 3]);
        run.skips = true;
        run.options.find_unused = true;
        must_accumulate(run);
    }
}

/* Each rank leaves out a different unit, so their gathers do not match. */
static void leaves_out_a_unit(tn_group *g, void *user) {
    small m;
    small_init(&m, false, 1);
    tn_fsdp_options o = summing_options("in.*.b");
    o.find_unused = true;
    o.prefetch = 0;
    CHECK(tn_fsdp(&m, g, NULL, o) != NULL);
    m.in[tn_group_rank(g)].skips_b = true;
    TN_SCOPE;
    tn_backward(small_loss(&m, 0, 1));
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    CHECK(strstr(tn_error_message(), "different units"));
    tn_module_finish(&m);
}

TEST(test_units_that_ranks_leave_out) {
    run_failing(2, leaves_out_a_unit, NULL, TN_ESTATE);
}

/* ---- f16 ------------------------------------------------------------------------------------- */

enum { SKIPS = 2 };

/* Only the gradient of the head's last row, which the last rank has, overflows. */
static train_bits scaled_run(tn_group *g, int micros) {
    TN_SCOPE;
    tn_sequential m;
    tn_linear head;
    tn_seed(9);
    tn_linear_init(&head, WIDTH, VOCAB, tn_linear_defaults());
    tn_sequential_init(&m);
    tn_sequential_add(&m, &head);
    tn_precision policy = tn_precision_defaults();
    policy.compute = TN_F16;
    tn_module_set_precision(&m, policy);
    if (g) {
        CHECK(tn_fsdp(&m, g, NULL, summing_options("0")) != NULL);
    }
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_scaler *scaler = tn_scaler_new(tn_scaler_defaults());
    for (int step = 0; step < SKIPS + 2; step++) {
        TN_SCOPE;
        for (int i = 0; i < (g ? 1 : micros); i++) {
            TN_SCOPE;
            tn_generator data = {.seed = 4, .stream = (uint64_t)(g ? tn_group_rank(g) : i)};
            tn_tensor *x = tn_normal_(tn_empty(TN_DIMS(3, WIDTH), TN_F32), 0, 1, &data);
            float weights[VOCAB] = {[0] = 0.5F, [VOCAB - 1] = 2.0F};
            tn_tensor *y =
                tn_mul(tn_cast(tn_call(&m, x), TN_F32), TN_FROM(weights, TN_DIMS(VOCAB), TN_F32));
            tn_backward(tn_scaler_scale(scaler, tn_sum_all(y)));
        }
        tn_scaler_clip(scaler, opt, 1.0);
        CHECK(tn_scaler_step(scaler, opt) == TN_OK);
        CHECK(tn_scaler_skipped(scaler) == (step < SKIPS));
        tn_scaler_update(scaler);
        tn_optim_zero_grad(opt);
    }
    CHECK(tn_optim_steps(opt) == 2);
    train_bits bits = train_whole(&m, g);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_finish(&m);
    return bits;
}

static void scales_loss(tn_group *g, void *user) {
    const train_bits *want = user;
    train_bits is = scaled_run(g, 1);
    CHECK(train_same(is, *want));
    free(is.data);
}

TEST(test_an_overflow_in_one_ranks_part) {
    train_bits want = scaled_run(NULL, 4);
    run_ok(4, scales_loss, &want);
    free(want.data);
}

/* ---- Norms ----------------------------------------------------------------------------------- */

static double norm_of(tn_group *g, int micros, bool at_once) {
    TN_SCOPE;
    small m;
    small_init(&m, true, 1);
    if (g) {
        CHECK(tn_fsdp(&m, g, NULL, summing_options("in.* head")) != NULL);
    }
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    for (int i = 0; i < (g ? 1 : micros); i++) {
        tn_backward(small_loss(&m, g ? tn_group_rank(g) : i, micros));
    }
    double norm = at_once ? tn_clip_grad_norm(&m, 0.01) : tn_optim_clip(opt, 0.01);
    if (at_once) {
        double after = tn_clip_grad_norm(&m, 0.01);
        CHECK(fabs(after - 0.01) < 1e-6);
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
    return norm;
}

static void clips_norm(tn_group *g, void *user) {
    const double *want = user;
    for (int at_once = 0; at_once < 2; at_once++) {
        double is = norm_of(g, tn_group_size(g), at_once);
        CHECK(fabs(is - *want) <= 1e-12 * *want); /* squares are added in a different order */
    }
}

TEST(test_norms_are_of_the_whole) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        double want = norm_of(NULL, ranks, false);
        run_ok(ranks, clips_norm, &want);
    }
}

/* ---- Graphs from before a step, and errors midway -------------------------------------------- */

static void steps_under_a_graph(tn_group *g, void *user) {
    TN_SCOPE;
    small m;
    small_init(&m, false, 1);
    CHECK(tn_fsdp(&m, g, NULL, summing_options("in.*")) != NULL);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_tensor *old = small_loss(&m, 0, 1);
    tn_backward(small_loss(&m, 1, 1));
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    CHECK(tn_error() == TN_OK);
    CHECK(tn_backward(old) != TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(test_a_graph_from_before_the_step) {
    for (int ranks = 1; ranks <= 2; ranks++) {
        assert_contains(run_failing(ranks, steps_under_a_graph, NULL, TN_ESTATE), "changed");
    }
}

static tn_values stumble_forward(tn_module *m, tn_values in, void *user) {
    tn_raise(TN_EVALUE, "a forward stumbles");
    return in;
}

static void stumble_backward(tn_module *m, void *user) {
    tn_raise(TN_EVALUE, "a backward stumbles");
}

/* Rank 1 raises an error in its second step. */
static void fails_midway(tn_group *g, void *user) {
    small m;
    small_init(&m, false, 1);
    CHECK(tn_fsdp(&m, g, NULL, summing_options("in.*")) != NULL);
    for (int step = 0; step < 3 && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        if (tn_group_rank(g) == 1 && step == 1) {
            tn_module_hook(&m.in[1], *(const tn_module_hooks *)user);
        }
        tn_backward(small_loss(&m, step, 1));
        tn_module_zero_grad(&m);
    }
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_EVALUE : TN_EPEER));
    CHECK(tn_group_rank(g) == 1 || strstr(tn_error_message(), "rank 1"));
    stay_until_told(g);
    tn_module_finish(&m);
}

TEST(test_an_error_midway) {
    double begin = tn_flight_now();
    tn_module_hooks forward = {.before = stumble_forward},
                    backward = {.backward_before = stumble_backward};
    assert_contains(run_failing(3, fails_midway, &forward, TN_EVALUE), "a forward stumbles");
    assert_contains(run_failing(3, fails_midway, &backward, TN_EVALUE), "a backward stumbles");
    assert_true(tn_flight_now() - begin < 60);
}

/* ---- Hybrid ---------------------------------------------------------------------------------- */

/* Two replicas of two shards. Rank 1's hooks fail (user), or rank 3 has another model (NULL). */
static void fails_in_one_replica(tn_group *g, void *user) {
    int sizes[] = {2, 2}, rank = tn_group_rank(g);
    tn_mesh *mesh = tn_mesh_new(g, 2, sizes, (const char *[]){"replicate", "shard"});
    small m;
    small_init(&m, rank == 3 && !user, 1);
    tn_fsdp(&m, tn_mesh_group(mesh, "shard"), tn_mesh_group(mesh, "replicate"),
            summing_options("in.*"));
    CHECK(tn_error() == TN_OK || !user);
    if (rank == 1 && user) {
        tn_module_hook(&m.in[1], *(const tn_module_hooks *)user);
    }
    for (int step = 0; step < 3 && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        tn_backward(small_loss(&m, step, 1));
        tn_module_zero_grad(&m);
    }
    CHECK(tn_error() != TN_OK); /* on every rank, even without a common group */
    CHECK(strstr(tn_error_message(), user ? "stumbles" : "head.weight"));
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

TEST(test_errors_reach_all_replicas) {
    double begin = tn_flight_now();
    tn_module_hooks forward = {.before = stumble_forward},
                    backward = {.backward_before = stumble_backward};
    run_failing(4, fails_in_one_replica, &forward, TN_EVALUE);
    run_failing(4, fails_in_one_replica, &backward, TN_EVALUE);
    run_failing(4, fails_in_one_replica, NULL, TN_EMISMATCH);
    assert_true(tn_flight_now() - begin < 60);
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
