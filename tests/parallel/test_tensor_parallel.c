/* Tensor parallelism: cut over any number of ranks, alone and under data parallelism and sharding,
 * a model trains and generates as on one rank. Ranks are threads. */
#include "tests/distributed/rank_check.h"

#include "tests/support/temp.h"
#include "train.h"

enum { BATCH = 2, LENGTH = 8, VOCAB = 29, MOST_RANKS = 8, STEPS = 20, MOST_NUMBERS = 20000 };

typedef struct program {
    bool llama, sequence, bf16, recompute, deferred, evaluate, late_policy;
    double dropout;
    int tp, shard, dp; /* ranks */
    int stage;
    int micros; /* per step, on all ranks */
    int steps;
    double losses[STEPS], norm;
    train_bits bits; /* rank 0's copy of all parameters */
} program;

static program program_of(bool llama, int tp) {
    return (program){.llama = llama, .tp = tp, .shard = 1, .dp = 1, .micros = 1, .steps = STEPS};
}

typedef union model {
    tn_module base;
    tn_gpt gpt;
    tn_llama llama;
} model;

static void init_gpt(tn_gpt *m, const program *p) {
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = VOCAB;
    o.context = LENGTH;
    o.layers = 2;
    o.heads = 4;
    o.width = 16;
    o.dropout = p->dropout;
    tn_gpt_init(m, o);
    for (int i = 0; i < o.layers; i++) {
        tn_module_set_recompute(&m->h[i], p->recompute);
    }
}

static void init_llama(tn_llama *m, const program *p) {
    tn_llama_options o = tn_llama_defaults();
    o.vocab = VOCAB;
    o.context = LENGTH;
    o.layers = 2;
    o.heads = 8;
    o.kv_heads = 4;
    o.width = 16;
    o.hidden = 24;
    tn_llama_init(m, o);
    for (int i = 0; i < o.layers; i++) {
        tn_module_set_recompute(&m->layers[i], p->recompute);
    }
}

/* Each rank draws different weights; rank 0's are used. */
static void init_model(model *m, const program *p, int rank) {
    tn_seed(3 + (uint64_t)rank);
    if (p->deferred) {
        TN_DEFER_INIT;
        p->llama ? init_llama(&m->llama, p) : init_gpt(&m->gpt, p);
    } else {
        p->llama ? init_llama(&m->llama, p) : init_gpt(&m->gpt, p);
    }
    tn_seed(5);
}

static tn_tensor *tokens_of(int64_t number, tn_dtype dtype) {
    int64_t tokens[BATCH * LENGTH];
    tn_generator g = {.seed = 11, .stream = (uint64_t)number};
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = tn_random_below(&g, VOCAB);
    }
    if (number & 1) { /* targets, two of which are ignored */
        tokens[3] = tokens[9] = -100;
    }
    return tn_cast(TN_FROM(tokens, TN_DIMS(BATCH, LENGTH), TN_I64), dtype);
}

/* Splits the model as a program would. */
static tn_mesh *split_model(model *m, tn_group *world, const program *p) {
    int sizes[] = {p->dp, p->shard, p->tp};
    tn_mesh *mesh = tn_mesh_new(world, 3, sizes, (const char *[]){"dp", "shard", "tp"});
    tn_tp_options o = tn_tp_defaults();
    o.sequence = p->sequence;
    if (p->deferred) {
        TN_DEFER_INIT; /* as if still open from init */
        CHECK(tn_tensor_parallel(m, tn_mesh_group(mesh, "tp"), o) == TN_OK);
    } else {
        CHECK(tn_tensor_parallel(m, tn_mesh_group(mesh, "tp"), o) == TN_OK);
    }
    if (p->late_policy) {
        tn_module_set_precision(m, tn_precision_defaults());
    }
    if (p->shard == 1) { /* what was not cut */
        tn_module_materialize(m);
    }
    if (p->shard > 1) {
        tn_fsdp_options f = tn_fsdp_defaults();
        f.stage = p->stage;
        f.sum = true;
        tn_fsdp(m, tn_mesh_group(mesh, "shard"), p->dp > 1 ? tn_mesh_group(mesh, "dp") : NULL, f);
    } else if (p->dp > 1) {
        tn_ddp_options d = tn_ddp_defaults();
        d.sum = true;
        tn_ddp(m, tn_mesh_group(mesh, "dp"), d);
    }
    return mesh;
}

static void evaluate_model(model *m) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_module_train(m, false);
    tn_tensor *logits = tn_call(m, tokens_of(2, TN_I64));
    CHECK(tn_size(logits, 2) == VOCAB && isfinite(tn_item(tn_sum_all(logits))));
    tn_module_train(m, true);
}

static double train_micro(model *m, const program *p, int64_t number) {
    TN_SCOPE;
    if (p->dp * p->shard == 1) {
        *tn_default_generator() = (tn_generator){.seed = 5, .stream = (uint64_t)number + 1};
    }
    tn_dtype dtype = number & 1 ? TN_I32 : TN_I64;
    tn_tensor *loss = tn_lm_loss(m, tokens_of(2 * number, dtype), tokens_of(2 * number + 1, dtype));
    if (p->evaluate) {
        evaluate_model(m);
    }
    tn_backward(tn_mul_scalar(loss, 1.0 / p->micros));
    return tn_item(loss);
}

static void train_program(tn_group *world, void *user) {
    TN_SCOPE;
    program *p = user;
    model m;
    init_model(&m, p, tn_group_rank(world));
    if (p->bf16 && !p->late_policy) {
        tn_module_set_precision(&m, tn_precision_defaults());
    }
    tn_mesh *mesh = world ? split_model(&m, world, p) : NULL;
    tn_group *data = mesh ? tn_mesh_group(mesh, "dp shard") : NULL; /* with different batches */
    if (!world && p->late_policy) {
        tn_module_set_precision(&m, tn_precision_defaults());
    }
    if (!world) {
        tn_module_materialize(&m);
    }
    int ranks = p->dp * p->shard, rank = ranks > 1 ? tn_group_rank(data) : 0;
    bool first = tn_group_rank(world) == 0;
    tn_optim *opt = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 1e-3));
    for (int step = 0; step < p->steps && !tn_error(); step++) {
        for (int i = rank; i < p->micros; i += ranks) {
            double loss = train_micro(&m, p, (int64_t)step * p->micros + i);
            if (first) {
                p->losses[step] = loss;
            }
        }
        double norm = tn_optim_clip(opt, 0.5);
        if (first) {
            p->norm = norm;
        }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    CHECK(tn_module_count(&m) > 1000 || world);
    train_bits bits = train_whole(&m, world);
    if (first) {
        p->bits = bits;
    } else {
        free(bits.data);
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

static program end_of(program p) {
    int ranks = p.tp * p.shard * p.dp;
    if (ranks > 1) {
        run_ok(ranks, train_program, &p);
    } else {
        train_program(NULL, &p);
        assert_int_equal(tn_error(), TN_OK);
    }
    assert_true(p.bits.bytes > 4000);
    return p;
}

/* The largest difference in any parameter. */
static double difference_of(const program *a, const program *b) {
    assert_int_equal(a->bits.bytes, b->bits.bytes);
    return train_difference(a->bits, b->bits);
}

static void expect_near(program p, double within) {
    program alone = p;
    alone.tp = 1;
    program one = end_of(alone), cut = end_of(p);
    double most = difference_of(&one, &cut);
    if (!(most <= within)) {
        fail_msg("llama %d tp %d sequence %d recompute %d deferred %d dropout %g: %g", p.llama,
                 p.tp, p.sequence, p.recompute, p.deferred, p.dropout, most);
    }
    for (int i = 0; i < p.steps; i++) {
        assert_true(fabs(one.losses[i] - cut.losses[i]) < within);
    }
    assert_true(fabs(one.norm / cut.norm - 1) < within);
    free(one.bits.data);
    free(cut.bits.data);
}

static void test_one_ranks_numbers(void **state) {
    (void)state;
    for (int k = 0; k < 16; k++) {
        program p = program_of(k & 1, k & 2 ? 4 : 2);
        p.recompute = k & 4;
        p.deferred = k & 8;
        p.evaluate = k & 8;
        p.dropout = k & 4 ? 0.1 : 0;
        expect_near(p, 1e-5);
    }
}

static void test_sequence(void **state) {
    (void)state;
    for (int k = 0; k < 8; k++) {
        program p = program_of(k & 1, k & 2 ? 4 : 2);
        p.sequence = true;
        p.recompute = p.evaluate = k & 4;
        expect_near(p, 1e-5);
    }
}

/* Dropout draws other masks than on one rank: it trains, and ranks agree (train_whole checks). */
static void test_sequence_with_dropout(void **state) {
    (void)state;
    program p = program_of(false, 2);
    p.sequence = p.recompute = true;
    p.dropout = 0.1;
    program a = end_of(p), b = end_of(p);
    assert_true(train_same(a.bits, b.bits));
    free(a.bits.data);
    free(b.bits.data);
}

/* Adds up the positions of a dropout's zeros: ranks that share the mask get the same sum. */
static tn_values look_at_zeros(tn_module *m, tn_values in, tn_values out, void *user) {
    (void)m;
    (void)in;
    TN_NO_GRAD;
    tn_tensor *zeros = tn_cast(tn_eq(out.v[0], tn_zeros(TN_DIMS(), TN_F32)), TN_F32);
    tn_tensor *place = tn_arange(0, tn_size(out.v[0], 2), 1, TN_F32);
    *(double *)user = tn_item(tn_sum_all(tn_mul(zeros, place)));
    return out;
}

static void drops_apart(tn_group *world, void *user) {
    TN_SCOPE;
    program p = program_of(false, 2);
    p.dropout = 0.5;
    model m;
    init_model(&m, &p, 0);
    tn_tp_options o = tn_tp_defaults();
    o.sequence = *(const bool *)user;
    tn_tensor_parallel(&m, world, o);
    double mine = 0;
    tn_module_hook(&m.gpt.stem.drop, (tn_module_hooks){.after = look_at_zeros, .user = &mine});
    uint64_t calls = tn_default_generator()->call;
    tn_tensor *same = tn_zeros(TN_DIMS(BATCH, LENGTH), TN_I64);
    tn_lm_loss(&m, same, same);
    double mean = tn_group_mean(world, mine, 1);
    CHECK(mine > 0 && (mean != mine) == o.sequence);
    CHECK(tn_default_generator()->call - calls < 1 << 20); /* no further than on one rank */
    tn_module_finish(&m);
}

static void test_dropout_masks(void **state) {
    (void)state;
    for (int sequence = 0; sequence < 2; sequence++) {
        run_ok(2, drops_apart, &(bool){sequence});
    }
}

/* Frozen parameters, and gradients in another dtype: a block keeps what the whole parameter had. */
static void keeps_what_a_leaf_is(tn_group *world, void *user) {
    TN_SCOPE;
    (void)user;
    program p = program_of(false, 2);
    model m;
    init_model(&m, &p, 0);
    tn_precision policy = tn_precision_defaults();
    policy.param = TN_BF16;
    tn_module_set_precision(&m, policy);
    tn_freeze(&m, "h.0.mlp.c_fc");
    CHECK(tn_tensor_parallel(&m, world, tn_tp_defaults()) == TN_OK);
    tn_tensor *same = tn_zeros(TN_DIMS(BATCH, LENGTH), TN_I64);
    tn_backward(tn_lm_loss(&m, same, same));
    tn_tensor *frozen = tn_module_get(&m, "h.0.mlp.c_fc.weight"),
              *free_one = tn_module_get(&m, "h.1.mlp.c_fc.weight");
    CHECK(!tn_requires_grad(frozen) && !tn_grad_of(frozen));
    CHECK(tn_dtype_of(free_one) == TN_BF16 && tn_dtype_of(tn_grad_of(free_one)) == TN_F32);
    CHECK(tn_module_get(&m, "lm_head.weight") == tn_module_get(&m, "wte.weight"));
    tn_module_finish(&m);
}

static void test_blocks_are_like_wholes(void **state) {
    (void)state;
    run_ok(2, keeps_what_a_leaf_is, NULL);
}

static void expect_same(program a, program b) {
    a = end_of(a);
    b = end_of(b);
    if (!train_same(a.bits, b.bits)) {
        fail_msg("llama %d bf16 %d recompute %d: tp %d x shard %d (stage %d) x dp %d differs by %g",
                 b.llama, b.bf16, b.recompute, b.tp, b.shard, b.stage, b.dp, difference_of(&a, &b));
    }
    free(a.bits.data);
    free(b.bits.data);
}

/* Under data parallelism and sharding: the bits of tensor parallelism that accumulates. */
static void test_below_data_parallelism(void **state) {
    (void)state;
    for (int k = 0; k < 8; k++) {
        program p = program_of(k & 1, 2);
        p.steps = 3;
        p.micros = 2;
        p.bf16 = k & 2;
        p.recompute = k & 4;
        p.dropout = 0.1;
        p.sequence = k == 4;
        program q = p;
        q.dp = 2;
        expect_same(p, q);
        q.dp = 1;
        q.shard = 2;
        for (q.stage = 1; q.stage <= 3; q.stage++) {
            q.deferred = q.stage == 3;
            expect_same(p, q);
        }
    }
}

static void test_all_three(void **state) {
    (void)state;
    program p = program_of(true, 2);
    p.steps = 3;
    p.micros = 4;
    program q = p;
    q.shard = q.dp = 2;
    q.stage = 3;
    p = end_of(p);
    q = end_of(q);
    assert_true(difference_of(&p, &q) < 1e-6); /* four gradients are summed in pairs */
    free(p.bits.data);
    free(q.bits.data);
}

/* A policy set before cutting, and one set after it. */
static void test_precision_before_and_after(void **state) {
    (void)state;
    program p = program_of(false, 2);
    p.steps = 3;
    p.bf16 = true;
    program q = p;
    q.late_policy = true;
    expect_same(p, q);
}

/* ---- The loss -------------------------------------------------------------------------------- */

typedef struct loss_case {
    int classes;
    tn_dtype dtype;
    tn_reduction how;
    bool ignored; /* all rows */
} loss_case;

enum { ROWS = 6 };

static tn_tensor *logits_of(const loss_case *c) {
    tn_generator g = {.seed = 4};
    return tn_cast(tn_normal_(tn_empty(TN_DIMS(2, ROWS / 2, c->classes), TN_F32), 0, 3, &g),
                   c->dtype);
}

static tn_tensor *labels_of(const loss_case *c) {
    int32_t at[ROWS];
    for (int i = 0; i < ROWS; i++) {
        at[i] = c->ignored || i == 2 ? -100 : i * 7 % c->classes;
    }
    return TN_FROM(at, TN_DIMS(2, ROWS / 2), TN_I32);
}

static void compare_loss(tn_group *g, void *user) {
    TN_SCOPE;
    const loss_case *c = user;
    int64_t each = (c->classes + tn_group_size(g) - 1) / tn_group_size(g),
            first = each * tn_group_rank(g);
    int64_t count = c->classes - first < each ? c->classes - first : each;
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    o.reduction = c->how;
    tn_tensor *whole = tn_set_requires_grad(logits_of(c), true), *labels = labels_of(c);
    tn_tensor *want = tn_cross_entropy_with(whole, labels, o);
    tn_backward(tn_sum_all(want));
    tn_tensor *part = tn_set_requires_grad(tn_copy(tn_narrow(logits_of(c), 2, first, count)), true);
    tn_tensor *is = tn_dist_cross_entropy(g, part, labels, c->classes, o);
    tn_backward(tn_sum_all(is));
    TN_NO_GRAD;
    if (c->ignored && c->how == TN_MEAN) {
        CHECK(isnan(tn_item(is)));
        return;
    }
    tn_tensor *off = tn_abs(tn_sub(tn_detach(is), tn_detach(want)));
    tn_tensor *most = tn_add_scalar(tn_abs(tn_detach(want)), 1.0);
    CHECK(tn_item(tn_sum_all(tn_div(off, most))) < ROWS * 1e-6);
    tn_tensor *slope = tn_narrow(tn_grad_of(whole), 2, first, count);
    tn_tensor *far = tn_sub(tn_cast(slope, TN_F64), tn_cast(tn_grad_of(part), TN_F64));
    /* bf16: the same value, rounded once */
    CHECK(tn_item(tn_max(tn_abs(far), TN_DIMS(0, 1, 2), false)) <
          (c->dtype == TN_BF16 ? 2e-3 : 1e-6));
}

static void test_loss_of_columns(void **state) {
    (void)state;
    static const int classes[] = {29, 8, 16};
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F64};
    for (int k = 0; k < 3 * 3 * 3 * 2; k++) {
        loss_case c = {classes[k % 3], dtypes[k / 3 % 3],
                       (tn_reduction[]){TN_MEAN, TN_SUM, TN_NONE}[k / 9 % 3], k / 27};
        for (int ranks = 1; ranks <= 4; ranks++) {
            run_ok(ranks, compare_loss, &c);
        }
    }
}

/* A rank whose logits are all -inf. */
static void rules_columns_out(tn_group *g, void *user) {
    TN_SCOPE;
    (void)user;
    bool out = tn_group_rank(g) == 1;
    tn_tensor *x = tn_full(TN_DIMS(1, 2), out ? -INFINITY : 1.0, TN_F32);
    tn_tensor *label = tn_full(TN_DIMS(1), 0, TN_I64);
    tn_tensor *part = tn_set_requires_grad(x, true);
    tn_tensor *loss = tn_dist_cross_entropy(g, part, label, 4, tn_cross_entropy_defaults());
    tn_backward(loss);
    CHECK(fabs(tn_item(loss) - log(2)) < 1e-6);
    CHECK(fabs(tn_item(tn_select(tn_select(tn_grad_of(part), 0, 0), 0, 1)) - (out ? 0 : 0.5)) <
          1e-6);
}

static void asks_for(tn_group *g, void *user) {
    TN_SCOPE;
    const tn_cross_entropy_options *o = user;
    int64_t label = o->label_smoothing > 0 ? 0 : 4;
    tn_dist_cross_entropy(g, tn_zeros(TN_DIMS(1, 2), TN_F32), TN_FROM(&label, TN_DIMS(1), TN_I64),
                          4, *o);
}

static void test_losses_refused(void **state) {
    (void)state;
    run_ok(2, rules_columns_out, NULL);
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    assert_non_null(strstr(run_failing(2, asks_for, &o, TN_EINDEX), "label 4"));
    o.label_smoothing = 0.1;
    run_failing(2, asks_for, &o, TN_EUNSUPPORTED);
}

/* ---- Generating ------------------------------------------------------------------------------ */

typedef struct text {
    bool llama;
    double temperature;
    int32_t ids[2][16];
    int64_t count;
} text;

static void write_text(tn_group *world, void *user) {
    text *t = user;
    program p = program_of(t->llama, tn_group_size(world));
    model m;
    init_model(&m, &p, 0);
    if (world) { /* `sequence` is for training only */
        tn_tp_options cut = tn_tp_defaults();
        cut.sequence = true;
        CHECK(tn_tensor_parallel(&m, world, cut) == TN_OK);
    }
    tn_module_train(&m, false);
    const int32_t first[] = {3, 1, 4}, second[] = {2};
    tn_prompt prompts[] = {{first, 3}, {second, 1}};
    tn_generated out[2];
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = 12, .temperature = t->temperature, .seed = 6);
    CHECK(tn_generate(&m, prompts, 2, o, out) == TN_OK);
    for (int i = 0; i < 2 && !tn_error(); i++) {
        CHECK(out[i].tokens.count >= 12);
        for (int k = 0; k < 12; k++) {
            int32_t id = out[i].tokens.ids[k];
            if (world) {
                CHECK(id == t->ids[i][k]);
            } else {
                t->ids[i][k] = id;
            }
        }
    }
    tn_generated_free(out, 2);
    tn_module_finish(&m);
}

/* Also beyond the context, where the caches begin again. */
static void test_generated_text(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        text t = {.llama = k & 1, .temperature = k & 2 ? 1 : 0};
        write_text(NULL, &t);
        for (int ranks = 2; ranks <= 4; ranks *= 2) {
            run_ok(ranks, write_text, &t);
        }
    }
}

/* Quantised weights: blocks are rounded separately, so the logits are only near those of floats. */
static void writes_bytes(tn_group *world, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    program p = program_of(*(const bool *)user, tn_group_size(world));
    model m, whole;
    init_model(&m, &p, 0);
    init_model(&whole, &p, 0);
    CHECK(tn_tensor_parallel(&m, world, tn_tp_defaults()) == TN_OK);
    CHECK(tn_quantize(&m) == TN_OK);
    tn_module_train(&m, false);
    tn_module_train(&whole, false);
    tn_tensor *is = tn_call(&m, tokens_of(0, TN_I64)),
              *want = tn_call(&whole, tokens_of(0, TN_I64));
    double far = tn_item(tn_sum_all(tn_abs(tn_sub(is, want)))) / tn_item(tn_sum_all(tn_abs(want)));
    CHECK(far > 0 && far < 0.03);
    tn_module_finish(&m);
    tn_module_finish(&whole);
}

static void test_quantised(void **state) {
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        run_ok(2, writes_bytes, &(bool){llama});
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

typedef struct refusal {
    const char *name;
    tn_status status;
    const char *says;
    int ranks;
} refusal;

static const refusal refusals[] = {
    {"heads", TN_ESHAPE, "3 ranks do not divide 4 heads (1, 2, 4 would)", 3},
    {"typo", TN_EVALUE, "\"h.*.attention\"", 2},
    {"kind", TN_EVALUE, "ln_f is a layer_norm; the plan needs a linear there", 2},
    {"tie", TN_EVALUE, "the plan must cut both alike", 2},
    {"twice", TN_ESTATE, "is cut already", 2},
    {"after ddp", TN_ESTATE, "is under data parallelism already", 2},
    {"after optimiser", TN_ESTATE, "is held by an optimiser", 2},
    {"no plan", TN_EVALUE, "no plan is given, and a linear has none", 2},
    {"other width", TN_EMISMATCH, "but rank 1 has", 2},
    {"save", TN_EUNSUPPORTED, "", 2},
    {"positions", TN_ESHAPE, "do not divide dimension 1", 2},
};

static tn_status refuse_plan(model *m, tn_group *g, const char *paths, tn_tp_style style) {
    const tn_tp_rule plan[] = {{paths, style, 1}, {0}};
    tn_tp_options o = tn_tp_defaults();
    o.plan = plan;
    return tn_tensor_parallel(m, g, o);
}

static void is_refused(tn_group *g, void *user) {
    TN_SCOPE;
    const refusal *r = user;
    model m;
    program p = program_of(false, 2);
    p.dropout = strcmp(r->name, "other width") == 0 ? tn_group_rank(g) * 0.5 : 0;
    init_model(&m, &p, 0);
    tn_tp_options o = tn_tp_defaults();
    tn_optim *opt = NULL;
    tn_linear alone;
    tn_linear_init(&alone, 3, 4 + (strcmp(r->name, "other width") == 0 ? tn_group_rank(g) : 0),
                   tn_linear_defaults());
    if (strcmp(r->name, "typo") == 0) {
        refuse_plan(&m, g, "wte h.*.attention", TN_TP_ENTER);
    } else if (strcmp(r->name, "kind") == 0) {
        refuse_plan(&m, g, "ln_f", TN_TP_ROW);
    } else if (strcmp(r->name, "tie") == 0) {
        refuse_plan(&m, g, "wte", TN_TP_VOCAB);
    } else if (strcmp(r->name, "no plan") == 0) {
        tn_tensor_parallel(&alone, g, o);
    } else if (strcmp(r->name, "other width") == 0) {
        const tn_tp_rule plan[] = {{0}};
        o.plan = plan;
        tn_tensor_parallel(&alone, g, o);
    } else if (strcmp(r->name, "after ddp") == 0) {
        tn_ddp(&m, g, tn_ddp_defaults());
        tn_tensor_parallel(&m, g, o);
    } else if (strcmp(r->name, "after optimiser") == 0) {
        opt = tn_sgd(&m, tn_sgd_defaults());
        tn_tensor_parallel(&m, g, o);
    } else {
        o.sequence = strcmp(r->name, "positions") == 0;
        tn_tensor_parallel(&m, g, o);
        if (strcmp(r->name, "twice") == 0) {
            tn_tensor_parallel(&m, g, o);
        } else if (strcmp(r->name, "save") == 0) {
            tn_save(&m, temp_path("cut.safetensors"));
        } else if (strcmp(r->name, "positions") == 0) {
            tn_lm_loss(&m, tn_zeros(TN_DIMS(1, 7), TN_I64), tn_zeros(TN_DIMS(1, 7), TN_I64));
        }
    }
    tn_optim_free(opt);
    tn_module_finish(&alone);
    tn_module_finish(&m);
}

static void test_what_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const refusal *r = &refusals[i];
        const char *said = run_failing(r->ranks, is_refused, (void *)r, r->status);
        if (!strstr(said, r->says)) {
            fail_msg("%s: %s", r->name, said);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_one_ranks_numbers),
        TEST(test_sequence),
        TEST(test_sequence_with_dropout),
        TEST(test_dropout_masks),
        TEST(test_blocks_are_like_wholes),
        TEST(test_below_data_parallelism),
        TEST(test_all_three),
        TEST(test_precision_before_and_after),
        TEST(test_loss_of_columns),
        TEST(test_losses_refused),
        TEST(test_generated_text),
        TEST(test_quantised),
        TEST(test_what_is_refused),
    };
    tn_set_threads(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
