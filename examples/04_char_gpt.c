/* 4. A GPT that learns to write, one character at a time.
 *
 *     04_char_gpt --data shakespeare.txt                   trains, draws the loss, writes a sample
 *     04_char_gpt --data shakespeare.txt --resume          continues after Ctrl-C or a crash,
 *                                                          as if nothing had happened
 *     tern run -n 2 04_char_gpt --data shakespeare.txt     the same on two processes,
 *                                                          each with half of every batch
 *     04_char_gpt --help
 *
 * Shows: a text as tokens, a loader, a model with an optimiser and a schedule, a run that continues
 * bit for bit, curves, generating, and what changes on several ranks (every line with `world` in
 * it).
 *
 * The recipe is nanoGPT's for a laptop: 4 layers, 4 heads, 128 channels, context 64, batch 12,
 * AdamW at 1e-3 falling to 1e-4, 2000 steps. To build only this program: cc 04_char_gpt.c
 * $(pkg-config --cflags --libs tern)
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>

/* ---- Options --------------------------------------------------------------------------------- */

static struct {
    const char *data;
    int64_t layers, heads, width, context, batch, sample, seed;
    double lr;
} o = {.layers = 4,
       .heads = 4,
       .width = 128,
       .context = 64,
       .batch = 12,
       .sample = 500,
       .seed = 1337,
       .lr = 1e-3};
static tn_run_options run; /* --out, --steps, --resume, … */
static tn_setup setup;     /* --device, --precision, --threads, … */

static const tn_option table[] = {
    {.help = "Data and model:"},
    {"data", 'd', "FILE", "the text to learn, UTF-8; its last tenth is for validation",
     .text = &o.data, .needed = true},
    {"layers", 0, "N", "transformer blocks", .whole = &o.layers, .most = 10000},
    {"heads", 0, "N", "attention heads", .whole = &o.heads, .most = 10000},
    {"width", 0, "N", "channels", .whole = &o.width},
    {"context", 0, "N", "characters that a prediction sees", .whole = &o.context},
    {"batch", 0, "N", "sequences in a step, of all ranks together", .whole = &o.batch},
    {"lr", 0, "X", "highest learning rate", .real = &o.lr},
    {"seed", 0, "N", "of weights and batches", .whole = &o.seed, .zero = true},
    {"sample", 0, "N", "characters to write at the end", .whole = &o.sample, .zero = true},
    {.run = &run},
    {.setup = &setup},
    {0},
};

/* ---- Data and model -------------------------------------------------------------------------- */

/* Windows of tokens, drawn independently and endlessly. Each rank draws its share of every
 * batch. */
static tn_loader *open_loader(tn_group *data, const int32_t *tokens, int64_t n, int64_t seed) {
    tn_sampler order = tn_replacement_sampler((uint64_t)seed);
    return tn_loader_new(tn_token_dataset(tokens, n, o.context),
                         tn_distributed_sampler(data, order, false),
                         TN_WITH(tn_loader, .batch = o.batch / tn_group_size(data), .epochs = 0));
}

/* The text's tokens, `*count` of them. */
static int32_t *read_tokens(tn_charset **charset, int64_t *count) {
    size_t bytes;
    char *text = tn_text_read(o.data, &bytes);
    *charset = tn_charset_from_text(text, bytes);
    int32_t *tokens = malloc(bytes * sizeof(*tokens));
    if (!tokens) { tn_raise(TN_ENOMEM, "no memory for %zu tokens", bytes); }
    *count = tn_charset_encode(*charset, text, bytes, tokens);
    tn_text_free(text);
    return tokens;
}

static void init_model(tn_gpt *gpt, int64_t vocab) {
    tn_seed((uint64_t)o.seed);
    tn_gpt_init(gpt, TN_WITH(tn_gpt, .vocab = vocab, .context = o.context, .layers = (int)o.layers,
                             .heads = (int)o.heads, .width = o.width, .bias = false,
                             .activation = TN_ACT_GELU));
}

static tn_optim *make_optim(tn_gpt *gpt) {
    return tn_adamw(gpt, TN_WITH(tn_adamw, .lr = o.lr, .beta2 = 0.99, .weight_decay = 0.1,
                                 .no_decay = tn_match_vectors));
}

/* ---- Validation, and a sample ---------------------------------------------------------------- */

/* The mean loss over 50 batches, the same ones each time. */
static double validation_loss(tn_gpt *gpt, tn_loader *validation, tn_group *world) {
    enum { BATCHES = 50 };
    TN_NO_GRAD;
    tn_module_train(gpt, false);
    tn_loader_seek(validation, (tn_loader_place){0, 0});
    double sum = 0;
    tn_batch b;
    for (int i = 0; i < BATCHES && tn_loader_next(validation, &b); i++) {
        TN_SCOPE;
        sum += tn_item(tn_lm_loss(gpt, b.x, b.y));
    }
    tn_module_train(gpt, true);
    return tn_group_mean(world, sum, BATCHES);
}

static bool write_character(const tn_generated_token *token, void *charset) {
    fputs(tn_charset_text(charset, token->token), stdout);
    return true;
}

/* Continues from one character. */
static void write_sample(tn_gpt *gpt, tn_charset *charset, int32_t first) {
    tn_generated sample;
    printf("\n---- a sample ----\n");
    tn_generate(gpt, &(tn_prompt){&first, 1}, 1,
                TN_WITH(tn_generate, .max_new = o.sample, .temperature = 0.8,
                        .seed = (uint64_t)o.seed, .on_token = write_character, .user = charset),
                &sample);
    printf("\n------------------\n");
    tn_generated_free(&sample, 1);
}

/* ---- Training -------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit); /* a script's choice: the first error is printed and ends it */
    setup = tn_setup_defaults();
    run = tn_run_defaults();
    run.out = "char_gpt";
    run.steps = 2000;
    run.save_every = 250;
    tn_options_parse(argc, argv, "Trains a small GPT on the characters of a text.", table);
    tn_group *world = tn_setup_world(&setup); /* all ranks; one, when started alone */
    if (setup.precision == TN_SETUP_F16) {
        tn_raise(TN_EUNSUPPORTED, "--precision f16 needs a scaler, as 11_gpt2 has one");
    }

    tn_charset *charset;
    int64_t count;
    int32_t *tokens = read_tokens(&charset, &count);
    int64_t split = count / 10 * 9;
    int32_t first = tokens[split];
    static tn_gpt gpt;
    init_model(&gpt, tn_charset_size(charset));
    tn_setup_model(&setup, world, &gpt);    /* gradients become those of all ranks */
    tn_group *data = tn_setup_data(&setup); /* ranks with different batches: all, without --mesh */
    tn_micro_batches(data, o.batch, 1);     /* or --batch does not divide among them */
    tn_loader *training = open_loader(data, tokens, split, o.seed);
    tn_loader *validation = open_loader(data, tokens + split, count - split, o.seed + 1);
    free(tokens);
    tn_optim *optim = make_optim(&gpt);
    int64_t steps = tn_run_steps(&run, training, 1);
    tn_schedule schedule =
        tn_schedule_cosine(o.lr, o.lr / 10, steps < 1000 ? steps / 10 : 100, steps);

    tn_checkpoint parts = {.model = &gpt,
                           .optim = optim,
                           .schedule = &schedule,
                           .loader = training,
                           .generator = tn_default_generator()};
    tn_run *r = tn_run_new(world, run, parts);
    tn_batch b;
    while (tn_run_next(r) && tn_loader_next(training, &b)) {
        TN_SCOPE; /* what the step makes ends with it */
        tn_tensor *loss = tn_lm_loss(&gpt, b.x, b.y);
        tn_backward(loss);
        tn_optim_set_lr(optim, tn_schedule_at(schedule, tn_run_step(r)));
        tn_tensor *norm = tn_optim_clip_later(optim, 1.0); /* read below, after the step */
        tn_optim_step(optim);
        tn_optim_zero_grad(optim);

        tn_run_log(r, "loss", tn_group_mean(world, tn_item(loss) * tn_count(b.x), tn_count(b.x)));
        tn_run_log(r, "lr", tn_optim_lr(optim));
        tn_run_log(r, "grad_norm", tn_item(norm));
        tn_run_count(r, tn_count(b.x) * tn_group_size(data));
        if (tn_run_validates(r)) {
            tn_run_log(r, "val_loss", validation_loss(&gpt, validation, world));
        }
    }
    if (tn_run_done(r) && setup.shard == 0 && !setup.mesh && tn_group_rank(world) == 0) {
        tn_run_draw(r, stdout);
        write_sample(&gpt, charset, first);
    }
    int status = tn_run_end(r);

    tn_optim_free(optim);
    tn_module_finish(&gpt);
    tn_setup_finish(&setup);
    tn_loader_free(training);
    tn_loader_free(validation);
    tn_charset_free(charset);
    tn_dist_finish();
    return status;
}
