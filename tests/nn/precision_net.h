/* For the tests of mixed precision: a net that checks itself while it runs. */
#ifndef TERN_TESTS_PRECISION_NET_H
#define TERN_TESTS_PRECISION_NET_H

#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/tensor.h>
#include <tern/tern.h>

/* ---- A net that checks itself while it runs -------------------------------------------------- */

enum { IN = 24, HIDDEN = 40, OUT = 8, ROWS = 16 };

typedef struct net {
    tn_module base;
    tn_linear fc1, fc2;
    tn_layer_norm norm;
    tn_tensor *scale; /* (HIDDEN) */
    tn_dtype x, weight, norm_weight, scaled, hidden;
    bool fails;
    void *moved; /* a module that the forward moves, or NULL */
    int calls;
} net;

static inline tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    n->calls++;
    n->x = tn_dtype_of(x);
    n->weight = tn_dtype_of(n->fc1.weight);
    n->norm_weight = tn_dtype_of(n->norm.weight);
    n->scaled = tn_dtype_of(n->scale);
    if (n->moved) { tn_module_to(n->moved, tn_cpu()); }
    tn_tensor *h = tn_call(&n->norm, tn_call(&n->fc1, x));
    n->hidden = tn_dtype_of(h);
    if (n->fails) {
        tn_raise(TN_EVALUE, "this forward fails");
        return tn_inert();
    }
    h = tn_mul(tn_cast(h, n->scaled), n->scale);
    return tn_call(&n->fc2, tn_gelu(h));
}

static inline void net_init(net *n) {
    memset(n, 0, sizeof(*n));
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->fc1, IN, HIDDEN, tn_linear_defaults());
    tn_linear_init(&n->fc2, HIDDEN, OUT, tn_linear_defaults());
    tn_layer_norm_init(&n->norm, HIDDEN, tn_norm_defaults());
    tn_module_add(n, "fc1", &n->fc1);
    tn_module_add(n, "norm", &n->norm);
    tn_module_add(n, "fc2", &n->fc2);
    TN_SCOPE;
    tn_module_param(n, "scale", &n->scale, tn_full(TN_DIMS(HIDDEN), 1.25, TN_F32));
}

static inline void set_compute(void *m, tn_dtype compute) {
    tn_precision policy = tn_precision_defaults();
    policy.compute = compute;
    assert_int_equal(tn_module_set_precision(m, policy), TN_OK);
}

static inline bool field_is_f32(const tn_entry *entry, void *user) {
    assert_int_equal(tn_dtype_of(*entry->field), TN_F32);
    assert_true(tn_is_leaf(*entry->field));
    return true;
}

/* Between calls every field holds its f32 parameter. */
static inline void expect_parameters(void *m) {
    tn_module_each(m, (tn_walk){.with_shared = true}, field_is_f32, NULL);
}

static inline tn_tensor *input_batch(int64_t number) {
    tn_generator g = {.seed = 7, .stream = (uint64_t)number};
    return tn_normal_(tn_empty(TN_DIMS(ROWS, IN), TN_F32), 0, 1, &g);
}

static inline tn_tensor *target_batch(int64_t number) {
    tn_generator g = {.seed = 8, .stream = (uint64_t)number};
    return tn_normal_(tn_empty(TN_DIMS(ROWS, OUT), TN_F32), 0, 1, &g);
}

static inline void net_backward(net *n, int64_t number) {
    TN_SCOPE;
    tn_tensor *y = tn_call(n, input_batch(number));
    tn_backward(tn_mse(tn_cast(y, TN_F32), target_batch(number), TN_MEAN));
}

/* ---- Memory and bits ------------------------------------------------------------------------- */

/* Memory of the device that has the module. */
static inline tn_memory_stats memory_now(void) {
    return tn_device_memory(tn_default_device());
}

/* Two f32 tensors, on any devices, have the same bits. */
static inline void expect_same_bits(tn_tensor *a, tn_tensor *b) {
    TN_SCOPE;
    TN_NO_GRAD;
    assert_int_equal(tn_count(a), tn_count(b));
    assert_memory_equal(tn_data(tn_to(a, tn_cpu())), tn_data(tn_to(b, tn_cpu())),
                        (size_t)tn_count(a) * 4);
}

#endif
