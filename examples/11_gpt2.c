/* 11. GPT-2, from 124M to 1.5B parameters, on one device or many.
 *
 *     11_gpt2 --data 'fineweb/train_*.bin' --val 'fineweb/val_*.bin' --device cuda --precision bf16
 *     tern run -n 8 11_gpt2 --model gpt2-xl --data 'fineweb/train_*.bin' --precision bf16
 *     tern run -n 8 11_gpt2 --model gpt2-xl --data 'fineweb/train_*.bin' --shard all
 *     11_gpt2 --data tokens.bin --resume      goes on from the checkpoint, bit for bit
 *
 * A step takes --tokens tokens: every rank computes micro-batches of --batch sequences and adds
 * their gradients up until together they have seen that many; only the last one's gradients travel.
 * Each rank has all of the model, or with --shard a part of it (docs/sharding.md), which it saves.
 * The data are shards of 16-bit tokens as llm.c and nanoGPT write them. The progress line shows
 * tokens a second and, on a GPU whose peak is known or given, how much of it the model's
 * mathematics uses (MFU).
 *
 * The recipe is GPT-3's for this size (Brown et al. 2020, arXiv:2005.14165): AdamW with betas 0.9
 * and 0.95, weight decay 0.1 on matrices, gradients clipped to norm 1, a cosine to a tenth. The
 * parts, in the order of the file: options, the run's objects, saving and going on,
 * the training loop, validation.
 */
#include <tern/tern.h>

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

/* ---- Models and devices ---------------------------------------------------------------------- */

static const struct {
    const char *name;
    int layers, heads;
    int64_t width;
} models[] = {
    {"gpt2", 12, 12, 768},         /* 124M */
    {"gpt2-medium", 24, 16, 1024}, /* 350M */
    {"gpt2-large", 36, 20, 1280},  /* 774M */
    {"gpt2-xl", 48, 25, 1600},     /* 1.5B */
    {"tiny", 2, 2, 64},            /* to try things out */
};
enum { MODELS = sizeof(models) / sizeof(models[0]) };

/* Dense bf16 operations a second, from the makers' data sheets. */
static const struct {
    const char *part; /* of the device's name */
    double flops;
} peaks[] = {
    {"H200", 989e12}, {"H100", 989e12}, {"B200", 2250e12}, {"A100", 312e12}, {"L40S", 362e12}};
enum { PEAKS = sizeof(peaks) / sizeof(peaks[0]) };

/* ---- Options --------------------------------------------------------------------------------- */

enum { ALL_RANKS = -1 };

typedef struct options {
    const char *data, *val, *out, *device, *precision;
    int model;
    int64_t steps, batch, context, tokens, warmup, val_every, val_batches, save_every, seed, vocab;
    double lr, peak;
    int64_t shard; /* ranks that have the model together; 0: each has all of it */
    int64_t stage; /* of ZeRO; 0 without shard */
    bool resume, resume_anyway, overwrite, recompute, offload;
} options;

static const options defaults = {
    .out = "gpt2",
    .device = "cpu",
    .precision = "f32",
    .steps = 1000,
    .batch = 4,
    .context = 1024,
    .warmup = 100,
    .val_every = 250,
    .val_batches = 20,
    .save_every = 1000,
    .seed = 1337,
    .vocab = 50304, /* 50257, filled up to a multiple of 128: products are faster */
    .lr = 6e-4,
};

/* Whole numbers first, in the order of `numbers` below. */
enum {
    STEPS = 256,
    BATCH,
    CONTEXT,
    TOKENS,
    WARMUP,
    VAL_EVERY,
    VAL_BATCHES,
    SAVE_EVERY,
    SEED,
    VOCAB,
    LR,
    PEAK,
    SHARD,
    STAGE,
    OFFLOAD,
    RECOMPUTE,
    ANYWAY,
    OVERWRITE
};

static const struct argp_option option_list[] = {
    {"data", 'd', "PATTERN", 0, "token shards to learn from: 'train_*.bin'", 0},
    {"val", 'v', "PATTERN", 0, "token shards to measure the loss on", 0},
    {"model", 'm', "NAME", 0, "gpt2, gpt2-medium, gpt2-large, gpt2-xl or tiny (gpt2)", 0},
    {"device", 'D', "NAME", 0, "cpu, cuda or cuda:N (cpu); on several ranks each takes its own GPU",
     0},
    {"precision", 'p', "NAME", 0, "f32, bf16 or f16: of the computation; weights stay f32 (f32)",
     0},
    {"out", 'o', "DIR", 0, "folder of the checkpoint and the losses (gpt2)", 0},
    {"resume", 'r', NULL, 0,
     "go on from the checkpoint in DIR, if there is one; all other options as before", 0},
    {"resume-anyway", ANYWAY, NULL, 0,
     "as --resume, but go on with other options or data too, and say what differs", 0},
    {"overwrite", OVERWRITE, NULL, 0, "begin anew, even where DIR has a checkpoint", 0},
    {"steps", STEPS, "N", 0, "steps of training (1000)", 0},
    {"batch", BATCH, "N", 0, "sequences of a micro-batch of one rank (4)", 1},
    {"context", CONTEXT, "N", 0, "tokens of a sequence (1024)", 1},
    {"tokens", TOKENS, "N", 0, "tokens of a step, of all ranks together (one micro-batch of each)",
     1},
    {"lr", LR, "X", 0, "highest learning rate (6e-4)", 1},
    {"warmup", WARMUP, "N", 0, "steps until it is reached (100)", 1},
    {"val-every", VAL_EVERY, "N", 0, "steps between validations (250)", 1},
    {"val-batches", VAL_BATCHES, "N", 0, "micro-batches of a validation (20)", 1},
    {"save-every", SAVE_EVERY, "N", 0, "steps between checkpoints (1000)", 1},
    {"vocab", VOCAB, "N", 0, "rows of the vocabulary (50304)", 1},
    {"seed", SEED, "N", 0, "of weights and batches (1337)", 1},
    {"peak", PEAK, "TFLOPS", 0, "of the device, for MFU (known for a few GPUs)", 1},
    {"shard", SHARD, "N|all", 0,
     "N ranks have the model together; where there are more, others have it once more", 1},
    {"stage", STAGE, "1|2|3", 0,
     "in parts are the optimiser's state (1), gradients too (2), parameters too (3)", 1},
    {"offload", OFFLOAD, NULL, 0, "parts are in the CPU's memory, and stepped there", 1},
    {"recompute", RECOMPUTE, NULL, 0,
     "blocks keep only their inputs for backward: less memory, a third more work", 1},
    {0},
};

static int64_t parse_integer(int key, const char *text, struct argp_state *state) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < 1 || value > 1000000000000) {
        argp_error(state, "\"%s\" should be a whole number above 0%s", text,
                   key == SHARD ? ", or all" : "");
    }
    return value;
}

static double parse_positive(const char *text, struct argp_state *state) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0)) {
        argp_error(state, "\"%s\" should be a number above 0", text);
    }
    return value;
}

static int model_named(const char *text, struct argp_state *state) {
    for (int i = 0; i < MODELS; i++) {
        if (strcmp(models[i].name, text) == 0) {
            return i;
        }
    }
    argp_error(state, "there is no model \"%s\"", text);
    return 0;
}

static error_t parse_number(int key, char *text, struct argp_state *state) {
    options *o = state->input;
    int64_t *const numbers[] = {&o->steps,  &o->batch,     &o->context,     &o->tokens,
                                &o->warmup, &o->val_every, &o->val_batches, &o->save_every,
                                &o->seed,   &o->vocab};
    if (key <= VOCAB) {
        *numbers[key - STEPS] = parse_integer(key, text, state);
    } else if (key == LR) {
        o->lr = parse_positive(text, state);
    } else if (key == PEAK) {
        o->peak = parse_positive(text, state) * 1e12;
    } else if (key == SHARD) {
        o->shard = strcmp(text, "all") == 0 ? ALL_RANKS : parse_integer(key, text, state);
    } else if (key == STAGE) {
        o->stage = parse_integer(key, text, state);
    } else if (key == OFFLOAD) {
        o->offload = true;
    } else if (key == RECOMPUTE) {
        o->recompute = true;
    } else if (key == ANYWAY) {
        o->resume = o->resume_anyway = true;
    } else if (key == OVERWRITE) {
        o->overwrite = true;
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'd':
        o->data = text;
        return 0;
    case 'v':
        o->val = text;
        return 0;
    case 'm':
        o->model = model_named(text, state);
        return 0;
    case 'D':
        o->device = text;
        return 0;
    case 'p':
        o->precision = text;
        return 0;
    case 'o':
        o->out = text;
        return 0;
    case 'r':
        o->resume = true;
        return 0;
    case ARGP_KEY_END:
        if (!o->data) {
            argp_error(state, "--data PATTERN is missing");
        }
        o->shard = o->shard == 0 && (o->stage > 0 || o->offload) ? ALL_RANKS : o->shard;
        o->stage = o->shard != 0 && o->stage == 0 ? 3 : o->stage;
        return 0;
    default:
        return key >= STEPS && key <= OVERWRITE ? parse_number(key, text, state) : ARGP_ERR_UNKNOWN;
    }
}

/* ---- The objects of a run -------------------------------------------------------------------- */

typedef struct run {
    options o;
    tn_group *world;
    int ranks;
    bool first_rank; /* prints, and keeps the history */
    tn_device device;
    int64_t micro_batches; /* of one rank in a step */
    tn_loader *training, *validation;
    tn_gpt gpt;
    tn_mesh *mesh;     /* copies x parts of the model; NULL without --shard */
    tn_scaler *scaler; /* f16: keeps small gradients from vanishing; NULL otherwise */
    tn_optim *optim;
    tn_schedule schedule;
    int64_t step; /* steps done */
    tn_saver *saver;
    tn_history *history;
    char losses[4096];
} run;

/* All ranks; with --device cuda each on a GPU of its own, as far as there are enough. */
static void join_world(run *r) {
    tn_device device = tn_device_named(r->o.device);
    tn_dist_options d = tn_dist_defaults();
    d.device = device.kind;
    r->world = tn_dist_init(d);
    r->ranks = tn_group_size(r->world);
    r->first_rank = tn_group_rank(r->world) == 0;
    if (strchr(r->o.device, ':')) {
        tn_set_default_device(device);
    }
    r->device = tn_default_device();
}

/* Each rank draws its share of every batch. */
static tn_loader *open_loader(const run *r, const char *pattern, uint64_t seed) {
    tn_loader_options l = tn_loader_defaults();
    l.batch = r->o.batch;
    l.epochs = 0;
    l.drop_last = true;
    l.threads = 1;
    return tn_loader_new(tn_token_shards(pattern, r->o.context, r->o.vocab),
                         tn_distributed_sampler(r->world, tn_random_sampler(seed), true), l);
}

static void open_data(run *r) {
    r->training = open_loader(r, r->o.data, (uint64_t)r->o.seed);
    r->validation = r->o.val ? open_loader(r, r->o.val, (uint64_t)r->o.seed + 1) : NULL;
    int64_t at_once = r->o.batch * r->o.context * r->ranks;
    if (r->o.tokens == 0) {
        r->o.tokens = at_once;
    }
    if (r->o.tokens % at_once != 0) {
        tn_raise(TN_EVALUE,
                 "--tokens %lld is not a multiple of %lld (batch %lld, context %lld, %d ranks)",
                 (long long)r->o.tokens, (long long)at_once, (long long)r->o.batch,
                 (long long)r->o.context, r->ranks);
    }
    r->micro_batches = r->o.tokens / at_once;
}

static void set_precision(run *r) {
    bool f16 = strcmp(r->o.precision, "f16") == 0;
    if (!f16 && strcmp(r->o.precision, "bf16") != 0) {
        if (strcmp(r->o.precision, "f32") != 0) {
            tn_raise(TN_EVALUE, "--precision %s: there are f32, bf16 and f16", r->o.precision);
        }
        return;
    }
    tn_precision policy = tn_precision_defaults();
    policy.compute = f16 ? TN_F16 : TN_BF16;
    tn_module_set_precision(&r->gpt, policy);
    r->scaler = f16 ? tn_scaler_new(tn_scaler_defaults()) : NULL;
}

/* Each rank has all of the model, or --shard of them have it together. */
static void spread_model(run *r) {
    int parts = (int)(r->o.shard == ALL_RANKS ? r->ranks : r->o.shard);
    if (parts == 0) {
        tn_module_materialize(&r->gpt);
        tn_ddp(&r->gpt, r->world, tn_ddp_defaults()); /* gradients become those of all ranks */
        return;
    }
    if (r->ranks % parts != 0) {
        tn_raise(TN_EVALUE, "--shard %d does not divide the number of ranks, %d", parts, r->ranks);
    }
    r->mesh = tn_mesh_new(r->world, 2, (int[]){r->ranks / parts, parts},
                          (const char *[]){"copy", "part"});
    tn_fsdp_options f = tn_fsdp_defaults();
    f.stage = (int)r->o.stage;
    f.units = "h.*"; /* a block's parameters travel together */
    f.offload = r->o.offload;
    tn_fsdp(&r->gpt, tn_mesh_group(r->mesh, "part"),
            r->ranks > parts ? tn_mesh_group(r->mesh, "copy") : NULL, f);
}

static void make_model(run *r) {
    tn_gpt_options g = tn_gpt_defaults();
    g.vocab = r->o.vocab;
    g.context = r->o.context;
    g.layers = models[r->o.model].layers;
    g.heads = models[r->o.model].heads;
    g.width = models[r->o.model].width;
    tn_seed((uint64_t)r->o.seed);
    {
        TN_DEFER_INIT; /* spread_model makes the weights: a part is all that may fit here */
        tn_gpt_init(&r->gpt, g);
    }
    for (int i = 0; r->o.recompute && i < g.layers; i++) {
        tn_module_set_recompute(&r->gpt.h[i], true);
    }
    set_precision(r);
    spread_model(r);

    tn_adamw_options a = tn_adamw_defaults();
    a.lr = r->o.lr;
    a.beta2 = 0.95;
    a.weight_decay = 0.1;
    a.no_decay = tn_match_vectors;
    r->optim = tn_adamw(&r->gpt, a);
    int64_t warmup = r->o.warmup < r->o.steps ? r->o.warmup : r->o.steps / 10;
    r->schedule = tn_schedule_cosine(r->o.lr, r->o.lr / 10, warmup, r->o.steps);
}

/* What the model's mathematics takes for each token, forward and backward: 6 for each weight of a
 * matrix, and the products of causal attention, which see half of the context. */
static double flops_per_token(run *r) {
    const tn_gpt_options *g = &r->gpt.options;
    double positions = (double)(g->context * g->width);
    double weights = (double)tn_module_count(&r->gpt) - positions;
    return 6 * weights + 6.0 * g->layers * positions;
}

static double peak_of(const run *r) {
    tn_device_info info;
    if (r->o.peak > 0 || tn_device_describe(r->device, &info) != TN_OK) {
        return r->o.peak;
    }
    for (int i = 0; i < PEAKS; i++) {
        if (strstr(info.name, peaks[i].part)) {
            return peaks[i].flops;
        }
    }
    return 0;
}

static void say_what_runs(run *r) {
    tn_device_info info;
    if (r->first_rank && tn_device_describe(r->device, &info) == TN_OK) {
        bool gpu = r->device.kind != TN_CPU;
        printf("%s, %lld parameters, %s\n", models[r->o.model].name,
               (long long)tn_module_count(&r->gpt), r->o.precision);
        printf("%d rank%s on %s%s%s; a step: %lld tokens, %lld micro-batch%s of each rank\n",
               r->ranks, r->ranks == 1 ? "" : "s, the first", tn_device_text(r->device),
               gpu ? ", " : "", gpu ? info.name : "", (long long)r->o.tokens,
               (long long)r->micro_batches, r->micro_batches == 1 ? "" : "es");
    }
}

/* ---- Saving, and going on -------------------------------------------------------------------- */

static tn_checkpoint checkpoint_of(run *r) {
    return (tn_checkpoint){.model = &r->gpt,
                           .optim = r->optim,
                           .scaler = r->scaler,
                           .schedule = &r->schedule,
                           .loader = r->training,
                           .generator = tn_default_generator(),
                           .step = r->step};
}

/* The losses first: a checkpoint never has steps that they lack. */
static void save_checkpoint(run *r) {
    tn_checkpoint c = checkpoint_of(r);
    if ((r->history && tn_history_sync(r->history) != TN_OK) ||
        tn_saver_save(r->saver, &c) != TN_OK) {
        exit(1);
    }
}

/* The newest checkpoint of the folder; whether there is one. */
static bool load_checkpoint(run *r, tn_checkpoint *c) {
    bool found;
    if (tn_saver_load(r->saver, c, &found) != TN_OK) {
        exit(1);
    }
    return found;
}

static void resume_run(run *r) {
    tn_checkpoint c = checkpoint_of(r);
    c.other_run = r->o.resume_anyway;
    bool found = load_checkpoint(r, &c);
    r->step = c.step;
    if (r->first_rank && found) {
        printf("going on after step %lld of %s\n", (long long)r->step, r->o.out);
    } else if (r->first_rank) {
        printf("there is no checkpoint in %s to go on from: beginning anew\n", r->o.out);
    }
}

/* A run that somebody forgot to resume is not lost. */
static void begin_anew(run *r) {
    tn_checkpoint nothing = {.partial = true}; /* to look whether there is one */
    if (r->o.overwrite) {
        /* or the launcher, when it starts this run again, would find the other one's */
        tn_saver_clear(r->saver);
    } else if (load_checkpoint(r, &nothing)) {
        if (r->first_rank) {
            fprintf(stderr,
                    "%s has a checkpoint: --resume goes on from it, --overwrite begins anew\n",
                    r->o.out);
        }
        tn_group_mean(r->world, 0, 1); /* the others end when it is said */
        exit(EX_USAGE);                /* after which the launcher does not start them again */
    }
}

static void begin_or_resume(run *r) {
    if (mkdir(r->o.out, 0777) != 0 && errno != EEXIST) {
        tn_raise(TN_EIO, "%s: %s", r->o.out, strerror(errno));
    }
    r->saver = tn_saver_new(r->world, r->o.out, tn_saver_defaults());
    if (r->o.resume || tn_restart_count() > 0) {
        resume_run(r);
    } else {
        begin_anew(r);
    }
    snprintf(r->losses, sizeof(r->losses), "%s/loss.csv", r->o.out);
    r->history = r->first_rank ? tn_history_open(r->losses, r->step) : NULL;
}

/* ---- Training -------------------------------------------------------------------------------- */

/* Forward and backward of one micro-batch; its gradients are added to what is there. Returns its
 * share of the step's loss, on the device: reading it here would make the host wait for the GPU. */
static tn_tensor *micro_step(run *r, const tn_batch *b) {
    TN_SCOPE; /* what the micro-batch makes ends with it */
    tn_tensor *loss =
        tn_mul_scalar(tn_lm_loss(&r->gpt, b->x, b->y), 1.0 / (double)r->micro_batches);
    tn_backward(r->scaler ? tn_scaler_scale(r->scaler, loss) : loss);
    return tn_return(tn_detach(loss));
}

/* The mean loss of all ranks; NaN when the data have ended, which they do not. */
static double train_step(run *r) {
    TN_SCOPE;
    tn_tensor *sum = tn_scalar(0, TN_F32);
    tn_batch b;
    for (int64_t i = 0; i < r->micro_batches && tn_loader_next(r->training, &b); i++) {
        /* where gradients are in parts, whole ones do not add up: there is no room for them */
        if (i + 1 < r->micro_batches && r->o.stage < 2) {
            TN_NO_SYNC(&r->gpt);
            tn_add_(sum, micro_step(r, &b));
        } else {
            tn_add_(sum, micro_step(r, &b));
        }
    }
    tn_optim_set_lr(r->optim, tn_schedule_at(r->schedule, r->step));
    if (r->scaler) {
        tn_scaler_clip(r->scaler, r->optim, 1.0);
        tn_scaler_step(r->scaler, r->optim);
        tn_scaler_update(r->scaler);
    } else {
        tn_optim_clip(r->optim, 1.0);
        tn_optim_step(r->optim);
    }
    tn_optim_zero_grad(r->optim);
    return tn_group_mean(r->world, tn_item(sum), 1);
}

/* The mean loss of some batches, the same ones each time. */
static double validation_loss(run *r) {
    TN_NO_GRAD;
    tn_module_train(&r->gpt, false);
    tn_loader_seek(r->validation, (tn_loader_place){0, 0});
    double sum = 0, count = 0;
    tn_batch b;
    for (int64_t i = 0; i < r->o.val_batches && tn_loader_next(r->validation, &b); i++, count++) {
        TN_SCOPE;
        sum += tn_item(tn_lm_loss(&r->gpt, b.x, b.y));
    }
    tn_module_train(&r->gpt, true);
    return tn_group_mean(r->world, sum, count);
}

/* Every so many steps, and at the end. */
static bool step_due(const run *r, int64_t every) {
    return r->step % every == 0 || r->step == r->o.steps;
}

static void train_run(run *r) {
    tn_progress *progress =
        r->first_rank ? tn_progress_new(stderr, r->step, r->o.steps, "tok") : NULL;
    tn_progress_utilisation(progress, flops_per_token(r), peak_of(r) * r->ranks);
    bool stop = false;
    while (r->step < r->o.steps && !stop) {
        double loss = train_step(r);
        if (r->first_rank) {
            tn_history_add(r->history, loss);
        }
        tn_progress_step(progress, r->step++, loss, r->o.tokens);
        stop = tn_group_mean(r->world, tn_stop_asked(), 1) > 0;
        if (r->validation && step_due(r, r->o.val_every)) {
            double val = validation_loss(r);
            if (r->first_rank) {
                printf("\nstep %lld: validation loss %.4f\n", (long long)r->step, val);
            }
            tn_progress_resume(progress);
        }
        if (stop || step_due(r, r->o.save_every)) {
            save_checkpoint(r); /* is written while training goes on */
            tn_progress_resume(progress);
        }
    }
    if (tn_saver_wait(r->saver) != TN_OK) {
        exit(1);
    }
    double median = tn_progress_median_ms(progress);
    tn_progress_free(progress);
    if (r->first_rank && median > 0) {
        printf("median ms/step: %.2f, %.0f tok/s\n", median, (double)r->o.tokens / median * 1e3);
    }
}

static void print_warning(tn_log_level level, const char *message, void *user) {
    fprintf(stderr, "%s\n", message);
}

static void say_how_to_go_on(const run *r) {
    printf("stopped after step %lld of %lld and saved: the same command with --resume goes on\n",
           (long long)r->step, (long long)r->o.steps);
}

static void run_finish(run *r) {
    tn_saver_free(r->saver);
    tn_history_free(r->history);
    tn_scaler_free(r->scaler);
    tn_optim_free(r->optim);
    tn_module_finish(&r->gpt);
    tn_mesh_free(r->mesh);
    tn_loader_free(r->training);
    tn_loader_free(r->validation);
}

/* An output that is full must not pass for a run that went well, nor one that was stopped for one
 * that has ended. */
static int exit_status(const run *r) {
    if (fflush(stdout) || ferror(stdout)) {
        return 1;
    }
    return r->step >= r->o.steps ? 0 : tn_stop_status();
}

int main(int argc, char **argv) {
    static run r;
    r.o = defaults;
    const struct argp parser = {
        .options = option_list,
        .parser = parse_option,
        .doc = "Trains GPT-2 on shards of tokens.\v"
               "Ctrl-C and SIGTERM stop it after a whole step, which is saved; the exit status is "
               "then 130 or 143."};
    argp_parse(&parser, argc, argv, 0, NULL, &r.o);
    /* a script's choice: the first error is printed and ends the program */
    tn_on_error(tn_error_exit);
    if (r.o.resume_anyway && !getenv("TERN_LOG")) {
        tn_log_to(print_warning, TN_LOG_WARN, NULL); /* what differs from the checkpoint */
    }
    join_world(&r);
    open_data(&r);
    make_model(&r);
    say_what_runs(&r);
    begin_or_resume(&r);
    tn_stop_on_signals();
    train_run(&r);
    if (r.first_rank && r.step < r.o.steps) {
        say_how_to_go_on(&r);
    }
    run_finish(&r);
    tn_dist_finish();
    return exit_status(&r);
}
