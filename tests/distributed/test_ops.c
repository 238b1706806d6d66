/* Collectives with gradients against the same computation in one graph: values, first and second
 * derivatives, in f64, on groups of threads; and a network that is split between ranks. */
#include "tern/tern.h"

#include <string.h>

#include "tests/support/gloo.h"
#include "tests/support/test.h"

#include "rank_check.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <unistd.h>

enum { MOST = 4 };

/* Irregular numbers between -1 and 1. */
static tn_tensor *make_numbers(tn_dims dims, int seed) {
    tn_tensor *t = tn_empty(dims, TN_F64);
    double *data = tn_data_mut(t);
    for (int64_t i = 0; i < tn_count(t); i++) {
        data[i] = sin(1.0 + 12.9898 * (double)i + 78.233 * seed);
    }
    return t;
}

static tn_tensor *make_leaf(tn_dims dims, int seed) {
    return tn_set_requires_grad(make_numbers(dims, seed), true);
}

static void check_near(const char *what, tn_tensor *got, tn_tensor *want) {
    got = tn_contiguous(got);
    want = tn_contiguous(want);
    const double *a = tn_data(got), *b = tn_data(want);
    double worst = tn_dims_equal(tn_shape(got), tn_shape(want)) ? 0 : INFINITY;
    for (int64_t i = 0; worst < INFINITY && i < tn_count(got); i++) {
        double off = fabs(a[i] - b[i]);
        worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    if (!(worst < 1e-12)) {
        fprintf(stderr, "%s: off by %g\n", what, worst);
        CHECK(false);
    }
}

static tn_tensor *gradient_of(tn_tensor *y, tn_tensor *x) {
    tn_tensor *result = NULL;
    CHECK(tn_grad(&y, NULL, 1, &x, 1, &result, TN_WITH(tn_grad, .create_graph = true)) == TN_OK);
    return result;
}

/* ---- Maps from all ranks to all ranks -------------------------------------------------------- */

typedef struct map {
    const char *name;
    tn_tensor *(*split)(tn_group *g, tn_tensor *x);
    tn_tensor *(*whole)(tn_tensor *const *x, int ranks, int r); /* rank r's y */
    bool by_rank;                                               /* x is (N, …) */
} map;

static tn_tensor *sum_of(tn_tensor *const *x, int n) {
    tn_tensor *sum = x[0];
    for (int i = 1; i < n; i++) {
        sum = tn_add(sum, x[i]);
    }
    return sum;
}

static tn_tensor *whole_all_reduce(tn_tensor *const *x, int ranks, int r) {
    return sum_of(x, ranks);
}

static tn_tensor *whole_all_gather(tn_tensor *const *x, int ranks, int r) {
    return tn_stack(x, ranks, 0);
}

static tn_tensor *whole_reduce_scatter(tn_tensor *const *x, int ranks, int r) {
    return tn_select(sum_of(x, ranks), 0, r);
}

static tn_tensor *whole_all_to_all(tn_tensor *const *x, int ranks, int r) {
    tn_tensor *parts[MOST];
    for (int s = 0; s < ranks; s++) {
        parts[s] = tn_select(x[s], 0, r);
    }
    return tn_stack(parts, ranks, 0);
}

/* Gathering along the dimension in the middle and along the last one, scattering along the
 * first. */
static tn_tensor *gather_inner(tn_group *g, tn_tensor *x) {
    return tn_dist_gather_dim(g, x, 1);
}
static tn_tensor *whole_gather_inner(tn_tensor *const *x, int ranks, int r) {
    return tn_cat(x, ranks, 1);
}
static tn_tensor *gather_last(tn_group *g, tn_tensor *x) {
    return tn_dist_gather_dim(g, x, -1);
}
static tn_tensor *whole_gather_last(tn_tensor *const *x, int ranks, int r) {
    return tn_cat(x, ranks, tn_ndim(x[0]) - 1);
}
static tn_tensor *scatter_first(tn_group *g, tn_tensor *x) {
    return tn_dist_scatter_dim(g, x, 0);
}
static tn_tensor *whole_scatter_first(tn_tensor *const *x, int ranks, int r) {
    int64_t n = tn_size(x[0], 0) / ranks;
    return tn_narrow(sum_of(x, ranks), 0, r * n, n);
}
/* scattering along the dimension in the middle, which the transpose makes N */
static tn_tensor *scatter_inner(tn_group *g, tn_tensor *x) {
    return tn_dist_scatter_dim(g, tn_transpose(x, 0, 1), -2);
}
static tn_tensor *whole_scatter_inner(tn_tensor *const *x, int ranks, int r) {
    int64_t n = tn_size(x[0], 0) / ranks;
    return tn_narrow(tn_transpose(sum_of(x, ranks), 0, 1), 1, r * n, n);
}

static const map maps[] = {
    {"all_reduce", tn_dist_all_reduce, whole_all_reduce, false},
    {"all_gather", tn_dist_all_gather, whole_all_gather, false},
    {"reduce_scatter", tn_dist_reduce_scatter, whole_reduce_scatter, true},
    {"all_to_all", tn_dist_all_to_all, whole_all_to_all, true},
    {"gather_dim 1", gather_inner, whole_gather_inner, true},
    {"gather_dim -1", gather_last, whole_gather_last, false},
    {"scatter_dim 0", scatter_first, whole_scatter_first, true},
    {"scatter_dim 1 of 3", scatter_inner, whole_scatter_inner, true},
};

/* A nonlinear function of rank r's y, and one of rank r's gradient. */
static tn_tensor *loss_of(tn_tensor *y, int r) {
    return tn_sum_all(tn_mul(make_numbers(tn_shape(y), 100 + r), tn_tanh(y)));
}

static tn_tensor *loss_of_gradient(tn_tensor *dx, int r) {
    return tn_sum_all(tn_mul(make_numbers(tn_shape(dx), 200 + r), tn_square(dx)));
}

/* x's last two dimensions are swapped on the way, so what is sent was not contiguous. */
static tn_tensor *turn_last(tn_tensor *x) {
    int n = tn_ndim(x);
    return tn_transpose(x, n - 2, n - 1);
}

static void compare_map(tn_group *g, void *user) {
    const map *m = user;
    TN_SCOPE;
    int me = tn_group_rank(g), ranks = tn_group_size(g);
    tn_dims dims = m->by_rank ? TN_DIMS(ranks, 3, 2) : TN_DIMS(3, 2);

    tn_tensor *all[MOST], *bent[MOST], *losses[MOST] = {NULL}, *second[MOST] = {NULL}, *dx[MOST],
                                       *wy = NULL;
    for (int r = 0; r < ranks; r++) {
        all[r] = make_leaf(dims, r);
        bent[r] = turn_last(all[r]);
    }
    for (int r = 0; r < ranks; r++) {
        tn_tensor *y = m->whole(bent, ranks, r);
        wy = r == me ? y : wy;
        losses[r] = loss_of(y, r);
    }
    tn_tensor *loss = sum_of(losses, ranks);
    for (int r = 0; r < ranks; r++) {
        dx[r] = gradient_of(loss, all[r]);
        second[r] = loss_of_gradient(dx[r], r);
    }
    CHECK(tn_backward(sum_of(second, ranks)) == TN_OK);

    tn_tensor *x = make_leaf(dims, me);
    tn_tensor *y = m->split(g, turn_last(x));
    check_near(m->name, y, wy);
    tn_tensor *own = gradient_of(loss_of(y, me), x);
    check_near(m->name, own, dx[me]);
    CHECK(tn_backward(loss_of_gradient(own, me)) == TN_OK);
    check_near(m->name, tn_grad_of(x), tn_grad_of(all[me]));
}

PLAIN_TEST(test_maps) {
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        for (int ranks = 1; ranks <= MOST; ranks++) {
            run_ok(ranks, compare_map, &maps[i]);
        }
    }
}

/* ---- copy and reduce: one x, split work, one loss -------------------------------------------- */

/* Rank r's share of the work. */
static tn_tensor *work_of(tn_tensor *x, int r) {
    return tn_mul(make_numbers(tn_shape(x), 100 + r), tn_tanh(tn_mul_scalar(x, 1.0 + 0.5 * r)));
}

RANKS_TEST(test_copy_and_reduce, 1, 2, 3, 4) {
    TN_SCOPE;
    int me = tn_group_rank(world), ranks = tn_group_size(world);
    tn_dims dims = TN_DIMS(2, 3);
    tn_tensor *shares[MOST] = {NULL}, *one = make_leaf(dims, 7), *x = make_leaf(dims, 7);
    for (int r = 0; r < ranks; r++) {
        shares[r] = work_of(one, r);
    }
    tn_tensor *dx = gradient_of(tn_sum_all(tn_square(sum_of(shares, ranks))), one);
    CHECK(tn_backward(loss_of_gradient(dx, 0)) == TN_OK);

    tn_tensor *y = tn_dist_sum_parts(world, work_of(tn_dist_copy(world, x), me));
    check_near("reduce", y, sum_of(shares, ranks));
    tn_tensor *own = gradient_of(tn_sum_all(tn_square(y)), x);
    check_near("copy", own, dx);
    CHECK(tn_backward(loss_of_gradient(own, 0)) == TN_OK);
    check_near("copy and reduce", tn_grad_of(x), tn_grad_of(one));
}

/* ---- slice and join: one x, its pieces on different ranks, one loss -------------------------- */

/* What a rank does with its piece: a function of that piece only. */
static tn_tensor *bend_piece(tn_tensor *x) {
    return tn_mul(x, tn_tanh(x));
}

static void compare_slice_and_join(tn_group *g, void *user) {
    int dim = *(int *)user, ranks = tn_group_size(g), me = tn_group_rank(g);
    TN_SCOPE;
    tn_dims dims = TN_DIMS(2, 3, 5);
    dims.size[dim] = 2 * ranks;
    tn_tensor *one = make_leaf(dims, 7), *x = make_leaf(dims, 7);
    tn_tensor *want = tn_sum_all(tn_mul(make_numbers(dims, 8), bend_piece(one)));
    tn_tensor *dx = gradient_of(want, one);
    CHECK(tn_backward(loss_of_gradient(dx, 0)) == TN_OK);

    tn_tensor *mine = tn_dist_slice(g, x, dim - 3);
    check_near("slice", mine, tn_narrow(one, dim, 2 * me, 2));
    tn_tensor *all = tn_dist_join(g, bend_piece(mine), dim);
    check_near("join", all, bend_piece(one));
    tn_tensor *own = gradient_of(tn_sum_all(tn_mul(make_numbers(dims, 8), all)), x);
    check_near("gradient", own, dx);
    CHECK(tn_backward(loss_of_gradient(own, 0)) == TN_OK);
    check_near("second", tn_grad_of(x), tn_grad_of(one));
}

PLAIN_TEST(test_slice_and_join) {
    for (int dim = 0; dim < 3; dim++) {
        for (int ranks = 1; ranks <= MOST; ranks++) {
            run_ok(ranks, compare_slice_and_join, &dim);
        }
    }
}

/* ---- A network whose hidden layer is split --------------------------------------------------- */

enum { IN = 4, HIDDEN = 12, OUT = 5, BATCH = 7 };

/* w1 (IN, HIDDEN) cut by columns, w2 (HIDDEN, OUT) by rows: one sum forward, one sum backward. */
static tn_tensor *two_layers(tn_group *g, tn_tensor *x, tn_tensor *w1, tn_tensor *w2) {
    tn_tensor *hidden = tn_tanh(tn_matmul(tn_dist_copy(g, x), w1));
    return tn_dist_sum_parts(g, tn_matmul(hidden, w2));
}

static tn_tensor *shard_of(tn_tensor *t, int dim, int r, int ranks) {
    int64_t n = tn_size(t, dim) / ranks;
    return tn_contiguous(tn_slice(tn_detach(t), dim, r * n, (r + 1) * n, 1));
}

RANKS_TEST(test_network, 1, 2, 3, 4) {
    TN_SCOPE;
    int me = tn_group_rank(world), ranks = tn_group_size(world);
    tn_tensor *target = make_numbers(TN_DIMS(BATCH, OUT), 4);
    tn_tensor *x = make_leaf(TN_DIMS(BATCH, IN), 1), *own_x = make_leaf(TN_DIMS(BATCH, IN), 1);
    tn_tensor *w1 = make_leaf(TN_DIMS(IN, HIDDEN), 2), *w2 = make_leaf(TN_DIMS(HIDDEN, OUT), 3);
    tn_tensor *own1 = tn_set_requires_grad(shard_of(w1, 1, me, ranks), true);
    tn_tensor *own2 = tn_set_requires_grad(shard_of(w2, 0, me, ranks), true);

    tn_tensor *want = tn_mse(tn_matmul(tn_tanh(tn_matmul(x, w1)), w2), target, TN_MEAN);
    tn_tensor *got = tn_mse(two_layers(world, own_x, own1, own2), target, TN_MEAN);
    check_near("loss", got, want);
    CHECK(tn_backward(want) == TN_OK && tn_backward(got) == TN_OK);
    check_near("x", tn_grad_of(own_x), tn_grad_of(x));
    check_near("w1", tn_grad_of(own1), shard_of(tn_grad_of(w1), 1, me, ranks));
    check_near("w2", tn_grad_of(own2), shard_of(tn_grad_of(w2), 0, me, ranks));
}

/* ---- Batch norm ------------------------------------------------------------------------------ */

/* Ranks with 2, 3, … samples against one module on all of them: outputs, running statistics and
 * gradients. */
RANKS_TEST(test_batch_norm, 1, 2, 3, 4) {
    TN_SCOPE;
    int me = tn_group_rank(world), ranks = tn_group_size(world);
    int64_t all = ranks * (ranks + 3) / 2, first = me * (me + 3) / 2, count = me + 2;
    tn_batch_norm_options o = TN_WITH(tn_batch_norm, .dtype = TN_F64);
    tn_batch_norm2d one, sync;
    tn_batch_norm2d_init(&one, 3, o);
    tn_batch_norm2d_init(&sync, 3, o);
    CHECK(tn_sync_batch_norm(&sync, world) == TN_OK);
    tn_tensor *x = make_leaf(TN_DIMS(all, 3, 2, 2), 1),
              *dy = make_numbers(TN_DIMS(all, 3, 2, 2), 2);
    tn_tensor *own_x =
        tn_set_requires_grad(tn_contiguous(tn_narrow(tn_detach(x), 0, first, count)), true);
    tn_tensor *y = tn_call(&one, x), *own_y = tn_call(&sync, own_x);
    check_near("y", own_y, tn_narrow(y, 0, first, count));
    check_near("mean", sync.running_mean, one.running_mean);
    check_near("var", sync.running_var, one.running_var);
    tn_tensor *own_dy = tn_narrow(dy, 0, first, count);
    CHECK(tn_backward_from(&y, &dy, 1, false) == TN_OK);
    CHECK(tn_backward_from(&own_y, &own_dy, 1, false) == TN_OK);
    check_near("dx", tn_grad_of(own_x), tn_narrow(tn_grad_of(x), 0, first, count));
    TN_NO_GRAD;
    check_near("dweight", tn_dist_all_reduce(world, tn_grad_of(sync.weight)),
               tn_grad_of(one.weight));
    check_near("dbias", tn_dist_all_reduce(world, tn_grad_of(sync.bias)), tn_grad_of(one.bias));
    tn_module_finish(&one);
    tn_module_finish(&sync);
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

static tn_tensor *slice_first(tn_group *g, tn_tensor *x) {
    return tn_dist_slice(g, x, 0);
}

static tn_tensor *join_last(tn_group *g, tn_tensor *x) {
    return tn_dist_join(g, x, 1);
}

static tn_tensor *(*const all_ops[])(tn_group *g, tn_tensor *x) = {
    tn_dist_all_reduce, tn_dist_copy, tn_dist_sum_parts, tn_dist_all_gather, tn_dist_reduce_scatter,
    tn_dist_all_to_all, gather_last,  scatter_first,     slice_first,        join_last,
};
enum { OPS = sizeof(all_ops) / sizeof(all_ops[0]) };

static bool told; /* rank 0 has received its error */

/* An inert x gives an inert result, and the group is aborted: the other rank does not wait. */
static void half_inert(tn_group *g, void *user) {
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    if (tn_group_rank(g) == 1) {
        tn_raise(TN_EIO, "rank 1 has no data");
        x = tn_neg(NULL); /* inert */
    }
    CHECK(tn_is_inert(all_ops[*(int *)user](g, x)));
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_EIO : TN_EPEER));
    if (tn_group_rank(g) == 0) { __atomic_store_n(&told, true, __ATOMIC_RELEASE); }
    for (int i = 0; i < 1000 && !__atomic_load_n(&told, __ATOMIC_ACQUIRE); i++) {
        usleep(10000);
    }
    CHECK(told);
}

/* Only rank 1, which has the wrong shape, is sure to notice at once. */
static void wrong_shape(tn_group *g, void *user) {
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(tn_group_rank(g) == 1 ? 3 : 2, 3), TN_F32);
    CHECK(tn_is_inert(all_ops[*(int *)user](g, x)));
    CHECK(tn_group_rank(g) == 0 || strstr(tn_error_message(), "[3, 3]"));
}

/* No rank waits for another: all have the same wrong shape. */
static void wrong_slice(tn_group *g, void *user) {
    TN_SCOPE;
    CHECK(tn_is_inert(all_ops[*(int *)user](g, tn_ones(TN_DIMS(3, 3), TN_F32))));
}

static void not_a_member(tn_group *g, void *user) {
    TN_SCOPE;
    tn_group *zero = tn_group_new(g, (int[]){0}, 1);
    tn_tensor *x = tn_ones(TN_DIMS(1, 3), TN_F32);
    tn_tensor *y = all_ops[*(int *)user](zero, x);
    CHECK(tn_is_inert(y) == (tn_group_rank(g) == 1));
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_ESTATE : TN_OK));
    tn_group_free(zero);
}

static void expect_message(void (*f)(tn_group *, void *), int op, const char *text) {
    failures = 0;
    told = false;
    tn_local_run(2, f, &op);
    if (!strstr(tn_error_message(), text)) {
        fail_msg("operation %d: \"%s\" does not say \"%s\"", op, tn_error_message(), text);
    }
    tn_error_clear();
    assert_int_equal(failures, 0);
}

PLAIN_TEST(test_mistakes) {
    for (int i = 0; i < OPS; i++) {
        if (all_ops[i] != tn_dist_copy && all_ops[i] != slice_first) { /* these do not wait */
            expect_message(half_inert, i, "rank 1 has no data");
        }
        if (all_ops[i] == tn_dist_reduce_scatter || all_ops[i] == tn_dist_all_to_all) {
            expect_message(wrong_shape, i, "x is [3, 3] (the first dimension must be 2");
        }
        if (all_ops[i] == scatter_first) {
            expect_message(wrong_shape, i,
                           "x is [3, 3]: the 2 ranks of world do not divide dimension 0");
        }
        if (all_ops[i] == slice_first) {
            expect_message(wrong_slice, i,
                           "dist_slice: x is [3, 3]: the 2 ranks of world do not divide");
        }
        expect_message(not_a_member, i, "not a member of group world/0");
    }
}

/* One rank, without a group. */
PLAIN_TEST(test_alone) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        tn_tensor *x = make_leaf(TN_DIMS(1, 2), 3);
        for (int i = 0; i < OPS; i++) {
            tn_tensor *y = all_ops[i](NULL, x);
            assert_int_equal(tn_count(y), 2);
            assert_int_equal(tn_ndim(y), 2 + (all_ops[i] == tn_dist_all_gather) -
                                             (all_ops[i] == tn_dist_reduce_scatter));
            check_near("alone", tn_reshape(y, TN_DIMS(1, 2)), x);
            assert_true(tn_is_inert(all_ops[i](NULL, NULL)));
            tn_error_clear();
        }
        tn_tensor *(*const along[])(tn_group *, tn_tensor *, int) = {
            tn_dist_gather_dim, tn_dist_scatter_dim, tn_dist_slice, tn_dist_join};
        for (int i = 0; i < 4; i++) {
            assert_inert(along[i](NULL, x, 2), TN_EINDEX, "x is [1, 2] but dim is 2");
            assert_inert(along[i](NULL, x, -3), TN_EINDEX, "dim is -3");
            assert_inert(along[i](NULL, tn_ones(TN_DIMS(), TN_F32), 0), TN_EINDEX, "dim is 0");
        }
        assert_true(tn_is_inert(tn_dist_reduce_scatter(NULL, tn_ones(TN_DIMS(), TN_F32))));
        assert_error(TN_ESHAPE, "");
    }
    assert_int_equal(tn_live_tensors(), before);
}

/* ---- On other engines ------------------------------------------------------------------------ */

/* argument: the engine. */
PLAIN_RANK(on_engine) {
    tn_group *g = tn_dist_init(TN_WITH(tn_dist, .engine = argument));
    rank_assert(g && strcmp(tn_group_engine(g), argument) == 0);
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        compare_map(g, (void *)&maps[i]);
    }
    for (int dim = 0; dim < 3; dim++) {
        compare_slice_and_join(g, &dim);
    }
    tn_dist_finish();
    return failures ? 1 : 0;
}

PLAIN_TEST(test_engines) {
    bool gloo = gloo_is_here();
    for (int ranks = 2; ranks <= MOST; ranks++) {
        ranks_pass(ranks, "on_engine", "shm");
        if (gloo) { ranks_pass(ranks, "on_engine", "gloo"); }
    }
}
