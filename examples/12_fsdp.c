/* 12. A sharded model: no rank has all of it.
 *
 *     12_fsdp                        one rank, which has everything
 *     tern run -n 4 12_fsdp          four (or 2, or 8): a quarter of parameters, gradients and
 *                                    state each. Losses differ from one rank's only in the last
 *                                    digits, since a batch is summed in four parts; all stages
 *                                    print the same
 *     tern run -n 4 12_fsdp 1        stage 1 of ZeRO: only the state is sharded (2: gradients
 *                                    too; 3, the default: parameters too)
 *     tern run -n 4 12_fsdp 3 FILE   learns this text; without one (""), sums like "12+30=42"
 *     tern run -n 4 12_fsdp 3 FILE FOLDER
 *                                    saves there, and continues from there, even with another
 *                                    number of ranks or at another stage
 *
 * Lines that deal with ranks are marked with R; the rest is a single-process program.
 * docs/sharding.md explains them.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>

enum { CONTEXT = 32, BATCH = 8, STEPS = 30 };

/* Tokens of a text: the file's, or sums, the same on every rank. */
static tn_dataset *read_tokens(const char *path, int *different) {
    static char sums[1 << 16];
    size_t bytes = 0;
    tn_generator g = {.seed = 1};
    while (!path && bytes + 16 < sizeof(sums)) {
        int a = (int)tn_random_below(&g, 100), b = (int)tn_random_below(&g, 100);
        bytes += (size_t)snprintf(sums + bytes, 16, "%d+%d=%d\n", a, b, a + b);
    }
    char *text = path ? tn_text_read(path, &bytes) : sums;
    tn_charset *charset = tn_charset_from_text(text, bytes);
    *different = tn_charset_size(charset);
    int32_t *tokens = calloc(bytes, sizeof(*tokens));
    if (!tokens) { tn_raise(TN_ENOMEM, "no memory for %zu tokens", bytes); }
    tn_dataset *windows =
        tn_token_dataset(tokens, tn_charset_encode(charset, text, bytes, tokens), CONTEXT);
    free(tokens);
    tn_charset_free(charset);
    if (path) { tn_text_free(text); }
    return windows;
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults()); /* R: one rank if nothing is set */
    tn_gpt_options g = tn_gpt_defaults();
    g.layers = g.heads = 4;
    g.width = 96;
    g.context = CONTEXT;
    int different;
    tn_dataset *data = read_tokens(argc > 2 && *argv[2] ? argv[2] : NULL, &different);
    g.vocab = different;
    tn_seed(7);
    tn_gpt gpt;
    {
        TN_DEFER_INIT; /* R: tn_fsdp makes only this rank's part */
        tn_gpt_init(&gpt, g);
    }
    int stage = argc > 1 ? atoi(argv[1]) : 3;
    tn_fsdp_state *fsdp = /* R: before the optimiser is made; a block's parameters go together */
        tn_fsdp(&gpt, world, NULL, TN_WITH(tn_fsdp, .stage = stage, .units = "h.*"));
    tn_optim *opt = tn_adamw(&gpt, tn_adamw_defaults());
    tn_loader *loader =
        tn_loader_new(data, tn_distributed_sampler(world, tn_replacement_sampler(7), true), /* R */
                      TN_WITH(tn_loader, .batch = BATCH / tn_group_size(world), .epochs = 0));
    const char *folder = argc > 3 ? argv[3] : NULL;
    tn_saver *saver = folder ? tn_saver_new(world, folder, tn_saver_defaults()) : NULL; /* R */
    tn_checkpoint c = {.model = &gpt, .optim = opt, .loader = loader};
    if (saver) {
        bool found;
        tn_saver_load(saver, &c, &found);
    }
    tn_batch b;
    while (c.step < STEPS && tn_loader_next(loader, &b)) {
        TN_SCOPE;
        tn_tensor *loss = tn_lm_loss(&gpt, b.x, b.y);
        tn_backward(loss);
        tn_optim_clip(opt, 1.0); /* the norm of all ranks' parts */
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        double mean = tn_group_mean(world, tn_item(loss), 1); /* R */
        if (++c.step % 5 == 0 && tn_group_rank(world) == 0) { /* R */
            printf("step %2d  loss %.6f\n", (int)c.step, mean);
        }
        if (saver && c.step % 10 == 0) {
            tn_saver_save(saver, &c); /* R: each rank its part, while training continues */
        }
    }
    tn_fsdp_stats s = tn_fsdp_statistics(fsdp); /* R: gradients are as large, the state twice */
    printf("rank %d of %d keeps %.2f of %.2f MB of parameters; %.2f MB were whole at most\n",
           tn_group_rank(world), tn_group_size(world), (double)s.parts / 1e6,
           (double)tn_module_count(&gpt) * 4e-6, (double)s.most_whole / 1e6);
    tn_saver_free(saver); /* waits for what is being written */
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout);
}
