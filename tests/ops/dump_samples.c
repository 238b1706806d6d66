/* Writes what every operation computes on its samples, for test_torch.py to compare with PyTorch.
 *
 *   dump_samples FOLDER        in f32 and f64
 *   dump_samples FOLDER ref    by the reference kernels, in each float dtype, and in f32 with odd
 *                              values; layouts and the width of indices take turns
 *
 * FOLDER/index.jsonl has one line per sample and dtype: operation, keywords, and the arrays:
 * inputs, results, the weights of the results in the scalar that was differentiated, gradients. An
 * array is {dtype, dims, offset} into FOLDER/data.bin, or null.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/sys/backend.h>
#include <tern/tern.h>

#include "ops/check.h"

typedef struct dump {
    tn_op_samples sampler;
    const tn_op *op;
    bool ref, odd;
    int sample, cases;
    FILE *index, *data;
    long offset;
} dump;

static void write_array(dump *d, tn_tensor *t, const char *before) {
    fputs(before, d->index);
    if (!t) {
        fputs("null", d->index);
        return;
    }
    TN_SCOPE;
    TN_NO_GRAD;
    size_t bytes = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
    tn_tensor *c = tn_contiguous(tn_detach(t));
    fprintf(d->index, "{\"dtype\": \"%s\", \"dims\": [", tn_dtype_name(tn_dtype_of(t)));
    for (int i = 0; i < tn_ndim(t); i++) {
        fprintf(d->index, "%s%lld", i ? ", " : "", (long long)tn_size(t, i));
    }
    fprintf(d->index, "], \"offset\": %ld}", d->offset);
    void *copy = malloc(bytes + 1);
    if (copy && tn_copy_out(c, copy) == TN_OK) { fwrite(copy, 1, bytes, d->data); }
    free(copy);
    d->offset += (long)bytes;
}

static void write_arrays(dump *d, const char *name, tn_tensor **t, int n) {
    fprintf(d->index, ", \"%s\": [", name);
    for (int i = 0; i < n; i++) {
        write_array(d, t[i], i ? ", " : "");
    }
    fputs("]", d->index);
}

/* Two inputs meet in several pairs of odd values. Large inputs stay as they are. */
static tn_spec odd_spec(const tn_spec *spec, int input) {
    enum { MOST = 1024, INPUTS = 16 };
    static const double odd[] = {1, NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 100, -100, -2.5};
    static double values[MOST + INPUTS];
    for (int i = 0; i < MOST + INPUTS; i++) {
        values[i] = odd[i % 10];
    }
    bool fits = tn__spec_real(spec) && tn_dims_count(spec->dims) <= MOST;
    return fits ? tn_spec_values(spec->dims, values + 3 * input % INPUTS) : *spec;
}

static tn_tensor *make_input(const dump *d, const tn_spec *spec, int i, tn_dtype dtype) {
    tn_spec odd = d->odd ? odd_spec(spec, i) : *spec;
    int turn = d->ref ? i + d->cases : i % 2;
    return tn__spec_tensor(&odd, dtype, (tn__layout)(turn % TN__REPEATED), d->ref && turn % 2,
                           (uint64_t)(20 * d->sample + i));
}

static void write_sample(dump *d, const tn_sample *sample, tn_dtype dtype) {
    TN_SCOPE;
    tn_values in = {.n = sample->inputs}, out = {.n = d->op->results ? d->op->results : 1};
    for (int i = 0; i < in.n; i++) {
        in.v[i] = make_input(d, &sample->in[i], i, dtype);
        if (in.v[i] && !d->odd && tn_op_differentiable(d->op) && tn__spec_real(&sample->in[i])) {
            tn_set_requires_grad(in.v[i], true);
        }
    }
    tn_apply_many(d->op, sample->args, in.v, in.n, out.v);
    tn_tensor *weights[TN_MAX_VALUES] = {NULL}, *grads[TN_MAX_VALUES] = {NULL};
    bool differentiable = tn_error() == TN_OK && tn_requires_grad(out.v[0]);
    for (int i = 0; i < out.n && differentiable; i++) {
        tn_spec spec = tn_spec_real(tn_shape(out.v[i]), -1.0, 1.0);
        weights[i] = tn_to(tn__spec_tensor(&spec, tn_dtype_of(out.v[i]), TN__PLAIN, false, 7),
                           tn_device_of(out.v[i]));
    }
    if (differentiable) { tn_backward_from(out.v, weights, out.n, false); }
    for (int i = 0; i < in.n; i++) {
        grads[i] = tn_grad_of(in.v[i]);
    }
    if (tn_error() != TN_OK) {
        fprintf(stderr, "%s, sample %d: %s\n", d->op->name, d->sample, tn_error_message());
        exit(1);
    }
    fprintf(d->index, "{\"op\": \"%s\", \"sample\": %d, \"keywords\": \"%s\", \"dtype\": \"%s\"",
            d->op->name, d->sample, sample->text ? sample->text : "", tn_dtype_name(dtype));
    fprintf(d->index, ", \"odd\": %s", d->odd ? "true" : "false");
    write_arrays(d, "inputs", in.v, in.n);
    write_arrays(d, "results", out.v, out.n);
    write_arrays(d, "weights", weights, out.n);
    write_arrays(d, "grads", grads, in.n);
    fputs("}\n", d->index);
    d->cases++;
}

static void add_sample(tn_op_samples *s, const tn_sample *sample) {
    dump *d = (dump *)s;
    write_sample(d, sample, TN_F32);
    write_sample(d, sample, TN_F64);
    if (d->ref) {
        write_sample(d, sample, TN_BF16);
        write_sample(d, sample, TN_F16);
        d->odd = true;
        write_sample(d, sample, TN_F32);
        d->odd = false;
    }
    d->sample++;
}

static FILE *open_in(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

int main(int argc, char **argv) {
    bool ref = argc == 3 && strcmp(argv[2], "ref") == 0;
    if (argc != 2 && !ref) {
        fprintf(stderr, "usage: dump_samples FOLDER [ref]\n");
        return 2;
    }
    tn_backend_use(ref ? tn_backend_named("ref") : NULL);
    dump d = {.sampler = {.add = add_sample},
              .index = open_in(argv[1], "index.jsonl"),
              .data = open_in(argv[1], "data.bin"),
              .ref = ref};
    for (int i = 0; i < tn_op_count(); i++) {
        d.op = tn_op_at(i);
        d.sample = 0;
        tn_op_list_samples(d.op, &d.sampler);
    }
    bool failed = ferror(d.index) || ferror(d.data);
    failed |= fclose(d.index) != 0;
    failed |= fclose(d.data) != 0;
    return failed;
}
