/* A classifier for two spirals: a custom model, with a hidden layer.
 *
 * No straight line separates two spirals that wind around each other; a small network can. Shows
 * how to write a layer with its own weight, and a model made of layers: a struct that begins with a
 * tn_module, a forward, and an init that registers weights and parts. At the end the plane is drawn
 * as the model sees it.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>

/* ---- A layer --------------------------------------------------------------------------------- */

/* Positive numbers pass unchanged, negative ones are multiplied by a learned slope per channel
 * (PReLU; He et al. 2015, arXiv:1502.01852). */
typedef struct {
    tn_module base; /* comes first */
    tn_tensor *slope;
} prelu;

/* x (B, C), slope (C) -> (B, C) */
static tn_tensor *prelu_forward(tn_module *self, tn_tensor *x) {
    prelu *layer = (prelu *)self;
    return tn_sub(tn_relu(x), tn_mul(layer->slope, tn_relu(tn_neg(x))));
}

static prelu *prelu_new(int64_t channels) {
    TN_SCOPE; /* the module keeps the weight */
    prelu *layer = tn_module_new(sizeof(*layer), "prelu", prelu_forward);
    tn_module_param(layer, "slope", &layer->slope, tn_full(TN_DIMS(channels), 0.25, TN_F32));
    return layer;
}

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base;
    tn_linear *in, *hidden, *out;
    prelu *bend, *bend_again;
} mlp;

/* x (B, 2) -> (B, 2): one score per class */
static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
    mlp *net = (mlp *)self;
    tn_tensor *h = tn_call(net->bend, tn_call(net->in, x));
    h = tn_call(net->bend_again, tn_call(net->hidden, h));
    return tn_call(net->out, h);
}

static void mlp_init(mlp *net, int64_t width) {
    tn_module_init(net, "mlp", mlp_forward);
    TN_OWN(net, in, tn_linear_new(2, width)); /* it is net's, under the name "in" */
    TN_OWN(net, bend, prelu_new(width));
    TN_OWN(net, hidden, tn_linear_new(width, width));
    TN_OWN(net, bend_again, prelu_new(width));
    TN_OWN(net, out, tn_linear_new(width, 2));
}

/* ---- The data -------------------------------------------------------------------------------- */

enum { POINTS = 400 };

/* Point i is on spiral i % 2: (x, y) in [-1, 1], label 0 or 1. */
static void make_spirals(float (*points)[2], int64_t *labels) {
    for (int i = 0; i < POINTS; i++) {
        double t = (double)(i / 2) / (POINTS / 2), turn = 3.5 * t * 3.14159 + (i % 2) * 3.14159;
        double blur = 0.02 * (tn_random_uniform(tn_default_generator()) - 0.5);
        points[i][0] = (float)(t * cos(turn) + blur);
        points[i][1] = (float)(t * sin(turn) + blur);
        labels[i] = i % 2;
    }
}

/* The fraction of points classified correctly. */
static double mlp_accuracy(mlp *net, tn_tensor *x, tn_tensor *labels) {
    TN_SCOPE;
    TN_NO_GRAD; /* nothing here will be differentiated */
    tn_tensor *right = tn_eq(tn_argmax(tn_call(net, x), 1, false), labels);
    return tn_item(tn_mean_all(right));
}

/* Draws the plane: each character shows the class that the model predicts there. */
static void draw_regions(mlp *net) {
    enum { ROWS = 21, COLUMNS = 51 };
    float points[ROWS * COLUMNS][2];
    int64_t classes[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        points[i][0] = (float)(i % COLUMNS) / (COLUMNS - 1) * 2 - 1;
        points[i][1] = 1 - (float)(i / COLUMNS) / (ROWS - 1) * 2;
    }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = TN_FROM(points, TN_DIMS(ROWS * COLUMNS, 2), TN_F32);
    tn_copy_out(tn_argmax(tn_call(net, x), 1, false), classes);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        putchar(classes[i] ? '#' : '.');
        if (i % COLUMNS == COLUMNS - 1) { putchar('\n'); }
    }
}

/* ---- Training -------------------------------------------------------------------------------- */

int main(void) {
    tn_on_error(tn_error_exit);
    tn_seed(7);
    float points[POINTS][2];
    int64_t labels[POINTS];
    make_spirals(points, labels);
    tn_tensor *x = TN_FROM(points, TN_DIMS(POINTS, 2), TN_F32);
    tn_tensor *y = TN_FROM(labels, TN_DIMS(POINTS), TN_I64);

    mlp net;
    mlp_init(&net, 64);
    tn_module_print(&net, stdout);

    tn_optim *opt = tn_adamw(&net, TN_WITH(tn_adamw, .lr = 1e-2));
    for (int step = 0; step <= 400; step++) {
        TN_SCOPE;
        tn_tensor *loss = tn_cross_entropy(tn_call(&net, x), y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 50 == 0) {
            printf("step %3d  loss %.4f  accuracy %5.1f %%\n", step, tn_item(loss),
                   100 * mlp_accuracy(&net, x, y));
        }
    }
    draw_regions(&net);

    tn_optim_free(opt);
    tn_module_finish(&net);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
