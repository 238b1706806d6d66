/* A straight line: y = 2 x - 1 with noise, found again by gradient descent.
 *
 * Training in its smallest form: a model (one linear layer: a weight and a bias), a loss, and a
 * loop of four calls. Prints the loss as it falls, then the line that it found.
 */
#include <tern/tern.h>

int main(void) {
    tn_on_error(tn_error_exit); /* a mistake ends this program with a message that says where */
    tn_seed(42);                /* the same numbers in every run */

    /* 64 points. Tensors made here live as long as the program, since they are in no scope. */
    tn_tensor *x = tn_rand(TN_DIMS(64, 1), TN_F32); /* uniform in [0, 1) */
    tn_tensor *noise = tn_mul_scalar(tn_randn(TN_DIMS(64, 1), TN_F32), 0.05);
    tn_tensor *y = tn_add(tn_add_scalar(tn_mul_scalar(x, 2.0), -1.0), noise);

    tn_linear line; /* 1 number in, 1 out: weight (1, 1), bias (1) */
    tn_linear_init(&line, 1, 1, tn_linear_defaults());

    tn_optim *opt = tn_sgd(&line, TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9));

    for (int step = 0; step <= 200; step++) {
        TN_SCOPE; /* what this iteration makes is freed at its end */
        tn_tensor *loss = tn_mse(tn_call(&line, x), y, TN_MEAN);
        tn_backward(loss);       /* gradients of weight and bias */
        tn_optim_step(opt);      /* a small step against them */
        tn_optim_zero_grad(opt); /* and forgotten */
        if (step % 40 == 0) { printf("step %3d  loss %.5f\n", step, tn_item(loss)); }
    }
    printf("y = %.2f x %+.2f   (made with 2 and -1)\n", tn_item(line.weight), tn_item(line.bias));

    tn_optim_free(opt);
    tn_module_finish(&line);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
