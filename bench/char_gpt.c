/* Training steps of the character GPT: char_gpt TEXT [FOLDER STEPS], driven through bench_serve.
 * The initial weights and the batches of STEPS steps are written to FOLDER.
 *
 * The recipe: 4 layers, 4 heads, 128 channels, context 64, batch 12, no biases; AdamW with betas
 * 0.9 and 0.99, decay 0.1 on matrices, gradients clipped at 1.
 * peers/torch_char_gpt.py is the same in PyTorch.
 */
#include "bench/bench.h"

typedef struct trainer {
    tn_gpt gpt;
    tn_optim *opt;
    tn_loader *loader;
} trainer;

static double train_step(void *user) {
    trainer *t = user;
    tn_batch b;
    if (!tn_loader_next(t->loader, &b)) { return 0.0; }
    TN_SCOPE;
    tn_tensor *loss = tn_lm_loss(&t->gpt, b.x, b.y);
    tn_backward(loss);
    tn_optim_clip(t->opt, 1.0);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

enum { BATCH = 12, CONTEXT = 64 };

/* A loader over the text: every such loader gives the same batches. */
static tn_loader *open_text(const char *path, int *vocab) {
    size_t bytes;
    char *text = tn_text_read(path, &bytes);
    tn_charset *charset = tn_charset_from_text(text, bytes);
    int32_t *tokens = malloc(bytes * sizeof(*tokens));
    int64_t n = tokens ? tn_charset_encode(charset, text, bytes, tokens) : 0;
    tn_loader_options o = tn_loader_defaults();
    o.batch = BATCH;
    o.epochs = 0;
    tn_loader *loader =
        tn_loader_new(tn_token_dataset(tokens, n, CONTEXT), tn_replacement_sampler(1337), o);
    *vocab = tn_charset_size(charset);
    free(tokens);
    tn_charset_free(charset);
    tn_text_free(text);
    return loader;
}

static void share_start(trainer *t, const char *text, const char *folder, int steps) {
    TN_SCOPE;
    int vocab;
    tn_loader *loader = open_text(text, &vocab);
    tn_tensor *x = tn_empty(TN_DIMS(steps, BATCH, CONTEXT), TN_I64), *y = tn_empty_like(x);
    tn_batch b;
    for (int i = 0; i < steps && tn_loader_next(loader, &b); i++) {
        tn_copy_(tn_select(x, 0, i), b.x);
        tn_copy_(tn_select(y, 0, i), b.y);
    }
    bench_share(&t->gpt, folder, x, y);
    tn_loader_free(loader);
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: char_gpt TEXT [FOLDER STEPS]   (run bench/char_gpt.py)\n");
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_seed(1337);
    static trainer t;
    int vocab;
    t.loader = open_text(argv[1], &vocab);
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = vocab;
    o.context = CONTEXT;
    o.layers = 4;
    o.heads = 4;
    o.width = 128;
    o.bias = false;
    o.activation = TN_ACT_GELU;
    tn_gpt_init(&t.gpt, o);
    tn_adamw_options a = tn_adamw_defaults();
    a.beta2 = 0.99;
    a.weight_decay = 0.1;
    a.no_decay = tn_match_vectors;
    t.opt = tn_adamw(&t.gpt, a);
    if (argc == 4) { share_start(&t, argv[1], argv[2], atoi(argv[3])); }
    int status = bench_serve(train_step, &t);
    tn_optim_free(t.opt);
    tn_loader_free(t.loader);
    tn_module_finish(&t.gpt);
    return status;
}
