/* 19. A GAN with a gradient penalty: two networks against each other (Goodfellow et al. 2014,
 * arXiv:1406.2661; Gulrajani et al. 2017, arXiv:1704.00028).
 *
 * The generator makes points from noise; the critic gives high scores to points of the data, eight
 * clouds on a circle, and low ones to generated points. Each learns from the other's mistakes. To
 * keep the critic's slope near 1, its loss contains a gradient, which is differentiated again:
 * tn_grad with create_graph. Prints how far the critic's scores are apart, how many of the clouds
 * were found, and writes gan.png: the data, and what the generator makes.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>

enum { NOISE = 8, WIDTH = 64, BATCH = 256, STEPS = 800, CRITIC_STEPS = 4, CLOUDS = 8, SIDE = 128 };

/* Points (n, 2) of the data. */
static tn_tensor *draw_data(int64_t n) {
    TN_SCOPE;
    tn_tensor *angle = tn_cast(tn_randint(0, CLOUDS, TN_DIMS(n, 1), TN_I64), TN_F32);
    angle = tn_mul_scalar(angle, 2 * 3.14159265 / CLOUDS);
    tn_tensor *centre = TN_CAT(1, tn_cos(angle), tn_sin(angle));
    return tn_return(tn_add(centre, tn_mul_scalar(tn_randn(TN_DIMS(n, 2), TN_F32), 0.05)));
}

static tn_sequential *network_new(int64_t in, int64_t out) {
    return TN_SEQUENTIAL(tn_linear_new(in, WIDTH), TN_FN(tn_relu), tn_linear_new(WIDTH, WIDTH),
                         TN_FN(tn_relu), tn_linear_new(WIDTH, out));
}

/* Generated points: (n, 2). */
static tn_tensor *make_points(tn_sequential *generator, int64_t n) {
    return tn_call(generator, tn_randn(TN_DIMS(n, NOISE), TN_F32));
}

/* The mean of (|slope of the critic| - 1)^2 at points between data and generated ones. */
static tn_tensor *gradient_penalty(tn_sequential *critic, tn_tensor *data, tn_tensor *made) {
    tn_tensor *share = tn_rand(TN_DIMS(BATCH, 1), TN_F32);
    tn_tensor *between = tn_add(made, tn_mul(share, tn_sub(data, made)));
    tn_set_requires_grad(between, true);
    tn_tensor *score = tn_sum_all(tn_call(critic, between)), *slope;
    tn_grad(&score, NULL, 1, &between, 1, &slope, TN_WITH(tn_grad, .create_graph = true));
    tn_tensor *length = tn_sqrt(tn_sum(tn_square(slope), TN_DIMS(1), false));
    return tn_mean_all(tn_square(tn_add_scalar(length, -1)));
}

/* A step of the critic; returns by how much its scores separate data from generated points. */
static double train_critic(tn_sequential *critic, tn_sequential *generator, tn_optim *opt) {
    TN_SCOPE;
    tn_tensor *data = draw_data(BATCH), *made = tn_detach(make_points(generator, BATCH));
    tn_tensor *apart =
        tn_sub(tn_mean_all(tn_call(critic, data)), tn_mean_all(tn_call(critic, made)));
    tn_tensor *penalty = tn_mul_scalar(gradient_penalty(critic, data, made), 1);
    tn_backward(tn_sub(penalty, apart));
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return tn_item(apart);
}

static void train_generator(tn_sequential *critic, tn_sequential *generator, tn_optim *opt) {
    TN_SCOPE;
    tn_module_requires_grad(critic, false); /* frozen */
    tn_backward(tn_neg(tn_mean_all(tn_call(critic, make_points(generator, BATCH)))));
    tn_module_requires_grad(critic, true);
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* How many of n points are in each cloud. */
static int count_clouds(const float (*points)[2], int n, int *in_a_cloud) {
    int found[CLOUDS] = {0}, clouds = 0;
    *in_a_cloud = 0;
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < CLOUDS; c++) {
            double angle = 2 * 3.14159265 * c / CLOUDS;
            bool in = hypot(points[i][0] - cos(angle), points[i][1] - sin(angle)) < 0.2;
            found[c] += in;
            *in_a_cloud += in;
        }
    }
    for (int c = 0; c < CLOUDS; c++) {
        clouds += found[c] > n / CLOUDS / 5;
    }
    return clouds;
}

/* Adds points of [-1.5, 1.5]^2 to an image. */
static void draw_points(float *picture, const float (*points)[2], int n) {
    for (int i = 0; i < n; i++) {
        int x = (int)((points[i][0] + 1.5) / 3 * SIDE), y = (int)((1.5 - points[i][1]) / 3 * SIDE);
        if (x >= 0 && x < SIDE && y >= 0 && y < SIDE) { picture[y * SIDE + x] += 0.25F; }
    }
}

static void show_points(tn_sequential *generator, const char *path) {
    enum { MANY = 4000 };
    static float points[2][MANY][2], pictures[2][1][SIDE][SIDE];
    TN_SCOPE;
    TN_NO_GRAD;
    tn_copy_out(draw_data(MANY), points[0]);
    tn_copy_out(make_points(generator, MANY), points[1]);
    for (int i = 0; i < 2; i++) {
        draw_points(&pictures[i][0][0][0], points[i], MANY);
    }
    int inside, clouds = count_clouds(points[1], MANY, &inside);
    printf("%d of %d clouds are found, %.0f %% of the points are in one\n", clouds, CLOUDS,
           100.0 * inside / MANY);
    tn_save_image(TN_FROM(pictures, TN_DIMS(2, 1, SIDE, SIDE), TN_F32), path, 2);
}

int main(void) {
    tn_on_error(tn_error_exit);
    tn_seed(19);
    tn_sequential *generator = network_new(NOISE, 2), *critic = network_new(2, 1);
    tn_adam_options o = TN_WITH(tn_adam, .lr = 1e-3, .beta1 = 0.5, .beta2 = 0.9);
    tn_optim *of_generator = tn_adam(generator, o), *of_critic = tn_adam(critic, o);
    for (int step = 0; step <= STEPS; step++) {
        double apart = 0;
        for (int i = 0; i < CRITIC_STEPS; i++) {
            apart = train_critic(critic, generator, of_critic);
        }
        train_generator(critic, generator, of_generator);
        if (step % 200 == 0) {
            printf("step %3d  the critic holds them %.3f apart\n", step, apart);
        }
    }
    show_points(generator, "gan.png");
    printf("gan.png: the data, and what the generator makes\n");
    tn_optim_free(of_generator);
    tn_optim_free(of_critic);
    tn_module_free(generator);
    tn_module_free(critic);
    return fflush(stdout) || ferror(stdout);
}
