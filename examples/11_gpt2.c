/* 11. GPT-2, from 124M to 1.5B parameters, or a Llama, on one device or many.
 *
 *     11_gpt2 --data 'fineweb/train_*.bin' --val 'fineweb/val_*.bin' --device cuda --precision bf16
 *     tern run -n 8 11_gpt2 --model gpt2-xl --data 'fineweb/train_*.bin' --precision bf16
 *     tern run -n 8 11_gpt2 --model gpt2-xl --data 'fineweb/train_*.bin' --shard all
 *     tern run -n 8 11_gpt2 --data 'fineweb/train_*.bin' --mesh pp=2,tp=2,shard=2
 *     11_gpt2 --data tokens.bin --resume      continues, bit for bit
 *     11_gpt2 --data tokens.bin --init gpt2   starts from Hugging Face's GPT-2, or another model
 *
 * It is also the command `tern train`, for those who have installed Tern.
 *
 * A step takes --tokens tokens: every rank accumulates the gradients of micro-batches of --batch
 * sequences; they are sent only after the last. Each rank has the whole model, or with --shard a
 * part of it (docs/sharding.md), which it saves. Data are shards of tokens (`tern tokens`). MFU is
 * the fraction of a GPU's peak, if known, that the model's mathematics uses.
 *
 * The recipe is GPT-3's for this size (Brown et al. 2020, arXiv:2005.14165): AdamW with betas 0.9
 * and 0.95, weight decay 0.1 on matrices, gradients clipped to norm 1, a cosine to a tenth.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdlib.h>

/* ---- Options --------------------------------------------------------------------------------- */

static const char *const names[] = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl",
                                    "mini", "tiny",        NULL};
static const struct {
    int layers, heads, width;
} sizes[] = {{12, 12, 768},  {24, 16, 1024}, {36, 20, 1280},
             {48, 25, 1600}, {4, 4, 256},    {2, 2, 64}};

static struct {
    const char *data, *val, *init, *config;
    int model; /* of `names` and `sizes`; below 0: not given */
    int64_t batch, context, tokens, val_batches, warmup, vocab, seed;
    double lr, weight_decay, dropout;
} o = {
    .model = -1,
    .batch = 4,
    .val_batches = 20,
    .warmup = 100,
    .seed = 1337,
    .lr = 6e-4,
    .weight_decay = 0.1,
};
static tn_run_options run; /* --out, --steps, --resume, … */
static tn_setup setup;     /* --device, --precision, --shard, … */

static const tn_option table[] = {
    {.help = "Data and model:"},
    {"data", 'd', "PATTERN", "token shards: 'train_*.bin'", .text = &o.data, .needed = true},
    {"val", 'v', "PATTERN", "token shards to measure the loss on", .text = &o.val},
    {"init", 0, "DIR", "begin with a Hugging Face folder: its family and size too",
     .text = &o.init},
    {"config", 0, "DIR", "a new model of this folder's config.json, such as a Llama",
     .text = &o.config},
    {"model", 'm', "NAME", "a new GPT-2 of this size; else gpt2", .choice = &o.model,
     .choices = names},
    {"context", 0, "N", "tokens of a sequence; else the model's, 1024", .whole = &o.context},
    {"vocab", 0, "N", "rows of the vocabulary; else as the data need, or --init's",
     .whole = &o.vocab},
    {"dropout", 0, "X", "share of activations left out, of a GPT-2", .real = &o.dropout,
     .zero = true},
    {"seed", 0, "N", "of weights and batches", .whole = &o.seed, .zero = true},
    {.help = "The recipe:"},
    {"batch", 0, "N", "sequences of a micro-batch of one rank", .whole = &o.batch},
    {"tokens", 0, "N", "of a step of all ranks; else one micro-batch each", .whole = &o.tokens},
    {"lr", 0, "X", "highest learning rate", .real = &o.lr},
    {"warmup", 0, "N", "steps until the highest is reached", .whole = &o.warmup, .zero = true},
    {"weight-decay", 0, "X", "of matrices", .real = &o.weight_decay, .zero = true},
    {"val-batches", 0, "N", "micro-batches of a validation on each rank", .whole = &o.val_batches},
    {.run = &run},
    {.setup = &setup},
    {0},
};

/* Each rank draws its share of every batch. */
static tn_loader *open_data(tn_group *data, const char *pattern, int64_t seed) {
    return tn_loader_new(tn_token_shards(pattern, o.context, o.vocab),
                         tn_distributed_sampler(data, tn_random_sampler((uint64_t)seed), true),
                         TN_WITH(tn_loader, .batch = o.batch, .epochs = 0, /* endless */
                                 .drop_last = true, .threads = 1));
}

/* The model of --init or --config, or a GPT-2; to be freed with tn_module_free. */
static tn_module *make_model(void) {
    tn_seed((uint64_t)o.seed);
    TN_DEFER_INIT; /* tn_setup_model makes the weights: perhaps only a part fits here */
    if (o.init || o.config) { return tn_lm_new(o.init ? o.init : o.config, o.dropout); }
    tn_gpt_options g = tn_gpt_defaults();
    int64_t needed = tn_token_shards_vocab(o.data); /* products of multiples of 128 are faster */
    g.vocab = o.vocab ? o.vocab : needed ? (needed + 127) / 128 * 128 : 50304;
    g.context = o.context ? o.context : g.context;
    int size = o.model < 0 ? 0 : o.model;
    g.layers = sizes[size].layers;
    g.heads = sizes[size].heads;
    g.width = sizes[size].width;
    g.dropout = o.dropout;
    return &tn_gpt_new(g)->base;
}

static tn_optim *make_optim(tn_module *net) {
    return tn_adamw(net, TN_WITH(tn_adamw, .lr = o.lr, .beta2 = 0.95,
                                 .weight_decay = o.weight_decay, .no_decay = tn_match_vectors));
}

/* The mean loss over some batches, the same ones each time. */
static double validation_loss(tn_loader *validation, tn_group *world) {
    tn_loader_seek(validation, (tn_loader_place){0, 0});
    return tn_group_mean(world, tn_spread_loss(setup.spread, validation, o.val_batches), 1);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit); /* a script's choice: the first error is printed and ends it */
    setup = tn_setup_defaults();
    run = tn_run_defaults();
    tn_options_parse(argc, argv, "Trains GPT-2, or a model of --init, on shards of tokens.", table);
    if (!!o.init + !!o.config + (o.model >= 0) > 1) {
        tn_options_refuse("one of --init, --config and --model says what the model is");
    }
    if (!o.val && (run.patience || run.keep_best)) {
        tn_options_refuse("--patience and --keep-best look at the loss on --val");
    }
    if (o.vocab && (o.init || o.config)) {
        tn_options_refuse("--vocab: the model of %s has its own", o.init ? "--init" : "--config");
    }
    tn_group *world = tn_setup_world(&setup);
    tn_module *net = make_model();
    tn_lm_shape shape;
    tn_lm_shape_of(net, &shape);
    o.vocab = shape.vocab;
    if (o.context > shape.context) {
        tn_options_refuse("--context %lld: the model sees %lld tokens at once",
                          (long long)o.context, (long long)shape.context);
    }
    o.context = o.context ? o.context : shape.context;
    tn_setup_model(&setup, world, net);
    tn_group *data = tn_setup_data(&setup); /* ranks with different batches */
    int64_t at_once = o.batch * o.context, n = tn_micro_batches(data, o.tokens, at_once);
    tn_loader *training = open_data(data, o.data, o.seed);
    tn_loader *validation = o.val ? open_data(data, o.val, o.seed + 1) : NULL;
    tn_optim *optim = make_optim(net);
    int64_t steps = tn_run_steps(&run, training, n);
    int64_t warmup = o.warmup < steps ? o.warmup : steps / 10;
    tn_schedule schedule = tn_schedule_cosine(o.lr, o.lr / 10, warmup, steps);
    tn_scaler *scaler = tn_setup_scaler(&setup); /* f16: keeps small gradients from vanishing */
    tn_checkpoint parts = {.model = net,
                           .optim = optim,
                           .schedule = &schedule,
                           .scaler = setup.precision == TN_SETUP_F16 ? scaler : NULL,
                           .loader = training,
                           .generator = tn_default_generator()};
    tn_run *r = tn_run_new(world, run, parts);
    if (o.init && tn_run_step(r) == 0) { tn_lm_load_weights(net, o.init); }
    tn_run_utilisation(r, tn_lm_flops(net), tn_setup_flops(&setup, world));
    while (tn_run_next(r)) {
        double loss = tn_spread_step(setup.spread, training, n, scaler);
        double lr = tn_schedule_at(schedule, tn_run_step(r));
        tn_optim_set_lr(optim, lr);
        double norm = tn_scaler_clip(scaler, optim, 1.0);
        tn_scaler_step(scaler, optim);
        tn_scaler_update(scaler);
        tn_optim_zero_grad(optim);

        tn_run_log(r, "loss", tn_group_mean(world, loss, 1));
        tn_run_log(r, "lr", lr);
        tn_run_log(r, "grad_norm", norm);
        tn_run_count(r, n * at_once * tn_group_size(data));
        if (validation && tn_run_validates(r)) {
            double val_loss = validation_loss(validation, world);
            tn_run_log(r, "val_loss", val_loss);
            tn_run_log(r, "perplexity", exp(val_loss));
        }
    }
    tn_run_export(r, o.init); /* for tern eval and generate, and for transformers */
    int status = tn_run_end(r);
    tn_scaler_free(scaler);
    tn_optim_free(optim);
    tn_module_free(net);
    tn_setup_finish(&setup);
    tn_loader_free(training);
    tn_loader_free(validation);
    tn_dist_finish();
    return status;
}
