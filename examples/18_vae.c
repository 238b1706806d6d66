/* 18. A variational autoencoder: images from noise (Kingma, Welling 2013, arXiv:1312.6114).
 *
 *     18_vae               learns discs that it draws itself
 *     18_vae DIR           learns MNIST's digits: DIR has the files of the 10,000 images t10k-…
 *
 * The encoder maps each image to a distribution in a small space, a mean and a spread; the decoder
 * turns a point drawn from it into an image. The loss is the reconstruction error plus the distance
 * of the distributions from a standard normal, so that in the end a point drawn from that becomes
 * an image too. Prints the loss and writes vae.png: a row of images, their reconstructions, and new
 * ones.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>

enum {
    SIDE = 28,
    PIXELS = SIDE * SIDE,
    HIDDEN = 128,
    PLACE = 8,
    BATCH = 128,
    STEPS = 800,
    ROW = 10
};

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base;
    tn_sequential *encoder, *decoder;
    tn_linear *mean, *log_var;
} vae;

/* x (B, PIXELS) -> logits of the decoded image (B, PIXELS), mean and log_var (B, PLACE) */
static tn_values vae_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    vae *m = (vae *)self;
    tn_tensor *h = tn_call(m->encoder, in.v[0]);
    tn_tensor *mean = tn_call(m->mean, h), *log_var = tn_call(m->log_var, h);
    tn_tensor *noise = tn_randn(tn_shape(mean), TN_F32);
    tn_tensor *place = tn_add(mean, tn_mul(noise, tn_exp(tn_mul_scalar(log_var, 0.5))));
    return TN_VALUES(tn_call(m->decoder, place), mean, log_var);
}

static void vae_init(vae *m) {
    tn_module_init_values(m, "vae", vae_forward);
    TN_OWN(m, encoder, TN_SEQUENTIAL(tn_linear_new(PIXELS, HIDDEN), TN_FN(tn_relu)));
    TN_OWN(m, mean, tn_linear_new(HIDDEN, PLACE));
    TN_OWN(m, log_var, tn_linear_new(HIDDEN, PLACE));
    TN_OWN(
        m, decoder,
        TN_SEQUENTIAL(tn_linear_new(PLACE, HIDDEN), TN_FN(tn_relu), tn_linear_new(HIDDEN, PIXELS)));
}

/* The loss of one image: its pixels, and KL(normal(mean, spread) || normal(0, 1)). */
static tn_tensor *vae_loss(tn_values out, tn_tensor *x) {
    tn_tensor *pixels = tn_bce_with_logits(out.v[0], x, TN_SUM);
    tn_tensor *mean = out.v[1], *log_var = out.v[2];
    tn_tensor *spread = tn_sub(tn_add_scalar(log_var, 1), tn_exp(log_var));
    tn_tensor *kl = tn_mul_scalar(tn_sum_all(tn_sub(spread, tn_square(mean))), -0.5);
    return tn_div_scalar(tn_add(pixels, kl), (double)tn_size(x, 0));
}

/* ---- The data -------------------------------------------------------------------------------- */

/* A disc somewhere, with a soft edge. */
static tn_status get_disc(tn_dataset *self, tn_example e, void *x, void *y) {
    (void)self;
    (void)y;
    tn_random4 r = tn_philox(18, 0, 0, (uint64_t)e.index);
    double a = 8 + r.word[0] * 0x1p-32 * 12, b = 8 + r.word[1] * 0x1p-32 * 12;
    double radius = 3 + r.word[2] * 0x1p-32 * 5;
    for (int p = 0; p < PIXELS; p++) {
        double edge = radius - hypot(p % SIDE - a, p / SIDE - b);
        ((float *)x)[p] = (float)fmin(fmax(edge + 0.5, 0), 1);
    }
    return TN_OK;
}

static tn_dataset discs = {.kind = "discs",
                           .size = 10000,
                           .x_dims = {3, {1, SIDE, SIDE}},
                           .y_dims = {.ndim = -1},
                           .get = get_disc};

/* ---- Pictures -------------------------------------------------------------------------------- */

/* The given images, below them their reconstructions, and four rows of new ones. */
static void draw_images(vae *m, tn_tensor *x, const char *path) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *some = tn_narrow(x, 0, 0, ROW);
    tn_tensor *back = tn_call_values(m, TN_VALUES(some), NULL).v[0];
    tn_tensor *made = tn_call(m->decoder, tn_randn(TN_DIMS(4 * ROW, PLACE), TN_F32));
    tn_tensor *all = TN_CAT(0, some, tn_sigmoid(back), tn_sigmoid(made));
    tn_save_image(tn_reshape(all, TN_DIMS(6 * ROW, 1, SIDE, SIDE)), path, ROW);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_seed(18);
    tn_loader *loader =
        tn_loader_new(argc > 1 ? tn_mnist(argv[1], false) : &discs, tn_random_sampler(18),
                      TN_WITH(tn_loader, .batch = BATCH, .epochs = 0));
    vae net;
    vae_init(&net);
    tn_optim *opt = tn_adam(&net, TN_WITH(tn_adam, .lr = 3e-3));
    tn_batch b;
    for (int step = 0; step <= STEPS && tn_loader_next(loader, &b); step++) {
        TN_SCOPE;
        tn_tensor *x = tn_reshape(b.x, TN_DIMS(-1, PIXELS));
        tn_tensor *loss = vae_loss(tn_call_values(&net, TN_VALUES(x), NULL), x);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 100 == 0) { printf("step %3d  loss %.2f\n", step, tn_item(loss)); }
        if (step == STEPS) { draw_images(&net, x, "vae.png"); }
    }
    printf("vae.png: a row of images, their reconstructions, and four rows of new ones\n");
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&net);
    return fflush(stdout) || ferror(stdout);
}
