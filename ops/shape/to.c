/* y = x on another device
 *
 *     x: any shape and dtype       y: like x, contiguous, on args.device
 *     dx = dy, back on x's device
 *
 * Dense bytes are copied: x is made contiguous on its device first.
 */
#include "ops/op.h"
#include "tern/sys/device.h"

typedef struct to_args {
    tn_device device;
} to_args;

static bool to_shape(tn_op_call *c) {
    return tn_op_out_on(c, ((const to_args *)c->args)->device, c->in[0]->dims, c->in[0]->dtype);
}

static tn_status to_forward(const tn_op_call *c) {
    TN_SCOPE;
    TN_NO_GRAD;
    const tn_tensor *x = tn_contiguous(c->in[0]);
    if (tn_is_inert(x)) { return tn_error(); }
    return tn__copy_bytes(((const to_args *)c->args)->device, c->y[0]->data, x->storage->device,
                          tn__address(x), (size_t)tn_count(x) * tn_dtype_size(x->dtype), "to");
}

static void to_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_to(g->dout[0], tn_op_input_device(g, 0)));
}

/* Samples go to the CPU: there may be no other device. */
const tn_op tn__op_to = {
    .name = "to",
    .inputs = {"x"},
    .args_size = sizeof(to_args),
    .shape = to_shape,
    .forward = to_forward,
    .backward = to_backward,
    .samples = "*",
    .sample_args = &(const to_args){{TN_CPU, 0}},
};

tn_tensor *tn_to(tn_tensor *x, tn_device device) {
    if (!tn__usable(x, "to") || !tn__device_exists(device, "to")) { return tn_inert(); }
    to_args args = {device};
    return tn__same_device(x->storage->device, device) ? x : tn_apply1(&tn__op_to, &args, x);
}
