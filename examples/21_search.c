/* Which learning rate, width and optimiser? A search finds out.
 *
 * A net learns a wave from noisy points, with randomly drawn settings. Two processes train at a
 * time; after 40 steps the best third continues to 120, and of these the best third to 360. So most
 * of the time is spent on promising settings (successive halving). Press Ctrl-C, or kill it, and
 * start it again: it continues. At the end it prints the table and draws the best net's wave. On
 * three hosts, started on each of them in a folder that they share, it is one search, which
 * survives the loss of a host:
 *
 *     tern run --nnodes 2:3 --rdzv-endpoint HOST:29400 ./21_search
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- One trial ------------------------------------------------------------------------------- */

typedef struct settings {
    double lr;
    int64_t width;
    const char *optimiser;
} settings;

typedef struct net {
    tn_module base;
    tn_linear in, hidden, out;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_call(&n->out, tn_tanh(tn_call(&n->hidden, tn_tanh(tn_call(&n->in, x)))));
}

static void net_init(net *n, int64_t width) {
    tn_seed(1);
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->in, 1, width, tn_linear_defaults());
    tn_linear_init(&n->hidden, width, width, tn_linear_defaults());
    tn_linear_init(&n->out, width, 1, tn_linear_defaults());
    tn_module_add(n, "in", &n->in);
    tn_module_add(n, "hidden", &n->hidden);
    tn_module_add(n, "out", &n->out);
}

static tn_optim *make_optim(net *n, const settings *s) {
    if (strcmp(s->optimiser, "sgd") == 0) {
        return tn_sgd(n, TN_WITH(tn_sgd, .lr = s->lr, .momentum = 0.9));
    }
    if (strcmp(s->optimiser, "lion") == 0) { return tn_lion(n, TN_WITH(tn_lion, .lr = s->lr)); }
    return tn_adamw(n, TN_WITH(tn_adamw, .lr = s->lr));
}

/* Points of the wave: x in [-2, 2), (n, 1), and noisy *y. */
static tn_tensor *make_points(uint64_t seed, tn_tensor **y) {
    enum { POINTS = 128 };
    tn_generator g = {.seed = seed};
    tn_tensor *x = tn_uniform_(tn_zeros(TN_DIMS(POINTS, 1), TN_F32), -2, 2, &g);
    tn_tensor *noise = tn_normal_(tn_zeros(TN_DIMS(POINTS, 1), TN_F32), 0, 0.1, &g);
    *y = tn_add(tn_sin(tn_mul_scalar(tn_square(x), 3)), noise);
    return x;
}

static double loss_on(net *n, uint64_t seed) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *y, *x = make_points(seed, &y);
    return tn_item(tn_mse(tn_call(n, x), y, TN_MEAN));
}

/* Trains up to `steps` in total, from the folder's checkpoint; returns the loss on other points. */
static double train_net(net *n, const settings *s, int64_t steps, const char *folder) {
    net_init(n, s->width);
    tn_optim *optim = make_optim(n, s);
    tn_run_options options = tn_run_defaults();
    options.out = folder;
    options.steps = options.save_every = steps;
    options.resume = true;
    tn_run *run = tn_run_new(NULL, options, (tn_checkpoint){.model = n, .optim = optim});
    while (tn_run_next(run)) {
        TN_SCOPE;
        tn_tensor *y, *x = make_points(1000 + (uint64_t)tn_run_step(run), &y);
        tn_tensor *loss = tn_mse(tn_call(n, x), y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(optim);
        tn_optim_zero_grad(optim);
        tn_run_log(run, "loss", tn_item(loss));
    }
    tn_run_end(run);
    tn_optim_free(optim);
    return loss_on(n, 7);
}

/* ---- The search ------------------------------------------------------------------------------ */

/* What the best net has learned, '+', and the wave, '.'. */
static void draw_wave(net *n) {
    enum { COLUMNS = 100 };
    double x[COLUMNS], wave[COLUMNS], learned[COLUMNS];
    TN_NO_GRAD;
    for (int i = 0; i < COLUMNS; i++) {
        TN_SCOPE;
        x[i] = -2 + 4.0 * i / COLUMNS;
        wave[i] = sin(3 * x[i] * x[i]);
        learned[i] = tn_item(tn_call(n, tn_full(TN_DIMS(1, 1), x[i], TN_F32)));
    }
    tn_curve curves[] = {{.name = "wave", .x = x, .y = wave, .count = COLUMNS},
                         {.name = "learned", .x = x, .y = learned, .count = COLUMNS}};
    tn_plot_text(&(tn_plot){.title = "The best", .curves = curves, .count = 2}, stdout, 80, 16);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_search_options o = tn_search_defaults();
    o.out = "wave-search";
    o.trials = 18;
    o.steps = 360;
    o.first_steps = 40;
    o.processes = 2;
    const tn_option table[] = {{"out", 'o', "DIR", "folder of the search", .text = &o.out},
                               {"trials", 0, "N", "settings to try", .whole = &o.trials},
                               {"processes", 0, "N", "at once; 0: one after the other here",
                                .whole = &o.processes, .zero = true},
                               {0}};
    tn_options_parse(argc, argv, "Searches for settings that learn a wave.", table);

    settings s;
    net n;
    tn_search *search = tn_search_new(o);
    tn_search_log_real(search, "lr", &s.lr, 1e-4, 1);
    tn_search_choose_whole(search, "width", &s.width, (int64_t[]){8, 16, 32, 64}, 4);
    tn_search_choose_text(search, "optimiser", &s.optimiser,
                          (const char *[]){"sgd", "adamw", "lion"}, 3);
    while (tn_search_next(search)) {
        tn_search_report(search,
                         train_net(&n, &s, tn_search_steps(search), tn_search_folder(search)));
        tn_module_finish(&n);
    }
    if (tn_search_best(search)) {
        train_net(&n, &s, o.steps, tn_search_folder(search)); /* loads the trained weights */
        draw_wave(&n);
        tn_module_finish(&n);
    }
    return tn_search_end(search);
}
