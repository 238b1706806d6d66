/* Each allocation of an operation fails once, in forward and backward of each small sample. */
#include "tests/support/no_memory.h"

#include "ops/check.h"

enum { SMALL = 64, MOST_SAMPLES = 12 };

typedef struct failing {
    tn_op_samples sampler;
    int samples;
    long failures;
} failing;

/* What forward_backward runs. */
static const tn_op *op;
static const tn_sample *sample;

static void forward_backward(void) {
    TN_SCOPE;
    tn_tensor *in[TN_MAX_VALUES], *out[TN_MAX_VALUES];
    for (int i = 0; i < sample->inputs; i++) {
        in[i] = tn__spec_tensor(&sample->in[i], TN_F32, TN__TRANSPOSED, false, (uint64_t)i + 1);
        if (in[i] && tn_op_differentiable(op) && tn__spec_real(&sample->in[i])) {
            tn_set_requires_grad(in[i], true);
        }
    }
    tn_apply_many(op, sample->args, in, sample->inputs, out);
    if (tn_error() == TN_OK && tn_requires_grad(out[0])) {
        tn_backward(tn_sum_all(tn_mul(out[0], out[0])));
    }
}

static void fail_each(tn_op_samples *s, const tn_sample *next) {
    failing *f = (failing *)s;
    sample = next;
    for (int i = 0; i < sample->inputs; i++) {
        if (sample->in[i].kind != TN_SPEC_ABSENT && tn_dims_count(sample->in[i].dims) > SMALL) {
            return;
        }
    }
    if (f->samples++ >= MOST_SAMPLES) { return; }
    f->failures += every_allocation(forward_backward);
}

static void check_operation(void **state) {
    failing f = {.sampler = {.add = fail_each}};
    op = *state;
    tn_op_list_samples(op, &f.sampler);
    assert_true(f.samples > 0);
    assert_true(f.failures > 3 * f.samples); /* at least an input, a result and the descriptor */
}

int main(void) {
    for (int i = 0; i < tn_op_count(); i++) {
        test_add(tn_op_at(i)->name, check_operation, NULL, NULL, (void *)tn_op_at(i), 0);
    }
    return tests_run(NULL, NULL);
}
