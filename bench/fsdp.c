/* GPT-2 laid out on ranks, in parts (--stage), on a mesh (--mesh), or as a pipeline; with --micros
 * batches are of so many micro-batches: fsdp [OPTIONS] T, one process per rank, driven through
 * bench_serve; or, with --steps N, by itself under `tern run -n 4 fsdp`: then rank 0 prints each
 * step's loss and time.
 *
 * BATCH sequences of T random tokens on each rank (on those of tp, cp and pp together): rank r
 * takes rows r * BATCH and up of the batch that gpt2.c draws. At the end every rank reports its
 * memory and how much a step sent.
 */
#include "bench/trainer.h"

#include <getopt.h>

/* Options: integers, flags, strings. */
enum {
    STAGE,
    LAYERS,
    HEADS,
    WIDTH,
    VOCAB,
    CONTEXT,
    BATCH,
    PREFETCH,
    STEPS,
    MICROS,
    CHUNKS,
    NUMBERS
};
enum { RECOMPUTE = NUMBERS, DEFER, OFFLOAD, SGD, SWITCHES };
enum { SIZE = SWITCHES, PRECISION, SHARE, TRACE, MESH };

typedef struct options {
    int n[SWITCHES]; /* stage 0: DDP; steps 0: as many as the comparison requests */
    int64_t T;
    bool bf16;
    const char *share, *trace; /* folders */
    const char *mesh;          /* NULL: by stage */
} options;

typedef struct run {
    trainer t; /* comes first, for trainer_step */
    options o;
    tn_group *world;
    tn_fsdp_state *fsdp; /* NULL: DDP, or a mesh */
    tn_spread_options on_mesh;
    tn_spread *spread;     /* NULL: no mesh */
    tn_pipeline *pipeline; /* NULL: a mesh, or no --micros */
    tn_loader *micros;     /* of a mesh; NULL: no --micros */
    int64_t steps;         /* done */
} run;

/* ---- Options --------------------------------------------------------------------------------- */

static void print_usage(void) {
    fputs("usage: fsdp [--stage 0|1|2|3] [--size tiny|124M|350M|774M|1.5B]\n"
          "            [--layers N] [--heads N] [--width N] [--vocab N] [--context N]\n"
          "            [--batch N] [--prefetch N]\n"
          "            [--precision f32|bf16] [--recompute] [--defer] [--offload] [--sgd]\n"
          "            [--share FOLDER] [--trace FOLDER] [--steps N] [--mesh DIMS]\n"
          "            [--micros N [--chunks N]] T\n"
          "(stage 0 is DDP; run bench/fsdp.py, or with --steps under tern run)\n",
          stderr);
    exit(2);
}

static void take_size(options *o, const char *name) {
    tn_gpt_options g;
    if (!trainer_size(name, &g)) { print_usage(); }
    o->n[LAYERS] = g.layers;
    o->n[HEADS] = g.heads;
    o->n[WIDTH] = (int)g.width;
}

static void take_option(options *o, int key, const char *text) {
    if (key < NUMBERS) {
        o->n[key] = atoi(text);
    } else if (key < SWITCHES) {
        o->n[key] = 1;
    } else if (key == SIZE) {
        take_size(o, text);
    } else if (key == PRECISION) {
        o->bf16 = strcmp(text, "bf16") == 0;
    } else if (key == SHARE) {
        o->share = text;
    } else if (key == TRACE) {
        o->trace = text;
    } else if (key == MESH) {
        o->mesh = text;
    } else {
        print_usage();
    }
}

static options parse_options(int argc, char **argv) {
    static const struct option list[] = {{"stage", 1, NULL, STAGE},
                                         {"layers", 1, NULL, LAYERS},
                                         {"heads", 1, NULL, HEADS},
                                         {"width", 1, NULL, WIDTH},
                                         {"vocab", 1, NULL, VOCAB},
                                         {"context", 1, NULL, CONTEXT},
                                         {"batch", 1, NULL, BATCH},
                                         {"prefetch", 1, NULL, PREFETCH},
                                         {"steps", 1, NULL, STEPS},
                                         {"micros", 1, NULL, MICROS},
                                         {"chunks", 1, NULL, CHUNKS},
                                         {"recompute", 0, NULL, RECOMPUTE},
                                         {"defer", 0, NULL, DEFER},
                                         {"offload", 0, NULL, OFFLOAD},
                                         {"sgd", 0, NULL, SGD},
                                         {"size", 1, NULL, SIZE},
                                         {"precision", 1, NULL, PRECISION},
                                         {"share", 1, NULL, SHARE},
                                         {"trace", 1, NULL, TRACE},
                                         {"mesh", 1, NULL, MESH},
                                         {0}};
    options o = {
        .n = {[STAGE] = 3, [VOCAB] = 50257, [CONTEXT] = 1024, [BATCH] = 2, [PREFETCH] = 1}};
    take_size(&o, "124M");
    for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        take_option(&o, key, optarg);
    }
    o.T = optind + 1 == argc ? atoi(argv[optind]) : 0;
    if (o.T < 1 || o.n[BATCH] < 1 || (o.n[MICROS] && o.n[BATCH] % o.n[MICROS] != 0) ||
        o.n[STAGE] < 0 || o.n[STAGE] > 3 || (o.n[DEFER] && (o.n[STAGE] == 0 || o.share))) {
        print_usage();
    }
    return o;
}

/* ---- The model and its ranks ----------------------------------------------------------------- */

static void make_model(run *r) {
    tn_gpt_options g = tn_gpt_defaults();
    g.layers = r->o.n[LAYERS];
    g.heads = r->o.n[HEADS];
    g.width = r->o.n[WIDTH];
    g.vocab = r->o.n[VOCAB];
    g.context = r->o.n[CONTEXT];
    tn_seed(1337);
    if (r->o.n[DEFER]) {
        TN_DEFER_INIT; /* tn_fsdp makes only this rank's part */
        tn_gpt_init(&r->t.gpt, g);
    } else {
        tn_gpt_init(&r->t.gpt, g);
    }
    for (int i = 0; r->o.n[RECOMPUTE] && i < g.layers; i++) {
        tn_module_set_recompute(&r->t.gpt.h[i], true);
    }
    if (r->o.bf16) { tn_module_set_precision(&r->t.gpt, tn_precision_defaults()); }
}

/* Each rank draws the whole batch and takes its own rows. */
static void draw_batch(run *r) {
    int64_t batch = r->o.n[BATCH], vocab = r->o.n[VOCAB] < 50257 ? r->o.n[VOCAB] : 50257;
    int size = tn_group_size(r->world), rank = tn_group_rank(r->world), pp = 1, alike = 1;
    if (r->o.mesh) { /* ranks with the same batch */
        pp = r->on_mesh.pp;
        alike = r->on_mesh.tp * r->on_mesh.cp;
    } else if (r->o.n[MICROS]) {
        pp = size;
    }
    int64_t first = rank % (size / pp) / alike * batch;
    trainer_draw(&r->t, size / pp / alike * batch, r->o.T, vocab);
    if (r->o.share && rank == 0) {
        TN_SCOPE;
        bench_share(&r->t.gpt, r->o.share, tn_unsqueeze(r->t.x, 0), tn_unsqueeze(r->t.y, 0));
    }
    r->t.x = tn_narrow(r->t.x, 0, first, batch);
    r->t.y = tn_narrow(r->t.y, 0, first, batch);
}

static void spread_model(run *r) {
    if (r->o.mesh) {
        r->spread = tn_spread_new(&r->t.gpt, r->world, r->on_mesh);
        if (r->o.n[MICROS]) {
            int64_t rows = r->o.n[BATCH] / r->o.n[MICROS];
            r->micros = tn_loader_new(tn_tensor_dataset(r->t.x, r->t.y), tn_sequential_sampler(),
                                      TN_WITH(tn_loader, .batch = rows, .epochs = 0));
        }
        return;
    }
    if (r->o.n[MICROS]) {
        tn_pipeline_options p = tn_pipeline_defaults();
        if (r->o.n[CHUNKS] > 1) {
            p.kind = TN_PIPE_INTERLEAVED;
            p.chunks = r->o.n[CHUNKS];
        }
        r->pipeline = tn_pipeline_new(&r->t.gpt, r->world, p);
        return;
    }
    if (r->o.n[STAGE] == 0) {
        tn_ddp(&r->t.gpt, r->world, tn_ddp_defaults());
        return;
    }
    tn_fsdp_options f = tn_fsdp_defaults();
    f.stage = r->o.n[STAGE];
    f.units = "h.*";
    f.prefetch = r->o.n[PREFETCH];
    f.offload = r->o.n[OFFLOAD];
    r->fsdp = tn_fsdp(&r->t.gpt, r->world, NULL, f);
}

/* ---- Marks in the trace: when each block computes -------------------------------------------- */

typedef struct watch {
    char name[16];
    double began;
} watch;

static tn_values forward_begins(tn_module *m, tn_values in, void *user) {
    ((watch *)user)->began = tn_flight_now();
    return in;
}

static void mark_block(const watch *w, const char *what) {
    char text[32];
    snprintf(text, sizeof(text), "%s %s", what, w->name);
    tn_flight_mark(text, w->began);
}

static tn_values forward_ended(tn_module *m, tn_values in, tn_values out, void *user) {
    mark_block(user, tn_in_recompute() ? "recompute" : "forward");
    return out;
}

static void backward_begins(tn_module *m, void *user) {
    ((watch *)user)->began = tn_flight_now();
}

static void backward_ended(tn_module *m, tn_values in_grads, void *user) {
    mark_block(user, "backward");
}

static void watch_module(void *m, const char *name) {
    watch *w = calloc(1, sizeof(*w));
    if (!w) { exit(1); }
    snprintf(w->name, sizeof(w->name), "%s", name);
    tn_module_hook(m, (tn_module_hooks){forward_begins, forward_ended, backward_begins,
                                        backward_ended, w, free});
}

static void watch_blocks(run *r) {
    watch_module(&r->t.gpt, "all");
    for (int i = 0; i < r->o.n[LAYERS]; i++) {
        char name[16];
        snprintf(name, sizeof(name), "h.%d", i);
        watch_module(&r->t.gpt.h[i], name);
    }
}

static double traced_step(void *user) {
    run *r = user;
    TN_SCOPE;
    tn_tensor *loss = tn_lm_loss(&r->t.gpt, r->t.x, r->t.y);
    tn_backward(loss);
    double began = tn_flight_now();
    tn_optim_step(r->t.opt);
    tn_optim_zero_grad(r->t.opt);
    tn_flight_mark("step", began);
    return tn_item(loss);
}

static void save_trace(const run *r) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/rank-%d.json", r->o.trace, tn_group_rank(r->world));
    if (tn_flight_trace(path) != TN_OK) { exit(1); }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* The rows of the batch, in so many micro-batches. */
static double pipeline_step(run *r) {
    TN_SCOPE;
    int n = r->o.n[MICROS];
    int64_t rows = r->o.n[BATCH] / n;
    tn_batch *b = calloc((size_t)n, sizeof(*b));
    for (int i = 0; b && i < n; i++) {
        b[i].x = tn_narrow(r->t.x, 0, i * rows, rows);
        b[i].y = tn_narrow(r->t.y, 0, i * rows, rows);
    }
    double loss = tn_pipeline_step(r->pipeline, b, n, NULL);
    tn_optim_step(r->t.opt);
    tn_optim_zero_grad(r->t.opt);
    free(b);
    return loss;
}

static double spread_step(run *r) {
    double loss = tn_spread_step(r->spread, r->micros, r->o.n[MICROS], NULL);
    tn_optim_step(r->t.opt);
    tn_optim_zero_grad(r->t.opt);
    return loss;
}

static double next_step(void *user) {
    run *r = user;
    r->steps++;
    if (r->pipeline) { return pipeline_step(r); }
    if (r->micros) { return spread_step(r); }
    return r->o.trace ? traced_step(r) : trainer_step(&r->t);
}

static void take_steps(run *r) {
    for (int i = 0; i < r->o.n[STEPS]; i++) {
        double start = bench_now(), loss = tn_group_mean(r->world, next_step(r), 1);
        if (tn_group_rank(r->world) == 0) {
            printf("step %d  loss %.4f  %.0f ms\n", i + 1, loss, 1e3 * (bench_now() - start));
            fflush(stdout);
        }
    }
}

/* Resident memory shared with other ranks: the group's buffers. Each rank counts it. */
static double shared_mib(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof(line), status) &&
           sscanf(line, "RssShmem: %ld", &kib) != 1) {}
    if (status) { fclose(status); }
    return (double)kib / 1024.0;
}

/* With --steps labelled lines, else bare numbers for the comparison. */
static void report_memory(const run *r) {
    const double MiB = 1048576.0;
    tn_fsdp_stats s = tn_fsdp_statistics(r->fsdp);
    double steps = r->steps > 0 ? (double)r->steps : 1;
    const struct {
        const char *name;
        double value;
    } facts[] = {
        {"MiB of the process, peak", bench_peak_rss()},
        {"MiB of it shared with other ranks", shared_mib()},
        {"MiB in tensors, peak", (double)tn_device_memory(tn_default_device()).peak / MiB},
        {"MiB in parts", (double)s.parts / MiB},
        {"MiB in buffers", (double)s.buffers / MiB},
        {"MiB gathered, peak", (double)s.most_whole / MiB},
        {"gathers per step", (double)s.gathers / steps},
        {"scatters per step", (double)s.scatters / steps},
        {"ms waiting per step", 1e3 * s.waiting / steps},
    };
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        if (r->o.n[STEPS]) {
            printf("%10.1f %s\n", facts[i].value, facts[i].name);
        } else {
            printf("%.6f ", facts[i].value);
        }
    }
    if (!r->o.n[STEPS]) { printf("\n"); }
}

int main(int argc, char **argv) {
    static run r;
    tn_on_error(tn_error_exit);
    r.o = parse_options(argc, argv);
    r.world = tn_dist_init(tn_dist_defaults());
    r.on_mesh = tn_spread_defaults();
    if (r.o.mesh) { tn_spread_read(&r.on_mesh, r.o.mesh); }
    make_model(&r);
    draw_batch(&r);
    spread_model(&r);
    if (r.o.trace && !r.pipeline) { watch_blocks(&r); }
    if (r.o.n[SGD]) { /* no state: 8 bytes per parameter, not 16 */
        r.t.opt = tn_sgd(&r.t.gpt, tn_sgd_defaults());
    } else {
        trainer_optimise(&r.t);
    }
    int status = 0;
    if (r.o.n[STEPS]) {
        take_steps(&r);
    } else {
        status = bench_serve(next_step, &r);
    }
    report_memory(&r);
    if (r.o.trace) { save_trace(&r); }
    tn_loader_free(r.micros);
    trainer_finish(&r.t);
    tn_spread_free(r.spread);
    tn_dist_finish();
    return status;
}
