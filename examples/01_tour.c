/* A tour of tensors: making and inspecting them, views, arithmetic, gradients, scopes and errors.
 *
 * Prints every result beside the line that made it. Read it from top to bottom;
 * include/tern/tensor.h and ops.h have the rest.
 */
#include <tern/tern.h>

/* Prints an expression's code and the tensor that it returns. */
#define SHOW(expression) (printf("%s\n", #expression), tn_print(expression), printf("\n"))

static void show_making(void) {
    printf("==== Making\n\n");
    TN_SCOPE; /* frees every tensor made in this function at its end */
    SHOW(tn_zeros(TN_DIMS(2, 3), TN_F32));
    SHOW(tn_arange(0, 10, 2, TN_I64));
    SHOW(tn_randn(TN_DIMS(2, 3), TN_F32)); /* by the seed in main, the same in every run */
    float numbers[2][2] = {{1, 2}, {3, 4}};
    SHOW(TN_FROM(numbers, TN_DIMS(2, 2), TN_F32));
    SHOW(tn_cast(tn_scalar(3.14159, TN_F32), TN_BF16)); /* bf16 has 8 bits of precision */
}

static void show_views(void) {
    printf("==== Views: the same elements, seen differently\n\n");
    TN_SCOPE;
    tn_tensor *x = tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_DIMS(2, 3));
    SHOW(x);
    SHOW(tn_t(x));
    SHOW(tn_select(x, 0, 1));    /* row 1 */
    SHOW(tn_narrow(x, 1, 0, 2)); /* columns 0 and 1 */
    /* a trailing _ means in place: this changes x, since a view has no elements of its own */
    tn_fill_(tn_select(x, 1, 2), -1);
    SHOW(x);
    tn_tensor *turned = tn_t(x);
    printf("shape %s, strides %d and %d, shares storage with x: %s\n\n", tn_shape_text(turned),
           (int)tn_stride(turned, 0), (int)tn_stride(turned, 1),
           tn_shares_storage(turned, x) ? "yes" : "no");
}

static void show_arithmetic(void) {
    printf("==== Arithmetic\n\n");
    TN_SCOPE;
    tn_tensor *x = tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_DIMS(2, 3));
    tn_tensor *row = tn_arange(0, 30, 10, TN_F32);
    SHOW(tn_add(x, row)); /* (2, 3) and (3) broadcast as in NumPy */
    SHOW(tn_matmul(x, tn_t(x)));
    SHOW(tn_softmax(x, -1));
    SHOW(tn_mean(x, TN_DIMS(1), false)); /* of each row */
    SHOW(tn_gt(x, tn_scalar(2, TN_F32)));
    printf("the maximum of x as a C number: %g\n\n", tn_item(tn_max(x, TN_DIMS(), false)));
}

static void show_gradients(void) {
    printf("==== Gradients\n\n");
    TN_SCOPE;
    float start[] = {1, 2, 3};
    tn_tensor *w = tn_set_requires_grad(TN_FROM(start, TN_DIMS(3), TN_F32), true);
    tn_tensor *loss = tn_sum_all(tn_pow_scalar(w, 3)); /* what is computed from w is recorded … */
    tn_backward(loss);                                 /* … and differentiated */
    SHOW(tn_grad_of(w));                               /* 3 w^2 */
}

/* The result moves to the scope outside; everything else made here is freed. */
static tn_tensor *mean_distance(tn_tensor *a, tn_tensor *b) {
    TN_SCOPE;
    tn_tensor *difference = tn_sub(a, b);
    return tn_return(tn_sqrt(tn_sum_all(tn_square(difference))));
}

static void show_scopes(void) {
    printf("==== Scopes\n\n");
    TN_SCOPE;
    tn_tensor *a = tn_zeros(TN_DIMS(2), TN_F32), *b = tn_full(TN_DIMS(2), 3, TN_F32);
    long before = (long)tn_live_tensors();
    tn_tensor *d = mean_distance(a, b);
    printf("distance %.4f; it made several tensors and left %ld\n\n", tn_item(d),
           (long)tn_live_tensors() - before);
}

/* Nothing is checked in between: the first error is kept, and every call after it does nothing. */
static void show_errors(void) {
    printf("==== Errors\n\n");
    TN_SCOPE;
    tn_tensor *a = tn_ones(TN_DIMS(2, 3), TN_F32), *b = tn_ones(TN_DIMS(2, 3), TN_F32);
    tn_tensor *wrong = tn_relu(tn_matmul(a, b));
    printf("%s\n", tn_error_message());
    printf("a number from it: %g\n", tn_item(wrong));
    tn_error_clear(); /* from here on calls work again */
    printf("and with the second one transposed: %s\n", tn_shape_text(tn_matmul(a, tn_t(b))));
}

int main(void) {
    printf("%s\n\n", tn_build_info());
    tn_seed(1);
    show_making();
    show_views();
    show_arithmetic();
    show_gradients();
    show_scopes();
    show_errors();
    return tn_error() != TN_OK || fflush(stdout) || ferror(stdout);
}
