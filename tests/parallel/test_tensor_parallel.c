/* Tensor parallelism: what is cut, under data parallelism and sharding, the loss, and what is
 * refused. That a model trains as on one rank is in test_meshes.c. Ranks are threads. */
#include "tests/parallel/train.h"

#include "core/allocator.h"
#include "tests/support/temp.h"

enum { BATCH = TRAIN_ROWS, LENGTH = MESH_LENGTH, VOCAB = 29 };

static train_run run_of(const char *mesh, bool llama) {
    train_run run = train_on_mesh(mesh, llama, 2);
    run.ignored = 1; /* two targets of a batch do not count */
    return run;
}

/* Dropout draws different masks than on one rank: it trains, and ranks agree. */
TEST(test_sequence_with_dropout) {
    train_run run = run_of("tp=2,sequence", false);
    run.recompute = RECOMPUTE_OVER;
    run.model.dropout = 0.1;
    train_end first = train_on_threads(run);
    train_expect(&first, run, 0);
    free(first.bits.data);
}

/* What ranks draw apart does not move the generator, from which they go on to draw alike. */
RANKS_TEST(test_sequence_and_the_generator, 2) {
    TN_SCOPE;
    train_run p = run_of("tp=2", false);
    p.model.dropout = 0.1;
    mesh_model m;
    train_model(&m, &p, 3);
    CHECK(tn_tensor_parallel(&m, world, TN_WITH(tn_tp, .sequence = true)) == TN_OK);
    tn_seed(1);
    tn_call(&m, train_tokens(&p, 0));
    CHECK(tn_default_generator()->call > 0 && tn_default_generator()->call >> 32 == 0);
    tn_module_finish(&m);
}

/* Frozen parameters, and gradients in another dtype: a block keeps what the whole parameter had. */
RANKS_TEST(test_blocks_are_like_wholes, 2) {
    TN_SCOPE;
    train_run p = run_of("tp=2", false);
    mesh_model m;
    train_model(&m, &p, 3);
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

/* Under data parallelism and sharding: the bits of tensor parallelism that accumulates. */
TEST(test_below_data_parallelism) {
    static const char *const meshes[] = {"tp=2,dp=2", "tp=2,shard=2,stage=1",
                                         "tp=2,shard=2,stage=2", "tp=2,shard=2,stage=3",
                                         "tp=2,shard=2,dp=2"};
    for (int k = 0; k < 5 * 8; k++) {
        train_run run = run_of(meshes[k / 8], k & 1);
        run.bf16 = k & 2;
        run.recompute = k & 4 ? RECOMPUTE_OVER : RECOMPUTE_NONE;
        run.model.dropout = 0.1;
        train_end want = train_on_threads(train_oracle(run, "tp=2"));
        run.deferred = strstr(run.mesh, "stage=3");
        train_expect(&want, run, 0);
        free(want.bits.data);
    }
}

/* A policy set before cutting, and one set after it. */
TEST(test_precision_before_and_after) {
    train_run run = run_of("tp=2", false);
    run.bf16 = true;
    train_end before = train_on_threads(run);
    run.late = true;
    train_expect(&before, run, 0);
    free(before.bits.data);
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
    tn_cross_entropy_options o = TN_WITH(tn_cross_entropy, .reduction = c->how);
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

TEST(test_loss_of_columns) {
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

TEST(test_losses_refused) {
    run_ok(2, rules_columns_out, NULL);
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    assert_contains(run_failing(2, asks_for, &o, TN_EINDEX), "label 4");
    o.label_smoothing = 0.1;
    run_failing(2, asks_for, &o, TN_EUNSUPPORTED);
}

/* ---- As bytes -------------------------------------------------------------------------------- */

/* Quantised weights: blocks are rounded separately, so the logits are only near those of floats. */
static void writes_bytes(tn_group *world, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    train_run p = run_of("tp=2", *(const bool *)user);
    mesh_model m, whole;
    train_model(&m, &p, 3);
    train_model(&whole, &p, 3);
    CHECK(tn_tensor_parallel(&m, world, tn_tp_defaults()) == TN_OK);
    CHECK(tn_quantize(&m) == TN_OK);
    tn_module_train(&m, false);
    tn_module_train(&whole, false);
    tn_tensor *is = tn_call(&m, train_tokens(&p, 0)), *want = tn_call(&whole, train_tokens(&p, 0));
    double far = tn_item(tn_sum_all(tn_abs(tn_sub(is, want)))) / tn_item(tn_sum_all(tn_abs(want)));
    CHECK(far > 0 && far < 0.03);
    tn_module_finish(&m);
    tn_module_finish(&whole);
}

TEST(test_quantised) {
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

/* Orders of calls are in test_mesh_refused.c. */
static const refusal refusals[] = {
    {"heads", TN_ESHAPE, "3 ranks do not divide 4 heads (1, 2, 4 would)", 3},
    {"typo", TN_EVALUE, "\"h.*.attention\"", 2},
    {"kind", TN_EVALUE, "h.0.ln_1 is a layer_norm; the plan needs a linear there", 2},
    {"tie", TN_EVALUE, "the plan must cut both alike", 2},
    {"two rules", TN_EVALUE, "two rules of the plan name ln_f", 2},
    {"after optimiser", TN_ESTATE, "is held by an optimiser", 2},
    {"no plan", TN_EVALUE, "no plan is given, and a linear has none", 2},
    {"other width", TN_EMISMATCH, "but rank 1 has", 2},
    {"save", TN_EUNSUPPORTED, "", 2},
    {"positions", TN_ESHAPE, "do not divide dimension 1", 2},
};

static tn_status refuse_plan(mesh_model *m, tn_group *g, const char *paths, tn_tp_style style) {
    const tn_tp_rule plan[] = {{"ln_f", TN_TP_SEQUENCE, 1}, {paths, style, 1}, {0}};
    return tn_tensor_parallel(m, g, TN_WITH(tn_tp, .plan = plan));
}

static void is_refused(tn_group *g, void *user) {
    TN_SCOPE;
    const refusal *r = user;
    mesh_model m;
    train_run p = run_of("tp=2", false);
    p.model.dropout = strcmp(r->name, "other width") == 0 ? tn_group_rank(g) * 0.5 : 0;
    train_model(&m, &p, 3);
    tn_tp_options o = tn_tp_defaults();
    tn_optim *opt = NULL;
    tn_linear alone;
    tn_linear_init(&alone, 3, 4 + (strcmp(r->name, "other width") == 0 ? tn_group_rank(g) : 0),
                   tn_linear_defaults());
    if (strcmp(r->name, "typo") == 0) {
        refuse_plan(&m, g, "wte h.*.attention", TN_TP_ENTER);
    } else if (strcmp(r->name, "kind") == 0) {
        refuse_plan(&m, g, "h.0.ln_1", TN_TP_ROW);
    } else if (strcmp(r->name, "two rules") == 0) {
        refuse_plan(&m, g, "ln_f", TN_TP_SEQUENCE);
    } else if (strcmp(r->name, "tie") == 0) {
        refuse_plan(&m, g, "wte", TN_TP_VOCAB);
    } else if (strcmp(r->name, "no plan") == 0) {
        tn_tensor_parallel(&alone, g, o);
    } else if (strcmp(r->name, "other width") == 0) {
        const tn_tp_rule plan[] = {{0}};
        o.plan = plan;
        tn_tensor_parallel(&alone, g, o);
    } else if (strcmp(r->name, "after optimiser") == 0) {
        opt = tn_sgd(&m, tn_sgd_defaults());
        tn_tensor_parallel(&m, g, o);
    } else {
        o.sequence = strcmp(r->name, "positions") == 0;
        tn_tensor_parallel(&m, g, o);
        if (strcmp(r->name, "save") == 0) {
            tn_save(&m, temp_path("cut.safetensors"));
        } else if (strcmp(r->name, "positions") == 0) {
            tn_lm_loss(&m, tn_zeros(TN_DIMS(1, 7), TN_I64), tn_zeros(TN_DIMS(1, 7), TN_I64));
        }
    }
    tn_optim_free(opt);
    tn_module_finish(&alone);
    tn_module_finish(&m);
}

TEST(test_what_is_refused) {
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const refusal *r = &refusals[i];
        const char *said = run_failing(r->ranks, is_refused, r, r->status);
        if (!strstr(said, r->says)) { fail_msg("%s: %s", r->name, said); }
    }
}

/* An allocation of either rank fails while both cut: an error, and the module can be finished. */
static void runs_out_of_memory(tn_group *g, void *user) {
    TN_SCOPE;
    train_run p = run_of("tp=2", false);
    mesh_model m;
    train_model(&m, &p, 3);
    tn_barrier(g);
    if (tn_group_rank(g) == 0) { tn__alloc_fail_at(*(const int64_t *)user); }
    tn_tensor_parallel(&m, g, TN_WITH(tn_tp, .sequence = true));
    tn_error_record e;
    if (tn_error_take(&e)) { /* as before, or unusable, and nothing in it was freed */
        tn_call(&m, train_tokens(&p, 0));
        CHECK(tn_error() == TN_OK || strstr(tn_error_message(), "not complete"));
        tn_error_clear();
        tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
        tn_optim_clip(opt, 1);
        tn_optim_free(opt);
        tn_error_clear();
        tn_error_give(&e);
    }
    tn_module_finish(&m);
}

TEST(test_memory_that_runs_out) {
    bool failed = true;
    int64_t n = 0;
    for (; failed; n += 5) {
        failures = 0;
        tn_local_run(2, runs_out_of_memory, &n);
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_int_equal(tn_error() != TN_OK, failed);
        assert_int_equal(failures, 0);
        tn_error_clear();
    }
    assert_true(n > 100);
}
