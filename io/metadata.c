/* What a checkpoint says of its run beside tensors, as texts by key (metadata.h):
 *
 *     format          tern-checkpoint-1
 *     step, note      as given
 *     model           what it is made of, a line a module (nn/describe.c)
 *     optim           kind, steps, learning rate, number of groups;
 *                     optim.group.I: lr scale and weight decay; optim.group.I.parameters: how many;
 *                     optim.options: what the groups share
 *     schedule        kind, peak, end, warm-up, steps, and what some kinds have besides
 *     loader          what it loads and how; loader.data: what tells these data from others;
 *                     loader.place: epoch and index of the next batch; loader.passes: epochs of
 *                     a pass, and how many passes have ended; loader.share: size of a batch, and
 *                     number of parts (ranks)
 *     generator       seed, stream, call
 *     scaler          scale, streak; scaler.options
 *     plateau         rate, best, bad ones, cooldown, whether there is a best; plateau.options
 *     average         updates; average.options
 *
 * Real numbers are written as %a, which is exact, or as the shortest text that reads back as the
 * number. What is no state of the run but says which run it is (model, options, schedule, data) is
 * compared with the program's: differences are collected and are one error, or warnings when the
 * program asks for that. Files that lack one of these texts are older than it: nothing is compared
 * then.
 */
#include "io/metadata.h"

#include "core/error.h"
#include "data/collate.h"
#include "data/sampler.h"
#include "core/plain_numbers.h"
#include "nn/describe.h"
#include "optim/average.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "tern-checkpoint-1"

typedef tn__metadata_plan plan;

/* ---- Texts that both directions make --------------------------------------------------------- */

typedef struct text {
    char at[640];
} text;

static text text_of(const char *format, ...) TN_PRINTF(1, 2);
static text text_of(const char *format, ...) {
    text t;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t.at, sizeof(t.at), format, arguments);
    va_end(arguments);
    return t;
}

static text describe_schedule(const tn_schedule *s) {
    text t = text_of("kind %d, peak %a, end %a, warm-up %" PRId64 ", steps %" PRId64, (int)s->kind,
                     s->peak, s->end, s->warmup, s->steps);
    if (s->kind <= TN_COSINE) {
        return t;
    }
    t = text_of("%.200s, factor %a, every %" PRId64 ", growth %" PRId64 ", start %a, rise %a", t.at,
                s->factor, s->every, s->growth, s->start, s->rise);
    for (int i = 0; i < s->milestone_count && i < TN_MILESTONES; i++) {
        size_t used = strlen(t.at);
        snprintf(t.at + used, sizeof(t.at) - used, ", at %" PRId64, s->milestones[i]);
    }
    return t;
}

/* A plateau's options and an average's, which are compared. */
static text describe_plateau(const tn_plateau *p) {
    return text_of("larger %d, factor %a, patience %" PRId64
                   ", threshold %a, absolute %d, cooldown %" PRId64 ", min_lr %a, eps %a",
                   p->larger_is_better, p->factor, p->patience, p->threshold, p->absolute,
                   p->cooldown, p->min_lr, p->eps);
}

static text describe_average(const tn_average *a) {
    double decay = tn__average_decay(a);
    return decay < 0 ? text_of("all alike") : text_of("decay %a", decay);
}

static text describe_loader(const tn_loader *l) {
    tn_sampler s = tn_loader_sampler(l);
    tn_loader_options o = tn_loader_options_of(l);
    const tn_dataset *d = tn_loader_dataset(l);
    char table[160], pads[80] = "";
    tn__sampler_describe(&s, table, sizeof(table));
    bool x = tn__dims_vary(d->x_dims), y = tn__dims_vary(d->y_dims);
    if (x || y) {
        snprintf(pads, sizeof(pads), ", padded by %a:%a", x ? o.x_pad : 0, y ? o.y_pad : 0);
    }
    return text_of("%.40s of %" PRId64 ", order %d, seed %" PRIu64 ", shared by rule %d, %s%s%s",
                   d->kind, d->size, (int)s.kind, s.seed, (int)s.rule,
                   o.drop_last ? "short batches dropped" : "short batches kept", table, pads);
}

static text group_key(int index) {
    return text_of("optim.group.%d", index);
}

static text parameters_key(int index) {
    return text_of("optim.group.%d.parameters", index);
}

/* A list of options, as somebody describes himself. */
typedef struct described {
    char at[3 * TN_DESCRIBE_ROOM];
} described;

/* Whether `bytes` is what a describe may return; raises what is wrong. */
static bool described_well(int bytes, const char *who, const char *operation) {
    if (bytes < 0 || bytes >= TN_DESCRIBE_ROOM) {
        tn__raise(TN_EVALUE, operation, "%s describe themselves in %d bytes (0 to %d)", who, bytes,
                  TN_DESCRIBE_ROOM - 1);
    }
    return !tn__pending();
}

/* "f32[3x4]" */
static text describe_example(tn_dims dims, tn_dtype dtype) {
    text t = text_of("%s[", tn_dtype_name(dtype));
    for (int i = 0; i < dims.ndim; i++) {
        size_t used = strlen(t.at);
        snprintf(t.at + used, sizeof(t.at) - used, "%s%" PRId64, i ? "x" : "", dims.size[i]);
    }
    strcat(t.at, "]");
    return t;
}

static bool describe_data(const tn_loader *l, const char *operation, described *out) {
    tn_dataset *d = (tn_dataset *)tn_loader_dataset(l);
    char own[TN_DESCRIBE_ROOM] = "";
    int bytes = d->describe ? d->describe(d, own, sizeof(own)) : 0;
    if (!described_well(bytes, "the data", operation)) {
        return false;
    }
    snprintf(out->at, sizeof(out->at), "x %s%s%s%s%s", describe_example(d->x_dims, d->x_dtype).at,
             d->y_dims.ndim < 0 ? "" : ", y ",
             d->y_dims.ndim < 0 ? "" : describe_example(d->y_dims, d->y_dtype).at, *own ? ", " : "",
             own);
    return true;
}

static bool describe_optim(const tn_optim *opt, const char *operation, described *out) {
    out->at[0] = 0;
    return described_well(tn__optim_describe(opt, out->at, TN_DESCRIBE_ROOM), "the options",
                          operation);
}

static bool describe_scaler(const tn_scaler *scaler, const char *operation, described *out) {
    return described_well(tn__scaler_describe(scaler, out->at, TN_DESCRIBE_ROOM), "the options",
                          operation);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Where the texts go. */
typedef struct sink {
    tn__metadata_put *put;
    void *user;
    const char *operation;
} sink;

static bool put_text(const sink *s, const char *key, text value) {
    return s->put(s->user, key, value.at);
}

static bool put_described(const sink *s, const char *key, const described *value) {
    return s->put(s->user, key, value->at);
}

static bool put_model(const sink *s, const tn_checkpoint *c) {
    char *model = tn__module_describe(c->model, s->operation);
    bool done = model && s->put(s->user, "model", model);
    free(model);
    return done;
}

static bool put_optim(const sink *s, tn_optim *opt) {
    int groups = tn_optim_groups(opt);
    described options;
    bool done = put_text(s, "optim",
                         text_of("%s %" PRId64 " %a %d", tn_optim_kind(opt), tn_optim_steps(opt),
                                 tn_optim_lr(opt), groups)) &&
                describe_optim(opt, s->operation, &options) &&
                put_described(s, "optim.options", &options);
    for (int i = 0; done && i < groups; i++) {
        const tn_optim_group_options *g = tn_optim_group(opt, i);
        if (!isfinite(g->lr_scale) || !isfinite(g->weight_decay)) {
            tn__raise(TN_EVALUE, s->operation,
                      "group %d of the optimiser has lr scale %g and weight decay %g", i,
                      g->lr_scale, g->weight_decay);
            return false;
        }
        done = put_text(s, group_key(i).at, text_of("%a %a", g->lr_scale, g->weight_decay)) &&
               put_text(s, parameters_key(i).at, text_of("%d", tn__optim_group_count(opt, i)));
    }
    return done;
}

static bool put_scaler(const sink *s, const tn_scaler *scaler) {
    tn_scaler_state state = tn_scaler_where(scaler);
    described options;
    return put_text(s, "scaler", text_of("%a %" PRId64, state.scale, state.streak)) &&
           describe_scaler(scaler, s->operation, &options) &&
           put_described(s, "scaler.options", &options);
}

static bool put_plateau(const sink *s, const tn_plateau *p) {
    const tn_plateau_state *now = &p->state;
    return put_text(s, "plateau",
                    text_of("%a %a %" PRId64 " %" PRId64 " %d", now->lr, now->best, now->bad,
                            now->cooldown, now->any)) &&
           put_text(s, "plateau.options", describe_plateau(p));
}

static bool put_average(const sink *s, const tn_average *a) {
    return put_text(s, "average", text_of("%" PRId64, tn_average_updates(a))) &&
           put_text(s, "average.options", describe_average(a));
}

/* A pass whose end is still to be told has not ended: its place is the next one's beginning all the
 * same, which batches of any size have. */
static bool put_loader(const sink *s, const tn_loader *l) {
    tn_loader_place place = tn_loader_where(l);
    int64_t epochs = tn_loader_options_of(l).epochs, ended = epochs ? place.epoch / epochs : 0;
    if (place.index == tn_loader_batches(l)) {
        place = (tn_loader_place){.epoch = place.epoch + 1};
    }
    described data;
    return put_text(s, "loader", describe_loader(l)) && describe_data(l, s->operation, &data) &&
           put_described(s, "loader.data", &data) &&
           put_text(s, "loader.place", text_of("%" PRId64 " %" PRId64, place.epoch, place.index)) &&
           put_text(s, "loader.passes", text_of("%" PRId64 " %" PRId64, epochs, ended)) &&
           put_text(s, "loader.share",
                    text_of("%" PRId64 " %" PRId64, tn_loader_options_of(l).batch,
                            tn_loader_sampler(l).parts));
}

static bool put_all(const sink *s, const tn_checkpoint *c) {
    return put_text(s, "format", text_of(FORMAT)) &&
           put_text(s, "step", text_of("%" PRId64, c->step)) &&
           put_text(s, "note", text_of("%.*s", (int)sizeof(c->note) - 1, c->note)) &&
           (!c->model || put_model(s, c)) && (!c->optim || put_optim(s, c->optim)) &&
           (!c->scaler || put_scaler(s, c->scaler)) &&
           (!c->plateau || put_plateau(s, c->plateau)) &&
           (!c->average || put_average(s, c->average)) &&
           (!c->schedule || put_text(s, "schedule", describe_schedule(c->schedule))) &&
           (!c->loader || put_loader(s, c->loader)) &&
           (!c->generator ||
            put_text(s, "generator",
                     text_of("%" PRIu64 " %" PRIu64 " %" PRIu64, c->generator->seed,
                             c->generator->stream, c->generator->call)));
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

/* Metadata as words in sequence. */
typedef struct words {
    const plan *plan;
    const char *key, *all, *at;
} words;

static bool words_malformed(const words *w) {
    tn__raise(TN_EFORMAT, w->plan->operation, "%s: %s is \"%.80s\"", w->plan->path, w->key,
              w->all ? w->all : "missing");
    return false;
}

static words words_of(const plan *p, const char *key) {
    const char *all = tn__labels_get(p->labels, key);
    return (words){.plan = p, .key = key, .all = all, .at = all ? all : ""};
}

/* A number ends at a space, which is stepped over, or at the end. strtoX would also take spaces and
 * signs in front. */
static bool word_ends(words *w, char *end, bool sound) {
    sound = sound && end != w->at && (*end == ' ' || *end == 0);
    w->at = *end == ' ' ? end + 1 : end;
    return sound || words_malformed(w);
}

static bool next_u64(words *w, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(w->at, &end, 10);
    return word_ends(w, end, errno == 0 && *w->at >= '0' && *w->at <= '9');
}

static bool next_i64(words *w, int64_t *value) {
    uint64_t magnitude;
    if (!next_u64(w, &magnitude)) {
        return false;
    }
    *value = (int64_t)magnitude;
    return magnitude <= INT64_MAX || words_malformed(w);
}

static bool next_double(words *w, double *value) {
    char *end;
    *value = strtod(w->at, &end);
    return word_ends(w, end, *w->at != ' ' && isfinite(*value));
}

static bool at_end(const words *w) {
    return *w->at == 0 || words_malformed(w);
}

/* A member of the program and its key in the file are both there, or neither is. *wanted: there is
 * something to load. */
static bool member_in_file(const plan *p, const void *member, const char *key, bool *wanted) {
    bool in_file = tn__labels_get(p->labels, key) != NULL;
    *wanted = member != NULL;
    if ((member && !in_file) || (!member && in_file && !p->checkpoint->partial)) {
        tn__raise(TN_EMISMATCH, p->operation, "%s has %s %s, but the program %s", p->path,
                  in_file ? "state of the" : "no state of a", key,
                  in_file ? "gives none to load it into" : "asks for one");
        return false;
    }
    return true;
}

/* A text of a checkpoint for a person: numbers written as %a become decimal ones, and there is
 * nothing that a terminal obeys. */
static text text_for_people(const char *from, int digits) {
    text t = {{0}};
    size_t used = 0;
    while (*from && used + 32 < sizeof(t.at)) {
        if (strncmp(from, "0x", 2) == 0) {
            char *end;
            double value = strtod(from, &end);
            used += (size_t)snprintf(t.at + used, sizeof(t.at) - used, "%.*g", digits, value);
            from = end;
        } else {
            t.at[used++] = (char)((unsigned char)*from < ' ' ? '?' : *from);
            from++;
        }
    }
    return t;
}

/* Whether the description in the file is the program's own. */
static void compare_text(plan *p, const char *key, text mine) {
    const char *theirs = tn__labels_get(p->labels, key);
    if (!theirs || strcmp(theirs, mine.at) != 0) {
        theirs = theirs ? theirs : "missing";
        text was = text_for_people(theirs, 6), is = text_for_people(mine.at, 6);
        if (strcmp(was.at, is.at) == 0) { /* they differ in a later digit */
            was = text_for_people(theirs, 17);
            is = text_for_people(mine.at, 17);
        }
        tn__differ(&p->differences, "the %s was (%.180s) but is (%.180s)", key, was.at, is.at);
    }
}

/* The file's text under a key that older files lack; NULL: nothing can be compared. */
static const char *newer_text(const plan *p, const char *key) {
    const char *theirs = tn__labels_get(p->labels, key);
    if (!theirs && !p->differences.quiet) {
        tn_log_write(TN_LOG_INFO, "%s: does not tell %s, which is not compared", p->path, key);
    }
    return theirs;
}

static void compare_described(plan *p, const char *key, const char *where, const described *mine) {
    const char *theirs = newer_text(p, key);
    if (theirs) {
        tn__differ_items(&p->differences, where, theirs, mine->at);
    }
}

/* A run goes on with all options as they were; weights that are only used, with those that they
 * compute with. */
static bool compare_model(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    const char *theirs = c->model ? newer_text(p, "model") : NULL;
    if (!theirs) {
        return true;
    }
    char *mine = tn__module_describe(c->model, p->operation);
    bool done = mine && tn__differ_models(&p->differences, theirs, mine, c->optim == NULL);
    free(mine);
    return done;
}

static bool read_group(const plan *p, int index, tn_optim_group_options *g) {
    text key = group_key(index);
    words w = words_of(p, key.at);
    return next_double(&w, &g->lr_scale) && next_double(&w, &g->weight_decay) && at_end(&w);
}

static void compare_group(plan *p, int index) {
    const char *theirs = newer_text(p, parameters_key(index).at);
    text mine = text_of("%d", tn__optim_group_count(p->checkpoint->optim, index));
    if (theirs && strcmp(theirs, mine.at) != 0) {
        tn__differ(&p->differences, "group %d of the optimiser: parameters was %.20s but is %s",
                   index, theirs, mine.at);
    }
}

static bool compare_optim(plan *p) {
    const tn_optim *opt = p->checkpoint->optim;
    described mine;
    if (!describe_optim(opt, p->operation, &mine)) {
        return false;
    }
    compare_described(p, "optim.options", tn_optim_kind(opt), &mine);
    for (int i = 0; i < tn_optim_groups(opt); i++) {
        compare_group(p, i);
    }
    return true;
}

static bool read_optim(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->optim, "optim", &wanted) || !wanted) {
        return !tn__pending();
    }
    const char *kind = tn_optim_kind(c->optim);
    size_t length = strlen(kind);
    words w = words_of(p, "optim");
    if (strncmp(w.at, kind, length) != 0 || w.at[length] != ' ') {
        tn__raise(TN_EMISMATCH, p->operation, "%s: the optimiser was %.*s but is %s", p->path,
                  (int)strcspn(w.at, " "), text_for_people(w.at, 6).at, kind);
        return false;
    }
    w.at += length + 1;
    int64_t groups;
    tn_optim_group_options unused;
    if (!next_i64(&w, &p->optim_steps) || !next_double(&w, &p->lr) || !next_i64(&w, &groups) ||
        !at_end(&w)) {
        return false;
    }
    if (groups != tn_optim_groups(c->optim)) {
        tn__raise(TN_EMISMATCH, p->operation,
                  "%s: the optimiser had %" PRId64 " parameter groups but has %d", p->path, groups,
                  tn_optim_groups(c->optim));
        return false;
    }
    for (int i = 0; i < (int)groups; i++) {
        if (!read_group(p, i, &unused)) {
            return false;
        }
    }
    return compare_optim(p);
}

/* Whether the schedule is the file's but for more steps, also of warm-up, and may be. */
static bool has_grown(const plan *p, const tn_checkpoint *c) {
    static const char warmup[] = ", warm-up ", steps[] = ", steps ";
    const char *theirs = tn__labels_get(p->labels, "schedule");
    const char *at = c->longer_than ? strstr(theirs, warmup) : NULL;
    const char *length = at ? strstr(at, steps) : NULL;
    if (!length) {
        return false;
    }
    tn_schedule before = *c->schedule;
    before.warmup = strtoll(at + strlen(warmup), NULL, 10);
    before.steps = strtoll(length + strlen(steps), NULL, 10);
    *c->longer_than = before.steps;
    return before.steps < c->schedule->steps && before.warmup <= c->schedule->warmup &&
           strcmp(theirs, describe_schedule(&before).at) == 0;
}

static bool read_schedule(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->schedule, "schedule", &wanted) || !wanted) {
        return !tn__pending();
    }
    if (!has_grown(p, c)) {
        compare_text(p, "schedule", describe_schedule(c->schedule));
    }
    return true;
}

/* The place among batches of `batch` from `parts` ranks, for this loader: the same when both
 * numbers are. Otherwise the batch that holds the next example of all parts together, so that up to
 * a batch is seen again. With the same parts another batch is another run. */
static void convert_place(plan *p, int64_t batch, int64_t parts) {
    const tn_loader *l = p->checkpoint->loader;
    tn_loader_place *place = &p->place;
    int64_t my_batch = tn_loader_options_of(l).batch, my_parts = tn_loader_sampler(l).parts;
    if (parts == my_parts && batch == my_batch) {
        return;
    }
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

/* The data in the file are the program's. One rank looks, the one that has saved: what the others
 * have may be shares of their own. */
static bool compare_data(plan *p) {
    described mine;
    if (p->differences.quiet) {
        return true;
    }
    if (!describe_data(p->checkpoint->loader, p->operation, &mine)) {
        return false;
    }
    compare_described(p, "loader.data", "the data", &mine);
    return true;
}

/* How many epochs of the place's pass are done. */
static bool read_passes(plan *p, int64_t *done) {
    words w = words_of(p, "loader.passes");
    int64_t epochs = 0, ended = 0, before;
    if (w.all && !(next_i64(&w, &epochs) && next_i64(&w, &ended) && at_end(&w))) {
        return false;
    }
    bool overflow = __builtin_mul_overflow(epochs, ended, &before);
    *done = p->place.epoch - before;
    return (!overflow && *done >= 0) || words_malformed(&w);
}

/* Whether the loader has the place. Other data may have shorter epochs: then this one begins
 * anew. */
static bool place_fits(plan *p, const words *place) {
    const tn_loader *l = p->checkpoint->loader;
    int64_t epochs = tn_loader_options_of(l).epochs, done;
    if (!read_passes(p, &done)) {
        return false;
    }
    if (p->place.index >= tn_loader_batches(l) && p->differences.count) {
        p->place.index = 0;
    }
    if (epochs && (done > epochs || (done == epochs && p->place.index > 0))) {
        tn__raise(TN_EMISMATCH, p->operation,
                  "%s: the loader had begun epoch %" PRIu64 " but ends after %" PRId64, p->path,
                  (uint64_t)done + 1, epochs);
        return false;
    }
    tn_loader_place end = {.epoch = p->place.epoch - 1, .index = tn_loader_batches(l)};
    if (epochs && done == epochs && tn_loader_has(l, end)) {
        p->place = end; /* which is still to be told */
        return true;
    }
    return (tn_loader_has(l, p->place) && p->place.index < tn_loader_batches(l)) ||
           words_malformed(place);
}

static bool read_loader(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->loader, "loader", &wanted) || !wanted) {
        return !tn__pending();
    }
    words place = words_of(p, "loader.place"), share = words_of(p, "loader.share");
    int64_t batch, parts;
    compare_text(p, "loader", describe_loader(c->loader));
    bool read = next_i64(&place, &p->place.epoch) && next_i64(&place, &p->place.index) &&
                at_end(&place) && next_i64(&share, &batch) && next_i64(&share, &parts) &&
                at_end(&share) && ((batch > 0 && parts > 0) || words_malformed(&share)) &&
                compare_data(p);
    if (read) {
        convert_place(p, batch, parts);
    }
    if (read && c->batch_before && __builtin_mul_overflow(batch, parts, c->batch_before)) {
        *c->batch_before = 0;
    }
    return read && place_fits(p, &place);
}

static bool read_generator(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->generator, "generator", &wanted) || !wanted) {
        return !tn__pending();
    }
    words w = words_of(p, "generator");
    return next_u64(&w, &p->generator.seed) && next_u64(&w, &p->generator.stream) &&
           next_u64(&w, &p->generator.call) && at_end(&w);
}

static bool read_scaler(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->scaler, "scaler", &wanted) || !wanted) {
        return !tn__pending();
    }
    words w = words_of(p, "scaler");
    described options;
    if (!describe_scaler(c->scaler, p->operation, &options)) {
        return false;
    }
    compare_described(p, "scaler.options", "the scaler", &options);
    return next_double(&w, &p->scaler.scale) && next_i64(&w, &p->scaler.streak) && at_end(&w) &&
           (p->scaler.scale > 0.0 || words_malformed(&w));
}

static bool read_plateau(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->plateau, "plateau", &wanted) || !wanted) {
        return !tn__pending();
    }
    words w = words_of(p, "plateau");
    tn_plateau_state *s = &p->plateau;
    int64_t any;
    compare_text(p, "plateau.options", describe_plateau(c->plateau));
    bool read = next_double(&w, &s->lr) && next_double(&w, &s->best) && next_i64(&w, &s->bad) &&
                next_i64(&w, &s->cooldown) && next_i64(&w, &any) && at_end(&w);
    s->any = read && any != 0;
    return read && (s->lr >= 0.0 || words_malformed(&w));
}

static bool read_average(plan *p) {
    const tn_checkpoint *c = p->checkpoint;
    bool wanted;
    if (!member_in_file(p, c->average, "average", &wanted) || !wanted) {
        return !tn__pending();
    }
    words w = words_of(p, "average");
    compare_text(p, "average.options", describe_average(c->average));
    return next_i64(&w, &p->average_updates) && at_end(&w);
}

static bool read_head(plan *p) {
    words format = words_of(p, "format"), step = words_of(p, "step"), note = words_of(p, "note");
    if (strcmp(format.at, FORMAT) != 0) {
        return words_malformed(&format);
    }
    bool note_fits = note.all && strlen(note.all) < sizeof(((tn_checkpoint *)0)->note);
    return next_i64(&step, &p->step) && at_end(&step) && (note_fits || words_malformed(&note));
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
                .differences = {
                    .path = path,
                    .operation = operation,
                    .hint = " (--resume-anyway, tn_checkpoint.other_run: to go on all the same)",
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
    if (c->loader) {
        tn_loader_seek(c->loader, p->place);
    }
    if (c->generator) {
        *c->generator = p->generator;
    }
    if (c->scaler) {
        tn_scaler_seek(c->scaler, p->scaler);
    }
    if (c->plateau) {
        c->plateau->state = p->plateau;
    }
    if (c->average) {
        tn__average_set_updates(c->average, p->average_updates);
    }
    c->step = p->step;
    snprintf(c->note, sizeof(c->note), "%s", tn__labels_get(p->labels, "note"));
}
