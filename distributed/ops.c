/* Collectives as differentiable operations: what tensor parallelism is made of.
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
 *
 * What has no index is one value that all ranks hold alike: copy and sum_parts are the f and g of
 * Shoeybi et al. 2019, arXiv:1909.08053, around the part of a network that is split. Everywhere
 * else the loss is the sum of all ranks' losses.
 *
 * Every rank calls, and every rank runs backward through the call: x requires a gradient on all
 * ranks or on none. The group must live until backward is done.
 */
#include "distributed/group/group.h"
#include "tern/ops.h"
#include "tern/sys/op.h"

#include <string.h>

typedef struct dist_args {
    tn_group *group;
} dist_args;

/* The message has the operation; a rank that fails here must not be waited for by the others. */
static tn_tensor *apply_collective(const tn_op *op, tn_group *g, tn_tensor *x) {
    dist_args args = {g};
    tn_tensor *y = tn_apply1(op, &args, x);
    if (tn_is_inert(y)) {
        tn_group_abort(g, tn_error_message());
    }
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
        return tn_op_fail(c, TN_ESHAPE, "x is %s (%d dimensions at most)", tn_shape_text(c->in[0]),
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
    if (!is_member(c) || !begins_with_ranks(c)) {
        return false;
    }
    memcpy(y.size, x.size + 1, (size_t)y.ndim * sizeof(x.size[0]));
    return tn_op_out(c, y, c->in[0]->dtype);
}

static bool all_to_all_shape(tn_op_call *c) {
    return is_member(c) && begins_with_ranks(c) && tn_op_out_like(c, 0);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static tn_status all_reduce_forward(tn_op_call *c) {
    tn_status status = c->kernels->copy(c->ctx, &c->y[0], &c->x[0]);
    return status != TN_OK ? status
                           : tn_work_wait(tn_all_reduce(group_of(c), c->out[0], TN_SUM), 0);
}

/* What travels is contiguous. */
static tn_tensor *dense_input(const tn_op_call *c) {
    TN_NO_GRAD;
    return tn_contiguous(c->in[0]);
}

static tn_status all_gather_forward(tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_all_gather(group_of(c), c->out[0], dense_input(c)), 0);
}

static tn_status reduce_scatter_forward(tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_reduce_scatter(group_of(c), c->out[0], dense_input(c), TN_SUM), 0);
}

static tn_status all_to_all_forward(tn_op_call *c) {
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
