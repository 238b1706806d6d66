/* One model split over ranks: layers (pp), matrices (tp), positions (cp), what is stored (shard),
 * whole copies (dp).
 *
 *     23_splitting                                          one process
 *     tern run -n 4 23_splitting --mesh tp=2,shard=2        two parts of every matrix, each in two
 *     tern run -n 8 23_splitting --mesh pp=2,tp=2,cp=2
 *
 * A small GPT learns to add: "17+25=42". Lines with an R know about ranks. Whatever the mesh, the
 * losses are those of one process, up to rounding; docs/splitting.md says what each dimension does.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <string.h>

enum { LENGTH = 8, BATCH = 64, MICROS = 2, STEPS = 400 };
static const char letters[] = "0123456789+=";

static const char *mesh = "dp=all";
static const tn_option table[] = {
    {"mesh", 'm', "DIMS", "pp=N,dp=N,shard=N,cp=N,tp=N,sequence; all: what is left", .text = &mesh},
    {0},
};

/* ---- The data -------------------------------------------------------------------------------- */

/* "ab+cd=ef" or, with a sum above 99, its last two digits: x are the first LENGTH letters, y those
 * that follow each, of which only the answer counts. */
static tn_status get_sum(tn_dataset *self, tn_example e, void *x, void *y) {
    (void)self;
    int a = (int)(e.index / 100 % 100), b = (int)(e.index % 100);
    char text[32];
    snprintf(text, sizeof(text), "%02d+%02d=%02d0", a, b, (a + b) % 100);
    for (int i = 0; i < LENGTH; i++) {
        ((int64_t *)x)[i] = strchr(letters, text[i]) - letters;
        ((int64_t *)y)[i] =
            i < 5 || i == LENGTH - 1 ? -100 : strchr(letters, text[i + 1]) - letters;
    }
    return TN_OK;
}

static tn_dataset sums = {.kind = "sums",
                          .size = 10000,
                          .x_dims = {1, {LENGTH}},
                          .y_dims = {1, {LENGTH}},
                          .x_dtype = TN_I64,
                          .y_dtype = TN_I64,
                          .get = get_sum};

/* ---- Training -------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv, "Trains a GPT that adds, cut over ranks.", table);
    tn_group *world = tn_dist_init(tn_dist_defaults()); /* R: one rank when nothing is set */
    tn_seed(7);
    tn_gpt gpt;
    {
        TN_DEFER_INIT; /* R: each rank makes only its part */
        tn_gpt_init(&gpt, TN_WITH(tn_gpt, .vocab = sizeof(letters) - 1, .context = LENGTH,
                                  .layers = 2, .heads = 4, .width = 64));
    }
    tn_spread_options o = tn_spread_defaults();        /* R */
    tn_spread_read(&o, mesh);                          /* R */
    tn_spread *spread = tn_spread_new(&gpt, world, o); /* R: before the optimiser is made */
    tn_group *data = tn_spread_data(spread);           /* R: ranks with different batches */
    if (tn_group_rank(world) == 0) { tn_spread_print(spread, stdout); /* R: which rank has what */ }
    tn_optim *opt = tn_adamw(&gpt, TN_WITH(tn_adamw, .lr = 2e-3));
    tn_loader *loader = tn_loader_new(
        &sums, tn_distributed_sampler(data, tn_random_sampler(7), true), /* R: its share */
        TN_WITH(tn_loader, .batch = BATCH / MICROS / tn_group_size(data), .epochs = 0,
                .drop_last = true));
    for (int step = 0; step < STEPS; step++) {
        double loss = tn_spread_step(spread, loader, MICROS, NULL); /* R: forward and backward */
        tn_optim_clip(opt, 1.0);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 50 == 0 || step == STEPS - 1) {
            double mean = tn_group_mean(world, loss, 1); /* R: every rank calls it */
            if (tn_group_rank(world) == 0) { printf("step %3d  loss %.4f\n", step, mean); }
        }
    }
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
    tn_spread_free(spread); /* R */
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout);
}
