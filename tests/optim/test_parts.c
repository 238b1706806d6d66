/* Parameters whose elements are on several ranks, stepped and measured: one process plays each rank
 * in turn, and `parts` returns what the other ranks had. */
#include <math.h>
#include <string.h>

#include <sys/stat.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/sys/optim.h>
#include <tern/tern.h>

/* ---- Ranks that one process plays ------------------------------------------------------------ */

enum { RANKS = 4 };

/* What each rank adds to one sum: the first round records it, the second returns the sum. */
typedef struct group {
    double given[RANKS];
    int rank, sums;
    bool answers;
} group;

static tn_status sum_over(const tn_parts *p, double *values, int n) {
    group *g = p->group;
    assert_int_equal(n, 1);
    g->sums++;
    if (!g->answers) {
        g->given[g->rank] = values[0];
        return TN_OK;
    }
    assert_true(memcmp(&values[0], &g->given[g->rank], sizeof(double)) == 0);
    values[0] = 0.0;
    for (int r = 0; r < RANKS; r++) {
        values[0] += g->given[r];
    }
    return TN_OK;
}

/* Three parameters: `a` is cut over the ranks, `b` is on every rank, `c` is not shared. */
typedef struct model {
    tn_module base;
    tn_tensor *a, *b, *c;
} model;

enum { A = 10, B = 7, C = 5 };

static tn_tensor *model_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static void model_init(model *m) {
    TN_SCOPE;
    tn_module_init(m, "model", model_forward);
    tn_module_param(m, "a", &m->a, tn_ones(TN_DIMS(2, A / 2), TN_F32));
    tn_module_param(m, "b", &m->b, tn_ones(TN_DIMS(B), TN_F32));
    tn_module_param(m, "c", &m->c, tn_ones(TN_DIMS(C), TN_F32));
}

/* n numbers like those of a gradient; element i is the same on every rank that has it. */
static tn_tensor *gradient_of(int64_t start, int64_t n, double seed) {
    tn_tensor *g = tn_empty(TN_DIMS(n), TN_F32);
    float *x = tn_data_mut(g);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)sin(seed + 1.7 * (double)(start + i));
    }
    return g;
}

/* One rank, and which elements of `a` it has. */
typedef struct rank {
    model m;
    tn_tensor *part;
    tn_parts cut, same;
    int64_t start, length;
} rank;

/* Rank r has elements cuts[r] to cuts[r + 1]. */
static void rank_init(rank *r, int index, const int64_t *cuts, group *g) {
    TN_SCOPE;
    model_init(&r->m);
    g->rank = index;
    r->start = cuts[index];
    r->length = cuts[index + 1] - r->start;
    r->cut = (tn_parts){.sum = sum_over, .group = g, .counts = true};
    r->part = tn_ones(TN_DIMS(r->length), TN_F32);
    tn_layout layout = {TN_DIMS(2, A / 2), -1, 1, 0, 1, r->start, r->length};
    assert_int_equal(tn_module_set_part(&r->m, "a", r->part, layout, &r->cut), TN_OK);
    tn_storage_empty(r->m.a); /* nothing reads it */
}

/* `b` is the same on all ranks: rank 0 counts it. */
static void rank_shares_b(rank *r, int index, group *g) {
    g->rank = index;
    r->same = (tn_parts){.sum = sum_over, .group = g, .counts = index == 0};
    tn_layout all = {TN_DIMS(B), -1, 1, 0, 1, 0, B};
    assert_int_equal(tn_module_set_part(&r->m, "b", NULL, all, &r->same), TN_OK);
}

static void set_gradients(rank *r) {
    TN_SCOPE;
    tn_set_grad(r->part, gradient_of(r->start, r->length, 0.3));
    tn_set_grad(r->m.b, gradient_of(0, B, 0.7));
    tn_set_grad(r->m.c, gradient_of(0, C, 0.9));
}

/* The norm on one rank that has all elements. */
static double whole_norm(void) {
    model m;
    model_init(&m);
    tn_set_grad(m.a, tn_reshape(gradient_of(0, A, 0.3), TN_DIMS(2, A / 2)));
    tn_set_grad(m.b, gradient_of(0, B, 0.7));
    tn_set_grad(m.c, gradient_of(0, C, 0.9));
    double norm = tn_clip_grad_norm(&m, 1e9);
    tn_module_finish(&m);
    return norm;
}

/* ---- Norms ----------------------------------------------------------------------------------- */

static void assert_norm(double norm, double expected) {
    assert_true(fabs(norm - expected) <= 1e-12 * expected);
}

static const int64_t even[RANKS + 1] = {0, 3, 5, 8, 10}, gaps[RANKS + 1] = {0, 0, 10, 10, 10};

/* Both rounds of every rank, through the optimiser and through the module. */
static void each_rank_measures(const int64_t *cuts) {
    double expected = whole_norm();
    group ga = {.rank = 0}, gb = {.rank = 0};
    for (int i = 0; i < 2 * RANKS; i++) {
        rank r = {0};
        ga.answers = gb.answers = i >= RANKS;
        rank_init(&r, i % RANKS, cuts, &ga);
        rank_shares_b(&r, i % RANKS, &gb);
        set_gradients(&r);
        tn_optim *opt = tn_sgd(&r.m, tn_sgd_defaults());
        double norm = tn_optim_clip(opt, 1e9), again = tn_clip_grad_norm(&r.m, expected / 2);
        assert_int_equal(ga.sums, 2 * (i + 1)); /* one for each of the two calls */
        assert_int_equal(gb.sums, 2 * (i + 1));
        if (i >= RANKS) {
            assert_norm(norm, expected);
            assert_true(norm == again);
            /* half of it, up to f32's rounding */
            assert_float_equal(tn_at(tn_grad_of(r.m.c), TN_DIMS(0)), sin(0.9) / 2, 1e-6);
        }
        tn_optim_free(opt);
        tn_module_finish(&r.m);
    }
    assert_true(gb.given[0] > 0.0 && gb.given[1] == 0.0); /* counted once */
}

TEST(norm_of_all_parts) {
    each_rank_measures(even);
    each_rank_measures(gaps); /* three ranks have no element of `a` */
}

/* A chain: `a` is cut over two ranks, and the other two have the same parts but do not count
 * them. */
TEST(chains_and_copies) {
    static const int64_t cuts[3] = {0, 4, A};
    double expected = whole_norm();
    group columns[2] = {{.rank = 0}}, rows[2] = {{.rank = 0}};
    for (int i = 0; i < 2 * RANKS; i++) {
        int row = i % RANKS / 2, column = i % 2;
        rank r = {0};
        columns[row].answers = rows[column].answers = i >= RANKS;
        if (i == RANKS) {
            /* the second link sums what the first one summed, so it is known a round later */
            rows[0].given[0] = rows[1].given[0] = columns[0].given[0] + columns[0].given[1];
        }
        rank_init(&r, column, cuts, &columns[row]);
        rows[column].rank = row;
        tn_parts copies = {.sum = sum_over, .group = &rows[column], .counts = row == 0};
        r.cut.next = &copies;
        set_gradients(&r);
        double norm = tn_clip_grad_norm(&r.m, 1e9);
        if (i >= RANKS) { assert_norm(norm, expected); }
        tn_module_finish(&r.m);
    }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static bool find_state(const char *name, tn_tensor *t, void *user) {
    char *names = user;
    strcat(strcat(names, name), strcmp(name + 1, ".step") == 0 && tn_item(t) == 3.0 ? "=3 " : " ");
    return true;
}

static void three_steps(void *m, rank *r, tn_optim *opt, tn_tensor *a, tn_tensor *b, tn_tensor *c) {
    for (int step = 0; step < 3; step++) {
        TN_SCOPE;
        tn_tensor *ga = gradient_of(r ? r->start : 0, tn_count(a), step);
        tn_set_grad(a, tn_reshape(ga, tn_shape(a)));
        tn_set_grad(b, gradient_of(0, B, step + 0.5));
        tn_set_grad(c, gradient_of(0, C, step + 0.7));
        assert_int_equal(tn_optim_step(opt), TN_OK);
        tn_optim_zero_grad(opt);
        assert_null(tn_grad_of(a));
    }
}

/* AdamW steps each part as it would in the whole, and names and counts are the same on a rank that
 * has no element of a parameter. */
TEST(parts_step_as_the_whole) {
    model whole;
    model_init(&whole);
    tn_optim *opt = tn_adamw(&whole, tn_adamw_defaults());
    three_steps(&whole, NULL, opt, whole.a, whole.b, whole.c);
    char names[512] = "";
    tn_optim_each(opt, find_state, names);
    assert_contains(names, "a.step=3 a.exp_avg a.exp_avg_sq b.step=3 ");
    tn_optim_free(opt);
    for (int i = 0; i < 2 * RANKS; i++) {
        const int64_t *cuts = i < RANKS ? even : gaps;
        group g = {.rank = 0};
        rank r = {0};
        rank_init(&r, i % RANKS, cuts, &g);
        opt = tn_adamw(&r.m, tn_adamw_defaults());
        three_steps(&r.m, &r, opt, r.part, r.m.b, r.m.c);
        const float *all = tn_data(whole.a);
        assert_true(r.length == 0 ||
                    memcmp(tn_data(r.part), all + r.start, (size_t)r.length * sizeof(float)) == 0);
        assert_true(tn_equal(r.m.b, whole.b) && tn_equal(r.m.c, whole.c));
        char mine[512] = "";
        tn_optim_each(opt, find_state, mine);
        assert_string_equal(mine, names);
        tn_optim_free(opt);
        tn_module_finish(&r.m);
    }
    tn_module_finish(&whole);
}

/* ---- The scaler ------------------------------------------------------------------------------ */

/* An infinity in one rank's part: all ranks skip the step and lower the scale. */
TEST(overflow_on_one_rank) {
    group g = {.rank = 0};
    for (int i = 0; i < 2 * RANKS; i++) {
        rank r = {0};
        g.answers = i >= RANKS;
        rank_init(&r, i % RANKS, even, &g);
        set_gradients(&r);
        if (i % RANKS == 2) { ((float *)tn_data_mut(tn_grad_of(r.part)))[0] = INFINITY; }
        tn_optim *opt = tn_sgd(&r.m, tn_sgd_defaults());
        tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
        if (i % 2) { tn_scaler_clip(s, opt, 1.0); }
        assert_int_equal(tn_scaler_step(s, opt), TN_OK);
        assert_int_equal(g.sums, i + 1);
        if (i >= RANKS) {
            assert_true(tn_scaler_skipped(s));
            assert_int_equal(tn_scaler_update(s), TN_OK);
            assert_true(tn_scaler_where(s).scale == 32768.0);
            assert_true(tn_at(r.m.c, TN_DIMS(0)) == 1.0); /* unchanged */
        }
        tn_scaler_free(s);
        tn_optim_free(opt);
        tn_module_finish(&r.m);
    }
}

static tn_status sum_fails(const tn_parts *p, double *values, int n) {
    values[n - 1] = 0.0;
    return tn_raise(TN_EPEER, "a rank is gone");
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static tn_dims seen_p, seen_part;

static void look_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    seen_p = tn_shape(p);
    seen_part = tn_shape(tn_optim_part(c, tn_optim_gather(c, p)));
}

static tn_status sum_alone(const tn_parts *p, double *values, int n) {
    ++*(int *)p->group;
    return TN_OK;
}

/* A reference step sees the stored shape; and a sum for one parameter stops before links to ranks
 * that have other parameters. */
TEST(blocks_have_shapes) {
    static const tn_optim_method method = {.name = "look", .reference = look_reference};
    int sums = 0;
    tn_parts stages = {.sum = sum_alone, .group = &sums, .counts = true, .others = true};
    tn_parts tp = {.next = &stages, .sum = sum_alone, .group = &sums, .counts = true};
    for (int whole = 0; whole < 2; whole++) {
        tn_linear m;
        tn_linear_init(&m, 4, 6, TN_WITH(tn_linear, .bias = false));
        tn_layout half = {TN_DIMS(12, 4), 0, 3, 1, 2, 0, 24},
                  all = {TN_DIMS(6, 4), -1, 1, 0, 1, 0, 24};
        assert_int_equal(
            tn_module_set_part(&m, "weight", NULL, whole ? all : half, whole ? &stages : &tp),
            TN_OK);
        tn_set_grad(m.weight, tn_ones(TN_DIMS(6, 4), TN_F32));
        tn_optim *opt = tn_optim_new(&m, &method, NULL, (tn_optim_rates){.lr = 1});
        sums = 0;
        assert_int_equal(tn_optim_step(opt), TN_OK);
        assert_int_equal(sums, whole ? 0 : 1);
        assert_true(tn_dims_equal(seen_p, TN_DIMS(6, 4)));
        assert_true(tn_dims_equal(seen_part, TN_DIMS(6, 4)));
        assert_float_equal(tn_optim_clip(opt, 1e9), sqrt(24.0), 1e-12);
        assert_int_equal(sums, whole ? 1 : 3);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}

TEST(an_error_of_the_sum) {
    group g = {.rank = 0};
    rank r = {0};
    rank_init(&r, 0, even, &g);
    r.cut.sum = sum_fails;
    set_gradients(&r);
    assert_true(isnan(tn_clip_grad_norm(&r.m, 1.0)));
    assert_error(TN_EPEER, "a rank is gone");
    tn_optim *opt = tn_sgd(&r.m, tn_sgd_defaults());
    assert_true(isnan(tn_optim_clip(opt, 1.0)));
    assert_error(TN_EPEER, "a rank is gone");
    tn_optim_free(opt);
    tn_module_finish(&r.m);
}

/* ---- Steps across elements ------------------------------------------------------------------- */

/* An optimiser whose step depends on more than one element, on the ranks of a group. */
typedef struct across {
    tn_optim *(*make)(void *m);
    const char *folder; /* saved to after three steps, loaded from before the rest */
    bool loads;
    int stage;
    tn_tensor *weights[4]; /* of rank 0, whole, after all steps, and their average; kept */
} across;

static tn_optim *make_lamb(void *m) {
    tn_lamb_options o = TN_WITH(tn_lamb, .lr = 0.1);
    return tn_lamb(m, o);
}

static tn_optim *make_adafactor(void *m) {
    tn_adafactor_options o = TN_WITH(tn_adafactor, .lr = 0.1);
    return tn_adafactor(m, o);
}

static tn_optim *make_muon(void *m) {
    tn_muon_options o = TN_WITH(tn_muon, .lr = 0.1);
    return tn_muon(m, o);
}

static tn_optim *make_nadam(void *m) {
    tn_nadam_options o = TN_WITH(tn_nadam, .lr = 0.1);
    return tn_nadam(m, o);
}

static void take_weights(tn_group *world, tn_linear *net, tn_tensor **weights) {
    TN_WHOLE(net);
    for (int i = 0; i < 2 && tn_group_rank(world) == 0; i++) {
        weights[i] = tn_keep(tn_copy(tn_detach(i ? net->bias : net->weight)));
    }
}

static void train_across(tn_group *world, void *user) {
    TN_SCOPE;
    across *a = user;
    tn_linear net;
    tn_seed(4);
    tn_linear_init(&net, 32, 47, tn_linear_defaults()); /* large enough to be cut within a row */
    if (tn_group_size(world) > 1) {
        tn_fsdp_options o = TN_WITH(tn_fsdp, .stage = a->stage);
        tn_fsdp(&net, world, NULL, o);
    }
    tn_optim *opt = a->make(&net);
    tn_saver *saver = tn_saver_new(world, a->folder, tn_saver_defaults());
    tn_average *ema = tn_ema(&net, 0.5);
    tn_checkpoint c = {.model = &net, .optim = opt, .average = ema, .step = 3};
    bool found = false;
    if (a->loads && (tn_saver_load(saver, &c, &found) != TN_OK || !found)) {
        tn_raise(TN_ESTATE, "nothing was loaded");
    }
    for (int step = a->loads ? 3 : 0; step < 6 && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        tn_tensor *x = tn_reshape(gradient_of(step, 128, 0.3), TN_DIMS(4, 32));
        tn_backward(tn_mean_all(tn_square(tn_call(&net, x))));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        tn_average_update(ema);
        if (step == 2 && !a->loads && tn_saver_save(saver, &c) != TN_OK) { break; }
    }
    take_weights(world, &net, a->weights);
    {
        TN_AVERAGED(ema);
        take_weights(world, &net, a->weights + 2);
    }
    tn_average_free(ema);
    tn_saver_free(saver);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

/* On one rank, on two, and on one that continues from what two saved. */
TEST(across_parts) {
    static tn_optim *(*const makers[])(void *) = {make_lamb, make_adafactor, make_muon, make_nadam};
    for (int i = 0; i < 4; i++) {
        char folders[2][512];
        for (int k = 0; k < 2; k++) {
            snprintf(folders[k], sizeof(folders[k]), "%s%d%d", temp_path("across"), i, k);
            assert_int_equal(mkdir(folders[k], 0700), 0);
        }
        across runs[] = {{.make = makers[i], .folder = folders[0]},
                         {.make = makers[i], .folder = folders[1], .stage = 3 - i % 3},
                         {.make = makers[i], .folder = folders[1], .loads = true}};
        for (int k = 0; k < 3; k++) {
            assert_int_equal(tn_local_run(k == 1 ? 2 : 1, train_across, &runs[k]), TN_OK);
        }
        for (int k = 1; k < 3; k++) {
            for (int w = 0; w < 4; w++) {
                /* the parts' sums of squares are added in another order */
                assert_true(tn_all_close(runs[k].weights[w], runs[0].weights[w], 1e-6, 1e-6));
            }
        }
        for (int k = 0; k < 12; k++) {
            tn_release(runs[k / 4].weights[k % 4]);
        }
    }
}
