/* A custom operation: snake(x) = x + sin(a x)^2 / a,
 * with its own forward loop and its own gradient rule.
 *
 *     Ziyin, Hartwig, Ueda 2020, arXiv:2006.08195: an activation that can continue a periodic
 *     signal.
 *
 * An operation is a descriptor: a shape rule, a forward, a backward made of other operations, and
 * samples. tn_op_check tests it like the library's own operations. Then the program trains: a small
 * network learns a wave on the left half of an interval and is asked about the right half.
 * docs/add_an_op.md explains each part.
 */
#include <tern/sys/op.h>
#include <tern/tern.h>

#include <math.h>

/* ---- The operation --------------------------------------------------------------------------- */

typedef struct snake_args {
    double a;
} snake_args;

/* The input may have any strides: the copy kernel copies it into the output in row-major order, for
 * the loop. */
static tn_status snake_forward(const tn_op_call *c) {
    const snake_args *args = c->args;
    tn_status status = c->kernels->copy(c->ctx, c->y[0], c->x[0]);
    int64_t n = tn_count(c->out[0]);
    if (status == TN_OK && c->y[0]->dtype == TN_F32) {
        float *y = c->y[0]->data;
        for (int64_t i = 0; i < n; i++) {
            float s = sinf((float)args->a * y[i]);
            y[i] += s * s / (float)args->a;
        }
    } else if (status == TN_OK && c->y[0]->dtype == TN_F64) {
        double *y = c->y[0]->data;
        for (int64_t i = 0; i < n; i++) {
            double s = sin(args->a * y[i]);
            y[i] += s * s / args->a;
        }
    } else if (status == TN_OK) {
        status = TN_EUNSUPPORTED;
    }
    return status;
}

/* d/dx = 1 + sin(2 a x). Made of operations, so it can be differentiated again. */
static void snake_backward(tn_op_grad *g) {
    const snake_args *args = g->args;
    tn_tensor *x = tn_op_saved_input(g, 0);
    tn_tensor *slope = tn_add_scalar(tn_sin(tn_mul_scalar(x, 2.0 * args->a)), 1.0);
    tn_op_give(g, 0, tn_mul(g->dout[0], slope));
}

static const tn_op snake_op = {
    .name = "snake",
    .inputs = {"x"},
    .args_size = sizeof(snake_args),
    .saves = TN_SAVES_INPUT(0),
    .fields = {TN_FIELD(snake_args, a)},
    .shapes = "... -> ...", /* one output with the input's shape and dtype */
    .forward = snake_forward,
    .backward = snake_backward,
    .samples = "[3, 4] a=0.5; [50] a=3.0",
};

static tn_tensor *apply_snake(tn_tensor *x, double a) {
    snake_args args = {a};
    return tn_apply1(&snake_op, &args, x);
}

/* ---- A network that uses it ------------------------------------------------------------------ */

static tn_tensor *snake_layer(tn_tensor *x) {
    return apply_snake(x, 5.0);
}

int main(void) {
    tn_on_error(tn_error_exit);
    tn_seed(3);
    tn_op_check(&snake_op);
    printf("snake: gradients, layouts and ownership are right\n");

    tn_sequential *net =
        TN_SEQUENTIAL(tn_linear_new(1, 48), TN_FN(snake_layer), tn_linear_new(48, 1));
    tn_tensor *x = tn_unsqueeze(tn_arange(-2.0, 0.0, 0.01, TN_F32), 1); /* (200, 1) */
    tn_tensor *y = tn_sin(tn_mul_scalar(x, 6.0));
    tn_optim *opt = tn_adamw(net, TN_WITH(tn_adamw, .lr = 5e-3));
    for (int step = 0; step <= 1500; step++) {
        TN_SCOPE;
        tn_tensor *loss = tn_mse(tn_call(net, x), y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 500 == 0) { printf("step %4d  loss %.5f\n", step, tn_item(loss)); }
    }

    tn_optim_free(opt);
    tn_module_free(net);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
