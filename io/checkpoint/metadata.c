/* What a checkpoint holds besides tensors, as strings by key (metadata.h):
 *
 *     format          tern-checkpoint-1
 *     step, note      as given
 *     model           its description: each module's options (nn/describe.c)
 *     optim           steps, learning rate, number of groups; optim.kind; optim.group.I: lr scale,
 *                     weight decay, number of parameters
 *     loader          epoch and index of the next batch; epochs of a pass, and number of passes
 *                     that have ended; batch size, and number of parts (ranks)
 *     generator       seed, stream, call
 *     scaler          scale, streak
 *     plateau         rate, best, bad ones, cooldown, whether there is a best
 *     average         updates
 *     *.options       of each of them that has some, and of the schedule; loader.data: identifies
 *                     the data
 *
 * Options are JSON objects (nn/describe.c), and are compared with the program's: differences are
 * collected into one error, or logged as warnings if the program asks for that. The others are
 * state: values separated by spaces. Both are made from tables of fields (tern/field.h).
 */
#include "io/checkpoint/metadata.h"

#include "core/error.h"
#include "core/plain_text.h"
#include "data/collate.h"
#include "data/identity.h"
#include "data/sampler.h"
#include "nn/describe.h"
#include "optim/average.h"
#include "tensor/tensor.h"
#include "text/plain_numbers.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "tern-checkpoint-1"

typedef tn__metadata_plan plan;
typedef tn__metadata_record record;

/* ---- Tables ---------------------------------------------------------------------------------- */

#define COUNT .most = 0x1p63 /* from 0 */
#define OPTIONAL .optional = true

static const tn_field step_fields[] = {TN_FIELD(record, step, COUNT), {0}};
static const tn_field optim_fields[] = {TN_FIELD(record, optim_steps, COUNT),
                                        TN_FIELD(record, lr),
                                        TN_FIELD(record, groups, COUNT),
                                        {0}};
static const tn_field loader_fields[] = {TN_FIELD(record, place.epoch, COUNT),
                                         TN_FIELD(record, place.index, COUNT),
                                         TN_FIELD(record, epochs, COUNT),
                                         TN_FIELD(record, passes, COUNT),
                                         TN_FIELD(record, batch, .least = 1, COUNT),
                                         TN_FIELD(record, parts, .least = 1, COUNT),
                                         {0}};
static const tn_field generator_fields[] = {TN_FIELD(record, generator.seed),
                                            TN_FIELD(record, generator.stream),
                                            TN_FIELD(record, generator.call),
                                            {0}};
static const tn_field scaler_fields[] = {
    TN_FIELD(record, scaler.scale, .least = 0x1p-1074, .most = DBL_MAX),
    TN_FIELD(record, scaler.streak, COUNT),
    {0}};
static const tn_field plateau_fields[] = {TN_FIELD(record, plateau.lr, .most = INFINITY),
                                          TN_FIELD(record, plateau.best),
                                          TN_FIELD(record, plateau.bad, COUNT),
                                          TN_FIELD(record, plateau.cooldown, COUNT),
                                          TN_FIELD(record, plateau.any),
                                          {0}};
static const tn_field average_fields[] = {TN_FIELD(record, updates, COUNT), {0}};

typedef struct group {
    tn_optim_group_options options;
    int64_t parameters;
} group;
static const tn_field group_fields[] = {TN_FIELD_OPTION(group, lr_scale),
                                        TN_FIELD_OPTION(group, weight_decay),
                                        TN_FIELD(group, parameters, COUNT),
                                        {0}};

static const tn_field plateau_options_fields[] = {
    TN_FIELD_AS("larger", tn_plateau, larger_is_better),
    TN_FIELD(tn_plateau, factor),
    TN_FIELD(tn_plateau, patience),
    TN_FIELD(tn_plateau, threshold),
    TN_FIELD(tn_plateau, absolute),
    TN_FIELD(tn_plateau, cooldown),
    TN_FIELD(tn_plateau, min_lr),
    TN_FIELD(tn_plateau, eps),
    {0},
};

static const tn_field schedule_fields[] = {
    TN_FIELD(tn_schedule, kind),
    TN_FIELD(tn_schedule, peak),
    TN_FIELD(tn_schedule, end),
    TN_FIELD_AS("warm-up", tn_schedule, warmup, COUNT),
    TN_FIELD(tn_schedule, steps, COUNT),
    TN_FIELD(tn_schedule, factor, OPTIONAL),
    TN_FIELD(tn_schedule, every, OPTIONAL),
    TN_FIELD(tn_schedule, growth, OPTIONAL),
    TN_FIELD(tn_schedule, start, OPTIONAL),
    TN_FIELD(tn_schedule, rise, OPTIONAL),
    {0},
};
enum { WARMUP = 3, STEPS = 4 }; /* positions in the table */

typedef struct loader_options {
    const char *dataset;
    int64_t examples;
    tn_sampler sampler;
    bool drop_last;
    int64_t step;
    char weights[33], lengths[33];
    double x_pad, y_pad;
} loader_options;
static const char *const short_batches[] = {"kept", "dropped", NULL};
static const tn_field loader_options_fields[] = {
    TN_FIELD(loader_options, dataset),
    TN_FIELD(loader_options, examples),
    TN_FIELD_AS("order", loader_options, sampler.kind),
    TN_FIELD_AS("seed", loader_options, sampler.seed),
    TN_FIELD_AS("shared by rule", loader_options, sampler.rule),
    TN_FIELD_AS("short batches", loader_options, drop_last, .names = short_batches),
    TN_FIELD_AS("draws", loader_options, sampler.draws, OPTIONAL),
    TN_FIELD_AS("weights", loader_options, weights, OPTIONAL),
    TN_FIELD_AS("bucket", loader_options, sampler.bucket, OPTIONAL),
    TN_FIELD_AS("step", loader_options, step, OPTIONAL),
    TN_FIELD_AS("lengths", loader_options, lengths, OPTIONAL),
    TN_FIELD(loader_options, x_pad, OPTIONAL),
    TN_FIELD(loader_options, y_pad, OPTIONAL),
    {0},
};

/* ---- Options --------------------------------------------------------------------------------- */

static void put_optim(tn__members *m, const tn_checkpoint *c) {
    tn__fields_put(m, c->optim->method->fields, c->optim->options, false);
}

static void put_loader(tn__members *m, const tn_checkpoint *c) {
    tn_loader_options options = tn_loader_options_of(c->loader);
    const tn_dataset *d = tn_loader_dataset(c->loader);
    loader_options o = {.dataset = d->kind,
                        .examples = d->size,
                        .sampler = tn_loader_sampler(c->loader),
                        .drop_last = options.drop_last,
                        .x_pad = tn__dims_vary(d->x_dims) ? options.x_pad : 0,
                        .y_pad = tn__dims_vary(d->y_dims) ? options.y_pad : 0};
    bool weighted = o.sampler.kind == TN_SAMPLE_WEIGHTED;
    if (o.sampler.table) {
        tn__sampler_identify(&o.sampler, weighted ? o.weights : o.lengths, &o.step);
    }
    tn__fields_put(m, loader_options_fields, &o, false);
}

static void put_schedule(tn__members *m, const tn_checkpoint *c) {
    const tn_schedule *s = c->schedule;
    tn__fields_put(m, schedule_fields, s, false);
    for (int i = 0; i < s->milestone_count && i < TN_MILESTONES; i++) {
        char step[24];
        snprintf(step, sizeof(step), "%" PRId64, s->milestones[i]);
        tn__member_put(m, "at", step, false);
    }
}

static void put_example(tn__members *m, const char *name, tn_dims dims, tn_dtype dtype) {
    char text[256];
    snprintf(text, sizeof(text), "%s%s", tn_dtype_name(dtype), tn__dims_text(dims));
    tn__member_put(m, name, text, true);
}

static void put_data(tn__members *m, const tn_checkpoint *c) {
    tn_dataset *d = (tn_dataset *)tn_loader_dataset(c->loader);
    put_example(m, "x", d->x_dims, d->x_dtype);
    if (d->y_dims.ndim >= 0) { put_example(m, "y", d->y_dims, d->y_dtype); }
    tn__dataset_put(m, d, m->to->operation);
}

/* ---- Members of a checkpoint ----------------------------------------------------------------- */

/* What is kept of a member under a key: state, or options. */
typedef struct part {
    const char *key;
    size_t member;
    const tn_field *state;   /* of a record */
    const tn_field *options; /* of the member, or: */
    void (*put)(tn__members *m, const tn_checkpoint *c);
    const char *where; /* in messages about options; NULL: the optimiser's kind */
} part;

#define STATE(name) \
    { #name, offsetof(tn_checkpoint, name), .state = name##_fields }
#define OPTIONS(key, name, fields, put, where) \
    { key, offsetof(tn_checkpoint, name), NULL, fields, put, where }

static const part all_parts[] = {
    STATE(optim),
    STATE(loader),
    STATE(generator),
    STATE(scaler),
    STATE(plateau),
    STATE(average),
    OPTIONS("optim.options", optim, NULL, put_optim, NULL),
    OPTIONS("schedule.options", schedule, NULL, put_schedule, "the schedule"),
    OPTIONS("loader.options", loader, NULL, put_loader, "the loader"),
    OPTIONS("loader.data", loader, NULL, put_data, "the data"),
    OPTIONS("scaler.options", scaler, tn__scaler_fields, NULL, "the scaler"),
    OPTIONS("plateau.options", plateau, plateau_options_fields, NULL, "the plateau"),
    OPTIONS("average.options", average, tn__average_fields, NULL, "the average"),
};
enum { PARTS = sizeof(all_parts) / sizeof(*all_parts) };

static const void *member_of(const tn_checkpoint *c, const part *p) {
    const void *at;
    memcpy(&at, (const char *)c + p->member, sizeof(at));
    return at;
}

/* The string, which the caller frees; NULL after raising. */
static char *finish_text(tn__buffer *j) {
    if (tn__pending()) { tn__buffer_free(j); }
    return j->at;
}

static char *options_text(const part *o, const tn_checkpoint *c, const char *operation) {
    tn__buffer j = {.operation = operation};
    tn__members m = tn__members_begin(&j);
    if (o->options) {
        tn__fields_put(&m, o->options, member_of(c, o), false);
    } else {
        o->put(&m, c);
    }
    tn__members_end(&m);
    return finish_text(&j);
}

typedef struct group_key {
    char at[48];
} group_key;

static group_key key_of_group(int index) {
    group_key k;
    snprintf(k.at, sizeof(k.at), "optim.group.%d", index);
    return k;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A pass whose end is not yet reported has not ended, but its position is the next one's beginning,
 * which exists for any batch size. */
static void note_loader(record *r, const tn_loader *l) {
    tn_loader_options o = tn_loader_options_of(l);
    tn_loader_place place = tn_loader_where(l);
    r->epochs = o.epochs;
    r->passes = o.epochs ? place.epoch / o.epochs : 0;
    r->batch = o.batch;
    r->parts = tn_loader_sampler(l).parts;
    bool ended = place.index == tn_loader_batches(l);
    tn_loader_place next = {.epoch = place.epoch + 1};
    r->place = ended ? next : place;
}

static record record_of(const tn_checkpoint *c) {
    record r = {.step = c->step};
    if (c->optim) {
        r.optim_steps = tn_optim_steps(c->optim);
        r.lr = tn_optim_lr(c->optim);
        r.groups = tn_optim_groups(c->optim);
    }
    if (c->loader) { note_loader(&r, c->loader); }
    if (c->generator) { r.generator = *c->generator; }
    if (c->scaler) { r.scaler = tn_scaler_where(c->scaler); }
    if (c->plateau) { r.plateau = c->plateau->state; }
    if (c->average) { r.updates = tn_average_updates(c->average); }
    return r;
}

/* Where the strings go. */
typedef struct sink {
    tn__metadata_put *put;
    void *user;
    const char *operation;
} sink;

/* Puts and frees the value; NULL: making it has raised. */
static bool put_text(const sink *s, const char *key, char *value) {
    bool done = value && s->put(s->user, key, value);
    free(value);
    return done;
}

static bool put_words(const sink *s, const char *key, const tn_field *fields, const void *at) {
    tn__buffer j = {.operation = s->operation};
    tn__fields_put_words(&j, fields, at);
    return put_text(s, key, finish_text(&j));
}

static bool put_groups(const sink *s, tn_optim *opt) {
    bool done = s->put(s->user, "optim.kind", tn_optim_kind(opt));
    for (int i = 0; done && i < tn_optim_groups(opt); i++) {
        const group g = {*tn_optim_group(opt, i), tn__optim_group_count(opt, i)};
        if (!isfinite(g.options.lr_scale) || !isfinite(g.options.weight_decay)) {
            return tn__fail(TN_EVALUE, s->operation,
                            "group %d of the optimiser has lr scale %g and weight decay %g", i,
                            g.options.lr_scale, g.options.weight_decay);
        }
        done = put_words(s, key_of_group(i).at, group_fields, &g);
    }
    return done;
}

static bool put_all(const sink *s, const tn_checkpoint *c) {
    const record now = record_of(c);
    char note[sizeof(c->note)];
    snprintf(note, sizeof(note), "%s", c->note);
    bool done = s->put(s->user, "format", FORMAT) && put_words(s, "step", step_fields, &now) &&
                s->put(s->user, "note", note) &&
                (!c->model || put_text(s, "model", tn__module_describe(c->model, s->operation))) &&
                (!c->optim || put_groups(s, c->optim));
    for (const part *p = all_parts; done && p < all_parts + PARTS; p++) {
        if (member_of(c, p)) {
            done = p->state ? put_words(s, p->key, p->state, &now)
                            : put_text(s, p->key, options_text(p, c, s->operation));
        }
    }
    return done;
}

bool tn__metadata_write(const tn_checkpoint *c, const char *operation, tn__metadata_put *put,
                        void *user) {
    const sink s = {put, user, operation};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool done = put_all(&s, c);
    tn__plain_numbers_end(numbers);
    return done;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool refuse_text(const plan *p, const char *key) {
    const char *text = tn__json_text(p->metadata, key);
    return tn__fail(TN_EFORMAT, p->operation, "%s: %s is \"%.80s\"", p->path, key,
                    text ? text : "missing");
}

/* Fills *at from the values under a key. */
static bool read_words(const plan *p, const char *key, const tn_field *fields, void *at) {
    const char *text = tn__json_text(p->metadata, key);
    bool fits = text && !tn__fields_read_words(fields, at, &text) && !*text;
    return fits || refuse_text(p, key);
}

/* Raises unless the program's member and its key in the file are both present, or neither. */
static bool check_presence(const plan *p, const part *of) {
    bool in_file = tn__json_text(p->metadata, of->key) != NULL;
    bool wanted = member_of(p->checkpoint, of) != NULL;
    if (in_file == wanted || (in_file && p->checkpoint->partial)) { return true; }
    return tn__fail(TN_EMISMATCH, p->operation, "%s has %s %.*s, but the program %s", p->path,
                    in_file ? "state of the" : "no state of a", (int)strcspn(of->key, "."), of->key,
                    in_file ? "has none to load it into" : "asks for one");
}

static bool read_states(plan *p) {
    bool read = true;
    for (const part *s = all_parts; read && s < all_parts + PARTS; s++) {
        if (s->state) {
            read = check_presence(p, s) &&
                   (!member_of(p->checkpoint, s) || read_words(p, s->key, s->state, &p->record));
        }
    }
    return read;
}

static bool read_group(const plan *p, int index, group *g) {
    return read_words(p, key_of_group(index).at, group_fields, g);
}

static bool check_groups(plan *p) {
    tn_optim *opt = p->checkpoint->optim;
    if (p->record.groups != tn_optim_groups(opt)) {
        return tn__fail(TN_EMISMATCH, p->operation,
                        "%s: the optimiser had %" PRId64 " parameter groups but has %d", p->path,
                        p->record.groups, tn_optim_groups(opt));
    }
    for (int i = 0; i < tn_optim_groups(opt); i++) {
        group g;
        if (!read_group(p, i, &g)) { return false; }
        int mine = tn__optim_group_count(opt, i);
        if (g.parameters != mine) {
            tn__differ(&p->differences,
                       "group %d of the optimiser: parameters was %" PRId64 " but is %d", i,
                       g.parameters, mine);
        }
    }
    return true;
}

static bool check_optim(plan *p) {
    if (!p->checkpoint->optim) { return true; }
    const char *kind = tn_optim_kind(p->checkpoint->optim);
    const char *theirs = tn__json_text(p->metadata, "optim.kind");
    if (!theirs) { return refuse_text(p, "optim.kind"); }
    if (strcmp(theirs, kind) != 0) {
        return tn__fail(TN_EMISMATCH, p->operation, "%s: the optimiser was %s but is %s", p->path,
                        tn__show(theirs).text, kind);
    }
    return check_groups(p);
}

/* Reads the file's numbers of steps, if nothing else in it differs. */
static bool steps_alone(const plan *p, const part *o, const char *theirs, tn_schedule *before) {
    tn__json_file f;
    if (!tn__description_read(&f, theirs, p->path, p->operation)) { return false; }
    const tn__json *warmup = tn__json_get(f.values, "warm-up");
    const tn__json *steps = tn__json_get(f.values, "steps");
    bool read = warmup && warmup->text && steps && steps->text &&
                tn__field_read(&schedule_fields[WARMUP], before, warmup->text) &&
                tn__field_read(&schedule_fields[STEPS], before, steps->text);
    tn__json_free(&f);
    char *mine = read ? options_text(o, &(tn_checkpoint){.schedule = before}, p->operation) : NULL;
    bool alone = mine && strcmp(mine, theirs) == 0;
    free(mine);
    return alone;
}

/* Whether the schedule differs from the file's only by more steps (warm-up too), and may. */
static bool has_grown(const plan *p, const part *o) {
    const tn_checkpoint *c = p->checkpoint;
    if (o->put != put_schedule || !c->longer_than) { return false; }
    tn_schedule before = *c->schedule;
    if (!steps_alone(p, o, tn__json_text(p->metadata, o->key), &before)) { return false; }
    *c->longer_than = before.steps;
    return before.steps < c->schedule->steps && before.warmup <= c->schedule->warmup;
}

/* A run must have all options as before; weights alone, those that affect results. */
static bool compare_model(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    const char *theirs = tn__json_text(p->metadata, "model");
    char *mine = c->model ? tn__module_describe(c->model, p->operation) : NULL;
    bool done = !c->model ||
                (mine && theirs ? tn__differ_models(&p->differences, theirs, mine, c->optim == NULL)
                                : mine && refuse_text(p, "model"));
    free(mine);
    return done;
}

/* The data are compared by the rank that saved: the others may have their own shares. */
static bool compare_options(plan *p, const part *o) {
    const tn_checkpoint *c = p->checkpoint;
    if (!check_presence(p, o)) { return false; }
    bool skipped = o->put == put_data && p->differences.quiet;
    if (!member_of(c, o) || skipped || has_grown(p, o)) { return !tn__pending(); }
    char *mine = options_text(o, c, p->operation);
    bool done =
        mine && tn__differ_options(&p->differences, o->where ? o->where : tn_optim_kind(c->optim),
                                   tn__json_text(p->metadata, o->key), mine);
    free(mine);
    return done;
}

static bool compare_all(plan *p) {
    bool compared = compare_model(p);
    for (const part *o = all_parts; compared && o < all_parts + PARTS; o++) {
        compared = o->state || compare_options(p, o);
    }
    return compared;
}

/* Converts the file's position among its batches for this loader: it stays if batch and parts
 * (ranks) are the same. Otherwise it is the batch with the next example of all parts together, so
 * that up to a batch is seen again. With the same parts another batch size is another run. */
static void convert_place(plan *p) {
    const tn_loader *l = p->checkpoint->loader;
    record *r = &p->record;
    int64_t batch = tn_loader_options_of(l).batch, parts = tn_loader_sampler(l).parts;
    if (r->parts == parts && r->batch == batch) { return; }
    if (r->parts == parts) {
        tn__differ(&p->differences,
                   "the batch was %" PRId64 " but is %" PRId64 " (with as many ranks as before)",
                   r->batch, batch);
    }
    double done = (double)r->place.index * (double)r->batch * (double)r->parts;
    double index = floor(done / ((double)batch * (double)parts));
    int64_t batches = tn_loader_batches(l);
    r->place.index = index < (double)batches ? (int64_t)index : batches - 1;
}

/* Whether the loader has the position. Other data may have shorter epochs: then this one starts
 * over. */
static bool place_fits(plan *p) {
    const tn_loader *l = p->checkpoint->loader;
    tn_loader_place *place = &p->record.place;
    int64_t epochs = tn_loader_options_of(l).epochs, batches = tn_loader_batches(l), before;
    bool overflow = __builtin_mul_overflow(p->record.epochs, p->record.passes, &before);
    int64_t done = place->epoch - before; /* epochs of the current pass */
    if (overflow || done < 0) { return refuse_text(p, "loader"); }
    if (place->index >= batches && p->differences.count) { place->index = 0; }
    if (epochs && (done > epochs || (done == epochs && place->index > 0))) {
        return tn__fail(TN_EMISMATCH, p->operation,
                        "%s: the loader had begun epoch %" PRIu64 " but ends after %" PRId64,
                        p->path, (uint64_t)done + 1, epochs);
    }
    tn_loader_place end = {.epoch = place->epoch - 1, .index = batches};
    if (epochs && done == epochs && tn_loader_has(l, end)) {
        *place = end; /* not yet reported */
        return true;
    }
    return (tn_loader_has(l, *place) && place->index < batches) || refuse_text(p, "loader");
}

static bool check_loader(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    if (!c->loader) { return true; }
    convert_place(p);
    if (c->batch_before &&
        __builtin_mul_overflow(p->record.batch, p->record.parts, c->batch_before)) {
        *c->batch_before = 0;
    }
    return place_fits(p);
}

static bool read_head(plan *p) {
    const char *format = tn__json_text(p->metadata, "format");
    const char *note = tn__json_text(p->metadata, "note");
    if (!format || strcmp(format, FORMAT) != 0) { return refuse_text(p, "format"); }
    bool note_fits = note && strlen(note) < sizeof(((tn_checkpoint *)0)->note);
    return read_words(p, "step", step_fields, &p->record) && (note_fits || refuse_text(p, "note"));
}

bool tn__metadata_read(tn__metadata_plan *p, tn_checkpoint *c, const tn__json *metadata,
                       const char *path, const char *operation, bool first) {
    *p = (plan){.checkpoint = c,
                .metadata = metadata,
                .path = path,
                .operation = operation,
                .differences = {.path = path,
                                .operation = operation,
                                .hint = tn__continue_hint,
                                .warn = c->other_run,
                                .quiet = !first}};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool read = read_head(p) && read_states(p) && check_optim(p) && compare_all(p) &&
                check_loader(p) && tn__differences_end(&p->differences) == TN_OK;
    tn__plain_numbers_end(numbers);
    return read;
}

static void apply_optim(const plan *p) {
    tn_optim *opt = p->checkpoint->optim;
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    tn_optim_set_steps(opt, p->record.optim_steps);
    tn_optim_set_lr(opt, p->record.lr);
    for (int i = 0; i < tn_optim_groups(opt); i++) {
        group g = {.options = *tn_optim_group(opt, i)};
        if (read_group(p, i, &g)) { *tn_optim_group(opt, i) = g.options; }
    }
    tn__plain_numbers_end(numbers);
}

void tn__metadata_apply(const tn__metadata_plan *p) {
    tn_checkpoint *c = p->checkpoint;
    const record *r = &p->record;
    if (c->optim) { apply_optim(p); }
    if (c->loader) { tn_loader_seek(c->loader, r->place); }
    if (c->generator) { *c->generator = r->generator; }
    if (c->scaler) { tn_scaler_seek(c->scaler, r->scaler); }
    if (c->plateau) { c->plateau->state = r->plateau; }
    if (c->average) { tn__average_set_updates(c->average, r->updates); }
    c->step = r->step;
    snprintf(c->note, sizeof(c->note), "%s", tn__json_text(p->metadata, "note"));
}
