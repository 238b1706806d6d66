/* Without fused kernels: on a table that has only the primitive entries every operation gives the
 * results and gradients that it gives with them. So a device may begin with the primitives, and
 * neither a composition nor loops of the host can drift from the kernel.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

#include "backends/entries.h"
#include "ops/check.h"
#include <tern/sys/op.h>
#include <tern/tern.h>

enum { MOST = 64 };

static tn_backend bare; /* ref's without its fused entries */

static int make_bare(void **state) {
    (void)state;
    const tn_backend *ref = tn_backend_named("ref");
    if (!ref) {
        return -1;
    }
    bare = *ref;
#define EMPTY_PRIMITIVE(entry)
#define EMPTY_FUSED(entry) bare.entry = NULL;
#define EMPTY(entry, kind, ...) EMPTY_##kind(entry)
    TN_ENTRIES(EMPTY)
    return 0;
}

/* Result and gradients of sum(y w) for fixed w, on one table. */
static tn_tensor *run(const tn_op *op, const tn_sample *sample, tn_tensor *const *made,
                      tn_tensor **grads, const tn_backend *table) {
    tn_backend_use(table);
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
    tn_backend_use(NULL);
    for (int i = 0; i < sample->inputs; i++) {
        grads[i] = in[i] ? tn_grad_of(in[i]) : NULL;
    }
    return tn_detach(y[0]);
}

static void compare(tn_op_samples *s, const tn_sample *sample) {
    const tn_op *op = s->user;
    TN_SCOPE;
    tn_tensor *made[TN_OP_INPUTS], *fused[TN_OP_INPUTS], *composed[TN_OP_INPUTS];
    for (int i = 0; i < sample->inputs; i++) {
        made[i] = tn__spec_tensor(&sample->in[i], TN_F64, TN__PLAIN, false, 8 + (uint64_t)i);
    }
    tn_tensor *a = run(op, sample, made, fused, tn_backend_named("ref"));
    tn_tensor *b = run(op, sample, made, composed, &bare);
    bool same = tn_all_close(a, b, 1e-9, 1e-9);
    for (int i = 0; i < sample->inputs && same; i++) {
        same = (!fused[i] && !composed[i]) || tn_all_close(fused[i], composed[i], 1e-8, 1e-8);
    }
    if (!same || tn_error()) {
        fail_msg("%s(%s): without the kernel something else is made %s", op->name, sample->text,
                 tn_error_message());
    }
}

static void agrees(void **state) {
    const tn_op *op = tn_op_named(*state);
    assert_non_null(op);
    tn_op_samples sampler = {compare, (void *)op};
    op->samples(&sampler);
    tn_backend_use(&bare);
    tn_status status = tn_op_check(op);
    tn_backend_use(NULL);
    assert_string_equal(tn_error_message(), "");
    assert_int_equal(status, TN_OK);
}

/* One test for each operation that names a fused kernel. Without a way around it, it would crash on
 * such a device. */
int main(void) {
    struct CMUnitTest tests[MOST];
    size_t count = 0;
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        if (op->needs) {
            if (!(op->compose || op->host) || count == MOST) {
                fprintf(stderr, "%s has no way around its kernel\n", op->name);
                return 1;
            }
            tests[count++] = (struct CMUnitTest){op->name, agrees, NULL, NULL, (void *)op->name};
        }
    }
    return _cmocka_run_group_tests("composed", tests, count, make_bare, NULL);
}
