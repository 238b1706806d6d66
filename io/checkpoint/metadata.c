/* What a checkpoint holds besides tensors, as strings by key (metadata.h):
 *
 *     format          tern-checkpoint-1
 *     step, note      as given
 *     model           its description: each module's options (nn/describe.c)
 *     optim           kind, steps, learning rate, number of groups;
 *                     optim.group.I: lr scale and weight decay; optim.group.I.parameters: their
 *                     number; optim.options: those that the groups share
 *     schedule        its options
 *     loader          what it loads and how; loader.data: identifies the data; loader.place: epoch
 *                     and index of the next batch; loader.passes: epochs per pass, and number of
 *                     passes that have ended; loader.share: batch size, and number of parts (ranks)
 *     generator       seed, stream, call
 *     scaler          scale, streak; scaler.options
 *     plateau         rate, best, bad ones, cooldown, whether there is a best; plateau.options
 *     average         updates; average.options
 *
 * Options are JSON objects (nn/describe.c). The others are state: values separated by spaces. Both
 * are made from tables of fields (tern/field.h). Options are compared with the program's:
 * differences are collected into one error, or logged as warnings if the program asks for that. A
 * file without a string is older than it, and nothing is compared.
 */
#include "io/checkpoint/metadata.h"

#include "core/error.h"
#include "data/collate.h"
#include "data/identity.h"
#include "data/sampler.h"
#include "io/shown.h"
#include "nn/describe.h"
#include "optim/average.h"
#include "text/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "tern-checkpoint-1"

typedef tn__metadata_plan plan;

/* ---- Tables ---------------------------------------------------------------------------------- */

#define COUNT .most = 0x1p63 /* from 0 */
#define OPTIONAL .optional = true

static const tn_field optim_fields[] = {TN_FIELD_AS("steps", plan, optim_steps, COUNT),
                                        TN_FIELD(plan, lr),
                                        TN_FIELD(plan, groups, COUNT),
                                        {0}};
static const tn_field group_fields[] = {TN_FIELD(tn_optim_group_options, lr_scale),
                                        TN_FIELD(tn_optim_group_options, weight_decay),
                                        {0}};
static const tn_field place_fields[] = {
    TN_FIELD(tn_loader_place, epoch, COUNT), TN_FIELD(tn_loader_place, index, COUNT), {0}};
static const tn_field generator_fields[] = {TN_FIELD(tn_generator, seed),
                                            TN_FIELD(tn_generator, stream),
                                            TN_FIELD(tn_generator, call),
                                            {0}};
static const tn_field scaler_fields[] = {
    TN_FIELD(tn_scaler_state, scale), TN_FIELD(tn_scaler_state, streak, COUNT), {0}};
static const tn_field plateau_fields[] = {TN_FIELD(tn_plateau_state, lr, .most = INFINITY),
                                          TN_FIELD(tn_plateau_state, best),
                                          TN_FIELD(tn_plateau_state, bad, COUNT),
                                          TN_FIELD(tn_plateau_state, cooldown, COUNT),
                                          TN_FIELD(tn_plateau_state, any),
                                          {0}};

/* One or two numbers. */
typedef struct pair {
    int64_t first, second;
} pair;
static const tn_field pair_fields[] = {
    TN_FIELD(pair, first, COUNT), TN_FIELD(pair, second, COUNT), {0}};
static const tn_field number_fields[] = {TN_FIELD_AS("number", pair, first, COUNT), {0}};

static const tn_field plateau_options[] = {
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

typedef struct average_options {
    bool alike;
    double decay;
} average_options;
static const char *const weighings[] = {"weighted", "alike", NULL};
static const tn_field average_fields[] = {
    TN_FIELD_AS("all", average_options, alike, OPTIONAL, .names = weighings),
    TN_FIELD_AS("decay", average_options, decay, .unless = TN_UNLESS(average_options, alike)),
    {0},
};

/* A schedule, and whether its kind has no further options. */
typedef struct schedule_options {
    tn_schedule s;
    bool plain;
} schedule_options;
#define OWN .unless = TN_UNLESS(schedule_options, plain)
static const tn_field schedule_fields[] = {
    TN_FIELD_AS("kind", schedule_options, s.kind),
    TN_FIELD_AS("peak", schedule_options, s.peak),
    TN_FIELD_AS("end", schedule_options, s.end),
    TN_FIELD_AS("warm-up", schedule_options, s.warmup, COUNT),
    TN_FIELD_AS("steps", schedule_options, s.steps, COUNT),
    TN_FIELD_AS("factor", schedule_options, s.factor, OWN),
    TN_FIELD_AS("every", schedule_options, s.every, OWN),
    TN_FIELD_AS("growth", schedule_options, s.growth, OWN),
    TN_FIELD_AS("start", schedule_options, s.start, OWN),
    TN_FIELD_AS("rise", schedule_options, s.rise, OWN),
    {0},
};
enum { WARMUP = 3, STEPS = 4 }; /* positions in the table */

typedef struct loader_options {
    const char *dataset;
    int64_t examples;
    tn_sampler sampler;
    bool drop_last;
    int64_t draws, bucket, step;
    char weights[33], lengths[33];
    char pads[2 * sizeof(tn__number)];
} loader_options;
static const char *const short_batches[] = {"kept", "dropped", NULL};
static const tn_field loader_fields[] = {
    TN_FIELD(loader_options, dataset),
    TN_FIELD(loader_options, examples),
    TN_FIELD_AS("order", loader_options, sampler.kind),
    TN_FIELD_AS("seed", loader_options, sampler.seed),
    TN_FIELD_AS("shared by rule", loader_options, sampler.rule),
    TN_FIELD_AS("short batches", loader_options, drop_last, .names = short_batches),
    TN_FIELD_AS("draws", loader_options, draws, OPTIONAL),
    TN_FIELD_AS("weights", loader_options, weights, OPTIONAL),
    TN_FIELD_AS("bucket", loader_options, bucket, OPTIONAL),
    TN_FIELD_AS("step", loader_options, step, OPTIONAL),
    TN_FIELD_AS("lengths", loader_options, lengths, OPTIONAL),
    TN_FIELD_AS("padded by", loader_options, pads, OPTIONAL),
    {0},
};

static loader_options options_of_loader(const tn_loader *l) {
    tn_loader_options o = tn_loader_options_of(l);
    const tn_dataset *d = tn_loader_dataset(l);
    loader_options told = {.dataset = d->kind,
                           .examples = d->size,
                           .sampler = tn_loader_sampler(l),
                           .drop_last = o.drop_last};
    int64_t step;
    if (told.sampler.kind == TN_SAMPLE_WEIGHTED) {
        tn__sampler_identify(&told.sampler, told.weights, &step);
        told.draws = told.sampler.draws;
    } else if (told.sampler.kind == TN_SAMPLE_BUCKETED) {
        tn__sampler_identify(&told.sampler, told.lengths, &told.step);
        told.bucket = told.sampler.bucket;
    }
    bool x = tn__dims_vary(d->x_dims), y = tn__dims_vary(d->y_dims);
    if (x || y) {
        snprintf(told.pads, sizeof(told.pads), "%s:%s", tn__number_of(x ? o.x_pad : 0).text,
                 tn__number_of(y ? o.y_pad : 0).text);
    }
    return told;
}

/* ---- Strings for both directions ------------------------------------------------------------- */

/* The string, which the caller frees; NULL after raising. */
static char *finish_text(tn__buffer *j) {
    if (tn__pending()) { tn__buffer_free(j); }
    return j->at;
}

static char *options_text(const tn_field *fields, const void *at, const char *operation) {
    tn__buffer j = {.operation = operation};
    tn__members m = tn__members_begin(&j);
    tn__fields_put(&m, fields, at, false);
    tn__members_end(&m);
    return finish_text(&j);
}

static char *optim_text(const tn_optim *opt, const char *operation) {
    return options_text(opt->method->fields, opt->options, operation);
}

static char *average_text(const tn_average *a, const char *operation) {
    double decay = tn__average_decay(a);
    return options_text(average_fields, &(average_options){decay < 0, decay}, operation);
}

static char *loader_text(const tn_loader *l, const char *operation) {
    loader_options o = options_of_loader(l);
    return options_text(loader_fields, &o, operation);
}

static char *schedule_text(const tn_schedule *schedule, const char *operation) {
    schedule_options o = {*schedule, schedule->kind <= TN_COSINE};
    tn__buffer j = {.operation = operation};
    tn__members m = tn__members_begin(&j);
    tn__fields_put(&m, schedule_fields, &o, false);
    for (int i = 0; !o.plain && i < o.s.milestone_count && i < TN_MILESTONES; i++) {
        char step[24];
        snprintf(step, sizeof(step), "%" PRId64, o.s.milestones[i]);
        tn__member_put(&m, "at", step, false);
    }
    tn__members_end(&m);
    return finish_text(&j);
}

/* "f32[3x4]" */
static void put_example(tn__members *m, const char *name, tn_dims dims, tn_dtype dtype) {
    char text[32 * TN_MAX_DIMS];
    int used = snprintf(text, sizeof(text), "%s[", tn_dtype_name(dtype));
    for (int i = 0; i < dims.ndim; i++) {
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%" PRId64, i ? "x" : "",
                         dims.size[i]);
    }
    snprintf(text + used, sizeof(text) - (size_t)used, "]");
    tn__member_put(m, name, text, true);
}

static char *data_text(const tn_loader *l, const char *operation) {
    tn_dataset *d = (tn_dataset *)tn_loader_dataset(l);
    tn__buffer j = {.operation = operation};
    tn__members m = tn__members_begin(&j);
    put_example(&m, "x", d->x_dims, d->x_dtype);
    if (d->y_dims.ndim >= 0) { put_example(&m, "y", d->y_dims, d->y_dtype); }
    tn__dataset_put(&m, d, operation);
    tn__members_end(&m);
    return finish_text(&j);
}

typedef struct group_key {
    char at[48];
} group_key;

static group_key key_of_group(int index, const char *of) {
    group_key k;
    snprintf(k.at, sizeof(k.at), "optim.group.%d%s", index, of);
    return k;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Where the strings go. */
typedef struct sink {
    tn__metadata_put *put;
    void *user;
    const char *operation;
} sink;

/* Puts and frees the value; NULL: making it has raised. */
static bool put_options(const sink *s, const char *key, char *value) {
    bool done = value && s->put(s->user, key, value);
    free(value);
    return done;
}

static bool put_words(const sink *s, const char *key, const tn_field *fields, const void *at) {
    tn__buffer j = {.operation = s->operation};
    tn__fields_put_words(&j, fields, at);
    return put_options(s, key, finish_text(&j));
}

static bool put_pair(const sink *s, const char *key, int64_t first, int64_t second) {
    return put_words(s, key, pair_fields, &(pair){first, second});
}

static bool put_number(const sink *s, const char *key, int64_t number) {
    return put_words(s, key, number_fields, &(pair){.first = number});
}

static bool put_optim(const sink *s, tn_optim *opt) {
    int groups = tn_optim_groups(opt);
    const plan now = {.optim_steps = tn_optim_steps(opt), .lr = tn_optim_lr(opt), .groups = groups};
    tn__buffer j = {.operation = s->operation};
    tn__buffer_format(&j, "%s ", tn_optim_kind(opt));
    tn__fields_put_words(&j, optim_fields, &now);
    bool done = put_options(s, "optim", finish_text(&j)) &&
                put_options(s, "optim.options", optim_text(opt, s->operation));
    for (int i = 0; done && i < groups; i++) {
        const tn_optim_group_options *g = tn_optim_group(opt, i);
        if (!isfinite(g->lr_scale) || !isfinite(g->weight_decay)) {
            tn__raise(TN_EVALUE, s->operation,
                      "group %d of the optimiser has lr scale %g and weight decay %g", i,
                      g->lr_scale, g->weight_decay);
            return false;
        }
        done = put_words(s, key_of_group(i, "").at, group_fields, g) &&
               put_number(s, key_of_group(i, ".parameters").at, tn__optim_group_count(opt, i));
    }
    return done;
}

static bool put_scaler(const sink *s, const tn_scaler *scaler) {
    tn_scaler_state state = tn_scaler_where(scaler);
    return put_words(s, "scaler", scaler_fields, &state) &&
           put_options(s, "scaler.options", options_text(tn__scaler_fields, scaler, s->operation));
}

static bool put_plateau(const sink *s, const tn_plateau *p) {
    return put_words(s, "plateau", plateau_fields, &p->state) &&
           put_options(s, "plateau.options", options_text(plateau_options, p, s->operation));
}

static bool put_average(const sink *s, const tn_average *a) {
    return put_number(s, "average", tn_average_updates(a)) &&
           put_options(s, "average.options", average_text(a, s->operation));
}

/* A pass whose end is not yet reported has not ended, but its position is the next one's beginning,
 * which exists for any batch size. */
static bool put_loader(const sink *s, const tn_loader *l) {
    tn_loader_place place = tn_loader_where(l);
    int64_t epochs = tn_loader_options_of(l).epochs, ended = epochs ? place.epoch / epochs : 0;
    if (place.index == tn_loader_batches(l)) {
        place = (tn_loader_place){.epoch = place.epoch + 1};
    }
    return put_options(s, "loader", loader_text(l, s->operation)) &&
           put_options(s, "loader.data", data_text(l, s->operation)) &&
           put_words(s, "loader.place", place_fields, &place) &&
           put_pair(s, "loader.passes", epochs, ended) &&
           put_pair(s, "loader.share", tn_loader_options_of(l).batch, tn_loader_sampler(l).parts);
}

static bool put_all(const sink *s, const tn_checkpoint *c) {
    char note[sizeof(c->note)];
    snprintf(note, sizeof(note), "%s", c->note);
    return s->put(s->user, "format", FORMAT) && put_number(s, "step", c->step) &&
           s->put(s->user, "note", note) &&
           (!c->model || put_options(s, "model", tn__module_describe(c->model, s->operation))) &&
           (!c->optim || put_optim(s, c->optim)) && (!c->scaler || put_scaler(s, c->scaler)) &&
           (!c->plateau || put_plateau(s, c->plateau)) &&
           (!c->average || put_average(s, c->average)) &&
           (!c->schedule || put_options(s, "schedule", schedule_text(c->schedule, s->operation))) &&
           (!c->loader || put_loader(s, c->loader)) &&
           (!c->generator || put_words(s, "generator", generator_fields, c->generator));
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
    const char *text = tn__labels_get(p->labels, key);
    tn__raise(TN_EFORMAT, p->operation, "%s: %s is \"%.80s\"", p->path, key,
              text ? text : "missing");
    return false;
}

/* Fills *at from the values under a key. */
static bool read_words(const plan *p, const char *key, const tn_field *fields, void *at) {
    const char *text = tn__labels_get(p->labels, key);
    return (text && tn__fields_read_words(fields, at, text)) || refuse_text(p, key);
}

/* Raises unless the program's member and its key in the file are both present, or neither. *wanted:
 * there is something to load. */
static bool member_in_file(const plan *p, const void *member, const char *key, bool *wanted) {
    bool in_file = tn__labels_get(p->labels, key) != NULL;
    *wanted = member != NULL;
    if ((member && !in_file) || (!member && in_file && !p->checkpoint->partial)) {
        tn__raise(TN_EMISMATCH, p->operation, "%s has %s %s, but the program %s", p->path,
                  in_file ? "state of the" : "no state of a", key,
                  in_file ? "has none to load it into" : "asks for one");
        return false;
    }
    return true;
}

/* The file's string under a key that older files lack; NULL: nothing can be compared. */
static const char *newer_text(const plan *p, const char *key) {
    const char *theirs = tn__labels_get(p->labels, key);
    if (!theirs && !p->differences.quiet) {
        tn_log_write(TN_LOG_INFO, "%s: has no %s, so it is not compared", p->path, key);
    }
    return theirs;
}

/* Compares and frees `mine`; NULL: making it has raised. If the file lacks the key nothing is
 * compared. A run must have all options as before; weights alone, those that affect results. */
static bool compare_with(plan *p, const char *key, const char *where, char *mine) {
    const char *theirs = mine ? newer_text(p, key) : NULL;
    tn__differences *d = &p->differences;
    bool done =
        mine &&
        (!theirs || (where ? tn__differ_options(d, where, theirs, mine)
                           : tn__differ_models(d, theirs, mine, p->checkpoint->optim == NULL)));
    free(mine);
    return done;
}

static bool compare_model(plan *p) {
    void *m = p->checkpoint->model;
    return !m || compare_with(p, "model", NULL, tn__module_describe(m, p->operation));
}

static bool read_group(const plan *p, int index, tn_optim_group_options *g) {
    return read_words(p, key_of_group(index, "").at, group_fields, g);
}

static void compare_group(plan *p, int index) {
    const char *theirs = newer_text(p, key_of_group(index, ".parameters").at);
    char mine[16];
    snprintf(mine, sizeof(mine), "%d", tn__optim_group_count(p->checkpoint->optim, index));
    if (theirs && strcmp(theirs, mine) != 0) {
        tn__differ(&p->differences, "group %d of the optimiser: parameters was %.20s but is %s",
                   index, theirs, mine);
    }
}

static bool read_optim(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->optim, "optim", &wanted) || !wanted) { return !tn__pending(); }
    const char *kind = tn_optim_kind(c->optim), *theirs = tn__labels_get(p->labels, "optim");
    size_t length = strlen(kind);
    if (strncmp(theirs, kind, length) != 0 || theirs[length] != ' ') {
        tn__shown was = tn__show(theirs);
        was.text[strcspn(was.text, " ")] = 0;
        tn__raise(TN_EMISMATCH, p->operation, "%s: the optimiser was %s but is %s", p->path,
                  was.text, kind);
        return false;
    }
    if (!tn__fields_read_words(optim_fields, p, theirs + length + 1)) {
        return refuse_text(p, "optim");
    }
    if (p->groups != tn_optim_groups(c->optim)) {
        tn__raise(TN_EMISMATCH, p->operation,
                  "%s: the optimiser had %" PRId64 " parameter groups but has %d", p->path,
                  p->groups, tn_optim_groups(c->optim));
        return false;
    }
    for (int i = 0; i < (int)p->groups; i++) {
        tn_optim_group_options unused;
        if (!read_group(p, i, &unused)) { return false; }
        compare_group(p, i);
    }
    return compare_with(p, "optim.options", kind, optim_text(c->optim, p->operation));
}

/* Reads the file's numbers of steps, if nothing else in it differs. */
static bool steps_alone(const plan *p, const tn_schedule *now, const char *theirs,
                        schedule_options *before) {
    tn__differences none = {.path = p->path, .operation = p->operation, .quiet = true};
    tn__json_file f;
    if (!tn__description_read(&f, theirs, p->path, p->operation)) { return false; }
    const tn__json *warmup = tn__json_get(f.values, "warm-up");
    const tn__json *steps = tn__json_get(f.values, "steps");
    *before = (schedule_options){.s = *now};
    bool read = warmup && warmup->text && steps && steps->text &&
                tn__field_read(&schedule_fields[WARMUP], before, warmup->text) &&
                tn__field_read(&schedule_fields[STEPS], before, steps->text);
    tn__json_free(&f);
    char *mine = read ? schedule_text(&before->s, p->operation) : NULL;
    read = mine && tn__differ_options(&none, "", theirs, mine) && none.count == 0;
    free(mine);
    return read;
}

/* Whether the schedule differs from the file's only by more steps (warm-up too), and may. */
static bool has_grown(const plan *p, const tn_checkpoint *c) {
    schedule_options before;
    if (!c->longer_than ||
        !steps_alone(p, c->schedule, tn__labels_get(p->labels, "schedule"), &before)) {
        return false;
    }
    *c->longer_than = before.s.steps;
    return before.s.steps < c->schedule->steps && before.s.warmup <= c->schedule->warmup;
}

static bool read_schedule(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->schedule, "schedule", &wanted) || !wanted) { return !tn__pending(); }
    return has_grown(p, c) ||
           compare_with(p, "schedule", "the schedule", schedule_text(c->schedule, p->operation));
}

/* Converts the position among batches of `batch` from `parts` ranks for this loader: it stays if
 * both numbers are the same. Otherwise it is the batch with the next example of all parts together,
 * so that up to a batch is seen again. With the same parts another batch size is another run. */
static void convert_place(plan *p, int64_t batch, int64_t parts) {
    const tn_loader *l = p->checkpoint->loader;
    tn_loader_place *place = &p->place;
    int64_t my_batch = tn_loader_options_of(l).batch, my_parts = tn_loader_sampler(l).parts;
    if (parts == my_parts && batch == my_batch) { return; }
    if (parts == my_parts) {
        tn__differ(&p->differences,
                   "the batch was %" PRId64 " but is %" PRId64 " (with as many ranks as before)",
                   batch, my_batch);
    }
    double done = (double)place->index * (double)batch * (double)parts;
    double index = floor(done / ((double)my_batch * (double)my_parts));
    int64_t batches = tn_loader_batches(l);
    place->index = index < (double)batches ? (int64_t)index : batches - 1;
}

/* Whether the file's data are the program's. Only the rank that saved checks: the others may have
 * their own shares. */
static bool compare_data(plan *p) {
    return p->differences.quiet || compare_with(p, "loader.data", "the data",
                                                data_text(p->checkpoint->loader, p->operation));
}

/* Reads how many epochs of the current pass are done. */
static bool read_passes(plan *p, int64_t *done) {
    static const char key[] = "loader.passes";
    pair passes = {0};
    int64_t before;
    if (tn__labels_get(p->labels, key) && !read_words(p, key, pair_fields, &passes)) {
        return false;
    }
    bool overflow = __builtin_mul_overflow(passes.first, passes.second, &before);
    *done = p->place.epoch - before;
    return (!overflow && *done >= 0) || refuse_text(p, key);
}

/* Whether the loader has the position. Other data may have shorter epochs: then this one starts
 * over. */
static bool place_fits(plan *p) {
    const tn_loader *l = p->checkpoint->loader;
    int64_t epochs = tn_loader_options_of(l).epochs, done;
    if (!read_passes(p, &done)) { return false; }
    if (p->place.index >= tn_loader_batches(l) && p->differences.count) { p->place.index = 0; }
    if (epochs && (done > epochs || (done == epochs && p->place.index > 0))) {
        tn__raise(TN_EMISMATCH, p->operation,
                  "%s: the loader had begun epoch %" PRIu64 " but ends after %" PRId64, p->path,
                  (uint64_t)done + 1, epochs);
        return false;
    }
    tn_loader_place end = {.epoch = p->place.epoch - 1, .index = tn_loader_batches(l)};
    if (epochs && done == epochs && tn_loader_has(l, end)) {
        p->place = end; /* not yet reported */
        return true;
    }
    return (tn_loader_has(l, p->place) && p->place.index < tn_loader_batches(l)) ||
           refuse_text(p, "loader.place");
}

static bool read_loader(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->loader, "loader", &wanted) || !wanted) { return !tn__pending(); }
    pair share; /* batch, parts */
    bool read = compare_with(p, "loader", "the loader", loader_text(c->loader, p->operation)) &&
                read_words(p, "loader.place", place_fields, &p->place) &&
                read_words(p, "loader.share", pair_fields, &share) &&
                ((share.first > 0 && share.second > 0) || refuse_text(p, "loader.share")) &&
                compare_data(p);
    if (!read) { return false; }
    convert_place(p, share.first, share.second);
    if (c->batch_before && __builtin_mul_overflow(share.first, share.second, c->batch_before)) {
        *c->batch_before = 0;
    }
    return place_fits(p);
}

static bool read_generator(plan *p) {
    bool wanted;
    return member_in_file(p, p->checkpoint->generator, "generator", &wanted) &&
           (!wanted || read_words(p, "generator", generator_fields, &p->generator));
}

static bool read_scaler(plan *p) {
    const tn_scaler *s = p->checkpoint->scaler;
    bool wanted;
    return member_in_file(p, s, "scaler", &wanted) &&
           (!wanted || (compare_with(p, "scaler.options", "the scaler",
                                     options_text(tn__scaler_fields, s, p->operation)) &&
                        read_words(p, "scaler", scaler_fields, &p->scaler) &&
                        (p->scaler.scale > 0.0 || refuse_text(p, "scaler"))));
}

static bool read_plateau(plan *p) {
    const tn_plateau *plateau = p->checkpoint->plateau;
    bool wanted;
    return member_in_file(p, plateau, "plateau", &wanted) &&
           (!wanted || (compare_with(p, "plateau.options", "the plateau",
                                     options_text(plateau_options, plateau, p->operation)) &&
                        read_words(p, "plateau", plateau_fields, &p->plateau)));
}

static bool read_average(plan *p) {
    const tn_average *a = p->checkpoint->average;
    pair updates;
    bool wanted;
    if (!member_in_file(p, a, "average", &wanted) || !wanted) { return !tn__pending(); }
    bool read = compare_with(p, "average.options", "the average", average_text(a, p->operation)) &&
                read_words(p, "average", number_fields, &updates);
    p->average_updates = read ? updates.first : 0;
    return read;
}

static bool read_head(plan *p) {
    const char *format = tn__labels_get(p->labels, "format");
    const char *note = tn__labels_get(p->labels, "note");
    pair step;
    if (!format || strcmp(format, FORMAT) != 0) { return refuse_text(p, "format"); }
    bool note_fits = note && strlen(note) < sizeof(((tn_checkpoint *)0)->note);
    if (!read_words(p, "step", number_fields, &step)) { return false; }
    p->step = step.first;
    return note_fits || refuse_text(p, "note");
}

/* Changes nothing but *p. */
static bool read_all(plan *p) {
    return read_head(p) && compare_model(p) && read_optim(p) && read_schedule(p) &&
           read_loader(p) && read_generator(p) && read_scaler(p) && read_plateau(p) &&
           read_average(p) && tn__differences_end(&p->differences) == TN_OK;
}

bool tn__metadata_read(tn__metadata_plan *p, tn_checkpoint *c, const tn__labels *labels,
                       const char *path, const char *operation, bool first) {
    *p = (plan){.checkpoint = c,
                .labels = labels,
                .path = path,
                .operation = operation,
                .differences = {.path = path,
                                .operation = operation,
                                .hint = tn__continue_hint,
                                .warn = c->other_run,
                                .quiet = !first}};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool read = read_all(p);
    tn__plain_numbers_end(numbers);
    return read;
}

static void apply_optim(const plan *p) {
    tn_optim *opt = p->checkpoint->optim;
    tn_optim_set_steps(opt, p->optim_steps);
    tn_optim_set_lr(opt, p->lr);
    for (int i = 0; i < tn_optim_groups(opt); i++) {
        read_group(p, i, tn_optim_group(opt, i));
    }
}

void tn__metadata_apply(const tn__metadata_plan *p) {
    tn_checkpoint *c = p->checkpoint;
    if (c->optim) {
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        apply_optim(p);
        tn__plain_numbers_end(numbers);
    }
    if (c->loader) { tn_loader_seek(c->loader, p->place); }
    if (c->generator) { *c->generator = p->generator; }
    if (c->scaler) { tn_scaler_seek(c->scaler, p->scaler); }
    if (c->plateau) { c->plateau->state = p->plateau; }
    if (c->average) { tn__average_set_updates(c->average, p->average_updates); }
    c->step = p->step;
    snprintf(c->note, sizeof(c->note), "%s", tn__labels_get(p->labels, "note"));
}
