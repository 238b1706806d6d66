/* For test_pypi_onnx.py: exports random networks, with what Tern computes from their inputs.
 *
 *   dump_onnx_random FOLDER COUNT SEED
 *
 * A network is a sequence of steps: operations of the registry with the arguments of a sample. A
 * step's numbers depend only on the network's seed and the step's number, so each run draws the
 * same. Steps are tried, and those are kept with which the network
 *
 *   - computes something finite that is not too small or large, without an error,
 *   - and the same in f64: else rounding decides, and comparing says nothing,
 *   - and, in every second network, whose batch can have any size, for two batches at once what it
 *     computes for each.
 *
 * Not chosen are the samples that dump_onnx, which runs first, has found to have no counterpart in
 * ONNX. Besides the files of onnx_case.h there is FOLDER/NAME.txt, which names the steps.
 */
#include <math.h>
#include <string.h>

#include "ops/check.h"
#include "tests/io/onnx_case.h"

enum { MOST_STEPS = 8, MOST_TRIES = 60, LARGEST = 4000 };
static const double SOUND = 2e-6;

typedef struct network {
    tn_generator draw;
    uint64_t seed;
    bool batched;
    int numbers[MOST_STEPS], count; /* of its steps */
    const char *names[MOST_STEPS];
    tn_tensor *before[MOST_STEPS]; /* what each step was given … */
    int step;                      /* … up to this one, which runs */
} network;

/* ---- Drawing --------------------------------------------------------------------------------- */

/* From low to high, both included. */
static int64_t pick_integer(network *n, int64_t low, int64_t high) {
    return low + tn_random_below(&n->draw, high - low + 1);
}

static bool toss_coin(network *n) {
    return pick_integer(n, 0, 1) == 1;
}

static tn_dims draw_dims(network *n, int count, int64_t low, int64_t high) {
    tn_dims dims = {.ndim = count};
    for (int i = 0; i < count; i++) {
        dims.size[i] = pick_integer(n, low, high);
    }
    return dims;
}

/* Constants; reals have x's dtype. */
static tn_tensor *draw_constant(network *n, tn_tensor *x, tn_spec spec) {
    uint64_t seed = (uint64_t)pick_integer(n, 0, 1 << 30);
    tn_tensor *t = tn__spec_tensor(&spec, TN_F32, TN__PLAIN, false, seed);
    return tn__spec_real(&spec) ? tn_cast(t, tn_dtype_of(x)) : t;
}

/* ---- Operations of the registry -------------------------------------------------------------- */

static char unsupported_samples[1 << 16]; /* a line for each begins with "op.NAME.NUMBER " */

static void read_unsupported(void) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/unsupported", folder);
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(unsupported_samples, 1, sizeof(unsupported_samples), file) : 0;
    if (bytes == 0 || bytes == sizeof(unsupported_samples)) {
        fprintf(stderr, "%s: dump_onnx writes it; it has %zu bytes\n", path, bytes);
        exit(1);
    }
    fclose(file);
}

static bool is_unsupported(const tn_op *op, int sample) {
    char begin[128];
    snprintf(begin, sizeof(begin), "op.%s.%d ", op->name, sample);
    return strstr(unsupported_samples, begin) != NULL;
}

/* A walk over an operation's samples, which counts them or applies one. */
typedef struct walk {
    tn_op_samples sampler;
    const tn_op *op;
    int count, wanted;
    network *n;
    tn_tensor *x, *y;
} walk;

static void count_sample(tn_op_samples *s, const tn_sample *sample) {
    ((walk *)s)->count++;
}

/* x with the shape and the range of a sample's input; dimension 0 of a batch stays. */
static tn_tensor *fit_to_spec(network *n, tn_tensor *x, tn_spec spec) {
    tn_dims flat = n->batched ? TN_DIMS(tn_size(x, 0), -1) : TN_DIMS(-1);
    tn_dims times = n->batched ? TN_DIMS(1, 1) : TN_DIMS(1);
    int along = flat.ndim - 1;
    if (spec.dims.ndim < flat.ndim - 1) { return NULL; }
    if (n->batched) { spec.dims.size[0] = 1; }
    int64_t wanted = tn_dims_count(spec.dims);
    x = tn_reshape(x, flat);
    times.size[along] = (wanted - 1) / tn_size(x, along) + 1;
    x = tn_narrow(tn_repeat(x, times), along, 0, wanted);
    if (n->batched) { spec.dims.size[0] = -1; }
    x = tn_reshape(x, spec.dims);
    bool bounded = spec.kind != TN_SPEC_VALUES, above = bounded && spec.low >= 0;
    x = above ? tn_add_scalar(tn_abs(x), spec.low) : x;
    return bounded ? tn_clamp(x, spec.low, spec.high) : x;
}

/* x is the first real input; others are constants, or what an earlier step was given. */
static void apply_sample(tn_op_samples *s, const tn_sample *sample) {
    walk *w = (walk *)s;
    network *n = w->n;
    tn_tensor *in[TN_OP_INPUTS], *out[TN_OP_OUTPUTS], *x = w->x;
    if (w->count++ != w->wanted) { return; }
    for (int i = 0; i < sample->inputs; i++) {
        tn_spec spec = sample->in[i];
        bool real = tn__spec_real(&spec), other = n->step > 0 && toss_coin(n);
        if (tn_dims_count(spec.dims) == 0) { return; }
        if (real && (x || other)) {
            in[i] = fit_to_spec(n, x ? x : n->before[pick_integer(n, 0, n->step)], spec);
            if (!in[i]) { return; }
            x = NULL;
        } else {
            bool any = n->batched && spec.dims.ndim > 0 && toss_coin(n); /* rows: one for all */
            spec.dims.size[0] = any ? 1 : spec.dims.size[0];
            in[i] = draw_constant(n, w->x, spec);
        }
    }
    if (!x && !tn_error()) {
        tn_apply_many(w->op, sample->args, in, sample->inputs, out);
        w->y = out[0];
    }
}

static tn_tensor *apply_operation(network *n, tn_tensor *x) {
    walk w = {.sampler = {.add = count_sample}, .n = n, .x = x};
    w.op = tn_op_at((int)pick_integer(n, 0, tn_op_count() - 1));
    n->names[n->step] = w.op->name;
    tn_op_list_samples(w.op, &w.sampler);
    w.wanted = (int)pick_integer(n, 0, w.count - 1);
    w.count = 0;
    w.sampler.add = apply_sample;
    if (!is_unsupported(w.op, w.wanted)) { tn_op_list_samples(w.op, &w.sampler); }
    return w.y;
}

/* ---- Networks -------------------------------------------------------------------------------- */

/* NULL if a step is not for what it gets. */
static tn_tensor *run_steps(network *n, tn_tensor *x) {
    for (n->step = 0; n->step < n->count && x && !tn_error(); n->step++) {
        n->draw = (tn_generator){.seed = n->seed, .stream = (uint64_t)n->numbers[n->step]};
        n->before[n->step] = x;
        x = apply_operation(n, x);
    }
    return tn_error() ? NULL : x;
}

static tn_values run_network(void *user, tn_values in) {
    return TN_VALUES(run_steps(user, in.v[0]));
}

static double largest_of(tn_tensor *x) {
    return tn_item(tn_norm(x, (double)INFINITY, TN_DIMS(), false));
}

static bool same_results(tn_tensor *x, tn_tensor *y) {
    return tn_dtype_of(x) == tn_dtype_of(y) && tn_dims_equal(tn_shape(x), tn_shape(y)) &&
           largest_of(tn_sub(x, y)) < SOUND * largest_of(y);
}

/* Whether the network can be compared, and continue with its result. */
static bool is_sound(network *n, tn_tensor *x) {
    tn_tensor *y = run_steps(n, x), *exact = y ? run_steps(n, tn_cast(x, TN_F64)) : NULL;
    if (!exact || tn_dtype_of(y) != TN_F32 || tn_count(y) == 0 || tn_count(y) > LARGEST ||
        tn_ndim(y) > 5 || !(largest_of(y) > 1e-3 && largest_of(y) < 1e3) ||
        !same_results(tn_cast(y, TN_F64), exact)) {
        return false;
    }
    tn_tensor *two[] = {x, tn_neg(x)};
    tn_tensor *results[] = {y, n->batched ? run_steps(n, two[1]) : NULL};
    tn_tensor *both = results[1] && tn_ndim(y) ? run_steps(n, tn_cat(two, 2, 0)) : NULL;
    return !n->batched || (both && same_results(both, tn_cat(results, 2, 0)));
}

static void find_steps(network *n, tn_tensor *x) {
    int wanted = 1 + (int)tn_random_below(&(tn_generator){.seed = n->seed}, MOST_STEPS);
    for (int i = 1; i <= MOST_TRIES && n->count < wanted; i++) {
        TN_SCOPE;
        n->numbers[n->count++] = i;
        n->count -= !is_sound(n, x) || tn_error();
        tn_error_clear();
    }
}

static void describe_network(const network *n, tn_tensor *x, const char *name) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.txt", folder, name);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%s", tn_shape_text(x));
        for (int i = 0; i < n->count; i++) {
            fprintf(file, " %s", n->names[i]);
        }
        fprintf(file, "\n");
        fclose(file);
    }
}

/* The input has 1 to 5 dimensions, most often 4. */
static void dump_network(uint64_t seed, bool batched) {
    TN_SCOPE;
    TN_NO_GRAD;
    char name[64];
    network n = {.draw = {.seed = seed}, .seed = seed, .batched = batched};
    int ndim = (int)pick_integer(&n, 1 + batched, 7);
    tn_dims dims = draw_dims(&n, ndim > 5 ? 4 : ndim, 1, ndim == 5 ? 5 : 8);
    tn_tensor *x = tn_normal_(tn_empty(dims, TN_F32), 0, 1, &n.draw);
    find_steps(&n, x);
    tn_tensor *twice[] = {x, tn_neg(x)};
    tn_tensor *run = batched ? tn_cat(twice, 2, 0) : x;
    snprintf(name, sizeof(name), "random.%s.%llu", batched ? "batches" : "networks",
             (unsigned long long)seed);
    dump_case_as(name, run_network, &n, NULL, TN_VALUES(run), TN_VALUES(x), batched);
    describe_network(&n, x, name);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: dump_onnx_random FOLDER COUNT SEED\n");
        return 2;
    }
    if (!cases_begin(argv[1])) { return 1; }
    read_unsupported();
    uint64_t seed = strtoull(argv[3], NULL, 10);
    for (int i = 0; i < atoi(argv[2]); i++) {
        dump_network(seed + (uint64_t)i, i % 2 == 1);
    }
    return !cases_end();
}
