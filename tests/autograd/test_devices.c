/* Tensors on several devices: moving, gradients that return, and operations that refuse mixed
 * devices. Needs two devices besides the CPU.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

static tn_device first, second; /* cuda:0 and cuda:1 */

static tn_tensor *arange_on(tn_device device, tn_dims dims) {
    return tn_to(
        tn_to(tn_reshape(tn_arange(0.0, (double)tn_dims_count(dims), 1.0, TN_F32), dims), tn_cpu()),
        device);
}

static bool is_on(const tn_tensor *t, tn_device device) {
    return tn_device_of(t).kind == device.kind && tn_device_of(t).index == device.index;
}

TEST(moves_tensors) {
    tn_tensor *x = arange_on(tn_cpu(), TN_DIMS(3, 4)), *y = tn_to(x, first);
    assert_ptr_equal(tn_to(x, tn_cpu()), x);
    assert_true(is_on(y, first));
    /* strided on its device; dense on the other */
    tn_tensor *z = tn_to(tn_slice(tn_t(y), 0, 1, 4, 2), second);
    assert_true(is_on(z, second) && tn_is_contiguous(z));
    assert_true(tn_equal(tn_to(z, tn_cpu()), tn_slice(tn_t(x), 0, 1, 4, 2)));
    assert_int_equal(tn_count(tn_to(tn_zeros(TN_DIMS(0, 3), TN_F32), second)), 0);
    assert_int_equal(tn_error(), TN_OK);
    assert_inert(tn_to(x, tn_cuda(99)), TN_EDEVICE, "to: there is no device cuda:99");
}

/* x on the CPU, a product on one device, another factor on the next: gradients arrive on each
 * leaf's device. */
TEST(gradients_come_back) {
    tn_tensor *x = tn_set_requires_grad(arange_on(tn_cpu(), TN_DIMS(2, 3)), true);
    tn_tensor *w = tn_set_requires_grad(arange_on(first, TN_DIMS(2, 3)), true);
    tn_tensor *there = tn_to(tn_mul(tn_to(x, first), w), second);
    tn_tensor *loss = tn_sum_all(tn_mul(there, arange_on(second, TN_DIMS(3))));
    assert_int_equal(tn_backward(loss), TN_OK);
    assert_true(is_on(tn_grad_of(x), tn_cpu()) && is_on(tn_grad_of(w), first));
    float dx[6], dw[6];
    tn_copy_out(tn_grad_of(x), dx);
    tn_copy_out(tn_grad_of(w), dw);
    for (int i = 0; i < 6; i++) {
        assert_true(dx[i] == (float)(i * (i % 3)) && dw[i] == (float)(i * (i % 3)));
    }
    /* and a gradient of the gradient */
    tn_tensor *g, *v = tn_set_requires_grad(arange_on(first, TN_DIMS(3)), true);
    tn_tensor *cube = tn_sum_all(tn_pow_scalar(tn_to(v, tn_cpu()), 3.0));
    assert_int_equal(tn_grad(&cube, NULL, 1, &v, 1, &g, TN_WITH(tn_grad, .create_graph = true)),
                     TN_OK);
    tn_backward(tn_sum_all(g));
    assert_true(is_on(tn_grad_of(v), first));
    assert_float_equal(tn_at(tn_grad_of(v), TN_DIMS(2)), 12.0, 1e-5);
}

TEST(mixtures_are_refused) {
    tn_tensor *a = arange_on(first, TN_DIMS(2, 3)), *b = arange_on(tn_cpu(), TN_DIMS(3));
    assert_inert(tn_add(a, b), TN_EDEVICE,
                 "add: a [2, 3] is on cuda:0 but b [3] is on cpu (tn_to one of them)");
    tn_tensor *number = tn_to(tn_scalar(1.0, TN_F32), tn_cpu());
    assert_inert(tn_mul(number, a), TN_EDEVICE, "mul: a [] is on cpu but b [2, 3] is on cuda:0");
    assert_true(tn_is_inert(
        tn_linear_op(a, arange_on(first, TN_DIMS(4, 3)), arange_on(second, TN_DIMS(4)))));
    assert_error(TN_EDEVICE, "linear: x [2, 3] is on cuda:0 but bias [4] is on cuda:1");
    assert_inert(tn_add_(a, b), TN_EDEVICE, "add_: x [2, 3] is on cuda:0 but y [3] is on cpu");
    assert_false(tn_equal(a, tn_to(a, tn_cpu())));
    assert_error(TN_EDEVICE, "equal: a [2, 3] is on cuda:0 but b [2, 3] is on cpu");
    assert_true(tn_equal(a, arange_on(first, TN_DIMS(2, 3)))); /* nothing has changed */
}

static tn_tensor *move_gradient(tn_tensor *grad, void *user) {
    return tn_to(grad, *(tn_device *)user);
}

TEST(gradients_elsewhere_are_refused) {
    tn_tensor *x = tn_set_requires_grad(arange_on(first, TN_DIMS(3)), true);
    tn_tensor *wrong = arange_on(second, TN_DIMS(3)), *y = tn_mul(x, x);
    assert_int_equal(tn_backward_from(&y, &wrong, 1, false), TN_EDEVICE);
    assert_error(TN_EDEVICE, "backward: the root [3] is on cuda:0 but its gradient is on cuda:1");
    assert_int_equal(tn_set_grad(x, wrong), TN_EDEVICE);
    assert_error(TN_EDEVICE, "set_grad: the leaf [3] is on cuda:0 but the gradient is on cuda:1");
    assert_int_equal(tn_set_grad_buffer(x, wrong), TN_EDEVICE);
    assert_error(TN_EDEVICE, "set_grad_buffer: the leaf [3]");
    tn_on_grad(x, move_gradient, &second);
    tn_backward(tn_sum_all(y));
    assert_error(TN_EDEVICE, "the gradient is on cuda:0 but the hook returned one on cuda:1");
    assert_null(tn_grad_of(x));
}

/* copy_ between devices: dense, converted, strided, broadcast. */
TEST(copies_in_place) {
    tn_tensor *from = arange_on(second, TN_DIMS(2, 3)),
              *x = tn_empty_on(first, TN_DIMS(2, 3), TN_F32);
    tn_copy_(x, from);
    assert_true(tn_equal(tn_to(x, second), from));
    tn_tensor *wide = tn_to(tn_zeros(TN_DIMS(3, 4), TN_F64), first);
    tn_copy_(tn_slice(tn_t(wide), 0, 0, 4, 2), tn_select(from, 0, 1)); /* (2, 3) from (3) */
    for (int i = 0; i < 3; i++) {
        assert_float_equal(tn_at(wide, TN_DIMS(i, 2)), 3.0 + i, 0.0);
        assert_float_equal(tn_at(wide, TN_DIMS(i, 1)), 0.0, 0.0);
    }
    tn_tensor *host = tn_empty_on(tn_cpu(), TN_DIMS(2, 3), TN_F32);
    tn_copy_(host, tn_mul_scalar(from, 2.0));
    assert_true(((const float *)tn_data(host))[5] == 10.0f);
}

/* Operations without tensors as inputs use the default device; the others ignore it. */
TEST(default_device) {
    tn_device before = tn_default_device();
    assert_int_equal(tn_set_default_device(second), TN_OK);
    tn_tensor *made = tn_randn(TN_DIMS(4), TN_F32), *x = arange_on(first, TN_DIMS(1, 2, 3, 4));
    tn_tensor *y = tn_attention(x, x, x, NULL, TN_WITH(tn_attention, .causal = true));
    assert_true(is_on(made, second) && is_on(y, first));
    assert_int_equal(tn_set_default_device(tn_cuda(7)), TN_EDEVICE);
    tn_error_clear();
    assert_true(is_on(tn_zeros(TN_DIMS(1), TN_F32), second));
    tn_set_default_device(before);
}

int main(void) {
    if (tn_device_count(TN_CUDA) < 2) {
        printf("1..0 # SKIP %d CUDA devices: %s\n", tn_device_count(TN_CUDA),
               tn_device_why(TN_CUDA));
        return 0;
    }
    first = tn_cuda(0);
    second = tn_cuda(1);
    return tests_run(NULL, NULL);
}
