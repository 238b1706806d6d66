/* Collectives as differentiable operations: the building blocks of tensor parallelism.
 *
 * x_r is rank r's x, N the number of ranks. Each is a linear map from all ranks' inputs to all
 * ranks' outputs, and its backward is the transposed map, which is another of them;
 * so gradients have gradients.
 *
 *                       y                           dx
 *     all_reduce        y_r = sum over s of x_s     dx_r = sum over s of dy_s      all_reduce
 *     all_gather        y_r = (x_0, x_1, …)         dx_r = sum over s of dy_s[r]   reduce_scatter
 *     reduce_scatter    y_r = sum over s of x_s[r]  dx_r = (dy_0, dy_1, …)         all_gather
 *     all_to_all        y_r = (x_0[r], x_1[r], …)   dx_r = (dy_0[r], dy_1[r], …)   all_to_all
 *     copy              y_r = x                     dx   = sum over s of dy_s      sum_parts
 *     sum_parts         y   = sum over s of x_s     dx_r = dy                      copy
 *     slice             y_r = x[r]                  dx   = (dy_0, dy_1, …)         join
 *     join              y   = (x_0, x_1, …)         dx_r = dy[r]                   slice
 *
 * A value without an index is the same on all ranks: copy and sum_parts are the f and g of Shoeybi
 * et al. 2019, arXiv:1909.08053, around the part of a network that is split; slice and join are
 * their counterparts for a part whose rows are on different ranks. Everywhere else the loss is the
 * sum of all ranks' losses.
 *
 * The ranks are the first dimension of what is sent. Another dimension (tn_dist_gather_dim, …) is
 * split off or merged by views around the same operations.
 *
 * Every rank calls, and every rank runs backward through the call: x requires a gradient on all
 * ranks or on none. The group must live until backward is done.
 */
#include "core/error.h"
#include "distributed/group/group.h"
#include "tern/ops.h"
#include "tern/sys/op.h"
#include "tern/sys/tensor.h"

#include <string.h>

typedef struct dist_args {
    tn_group *group;
} dist_args;

/* Errors name the operation. The other ranks must not wait for one that fails here. */
static tn_tensor *apply_collective(const tn_op *op, tn_group *g, tn_tensor *x) {
    dist_args args = {g};
    tn_tensor *y = tn_apply1(op, &args, x);
    if (tn_is_inert(y)) { tn_group_abort(g, tn_error_message()); }
    return y;
}

static tn_group *group_of(const tn_op_call *c) {
    return ((const dist_args *)c->args)->group;
}

static tn_group *grad_group(const tn_op_grad *g) {
    return ((const dist_args *)g->args)->group;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static bool is_member(const tn_op_call *c) {
    return tn_group_rank(group_of(c)) >= 0 ||
           tn_op_fail(c, TN_ESTATE, "this rank is not a member of group %s",
                      tn_group_name(group_of(c)));
}

static bool same_shape(tn_op_call *c) {
    return is_member(c) && tn_op_out_like(c, 0);
}

static bool view_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    return is_member(c) && tn_op_view(c, x->dims, x->stride, x->offset);
}

/* (…) -> (N, …) */
static bool all_gather_shape(tn_op_call *c) {
    tn_dims x = c->in[0]->dims;
    tn_dims y = {.ndim = x.ndim + 1, .size = {tn_group_size(group_of(c))}};
    if (x.ndim == TN_MAX_DIMS) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s (at most %d dimensions)", tn_shape_text(c->in[0]),
                          TN_MAX_DIMS - 1);
    }
    memcpy(y.size + 1, x.size, (size_t)x.ndim * sizeof(x.size[0]));
    return is_member(c) && tn_op_out(c, y, c->in[0]->dtype);
}

static bool begins_with_ranks(const tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    int ranks = tn_group_size(group_of(c));
    return (x->dims.ndim > 0 && x->dims.size[0] == ranks) ||
           tn_op_fail(c, TN_ESHAPE, "x is %s (the first dimension must be %d, the ranks of %s)",
                      tn_shape_text(x), ranks, tn_group_name(group_of(c)));
}

/* (N, …) -> (…) */
static bool reduce_scatter_shape(tn_op_call *c) {
    tn_dims x = c->in[0]->dims, y = {.ndim = x.ndim - 1};
    if (!is_member(c) || !begins_with_ranks(c)) { return false; }
    memcpy(y.size, x.size + 1, (size_t)y.ndim * sizeof(x.size[0]));
    return tn_op_out(c, y, c->in[0]->dtype);
}

static bool all_to_all_shape(tn_op_call *c) {
    return is_member(c) && begins_with_ranks(c) && tn_op_out_like(c, 0);
}

/* (N, …) -> (…), a view */
static bool slice_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    tn_dims y = {.ndim = x->dims.ndim - 1};
    if (!is_member(c) || !begins_with_ranks(c)) { return false; }
    memcpy(y.size, x->dims.size + 1, (size_t)y.ndim * sizeof(y.size[0]));
    return tn_op_view(c, y, x->stride + 1, x->offset + tn_group_rank(group_of(c)) * x->stride[0]);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static tn_status all_reduce_forward(const tn_op_call *c) {
    tn_status status = c->kernels->copy(c->ctx, c->y[0], c->x[0]);
    return status != TN_OK ? status
                           : tn_work_wait(tn_all_reduce(group_of(c), c->out[0], TN_SUM), 0);
}

/* What is sent must be contiguous. */
static tn_tensor *dense_input(const tn_op_call *c) {
    TN_NO_GRAD;
    return tn_contiguous(c->in[0]);
}

static tn_status all_gather_forward(const tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_all_gather(group_of(c), c->out[0], dense_input(c)), 0);
}

static tn_status reduce_scatter_forward(const tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_reduce_scatter(group_of(c), c->out[0], dense_input(c), TN_SUM), 0);
}

static tn_status all_to_all_forward(const tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_all_to_all(group_of(c), c->out[0], dense_input(c)), 0);
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void all_reduce_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_all_reduce(grad_group(g), g->dout[0]));
}

static void copy_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_sum_parts(grad_group(g), g->dout[0]));
}

static void sum_parts_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_copy(grad_group(g), g->dout[0]));
}

static void all_gather_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_reduce_scatter(grad_group(g), g->dout[0]));
}

static void reduce_scatter_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_all_gather(grad_group(g), g->dout[0]));
}

static void all_to_all_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_all_to_all(grad_group(g), g->dout[0]));
}

static tn_tensor *slice_ranks(tn_group *g, tn_tensor *x);
static tn_tensor *join_ranks(tn_group *g, tn_tensor *x);

static void slice_backward(tn_op_grad *g) {
    tn_op_give(g, 0, join_ranks(grad_group(g), g->dout[0]));
}

static void join_backward(tn_op_grad *g) {
    tn_op_give(g, 0, slice_ranks(grad_group(g), g->dout[0]));
}

/* ---- Operations ------------------------------------------------------------------------------ */

static const tn_op all_reduce_op = {.name = "dist_all_reduce",
                                    .args_size = sizeof(dist_args),
                                    .shape = same_shape,
                                    .forward = all_reduce_forward,
                                    .backward = all_reduce_backward};

static const tn_op copy_op = {.name = "dist_copy",
                              .args_size = sizeof(dist_args),
                              .shape = view_shape,
                              .backward = copy_backward};

static const tn_op sum_parts_op = {.name = "dist_sum_parts",
                                   .args_size = sizeof(dist_args),
                                   .shape = same_shape,
                                   .forward = all_reduce_forward,
                                   .backward = sum_parts_backward};

static const tn_op all_gather_op = {.name = "dist_all_gather",
                                    .args_size = sizeof(dist_args),
                                    .shape = all_gather_shape,
                                    .forward = all_gather_forward,
                                    .backward = all_gather_backward};

static const tn_op reduce_scatter_op = {.name = "dist_reduce_scatter",
                                        .args_size = sizeof(dist_args),
                                        .shape = reduce_scatter_shape,
                                        .forward = reduce_scatter_forward,
                                        .backward = reduce_scatter_backward};

static const tn_op all_to_all_op = {.name = "dist_all_to_all",
                                    .args_size = sizeof(dist_args),
                                    .shape = all_to_all_shape,
                                    .forward = all_to_all_forward,
                                    .backward = all_to_all_backward};

static const tn_op slice_op = {.name = "dist_slice",
                               .args_size = sizeof(dist_args),
                               .shape = slice_shape,
                               .backward = slice_backward};

static const tn_op join_op = {.name = "dist_join",
                              .args_size = sizeof(dist_args),
                              .shape = all_gather_shape,
                              .forward = all_gather_forward,
                              .backward = join_backward};

tn_tensor *tn_dist_all_reduce(tn_group *g, tn_tensor *x) {
    return apply_collective(&all_reduce_op, g, x);
}

tn_tensor *tn_dist_copy(tn_group *g, tn_tensor *x) {
    return apply_collective(&copy_op, g, x);
}

tn_tensor *tn_dist_sum_parts(tn_group *g, tn_tensor *x) {
    return apply_collective(&sum_parts_op, g, x);
}

tn_tensor *tn_dist_all_gather(tn_group *g, tn_tensor *x) {
    return apply_collective(&all_gather_op, g, x);
}

tn_tensor *tn_dist_reduce_scatter(tn_group *g, tn_tensor *x) {
    return apply_collective(&reduce_scatter_op, g, x);
}

tn_tensor *tn_dist_all_to_all(tn_group *g, tn_tensor *x) {
    return apply_collective(&all_to_all_op, g, x);
}

/* ---- Along a dimension ----------------------------------------------------------------------- */

static tn_tensor *slice_ranks(tn_group *g, tn_tensor *x) {
    return apply_collective(&slice_op, g, x);
}

static tn_tensor *join_ranks(tn_group *g, tn_tensor *x) {
    return apply_collective(&join_op, g, x);
}

/* dim counted from the front; -1 after raising and aborting the group. divides: it is split into N
 * pieces. The operation works with one more dimension. */
static int dim_of(tn_group *g, const tn_tensor *x, int dim, bool divides, const char *operation) {
    bool fine = tn__usable(x, operation);
    int ndim = fine ? tn_ndim(x) : 0, at = dim < 0 ? dim + ndim : dim, ranks = tn_group_size(g);
    if (fine && (at < 0 || at >= ndim)) {
        tn__raise(TN_EINDEX, operation, "x is %s but dim is %d", tn_shape_text(x), dim);
    } else if (fine && ndim == TN_MAX_DIMS) {
        tn__raise(TN_ESHAPE, operation, "x is %s (at most %d dimensions)", tn_shape_text(x),
                  TN_MAX_DIMS - 1);
    } else if (fine && divides && tn_size(x, at) % ranks != 0) {
        tn__raise(TN_ESHAPE, operation, "x is %s: the %d ranks of %s do not divide dimension %d",
                  tn_shape_text(x), ranks, tn_group_name(g), at);
    }
    if (tn__pending()) {
        tn_group_abort(g, tn_error_message());
        return -1;
    }
    return at;
}

/* (N, …, n, …) -> (…, N n, …) */
static tn_tensor *merge_ranks(tn_tensor *x, int dim) {
    if (tn_is_inert(x)) { return x; }
    tn_dims d = tn_shape(x), order = {.ndim = d.ndim}, y = {.ndim = d.ndim - 1};
    for (int i = 0; i < d.ndim; i++) {
        order.size[i] = i < dim ? i + 1 : i == dim ? 0 : i;
    }
    for (int i = 0; i < y.ndim; i++) {
        y.size[i] = d.size[i + 1] * (i == dim ? d.size[0] : 1);
    }
    return tn_reshape(tn_permute(x, order), y);
}

/* (…, N n, …) -> (N, …, n, …) */
static tn_tensor *split_ranks(tn_tensor *x, int dim, int ranks) {
    tn_dims d = tn_shape(x), parts = {.ndim = d.ndim + 1}, order = parts;
    for (int i = 0; i < parts.ndim; i++) {
        parts.size[i] = i < dim    ? d.size[i]
                        : i == dim ? ranks
                                   : d.size[i - 1] / (i - 1 == dim ? ranks : 1);
        order.size[i] = i == 0 ? dim : i <= dim ? i - 1 : i;
    }
    return tn_permute(tn_reshape(x, parts), order);
}

tn_tensor *tn_dist_gather_dim(tn_group *g, tn_tensor *x, int dim) {
    int at = dim_of(g, x, dim, false, "dist_gather_dim");
    return at < 0 ? tn_inert() : merge_ranks(tn_dist_all_gather(g, x), at);
}

tn_tensor *tn_dist_scatter_dim(tn_group *g, tn_tensor *x, int dim) {
    int at = dim_of(g, x, dim, true, "dist_scatter_dim");
    return at < 0 ? tn_inert() : tn_dist_reduce_scatter(g, split_ranks(x, at, tn_group_size(g)));
}

tn_tensor *tn_dist_slice(tn_group *g, tn_tensor *x, int dim) {
    int at = dim_of(g, x, dim, true, "dist_slice");
    return at < 0 ? tn_inert() : slice_ranks(g, split_ranks(x, at, tn_group_size(g)));
}

tn_tensor *tn_dist_join(tn_group *g, tn_tensor *x, int dim) {
    int at = dim_of(g, x, dim, false, "dist_join");
    return at < 0 ? tn_inert() : merge_ranks(join_ranks(g, x), at);
}
