/* Meshes: on every mesh, a model trains as on one rank. Ranks are threads. */
#include "tests/distributed/rank_check.h"

#include "train.h"

enum { BATCH = 2, LENGTH = 16, VOCAB = 29, RANKS = 8, MICROS = 8, STEPS = 3 };

typedef struct program {
    const char *mesh;
    train_bits bits; /* rank 0's copy of all parameters */
    double loss;     /* of the last step, the mean over all micro-batches */
} program;

static void init_model(tn_gpt *m) {
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = VOCAB;
    o.context = LENGTH;
    o.layers = 2;
    o.heads = 8;
    o.width = 32;
    tn_seed(3);
    TN_DEFER_INIT;
    tn_gpt_init(m, o);
}

static tn_tensor *tokens_of(int64_t number) {
    int64_t tokens[BATCH * LENGTH];
    tn_generator g = {.seed = 11, .stream = (uint64_t)number};
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = tn_random_below(&g, VOCAB);
    }
    return TN_FROM(tokens, TN_DIMS(BATCH, LENGTH), TN_I64);
}

static double train_micro(tn_gpt *m, int64_t number, int mine) {
    TN_SCOPE;
    tn_tensor *loss = tn_lm_loss(m, tokens_of(2 * number), tokens_of(2 * number + 1));
    tn_backward(tn_mul_scalar(loss, 1.0 / mine));
    return tn_item(loss);
}

/* Each of `ranks` trains its share of a step's micro-batches. */
static double train_micros(tn_gpt *m, int rank, int ranks, int64_t step) {
    int mine = MICROS / ranks;
    double sum = 0;
    for (int i = 0; i < mine; i++) {
        TN_NO_SYNC(i + 1 < mine ? m : NULL);
        sum += train_micro(m, step * MICROS + i * ranks + rank, mine);
    }
    return sum / mine;
}

static void train_program(tn_group *world, void *user) {
    TN_SCOPE;
    program *p = user;
    tn_gpt m;
    init_model(&m);
    tn_spread_options o = tn_spread_defaults();
    CHECK(tn_spread_read(&o, p->mesh) == TN_OK);
    tn_spread *s = world ? tn_spread_new(&m, world, o) : NULL;
    CHECK(!world || s);
    if (!world) {
        tn_module_materialize(&m);
    }
    tn_group *data = s ? tn_spread_data(s) : NULL;
    tn_optim *opt = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 1e-3));
    for (int64_t step = 0; step < STEPS && !tn_error(); step++) {
        double loss = train_micros(&m, tn_group_rank(data), tn_group_size(data), step);
        double mean = tn_group_mean(world, loss, 1);
        tn_optim_clip(opt, 0.5);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (tn_group_rank(world) == 0) {
            p->loss = mean;
        }
    }
    train_bits bits = train_whole(&m, world);
    if (tn_group_rank(world) == 0) {
        p->bits = bits;
    } else {
        free(bits.data);
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(s);
}

static void expect_mesh(const program *alone, const char *mesh) {
    program p = {.mesh = mesh};
    run_ok(RANKS, train_program, &p);
    assert_true(p.bits.bytes > 4000 && p.bits.bytes == alone->bits.bytes);
    double far = train_difference(alone->bits, p.bits);
    if (!(far <= 1e-5 && fabs(p.loss - alone->loss) <= 1e-5)) {
        fail_msg("%s: parameters differ by %g, losses by %g", mesh, far, p.loss - alone->loss);
    }
    free(p.bits.data);
}

static void test_every_mesh_of_eight(void **state) {
    (void)state;
    program alone = {.mesh = "dp=all"};
    train_program(NULL, &alone);
    for (int tp = 1; tp <= RANKS; tp *= 2) {
        for (int cp = 1; cp * tp <= RANKS; cp *= 2) {
            for (int shard = 1; shard * cp * tp <= RANKS; shard *= 2) {
                char mesh[128];
                snprintf(mesh, sizeof(mesh), "tp=%d,cp=%d,shard=%d%s", tp, cp, shard,
                         tp > 1 && cp < 4 ? ",sequence" : "");
                expect_mesh(&alone, mesh);
            }
        }
    }
    expect_mesh(&alone, "cp=2,keys,shard=all,stage=2");
    expect_mesh(&alone, "tp=2,dp=2,shard=2,stage=1");
    free(alone.bits.data);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static void test_texts(void **state) {
    (void)state;
    tn_spread_options o = tn_spread_defaults();
    assert_int_equal(tn_spread_read(&o, "tp=2,shard=all,sequence,cp=4,keys,stage=2,dp=3"), TN_OK);
    assert_true(o.tp == 2 && o.shard == 0 && o.cp == 4 && o.dp == 3 && o.tensor.sequence &&
                o.context == TN_CP_KEYS && o.sharding.stage == 2);
    static const char *const bad[] = {"",      "tp",         "tp=",    "tp=0",          "tp=all",
                                      "pp=2",  "tp=x",       "tp=2,,", "stage=4",       "tp=-1",
                                      "cp=2 ", "sequence=1", "tp=1e3", "tp=99999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tn_spread_options before = tn_spread_defaults(), after = before;
        assert_int_equal(tn_spread_read(&after, bad[i]), TN_EVALUE);
        assert_error(TN_EVALUE, "is not one of dp=N");
        assert_memory_equal(&before, &after, sizeof(before));
    }
    tn_spread_read(NULL, "tp=2");
    assert_error(TN_EVALUE, "options are NULL");
    tn_spread_read(&o, NULL);
    assert_error(TN_EVALUE, "mesh is NULL");
}

/* user: the mesh; after a space, that of the last rank */
static void spreads_badly(tn_group *world, void *user) {
    tn_gpt m;
    init_model(&m);
    tn_spread_options o = tn_spread_defaults();
    char text[64];
    snprintf(text, sizeof(text), "%s", (const char *)user);
    char *first = strtok(text, " "), *last = strtok(NULL, " ");
    tn_spread_read(&o, last && tn_group_rank(world) == tn_group_size(world) - 1 ? last : first);
    CHECK(!tn_spread_new(&m, world, o));
    tn_module_finish(&m);
}

static void test_meshes_that_do_not_fit(void **state) {
    (void)state;
    assert_non_null(strstr(run_failing(4, spreads_badly, "tp=3", TN_EVALUE), "tern run -n 6"));
    assert_non_null(strstr(run_failing(4, spreads_badly, "dp=2,tp=4", TN_EVALUE), "-n 8"));
    assert_non_null(strstr(run_failing(3, spreads_badly, "tp=3", TN_ESHAPE), "8 heads"));
    assert_non_null(strstr(run_failing(4, spreads_badly, "tp=2,shard=2 tp=2,dp=2", TN_EMISMATCH),
                           "spread: rank 0 has options dp=0,shard=2,cp=1,tp=2,stage=3, but rank 3 "
                           "has options dp=2,shard=1"));
    assert_non_null(strstr(run_failing(2, spreads_badly, "tp=2 tp=3", TN_EMISMATCH), "tp=3"));
}

static void prints_mesh(tn_group *world, void *user) {
    TN_SCOPE;
    tn_gpt m;
    init_model(&m);
    tn_spread_options o = tn_spread_defaults();
    tn_spread_read(&o, "tp=2,shard=2");
    tn_spread *s = tn_spread_new(&m, world, o);
    CHECK(s && tn_group_size(tn_spread_group(s, "tp")) == 2);
    if (tn_group_rank(world) == 0) {
        tn_spread_print(s, user);
    }
    tn_module_finish(&m);
    tn_spread_free(s);
}

static void test_print(void **state) {
    (void)state;
    char text[2048] = "";
    FILE *f = fmemopen(text, sizeof(text), "w");
    run_ok(4, prints_mesh, f);
    fclose(f);
    assert_non_null(strstr(text, "dp 1 x shard 2 x cp 1 x tp 2\n"));
    assert_non_null(strstr(text, "     3     0      1    0    1  batch 2 of 2, rows 15 to 28 of "
                                 "wte.weight, part 2 of 2\n"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_every_mesh_of_eight),
        TEST(test_texts),
        TEST(test_meshes_that_do_not_fit),
        TEST(test_print),
    };
    tn_set_threads(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
