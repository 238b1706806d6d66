/* An operation that has a composition and also its own kernel or loops computes the same results
 * and gradients without the latter. So a new device can begin with the table's entries alone, and
 * the composition cannot drift from the kernels.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

#include "ops/check.h"
#include <tern/sys/op.h>
#include <tern/tern.h>

/* The operation without its kernel and loops. */
static tn_op bare_of(const tn_op *op) {
    tn_op bare = *op;
    bare.kernel = 0;
    bare.host = (tn_op_kernel){NULL, NULL};
    return bare;
}

/* Result and gradients of sum(y w) for fixed w. */
static tn_tensor *run_sample(const tn_op *op, const tn_sample *sample, tn_tensor *const *made,
                             tn_tensor **grads) {
    tn_tensor *in[TN_OP_INPUTS] = {NULL};
    for (int i = 0; i < sample->inputs; i++) {
        in[i] = made[i];
        if (in[i] && tn_dtype_is_float(tn_dtype_of(in[i]))) {
            in[i] = tn_set_requires_grad(tn_copy(tn_detach(in[i])), true);
        }
    }
    int results = op->results ? op->results : 1;
    tn_tensor *y[TN_OP_OUTPUTS], *w[TN_OP_OUTPUTS];
    tn_apply_many(op, sample->args, in, sample->inputs, y);
    for (int i = 0; i < results; i++) {
        w[i] = tn_add_scalar(tn_detach(y[i]), 0.5);
    }
    assert_int_equal(tn_backward_from(y, w, results, false), TN_OK);
    for (int i = 0; i < sample->inputs; i++) {
        grads[i] = in[i] ? tn_grad_of(in[i]) : NULL;
    }
    return tn_detach(y[0]);
}

static void compare_sample(tn_op_samples *s, const tn_sample *sample) {
    const tn_op *op = s->user;
    TN_SCOPE;
    tn_tensor *made[TN_OP_INPUTS], *fused[TN_OP_INPUTS], *composed[TN_OP_INPUTS];
    for (int i = 0; i < sample->inputs; i++) {
        made[i] = tn__spec_tensor(&sample->in[i], TN_F64, TN__PLAIN, false, 8 + (uint64_t)i);
    }
    const tn_op bare = bare_of(op);
    tn_tensor *a = run_sample(op, sample, made, fused),
              *b = run_sample(&bare, sample, made, composed);
    bool same = tn_all_close(a, b, 1e-9, 1e-9);
    for (int i = 0; i < sample->inputs && same; i++) {
        same = (!fused[i] && !composed[i]) || tn_all_close(fused[i], composed[i], 1e-8, 1e-8);
    }
    if (!same || tn_error()) {
        fail_msg("%s(%s): the composition differs from the kernel %s", op->name, sample->text,
                 tn_error_message());
    }
}

static void kernel_agrees(void **state) {
    const tn_op *op = tn_op_named(*state);
    assert_non_null(op);
    tn_op_samples sampler = {compare_sample, (void *)op};
    tn_op_list_samples(op, &sampler);
    const tn_op bare = bare_of(op);
    tn_status status = tn_op_check(&bare);
    assert_string_equal(tn_error_message(), "");
    assert_int_equal(status, TN_OK);
}

/* One test for each operation that has a composition and a kernel or loops. Those without a
 * composition have loops, which run on every device. */
int main(void) {
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        if (op->kernel && !(op->compose || op->forward || op->host.forward)) {
            fprintf(stderr, "%s cannot run without its kernel\n", op->name);
            return 1;
        }
        if ((op->kernel || op->host.forward) && op->compose) {
            test_add(op->name, kernel_agrees, NULL, NULL, (void *)op->name, 0);
        }
    }
    return tests_run(NULL, NULL);
}
