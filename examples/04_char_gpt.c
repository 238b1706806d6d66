/* 4. A GPT that learns to write, one character at a time.
 *
 *     04_char_gpt --data shakespeare.txt                   trains, draws the loss, writes a sample
 *     04_char_gpt --data shakespeare.txt --resume          goes on after Ctrl-C or a crash,
 *                                                          as if nothing had happened
 *     tern run -n 2 04_char_gpt --data shakespeare.txt     the same on two processes,
 *                                                          each with half of every batch
 *     04_char_gpt --help
 *
 * Shows: a text as tokens, a loader, a model with an optimiser and a schedule, checkpoints that
 * continue bit for bit, the progress line, curves, generating, and what of it changes on several
 * ranks (every line with `world` in it). The parts, in the order of the file: options, the run's
 * objects, saving and going on, the training loop, validation, the results.
 *
 * The recipe is nanoGPT's for a laptop: 4 layers, 4 heads, 128 channels, context 64, batch 12,
 * AdamW at 1e-3 falling to 1e-4, 2000 steps. To build it by itself: cc 04_char_gpt.c $(pkg-config
 * --cflags --libs tern)
 */
#include <tern/tern.h>

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

/* ---- Options --------------------------------------------------------------------------------- */

typedef struct options {
    const char *data, *out, *device;
    int64_t steps, save_every, sample;
    int64_t layers, heads, width, context, batch;
    int64_t seed, threads;
    double lr;
    bool resume, resume_anyway, overwrite, bf16;
} options;

static const options defaults = {
    .out = "char_gpt",
    .device = "cpu",
    .steps = 2000,
    .save_every = 250,
    .sample = 500,
    .layers = 4,
    .heads = 4,
    .width = 128,
    .context = 64,
    .batch = 12,
    .seed = 1337,
    .lr = 1e-3,
};

/* Whole numbers first, in the order of `numbers` below. */
enum {
    STEPS = 256,
    SAVE_EVERY,
    SAMPLE,
    LAYERS,
    HEADS,
    WIDTH,
    CONTEXT,
    BATCH,
    SEED,
    THREADS,
    LR,
    PRECISION,
    ANYWAY,
    OVERWRITE
};

static const struct argp_option option_list[] = {
    {"data", 'd', "FILE", 0, "the text to learn, UTF-8; its last tenth is for validation", 0},
    {"out", 'o', "DIR", 0, "folder of checkpoint, losses and picture (char_gpt)", 0},
    {"steps", STEPS, "N", 0, "steps of training (2000)", 0},
    {"device", 'D', "NAME", 0, "where to compute: cpu, cuda or cuda:N (cpu)", 0},
    {"resume", 'r', NULL, 0,
     "go on from the checkpoint in DIR, if there is one; all other options as before", 0},
    {"resume-anyway", ANYWAY, NULL, 0,
     "as --resume, but go on with other options or data too, and say what differs", 0},
    {"overwrite", OVERWRITE, NULL, 0, "begin anew, even where DIR has a checkpoint", 0},
    {"save-every", SAVE_EVERY, "N", 0, "steps between checkpoints (250)", 0},
    {"sample", SAMPLE, "N", 0, "characters to write at the end (500)", 0},
    {"layers", LAYERS, "N", 0, "transformer blocks (4)", 1},
    {"heads", HEADS, "N", 0, "attention heads (4)", 1},
    {"width", WIDTH, "N", 0, "channels (128)", 1},
    {"context", CONTEXT, "N", 0, "characters that a prediction sees (64)", 1},
    {"batch", BATCH, "N", 0, "sequences in a step, of all ranks together (12)", 1},
    {"lr", LR, "X", 0, "highest learning rate (1e-3)", 1},
    {"precision", PRECISION, "DTYPE", 0,
     "what to compute in: f32 or bf16; the weights are f32 (f32)", 1},
    {"seed", SEED, "N", 0, "of weights and batches (1337)", 1},
    {"threads", THREADS, "N", 0, "threads of a rank (the cores, shared among the ranks)", 1},
    {0},
};

static int64_t parse_integer(const char *text, int64_t least, struct argp_state *state) {
    const int64_t most = 1000000000;
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < least || value > most) {
        argp_error(state, "\"%s\" should be a number from %d to %d", text, (int)least, (int)most);
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

static error_t parse_option(int key, char *text, struct argp_state *state) {
    options *o = state->input;
    const struct {
        int64_t *value, least;
    } numbers[] = {{&o->steps, 1}, {&o->save_every, 1}, {&o->sample, 0},  {&o->layers, 1},
                   {&o->heads, 1}, {&o->width, 1},      {&o->context, 1}, {&o->batch, 1},
                   {&o->seed, 0},  {&o->threads, 1}};
    if (key >= STEPS && key <= THREADS) {
        *numbers[key - STEPS].value = parse_integer(text, numbers[key - STEPS].least, state);
    } else if (key == LR) {
        o->lr = parse_positive(text, state);
    } else if (key == PRECISION) {
        o->bf16 = strcmp(text, "bf16") == 0;
        if (!o->bf16 && strcmp(text, "f32") != 0) {
            argp_error(state, "\"%s\" should be f32 or bf16", text);
        }
    } else if (key == 'd') {
        o->data = text;
    } else if (key == 'o') {
        o->out = text;
    } else if (key == 'D') {
        o->device = text;
    } else if (key == 'r') {
        o->resume = true;
    } else if (key == ANYWAY) {
        o->resume = o->resume_anyway = true;
    } else if (key == OVERWRITE) {
        o->overwrite = true;
    } else if (key == ARGP_KEY_END && !o->data) {
        argp_error(state, "--data FILE is missing");
    } else {
        return key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- The objects of a run -------------------------------------------------------------------- */

typedef struct run {
    options o;
    tn_group *world; /* all ranks; one, when started alone */
    bool first_rank; /* prints, draws, and keeps the history */
    tn_charset *charset;
    int32_t first; /* the validation text's first token: where writing begins */
    tn_loader *training, *validation;
    tn_gpt gpt;
    tn_optim *optim;
    tn_schedule schedule;
    int64_t step; /* steps done */
    tn_history *history;
    char checkpoint[4096], losses[4096], picture[4096];
} run;

/* Windows of tokens, drawn independently, without end. Each rank draws its share of every batch. */
static tn_loader *open_loader(const run *r, const int32_t *tokens, int64_t count, uint64_t seed) {
    tn_loader_options l = tn_loader_defaults();
    l.batch = r->o.batch / tn_group_size(r->world);
    l.epochs = 0;
    return tn_loader_new(tn_token_dataset(tokens, count, r->o.context),
                         tn_distributed_sampler(r->world, tn_replacement_sampler(seed), false), l);
}

static void open_data(run *r) {
    size_t bytes;
    char *text = tn_text_read(r->o.data, &bytes);
    r->charset = tn_charset_from_text(text, bytes);
    int32_t *tokens = malloc(bytes * sizeof(*tokens));
    if (!tokens) {
        tn_raise(TN_ENOMEM, "no memory for %zu tokens", bytes);
    }
    int64_t count = tn_charset_encode(r->charset, text, bytes, tokens), split = count / 10 * 9;
    r->training = open_loader(r, tokens, split, (uint64_t)r->o.seed);
    r->validation = open_loader(r, tokens + split, count - split, (uint64_t)r->o.seed + 1);
    r->first = tokens[split];
    if (r->first_rank) {
        printf("%s: %lld characters, %d different ones\n", r->o.data, (long long)count,
               tn_charset_size(r->charset));
    }
    free(tokens);
    tn_text_free(text);
}

static void make_model(run *r) {
    tn_gpt_options g = tn_gpt_defaults();
    g.vocab = tn_charset_size(r->charset);
    g.context = r->o.context;
    g.layers = (int)r->o.layers;
    g.heads = (int)r->o.heads;
    g.width = r->o.width;
    g.bias = false;
    g.activation = TN_ACT_GELU;
    tn_seed((uint64_t)r->o.seed);
    tn_gpt_init(&r->gpt, g);
    if (r->o.bf16) {
        tn_module_set_precision(&r->gpt, tn_precision_defaults());
    }
    tn_ddp(&r->gpt, r->world, tn_ddp_defaults()); /* gradients become those of all ranks */

    tn_adamw_options a = tn_adamw_defaults();
    a.lr = r->o.lr;
    a.beta2 = 0.99;
    a.weight_decay = 0.1;
    a.no_decay = tn_match_vectors;
    r->optim = tn_adamw(&r->gpt, a);
    r->schedule = tn_schedule_cosine(r->o.lr, r->o.lr / 10,
                                     r->o.steps < 1000 ? r->o.steps / 10 : 100, r->o.steps);
    if (r->first_rank) {
        int ranks = tn_group_size(r->world), threads = tn_threads();
        printf("%lld parameters, %d rank%s of %d thread%s\n", (long long)tn_module_count(&r->gpt),
               ranks, ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
    }
}

/* ---- Saving, and going on -------------------------------------------------------------------- */

static void make_folder(run *r) {
    if (mkdir(r->o.out, 0777) != 0 && errno != EEXIST) {
        tn_raise(TN_EIO, "%s: %s", r->o.out, strerror(errno));
    }
    snprintf(r->checkpoint, sizeof(r->checkpoint), "%s/checkpoint.safetensors", r->o.out);
    snprintf(r->losses, sizeof(r->losses), "%s/loss.csv", r->o.out);
    snprintf(r->picture, sizeof(r->picture), "%s/loss.svg", r->o.out);
}

static tn_checkpoint checkpoint_of(run *r) {
    return (tn_checkpoint){.model = &r->gpt,
                           .optim = r->optim,
                           .schedule = &r->schedule,
                           .loader = r->training,
                           .generator = tn_default_generator(),
                           .step = r->step};
}

/* The losses first: a checkpoint never has steps that they lack. */
static void save_checkpoint(run *r) {
    tn_checkpoint c = checkpoint_of(r);
    if ((r->history && tn_history_sync(r->history) != TN_OK) ||
        tn_dist_save(r->world, &c, r->checkpoint) != TN_OK) {
        exit(1);
    }
}

/* A run that somebody forgot to resume is not lost. */
static void refuse_to_overwrite(const run *r) {
    if (r->first_rank) {
        fprintf(stderr, "%s is there: --resume goes on from it, --overwrite begins anew\n",
                r->checkpoint);
    }
    tn_group_mean(r->world, 0, 1); /* the others end when it is said */
    exit(EX_USAGE);                /* after which the launcher does not start them again */
}

/* From the checkpoint, or from the beginning, which is a checkpoint too: so there is one at any
 * time. A job that the launcher has started again goes on by itself. */
static void begin_or_resume(run *r) {
    struct stat about;
    bool resume = r->o.resume || tn_restart_count() > 0;
    bool found = r->first_rank && stat(r->checkpoint, &about) == 0;
    found = tn_group_mean(r->world, found, 1) > 0;
    if (found && !resume && !r->o.overwrite) {
        refuse_to_overwrite(r);
    }
    if (found && resume) {
        tn_checkpoint c = checkpoint_of(r);
        c.other_run = r->o.resume_anyway;
        if (tn_dist_load(r->world, &c, r->checkpoint) != TN_OK) {
            exit(1);
        }
        r->step = c.step;
    } else {
        save_checkpoint(r);
    }
    if (resume && r->first_rank && !found) {
        printf("there is no %s to go on from: beginning anew\n", r->checkpoint);
    } else if (resume && r->first_rank) {
        printf("going on after step %lld of %s\n", (long long)r->step, r->checkpoint);
    }
    r->history = r->first_rank ? tn_history_open(r->losses, r->step) : NULL;
}

/* ---- Training -------------------------------------------------------------------------------- */

/* Returns the loss of the whole batch. */
static double train_step(run *r, const tn_batch *b) {
    TN_SCOPE; /* what the step makes ends with it */
    tn_tensor *loss = tn_lm_loss(&r->gpt, b->x, b->y);
    tn_backward(loss);
    tn_optim_set_lr(r->optim, tn_schedule_at(r->schedule, r->step));
    tn_optim_clip(r->optim, 1.0);
    tn_optim_step(r->optim);
    tn_optim_zero_grad(r->optim);
    return tn_group_mean(r->world, tn_item(loss) * tn_count(b->x), tn_count(b->x));
}

/* Whether any rank was asked to stop: all stop after the same step. */
static bool stop_asked(run *r) {
    return tn_group_mean(r->world, tn_stop_asked(), 1) > 0;
}

/* Returns the median time of a step in milliseconds. */
static double train_run(run *r) {
    tn_progress *progress =
        r->first_rank ? tn_progress_new(stderr, r->step, r->o.steps, "tok") : NULL;
    tn_batch b;
    bool stop = stop_asked(r);
    while (r->step < r->o.steps && !stop && tn_loader_next(r->training, &b)) {
        double loss = train_step(r, &b);
        if (r->first_rank) {
            tn_history_add(r->history, loss);
        }
        tn_progress_step(progress, r->step++, loss, tn_count(b.x) * tn_group_size(r->world));
        stop = stop_asked(r);
        if (r->step % r->o.save_every == 0 || r->step == r->o.steps || stop) {
            save_checkpoint(r);
            tn_progress_resume(progress);
        }
    }
    double median = tn_progress_median_ms(progress);
    tn_progress_free(progress);
    return median;
}

/* The mean loss of 200 batches. */
static double validation_loss(run *r) {
    enum { BATCHES = 200 };
    TN_NO_GRAD;
    tn_module_train(&r->gpt, false);
    double sum = 0;
    tn_batch b;
    for (int i = 0; i < BATCHES && tn_loader_next(r->validation, &b); i++) {
        TN_SCOPE;
        sum += tn_item(tn_lm_loss(&r->gpt, b.x, b.y));
    }
    return tn_group_mean(r->world, sum, BATCHES);
}

/* ---- Results --------------------------------------------------------------------------------- */

static void draw_losses(run *r) {
    tn_curve curves[] = {
        tn_history_curve(r->history, "each step"),
        tn_history_smooth(r->history, "mean of 50 steps", 50),
    };
    curves[0].faint = true;
    tn_plot plot = {.title = "Training loss",
                    .x_label = "step",
                    .y_label = "nats per character",
                    .curves = curves,
                    .count = 2};
    tn_plot_text(&plot, stdout, 80, 18);
    if (tn_plot_svg(&plot, r->picture) != TN_OK) {
        exit(1);
    }
    printf("\npicture: %s\nlosses: %s\ncheckpoint: %s\n", r->picture, r->losses, r->checkpoint);
}

static bool write_character(const tn_generated_token *token, void *user) {
    const run *r = user;
    fputs(tn_charset_text(r->charset, token->token), stdout);
    return true;
}

static void write_sample(run *r) {
    int32_t begin_with = (int32_t)r->first;
    tn_generate_options o = tn_generate_defaults();
    o.max_new = r->o.sample;
    o.temperature = 0.8;
    o.seed = (uint64_t)r->o.seed;
    o.on_token = write_character;
    o.user = r;
    tn_generated sample;
    printf("\n---- a sample ----\n");
    tn_generate(&r->gpt, &(tn_prompt){&begin_with, 1}, 1, o, &sample);
    printf("\n------------------\n");
    tn_generated_free(&sample, 1);
}

static void print_warning(tn_log_level level, const char *message, void *user) {
    fprintf(stderr, "%s\n", message);
}

static void say_how_to_go_on(const run *r) {
    printf("stopped after step %lld of %lld and saved: the same command with --resume goes on\n",
           (long long)r->step, (long long)r->o.steps);
}

static void run_finish(run *r) {
    tn_history_free(r->history);
    tn_optim_free(r->optim);
    tn_module_finish(&r->gpt);
    tn_loader_free(r->training);
    tn_loader_free(r->validation);
    tn_charset_free(r->charset);
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
    const struct argp parser = {.options = option_list,
                                .parser = parse_option,
                                .doc = "Trains a small GPT on the characters of a text.\v"
                                       "Ctrl-C and SIGTERM stop it after a whole step, which is "
                                       "saved; the exit status is then 130 or 143."};
    argp_parse(&parser, argc, argv, 0, NULL, &r.o);
    /* a script's choice: the first error is printed and ends the program */
    tn_on_error(tn_error_exit);
    if (r.o.resume_anyway && !getenv("TERN_LOG")) {
        tn_log_to(print_warning, TN_LOG_WARN, NULL); /* what differs from the checkpoint */
    }
    r.world = tn_dist_init(tn_dist_defaults());
    r.first_rank = tn_group_rank(r.world) == 0;
    if (r.o.threads) {
        tn_set_threads((int)r.o.threads);
    }
    if (r.o.batch % tn_group_size(r.world) != 0) {
        tn_raise(TN_EVALUE, "--batch %lld does not divide among %d ranks", (long long)r.o.batch,
                 tn_group_size(r.world));
    }
    tn_set_default_device(tn_device_named(r.o.device)); /* what follows is made there */
    open_data(&r);
    make_model(&r);
    make_folder(&r);
    begin_or_resume(&r);
    tn_stop_on_signals();
    double median = train_run(&r);
    bool ended = r.step >= r.o.steps; /* > where a longer run goes on as a shorter one */
    double loss = ended ? validation_loss(&r) : 0;
    if (r.first_rank && !ended) {
        say_how_to_go_on(&r);
    } else if (r.first_rank) {
        draw_losses(&r);
        write_sample(&r);
        printf("median ms/iter: %.2f\nvalidation loss: %.4f\n", median, loss);
    }
    run_finish(&r);
    tn_dist_finish();
    return exit_status(&r);
}
