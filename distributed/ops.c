/* Collectives as differentiable operations: what tensor parallelism is made of.
 *
 * x_r is rank r's x, N the number of ranks. Each is a linear map from all ranks' inputs to all
 * ranks' outputs, and its backward is the transposed map, which is another of them; so gradients
 * have gradients.
 *
 *                  y                               dx
 *     sum          y_r = sum over s of x_s         dx_r = sum over s of dy_s        sum
 *     copy         y_r = x                         dx   = sum over s of dy_s        reduce
 *     reduce       y   = sum over s of x_s         dx_r = dy                        copy
 *     gather       y_r = (x_0, x_1, …)             dx_r = sum over s of dy_s[r]     scatter
 *     scatter      y_r = sum over s of x_s[r]      dx_r = (dy_0, dy_1, …)           gather
 *     exchange     y_r = (x_0[r], x_1[r], …)       dx_r = (dy_0[r], dy_1[r], …)     exchange
 *
 * What has no index is one value that all ranks hold alike: copy and reduce are the f and g of
 * Shoeybi et al. 2019, arXiv:1909.08053, around the part of a network that is split. Everywhere
 * else the loss is the sum of all ranks' losses.
 *
 * Every rank calls, and every rank runs backward through the call: x requires a gradient on all
 * ranks or on none. The group must live until backward is done.
 */
#include "distributed/group/group.h"
#include "tern/sys/op.h"

#include <string.h>

typedef struct dist_args {
    tn_group *group;
} dist_args;

/* The message has the operation; a rank that fails here must not be waited for by the others. */
static tn_tensor *apply(const tn_op *op, tn_group *g, tn_tensor *x) {
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
static bool gather_shape(tn_op_call *c) {
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
static bool scatter_shape(tn_op_call *c) {
    tn_dims x = c->in[0]->dims, y = {.ndim = x.ndim - 1};
    if (!is_member(c) || !begins_with_ranks(c)) {
        return false;
    }
    memcpy(y.size, x.size + 1, (size_t)y.ndim * sizeof(x.size[0]));
    return tn_op_out(c, y, c->in[0]->dtype);
}

static bool exchange_shape(tn_op_call *c) {
    return is_member(c) && begins_with_ranks(c) && tn_op_out_like(c, 0);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static tn_status sum_forward(tn_op_call *c) {
    tn_status status = c->kernels->copy(c->ctx, &c->y[0], &c->x[0]);
    return status != TN_OK ? status
                           : tn_work_wait(tn_all_reduce(group_of(c), c->out[0], TN_REDUCE_SUM), 0);
}

/* What travels is contiguous. */
static tn_tensor *dense_input(const tn_op_call *c) {
    TN_NO_GRAD;
    return tn_contiguous(c->in[0]);
}

static tn_status gather_forward(tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_all_gather(group_of(c), c->out[0], dense_input(c)), 0);
}

static tn_status scatter_forward(tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_reduce_scatter(group_of(c), c->out[0], dense_input(c), TN_REDUCE_SUM),
                        0);
}

static tn_status exchange_forward(tn_op_call *c) {
    TN_SCOPE;
    return tn_work_wait(tn_all_to_all(group_of(c), c->out[0], dense_input(c)), 0);
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void sum_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_sum(grad_group(g), g->dout[0]));
}

static void copy_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_reduce(grad_group(g), g->dout[0]));
}

static void reduce_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_copy(grad_group(g), g->dout[0]));
}

static void gather_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_scatter(grad_group(g), g->dout[0]));
}

static void scatter_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_gather(grad_group(g), g->dout[0]));
}

static void exchange_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_dist_exchange(grad_group(g), g->dout[0]));
}

/* ---- Operations ------------------------------------------------------------------------------ */

static const tn_op sum_op = {.name = "dist_sum",
                             .args_size = sizeof(dist_args),
                             .shape = same_shape,
                             .forward = sum_forward,
                             .backward = sum_backward};

static const tn_op copy_op = {.name = "dist_copy",
                              .args_size = sizeof(dist_args),
                              .shape = view_shape,
                              .backward = copy_backward};

static const tn_op reduce_op = {.name = "dist_reduce",
                                .args_size = sizeof(dist_args),
                                .shape = same_shape,
                                .forward = sum_forward,
                                .backward = reduce_backward};

static const tn_op gather_op = {.name = "dist_gather",
                                .args_size = sizeof(dist_args),
                                .shape = gather_shape,
                                .forward = gather_forward,
                                .backward = gather_backward};

static const tn_op scatter_op = {.name = "dist_scatter",
                                 .args_size = sizeof(dist_args),
                                 .shape = scatter_shape,
                                 .forward = scatter_forward,
                                 .backward = scatter_backward};

static const tn_op exchange_op = {.name = "dist_exchange",
                                  .args_size = sizeof(dist_args),
                                  .shape = exchange_shape,
                                  .forward = exchange_forward,
                                  .backward = exchange_backward};

tn_tensor *tn_dist_sum(tn_group *g, tn_tensor *x) {
    return apply(&sum_op, g, x);
}

tn_tensor *tn_dist_copy(tn_group *g, tn_tensor *x) {
    return apply(&copy_op, g, x);
}

tn_tensor *tn_dist_reduce(tn_group *g, tn_tensor *x) {
    return apply(&reduce_op, g, x);
}

tn_tensor *tn_dist_gather(tn_group *g, tn_tensor *x) {
    return apply(&gather_op, g, x);
}

tn_tensor *tn_dist_scatter(tn_group *g, tn_tensor *x) {
    return apply(&scatter_op, g, x);
}

tn_tensor *tn_dist_exchange(tn_group *g, tn_tensor *x) {
    return apply(&exchange_op, g, x);
}
