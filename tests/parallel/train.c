/* A training run by any strategy, its oracle, and comparisons: see train.h. */
#include "tests/parallel/train.h"

#include "distributed/parallel/spread.h"
#include "models/language.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Runs ------------------------------------------------------------------------------------ */

train_run train_run_of(train_how how, int ranks) {
    train_run run = {.how = how,
                     .model = {.vocab = 37,
                               .width = 10,
                               .layers = 3,
                               .heads = 2,
                               .kv_heads = 1,
                               .bias = true,
                               .dropout = 0.1,
                               .length = 7,
                               .hidden = 10},
                     .replicas = 1,
                     .shards = ranks,
                     .sharding = tn_fsdp_defaults(),
                     .data = tn_ddp_defaults(),
                     .sum = true,
                     .micros = ranks,
                     .steps = 2};
    run.data.bucket_bytes = 2 << 10;
    return run;
}

static tn_spread_options spread_of(const train_run *run) {
    tn_spread_options o = TN_WITH(tn_spread, .sharding = run->sharding, .data = run->data);
    if (tn_spread_read(&o, run->mesh) == TN_OK && o.dp == 0) { o.dp = 1; }
    o.sharding.sum = o.data.sum = run->sum;
    o.pipeline.schedule = run->schedule;
    return o;
}

train_run train_on_mesh(const char *mesh, bool llama, int each) {
    train_run run = train_run_of(TRAIN_MESH, 1);
    run.model = mesh_shape_of(llama);
    run.mesh = mesh;
    run.sum = false;
    tn_spread_options o = spread_of(&run);
    run.sharding.stage = o.sharding.stage;
    run.replicas = o.dp;
    run.shards = o.shard;
    run.micros = each * o.dp * o.shard;
    run.no_sync = true;
    run.clip = 0.5;
    run.steps = 3;
    return run;
}

train_run train_oracle(train_run run, const char *mesh) {
    run.alone = !mesh;
    run.mesh = mesh ? mesh : run.mesh;
    return run;
}

int train_ranks(const train_run *run) {
    if (run->alone || run->how != TRAIN_MESH) {
        return run->alone ? 1 : run->replicas * run->shards;
    }
    tn_spread_options o = spread_of(run);
    return o.pp * o.dp * o.shard * o.cp * o.tp;
}

const char *train_text(const train_run *run) {
    static _Thread_local char text[512];
    static const char *const hows[] = {"ddp", "naive ddp", "fsdp", "naive fsdp", "mesh"};
    static const char *const recomputes[] = {"nothing", "inside", "over", "around", "whole"};
    const tn_fsdp_options *o = &run->sharding;
    snprintf(
        text, sizeof(text),
        "%s%s, %s %s, %d x %d ranks, %d micro-batches of %d steps, %s of gradients, %s, recompute "
        "%s; stage %d, prefetch %d, offload %d, units %s, ignore %s; deferred "
        "%d, frozen %s, no_sync %d, flushes %d, looks %d, own loss %d, loader %d, scaled %d, clip "
        "%g",
        run->alone ? "alone " : "", run->model.llama ? "llama" : "gpt", hows[run->how],
        run->how == TRAIN_MESH ? run->mesh : "", run->replicas, run->shards, run->micros,
        run->steps, run->sum ? "sums" : "means", run->bf16 ? "bf16" : "f32",
        recomputes[run->recompute], o->stage, o->prefetch, o->offload,
        o->units ? o->units : "blocks", o->ignore ? o->ignore : "nothing", run->deferred,
        run->frozen ? run->frozen : "nothing", run->no_sync, run->flushes, run->looks,
        run->loss != NULL, run->loader, run->scaled, run->clip);
    return text;
}

/* ---- Losses
 * -------------------------------------------------------------------------------------- */

/* The mean loss of a step's micro-batches, which the ranks share. NaN: not this rank's. Those of
 * ranks with parts of a batch are averaged. */
static double share_losses(tn_group *g, const double *losses, int n) {
    void *all[TRAIN_MOST_RANKS];
    size_t bytes[TRAIN_MOST_RANKS];
    double mean = 0;
    if (tn_all_gather_bytes(g, losses, (size_t)n * sizeof(double), all, bytes) != TN_OK) {
        return NAN;
    }
    for (int i = 0; i < n; i++) {
        double sum = 0, ranks = 0;
        for (int r = 0; r < tn_group_size(g); r++) {
            double loss = ((const double *)all[r])[i];
            sum += isnan(loss) ? 0 : loss;
            ranks += !isnan(loss);
        }
        mean += sum / ranks / n;
    }
    for (int r = 0; r < tn_group_size(g); r++) {
        tn_bytes_free(all[r]);
    }
    return mean;
}

/* ---- The model, and who trains it ------------------------------------------------------------ */

/* In either index dtype in turn. */
tn_tensor *train_tokens(const train_run *run, int64_t number) {
    tn_tensor *t = mesh_tokens_of(&run->model, TRAIN_ROWS, number);
    int64_t *at = malloc(sizeof(*at) * (size_t)tn_count(t));
    tn_copy_out(t, at);
    for (int64_t i = 0; i < tn_count(t) && number % 2 == 1; i++) {
        at[i] = i % run->model.length < run->ignored && i != 2 ? -100 : at[i];
    }
    t = tn_cast(tn_from_data(at, tn_shape(t), TN_I64), number & 2 ? TN_I32 : TN_I64);
    free(at);
    return t;
}

static void recompute_parts(mesh_model *m, const train_run *run) {
    for (int i = 0; i < run->model.layers; i++) {
        tn_module *block = run->model.llama ? &m->llama.layers[i].base : &m->gpt.h[i].base;
        void *attention =
            run->model.llama ? (void *)&m->llama.layers[i].self_attn : (void *)&m->gpt.h[i].attn;
        bool inside = run->recompute == RECOMPUTE_INSIDE;
        tn_module_set_recompute(attention, inside);
        tn_module_set_recompute(tn_module_child(block, "mlp"), inside);
        tn_module_set_recompute(block, run->recompute == RECOMPUTE_OVER ||
                                           run->recompute == RECOMPUTE_AROUND);
    }
    tn_module_set_recompute(m, run->recompute == RECOMPUTE_WHOLE);
}

void train_model(mesh_model *m, const train_run *run, uint64_t seed) {
    mesh_init(m, &run->model, seed, run->deferred);
    recompute_parts(m, run);
    if (run->bf16 && !run->late) { tn_module_set_precision(m, tn_precision_defaults()); }
    if (run->low) {
        tn_module_set_precision(m, TN_WITH(tn_precision, .param = TN_BF16, .reduce = TN_BF16));
    }
    if (run->frozen && tn_freeze(m, run->frozen) <= 0) { tn_raise(TN_EVALUE, "nothing is frozen"); }
    if (run->prepare) { run->prepare(m); }
}

static void attach_sharding(mesh_model *m, const train_run *run, train_groups *g) {
    tn_fsdp_options o = run->sharding;
    o.sum = run->sum;
    if (run->recompute == RECOMPUTE_AROUND && !o.units) {
        o.units = run->model.llama ? "layers.*.self_attn layers.*.mlp" : "h.*.attn h.*.mlp";
    }
    g->fsdp = tn_fsdp(m, g->shard, g->replicate, o);
}

typedef struct rows {
    tn_dataset base;
    const train_run *run;
} rows;

/* Of samples in turn each rank takes one, and TRAIN_ROWS of its own are a micro-batch. */
static tn_status get_row(tn_dataset *self, tn_example e, void *x, void *y) {
    TN_SCOPE;
    const train_run *run = ((rows *)self)->run;
    int64_t ranks = run->replicas * run->shards, own = e.index / ranks;
    int64_t number = own / TRAIN_ROWS * ranks + e.index % ranks;
    void *to[] = {x, y};
    for (int i = 0; i < 2; i++) {
        tn_tensor *all = tn_cast(train_tokens(run, 2 * number + i), TN_I64);
        tn_copy_out(tn_contiguous(tn_select(all, 0, own % TRAIN_ROWS)), to[i]);
    }
    return tn_error();
}

static void free_rows(tn_dataset *self) {
    free(self);
}

/* The micro-batches of this rank: of all steps, and of one more. */
static tn_loader *loader_of(const train_run *run, tn_group *data) {
    rows *d = calloc(1, sizeof(*d));
    d->run = run;
    d->base = (tn_dataset){.kind = "tokens",
                           .size = (int64_t)run->micros * (run->steps + 1) * TRAIN_ROWS,
                           .x_dims = {1, {run->model.length}},
                           .y_dims = {1, {run->model.length}},
                           .x_dtype = TN_I64,
                           .y_dtype = TN_I64,
                           .get = get_row,
                           .free = free_rows};
    return tn_loader_new(&d->base, tn_distributed_sampler(data, tn_sequential_sampler(), true),
                         TN_WITH(tn_loader, .batch = TRAIN_ROWS, .epochs = 1, .threads = 0));
}

static void attach_mesh(mesh_model *m, const train_run *run, train_groups *g) {
    g->spread = tn_spread_new(m, g->all, spread_of(run));
    if (g->spread) {
        g->data = tn_spread_data(g->spread);
        g->pipeline = g->spread->pipeline;
        g->loader = run->loader ? loader_of(run, g->data) : NULL;
    }
}

train_groups train_attach(mesh_model *m, const train_run *run, tn_group *world) {
    train_groups g = {.all = world, .shard = world, .data = world};
    tn_ddp_options o = run->data;
    o.sum = run->sum;
    if (run->replicas > 1 && run->how == TRAIN_FSDP && !run->alone) {
        int sizes[] = {run->replicas, run->shards};
        g.mesh = tn_mesh_new(world, 2, sizes, (const char *[]){"replicate", "shard"});
        g.replicate = tn_mesh_group(g.mesh, "replicate");
        g.shard = tn_mesh_group(g.mesh, "shard");
    }
    if (run->alone || (run->how != TRAIN_FSDP && run->how != TRAIN_MESH)) {
        tn_module_materialize(m);
    }
    if (run->alone) { return g; }
    if (run->how == TRAIN_DDP) {
        tn_ddp(m, world, o);
    } else if (run->how == TRAIN_DDP_NAIVE) {
        tn_ddp_naive(m, world);
    } else if (run->how == TRAIN_FSDP_NAIVE) {
        tn_fsdp_naive(m, world);
    } else if (run->how == TRAIN_FSDP) {
        attach_sharding(m, run, &g);
    } else {
        attach_mesh(m, run, &g);
    }
    return g;
}

void train_detach(train_groups *g) {
    tn_loader_free(g->loader);
    tn_mesh_free(g->mesh);
    tn_spread_free(g->spread);
}

tn_optim *train_optimiser(mesh_model *m, const train_run *run) {
    if (run->optimiser) { return run->optimiser(m); }
    return tn_adamw(m, TN_WITH(tn_adamw, .lr = 1e-2, .no_decay = tn_match_vectors));
}

/* ---- A step ---------------------------------------------------------------------------------- */

static tn_tensor *loss_of(mesh_model *m, const train_run *run, const train_groups *g,
                          int64_t number) {
    tn_tensor *x = train_tokens(run, 2 * number), *y = train_tokens(run, 2 * number + 1);
    return run->loss ? run->loss(m, g, x, y) : tn_lm_loss(m, x, y);
}

void train_look(mesh_model *m, const train_run *run) {
    if (run->looks == LOOKS_NEVER) { return; }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_generator before = *tn_default_generator();
    tn_module_train(m, false);
    tn_tensor *y = tn_call(m, train_tokens(run, 8));
    if (!isfinite(tn_item(tn_sum_all(tn_cast(y, TN_F32))))) {
        tn_raise(TN_EVALUE, "an evaluation is not finite");
    }
    tn_module_train(m, true);
    *tn_default_generator() = before;
}

static void look_between(mesh_model *m, const train_run *run, const train_groups *g) {
    train_look(m, run);
    if (run->looks == LOOKS_RECORDED) {
        tn_module_train(m, false);
        loss_of(m, run, g, 1);
        tn_module_train(m, true);
    }
}

/* ranks: those that average their gradients. The rest of the division is here. */
static double one_micro(mesh_model *m, const train_run *run, const train_groups *g, int64_t number,
                        tn_scaler *scaler) {
    TN_SCOPE;
    int ranks = run->replicas * run->shards;
    if (run->alone || tn_group_size(g->data) < ranks) { /* else a strategy does so */
        *tn_default_generator() = (tn_generator){.seed = 5, .stream = (uint64_t)number + 1};
    }
    tn_tensor *loss = loss_of(m, run, g, number);
    look_between(m, run, g);
    tn_tensor *part = tn_mul_scalar(loss, (run->sum ? 1.0 : ranks) / run->micros);
    tn_backward(scaler ? tn_scaler_scale(scaler, part) : part);
    return tn_item(loss);
}

/* Of rank `rank`, which may be imitated: its micro-batches from `first` on, to before `end`. */
static void some_micros(mesh_model *m, const train_run *run, const train_groups *g, int64_t step,
                        tn_scaler *scaler, double *losses, int rank, int first, int end) {
    int ranks = run->replicas * run->shards, mine = run->micros / ranks;
    for (int i = first; i < end && !tn_error(); i++) {
        int at = i * ranks + rank;
        TN_NO_SYNC(run->flushes || (run->no_sync && i + 1 < mine) ? m : NULL);
        losses[at] = one_micro(m, run, g, step * run->micros + at, scaler);
    }
    if (run->flushes && !tn_error()) { tn_sync_gradients(m); }
}

static void mesh_micros(const train_run *run, const train_groups *g, int64_t step,
                        tn_scaler *scaler, double *losses) {
    TN_SCOPE;
    int ranks = run->replicas * run->shards, mine = run->micros / ranks;
    tn_batch batches[TRAIN_MOST_MICROS];
    for (int i = 0; i < mine && !g->loader; i++) {
        int64_t number = step * run->micros + i * ranks + tn_group_rank(g->data);
        batches[i].x = train_tokens(run, 2 * number);
        batches[i].y = train_tokens(run, 2 * number + 1);
    }
    double mean = g->loader ? tn_spread_step(g->spread, g->loader, mine, scaler)
                            : tn_pipeline_step(g->pipeline, batches, mine, scaler);
    for (int i = 0; i < mine; i++) {
        losses[i * ranks + tn_group_rank(g->data)] = mean;
    }
}

/* ---- The oracle: adds gradients in the order of the ranks -------------------------------------
 */

typedef struct sums {
    float *at; /* [count] of all parameters */
    bool *has; /* [count] whether an element's parameter has a gradient */
    int64_t count, next;
} sums;

static sums sums_new(int64_t count) {
    return (sums){.at = calloc((size_t)count, sizeof(float)),
                  .has = calloc((size_t)count, sizeof(bool)),
                  .count = count};
}

static void sums_free(sums *s) {
    free(s->at);
    free(s->has);
}

/* to += from; from becomes empty. */
static void sums_move(sums *to, sums *from) {
    for (int64_t i = 0; i < to->count; i++) {
        to->at[i] = to->has[i] && from->has[i] ? to->at[i] + from->at[i]
                    : from->has[i]             ? from->at[i]
                                               : to->at[i];
        to->has[i] |= from->has[i];
        from->has[i] = false;
    }
}

static bool take_grad(const tn_entry *entry, void *user) {
    TN_SCOPE;
    sums *s = user;
    tn_tensor *grad = tn_grad_of(*entry->field);
    int64_t count = tn_count(*entry->field);
    if (grad) {
        tn_copy_out(tn_cast(grad, TN_F32), s->at + s->next);
        memset(s->has + s->next, true, (size_t)count);
        tn_set_grad(*entry->field, NULL);
    }
    s->next += count;
    return true;
}

static bool give_grad(const tn_entry *entry, void *user) {
    TN_SCOPE;
    sums *s = user;
    tn_tensor *p = *entry->field;
    if (tn_count(p) > 0 && s->has[s->next]) {
        tn_tensor *grad =
            tn_to(tn_from_data(s->at + s->next, tn_shape(p), TN_F32), tn_device_of(p));
        tn_set_grad(p, tn_dtype_of(p) == TN_F32 ? grad : tn_cast(grad, tn_dtype_of(p)));
    }
    s->next += tn_count(p);
    return true;
}

/* The gradients of one replica's shards, each of micro-batches `first` to before `end`. DDP adds
 * them to the average that is there (NULL: nothing is) before it averages again. */
static void add_replica(mesh_model *m, const train_run *run, const train_groups *g, int64_t step,
                        tn_scaler *scaler, double *losses, int replica, int first, int end,
                        sums *before, sums *to) {
    sums mine = sums_new(to->count);
    for (int i = 0; i < run->shards; i++) {
        if (before) {
            before->next = 0;
            tn_module_each(m, (tn_walk){0}, give_grad, before);
        }
        some_micros(m, run, g, step, scaler, losses, replica * run->shards + i, first, end);
        mine.next = 0;
        tn_module_each(m, (tn_walk){0}, take_grad, &mine);
        sums_move(to, &mine);
    }
    sums_free(&mine);
}

static bool count_elements(const tn_entry *entry, void *user) {
    *(int64_t *)user += tn_count(*entry->field);
    return true;
}

/* A rank that keeps gradients until its last micro-batch adds its own first; otherwise those of
 * each micro-batch are added over the ranks. */
static void imitate_ranks(mesh_model *m, const train_run *run, const train_groups *g, int64_t step,
                          tn_scaler *scaler, double *losses) {
    int ranks = run->replicas * run->shards, mine = run->micros / ranks;
    int at_once = run->no_sync || run->flushes ? mine : 1;
    bool adds = run->how == TRAIN_DDP || run->how == TRAIN_DDP_NAIVE ||
                (run->how == TRAIN_MESH && run->shards == 1);
    int64_t count = 0;
    tn_module_each(m, (tn_walk){0}, count_elements, &count);
    sums all = sums_new(count), part = sums_new(count), replica = sums_new(count);
    for (int i = 0; i < mine; i += at_once) {
        for (int k = 0; k < run->replicas; k++) {
            add_replica(m, run, g, step, scaler, losses, k, i, i + at_once, adds ? &all : NULL,
                        &replica);
            sums_move(&part, &replica);
        }
        for (int64_t j = 0; j < count && !run->sum; j++) {
            part.at[j] /= (float)ranks;
        }
        if (adds) { memset(all.has, false, (size_t)count); }
        sums_move(&all, &part);
    }
    all.next = 0;
    tn_module_each(m, (tn_walk){0}, give_grad, &all);
    sums_free(&all);
    sums_free(&part);
    sums_free(&replica);
}

double train_step(mesh_model *m, const train_run *run, train_groups *g, int64_t step,
                  tn_scaler *scaler) {
    double losses[TRAIN_MOST_MICROS];
    int ranks = run->replicas * run->shards;
    for (int i = 0; i < run->micros; i++) {
        losses[i] = NAN;
    }
    if (g->pipeline || g->loader) {
        mesh_micros(run, g, step, scaler, losses);
    } else if (tn_group_size(g->data) < ranks) {
        imitate_ranks(m, run, g, step, scaler, losses);
    } else {
        some_micros(m, run, g, step, scaler, losses, tn_group_rank(g->data), 0,
                    run->micros / ranks);
    }
    return tn_error() ? NAN : share_losses(g->all, losses, run->micros);
}

/* The mean loss of a step's micro-batches, without dropout. */
static double validate_model(mesh_model *m, const train_run *run, const train_groups *g,
                             int64_t step) {
    int ranks = run->replicas * run->shards;
    double sum = 0;
    if (g->loader) {
        sum = tn_spread_loss(g->spread, g->loader, run->micros / ranks);
        return tn_group_mean(g->data, sum, 1);
    }
    TN_NO_GRAD;
    tn_module_train(m, false);
    for (int i = 0; i < run->micros; i++) {
        TN_SCOPE;
        sum += tn_item(loss_of(m, run, g, step * run->micros + i));
    }
    tn_module_train(m, true);
    return sum / run->micros;
}

/* ---- A second model on the CPU: what offloading is compared with ------------------------------
 */

/* Alone with offload: the optimiser steps the twin, which receives the gradients and returns the
 * weights. */
static bool has_twin(const train_run *run) {
    return run->alone && run->sharding.offload;
}

static void make_twin(mesh_model *twin, const train_run *run, uint64_t seed) {
    tn_device device = tn_default_device();
    train_run plain = *run;
    plain.bf16 = plain.deferred = false;
    tn_set_default_device(tn_cpu());
    train_model(twin, &plain, seed);
    tn_set_default_device(device);
}

static bool bring_grad(const tn_entry *entry, void *user) {
    TN_SCOPE;
    tn_tensor *grad = tn_grad_of(tn_module_get(user, entry->path));
    return !grad || tn_set_grad(*entry->field, tn_to(grad, tn_cpu())) == TN_OK;
}

static bool take_back(const tn_entry *entry, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    return !tn_is_inert(tn_copy_(tn_module_get(user, entry->path), *entry->field));
}

/* ---- A whole run ----------------------------------------------------------------------------- */

/* Clips and steps; the norm. */
static double update_weights(mesh_model *m, mesh_model *twin, const train_run *run, tn_optim *opt,
                             tn_scaler *scaler) {
    double norm = 0;
    if (twin) { tn_module_each(twin, (tn_walk){0}, bring_grad, m); }
    if (run->clip > 0) {
        norm = scaler            ? tn_scaler_clip(scaler, opt, run->clip)
               : run->clips_grad ? tn_clip_grad_norm(twin ? twin : m, run->clip)
                                 : tn_optim_clip(opt, run->clip);
    }
    if (scaler) {
        tn_scaler_step(scaler, opt);
        tn_scaler_update(scaler);
    } else {
        tn_optim_step(opt);
    }
    if (!run->adds) { tn_optim_zero_grad(opt); }
    if (twin) {
        tn_module_each(twin, (tn_walk){0}, take_back, m);
        tn_module_zero_grad(m);
    }
    return norm;
}

static void train_steps(mesh_model *m, mesh_model *twin, const train_run *run, train_groups *g,
                        train_end *end) {
    tn_optim *opt = train_optimiser(twin ? twin : m, run);
    tn_average *average = run->averaged ? tn_ema(m, 0.5) : NULL;
    tn_scaler *scaler = run->scaled ? tn_scaler_new(TN_WITH(tn_scaler, .scale = 1024)) : NULL;
    for (int step = 0; step < run->steps && !tn_error(); step++) {
        train_look(m, run);
        end->losses[step] = train_step(m, run, g, step, scaler);
        train_look(m, run);
        end->norms[step] = update_weights(m, twin, run, opt, scaler);
        if (run->after) {
            run->after(m, step);
            if (twin) { run->after(twin, step); }
        }
        if (average) { tn_average_update(average); }
    }
    if (run->loader) { end->losses[run->steps] = validate_model(m, run, g, run->steps); }
    end->bits = train_whole(m, g->all);
    if (average) {
        TN_AVERAGED(average);
        train_join(&end->bits, train_whole(m, g->all));
    }
    tn_scaler_free(scaler);
    tn_average_free(average);
    tn_optim_free(opt);
}

train_end train_as_rank(tn_group *world, const train_run *run) {
    TN_SCOPE;
    train_end end = {.alive = {0}};
    mesh_model m, on_cpu, *twin = has_twin(run) ? &on_cpu : NULL;
    /* rank 0's weights are used */
    uint64_t seed = 100 + (run->alone ? 0 : (uint64_t)tn_group_rank(world));
    if (twin) { make_twin(twin, run, seed); }
    train_model(&m, run, seed);
    train_groups g = train_attach(&m, run, run->alone ? NULL : world);
    if (run->bf16 && run->late) { tn_module_set_precision(&m, tn_precision_defaults()); }
    if (!tn_error()) { train_steps(&m, twin, run, &g, &end); }
    end.alive[tn_group_rank(world)] = g.pipeline ? tn_pipeline_alive(g.pipeline) : 0;
    tn_module_finish(twin);
    tn_module_finish(&m);
    train_detach(&g);
    return end;
}
