/* Each allocation of an operation fails once, in forward and backward of each small sample.
 * Whichever fails, the error is TN_ENOMEM, nothing stays alive, and the next try works.
 */
#include <stdlib.h>

#include "tests/support/test.h"

#include <tern/tern.h>

#include "core/allocator.h"
#include "ops/check.h"

enum { SMALL = 64, MOST_SAMPLES = 12, MOST_ALLOCATIONS = 3000 };

typedef struct failing {
    tn_op_samples sampler;
    const tn_op *op;
    int samples, failures;
} failing;

static void forward_backward(const tn_op *op, const tn_sample *sample) {
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

static void fail_each(tn_op_samples *s, const tn_sample *sample) {
    failing *f = (failing *)s;
    for (int i = 0; i < sample->inputs; i++) {
        if (sample->in[i].kind != TN_SPEC_ABSENT && tn_dims_count(sample->in[i].dims) > SMALL) {
            return;
        }
    }
    if (f->samples++ >= MOST_SAMPLES) {
        return;
    }
    forward_backward(f->op, sample);
    assert_int_equal(tn_error(), TN_OK);
    int64_t before = tn_live_tensors();
    bool reached = true;
    for (int64_t n = 0; reached; n++) {
        assert_true(n < MOST_ALLOCATIONS);
        tn__alloc_fail_at(n);
        forward_backward(f->op, sample);
        tn__alloc_fail_at(-1);
        reached = tn_error() != TN_OK;
        if (reached && tn_error() != TN_ENOMEM) {
            print_error("%s, allocation %lld: %s\n", f->op->name, (long long)n, tn_error_message());
            fail();
        }
        f->failures += reached;
        tn_error_clear();
        assert_int_equal(tn_live_tensors(), before);
    }
    forward_backward(f->op, sample);
    assert_int_equal(tn_error(), TN_OK);
}

static void check_operation(void **state) {
    failing f = {.sampler = {.add = fail_each}, .op = *state};
    f.op->samples(&f.sampler);
    assert_true(f.samples > 0);
    assert_true(f.failures > 3 * f.samples); /* at least an input, a result and the descriptor */
}

int main(void) {
    for (int i = 0; i < tn_op_count(); i++) {
        test_add(tn_op_at(i)->name, check_operation, NULL, NULL, (void *)tn_op_at(i), 0);
    }
    return tests_run(NULL, NULL);
}
