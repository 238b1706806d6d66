/* What splitting refuses, by name: orders of calls that make no sense, plans that would give wrong
 * gradients, and what a program does on ranks that work on one batch. Ranks are threads. */
#include "mesh_model.h"

#include "tests/support/temp.h"

enum { ROWS = 2 };

/* ---- Orders that make no sense --------------------------------------------------------------- */

typedef void (*doing)(tn_group *world, void *m);

static void cut_matrices(tn_group *world, void *m) {
    tn_tensor_parallel(m, world, tn_tp_defaults());
}

static void split_sequences(tn_group *world, void *m) {
    tn_context_parallel(m, world, TN_CP_HEADS);
}

static void copy_model(tn_group *world, void *m) {
    tn_ddp(m, world, tn_ddp_defaults());
}

static void shard_model(tn_group *world, void *m) {
    tn_fsdp(m, world, NULL, tn_fsdp_defaults());
}

static void copy_naively(tn_group *world, void *m) {
    tn_ddp_naive(m, world);
}

static void shard_naively(tn_group *world, void *m) {
    tn_fsdp_naive(m, world);
}

static void quantise_model(tn_group *world, void *m) {
    tn_quantize(m);
}

/* tn_spread_free comes after the model is finished. */
static _Thread_local tn_spread *spreads[2];
static _Thread_local int spread_count;

static void spread_sharded(tn_group *world, void *m) {
    spreads[spread_count++] = mesh_spread(m, world, "shard=2");
}

static void spread_cut(tn_group *world, void *m) {
    spreads[spread_count++] = mesh_spread(m, world, "tp=2");
}

static const struct order {
    doing first, then;
    tn_status status;
    const char *says;
} orders[] = {
    {cut_matrices, cut_matrices, TN_ESTATE, "tensor_parallel: wte.weight is cut already"},
    {split_sequences, cut_matrices, TN_ESTATE, "tensor parallelism comes first"},
    {copy_model, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under data parallelism"},
    {shard_model, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under sharding"},
    {copy_naively, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under data parallelism"},
    {shard_naively, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under sharding"},
    {split_sequences, split_sequences, TN_ESTATE, "h.0.attn is split already"},
    {copy_model, split_sequences, TN_ESTATE, "context_parallel: gpt is under data parallelism"},
    {shard_model, split_sequences, TN_ESTATE, "context_parallel: gpt is under sharding"},
    {shard_naively, split_sequences, TN_ESTATE, "context_parallel: gpt is under sharding"},
    {spread_cut, spread_cut, TN_ESTATE, "spread: gpt is under data parallelism"},
    {spread_sharded, spread_sharded, TN_ESTATE, "spread: gpt is under sharding"},
    {spread_sharded, shard_model, TN_ESTATE, "fsdp: gpt is under sharding"},
    {spread_cut, copy_model, TN_ESTATE, "ddp: gpt is under data parallelism"},
    {cut_matrices, copy_model, TN_EMISMATCH, "f32 [14, 16], block 1 of 2"},
    {cut_matrices, shard_model, TN_EMISMATCH, "f32 [14, 16], block 1 of 2"},
    {cut_matrices, copy_naively, TN_EMISMATCH, "ddp_naive: rank 0 has parameter wte.weight"},
    {cut_matrices, shard_naively, TN_EMISMATCH, "fsdp_naive: rank 0 has parameter wte.weight"},
    {quantise_model, cut_matrices, TN_EUNSUPPORTED, "wte is quantised: cut the model first"},
    {quantise_model, copy_model, TN_EUNSUPPORTED, "wte.weight is quantised"},
    {quantise_model, shard_model, TN_EUNSUPPORTED, "wte.weight is quantised"},
    {spread_sharded, quantise_model, TN_ESTATE, "\"wte\" is sharded"},
};

static void do_both(tn_group *world, void *user) {
    const struct order *o = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    spread_count = 0;
    o->first(world, &m);
    CHECK(tn_error() == TN_OK);
    o->then(world, &m);
    tn_module_finish(&m);
    while (spread_count > 0) {
        tn_spread_free(spreads[--spread_count]);
    }
}

TEST(test_orders) {
    for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        assert_contains(run_failing(2, do_both, &orders[i], orders[i].status), orders[i].says);
    }
}

/* ---- Plans that would give wrong gradients --------------------------------------------------- */

#define RULES(...)         \
    (const tn_tp_rule[]) { \
        __VA_ARGS__, {     \
            NULL, 0, 0     \
        }                  \
    }

typedef struct wrong_plan {
    const tn_tp_rule *rules;
    bool sequence;
    const char *says;
} wrong_plan;

static void apply_plan(tn_group *world, void *user) {
    const wrong_plan *p = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    tn_tensor_parallel(&m, world, TN_WITH(tn_tp, .plan = p->rules, .sequence = p->sequence));
    tn_module_finish(&m);
}

TEST(test_plans) {
    const tn_tp_rule column = {"h.*.mlp.c_fc", TN_TP_COLUMN, 1},
                     row = {"h.*.mlp.c_proj", TN_TP_ROW, 0}, around = {"h.*.mlp", TN_TP_ENTER, 0},
                     at = {"h.*.mlp.c_fc", TN_TP_ENTER, 0};
    const wrong_plan plans[] = {
        {RULES(column, row), false, "h.0.mlp.c_fc is in 0 regions"},
        {RULES(column, row, around, at), false, "h.0.mlp.c_fc is in 2 regions"},
        {RULES({"h.*.attn", TN_TP_ENTER, 0}, {"h.*.attn.c_attn", TN_TP_COLUMN, 1}), false,
         "h.0.attn.c_attn is 3 matrices side by side"},
        {RULES(column, row, around), true, "has no style for wte"},
    };
    for (size_t i = 0; i < sizeof(plans) / sizeof(*plans); i++) {
        assert_contains(run_failing(2, apply_plan, &plans[i], TN_EVALUE), plans[i].says);
    }
    run_ok(2, apply_plan, &(wrong_plan){.rules = RULES(column, row, at)});
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

/* What a rank does, of a model on `mesh`; NULL: on no mesh yet. */
typedef struct mistake {
    const char *mesh;
    void (*make)(tn_group *world, mesh_model *m);
    tn_status status;
    const char *says;
} mistake;

static void train_apart(tn_group *world, mesh_model *m) {
    tn_tensor *x = mesh_tokens(29, ROWS, tn_group_rank(world));
    CHECK(tn_is_inert(tn_lm_loss(m, x, x)));
}

/* The sampler of validation was given all ranks, that of training those with different batches. */
static void validate_apart(tn_group *world, mesh_model *m) {
    tn_tensor *x = mesh_tokens(29, ROWS, 1);
    CHECK(!tn_is_inert(tn_lm_loss(m, x, x)));
    tn_module_train(m, false);
    train_apart(world, m);
}

/* An evaluation is given all ranks. */
static void measure_with_all(tn_group *world, mesh_model *m) {
    tn_dataset *windows = tn_tensor_dataset(mesh_tokens(29, 6, 1), mesh_tokens(29, 6, 2));
    tn_perplexity p;
    CHECK(tn_evaluate_perplexity(m, windows, NULL, TN_WITH(tn_evaluate, .batch = 2, .group = world),
                                 &p) != TN_OK &&
          p.tokens == 0);
    tn_dataset_free(windows);
}

/* Two texts, of which one begins with `first`. */
static void write_some(mesh_model *m, int32_t first, tn_generate_options o) {
    tn_prompt prompts[] = {{(const int32_t[]){first, 4}, 2}, {(const int32_t[]){2}, 1}};
    tn_generated out[2];
    tn_module_train(m, false);
    CHECK(tn_generate(m, prompts, 2, o, out) != TN_OK && !out[0].tokens.count);
    tn_generated_free(out, 2);
}

static void write_apart(tn_group *world, mesh_model *m) {
    write_some(m, tn_group_rank(world), TN_WITH(tn_generate, .max_new = 4));
}

static void draw_apart(tn_group *world, mesh_model *m) {
    uint64_t seed = (uint64_t)tn_group_rank(world);
    write_some(m, 3, TN_WITH(tn_generate, .max_new = 40, .seed = seed));
}

static bool end_one_text(const tn_generated_token *token, void *user) {
    return tn_group_rank(user) != 0 || token->sequence != 0;
}

/* Only rank 0's callback ends one of two texts. */
static void stop_apart(tn_group *world, mesh_model *m) {
    write_some(m, 3, TN_WITH(tn_generate, .max_new = 4, .on_token = end_one_text, .user = world));
}

static void record_call(tn_group *world, mesh_model *m) {
    tn_module_train(m, false);
    tn_lm_loss(m, mesh_tokens(29, ROWS, 1), mesh_tokens(29, ROWS, 1));
}

static void count_beyond(tn_group *world, mesh_model *m) {
    TN_NO_GRAD;
    tn_tensor *x = mesh_tokens(29, ROWS, 1);
    CHECK(tn_is_inert(tn_call(m, TN_CAT(1, x, x))));
}

/* The same wrong tokens on both: only the first stage looks at them. */
static void look_up_nothing(tn_group *world, mesh_model *m) {
    TN_NO_GRAD;
    CHECK(tn_is_inert(tn_call(m, tn_full(TN_DIMS(1, 2), 29, TN_I64))));
    stay_until_told(world);
}

static tn_values refuse_call(tn_module *m, tn_values in, void *user) {
    tn_raise(TN_EVALUE, "a part fails");
    return in;
}

/* The second stage fails, in a prompt or while tn_lm_loss waits for it. */
static void fail_above(tn_group *world, mesh_model *m) {
    tn_module_hook(&m->gpt.h[1], (tn_module_hooks){.before = refuse_call});
    write_some(m, 3, TN_WITH(tn_generate, .max_new = 4));
    stay_until_told(world);
}

static void fail_loss(tn_group *world, mesh_model *m) {
    TN_NO_GRAD;
    tn_lm_loss(m, mesh_tokens(29, ROWS, 1), mesh_tokens(31, ROWS, 1));
    stay_until_told(world);
}

/* Gradients of each rank's positions are not averaged. */
static void copy_over_no_positions(tn_group *world, mesh_model *m) {
    tn_context_parallel(m, world, TN_CP_HEADS);
    CHECK(!tn_ddp(m, NULL, tn_ddp_defaults()));
}

static void shard_over_no_positions(tn_group *world, mesh_model *m) {
    tn_context_parallel(m, world, TN_CP_HEADS);
    CHECK(!tn_fsdp(m, NULL, NULL, tn_fsdp_defaults()));
}

static const mistake mistakes[] = {
    {"tp=2", train_apart, TN_EMISMATCH, "rank 1 of the group has other tokens than rank 0"},
    {"cp=2", train_apart, TN_EMISMATCH, "rank 1 of the group has other tokens than rank 0"},
    {"tp=2", validate_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"cp=2", validate_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"tp=2", measure_with_all, TN_EVALUE, "have different blocks of wte.weight"},
    {"cp=2", measure_with_all, TN_EVALUE, "tn_spread_data"},
    {"pp=2", measure_with_all, TN_EMISMATCH, "tn_spread_data"},
    {"tp=2", write_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"pp=2", write_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"tp=2", draw_apart, TN_EMISMATCH, "seeds"},
    {"pp=2", draw_apart, TN_EMISMATCH, "seeds"},
    {"tp=2", stop_apart, TN_EMISMATCH, "callbacks"},
    {"pp=2", stop_apart, TN_EMISMATCH, "callbacks"},
    {"pp=2", record_call, TN_ESTATE, "TN_NO_GRAD"},
    {"pp=2", count_beyond, TN_EVALUE, "the context is 8"},
    {"pp=2", look_up_nothing, TN_EINDEX, "29"},
    {"pp=2", fail_above, TN_EVALUE, "a part fails"},
    {"pp=2", fail_loss, TN_EINDEX, "label 29"},
    {NULL, copy_over_no_positions, TN_EVALUE, "\"dp cp\""},
    {NULL, shard_over_no_positions, TN_EVALUE, "\"shard cp\""},
};

static void makes_mistake(tn_group *world, void *user) {
    TN_SCOPE;
    const mistake *wrong = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 1, false);
    tn_spread *spread = wrong->mesh ? mesh_spread(&m, world, wrong->mesh) : NULL;
    wrong->make(world, &m);
    CHECK(tn_error() != TN_OK);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_mistakes) {
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(*mistakes); i++) {
        const mistake *wrong = &mistakes[i];
        const char *said = run_failing(2, makes_mistake, wrong, wrong->status);
        if (!strstr(said, wrong->says)) { fail_msg("mistake %zu: %s", i, said); }
    }
}
