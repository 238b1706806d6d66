/* Runs by a file in DeepSpeed's format: each has the same bits as the run written by hand, and
 * continues from a checkpoint as if uninterrupted; what is wrong is an error on every rank. */
#include "tests/parallel/ddp_net.h"
#include "tests/parallel/train.h"
#include "tests/support/temp.h"

#include <math.h>

enum { BATCH = 2, STEPS = 6 };

static const mesh_shape shape = {
    .vocab = 19, .width = 16, .layers = 2, .heads = 2, .bias = true, .dropout = 0.1, .length = 8};

/* Of micro-batch `i` of a step, on this rank: the same data for both kinds of run. */
static tn_tensor *micro_loss(mesh_model *m, tn_group *world, int64_t step, int64_t i) {
    int64_t number = 2 * ((step * 8 + i) * tn_group_size(world) + tn_group_rank(world));
    return tn_lm_loss(m, mesh_tokens_of(&shape, BATCH, number),
                      mesh_tokens_of(&shape, BATCH, number + 1));
}

/* ---- The same run twice ---------------------------------------------------------------------- */

typedef struct plan {
    const char *name;
    int ranks, stage;
    const char *precision; /* "fp16", "bf16" or "" */
    const char *optimizer; /* as the file has it */
    double clipping;
    int accumulation;
    bool sum;
    bool offload;
    bool own; /* the program's optimiser: the file has another one at stages 1 and 3, or none */
    const char *path;
} plan;

static void write_file(const plan *p) {
    static const char *const others[] = {"null", "{\"type\": \"Adam\", \"params\": {\"lr\": 3}}"};
    char text[1024], precision[128] = "", offload[128] = "";
    if (*p->precision) {
        snprintf(precision, sizeof(precision), "\"%s\": {\"enabled\": true}, ", p->precision);
    }
    if (p->offload) {
        snprintf(offload, sizeof(offload), ", \"offload_optimizer\": {\"device\": \"cpu\"}");
    }
    snprintf(text, sizeof(text),
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": %g, \"gradient_allreduce_op\": \"%s\", "
             "\"zero_optimization\": {\"stage\": %d%s}, %s\"optimizer\": %s, "
             "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 3, "
             "\"warmup_type\": \"linear\"}}}",
             BATCH, p->accumulation, p->clipping, p->sum ? "sum" : "mean", p->stage, offload,
             precision, p->own ? others[p->stage % 2] : p->optimizer);
    temp_write(p->path, text, strlen(text));
}

static tn_optim *optim_by_hand(mesh_model *m, const char *kind) {
    if (strstr(kind, "SGD")) {
        tn_sgd_options o = TN_WITH(tn_sgd, .lr = 0.01, .momentum = 0.9);
        return tn_sgd(m, o);
    }
    tn_adam_options o = TN_WITH(tn_adam, .beta2 = 0.95, .weight_decay = 0.1);
    return strstr(kind, "AdamW") ? tn_adamw(m, o) : tn_adam(m, o);
}

/* The model is built without elements; each rank makes those that it needs. */
static train_bits run_by_file(tn_group *world, const plan *p) {
    mesh_model m;
    mesh_init(&m, &shape, 7, true);
    tn_deepspeed *d = tn_deepspeed_new(&m, world, p->path);
    CHECK(d);
    if (p->own) { CHECK(tn_deepspeed_set_optim(d, optim_by_hand(&m, p->optimizer)) == TN_OK); }
    int64_t accumulation = tn_deepspeed_batch(d).accumulation;
    CHECK(accumulation == p->accumulation && tn_deepspeed_batch(d).micro == BATCH);
    CHECK(tn_deepspeed_batch(d).all == (int64_t)BATCH * p->accumulation * p->ranks);
    for (int64_t i = 0; d && i < STEPS * accumulation; i++) {
        TN_SCOPE;
        CHECK(tn_deepspeed_due(d) == (i % accumulation == accumulation - 1));
        tn_deepspeed_backward(d, micro_loss(&m, world, i / accumulation, i % accumulation));
        CHECK(tn_deepspeed_step(d) == TN_OK);
    }
    CHECK(tn_deepspeed_norm(d) > 0 && tn_optim_steps(tn_deepspeed_optim(d)) == STEPS);
    train_bits bits = train_whole(&m, world);
    tn_deepspeed_free(d);
    tn_module_finish(&m);
    return bits;
}

static void attach_by_hand(mesh_model *m, tn_group *world, const plan *p) {
    if (p->stage == 0) {
        tn_ddp_options o = TN_WITH(tn_ddp, .sum = p->sum);
        tn_ddp(m, world, o);
        return;
    }
    tn_fsdp(
        m, world, NULL,
        TN_WITH(tn_fsdp, .stage = p->stage, .units = "h.*", .sum = p->sum, .offload = p->offload));
}

static train_bits run_by_hand(tn_group *world, const plan *p) {
    mesh_model m;
    mesh_init(&m, &shape, 7, false);
    if (*p->precision) {
        tn_precision policy = tn_precision_defaults();
        policy.compute = strcmp(p->precision, "fp16") == 0 ? TN_F16 : TN_BF16;
        tn_module_set_precision(&m, policy);
    }
    attach_by_hand(&m, world, p);
    tn_optim *opt = optim_by_hand(&m, p->optimizer);
    bool scaled = strcmp(p->precision, "fp16") == 0;
    tn_scaler *scaler = scaled ? tn_scaler_new(tn_scaler_defaults()) : NULL;
    const double lr[STEPS] = {0, 0, 0.01 * (1.0 / 3), 0.01 * (2.0 / 3), 0.01, 0.01};
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < p->accumulation; i++) {
            TN_SCOPE;
            tn_tensor *loss = tn_mul_scalar(micro_loss(&m, world, step, i), 1.0 / p->accumulation);
            loss = scaled ? tn_scaler_scale(scaler, loss) : loss;
            if (i + 1 < p->accumulation && p->stage < 2) {
                TN_NO_SYNC(&m);
                tn_backward(loss);
            } else {
                tn_backward(loss);
            }
        }
        tn_optim_set_lr(opt, lr[step]);
        if (scaled) {
            p->clipping > 0 ? tn_scaler_clip(scaler, opt, p->clipping) : 0;
            tn_scaler_step(scaler, opt);
            tn_scaler_update(scaler);
        } else {
            p->clipping > 0 ? tn_optim_clip(opt, p->clipping) : 0;
            tn_optim_step(opt);
        }
        tn_optim_zero_grad(opt);
    }
    train_bits bits = train_whole(&m, world);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_finish(&m);
    return bits;
}

static void run_twice(tn_group *world, void *user) {
    const plan *p = user;
    train_bits file = run_by_file(world, p), hand = run_by_hand(world, p);
    CHECK(train_same(file, hand));
    free(file.data);
    free(hand.data);
}

TEST(test_equals_by_hand) {
    static const char adam[] = "{\"type\": \"Adam\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, "
                               "0.95], \"weight_decay\": 0.1, \"adam_w_mode\": false}}";
    static const char adamw[] = "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, "
                                "0.95], \"weight_decay\": 0.1}}";
    static const char sgd[] = "{\"type\": \"SGD\", \"params\": {\"lr\": 0.01, \"momentum\": 0.9}}";
    static const plan variants[] = {
        {.name = "AdamW", .precision = "", .optimizer = adamw, .clipping = 0.1, .accumulation = 3},
        {.name = "Adam", .precision = "", .optimizer = adam, .clipping = 0, .accumulation = 1},
        {.name = "SGD, sum", .precision = "", .optimizer = sgd, .accumulation = 2, .sum = true},
        {.name = "own", .precision = "", .optimizer = sgd, .accumulation = 2, .own = true},
        {.name = "bf16", .precision = "bf16", .optimizer = adamw, .clipping = 1, .accumulation = 2},
        {.name = "fp16", .precision = "fp16", .optimizer = adamw, .clipping = 1, .accumulation = 2},
    };
    for (int stage = 0; stage <= 3; stage++) {
        for (int ranks = 1; ranks <= 2; ranks++) {
            for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
                plan p = variants[i];
                p.ranks = ranks;
                p.stage = stage;
                p.offload = stage > 0 && i % 2 == 0;
                p.path = temp_path("ds.json");
                write_file(&p);
                printf("# stage %d, %d ranks, %s%s\n", stage, ranks, p.name,
                       p.offload ? ", offload" : "");
                run_ok(ranks, run_twice, &p);
            }
        }
    }
}

/* ---- Unused parameters ----------------------------------------------------------------------- */

/* Backward does not reach one of the layers. */
static void uses_some(tn_group *world, void *user) {
    const char *path = user;
    net m;
    net_init(&m, 1);
    m.use_extra = false;
    tn_deepspeed *d = tn_deepspeed_new(&m, world, path);
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        tn_deepspeed_backward(d, net_loss(&m, tn_group_rank(world)));
        tn_deepspeed_step(d);
    }
    if (strstr(path, "ignored")) {
        CHECK(tn_error() == TN_OK && tn_optim_steps(tn_deepspeed_optim(d)) == 2);
    } else {
        CHECK(tn_error() != TN_OK && strstr(tn_error_message(), "extra."));
    }
    tn_deepspeed_free(d);
    tn_module_finish(&m);
}

TEST(test_unused_parameters) {
    for (int stage = 0; stage <= 3; stage++) {
        for (int ignored = 0; ignored < 2; ignored++) {
            const char *path = temp_path(ignored ? "ignored.json" : "error.json");
            char text[512];
            snprintf(text, sizeof(text),
                     "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"SGD\"}, "
                     "\"zero_optimization\": {\"stage\": %d, \"ignore_unused_parameters\": %s}}",
                     stage, ignored ? "true" : "false");
            temp_write(path, text, strlen(text));
            if (ignored) {
                run_ok(2, uses_some, path);
            } else {
                assert_contains(run_failing(2, uses_some, path, TN_ESTATE), "extra.");
            }
        }
    }
}

/* ---- The loss scale -------------------------------------------------------------------------- */

typedef struct rule {
    double scale, least;
    int window, calm; /* calm: steps since the scale changed */
} rule;

static void rule_step(rule *r, bool overflow) {
    r->calm = overflow ? 0 : r->calm + 1;
    if (overflow) {
        r->scale = fmax(r->scale / 2, r->least);
    } else if (r->calm == r->window) {
        r->scale *= 2;
        r->calm = 0;
    }
}

static tn_deepspeed *linear_begin(tn_linear *m, const char *precision, const char *more) {
    char text[512];
    snprintf(text, sizeof(text),
             "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"SGD\"}, \"%s\": {\"enabled\": "
             "true%s%s}, \"scheduler\": {\"type\": \"WarmupLR\"}}",
             precision, *more ? ", " : "", more);
    const char *path = temp_path("scale.json");
    temp_write(path, text, strlen(text));
    tn_linear_init(m, 1, 1, tn_linear_defaults());
    tn_deepspeed *d = tn_deepspeed_new(m, NULL, path);
    assert_non_null(d);
    return d;
}

static double scale_of(const tn_deepspeed *d) {
    return tn_scaler_where(tn_deepspeed_checkpoint(d).scaler).scale;
}

/* Infinite activations make infinite gradients; the scale alone must not. */
static tn_status linear_step(tn_deepspeed *d, tn_linear *m, bool overflow) {
    TN_SCOPE;
    tn_tensor *x = tn_full(TN_DIMS(1, 1), overflow ? INFINITY : 0, TN_F32);
    tn_tensor *y = tn_cast(tn_call(m, x), TN_F32);
    tn_deepspeed_backward(d, tn_mul_scalar(tn_sum_all(y), 1e-6));
    return tn_deepspeed_step(d);
}

TEST(test_loss_scale) {
    static const struct {
        const char *keys;
        rule r;
    } cases[] = {
        {"", {.scale = 65536, .least = 1, .window = 1000}},
        {"\"loss_scale_window\": 2, \"initial_scale_power\": 4",
         {.scale = 16, .least = 1, .window = 2}},
        {"\"loss_scale_window\": 3, \"min_loss_scale\": 1024",
         {.scale = 65536, .least = 1024, .window = 3}},
    };
    static const char pattern[] = "......x.......xx...x.x.x......xxxx....x......";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tn_linear m;
        tn_deepspeed *d = linear_begin(&m, "fp16", cases[i].keys);
        rule r = cases[i].r;
        int64_t taken = 0;
        for (const char *c = pattern; *c; c++) {
            assert_true(scale_of(d) == r.scale);
            assert_int_equal(linear_step(d, &m, *c == 'x'), TN_OK);
            rule_step(&r, *c == 'x');
            taken += *c != 'x';
            assert_int_equal(tn_optim_steps(tn_deepspeed_optim(d)), taken);
        }
        assert_true(scale_of(d) == r.scale);
        tn_deepspeed_free(d);
        tn_module_finish(&m);
    }
}

/* A scale set in the file stays; in bf16 it is 1, and steps that overflow are still skipped. */
TEST(test_fixed_scale) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        tn_linear m;
        tn_deepspeed *d =
            linear_begin(&m, bf16 ? "bf16" : "fp16", bf16 ? "" : "\"loss_scale\": 128");
        for (int i = 0; i < 8; i++) {
            assert_int_equal(linear_step(d, &m, i % 4 != 3), TN_OK);
            assert_true(scale_of(d) == (bf16 ? 1 : 128));
        }
        assert_int_equal(tn_optim_steps(tn_deepspeed_optim(d)), 2);
        tn_deepspeed_free(d);
        tn_module_finish(&m);
    }
}

/* A run that only overflows ends with an error, not without having learnt anything. */
TEST(test_least_scale) {
    tn_linear m;
    tn_deepspeed *d = linear_begin(&m, "fp16", "\"initial_scale_power\": 3, \"min_loss_scale\": 3");
    assert_int_equal(linear_step(d, &m, true), TN_OK);
    assert_int_equal(linear_step(d, &m, true), TN_OK);
    assert_true(scale_of(d) == 3); /* not 2 */
    assert_fails(linear_step(d, &m, true), TN_ESTATE,
                 "gradients overflow with a loss scale of 3, and fp16.min_loss_scale");
    tn_deepspeed_free(d);
    tn_module_finish(&m);
}

/* ---- Resuming -------------------------------------------------------------------------------- */

/* Three steps, a checkpoint, and three more by the run that loads it. */
static void train_steps(tn_group *world, mesh_model *m, tn_deepspeed *d, int64_t from, int64_t to) {
    for (int64_t i = 2 * from; i < 2 * to; i++) {
        TN_SCOPE;
        tn_deepspeed_backward(d, micro_loss(m, world, i / 2, i % 2));
        CHECK(tn_deepspeed_step(d) == TN_OK);
    }
}

static tn_checkpoint checkpoint_of(tn_deepspeed *d) {
    tn_checkpoint c = tn_deepspeed_checkpoint(d);
    c.generator = tn_default_generator();
    return c;
}

static void goes_on(tn_group *world, void *user) {
    const plan *p = user;
    char folder[512];
    snprintf(folder, sizeof(folder), "%s.saved", p->path);
    tn_saver *saver = tn_saver_new(world, folder, tn_saver_defaults());
    mesh_model m;
    mesh_init(&m, &shape, 7, false);
    tn_deepspeed *d = tn_deepspeed_new(&m, world, p->path);
    train_steps(world, &m, d, 0, 3);
    tn_checkpoint c = checkpoint_of(d);
    CHECK(c.step == 3 && tn_saver_save(saver, &c) == TN_OK);
    train_steps(world, &m, d, 3, STEPS);
    train_bits all = train_whole(&m, world);
    tn_deepspeed_free(d);
    tn_module_finish(&m);

    mesh_init(&m, &shape, 7, false);
    d = tn_deepspeed_new(&m, world, p->path);
    c = checkpoint_of(d);
    bool found;
    CHECK(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 3);
    CHECK(tn_deepspeed_lr(d) == 0.01 * (2.0 / 3));
    train_steps(world, &m, d, c.step, STEPS);
    train_bits parts = train_whole(&m, world);
    CHECK(train_same(all, parts));
    tn_saver_free(saver);
    tn_deepspeed_free(d);
    tn_module_finish(&m);
    free(all.data);
    free(parts.data);
}

TEST(test_goes_on) {
    static const int ranks[] = {1, 2, 2}, stages[] = {0, 0, 3};
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "ds%d.json", i);
        plan p = {.ranks = ranks[i],
                  .stage = stages[i],
                  .precision = "fp16",
                  .optimizer = "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}",
                  .clipping = 1,
                  .accumulation = 2,
                  .path = temp_path(name)};
        write_file(&p);
        run_ok(p.ranks, goes_on, &p);
    }
}

/* ---- What is wrong --------------------------------------------------------------------------- */

TEST(test_order_of_calls) {
    tn_linear m;
    tn_deepspeed *d = linear_begin(&m, "bf16", "");
    assert_fails(tn_deepspeed_step(d), TN_ESTATE,
                 "tn_deepspeed_backward was not called after the last step");
    tn_tensor *x = tn_ones(TN_DIMS(1, 1), TN_F32);
    assert_int_equal(tn_deepspeed_backward(d, tn_sum_all(tn_call(&m, x))), TN_OK);
    assert_fails(tn_deepspeed_backward(d, tn_sum_all(tn_call(&m, x))), TN_ESTATE,
                 "tn_deepspeed_step was not called after the last backward");
    assert_int_equal(tn_deepspeed_step(d), TN_OK);
    tn_deepspeed_free(d);
    tn_module_finish(&m);
}

TEST(test_own_optimiser) {
    const char *path = temp_path("none.json");
    temp_write(path, "{\"train_batch_size\": 1}", 23);
    tn_linear m;
    tn_linear_init(&m, 1, 1, tn_linear_defaults());
    tn_deepspeed *d = tn_deepspeed_new(&m, NULL, path);
    tn_tensor *loss = tn_sum_all(tn_call(&m, tn_ones(TN_DIMS(1, 1), TN_F32)));
    assert_true(d && !tn_deepspeed_optim(d) && isnan(tn_deepspeed_lr(d)));
    assert_fails(tn_deepspeed_backward(d, loss), TN_ESTATE,
                 "the file has no optimizer, and tn_deepspeed_set_optim was not called");
    assert_fails(tn_deepspeed_set_optim(d, NULL), TN_EVALUE, "the optimiser is NULL");
    assert_int_equal(tn_deepspeed_set_optim(d, tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.5))), TN_OK);
    tn_optim *lion = tn_lion(&m, TN_WITH(tn_lion, .lr = 0.25));
    assert_int_equal(tn_deepspeed_set_optim(d, lion), TN_OK); /* the other one is freed */
    assert_true(tn_deepspeed_optim(d) == lion && tn_deepspeed_lr(d) == 0.25);
    assert_int_equal(tn_deepspeed_backward(d, loss), TN_OK);
    for (int i = 0; i < 2; i++) {
        assert_fails(tn_deepspeed_set_optim(d, lion), TN_ESTATE, "the training has begun");
        assert_int_equal(i == 0 ? tn_deepspeed_step(d) : TN_OK, TN_OK);
    }
    tn_deepspeed_free(d);
    tn_module_finish(&m);
}

/* What is wrong on one rank is an error on all, and the group can be used. */
static void wrong_on_a_rank(tn_group *world, void *user) {
    const char *path = user;
    bool missing = strstr(path, "missing"), mine = tn_group_rank(world) == 1;
    tn_linear m;
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    CHECK(!tn_deepspeed_new(&m, world, path) &&
          failed_with(missing ? TN_EIO : TN_EUNSUPPORTED,
                      missing ? "missing.json" : "wrong.json: optimiser"));
    CHECK(!tn_deepspeed_new(mine ? NULL : &m, world, path));
    CHECK(tn_error() == (missing && !mine ? TN_EIO : TN_EVALUE));
    tn_error_clear();
    CHECK(tn_barrier(world) == TN_OK);
    tn_module_finish(&m);
}

TEST(test_wrong_file) {
    const char *path = temp_path("wrong.json");
    temp_write(path, "{\"optimiser\": {}}", 17);
    run_ok(2, wrong_on_a_rank, path);
    run_ok(2, wrong_on_a_rank, temp_path("missing.json"));
}

static int logged;

static void count_logged(tn_log_level level, const char *message, void *user) {
    logged += level == TN_LOG_WARN && strstr(message, "no effect here: steps_per_print, "
                                                      "zero_optimization.overlap_comm") != NULL;
}

static void make_and_free(tn_group *world, void *user) {
    tn_linear m;
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_deepspeed *d = tn_deepspeed_new(&m, world, user);
    CHECK(d && tn_deepspeed_lr(d) == 1e-3 && isnan(tn_deepspeed_norm(d)));
    tn_deepspeed_free(d);
    tn_module_finish(&m);
}

/* Once in a job, not once a rank. The module has no blocks: all of it is one unit. */
TEST(test_one_warning) {
    static const char text[] = "{\"train_batch_size\": 4, \"steps_per_print\": \"auto\", "
                               "\"zero_optimization\": {\"overlap_comm\": true, \"stage\": 3}, "
                               "\"optimizer\": {\"type\": \"SGD\"}}";
    const char *path = temp_path("idle.json");
    temp_write(path, text, strlen(text));
    tn_log_to(count_logged, TN_LOG_WARN, NULL);
    run_ok(2, make_and_free, path);
    tn_log_to(NULL, TN_LOG_INFO, NULL);
    assert_int_equal(logged, 1);
}
