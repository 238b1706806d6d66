/* Every public function, called as no one should: with NULL and inert tensors, with structs of
 * zeros, with numbers outside any range. Nothing may crash, print, hang or leak, and the first
 * error stays.
 *
 * Here: core, tensors, operations, gradients, and the headers in sys/. The other headers are in
 * test_inert_modules.c, _layers.c, _data.c, _io.c, _train.c and _distributed.c. check_complete.py
 * compares these files with the headers.
 */
#include "inert.h"

#include <tern/sys/device.h>
#include <tern/sys/group.h>
#include <tern/sys/op.h>

/* ---- core.h ---------------------------------------------------------------------------------- */

static void core_calls(tn_tensor *t) {
    TAKES(tn_error());
    TAKES(tn_error_message());
    GIVES(strcmp(tn_status_name((tn_status)-3), "TN_UNKNOWN") |
              !(null ? tn_raise(TN_EVALUE, "a text of some length") : 1),
          0);
    TAKES(tn_on_error(NULL));
    TAKES(tn_on_error_thread(NULL));
    TAKES(tn_error_give(NULL));
    TAKES(tn_error_give(&(tn_error_record){0}));
    tn_error_record record;
    if (tn_error_take(NULL)) {
        tn_raise(TN_EPEER, "the first");
    }
    if (tn_error_take(&record)) {
        tn_error_give(&record);
    }
    TAKES(tn_scope_end(NULL));
    tn_scope scope = tn_scope_begin(NULL, -1);
    TAKES(tn_scope_end(&scope));
    TAKES(tn_return(t));
    QUIET(tn_keep(t), t);
    TAKES(tn_release(t));
    TAKES(tn_adopt(t));
    TAKES(tn_drop(t));
    TAKES(tn_memory());
    TAKES(tn_memory_set_limit(-1));
    TAKES(tn_memory_set_limit(256LL << 20)); /* as main sets it */
    TAKES(tn_seed(UINT64_MAX));
    TAKES(tn_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX));
    TAKES(tn_random_uniform(NULL));
    TAKES(tn_random_normal(NULL));
    TAKES(tn_random_below(NULL, 5));
    tn_generator g = {0};
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_random_below(&g, longs[i]));
    }
    int threads = tn_threads();
    TAKES(tn_set_threads(-5));
    TAKES(tn_set_threads(0));
    TAKES(tn_set_threads(threads));
    TAKES(tn_now());
    TAKES(tn_log_write((tn_log_level)99, "%s", ""));
    TAKES(tn_log_to(NULL, (tn_log_level)-9, NULL));
}

/* ---- tensor.h -------------------------------------------------------------------------------- */

static void making_tensors(tn_tensor *t) {
    for (int i = 0; i < STRANGE; i++) {
        tn_dims d = strange[i];
        TAKES(tn_dims_from(d.ndim, null ? NULL : d.size));
        TAKES(tn_dims_count(d));
        for (int j = 0; j < STRANGE; j++) {
            TAKES(tn_dims_equal(d, strange[j]));
            TAKES(tn_dims_broadcast(d, strange[j], NULL));
        }
        if (d.size[0] != 0) { /* next to a 0 any size is allowed */
            check_call(__LINE__, "tn_empty", tn_is_inert(tn_empty(d, TN_F32)), true);
            check_call(__LINE__, "tn_zeros", tn_is_inert(tn_zeros(d, TN_F64)), true);
        }
        TAKES(tn_ones(d, TN_I64));
        TAKES(tn_full(d, NAN, TN_U8));
        TAKES(tn_rand(d, TN_BOOL));
        TAKES(tn_randn(d, TN_F16));
        TAKES(tn_randint(5, -5, d, TN_I64));
        TAKES(tn_randint(INT64_MIN, INT64_MAX, d, TN_I64));
        TAKES(tn_from_data(NULL, d, TN_F32));
        TAKES(tn_from_memory(NULL, d, TN_F32, NULL, NULL));
        TAKES(tn__from_array(NULL, 4, d, TN_F32));
        TAKES(tn__from_array(NULL, SIZE_MAX, d, no_dtype));
    }
    tn_dims d = TN_DIMS(2);
    INERT(tn_empty(d, no_dtype));
    INERT(tn_zeros(d, no_dtype));
    INERT(tn_ones(d, no_dtype));
    INERT(tn_full(d, 1.0, no_dtype));
    INERT(tn_scalar(1.0, no_dtype));
    INERT(tn_rand(d, no_dtype));
    INERT(tn_randn(d, no_dtype));
    INERT(tn_randint(0, 3, d, no_dtype));
    INERT(tn_from_data(NULL, d, TN_F32));
    INERT(tn_from_memory(NULL, d, TN_F32, NULL, NULL));
    INERT(tn__from_array(NULL, 8, d, TN_F32));
    INERT(tn_empty_like(t));
    INERT(tn_zeros_like(t));
    INERT(tn_ones_like(t));
    INERT(tn_rand_like(t));
    INERT(tn_randn_like(t));
    for (int i = 0; i < REALS; i++) {
        for (int j = 0; j < REALS; j++) {
            if (!isfinite(reals[i]) || !isfinite(reals[j])) {
                INERT(tn_arange(reals[i], reals[j], 1.0, TN_F32));
                INERT(tn_arange(0.0, reals[i], reals[j], TN_F32));
            }
        }
    }
    INERT(tn_arange(0.0, 1.0, 0.0, TN_F32));
    INERT(tn_linspace(0.0, NAN, 3, TN_F32));
    INERT(tn_linspace(0.0, 1.0, -1, TN_F32));
    INERT(tn_linspace(0.0, 1.0, INT64_MAX, TN_F32));
    INERT(tn_linspace(0.0, 1.0, 3, no_dtype));
    INERT(tn_eye(-1, 2, TN_F32));
    INERT(tn_eye(2, 2, no_dtype));
    INERT(tn_randperm(-1));
    INERT(tn_randperm(INT64_MAX));
    INERT(tn_arange(0.0, 1e300, 1e-300, TN_F32));
    INERT(tn_arange(0.0, 3.0, 1.0, no_dtype));
    QUIET(tn_dtype_size(no_dtype), 0u);
    TAKES(tn_dtype_name(no_dtype));
    QUIET(tn_dtype_is_float(no_dtype), false);
    TAKES(tn_bf16_to_float((tn_bf16){0xffff}));
    TAKES(tn_f16_to_float((tn_f16){0xffff}));
    TAKES(tn_bf16_from_float(NAN));
    TAKES(tn_f16_from_float(-INFINITY));
}

static void looking_at_tensors(tn_tensor *t) {
    char text[8];
    float out[2];
    QUIET(tn_is_inert(t), true);
    TAKES(tn_ndim(t));
    TAKES(tn_shape(t));
    TAKES(tn_size(t, -1));
    TAKES(tn_stride(t, 99));
    TAKES(tn_count(t));
    TAKES(tn_dtype_of(t));
    TAKES(tn_device_of(t));
    TAKES(tn_is_contiguous(t));
    QUIET(tn_shares_storage(t, NULL), false);
    check_call(__LINE__, "tn_data", tn_data(t) != NULL, null);
    check_call(__LINE__, "tn_data_mut", tn_data_mut(t) != NULL, null);
    IS_NAN(tn_item(t));
    IS_NAN(tn_at(t, TN_DIMS(0)));
    IS_NAN(tn_at(t, TN_DIMS(-1, 0)));
    FAILS(tn_copy_out(t, out));
    FAILS(tn_copy_out(t, NULL));
    TAKES(tn_format(t, text, sizeof text));
    TAKES(tn_format(t, NULL, 0));
    FILE *nowhere = fopen("/dev/null", "w");
    TAKES(tn_fprint(nowhere, t));
    TAKES(tn_fprint(NULL, t));
    TAKES(tn_shape_text(t));
    fclose(nowhere);
    TAKES(tn_storage_is_empty(t));
    FAILS(tn_storage_empty(t));
    FAILS(tn_storage_refill(t));
    FAILS(tn_storage_share(t));
}

/* A valid tensor and bad numbers. */
static void odd_numbers(tn_tensor *t) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32), *out[4];
    for (int i = 0; i < STRANGE; i++) {
        TAKES(tn_reshape(x, strange[i]));
        TAKES(tn_permute(x, strange[i]));
        TAKES(tn_expand(x, strange[i]));
        TAKES(tn_alias(x, 0, strange[i]));
        TAKES(tn_alias(x, INT64_MAX, strange[i]));
        TAKES(tn_sum(x, strange[i], true));
        TAKES(tn_var(x, strange[i], INT32_MIN, false));
        TAKES(tn_logsumexp(x, strange[i], false));
        TAKES(tn_sum_to(x, strange[i]));
        TAKES(tn__new(strange[i], TN_F32, (tn_device){TN_CPU, 0}));
        TAKES(tn__view(x, strange[i], (int64_t[TN_MAX_DIMS]){INT64_MAX}, 0));
    }
    for (int i = 0; i < INTS; i++) {
        for (int j = 0; j < INTS; j++) {
            TAKES(tn_flatten(x, ints[i], ints[j]));
            TAKES(tn_transpose(x, ints[i], ints[j]));
            TAKES(tn_var(x, TN_DIMS(ints[i]), ints[j], false));
        }
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_select(x, ints[i], longs[j]));
            TAKES(tn_split(x, longs[j], ints[i], out, 4));
            TAKES(tn_at(x, TN_DIMS(longs[j], ints[i])));
            for (int k = 0; k < LONGS; k++) {
                TAKES(tn_narrow(x, ints[i], longs[j], longs[k]));
                TAKES(tn_slice(x, ints[i], longs[j], longs[k], ints[i]));
                TAKES(tn_slice(x, 1, longs[j], longs[k], longs[j]));
            }
        }
        TAKES(tn_size(x, ints[i]));
        TAKES(tn_stride(x, ints[i]));
        TAKES(tn_squeeze(x, ints[i]));
        TAKES(tn_unsqueeze(x, ints[i]));
        TAKES(tn_split(x, 1, 1, out, ints[i] > 4 ? 4 : ints[i]));
        TAKES(tn_argmax(x, ints[i], false));
        TAKES(tn_softmax(x, ints[i]));
        TAKES(tn_log_softmax(x, ints[i]));
        TAKES(tn_cat(&x, 1, ints[i]));
        TAKES(tn_cat(NULL, ints[i], 0));
        TAKES(tn_stack(&x, 1, ints[i]));
        TAKES(tn_stack(NULL, ints[i], 0));
        TAKES(tn_index_select(x, ints[i], tn_zeros(TN_DIMS(1), TN_I64)));
        TAKES(tn_gather(x, ints[i], tn_zeros(TN_DIMS(1, 1), TN_I64)));
        TAKES(tn_attention_qkv(tn_zeros(TN_DIMS(1, 2, 6), TN_F32), ints[i], NULL,
                               tn_attention_defaults()));
        TAKES(tn_sum(x, TN_DIMS(ints[i]), true));
        TAKES(tn_backend_of((tn_device){(tn_device_kind)ints[i], ints[i]}));
        TAKES(tn_context_of((tn_device){(tn_device_kind)ints[i], ints[i]}));
        TAKES(tn_op_at(ints[i]));
        TAKES(tn_op_input_name(tn_op_at(0), ints[i]));
        TAKES(tn_empty((tn_dims){ints[i], {1}}, TN_F32));
    }
    for (int i = 0; i < REALS; i++) {
        TAKES(tn_dropout_op(x, reals[i]));
        TAKES(tn_layer_norm_op(x, NULL, NULL, reals[i]));
        TAKES(tn_add_layer_norm(x, x, NULL, NULL, reals[i], NULL));
        TAKES(tn_rms_norm_op(x, NULL, reals[i]));
        TAKES(tn_add_rms_norm(x, x, NULL, reals[i], NULL));
        TAKES(tn_clamp(x, reals[i], -reals[i]));
        TAKES(tn_full(TN_DIMS(2), reals[i], TN_I32));
        TAKES(tn_fill_(tn_zeros(TN_DIMS(2), TN_U8), reals[i]));
        TAKES(tn_uniform_(x, reals[i], -1.0, NULL));
        TAKES(tn_normal_(x, 0.0, reals[i], NULL));
        TAKES(tn_pow_scalar(x, reals[i]));
        TAKES(tn_masked_fill(x, tn_ones(TN_DIMS(2, 3), TN_BOOL), reals[i]));
        TAKES(tn_add_scalar(tn_zeros(TN_DIMS(2), TN_I64), reals[i]));
        TAKES(tn_cast(tn_full(TN_DIMS(2), reals[i], TN_F64), TN_I64));
        TAKES(tn_cast(tn_full(TN_DIMS(2), reals[i], TN_F64), TN_U8));
        TAKES(tn_init_uniform(x, reals[i], -1.0));
        TAKES(tn_init_normal(x, reals[i], reals[i]));
        TAKES(tn_init_xavier_uniform(x, reals[i]));
        TAKES(tn_init_kaiming_normal(x, reals[i]));
    }
    INERT(tn_cast(x, no_dtype));
    INERT(tn_to(NULL, tn_cpu()));
    INERT(tn_to(x, tn_cuda(-1)));
    TAKES(tn_mse(x, x, (tn_reduction)99));
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        TAKES(tn_at(x, strange[i]));
    }
    FAILS(tn_copy_out(x, NULL));
}

/* ---- ops.h ----------------------------------------------------------------------------------- */

/* Every function of the public headers that makes a tensor from tensors (make_inert.py). */
static const tn_dtype dtypes[] = {TN_F64, TN_BF16, TN_I64, TN_BOOL, (tn_dtype)77, (tn_dtype)-1};
static const tn_reduction reductions[] = {TN_SUM, TN_NONE, (tn_reduction)99, (tn_reduction)-1};
enum {
    DTYPES = sizeof dtypes / sizeof *dtypes,
    REDUCTIONS = sizeof reductions / sizeof *reductions
};
#include "inert_calls.h"

static void derived_operations(tn_tensor *t) {
    static const tn_dtype others[] = {TN_F32, TN_I64, TN_BOOL};
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            TN_SCOPE;
            derived[i](t, tn_ones(TN_DIMS(2, 3), TN_F32), tn_ones(TN_DIMS(2, 3), others[k]));
        }
    }
}

/* What make_inert.py does not cover: NULL lists, options out of range, functions that return other
 * things than a tensor. */
static void special_operations(tn_tensor *t) {
    static tn_tensor *(*const convs[])(tn_tensor * x, tn_tensor * weight, tn_tensor * bias,
                                       tn_conv_options options) = {
        tn_conv1d_op,           tn_conv2d_op,           tn_conv3d_op,
        tn_conv_transpose1d_op, tn_conv_transpose2d_op, tn_conv_transpose3d_op,
    };
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *q = tn_ones(TN_DIMS(1, 1, 2, 2), TN_F32);
    tn_tensor *out[2];
    QUIET(tn_split(t, 1, 0, out, 2) > 0, false);
    QUIET(tn_split(t, 1, 0, NULL, 2) > 0, false);
    QUIET(tn_chunk(t, 1, 0, out, 2) > 0, false);
    QUIET(tn_chunk(t, 1, 0, NULL, 2) > 0, false);
    NOTHING(tn_equal(t, x));
    NOTHING(tn_equal(x, t));
    NOTHING(tn_all_close(t, x, NAN, NAN));
    INERT(tn_pad(t, TN_DIMS(1, 1), TN_PAD_CONSTANT, 0.0));
    INERT(tn_pad(t, TN_DIMS(1, 1), TN_PAD_REFLECT, 0.0));
    for (int i = 0; i < STRANGE; i++) {
        TAKES(tn_pad(x, strange[i], TN_PAD_CONSTANT, NAN));
        TAKES(tn_pad(x, strange[i], TN_PAD_CIRCULAR, 0.0));
    }
    NOTHING(tn_allclose(t, x));
    NOTHING(tn_allclose(x, t));
    NOTHING(tn_all_close(x, t, 0.0, 0.0));
    for (int i = 0; i < (int)(sizeof convs / sizeof *convs); i++) {
        INERT(convs[i](q, q, q, (tn_conv_options){0}));
        INERT(convs[i](q, q, NULL, tn_conv_strided(INT64_MIN, INT64_MAX)));
    }
    INERT(tn_cat(NULL, 2, 0));
    INERT(tn_stack(NULL, 1, 0));
    static const char *const equations[] = {NULL,
                                            "",
                                            ",",
                                            "ij,jk",
                                            "i",
                                            "...",
                                            "......",
                                            "->",
                                            "->->",
                                            "ij->jj",
                                            "ij->k",
                                            "ij->i,j",
                                            "ij.",
                                            "-",
                                            "i-j",
                                            ">",
                                            "i\xffj",
                                            "ijkijkijkijk",
                                            "ij->ijijijijijij"};
    for (size_t i = 0; i < sizeof equations / sizeof *equations; i++) {
        INERT(tn_einsum(equations[i], &t, 1));
        TAKES(tn_einsum(equations[i], &x, 1));
        TAKES(tn_einsum(equations[i], NULL, 1));
        TAKES(tn_einsum(equations[i], &x, -1));
    }
    TAKES(tn_attention(q, q, q, t, tn_attention_defaults()));
    tn_rnn_weights absent = {t, t, t, t}, there = {x, x, x, x};
    INERT(tn_rnn_op(t, NULL, there, NULL, false, false, NULL));
    INERT(tn_gru_op(t, NULL, there, t, true, NULL));
    INERT(tn_lstm_op(x, t, t, absent, t, false, NULL, NULL));
    TAKES(tn_attention(q, q, q, NULL, TN_WITH(tn_attention, .causal = true, .scale = NAN)));
    INERT(tn_cross_entropy_with(x, t, TN_WITH(tn_cross_entropy, .reduction = (tn_reduction)-1)));
}

/* ---- autograd.h ------------------------------------------------------------------------------ */

static tn_tensor *no_grad_hook(tn_tensor *grad, void *user) {
    return user;
}

static void no_accumulated_hook(tn_tensor *leaf, void *user) {}

static void no_end(void *user) {}

static tn_values pass_on(void *user, tn_values in) {
    return in;
}

static void gradient_calls(tn_tensor *t) {
    tn_tensor *x = tn_ones(TN_DIMS(2), TN_F32), *results[2] = {0};
    tn_set_requires_grad(x, true);
    tn_tensor *loss = tn_sum_all(x);
    tn_grad_options o = tn_grad_defaults();
    INERT(tn_set_requires_grad(t, true));
    QUIET(tn_requires_grad(t), false);
    TAKES(tn_is_leaf(t));
    INERT(tn_detach(t));
    bool before = tn_grad_mode_begin(true);
    TAKES(tn_grad_mode_end(&before));
    TAKES(tn_grad_mode_end(NULL));
    FAILS(tn_backward(t));
    FAILS(tn_backward_from(&t, NULL, 1, false));
    FAILS(tn_backward_from(NULL, NULL, 1, false));
    FAILS(tn_backward_from(&loss, &t, -1, false));
    FAILS(tn_grad(&t, NULL, 1, &x, 1, results, o));
    FAILS(tn_grad(&loss, NULL, 1, &t, 1, results, o));
    FAILS(tn_grad(&loss, NULL, 1, NULL, 1, results, o));
    FAILS(tn_grad(&loss, NULL, 1, &x, 1, NULL, o));
    FAILS(tn_grad(NULL, NULL, 1, &x, 1, results, o));
    FAILS(tn_grad(&loss, NULL, -1, &x, -1, results, o));
    QUIET(tn_grad_of(t), NULL);
    TAKES(tn_zero_grad(t));
    FAILS(tn_set_grad_dtype(t, TN_F32));
    FAILS(tn_set_grad_dtype(x, no_dtype));
    FAILS(tn_set_grad_buffer(t, x));
    FAILS(tn_set_grad(t, x));
    TAKES(tn_set_grad_buffer(x, t));
    TAKES(tn_set_grad(x, t));
    NOTHING(tn_on_grad(t, no_grad_hook, NULL));
    NOTHING(tn_on_grad(x, NULL, NULL));
    NOTHING(tn_on_accumulated(t, no_accumulated_hook, NULL));
    NOTHING(tn_on_accumulated(x, NULL, NULL));
    TAKES(tn_remove_hook(t, 3));
    TAKES(tn_remove_hook(x, -1));
    FAILS(tn_after_backward(no_end, NULL));
    FAILS(tn_after_backward(NULL, NULL));
    EMPTY(tn_recompute(NULL, NULL, NULL, (tn_values){1, {t}}, NULL, 0));
    EMPTY(tn_recompute(pass_on, NULL, NULL, (tn_values){-1, {t}}, NULL, 0));
    EMPTY(tn_recompute(pass_on, NULL, NULL, (tn_values){99, {t}}, NULL, 0));
    EMPTY(tn_recompute(pass_on, NULL, no_end, (tn_values){1, {x}}, NULL, 3));
    EMPTY(tn_recompute(pass_on, NULL, no_end, (tn_values){1, {x}}, &x, -3));
    TAKES(tn_recompute(pass_on, NULL, no_end, (tn_values){1, {t}}, &t, 1));
    TAKES(tn_gradcheck_defaults());
    FAILS(tn_gradcheck(NULL, NULL, (tn_values){1, {x}}, tn_gradcheck_defaults()));
    FAILS(tn_gradcheck(pass_on, NULL, (tn_values){1, {t}}, tn_gradcheck_defaults()));
    FAILS(tn_gradcheck(pass_on, NULL, (tn_values){-1, {t}}, tn_gradcheck_defaults()));
    FAILS(tn_gradcheck(pass_on, NULL, (tn_values){99, {x}}, tn_gradcheck_defaults()));
    FAILS(tn_graph_dot(t, "/nowhere/graph.dot", NULL, NULL));
    FAILS(tn_graph_dot(x, NULL, NULL, NULL));
    FAILS(tn_graph_dot(x, "/nowhere/graph.dot", NULL, NULL));
    TAKES(tn_set_anomaly(false));
}

static void profiler_calls(tn_tensor *t) {
    tn_profiler_options options = tn_profiler_defaults();
    options.wait = -1;
    FAILS(tn_profiler_start(options));
    options = tn_profiler_defaults();
    options.events = 0;
    FAILS(tn_profiler_start(options));
    TAKES(tn_profiler_step());
    FAILS(tn_profiler_stop());
    TAKES(tn_profile_region_begin(NULL));
    TAKES(tn_profile_region_end(NULL));
    FAILS(tn_profiler_table(NULL, TN_PROFILER_OPS, 1));
    FAILS(tn_profiler_table(stderr, TN_PROFILER_OPS, 0));
    FAILS(tn_profiler_save(NULL));
    INERT(tn_npy_load(NULL));
    FAILS(tn_npy_save(t, NULL));
    NOTHING(tn_npz_open(NULL));
    TAKES(tn_npz_close(NULL));
    QUIET(tn_npz_count(NULL), 0);
    QUIET(tn_npz_name(NULL, 0), NULL);
    INERT(tn_npz_get(NULL, NULL));
    FAILS(tn_npz_save(NULL, NULL, -1, NULL, false));
    TAKES(tn_onnx_defaults());
    FAILS(tn_onnx_export(NULL, (tn_values){1, {t}}, "/nowhere/a.onnx", tn_onnx_defaults()));
    tn_values none = {1, {t}}, few = {-1, {t}}, many = {99, {t}};
    FAILS(tn_onnx_export_function(NULL, NULL, NULL, none, "/nowhere/a.onnx", tn_onnx_defaults()));
    FAILS(tn_onnx_export_function(pass_on, NULL, NULL, none, NULL, tn_onnx_defaults()));
    FAILS(tn_onnx_export_function(pass_on, NULL, NULL, few, NULL, tn_onnx_defaults()));
    FAILS(tn_onnx_export_function(pass_on, NULL, NULL, many, NULL, tn_onnx_defaults()));
    tn_onnx_options batches = TN_WITH(tn_onnx, .batch_inputs = ~0u);
    FAILS(tn_onnx_export_function(pass_on, NULL, NULL, none, "/nowhere/a.onnx", batches));
    FAILS(tn_onnx_export_function(pass_on, NULL, NULL, many, "/nowhere/a.onnx", batches));
    NOTHING(tn_summary_writer_new(NULL, -1));
    NOTHING(tn_summary_writer_new("", -1));
    TAKES(tn_summary_add_scalar(NULL, NULL, 0, 0));
    TAKES(tn_summary_add_histogram(NULL, NULL, t, 0));
    TAKES(tn_summary_add_text(NULL, NULL, NULL, 0));
    TAKES(tn_summary_add_image(NULL, NULL, NULL, 0));
    TAKES(tn_summary_flush(NULL));
    TAKES(tn_summary_writer_free(NULL));
    TAKES(tn_run_board(NULL));
}

/* ---- sys/ ------------------------------------------------------------------------------------ */

static void system_calls(tn_tensor *t) {
    TAKES(tn_inert());
    INERT(tn__new(TN_DIMS(2), no_dtype, (tn_device){TN_CPU, 0}));
    INERT(tn__new(TN_DIMS(2), TN_F32, (tn_device){(tn_device_kind)5, -3}));
    INERT(tn__view(t, TN_DIMS(2), (int64_t[]){1}, 0));
    int64_t stride[TN_MAX_DIMS];
    for (int i = 0; i < STRANGE; i++) {
        TAKES(tn__contiguous_strides(strange[i], stride));
    }
    NOTHING(tn__usable(t, "op"));
    QUIET(tn__dim(t, 0, "op"), -1);
    QUIET(tn_backend_named(NULL), NULL);
    QUIET(tn_backend_named("none"), NULL);
    TAKES(tn_backend_use(NULL));
    QUIET(tn_backend_of((tn_device){(tn_device_kind)5, 0}), NULL);
    TAKES(tn_context_of((tn_device){(tn_device_kind)5, 0}));
    QUIET(tn_op_named(NULL), NULL);
    QUIET(tn_op_named(""), NULL);
    FAILS(tn_op_check(NULL));
    TAKES(tn_desc_of(t));
    TAKES(tn_desc_expand(NULL, NULL));
    TAKES(tn_desc_swap(NULL, 0, 1));
    FAILS(tn_op_run(NULL, NULL));
    FAILS(tn_op_run_back(NULL, NULL));
    tn_desc d = {.ndim = 1, .size = {2}, .stride = {1}}, wide = {.ndim = 99};
    TAKES(tn_desc_expand(&d, &wide));
    TAKES(tn_desc_expand(&wide, &d));
    TAKES(tn_desc_swap(&d, -1, 99));
    tn_op_samples s = {0};
    TAKES(tn_sample_add(NULL, NULL));
    TAKES(tn_sample_add(&s, NULL));
    TAKES(tn_sample_unary(NULL, 0.0, 1.0));
    TAKES(tn_sample_binary(NULL, 0.0, 1.0, NAN, NAN));
}

/* Devices that do not exist. */
static void missing_devices(tn_tensor *t) {
    const tn_device none[] = {
        {(tn_device_kind)5, 0}, {TN_CPU, 1}, {TN_CUDA, -1}, {TN_CUDA, 1 << 20}};
    char why[TN_DEVICE_WHY] = "", x[4] = "";
    tn_device_info info;
    TAKES(tn_default_device());
    TAKES(tn_set_deterministic(tn_deterministic()));
    TAKES(tn_set_matmul_tf32(tn_matmul_tf32()));
    TAKES(tn_set_conv_tf32(tn_conv_tf32()));
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        TAKES(tn_device_text(none[i]));
        QUIET(tn__device_table(none[i]), NULL);
        FAILS(tn_device_describe(none[i], &info));
        FAILS(tn_set_default_device(none[i]));
        FAILS(tn_device_synchronize(none[i]));
        FAILS(tn__device_failed(none[i], TN_EDEVICE, "op"));
        DOES(tn_device_memory(none[i]));
        DOES(tn_device_memory_reset_peak(none[i]));
        DOES(tn_device_memory_trim(none[i]));
        INERT(tn_empty_on(none[i], TN_DIMS(2), TN_F32));
    }
    FAILS(tn_device_describe(tn_cpu(), NULL));
    QUIET(tn_device_count((tn_device_kind)5), 0);
    QUIET(*tn_device_why((tn_device_kind)5) != 0, true);
    QUIET(tn__device_plugin((tn_device_kind)5), NULL);
    QUIET(tn__copy_bytes(tn_cpu(), x, tn_cpu(), NULL, 0, "op"), TN_OK);
    const char *const names[] = {
        NULL, "", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999999999999", "CPU"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        DOES(tn_device_named(names[i]));
    }
    QUIET(tn__nccl_is_there(why) || why[0], true);
    for (int i = 0; i < STRANGE; i++) {
        TAKES(tn_empty_on(tn_cpu(), strange[i], no_dtype));
    }
}

/* An operation whose rules ask for inputs that it does not have. */
static bool careless_shape(tn_op_call *c) {
    static const int nowhere[] = {-1, 1, 7, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int n = nowhere[i];
        if (tn_op_out_like(c, n) || tn_op_out_broadcast(c, 0, n, TN_F32) || tn_op_float(c, n) ||
            tn_op_index(c, n)) {
            add_complaint(__LINE__, "shape", "an input that does not exist");
        }
    }
    for (int i = 0; i < STRANGE; i++) {
        if (tn_op_view(c, strange[i], NULL, -1) || tn_op_out(c, strange[i], no_dtype) ||
            tn_op_out_on(c, tn_cuda(-1), strange[i], TN_F32)) {
            add_complaint(__LINE__, "shape", "an impossible output");
        }
    }
    tn_error_clear();
    while (tn_op_out(c, TN_DIMS(2), TN_F32)) {
        if (c->outputs > TN_OP_OUTPUTS) {
            add_complaint(__LINE__, "tn_op_out", "more outputs than an operation can have");
            break;
        }
    }
    tn_error_clear();
    return tn_op_same_dtype(c) && (c->outputs = 1);
}

static tn_status careless_forward(const tn_op_call *c) {
    memset(c->y[0]->data, 0, 8);
    return TN_OK;
}

static void careless_backward(tn_op_grad *g) {
    TAKES(tn_op_gradient_dtype(g, -1));
    TAKES(tn_op_gradient_dtype(g, 99));
    static const int nowhere[] = {-1, 1, 7, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int n = nowhere[i];
        if (!tn_is_inert(tn_op_saved_input(g, n)) || !tn_is_inert(tn_op_saved_output(g, n))) {
            add_complaint(__LINE__, "backward", "a saved tensor that does not exist");
        }
        (void)tn_op_input_dims(g, n);
        (void)tn_op_input_dtype(g, n);
        (void)tn_op_input_device(g, n);
        tn_op_give(g, n, tn_ones(TN_DIMS(2), TN_F32));
        if (tn_op_pending(g, n)) {
            add_complaint(__LINE__, "backward", "a gradient that does not exist");
        }
    }
    tn_op_give(g, 0, NULL);
    tn_op_give(g, 0, tn_inert());
}

static bool failing_shape(tn_op_call *c) {
    return tn_op_fail(c, TN_EVALUE, "%s", "a reason that is long enough");
}

static void careless_operations(tn_tensor *t) {
    static const tn_op careless = {.name = "careless",
                                   .saves = TN_SAVES_INPUTS,
                                   .shape = careless_shape,
                                   .forward = careless_forward,
                                   .backward = careless_backward};
    static const tn_op empty = {.name = "empty"}, nameless = {0},
                       failing = {.name = "failing", .shape = failing_shape};
    tn_tensor *results[TN_OP_OUTPUTS];
    INERT(tn_apply(NULL, NULL, &t, 1));
    INERT(tn_apply(&empty, NULL, &t, 1));
    INERT(tn_apply(&nameless, NULL, &t, 1));
    INERT(tn_apply(&failing, NULL, &t, 1));
    INERT(tn_apply(&careless, NULL, NULL, 1));
    INERT(tn_apply(&careless, NULL, &t, -1));
    INERT(tn_apply(&careless, NULL, &t, 1));
    TAKES(tn_apply_many(NULL, NULL, &t, 1, results));
    TAKES(tn_apply_many(&careless, NULL, &t, 1, NULL));
    FAILS(tn_op_check(&empty));
    FAILS(tn_op_check(&nameless));
    for (int i = 0; i < tn_op_count();
         i++) { /* NULL arguments are allowed only if there are none; inputs are checked first */
        tn_tensor *inputs[3] = {t, t, t};
        INERT(tn_apply(tn_op_at(i), NULL, inputs, 3));
        INERT(tn_apply(tn_op_at(i), NULL, NULL, 2));
    }
    if (!pending) {
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
        x = tn_apply(&careless, NULL, &x, 1);
        check_call(__LINE__, "careless", !tn_is_inert(x), false);
        QUIET(tn_backward(tn_sum_all(x)) >= TN_OK, true);
    }
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(core_calls)
PART(making_tensors)
PART(looking_at_tensors)
PART(odd_numbers)
PART(derived_operations)
PART(special_operations)
PART(gradient_calls)
PART(profiler_calls)
PART(system_calls)
PART(missing_devices)
PART(careless_operations)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
