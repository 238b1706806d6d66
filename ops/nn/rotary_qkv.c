/* rotary_qkv(q, k, v, positions): q and k rotated (rotary.c), v as it is, each in memory of its own
 *
 *     q: (B, H, T, D), k and v: (B, G, T, D), D even, f32 f64 bf16 f16       results: like them
 *     positions: (T) or (B, T), i64 i32
 *
 * All that happens to them before attention reads a cache, in one launch: tn__rotary_append has the
 * kernel write the results of k and v where the cache goes on.
 */
#include "autograd/kernel.h"
#include "autograd/mode.h"
#include "ops/inplace/inplace.h"
#include "ops/nn/rotary.h"
#include "tern/sys/device.h"

enum { Q, K, V, POSITIONS, INPUTS };

static bool heads_fit(tn_dims q, tn_dims k, tn_dims v) {
    return k.ndim == 4 && tn_dims_equal(k, v) && q.size[0] == k.size[0] && q.size[2] == k.size[2] &&
           q.size[3] == k.size[3];
}

static bool rotary_qkv_shape(tn_op_call *c) {
    if (!tn_op_shapes(c, "batch heads positions width, batch groups positions width, "
                         "batch groups positions width, index: ...") ||
        !tn__rotary_fits(c, POSITIONS)) {
        return false;
    }
    return tn__rotary_out(c, Q) && tn__rotary_out(c, K) && tn__rotary_out(c, V);
}

static tn_tensor *rotary_qkv_compose(tn_op_call *c) {
    tn_tensor *positions = c->in[POSITIONS];
    c->out[K] = tn_apply2(&tn__op_rotary, c->args, c->in[K], positions);
    c->out[V] = tn_copy(c->in[V]);
    return tn_apply2(&tn__op_rotary, c->args, c->in[Q], positions);
}

const tn_op tn__op_rotary_qkv = {
    .name = "rotary_qkv",
    .inputs = {"q", "k", "v", "positions"},
    .args_size = sizeof(tn_rotary_args),
    .fields = {TN_FIELD(tn_rotary_args, theta), TN_FIELD(tn_rotary_args, factor),
               TN_FIELD(tn_rotary_args, original_context)},
    .results = 3,
    .saves = TN_SAVES_INPUTS,
    .shape = rotary_qkv_shape,
    .kernel = TN_FUSED(rotary_qkv),
    .compose = rotary_qkv_compose,
    .flags = TN_OP_WIDE,
    /* Groups of heads, one head each, several sequences with positions of their own; empty ones. */
    .samples = "{-1.5:1.5} [2, 4, 3, 4] [2, 2, 3, 4] [2, 2, 3, 4] [3]<100; "
               "[1, 2, 5, 8] [1, 1, 5, 8] [1, 1, 5, 8] [1, 5]<100 "
               "theta=500.0, factor=8.0, original_context=64; "
               "[3, 2, 1, 34] [3, 2, 1, 34] [3, 2, 1, 34] [3, 1]<100; "
               "[1, 1, 70, 2] [1, 1, 70, 2] [1, 1, 70, 2] [70]<100; "
               "[1, 2, 0, 4] [1, 1, 0, 4] [1, 1, 0, 4] [0]<100; "
               "[0, 2, 3, 4] [0, 2, 3, 4] [0, 2, 3, 4] [3]<100; "
               "[1, 2, 3, 0] [1, 1, 3, 0] [1, 1, 3, 0] [3]<100",
    .sample_args = &(const tn_rotary_args){10000.0, 1.0, 1.0, 4.0, 8192, false},
};

/* ---- Into a cache ---------------------------------------------------------------------------- */

/* Whether the kernel may do it: operands as the composition would have them, and nobody who wants
 * to see its operations. */
static bool may_append(tn_tensor *const *in, const tn_tensor *keys, const tn_tensor *values) {
    for (int i = 0; i < INPUTS; i++) {
        if (tn_is_inert(in[i]) ||
            !tn__same_device(in[i]->storage->device, in[Q]->storage->device) ||
            (i < POSITIONS && (in[i]->dtype != in[Q]->dtype || in[i]->dims.ndim != 4))) {
            return false;
        }
    }
    return tn__kernel_owned(&tn__op_rotary_qkv, in[Q]->storage->device) && !tn__will_record() &&
           !tn__grad_self.tracer && heads_fit(in[Q]->dims, in[K]->dims, in[V]->dims) &&
           tn_dims_equal(keys->dims, in[K]->dims) && tn_dims_equal(values->dims, in[V]->dims) &&
           keys->dtype == in[Q]->dtype && values->dtype == in[Q]->dtype;
}

tn_tensor *tn__rotary_append(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *positions,
                             const tn_rotary_options *options, tn_tensor *keys, tn_tensor *values) {
    tn_tensor *in[INPUTS] = {q, k, v, positions};
    if (!may_append(in, keys, values)) { return NULL; }
    tn_dims d = q->dims;
    tn_tensor *memory = tn_empty_on(q->storage->device,
                                    TN_DIMS(d.size[0], d.size[2], d.size[1], d.size[3]), q->dtype);
    tn_tensor *out[] = {tn_transpose(memory, 1, 2), keys, values};
    tn_rotary_args args = tn__rotary_args_of(options);
    tn_op_call c = {.op = &tn__op_rotary_qkv, .args = &args, .inputs = INPUTS, .in = in};
    if (tn_is_inert(out[0]) || !tn__rotary_fits(&c, POSITIONS)) { return tn_inert(); }
    tn_desc x[INPUTS], y[V + 1];
    for (int i = 0; i < INPUTS; i++) {
        x[i] = tn_desc_of(in[i]);
        c.x[i] = &x[i];
        if (i <= V) {
            y[i] = tn_desc_of(out[i]);
            c.y[i] = &y[i];
        }
    }
    c.kernels = tn__kernels_of(q);
    c.ctx = tn__context_of(q);
    TN__PROFILED(keys, c.op->name,
                 2 * (tn__profile_bytes(q) + tn__profile_bytes(k) + tn__profile_bytes(v)));
    tn_status status = tn_op_run(c.op, &c);
    if (status == TN_EUNSUPPORTED) { return NULL; }
    tn__touch(values);
    return tn_is_inert(tn__changed(keys, status, c.op->name)) ? tn_inert() : out[0];
}
