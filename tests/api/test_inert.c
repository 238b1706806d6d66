/* Every public function, called as nobody should: with NULL and inert tensors, with structs of zeros, with numbers outside any range.
 * Nothing may crash, print, hang or leak, and the error that was first stays.
 *
 * Each part runs four times: with NULL and with the inert tensor, and each of them with an error pending or not. The macros say what
 * a call must give; what goes wrong is collected and shown at the end of the part, since meanwhile nothing may be printed.
 * check_complete.py compares this file with the headers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tern/sys/op.h>
#include <tern/tern.h>

#include "core/sanitize.h"
#include "tests/support/temp.h"

/* ---- Around each call ---------------------------------------------------------------------------------------------------------- */

static char complaints[4096];
static bool pending; /* an error was raised before the part */
static bool null; /* the part runs with NULL: each call must raise; with inert tensors it may stay silent */

static void complain(int line, const char *call, const char *what) {
    size_t used = strlen(complaints);
    snprintf(complaints + used, sizeof complaints - used, "\n  line %d: %s: %s", line, call, what);
}

static void after(int line, const char *call, bool as_expected, bool raises) {
    if (!as_expected) {
        complain(line, call, "an unexpected result");
    }
    if (pending) {
        if (tn_error() != TN_EPEER || !strstr(tn_error_message(), "the first")) {
            complain(line, call, "the first error is lost");
            tn_error_clear();
            tn_raise(TN_EPEER, "the first");
        }
        return;
    }
    if (raises && tn_error() == TN_OK) {
        complain(line, call, "no error");
    } else if (tn_error() != TN_OK && strlen(tn_error_message()) < 12) {
        complain(line, call, "an error without a text");
    }
    tn_error_clear();
}

#define INERT(call) after(__LINE__, #call, tn_is_inert(call), null) /* gives an inert tensor */
#define GIVES(call, expected) after(__LINE__, #call, (call) == (expected), null)
#define QUIET(call, expected) \
    after(__LINE__, #call, (call) == (expected), false)     /* bad arguments are no error here */
#define NOTHING(call) after(__LINE__, #call, !(call), null) /* NULL, false, 0 */
#define IS_NAN(call) after(__LINE__, #call, isnan(call), null)
#define FAILS(call)                                                           \
    do {                                                                      \
        tn_status status_ = (call);                                           \
        after(__LINE__, #call, status_ != TN_OK || !(null || pending), null); \
    } while (0)
#define DOES(call)                          \
    do {                                    \
        call;                               \
        after(__LINE__, #call, true, null); \
    } while (0)
#define TAKES(call) /* does nothing, or something harmless */ \
    do {                                                      \
        call;                                                 \
        after(__LINE__, #call, true, false);                  \
    } while (0)
#define EMPTY(call) /* tn_values after an error */                                 \
    do {                                                                           \
        tn_values values_ = (call);                                                \
        after(__LINE__, #call, values_.n == 0 || tn_is_inert(values_.v[0]), null); \
    } while (0)

/* Runs a part with what it must not print to caught in a file. */
static void run_part(void (*part)(tn_tensor *t), tn_tensor *t, bool with_pending) {
    complaints[0] = 0;
    null = !t;
    pending = with_pending;
    fflush(NULL);
    FILE *caught = tmpfile();
    int out = dup(1), err = dup(2);
    assert_non_null(caught);
    assert_true(out >= 0 && err >= 0);
    dup2(fileno(caught), 1);
    dup2(fileno(caught), 2);
    int64_t alive = tn_live_tensors();
    if (pending) {
        tn_raise(TN_EPEER, "the first");
    }
    {
        TN_SCOPE;
        part(t);
    }
    tn_error_clear();
    fflush(NULL);
    int64_t printed = lseek(fileno(caught), 0, SEEK_END);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    if (complaints[0] || printed > 0) {
        char text[600] = "";
        rewind(caught);
        text[fread(text, 1, sizeof text - 1, caught)] = 0;
        snprintf(complaints + strlen(complaints), sizeof complaints - strlen(complaints), "%s%s",
                 text[0] ? "\n  printed: " : "", text);
        fclose(caught);
        fail_msg("with %s, %s:%s", t ? "inert" : "NULL",
                 with_pending ? "an error pending" : "no error pending", complaints);
    }
    fclose(caught);
    assert_int_equal(tn_live_tensors(), alive);
}

static void run_all(void (*part)(tn_tensor *t)) {
    run_part(part, NULL, false);
    run_part(part, NULL, true);
    run_part(part, tn_inert(), false);
    run_part(part, tn_inert(), true);
}

static const tn_dims strange[] = {{-1, {0}},
                                  {99, {0}},
                                  {1, {-1}},
                                  {1, {INT64_MAX}},
                                  {2, {INT64_MAX, INT64_MAX}},
                                  {2, {INT64_MIN, 0}},
                                  {3, {0, INT64_MAX, 2}},
                                  {8, {1, 1, 1, 1, 1, 1, 1, 1 << 30}}};
enum { STRANGE = sizeof strange / sizeof *strange };
static const int ints[] = {INT32_MIN, -9, -1, 0, 2, 9, INT32_MAX};
static const int64_t longs[] = {INT64_MIN, -7, -1, 0, 3, 4096, INT64_MAX};
static const double reals[] = {-INFINITY, -1.0, 0.0, 1e300, INFINITY, NAN};
enum {
    INTS = sizeof ints / sizeof *ints,
    LONGS = sizeof longs / sizeof *longs,
    REALS = sizeof reals / sizeof *reals
};
static const tn_dtype no_dtype = (tn_dtype)77;

/* ---- core.h -------------------------------------------------------------------------------------------------------------------- */

static void core(tn_tensor *t) {
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
    TAKES(tn_random_below(NULL, 5));
    tn_generator g = {0};
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_random_below(&g, longs[i]));
    }
    int threads = tn_threads();
    TAKES(tn_set_threads(-5));
    TAKES(tn_set_threads(0));
    TAKES(tn_set_threads(threads));
    TAKES(tn_log_write((tn_log_level)99, "%s", ""));
    TAKES(tn_log_to(NULL, (tn_log_level)-9, NULL));
}

/* ---- tensor.h ------------------------------------------------------------------------------------------------------------------ */

static void making(tn_tensor *t) {
    for (int i = 0; i < STRANGE; i++) {
        tn_dims d = strange[i];
        TAKES(tn_dims_from(d.ndim, null ? NULL : d.size));
        TAKES(tn_dims_count(d));
        for (int j = 0; j < STRANGE; j++) {
            TAKES(tn_dims_equal(d, strange[j]));
            TAKES(tn_dims_broadcast(d, strange[j], NULL));
        }
        if (d.size[0] != 0) { /* beside a 0 any size is allowed */
            after(__LINE__, "tn_empty", tn_is_inert(tn_empty(d, TN_F32)), true);
            after(__LINE__, "tn_zeros", tn_is_inert(tn_zeros(d, TN_F64)), true);
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
    for (int i = 0; i < REALS; i++) {
        for (int j = 0; j < REALS; j++) {
            if (!isfinite(reals[i]) || !isfinite(reals[j])) {
                INERT(tn_arange(reals[i], reals[j], 1.0, TN_F32));
                INERT(tn_arange(0.0, reals[i], reals[j], TN_F32));
            }
        }
    }
    INERT(tn_arange(0.0, 1.0, 0.0, TN_F32));
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

static void looking(tn_tensor *t) {
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
    after(__LINE__, "tn_data", tn_data(t) != NULL, null);
    after(__LINE__, "tn_data_mut", tn_data_mut(t) != NULL, null);
    IS_NAN(tn_item(t));
    IS_NAN(tn_at(t, (int64_t[]){0}));
    IS_NAN(tn_at(t, NULL));
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
}

static void views(tn_tensor *t) {
    tn_tensor *out[2];
    INERT(tn_reshape(t, TN_DIMS(-1)));
    INERT(tn_flatten(t, 0, -1));
    INERT(tn_permute(t, TN_DIMS(1, 0)));
    INERT(tn_transpose(t, 0, 1));
    INERT(tn_t(t));
    INERT(tn_narrow(t, 0, 0, 1));
    INERT(tn_select(t, 0, 0));
    INERT(tn_slice(t, 0, 0, 1, 1));
    INERT(tn_expand(t, TN_DIMS(2, 2)));
    INERT(tn_squeeze(t, 0));
    INERT(tn_unsqueeze(t, 0));
    INERT(tn_alias(t, 0, TN_DIMS(1)));
    QUIET(tn_split(t, 1, 0, out, 2) > 0, false);
    QUIET(tn_split(t, 1, 0, NULL, 2) > 0, false);
}

/* A good tensor and numbers that are not. */
static void numbers(tn_tensor *t) {
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
            TAKES(tn_at(x, (int64_t[]){longs[j], ints[i]}));
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
        TAKES(tn_attention_qkv_op(tn_zeros(TN_DIMS(1, 2, 6), TN_F32), ints[i], NULL,
                                  tn_attention_defaults()));
        TAKES(tn_sum(x, TN_DIMS(ints[i]), true));
        TAKES(tn_backend_of((tn_device){(tn_device_kind)ints[i], ints[i]}));
        TAKES(tn_context_of((tn_device){(tn_device_kind)ints[i], ints[i]}));
        TAKES(tn_op_at(ints[i]));
        TAKES(tn_empty((tn_dims){ints[i], {1}}, TN_F32));
    }
    for (int i = 0; i < REALS; i++) {
        TAKES(tn_dropout_op(x, reals[i]));
        TAKES(tn_layer_norm_op(x, NULL, NULL, reals[i]));
        TAKES(tn_rms_norm_op(x, NULL, reals[i]));
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
    TAKES(tn_mse(x, x, (tn_loss_reduction)99));
    TAKES(tn_at(x, NULL));
    FAILS(tn_copy_out(x, NULL));
    (void)t;
}

/* ---- ops.h --------------------------------------------------------------------------------------------------------------------- */

typedef tn_tensor *(*one_f)(tn_tensor *);
typedef tn_tensor *(*two_f)(tn_tensor *, tn_tensor *);
typedef tn_tensor *(*scalar_f)(tn_tensor *, double);
typedef tn_tensor *(*reduce_f)(tn_tensor *, tn_dims, bool);

static const one_f ones[] = {
    tn_neg,    tn_abs,        tn_sign,     tn_exp,       tn_log,  tn_sqrt, tn_rsqrt,
    tn_square, tn_sin,        tn_cos,      tn_erf,       tn_tanh, tn_relu, tn_silu,
    tn_gelu,   tn_sigmoid,    tn_sum_all,  tn_mean_all,  tn_copy, tn_any,  tn_all,
    tn_zero_,  tn_contiguous, tn_identity, tn_gelu_tanh,
};
static const two_f twos[] = {
    tn_add,    tn_sub,  tn_mul,  tn_div,  tn_pow,   tn_maximum,      tn_minimum,
    tn_matmul, tn_eq,   tn_ne,   tn_lt,   tn_le,    tn_gt,           tn_ge,
    tn_add_,   tn_sub_, tn_mul_, tn_div_, tn_copy_, tn_embedding_op,
};
static const scalar_f scalars[] = {tn_add_scalar,  tn_mul_scalar,  tn_rsub_scalar,
                                   tn_rdiv_scalar, tn_pow_scalar,  tn_fill_,
                                   tn_add_scalar_, tn_mul_scalar_, tn_dropout_op};
static const reduce_f reductions[] = {tn_sum, tn_mean, tn_max, tn_min, tn_logsumexp};

static void tables(tn_tensor *t) {
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) {
        INERT(ones[i](t));
    }
    for (size_t i = 0; i < sizeof twos / sizeof *twos; i++) {
        INERT(twos[i](t, t));
        INERT(twos[i](t, tn_ones(TN_DIMS(2), TN_F32)));
        INERT(twos[i](tn_ones(TN_DIMS(2), TN_F32), t));
    }
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        INERT(scalars[i](t, 0.5));
        INERT(scalars[i](t, NAN));
    }
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
        INERT(reductions[i](t, TN_DIMS(), false));
        INERT(reductions[i](t, strange[1], false));
    }
}

static void operations(tn_tensor *t) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *index = tn_zeros(TN_DIMS(2), TN_I64);
    tn_tensor *q = tn_ones(TN_DIMS(1, 1, 2, 2), TN_F32), *mask = tn_ones(TN_DIMS(2, 3), TN_BOOL);
    tn_attention_options o = tn_attention_defaults();
    tn_cross_entropy_options c = tn_cross_entropy_defaults();
    tn_tensor *list[2] = {x, t};
    INERT(tn_clamp(t, 1.0, 0.0));
    INERT(tn_clamp_(t, 0.0, NAN));
    INERT(tn_uniform_(t, 0.0, 1.0, NULL));
    INERT(tn_normal_(t, 0.0, 1.0, NULL));
    INERT(tn_add_scaled_(t, x, 1.0));
    INERT(tn_add_scaled_(tn_ones(TN_DIMS(2, 3), TN_F32), t, 1.0));
    NOTHING(tn_equal(t, x));
    NOTHING(tn_equal(x, t));
    NOTHING(tn_all_close(t, x, NAN, NAN));
    NOTHING(tn_all_close(x, t, 0.0, 0.0));
    INERT(tn_where(t, x, x));
    INERT(tn_where(mask, t, x));
    INERT(tn_where(mask, x, t));
    INERT(tn_masked_fill(t, mask, 0.0));
    INERT(tn_masked_fill(x, t, 0.0));
    INERT(tn_cast(t, TN_F64));
    INERT(tn_cast(t, no_dtype));
    INERT(tn_cat(list, 2, 0));
    INERT(tn_cat(list + 1, 1, 0));
    INERT(tn_cat(NULL, 2, 0));
    INERT(tn_stack(list, 2, 0));
    INERT(tn_stack(NULL, 1, 0));
    INERT(tn_var(t, TN_DIMS(), 1, false));
    INERT(tn_argmax(t, 0, false));
    INERT(tn_sum_to(t, TN_DIMS()));
    INERT(tn_linear_op(t, x, NULL));
    INERT(tn_linear_op(x, t, NULL));
    TAKES(tn_linear_op(x, x, t)); /* no bias */
    INERT(tn_index_select(t, 0, index));
    INERT(tn_index_select(x, 0, t));
    INERT(tn_gather(t, 0, index));
    INERT(tn_gather(x, 0, t));
    INERT(tn_softmax(t, 0));
    INERT(tn_log_softmax(t, 0));
    INERT(tn_layer_norm_op(t, NULL, NULL, 1e-5));
    TAKES(tn_layer_norm_op(x, t, t, 1e-5));
    INERT(tn_rms_norm_op(t, NULL, 1e-5));
    TAKES(tn_rms_norm_op(x, t, 1e-5));
    INERT(tn_attention_op(t, q, q, NULL, o));
    INERT(tn_attention_op(q, t, q, NULL, o));
    INERT(tn_attention_op(q, q, t, NULL, o));
    TAKES(tn_attention_op(q, q, q, t, o));
    TAKES(tn_attention_op(q, q, q, NULL, (tn_attention_options){true, NAN}));
    INERT(tn_attention_qkv_op(t, 1, NULL, o));
    INERT(tn_mse(t, x, TN_MEAN));
    INERT(tn_mse(x, t, TN_NONE));
    INERT(tn_cross_entropy(t, index, TN_MEAN));
    INERT(tn_cross_entropy(x, t, TN_MEAN));
    INERT(tn_cross_entropy_with(t, t, c));
    INERT(tn_cross_entropy_with(x, t, (tn_cross_entropy_options){.reduction = (tn_loss_reduction)-1}));
}

/* ---- autograd.h ---------------------------------------------------------------------------------------------------------------- */

static tn_tensor *no_grad_hook(tn_tensor *grad, void *user) {
    (void)grad;
    return user;
}

static void no_accumulated_hook(tn_tensor *leaf, void *user) {
    (void)leaf;
    (void)user;
}

static void no_end(void *user) {
    (void)user;
}

static tn_values pass_on(void *user, tn_values in) {
    (void)user;
    return in;
}

static void gradients(tn_tensor *t) {
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
    FAILS(tn_graph_dot(t, "/nowhere/graph.dot"));
    FAILS(tn_graph_dot(x, NULL));
    FAILS(tn_graph_dot(x, "/nowhere/graph.dot"));
    TAKES(tn_set_anomaly(false));
}

/* ---- nn.h ---------------------------------------------------------------------------------------------------------------------- */

static tn_tensor *same(tn_tensor *x) {
    return x;
}

static tn_tensor *module_forward(tn_module *self, tn_tensor *x) {
    (void)self;
    return x;
}

static tn_values module_forward_values(tn_module *self, tn_values in, void *context) {
    (void)self;
    (void)context;
    return in;
}

static bool see_entry(const tn_entry *entry, void *user) {
    (void)user;
    return entry != NULL;
}

static bool see_module(tn_module *m, const char *path, void *user) {
    (void)user;
    return m && path;
}

/* m: NULL, a struct of zeros, or a module that is finished. */
static void bad_module(void *m, tn_tensor *t) {
    bool was = null;
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    null = true; /* a bad module is always an error */
    FAILS(tn_module_add(m, "child", m));
    FAILS(tn_module_param(m, "weight", &field, x));
    FAILS(tn_module_buffer(m, "state", &field, x));
    FAILS(tn_module_scratch(m, "state", &field, x));
    FAILS(tn_module_tie(m, "a", "b"));
    FAILS(tn_module_set_buffer(m, "state", x));
    FAILS(tn_module_set_slice(m, "weight", TN_DIMS(2), 0, 1));
    INERT(tn_call(m, x));
    INERT(tn_call(m, t));
    EMPTY(tn_call_values(m, (tn_values){1, {x}}, NULL));
    NOTHING(tn_module_hook(m, (tn_module_hooks){0}));
    TAKES(tn_module_unhook(m, 5));
    DOES(tn_module_each(m, (tn_walk){0}, see_entry, NULL));
    DOES(tn_module_each_module(m, see_module, NULL));
    TAKES(tn_module_count(m));
    INERT(tn_module_get(m, "weight"));
    NOTHING(tn_module_child(m, "fc"));
    TAKES(tn_module_print(m, stdout));
    DOES(tn_module_train(m, true));
    DOES(tn_module_requires_grad(m, true));
    DOES(tn_module_zero_grad(m));
    DOES(tn_module_set_recompute(m, true));
    FAILS(tn_sequential_add(m, m));
    FAILS(tn_self_attention_cache(m, (tn_attention_cache_options){1, 4}));
    INERT(tn_gpt_loss(m, x, x));
    int64_t tokens[2] = {0};
    FAILS(tn_gpt_generate(m, tokens, 1, 1, 1.0, 0, NULL, tokens));
    NOTHING(tn_sgd(m, tn_sgd_defaults()));
    NOTHING(tn_adam(m, tn_adam_defaults()));
    NOTHING(tn_adamw(m, tn_adamw_defaults()));
    TAKES(tn_clip_grad_norm(m, 1.0));
    FAILS(tn_save(m, temp_path("module")));
    FAILS(tn_load(m, temp_path("module")));
    tn_checkpoint c = {.model = m, .step = 1};
    if (m) {
        FAILS(tn_checkpoint_save(&c, temp_path("checkpoint")));
        FAILS(tn_checkpoint_load(&c, temp_path("checkpoint")));
    }
    tn_module_finish(m);
    null = was;
}

static void zeroed(tn_tensor *t) {
    static const tn_gpt zero; /* the largest: zeros for every kind */
    tn_gpt m = zero;
    bad_module(NULL, t);
    bad_module(&m, t);
    tn_linear gone;
    tn_linear_init(&gone, 2, 2, tn_linear_defaults());
    tn_module_finish(&gone);
    after(__LINE__, "tn_linear_init", true, false);
    bad_module(&gone, t);
}

/* A good module and arguments that are not. */
static void module_arguments(tn_tensor *t) {
    tn_linear m = {0}, child = {0};
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    TAKES(tn_linear_init(&m, 3, 2, tn_linear_defaults()));
    TAKES(tn_linear_init(&child, 3, 2, tn_linear_defaults()));
    char endless[300];
    memset(endless, 'n', sizeof endless);
    endless[sizeof endless - 1] = 0;
    const char *const names[] = {NULL, "", ".", "a.", "weight", endless};
    FAILS(tn_module_add(&m.base, "child", NULL));
    FAILS(tn_module_add(&m.base, "child", &m));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tn_linear c = {0};
        FAILS(tn_module_param(&m.base, names[i], &field, x));
        FAILS(tn_module_buffer(&m.base, names[i], &field, x));
        FAILS(tn_module_scratch(&m.base, names[i], &field, x));
        FAILS(tn_module_tie(&m.base, names[i], "nothing"));
        FAILS(tn_module_tie(&m.base, "weight", names[i]));
        FAILS(tn_module_set_buffer(&m.base, names[i], x));
        TAKES(tn_module_get(&m, names[i]));
        TAKES(tn_module_child(&m, names[i])); /* "" is m itself */
        TAKES(tn_module_init(&c.base, names[i], module_forward));
        FAILS(tn_module_add(&m.base, names[i], &c));
        tn_module_finish(&c);
        for (int j = 0; j < STRANGE; j++) {
            TAKES(tn_module_set_slice(&m.base, names[i], strange[j], INT64_MAX, INT64_MAX));
        }
    }
    FAILS(tn_module_param(&m.base, "p", NULL, x));
    FAILS(tn_module_buffer(&m.base, "p", NULL, x));
    FAILS(tn_module_scratch(&m.base, "p", NULL, x));
    if (t) {
        FAILS(tn_module_param(&m.base, "p", &field, t));
        FAILS(tn_module_buffer(&m.base, "p", &field, t));
        FAILS(tn_module_set_buffer(&m.base, "p", t));
    }
    TAKES(tn_call(&child, t));
    EMPTY(tn_call_values(&child, (tn_values){-1, {t}}, NULL));
    EMPTY(tn_call_values(&child, (tn_values){99, {t}}, NULL));
    EMPTY(tn_call_values(&child, (tn_values){2, {t, t}}, NULL));
    TAKES(tn_values_of(t, t));
    TAKES(tn_values_of(NULL, t));
    TAKES(tn_module_unhook(&m, -1));
    TAKES(tn_module_unhook(&m, tn_module_hook(&m, (tn_module_hooks){0})));
    TAKES(tn_module_each(&m, (tn_walk){0}, NULL, NULL));
    TAKES(tn_module_each_module(&m, NULL, NULL));
    TAKES(tn_module_print(&m, NULL));
    tn_module_finish(&m);
    tn_module_finish(&child);
    tn_module_finish(NULL);
}

static void layers(tn_tensor *t) {
    (void)t;
    DOES(tn_module_init(NULL, "m", module_forward));
    DOES(tn_module_init_values(NULL, "m", module_forward_values));
    DOES(tn_linear_init(NULL, 2, 2, tn_linear_defaults()));
    DOES(tn_embedding_init(NULL, 2, 2, TN_F32));
    DOES(tn_layer_norm_init(NULL, 2, tn_norm_defaults()));
    DOES(tn_rms_norm_init(NULL, 2, tn_norm_defaults()));
    DOES(tn_dropout_init(NULL, 0.5));
    DOES(tn_self_attention_init(NULL, 2, tn_self_attention_defaults()));
    DOES(tn_mlp_init(NULL, 2, tn_mlp_defaults()));
    DOES(tn_block_init(NULL, 2, tn_block_defaults()));
    DOES(tn_sequential_init(NULL));
    DOES(tn_function_init(NULL, "f", same));
    DOES(tn_gpt_init(NULL, tn_gpt_defaults()));
    union {
        tn_module m;
        tn_linear linear;
        tn_embedding embedding;
        tn_layer_norm norm;
        tn_rms_norm rms;
        tn_dropout dropout;
        tn_self_attention attention;
        tn_mlp mlp;
        tn_block block;
        tn_function function;
        tn_gpt gpt;
    } u;
#define MADE(init) /* and finished: what failed must be finished too */                         \
    do {                                                                                        \
        memset(&u, 0, sizeof u);                                                                \
        init;                                                                                   \
        after(__LINE__, #init, true, true);                                                     \
        after(__LINE__, #init, tn_is_inert(tn_call(&u, tn_ones(TN_DIMS(1, 2), TN_F32))), true); \
        tn_module_finish(&u);                                                                   \
    } while (0)
    MADE(tn_module_init(&u.m, NULL, NULL));
    MADE(tn_module_init_values(&u.m, NULL, NULL));
    MADE(tn_function_init(&u.function, NULL, NULL));
    for (int i = 0; i < LONGS; i++) {
        if (longs[i] > 0 && longs[i] < INT64_MAX) {
            continue;
        }
        int64_t n = longs[i] ? longs[i] : -1;
        MADE(tn_linear_init(&u.linear, n, 2, tn_linear_defaults()));
        MADE(tn_linear_init(&u.linear, n, n, (tn_linear_options){0}));
        MADE(tn_embedding_init(&u.embedding, n, n, TN_F32));
        MADE(tn_layer_norm_init(&u.norm, n, tn_norm_defaults()));
        MADE(tn_rms_norm_init(&u.rms, n, tn_norm_defaults()));
        MADE(tn_self_attention_init(&u.attention, n, tn_self_attention_defaults()));
        MADE(tn_mlp_init(&u.mlp, n, tn_mlp_defaults()));
        MADE(tn_block_init(&u.block, n, tn_block_defaults()));
        tn_gpt_options o = tn_gpt_defaults();
        o.vocab = o.width = n;
        o.layers = 1;
        MADE(tn_gpt_init(&u.gpt, o));
    }
    MADE(tn_dropout_init(&u.dropout, NAN));
    MADE(tn_self_attention_init(&u.attention, 4, (tn_self_attention_options){0}));
    MADE(tn_self_attention_init(&u.attention, 4, (tn_self_attention_options){.heads = -1}));
    MADE(tn_block_init(&u.block, 4, (tn_block_options){.heads = 3}));
    MADE(tn_gpt_init(&u.gpt, (tn_gpt_options){0}));
#if !TN__ASAN /* which says so when there is no memory */
    MADE(tn_gpt_init(&u.gpt, (tn_gpt_options){8, 8, INT32_MAX, 2, 4, true, 0.0, TN_ACT_RELU, TN_F32}));
#endif
    MADE(tn_gpt_init(&u.gpt, (tn_gpt_options){8, 8, -1, -1, 4, true, 0.0, TN_ACT_RELU, TN_F32}));
    MADE(tn_linear_init(&u.linear, 2, 2, (tn_linear_options){true, no_dtype}));
}

static void initialising(tn_tensor *t) {
    DOES(tn_init_uniform(t, 0.0, 1.0));
    DOES(tn_init_normal(t, 0.0, 1.0));
    DOES(tn_init_constant(t, 0.0));
    DOES(tn_init_xavier_uniform(t, 1.0));
    DOES(tn_init_xavier_normal(t, 1.0));
    DOES(tn_init_kaiming_uniform(t, 0.0));
    DOES(tn_init_kaiming_normal(t, 0.0));
}

static void generating(tn_tensor *t) {
    if (pending) {
        return; /* the model could not be made */
    }
    tn_gpt m;
    tn_gpt_init(&m, (tn_gpt_options){8, 8, 1, 2, 4, true, 0.0, TN_ACT_RELU, TN_F32});
    int64_t tokens[1] = {0}, out[4];
    INERT(tn_gpt_loss(&m, t, t));
    INERT(tn_call(&m, t));
    FAILS(tn_gpt_generate(&m, NULL, 1, 1, 1.0, 0, NULL, out));
    FAILS(tn_gpt_generate(&m, tokens, 1, 1, 1.0, 0, NULL, NULL));
    FAILS(tn_gpt_generate(&m, tokens, -1, 1, 1.0, 0, NULL, out));
    FAILS(tn_gpt_generate(&m, tokens, 0, 1, 1.0, 0, NULL, out));
    FAILS(tn_gpt_generate(&m, tokens, 1, -1, 1.0, 0, NULL, out));
    FAILS(tn_gpt_generate(&m, tokens, 1, 1, NAN, 0, NULL, out));
    FAILS(tn_gpt_generate(&m, tokens, 1, 1, -1.0, 0, NULL, out));
    FAILS(tn_gpt_generate(&m, tokens, 1, 1, 1.0, -1, NULL, out));
    FAILS(tn_gpt_generate(&m, (int64_t[]){8}, 1, 1, 1.0, 0, NULL, out));
    TAKES(tn_gpt_generate(&m, tokens, 1, 2, 1e-300, INT32_MAX, NULL, out));
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_self_attention_cache(&m.h[0].attn,
                                          (tn_attention_cache_options){longs[i], longs[j]}));
        }
    }
    tn_module_finish(&m);
}

/* ---- optim.h ------------------------------------------------------------------------------------------------------------------- */

static bool match_all(const tn_entry *entry, void *user) {
    (void)user;
    return entry != NULL;
}

static bool see_state(const char *name, tn_tensor *state, void *user) {
    (void)user;
    return name && state;
}

static void optimisers(tn_tensor *t) {
    (void)t;
    QUIET(tn_optim_split(NULL, match_all, NULL), -1);
    QUIET(tn_match_vectors(NULL, NULL), false);
    QUIET(tn_optim_group(NULL, 0), NULL);
    QUIET(tn_optim_groups(NULL), 0);
    TAKES(tn_optim_set_lr(NULL, 1.0));
    TAKES(tn_optim_lr(NULL));
    TAKES(tn_optim_step(NULL));
    TAKES(tn_optim_zero_grad(NULL));
    TAKES(tn_optim_clip(NULL, 1.0));
    QUIET(tn_optim_steps(NULL), 0);
    TAKES(tn_optim_each(NULL, see_state, NULL));
    TAKES(tn_optim_set_steps(NULL, 1));
    TAKES(tn_optim_kind(NULL));
    TAKES(tn_optim_free(NULL));
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            tn_schedule all[] = {tn_constant(1.0, longs[i]),
                                 tn_linear_decay(1.0, 0.0, longs[i], longs[j]),
                                 tn_cosine_decay(1.0, NAN, longs[i], longs[j]),
                                 {.kind = (tn_schedule_kind)9}};
            for (size_t k = 0; k < 4 * LONGS; k++) {
                TAKES(tn_schedule_at(all[k % 4], longs[k / 4]));
            }
        }
    }
    tn_linear m = {0};
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    if (opt) {
        QUIET(tn_optim_split(opt, NULL, NULL), -1);
        QUIET(tn_optim_group(opt, -1), NULL);
        QUIET(tn_optim_group(opt, 1), NULL);
        TAKES(tn_optim_each(opt, NULL, NULL));
        TAKES(tn_optim_set_steps(opt, INT64_MIN));
        for (int i = 0; i < REALS; i++) {
            TAKES(tn_optim_set_lr(opt, reals[i]));
            TAKES(tn_optim_clip(opt, reals[i]));
            TAKES(tn_clip_grad_norm(&m, reals[i]));
        }
    }
    for (int i = 0; i < REALS; i++) {
        tn_sgd_options s = {.lr = reals[i], .momentum = reals[i]};
        tn_adam_options a = {.lr = reals[i], .beta1 = reals[i], .eps = reals[i]};
        TAKES(tn_optim_free(tn_sgd(&m, s)));
        TAKES(tn_optim_free(tn_adam(&m, a)));
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* ---- data.h -------------------------------------------------------------------------------------------------------------------- */

static void datasets(tn_tensor *t) {
    int32_t tokens[4] = {0};
    size_t bytes;
    TAKES(tn_dataset_free(NULL));
    NOTHING(tn_tensor_dataset(t, t));
    NOTHING(tn_tensor_dataset(tn_scalar(1.0, TN_F32), NULL));
    NOTHING(tn_token_dataset(NULL, 4, 2));
    for (int i = 0; i < LONGS; i++) {
        if (longs[i] != 3) {
            NOTHING(tn_token_dataset(tokens, 4, longs[i]));
        }
        if (longs[i] < 3) {
            NOTHING(tn_token_dataset(tokens, longs[i], 2));
        }
    }
    NOTHING(tn_mnist(NULL, true));
    NOTHING(tn_mnist("", true));
    NOTHING(tn_mnist("/nowhere", false));
    NOTHING(tn_charset_from_text(NULL, 4));
    NOTHING(tn_charset_from_text("\xff", 1));
    TAKES(tn_charset_free(tn_charset_from_text("", 0)));
    TAKES(tn_charset_free(NULL));
    QUIET(tn_charset_size(NULL), 0);
    QUIET(tn_charset_encode(NULL, "a", 1, tokens), -1);
    TAKES(tn_charset_text(NULL, 0));
    tn_charset *c = tn_charset_from_text("ab", 2);
    QUIET(tn_charset_encode(c, NULL, 2, tokens), -1);
    QUIET(tn_charset_encode(c, "ab", 2, NULL), -1);
    QUIET(tn_charset_encode(c, "x", 1, tokens), -1);
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_charset_text(c, longs[i]));
    }
    TAKES(tn_charset_free(c));
    NOTHING(tn_text_read(NULL, &bytes));
    NOTHING(tn_text_read("", &bytes));
    NOTHING(tn_text_read("/", NULL));
    TAKES(tn_text_free(NULL));
}

static tn_status get_nothing(tn_dataset *self, int64_t i, void *x, void *y) {
    (void)self;
    (void)i;
    (void)x;
    (void)y;
    return TN_OK;
}

static void loaders(tn_tensor *t) {
    (void)t;
    tn_batch batch = {0};
    tn_sampling s = tn_sequential_sampler();
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            for (int k = 0; k < LONGS; k++) {
                tn_sampling odd = {(tn_sampling_kind)(i % 4), UINT64_MAX, longs[j], longs[k]};
                TAKES(tn_sampling_count(&odd, longs[i]));
                TAKES(tn_sampling_at(&odd, longs[i], longs[j], longs[k]));
                s = tn_random_sampler(1);
                TAKES(tn_sampling_at(&s, longs[i], longs[j], longs[k]));
            }
        }
    }
    TAKES(tn_sampling_count(NULL, 4));
    TAKES(tn_sampling_at(NULL, 4, 0, 0));
    NOTHING(tn_loader_new(NULL, tn_replacement_sampler(1), tn_loader_defaults()));
    TAKES(tn_loader_free(NULL));
    QUIET(tn_loader_next(NULL, &batch), false);
    TAKES(tn_loader_where(NULL));
    TAKES(tn_loader_seek(NULL, (tn_loader_place){0}));
    QUIET(tn_loader_has(NULL, (tn_loader_place){0}), false);
    QUIET(tn_loader_batches(NULL), 0);
    TAKES(tn_loader_options_of(NULL));
    TAKES(tn_loader_sampling(NULL));
    QUIET(tn_loader_dataset(NULL), NULL);
    static tn_dataset zero, no_get = {.kind = "odd", .size = 4, .y_dims = {-1, {0}}};
    static tn_dataset endless = {
        .kind = "odd", .size = INT64_MAX, .y_dims = {-1, {0}}, .get = get_nothing};
    static tn_dataset huge = {
        .kind = "odd", .size = 4, .x_dims = {2, {INT64_MAX, INT64_MAX}}, .get = get_nothing};
    static tn_dataset deep = {
        .kind = "odd", .size = 4, .x_dims = {99, {0}}, .y_dims = {99, {0}}, .get = get_nothing};
    tn_dataset *const odd[] = {&zero, &no_get, &endless, &huge, &deep};
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < LONGS; j++) {
            tn_loader_options o = {longs[j], longs[j], false, ints[j] > 9 ? 9 : ints[j], ints[j]};
            tn_loader *l = tn_loader_new(odd[i], s, o);
            after(__LINE__, "tn_loader_new", true, i < 2 || i == 4);
            for (int k = 0; k < LONGS; k++) {
                TAKES(tn_loader_seek(l, (tn_loader_place){longs[k], longs[LONGS - 1 - k]}));
                TAKES(tn_loader_has(l, (tn_loader_place){longs[k], longs[k]}));
            }
            TAKES(tn_loader_next(l, NULL));
            TAKES(tn_loader_free(l));
        }
    }
}

/* ---- io.h ---------------------------------------------------------------------------------------------------------------------- */

static void files(tn_tensor *t) {
    static const char *const paths[] = {NULL, "", "/", "/nowhere/file"};
    NOTHING(tn_safetensors_open(NULL));
    NOTHING(tn_safetensors_open("/"));
    TAKES(tn_safetensors_close(NULL));
    QUIET(tn_safetensors_count(NULL), 0);
    QUIET(tn_safetensors_name(NULL, 0), NULL);
    QUIET(tn_safetensors_has(NULL, "a"), false);
    QUIET(tn_safetensors_metadata(NULL, "a"), NULL);
    INERT(tn_safetensors_get(NULL, "a"));
    TAKES(tn_safetensors_add(NULL, "a", t));
    TAKES(tn_safetensors_add_metadata(NULL, "a", "b"));
    TAKES(tn_safetensors_discard(NULL));
    FAILS(tn_safetensors_write(NULL, temp_path("none")));
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        tn_safetensors_writer *w = tn_safetensors_new();
        FAILS(tn_safetensors_add(w, NULL, t));
        FAILS(tn_safetensors_add(w, "a", t));
        FAILS(tn_safetensors_add_metadata(w, NULL, NULL));
        FAILS(tn_safetensors_add_metadata(w, "a", NULL));
        FAILS(tn_safetensors_write(w, paths[i]));
        tn_linear m = {0};
        tn_linear_init(&m, 2, 2, tn_linear_defaults());
        tn_checkpoint c = {.model = pending ? NULL : &m};
        FAILS(tn_save(&m, paths[i]));
        FAILS(tn_load(&m, paths[i]));
        FAILS(tn_checkpoint_save(&c, paths[i]));
        FAILS(tn_checkpoint_load(&c, paths[i]));
        FAILS(tn_write_file(paths[i], "x", 1));
        NOTHING(tn_history_open(paths[i], 0));
        FAILS(tn_plot_svg(&(tn_plot){0}, paths[i]));
        tn_module_finish(&m);
    }
    FAILS(tn_write_file(temp_path("file"), NULL, 1));
    FAILS(tn_checkpoint_save(NULL, temp_path("none")));
    FAILS(tn_checkpoint_load(NULL, temp_path("none")));
    if (!pending) { /* a good file, asked for what it does not have */
        tn_safetensors_writer *w = tn_safetensors_new();
        assert_int_equal(tn_safetensors_add(w, "a", tn_scalar(1.0, TN_F32)), TN_OK);
        assert_int_equal(tn_safetensors_write(w, temp_path("a")), TN_OK);
        tn_safetensors *f = tn_safetensors_open(temp_path("a"));
        for (int i = 0; i < INTS; i++) {
            TAKES(tn_safetensors_name(f, ints[i]));
        }
        QUIET(tn_safetensors_has(f, NULL), false);
        QUIET(tn_safetensors_metadata(f, NULL), NULL);
        INERT(tn_safetensors_get(f, NULL));
        INERT(tn_safetensors_get(f, ""));
        tn_safetensors_close(f);
    }
}

/* ---- train.h ------------------------------------------------------------------------------------------------------------------- */

static void training(tn_tensor *t) {
    (void)t;
    FILE *nowhere = fopen("/dev/null", "w");
    TAKES(tn_progress_step(NULL, 0, 1.0, 1));
    TAKES(tn_progress_median_ms(NULL));
    TAKES(tn_progress_resume(NULL));
    TAKES(tn_progress_free(NULL));
    TAKES(tn_progress_free(tn_progress_new(NULL, 0, 3, "tok")));
    for (int i = 0; i < LONGS; i++) {
        tn_progress *p = tn_progress_new(nowhere, longs[i], longs[LONGS - 1 - i], NULL);
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_progress_step(p, longs[j], NAN, longs[j]));
        }
        TAKES(tn_progress_free(p));
    }
    static const double xs[2] = {NAN, INFINITY};
    static const tn_curve odd[] = {
        {0}, {.count = 5}, {.count = INT64_MIN}, {"a", xs, xs, 2, true}, {"a", NULL, xs, 2, false}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tn_plot plot = {.curves = &odd[i], .count = 1};
        for (int j = 0; j < INTS; j++) {
            TAKES(tn_plot_text(&plot, nowhere, ints[j], ints[INTS - 1 - j]));
        }
        tn_status status = tn_plot_svg(&plot, temp_path("plot.svg"));
        after(__LINE__, "tn_plot_svg", (int)status >= 0, false);
    }
    TAKES(tn_plot_text(NULL, nowhere, 40, 10));
    TAKES(tn_plot_text(&(tn_plot){.count = 3}, nowhere, 40, 10));
    TAKES(tn_plot_text(&(tn_plot){.count = -3}, NULL, 40, 10));
    FAILS(tn_plot_svg(NULL, temp_path("plot.svg")));
    NOTHING(tn_history_open(temp_path("no_rows.csv"), INT64_MAX));
    NOTHING(tn_history_open(temp_path("no_rows.csv"), -1));
    FAILS(tn_history_add(NULL, 1.0));
    FAILS(tn_history_sync(NULL));
    TAKES(tn_history_free(NULL));
    QUIET(tn_history_count(NULL), 0);
    TAKES(tn_history_curve(NULL, NULL));
    TAKES(tn_history_smooth(NULL, NULL, 0));
    tn_history *h = tn_history_open(temp_path("history.csv"), 0);
    if (h) {
        TAKES(tn_history_add(h, NAN));
        for (int i = 0; i < LONGS; i++) {
            TAKES(tn_history_smooth(h, NULL, longs[i]));
        }
        TAKES(tn_history_curve(h, NULL));
    }
    TAKES(tn_history_free(h));
    fclose(nowhere);
}

/* ---- sys/ ---------------------------------------------------------------------------------------------------------------------- */

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
    tn_desc d = {.ndim = 1, .size = {2}, .stride = {1}}, wide = {.ndim = 99};
    TAKES(tn_desc_expand(&d, &wide));
    TAKES(tn_desc_expand(&wide, &d));
    TAKES(tn_desc_swap(&d, -1, 99));
    tn_sampler s = {0};
    TAKES(tn_sample_add(NULL, NULL));
    TAKES(tn_sample_add(&s, NULL));
    TAKES(tn_sample_unary(NULL, 0.0, 1.0));
    TAKES(tn_sample_binary(NULL, 0.0, 1.0, NAN, NAN));
}

/* An operation whose rules ask for inputs that it does not have. */
static bool careless_shape(tn_op_call *c) {
    static const int nowhere[] = {-1, 1, 7, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int n = nowhere[i];
        if (tn_op_out_like(c, n) || tn_op_out_broadcast(c, 0, n, TN_F32) || tn_op_float(c, n) ||
            tn_op_index(c, n)) {
            complain(__LINE__, "shape", "an input that is not there");
        }
    }
    for (int i = 0; i < STRANGE; i++) {
        if (tn_op_view(c, strange[i], NULL, -1) || tn_op_out(c, strange[i], no_dtype)) {
            complain(__LINE__, "shape", "an output that cannot be");
        }
    }
    tn_error_clear();
    while (tn_op_out(c, TN_DIMS(2), TN_F32)) {
        if (c->outputs > TN_OP_OUTPUTS) {
            complain(__LINE__, "tn_op_out", "more outputs than there is room for");
            break;
        }
    }
    tn_error_clear();
    return tn_op_same_dtype(c) && (c->outputs = 1);
}

static tn_status careless_forward(tn_op_call *c) {
    memset(c->y[0].data, 0, 8);
    return TN_OK;
}

static void careless_backward(tn_op_grad *g) {
    static const int nowhere[] = {-1, 1, 7, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int n = nowhere[i];
        if (!tn_is_inert(tn_op_saved_input(g, n)) || !tn_is_inert(tn_op_saved_output(g, n))) {
            complain(__LINE__, "backward", "a saved tensor that is not there");
        }
        (void)tn_op_input_dims(g, n);
        (void)tn_op_input_dtype(g, n);
        tn_op_give(g, n, tn_ones(TN_DIMS(2), TN_F32));
        if (tn_op_pending(g, n)) {
            complain(__LINE__, "backward", "a gradient that is not there");
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
         i++) { /* arguments NULL are allowed only where there are none; inputs come first */
        tn_tensor *inputs[3] = {t, t, t};
        INERT(tn_apply(tn_op_at(i), NULL, inputs, 3));
        INERT(tn_apply(tn_op_at(i), NULL, NULL, 2));
    }
    if (!pending) {
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
        x = tn_apply(&careless, NULL, &x, 1);
        after(__LINE__, "careless", !tn_is_inert(x), false);
        QUIET(tn_backward(tn_sum_all(x)) >= TN_OK, true);
    }
}

/* ---- The parts ----------------------------------------------------------------------------------------------------------------- */

#define PART(name)                          \
    static void test_##name(void **state) { \
        (void)state;                        \
        run_all(name);                      \
    }
PART(core)
PART(making)
PART(looking)
PART(views)
PART(numbers)
PART(tables)
PART(operations)
PART(gradients)
PART(zeroed)
PART(module_arguments)
PART(layers)
PART(initialising)
PART(generating)
PART(optimisers)
PART(datasets)
PART(loaders)
PART(files)
PART(training)
PART(system_calls)
PART(careless_operations)

int main(int argc, char **argv) {
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]); /* one part: test_views */
    }
    alarm(240);                       /* nothing may hang */
    tn_memory_set_limit(256LL << 20); /* sizes that a large machine could still hold are refused too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core),         cmocka_unit_test(test_making),
        cmocka_unit_test(test_looking),      cmocka_unit_test(test_views),
        cmocka_unit_test(test_numbers),      cmocka_unit_test(test_tables),
        cmocka_unit_test(test_operations),   cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_zeroed),       cmocka_unit_test(test_module_arguments),
        cmocka_unit_test(test_layers),       cmocka_unit_test(test_initialising),
        cmocka_unit_test(test_generating),   cmocka_unit_test(test_optimisers),
        cmocka_unit_test(test_datasets),     cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_files),        cmocka_unit_test(test_training),
        cmocka_unit_test(test_system_calls), cmocka_unit_test(test_careless_operations),
    };
    return cmocka_run_group_tests_name("inert", tests, NULL, temp_clean);
}
