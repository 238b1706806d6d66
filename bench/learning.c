/* Learning, compared with PyTorch: learning TEXT TOKENIZER FOLDER STEPS, then learning --draw
 * FOLDER STEPS PICTURE NAME.
 *
 * A small GPT-2 with the real vocabulary: 4 layers, 4 heads, width 128, context 64, batch 8. The
 * recipe is 11_gpt2's: AdamW with betas 0.9 and 0.95, decay 0.1 on matrices, gradients clipped to
 * norm 1, 6e-4 after 100 steps of warm-up, then a cosine to a tenth. (With 1e-3 after 20 steps
 * rounding alone makes a difference of 1e-2 by step 100, even between two runs of Tern.) The
 * initial weights and the batches go to the folder, where peers/torch_learning.py reads them; both
 * programs write their losses there. With the tokenizer "-" each byte is a token: its value times
 * 193, so the ids span the vocabulary.
 */
#include "bench/bench.h"

#include <math.h>

enum { VOCAB = 50257, CONTEXT = 64, BATCH = 8, WARM_UP = 100 };

/* ---- Data ------------------------------------------------------------------------------------ */

static tn_dataset *windows_of_bytes(const char *text, size_t bytes) {
    int32_t *tokens = calloc(bytes, sizeof(*tokens));
    for (size_t i = 0; tokens && i < bytes; i++) {
        tokens[i] = (unsigned char)text[i] * 193;
    }
    tn_dataset *windows = tokens ? tn_token_dataset(tokens, (int64_t)bytes, CONTEXT) : NULL;
    free(tokens);
    return windows;
}

static tn_dataset *read_windows(const char *path, const char *tokenizer) {
    size_t bytes;
    char *text = tn_text_read(path, &bytes);
    tn_dataset *windows;
    if (strcmp(tokenizer, "-") == 0) {
        windows = windows_of_bytes(text, bytes);
    } else {
        tn_tokenizer *t = tn_tokenizer_load(tokenizer);
        tn_ids ids = {0};
        tn_tokenizer_encode(t, text, bytes, false, &ids);
        windows = tn_token_dataset(ids.ids, ids.count, CONTEXT);
        tn_ids_free(&ids);
        tn_tokenizer_free(t);
    }
    tn_text_free(text);
    return windows;
}

static tn_loader *open_windows(const char *path, const char *tokenizer) {
    tn_loader_options o = tn_loader_defaults();
    o.batch = BATCH;
    o.epochs = 0;
    return tn_loader_new(read_windows(path, tokenizer), tn_replacement_sampler(1337), o);
}

/* Writes the weights and all batches, then rewinds the loader. */
static void share_start(tn_gpt *gpt, tn_loader *loader, const char *folder, int64_t steps) {
    TN_SCOPE;
    tn_tensor *x = tn_empty(TN_DIMS(steps, BATCH, CONTEXT), TN_I64), *y = tn_empty_like(x);
    tn_batch b;
    for (int64_t i = 0; i < steps && tn_loader_next(loader, &b); i++) {
        tn_copy_(tn_select(x, 0, i), b.x);
        tn_copy_(tn_select(y, 0, i), b.y);
    }
    bench_share(gpt, folder, x, y);
    tn_loader_seek(loader, (tn_loader_place){0, 0});
}

/* ---- Training -------------------------------------------------------------------------------- */

static void init_model(tn_gpt *gpt) {
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = VOCAB;
    o.context = CONTEXT;
    o.layers = 4;
    o.heads = 4;
    o.width = 128;
    tn_seed(1337);
    tn_gpt_init(gpt, o);
}

static tn_optim *make_optim(tn_gpt *gpt) {
    tn_adamw_options a = tn_adamw_defaults();
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.no_decay = tn_match_vectors;
    return tn_adamw(gpt, a);
}

/* FOLDER/NAME.csv */
static tn_history *open_losses(const char *folder, const char *name, int64_t start) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.csv", folder, name);
    return tn_history_open(path, start);
}

static int learn_text(char **arguments) {
    const char *folder = arguments[2];
    int64_t steps = atoi(arguments[3]);
    tn_loader *loader = open_windows(arguments[0], arguments[1]);
    static tn_gpt gpt;
    init_model(&gpt);
    share_start(&gpt, loader, folder, steps);
    tn_optim *optim = make_optim(&gpt);
    int64_t all =
        steps > WARM_UP ? steps : WARM_UP; /* a short run is the beginning of the warm-up */
    tn_schedule schedule = tn_schedule_cosine(6e-4, 6e-5, WARM_UP, all);
    tn_history *losses = open_losses(folder, "tern", 0);
    tn_batch b;
    for (int64_t step = 0; step < steps && tn_loader_next(loader, &b); step++) {
        TN_SCOPE;
        tn_tensor *loss = tn_lm_loss(&gpt, b.x, b.y);
        tn_backward(loss);
        tn_optim_set_lr(optim, tn_schedule_at(schedule, step));
        tn_optim_clip(optim, 1.0);
        tn_optim_step(optim);
        tn_optim_zero_grad(optim);
        tn_history_put(losses, "lr", tn_schedule_at(schedule, step));
        tn_history_add(losses, tn_item(loss));
    }
    tn_history_free(losses);
    tn_optim_free(optim);
    tn_loader_free(loader);
    tn_module_finish(&gpt);
    return 0;
}

/* ---- The picture ----------------------------------------------------------------------------- */

enum { DASH = 8 }; /* steps */

/* The curve as dashes, in y: a curve under it shows through the gaps. */
static tn_curve dashed_curve(tn_curve curve, double *y) {
    for (int64_t i = 0; i < curve.count; i++) {
        y[i] = i / DASH % 2 ? NAN : curve.y[i];
    }
    curve.y = y;
    return curve;
}

static int draw_losses(char **arguments) {
    int64_t steps = atoi(arguments[1]);
    tn_history *ours = open_losses(arguments[0], "tern", steps);
    tn_history *theirs = open_losses(arguments[0], "torch", steps);
    double *y = malloc((size_t)steps * sizeof(*y) + 1);
    if (!y) { return 1; }
    tn_curve curves[] = {tn_history_curve(theirs, arguments[3]),
                         dashed_curve(tn_history_curve(ours, "Tern (dashes)"), y)};
    tn_plot plot = {.title = "Losses from the same weights and batches",
                    .x_label = "step",
                    .y_label = "nats per token",
                    .curves = curves,
                    .count = 2};
    tn_status status = tn_plot_svg(&plot, arguments[2]);
    free(y);
    tn_history_free(ours);
    tn_history_free(theirs);
    return status != TN_OK;
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc == 6 && strcmp(argv[1], "--draw") == 0) { return draw_losses(argv + 2); }
    if (argc != 5) {
        fprintf(stderr, "usage: learning TEXT TOKENIZER FOLDER STEPS   (run bench/learning.py)\n");
        return 2;
    }
    return learn_text(argv + 1);
}
