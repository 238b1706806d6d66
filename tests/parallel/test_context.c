/* Context parallelism: attention over positions on several ranks, training beside one's own
 * positions and sharding, the loss, and what is refused. That a model trains as on one rank is in
 * test_meshes.c. Ranks are threads. */
#include "models/language.h"
#include "tests/parallel/train.h"

#include <pthread.h>

/* ---- Attention alone ------------------------------------------------------------------------- */

enum { HEADS = 4, POSITIONS = 96, WIDTH = 8, BATCH = 2 };

typedef enum mask_kind { MASK_NONE, MASK_OF_KEYS, MASK_OF_ALL, MASK_OF_HEADS, MASKS } mask_kind;

typedef struct attention {
    tn_cp_kind kind;
    int kv_heads;
    bool causal;
    mask_kind mask;
    float all[4][BATCH * HEADS * POSITIONS * WIDTH]; /* one rank's y, dq, dk and dv; and … */
    double worst[4]; /* … the ranks' largest difference, relative */
} attention;

static tn_dims dims_of(int64_t heads) {
    return TN_DIMS(BATCH, heads, POSITIONS, WIDTH);
}

/* q, k, v and dy */
static tn_tensor *numbers_of(const attention *a, int which) {
    tn_generator g = {.seed = 1, .stream = (uint64_t)which};
    int64_t heads = which == 1 || which == 2 ? a->kv_heads : HEADS;
    return tn_normal_(tn_empty(dims_of(heads), TN_F32), 0, 1, &g);
}

static tn_tensor *mask_of(const attention *a) {
    static const tn_dims dims[MASKS] = {[MASK_OF_KEYS] = {4, {BATCH, 1, 1, POSITIONS}},
                                        [MASK_OF_ALL] = {2, {POSITIONS, POSITIONS}},
                                        [MASK_OF_HEADS] = {4, {1, HEADS, POSITIONS, POSITIONS}}};
    if (a->mask == MASK_NONE) { return NULL; }
    tn_generator g = {.seed = 2};
    return tn_lt_scalar(tn_uniform_(tn_empty(dims[a->mask], TN_F32), 0, 1, &g), 0.8);
}

/* The attention of one rank: `rule`'s, or plain attention. */
static void attend_part(const attention *a, tn_group *g, const tn__attend_rule *rule,
                        tn_tensor *out[4]) {
    tn_tensor *in[3], *dy = tn_context_slice(g, a->kind, numbers_of(a, 3), 2);
    for (int i = 0; i < 3; i++) {
        in[i] =
            tn_set_requires_grad(tn_copy(tn_context_slice(g, a->kind, numbers_of(a, i), 2)), true);
    }
    tn_attention_options o = TN_WITH(tn_attention, .causal = a->causal);
    tn_tensor *y = rule && rule->f ? rule->f(rule->state, in[0], in[1], in[2], mask_of(a), o)
                                   : tn_attention(in[0], in[1], in[2], mask_of(a), o);
    tn_backward_from(&y, &dy, 1, false);
    out[0] = tn_detach(y);
    for (int i = 0; i < 3; i++) {
        out[i + 1] = tn_grad_of(in[i]);
    }
}

static double most_of(tn_tensor *x) {
    return tn_item(tn_max(tn_abs(tn_contiguous(x)), TN_DIMS(), false));
}

static void compare_attention(tn_group *g, void *user) {
    TN_SCOPE;
    attention *a = user;
    mesh_model m;
    mesh_init(&m, &(mesh_shape){false, 7, 8 * HEADS, 2, HEADS, 0, true, true, 0, POSITIONS, 24}, 1,
              false);
    CHECK(tn_context_parallel(&m, g, a->kind) == TN_OK);
    const tn__attend_rule *rule = &m.gpt.h[1].attn.base.lists->attend;
    CHECK((tn_group_size(g) > 1) == (rule->f != NULL));
    tn_tensor *out[4];
    attend_part(a, g, rule, out);
    TN_NO_GRAD;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 4; i++) {
        tn_tensor *all = tn_from_data(a->all[i], dims_of(i < 2 ? HEADS : a->kv_heads), TN_F32);
        double off = most_of(tn_sub(out[i], tn_context_slice(g, a->kind, all, 2))) / most_of(all);
        a->worst[i] = off > a->worst[i] || isnan(off) ? off : a->worst[i];
    }
    pthread_mutex_unlock(&lock);
    tn_module_finish(&m);
}

/* TN_CP_HEADS matches in every bit; TN_CP_KEYS in y and dq. There, dk and dv are summed rank by
 * rank. */
TEST(test_attention_alone) {
    for (int k = 0; k < 2 * 2 * 2 * MASKS; k++) {
        attention a = {.kind = k & 1 ? TN_CP_KEYS : TN_CP_HEADS,
                       .kv_heads = k & 2 ? 2 : HEADS,
                       .causal = !(k & 4),
                       .mask = (mask_kind)(k / 8)};
        tn_tensor *out[4];
        attend_part(&a, NULL, NULL, out);
        for (int i = 0; i < 4; i++) {
            tn_copy_out(out[i], a.all[i]);
        }
        for (int ranks = 1; ranks <= 4; ranks++) {
            bool divides = POSITIONS % (2 * ranks) == 0 && a.kv_heads % ranks == 0;
            if (a.kind == TN_CP_HEADS && !divides) { continue; }
            memset(a.worst, 0, sizeof(a.worst));
            run_ok(ranks, compare_attention, &a);
            double sums = a.kind == TN_CP_KEYS ? 1e-6 : 0;
            if (a.worst[0] > 0 || a.worst[1] > 0 || !(a.worst[2] <= sums && a.worst[3] <= sums)) {
                fail_msg("kind %d, %d ranks, kv_heads %d, causal %d, mask %d: %g %g %g %g", a.kind,
                         ranks, a.kv_heads, a.causal, a.mask, a.worst[0], a.worst[1], a.worst[2],
                         a.worst[3]);
            }
        }
    }
}

/* How many keys the queries of a rank see under a causal mask. */
static double keys_seen(tn_cp_kind kind, tn_group *g) {
    tn_tensor *mine = tn_context_slice(g, kind, tn_arange(0, 960, 1, TN_F64), 0);
    return tn_item(tn_sum_all(tn_add_scalar(mine, 1)));
}

RANKS_TEST(test_causal_balance, 1, 2, 3, 4, 5, 6) {
    TN_SCOPE;
    int ranks = tn_group_size(world), rank = tn_group_rank(world);
    double b = 960.0 / (2 * ranks);
    CHECK(keys_seen(TN_CP_KEYS, world) == (2 * ranks - 1) * b * b + b * (b + 1));
    /* consecutive positions, with which TN_CP_KEYS would be unbalanced */
    double first = 2 * b * (2 * b + 1) / 2;
    CHECK(keys_seen(TN_CP_HEADS, world) == first + rank * 4 * b * b);
}

/* ---- Training -------------------------------------------------------------------------------- */

enum { LENGTH = 16, VOCAB = 29 };

static const char *mesh_of(tn_cp_kind kind) {
    return kind == TN_CP_KEYS ? "cp=2,keys" : "cp=2";
}

/* Some targets do not count: of the first 7 of each sequence only one of the whole batch does. */
static train_run run_of(const char *mesh, bool llama) {
    train_run run = train_on_mesh(mesh, llama, 1);
    run.model.length = LENGTH;
    run.ignored = 7;
    return run;
}

/* Gives positions: those of whole sequences, or wrong ones, which count from 0 on each rank. */
static tn_tensor *loss_at(mesh_model *m, tn_tensor *x, tn_tensor *y, int parts) {
    tn_tensor *places[2];
    for (int i = 0; i < parts; i++) {
        places[i] = tn_arange(0, (double)LENGTH / parts, 1, TN_I64);
    }
    tn_values in = tn_values_of(x, tn_cat(places, parts, 0));
    return tn__lm_loss_of(m, tn_call_values(m, in, NULL).v[0], y);
}

static tn_tensor *with_places(mesh_model *m, const train_groups *g, tn_tensor *x, tn_tensor *y) {
    return loss_at(m, x, y, 1);
}

static tn_tensor *with_wrong_places(mesh_model *m, const train_groups *g, tn_tensor *x,
                                    tn_tensor *y) {
    return loss_at(m, x, y, 2);
}

/* Given positions are those that the model takes by default. That wrong ones make a difference
 * shows that they are used. */
TEST(test_positions) {
    for (int k = 0; k < 4; k++) {
        train_run run = run_of(mesh_of((tn_cp_kind)(k / 2)), k & 1);
        train_end own = train_on_threads(run);
        run.loss = with_places;
        train_expect(&own, run, 0);
        run.loss = with_wrong_places;
        train_end wrong = train_on_threads(run);
        assert_true(train_difference(own.bits, wrong.bits) > 1e-4);
        free(own.bits.data);
        free(wrong.bits.data);
    }
}

/* Sharding over "shard cp" has the bits of data parallelism over it. */
TEST(test_below_sharding) {
    static const char *const meshes[] = {"cp=2,shard=2,stage=1", "cp=2,shard=2,stage=2",
                                         "cp=2,shard=2,stage=3"};
    for (int k = 0; k < 2 * 2 * 3; k++) {
        bool keys = k & 2;
        char sharded[32], copied[32];
        snprintf(sharded, sizeof(sharded), "%s%s", meshes[k / 4], keys ? ",keys" : "");
        snprintf(copied, sizeof(copied), "cp=2,dp=2%s", keys ? ",keys" : "");
        train_run run = run_of(sharded, k & 1);
        run.bf16 = k & 1 ? !keys : keys;
        run.recompute = run.bf16 ? RECOMPUTE_OVER : RECOMPUTE_NONE;
        train_end want = train_on_threads(train_oracle(run, copied));
        run.deferred = k / 4 == 2;
        train_expect(&want, run, 0);
        free(want.bits.data);
    }
}

/* A forward that is not recorded, and texts, before the backward. */
static tn_tensor *generate_between(mesh_model *m, const train_groups *g, tn_tensor *x,
                                   tn_tensor *y) {
    tn_tensor *loss = tn_lm_loss(m, x, y);
    TN_NO_GRAD;
    tn_lm_loss(m, y, x);
    int32_t ids[2][MESH_WRITTEN];
    mesh_write(m, 0, ids);
    return loss;
}

TEST(test_recompute) {
    for (int k = 0; k < 8; k++) {
        train_run run = run_of(mesh_of(k & 2 ? TN_CP_KEYS : TN_CP_HEADS), k & 1);
        run.ignored = 0;
        run.bf16 = k & 4;
        run.model.dropout = 0.1;
        train_end keeps = train_on_threads(run);
        run.recompute = RECOMPUTE_OVER;
        train_expect(&keeps, run, 0);
        run.loss = generate_between;
        run.late = run.bf16;
        train_expect(&keeps, run, 0);
        free(keeps.bits.data);
    }
}

/* The gradients of bf16 matrices are rounded on each rank; the loss of a position is not. */
TEST(test_mixed_precision) {
    for (int k = 0; k < 4; k++) {
        train_run run = run_of(mesh_of((tn_cp_kind)(k / 2)), k & 1);
        run.bf16 = true;
        run.steps = TRAIN_MOST_STEPS;
        train_end one = train_on_threads(train_oracle(run, NULL)), split = train_on_threads(run);
        assert_float_equal(one.losses[0], split.losses[0], 1e-6);
        assert_float_equal(one.losses[run.steps - 1], split.losses[run.steps - 1], 2e-2);
        free(one.bits.data);
        free(split.bits.data);
    }
}

/* ---- The loss -------------------------------------------------------------------------------- */

typedef struct targets {
    int ignored;   /* how many of each sequence's first positions */
    double loss;   /* one rank's loss … */
    train_run run; /* … and the model */
    tn_cp_kind kind;
} targets;

static double loss_without(mesh_model *m, const targets *t) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *y = train_tokens(&t->run, 4);
    tn_copy_(tn_narrow(y, 1, 0, t->ignored), tn_full(TN_DIMS(), -100, TN_I64));
    return tn_item(tn_lm_loss(m, train_tokens(&t->run, 0), y));
}

static void finds_loss(tn_group *g, void *user) {
    targets *t = user;
    mesh_model m;
    train_model(&m, &t->run, 3 + (uint64_t)tn_group_rank(g));
    if (!g) {
        t->loss = loss_without(&m, t);
    } else {
        CHECK(tn_context_parallel(&m, g, t->kind) == TN_OK);
        double is = loss_without(&m, t);
        tn_cache_begin(&m, (tn_attention_cache_options){.batch = TRAIN_ROWS, .length = LENGTH});
        double whole = loss_without(&m, t); /* with a cache, every rank computes all */
        CHECK(isnan(t->loss) ? isnan(is) : fabs(is - t->loss) < 1e-6);
        CHECK(isnan(t->loss) ? isnan(whole) : fabs(whole - t->loss) < 1e-6);
    }
    tn_module_finish(&m);
}

TEST(test_losses) {
    for (int k = 0; k < 4; k++) {
        static const int ignored[] = {0, 3, 8, 15, 16};
        for (int i = 0; i < 5; i++) {
            targets t = {.ignored = ignored[i],
                         .run = run_of("cp=2", k & 1),
                         .kind = k & 2 ? TN_CP_KEYS : TN_CP_HEADS};
            finds_loss(NULL, &t);
            run_ok(2, finds_loss, &t);
            run_ok(4, finds_loss, &t);
        }
    }
}

/* ---- Other calls ----------------------------------------------------------------------------- */

static tn_tensor *call_parts(mesh_model *m, tn_tensor *x, tn_tensor *positions, int first,
                             int end) {
    tn__lm_context context = {.range = {first, end}};
    return tn_call_values(m, tn_values_of(x, positions), &context).v[0];
}

/* With a mask; and in two calls: the second receives this rank's positions of the first one's
 * output, with all position numbers or none. */
static void calls_otherwise(tn_group *g, void *user) {
    TN_SCOPE;
    const train_run *p = user;
    tn_cp_kind kind = strstr(p->mesh, "keys") ? TN_CP_KEYS : TN_CP_HEADS;
    mesh_model m, one;
    train_model(&m, p, 3);
    train_model(&one, p, 3);
    CHECK(tn_context_parallel(&m, g, kind) == TN_OK);
    tn_generator random = {.seed = 2};
    tn_tensor *u = tn_uniform_(tn_empty(TN_DIMS(LENGTH, LENGTH), TN_F32), 0, 1, &random);
    tn_tensor *x = train_tokens(p, 0), *at = tn_arange(0, LENGTH, 1, TN_I64);
    tn_values in = {3, {x, NULL, tn_lt_scalar(u, 0.7)}};
    tn_tensor *want = tn_call_values(&one, in, NULL).v[0], *is = tn_call_values(&m, in, NULL).v[0];
    CHECK(most_of(tn_sub(is, tn_context_slice(g, kind, want, 1))) < 2e-6);
    tn_tensor *all = tn_call(&m, x), *half = call_parts(&m, x, at, 0, 2);
    CHECK(tn_size(half, 1) == LENGTH / tn_group_size(g));
    CHECK(tn_equal(all, call_parts(&m, half, at, 2, 4)));
    CHECK(tn_equal(all, call_parts(&m, half, NULL, 2, 4)));
    tn_module_finish(&m);
    tn_module_finish(&one);
}

TEST(test_other_calls) {
    for (int k = 0; k < 4; k++) {
        train_run p = run_of(mesh_of(k & 2 ? TN_CP_KEYS : TN_CP_HEADS), k & 1);
        run_ok(2, calls_otherwise, &p);
        run_ok(4, calls_otherwise, &p);
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
    {"heads", TN_ESHAPE,
     "h.0.attn: 3 ranks do not divide 4 heads of keys and values (1, 2, 4 would; with TN_CP_KEYS "
     "any number)",
     3},
    {"kv_heads", TN_ESHAPE, "8 ranks do not divide 4 heads of keys and values", 8},
    {"heads of tp", TN_ESHAPE, "2 ranks do not divide 1 heads of keys and values", 8},
    {"after optimiser", TN_ESTATE, "is held by an optimiser", 2},
    {"no model", TN_EVALUE, "is not a complete language model", 2},
    {"other kinds", TN_EMISMATCH, "", 2},
    {"unknown kind", TN_EVALUE, "context_parallel: the kind is 2 (TN_CP_HEADS or TN_CP_KEYS)", 2},
    {"length", TN_ESHAPE, "of 4 needs a multiple of 4 in dim 1", 4},
    {"length of keys", TN_ESHAPE, "needs a multiple of 4 in dim 1", 2},
    {"context", TN_EVALUE, "tokens are [1, 20] at position 0 but the context is 16", 2},
    {"token", TN_EINDEX, "29", 2},
    {"target", TN_EINDEX, "29", 2},
};

/* All tokens are 0 but the last, which rank 1 has. */
static tn_tensor *row_of(int64_t length, int64_t last) {
    tn_tensor *x = tn_zeros(TN_DIMS(1, length), TN_I64);
    tn_copy_(tn_narrow(x, 1, length - 1, 1), tn_full(TN_DIMS(), (double)last, TN_I64));
    return x;
}

static void is_refused(tn_group *g, void *user) {
    TN_SCOPE;
    const char *name = ((const refusal *)user)->name;
    train_run p = run_of("cp=2", strcmp(name, "kv_heads") == 0);
    mesh_model m;
    train_model(&m, &p, 3);
    tn_optim *opt = NULL;
    tn_linear alone;
    tn_linear_init(&alone, 3, 4, tn_linear_defaults());
    tn_mesh *mesh = tn_group_size(g) == 8
                        ? tn_mesh_new(g, 2, (int[]){2, 4}, (const char *const[]){"cp", "tp"})
                        : NULL;
    if (strcmp(name, "heads of tp") == 0) {
        tn_tensor_parallel(&m, tn_mesh_group(mesh, "tp"), tn_tp_defaults());
        g = tn_mesh_group(mesh, "cp");
    } else if (strcmp(name, "after optimiser") == 0) {
        opt = tn_sgd(&m, tn_sgd_defaults());
    }
    bool keys = strcmp(name, "length of keys") == 0 ||
                (strcmp(name, "other kinds") == 0 && tn_group_rank(g) == 1);
    bool unknown = strcmp(name, "unknown kind") == 0;
    tn_context_parallel(strcmp(name, "no model") == 0 ? &alone.base : &m.base, g,
                        unknown ? (tn_cp_kind)2
                        : keys  ? TN_CP_KEYS
                                : TN_CP_HEADS);
    if (strncmp(name, "length", 6) == 0) {
        tn_lm_loss(&m, row_of(10, 0), row_of(10, 0));
    } else if (strcmp(name, "context") == 0) {
        tn_lm_loss(&m, row_of(20, 0), row_of(20, 0));
    } else if (strcmp(name, "token") == 0) { /* no loss: the model's hook tells the others */
        tn_call(&m, row_of(8, VOCAB));
        stay_until_told(g);
    } else if (strcmp(name, "target") == 0) {
        tn_lm_loss(&m, row_of(8, 0), row_of(8, VOCAB));
        stay_until_told(g);
    }
    tn_optim_free(opt);
    tn_module_finish(&alone);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

TEST(test_what_is_refused) {
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const refusal *r = &refusals[i];
        const char *is = run_failing(r->ranks, is_refused, r, r->status);
        if (!strstr(is, r->says)) { fail_msg("%s: %s", r->name, is); }
    }
}

TEST(test_slices_refused) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32);
    assert_true(tn_equal(tn_context_slice(NULL, TN_CP_KEYS, x, -1), x)); /* one rank: all of x */
    assert_inert(tn_context_slice(NULL, TN_CP_HEADS, x, 2), TN_EINDEX, "dim");
    assert_inert(tn_context_slice(NULL, TN_CP_HEADS, NULL, 0), TN_EVALUE, "NULL");
    assert_inert(tn_context_slice(NULL, (tn_cp_kind)-1, x, 1), TN_EVALUE, "the kind is -1");
}
