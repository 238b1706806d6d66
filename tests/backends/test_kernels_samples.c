/* The kernels that ops/list.h says a device has, on the samples of their operations: results and
 * gradients are those of ref, the host loops or the composition, for every dtype, with operands in
 * each layout, and the same bits each way. Every other sample has gradients in f32, every third a
 * gradient of its first result only. trial.h says which tables and ways.
 *
 * With NaN in the inputs, the results have it in the same places.
 */
#include "kernels.h"
#include "trial.h"

#include "ops/check.h"
#include <tern/tern.h>

/* What a table computes: results, then gradients of the inputs; NULL for none. */
typedef struct outcome {
    int count;
    tn_tensor *t[TN_OP_OUTPUTS + TN_OP_INPUTS];
} outcome;

typedef struct trying {
    const tn_op *op;
    const tn_sample *sample;
    tn_dtype dtype;
    tn__layout layout;
    bool odd; /* some reals are NaN */
    int samples;
    bool large; /* none of the operation's own samples */
} trying;

/* ref has no rows: it runs the plain code. */
static bool has_row(const tn_backend *t, int row) {
    return t->fused && t->fused[row];
}

static tn_device device_of(const tn_backend *t) {
    return strcmp(t->name, "cuda") == 0 ? tn_cuda(0) : tn_cpu();
}

static tn_tensor *make_input(const trying *k, int i) {
    tn_tensor *t =
        tn__spec_tensor(&k->sample->in[i], k->dtype, k->layout, k->samples % 2, 8 + (uint64_t)i);
    int64_t count = t ? tn_count(t) : 0;
    for (int64_t n = 0; count > 16 && k->odd && tn_dtype_is_float(tn_dtype_of(t)) && n < 3; n++) {
        tn_tensor *at = t;
        for (int64_t left = 7 * n + 1; tn_ndim(at) > 0;) {
            int64_t size = tn_size(at, tn_ndim(at) - 1);
            at = tn_select(at, tn_ndim(at) - 1, left % size);
            left /= size;
        }
        tn_fill_(at, NAN);
    }
    return t;
}

/* The gradient of a result: numbers in [-1, 1]. */
static tn_tensor *arriving_gradient(tn_tensor *y, int i) {
    tn_spec spec = tn_spec_real(tn_shape(y), -1.0, 1.0);
    return tn_to(tn__spec_tensor(&spec, tn_dtype_of(y), TN__PLAIN, false, 70 + (uint64_t)i),
                 tn_device_of(y));
}

static outcome run_on(const trying *k, const tn_backend *table) {
    tn_tensor *in[TN_OP_INPUTS] = {NULL}, *dy[TN_OP_OUTPUTS];
    int results = tn_op_results(k->op);
    outcome o = {.count = results + k->sample->inputs};
    if (device_of(table).kind == TN_CPU) { tn_backend_use(table); }
    for (int i = 0; i < k->sample->inputs; i++) {
        tn_tensor *made = make_input(k, i);
        if (made) {
            /* the gradient's memory keeps the layout on the CPU; elsewhere it is dense */
            in[i] = tn_detach(tn_to(made, device_of(table)));
            tn_set_requires_grad(in[i], tn_dtype_is_float(tn_dtype_of(in[i])));
            if (k->samples % 2 && tn_dtype_size(tn_dtype_of(in[i])) == 2) {
                tn_set_grad_dtype(in[i], TN_F32);
            }
        }
    }
    tn_apply_many(k->op, k->sample->args, in, k->sample->inputs, o.t);
    for (int i = 0; i < results; i++) {
        dy[i] = arriving_gradient(o.t[i], i);
    }
    bool goes_back = !k->odd && tn_op_differentiable(k->op);
    if (goes_back) { tn_backward_from(o.t, dy, k->samples % 3 ? results : 1, false); }
    for (int i = 0; i < k->sample->inputs; i++) {
        o.t[results + i] = in[i] && goes_back ? tn_grad_of(in[i]) : NULL;
    }
    for (int i = 0; i < o.count; i++) {
        o.t[i] = o.t[i] ? tn_to(tn_detach(o.t[i]), tn_cpu()) : NULL;
    }
    tn_backend_use(NULL);
    if (tn_error() != TN_OK) {
        fail_msg("%s(%s) on %s, %s: %s", k->op->name, k->sample->text, table->name,
                 tn_dtype_name(k->dtype), tn_error_message());
    }
    return o;
}

/* How far results and gradients in a precision may be from ref's, relative to the element and to
 * the largest one. (A gradient that is 0 is the difference of terms that are not.) */
static double tolerance_of(const trying *k, tn_dtype dtype, bool gradient) {
    /* ref runs the composition then */
    bool composed = !k->op->host.forward && !k->op->forward;
    double one = dtype == TN_F64    ? 1e-13
                 : dtype == TN_F32  ? 2e-6
                 : dtype == TN_BF16 ? 1.0 / 256
                                    : 1.0 / 2048;
    return (gradient ? 8 * one : one) * (composed ? 4 : 1);
}

static void expect_near(const trying *k, const tn_backend *table, tn_tensor *got, tn_tensor *want,
                        int what, bool gradient) {
    int64_t count = tn_count(want);
    /* host loops sum in double, compositions round between their steps */
    bool wide = gradient && k->op->widens >> what & 1 && k->op->host.backward;
    double tolerance = tolerance_of(k, wide ? tn_dtype_of(want) : k->dtype, gradient);
    double *a = malloc((size_t)(2 * count + 1) * sizeof(double)), *b = a + count, top = 0;
    assert_non_null(a);
    assert_int_equal(tn_copy_out(tn_cast(got, TN_F64), a), TN_OK);
    assert_int_equal(tn_copy_out(tn_cast(want, TN_F64), b), TN_OK);
    for (int64_t i = 0; i < count; i++) {
        top = isfinite(b[i]) ? fmax(top, fabs(b[i])) : top;
    }
    for (int64_t i = 0; i < count; i++) {
        bool same = a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
        if (!same &&
            !(fabs(a[i] - b[i]) <= tolerance * (fabs(b[i]) + top) + (gradient ? 1e-6 : 1e-7))) {
            fail_msg("%s(%s), sample %d on %s, %s, %s%s: %s %d, element %ld is %.9g, ref's %.9g",
                     k->op->name, k->sample->text, k->samples, table->name, tn_dtype_name(k->dtype),
                     tn__layout_name(k->layout), k->odd ? ", odd values" : "",
                     gradient ? "gradient" : "result", what, (long)i, a[i], b[i]);
        }
    }
    free(a);
}

static void try_table(const trying *k, const tn_backend *table, const outcome *want) {
    outcome first = {0};
    int results = tn_op_results(k->op);
    for (int way = 0; way < TRIAL_WAYS; way++) {
        trial_set_way(table, way);
        outcome got = run_on(k, table);
        for (int i = 0; i < got.count; i++) {
            assert_int_equal(got.t[i] != NULL, want->t[i] != NULL);
            if (got.t[i] && way == 0) {
                expect_near(k, table, got.t[i], want->t[i], i < results ? i : i - results,
                            i >= results);
            } else if (got.t[i] && !k->odd && !tn_equal(got.t[i], first.t[i])) {
                fail_msg("%s(%s) on %s, %s: different bits with %s", k->op->name, k->sample->text,
                         table->name, tn_dtype_name(k->dtype), trial_way_name(table, way));
            }
        }
        first = way == 0 ? got : first;
    }
    trial_set_way(table, 0);
}

static void try_sample(tn_op_samples *s, const tn_sample *sample) {
    trying *k = s->user;
    k->sample = sample;
    k->samples++;
    for (int i = 0; i < 4 * TN__REPEATED + 1; i++) {
        TN_SCOPE;
        k->odd = i == 4 * TN__REPEATED;
        k->dtype = k->odd ? TN_F32 : array_floats[i % 4];
        k->layout = k->odd ? TN__PLAIN : (tn__layout)(i / 4);
        if (k->layout != TN__PLAIN && (k->samples + i) % 4 != 0) {
            continue; /* dtypes take turns at the layouts */
        }
        if (k->large && trial_on_emulator() && (k->samples + i) % 5 != 0) { continue; }
        tn_set_threads(1);
        outcome want = run_on(k, tn_backend_named("ref"));
        for (const tn_backend *const *table = trial_tables(); *table; table++) {
            if (has_row(*table, k->op->kernel)) { try_table(k, *table, &want); }
        }
    }
}

/* ---- Larger than an operation's own samples -------------------------------------------------- */

/* Rows of whole packs, and others; that fit in a warp or a block, and longer ones. */
static const tn_dims rows[] = {{2, {5, 31}},    {2, {9, 768}},   {2, {6, 1600}},
                               {2, {40, 1025}}, {2, {700, 40}},  {2, {3, 2568}},
                               {2, {2, 4099}},  {2, {1, 50257}}, {0}};

/* Channels: one place, many samples; short rows that are gathered, around and beyond a piece; long
 * rows that are cut, of whole packs too; channels side by side. */
static const tn_dims channels[] = {{3, {700, 3, 4}},  {3, {5, 2, 255}},  {3, {2, 3, 256}},
                                   {3, {2, 2, 4099}}, {3, {40, 9, 49}},  {3, {2100, 3, 1}},
                                   {3, {300, 40, 1}}, {3, {2, 2, 8200}}, {0}};

static const tn_dims heads[] = {{4, {3, 2, 7, 34}}, {4, {2, 4, 70, 64}}, {0}};

static const tn_softmax_args last = {-1};
static const tn_norm_args norm = {1e-5};
static const tn_batch_norm_args batch = {1e-5};
static const tn_rotary_args turn = {10000.0, 1.0, 1.0, 4.0, 1024, false};
static const tn_rotary_args turn_back = {10000.0, 8.0, 1.0, 4.0, 1024, true};

/* `inputs` has a letter for each: large_input. */
static const struct {
    const char *op, *inputs;
    const void *args;
    const tn_dims *shapes;
} larger[] = {
    {"softmax", "x", &last, rows},           {"log_softmax", "x", &last, rows},
    {"layer_norm", "xcc", &norm, rows},      {"rms_norm", "xc", &norm, rows},
    {"add_layer_norm", "xxcc", &norm, rows}, {"add_rms_norm", "xxc", &norm, rows},
    {"batch_norm", "xcc", &batch, channels}, {"batch_norm_given", "xcccv", &batch, channels},
    {"rotary", "xp", &turn, heads},          {"rotary", "xp", &turn_back, heads},
};

static tn_spec large_input(char letter, tn_dims x) {
    tn_dims channel = TN_DIMS(x.size[1]);
    switch (letter) {
    case 'x': /* channels are far from 0, where a sum of squares would lose the deviation */
        return tn_spec_real(x, x.ndim == 3 ? 48 : -2, x.ndim == 3 ? 52 : 2);
    case 'c':
        return tn_spec_real(channel, -1, 2);
    case 'v': /* a variance */
        return tn_spec_real(channel, 0.5, 2);
    default: /* positions */
        return tn_spec_index(TN_DIMS(x.size[2]), 2000);
    }
}

static void try_larger(trying *k, tn_op_samples *sampler) {
    k->large = true;
    for (size_t i = 0; i < sizeof(larger) / sizeof(*larger); i++) {
        if (strcmp(larger[i].op, k->op->name) != 0) { continue; }
        for (const tn_dims *x = larger[i].shapes; x->ndim > 0; x++) {
            tn_sample sample = {.text = "larger", .args = larger[i].args};
            for (const char *letter = larger[i].inputs; *letter; letter++) {
                sample.in[sample.inputs++] = large_input(*letter, *x);
            }
            try_sample(sampler, &sample);
        }
    }
}

static void as_ref(void **state) {
    trying k = {.op = tn_op_named(*state)};
    tn_op_samples sampler = {.add = try_sample, .user = &k};
    tn_op_list_samples(k.op, &sampler);
    try_larger(&k, &sampler);
}

/* A row of the list that no operation uses would never run. */
PLAIN_TEST(rows_are_used) {
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        assert_true(op->kernel == 0 || op->kernel == 1 + i);
        for (const tn_backend *const *table = trial_tables(); *table; table++) {
            assert_true(!has_row(*table, 1 + i) || op->kernel);
        }
    }
}

int main(void) {
    for (int i = 0; i < tn_op_count(); i++) {
        if (tn_op_at(i)->kernel) {
            test_add(tn_op_at(i)->name, as_ref, NULL, NULL, (void *)tn_op_at(i)->name, __COUNTER__);
        }
    }
    return tests_run(NULL, NULL);
}
