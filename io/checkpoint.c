/* Checkpoints: one safetensors file with everything that a run needs to go on.
 *
 * Tensors are model.NAME and optim.NAME. The rest is metadata, each one text:
 *
 *     format          tern-checkpoint-1
 *     step, note      as given
 *     model           what it is made of, a line a module (nn/describe.c)
 *     optim           kind, steps, learning rate, number of groups;
 *                     optim.group.I: lr scale and weight decay; optim.group.I.parameters: how many;
 *                     optim.options: what the groups share
 *     schedule        kind, peak, end, warm-up, steps
 *     loader          what it loads and how; loader.data: what tells these data from others;
 *                     loader.place: epoch and index of the next batch; loader.share: size of a
 *                     batch, and number of parts (ranks)
 *     generator       seed, stream, call
 *     scaler          scale, streak; scaler.options
 *
 * Real numbers are written as %a, which is exact, or as the shortest text that reads back as the
 * number. Loading reads and checks everything into a `plan`, then applies it. What is no state of
 * the run but says which run it is (model, options, schedule, data) is compared with the program's:
 * differences are collected and are one error, or warnings when the program asks for that. Files
 * that lack one of these texts are older than it: nothing is compared then.
 */
#include "io/checkpoint.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "io/differences.h"
#include "io/numbers.h"
#include "io/safetensors.h"
#include "io/state.h"
#include "nn/describe.h"
#include "optim/optim.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "tern-checkpoint-1"

/* ---- Texts that both directions make --------------------------------------------------------- */

typedef struct text {
    char at[320];
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
    return text_of("kind %d, peak %a, end %a, warm-up %" PRId64 ", steps %" PRId64, (int)s->kind,
                   s->peak, s->end, s->warmup, s->steps);
}

static text describe_loader(const tn_loader *l) {
    tn_sampler s = tn_loader_sampler(l);
    tn_loader_options o = tn_loader_options_of(l);
    const tn_dataset *d = tn_loader_dataset(l);
    return text_of("%.40s of %" PRId64 ", order %d, seed %" PRIu64 ", shared by rule %d, %s",
                   d->kind, d->size, (int)s.kind, s.seed, (int)s.rule,
                   o.drop_last ? "short batches dropped" : "short batches kept");
}

static text group_key(int index) {
    return text_of("optim.group.%d", index);
}

static text parameters_key(int index) {
    return text_of("optim.group.%d.parameters", index);
}

/* A list of options, as somebody describes himself. */
typedef struct described {
    char at[2 * TN_DESCRIBE_ROOM];
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

/* ---- Saving ---------------------------------------------------------------------------------- */

static bool put_text(tn_safetensors_writer *w, const char *key, text value) {
    return tn_safetensors_writer_add_metadata(w, key, value.at) == TN_OK;
}

static bool put_described(tn_safetensors_writer *w, const char *key, const described *value) {
    return tn_safetensors_writer_add_metadata(w, key, value->at) == TN_OK;
}

static bool put_model(tn_safetensors_writer *w, const tn_checkpoint *c) {
    char *model = tn__module_describe(c->model, "checkpoint_save");
    bool done = model && tn_safetensors_writer_add_metadata(w, "model", model) == TN_OK;
    free(model);
    return done;
}

static bool put_optim(tn_safetensors_writer *w, tn_optim *opt) {
    int groups = tn_optim_groups(opt);
    described options;
    bool done = put_text(w, "optim",
                         text_of("%s %" PRId64 " %a %d", tn_optim_kind(opt), tn_optim_steps(opt),
                                 tn_optim_lr(opt), groups)) &&
                describe_optim(opt, "checkpoint_save", &options) &&
                put_described(w, "optim.options", &options);
    for (int i = 0; done && i < groups; i++) {
        const tn_optim_group_options *g = tn_optim_group(opt, i);
        if (!isfinite(g->lr_scale) || !isfinite(g->weight_decay)) {
            tn__raise(TN_EVALUE, "checkpoint_save",
                      "group %d of the optimiser has lr scale %g and weight decay %g", i,
                      g->lr_scale, g->weight_decay);
            return false;
        }
        done = put_text(w, group_key(i).at, text_of("%a %a", g->lr_scale, g->weight_decay)) &&
               put_text(w, parameters_key(i).at, text_of("%d", tn__optim_group_count(opt, i)));
    }
    return done;
}

static bool put_scaler(tn_safetensors_writer *w, const tn_scaler *scaler) {
    tn_scaler_state state = tn_scaler_where(scaler);
    described options;
    return put_text(w, "scaler", text_of("%a %" PRId64, state.scale, state.streak)) &&
           describe_scaler(scaler, "checkpoint_save", &options) &&
           put_described(w, "scaler.options", &options);
}

static bool put_loader(tn_safetensors_writer *w, const tn_loader *l) {
    tn_loader_place place = tn_loader_where(l);
    described data;
    return put_text(w, "loader", describe_loader(l)) &&
           describe_data(l, "checkpoint_save", &data) && put_described(w, "loader.data", &data) &&
           put_text(w, "loader.place", text_of("%" PRId64 " %" PRId64, place.epoch, place.index)) &&
           put_text(w, "loader.share",
                    text_of("%" PRId64 " %" PRId64, tn_loader_options_of(l).batch,
                            tn_loader_sampler(l).parts));
}

static bool put_metadata(tn_safetensors_writer *w, const tn_checkpoint *c) {
    return put_text(w, "format", text_of(FORMAT)) &&
           put_text(w, "step", text_of("%" PRId64, c->step)) &&
           put_text(w, "note", text_of("%.*s", (int)sizeof(c->note) - 1, c->note)) &&
           (!c->model || put_model(w, c)) && (!c->optim || put_optim(w, c->optim)) &&
           (!c->scaler || put_scaler(w, c->scaler)) &&
           (!c->schedule || put_text(w, "schedule", describe_schedule(c->schedule))) &&
           (!c->loader || put_loader(w, c->loader)) &&
           (!c->generator ||
            put_text(w, "generator",
                     text_of("%" PRIu64 " %" PRIu64 " %" PRIu64, c->generator->seed,
                             c->generator->stream, c->generator->call)));
}

static bool state_collect(tn__state *s, const tn_checkpoint *c) {
    return (!c->model || tn__state_add_module(s, c->model, "model.")) &&
           (!c->optim || tn__state_add_optim(s, c->optim, "optim."));
}

tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path) {
    if (!c) {
        return tn__raise(TN_EVALUE, "checkpoint_save", "the checkpoint is NULL");
    }
    if (c->step < 0) {
        return tn__raise(TN_EVALUE, "checkpoint_save", "step %" PRId64 ", and steps begin at 0",
                         c->step);
    }
    tn__state s = {.operation = "checkpoint_save"};
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_status status;
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool done = w && state_collect(&s, c) && tn__state_write(&s, w) && put_metadata(w, c);
    tn__plain_numbers_end(numbers);
    if (done) {
        status = tn__safetensors_write_digest(w, path, s.operation);
    } else {
        tn_safetensors_writer_free(w);
        status = tn_error();
    }
    tn__state_free(&s);
    return status;
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* What was read and found right, before anything changes. */
typedef struct tn__checkpoint_plan plan;
struct tn__checkpoint_plan {
    tn_checkpoint *checkpoint; /* the program's */
    tn_safetensors *file;
    tn__differences differences;
    tn__state state;
    int64_t step, optim_steps;
    double lr;
    tn_loader_place place;
    tn_generator generator;
    tn_scaler_state scaler;
};

/* Metadata as words in sequence. */
typedef struct words {
    const char *path, *key, *all, *at;
} words;

static bool words_malformed(const words *w) {
    tn__raise(TN_EFORMAT, "checkpoint_load", "%s: %s is \"%.80s\"", w->path, w->key,
              w->all ? w->all : "missing");
    return false;
}

static words words_of(const tn_safetensors *f, const char *key) {
    const char *all = tn_safetensors_metadata(f, key);
    return (words){.path = tn__safetensors_path(f), .key = key, .all = all, .at = all ? all : ""};
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
static bool member_in_file(const tn_checkpoint *c, const tn_safetensors *f, const void *member,
                           const char *key, bool *wanted) {
    bool in_file = tn_safetensors_metadata(f, key) != NULL;
    *wanted = member != NULL;
    if ((member && !in_file) || (!member && in_file && !c->partial)) {
        tn__raise(TN_EMISMATCH, "checkpoint_load", "%s has %s %s, but the program %s",
                  tn__safetensors_path(f), in_file ? "state of the" : "no state of a", key,
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
    const char *theirs = tn_safetensors_metadata(p->file, key);
    if (strcmp(theirs, mine.at) != 0) {
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
    const char *theirs = tn_safetensors_metadata(p->file, key);
    if (!theirs && !p->differences.quiet) {
        tn_log_write(TN_LOG_INFO, "%s: does not tell %s, which is not compared",
                     tn__safetensors_path(p->file), key);
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
    char *mine = tn__module_describe(c->model, "checkpoint_load");
    bool done = mine && tn__differ_models(&p->differences, theirs, mine, c->optim == NULL);
    free(mine);
    return done;
}

static bool read_group(const tn_safetensors *f, int index, tn_optim_group_options *g) {
    text key = group_key(index);
    words w = words_of(f, key.at);
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
    if (!describe_optim(opt, "checkpoint_load", &mine)) {
        return false;
    }
    compare_described(p, "optim.options", tn_optim_kind(opt), &mine);
    for (int i = 0; i < tn_optim_groups(opt); i++) {
        compare_group(p, i);
    }
    return true;
}

static bool read_optim(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    bool wanted;
    if (!member_in_file(c, f, c->optim, "optim", &wanted) || !wanted) {
        return !tn__pending();
    }
    const char *kind = tn_optim_kind(c->optim);
    size_t length = strlen(kind);
    words w = words_of(f, "optim");
    if (strncmp(w.at, kind, length) != 0 || w.at[length] != ' ') {
        tn__raise(TN_EMISMATCH, "checkpoint_load", "%s: the optimiser was %.*s but is %s", w.path,
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
        tn__raise(TN_EMISMATCH, "checkpoint_load",
                  "%s: the optimiser had %" PRId64 " parameter groups but has %d", w.path, groups,
                  tn_optim_groups(c->optim));
        return false;
    }
    for (int i = 0; i < (int)groups; i++) {
        if (!read_group(f, i, &unused)) {
            return false;
        }
    }
    return compare_optim(p);
}

static bool read_schedule(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    bool wanted;
    if (!member_in_file(c, f, c->schedule, "schedule", &wanted) || !wanted) {
        return !tn__pending();
    }
    compare_text(p, "schedule", describe_schedule(c->schedule));
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
    if (!describe_data(p->checkpoint->loader, "checkpoint_load", &mine)) {
        return false;
    }
    compare_described(p, "loader.data", "the data", &mine);
    return true;
}

/* Whether the loader has the place. Other data may have shorter epochs: then this one begins
 * anew. */
static bool place_fits(plan *p, const words *place) {
    const tn_loader *l = p->checkpoint->loader;
    int64_t epochs = tn_loader_options_of(l).epochs;
    if (!tn_loader_has(l, p->place) && p->differences.count) {
        p->place.index = 0;
    }
    if (!tn_loader_has(l, p->place) && epochs && p->place.epoch >= epochs) {
        tn__raise(TN_EMISMATCH, "checkpoint_load",
                  "%s: the loader had begun epoch %" PRIu64 " but ends after %" PRId64, place->path,
                  (uint64_t)p->place.epoch + 1, epochs);
        return false;
    }
    return tn_loader_has(l, p->place) || words_malformed(place);
}

static bool read_loader(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    bool wanted;
    if (!member_in_file(c, f, c->loader, "loader", &wanted) || !wanted) {
        return !tn__pending();
    }
    words place = words_of(f, "loader.place"), share = words_of(f, "loader.share");
    int64_t batch, parts;
    compare_text(p, "loader", describe_loader(c->loader));
    bool read = next_i64(&place, &p->place.epoch) && next_i64(&place, &p->place.index) &&
                at_end(&place) && next_i64(&share, &batch) && next_i64(&share, &parts) &&
                at_end(&share) && ((batch > 0 && parts > 0) || words_malformed(&share)) &&
                compare_data(p);
    if (read) {
        convert_place(p, batch, parts);
    }
    return read && place_fits(p, &place);
}

static bool read_generator(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    bool wanted;
    if (!member_in_file(c, f, c->generator, "generator", &wanted) || !wanted) {
        return !tn__pending();
    }
    words w = words_of(f, "generator");
    return next_u64(&w, &p->generator.seed) && next_u64(&w, &p->generator.stream) &&
           next_u64(&w, &p->generator.call) && at_end(&w);
}

static bool read_scaler(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    bool wanted;
    if (!member_in_file(c, f, c->scaler, "scaler", &wanted) || !wanted) {
        return !tn__pending();
    }
    words w = words_of(f, "scaler");
    described options;
    if (!describe_scaler(c->scaler, "checkpoint_load", &options)) {
        return false;
    }
    compare_described(p, "scaler.options", "the scaler", &options);
    return next_double(&w, &p->scaler.scale) && next_i64(&w, &p->scaler.streak) && at_end(&w) &&
           (p->scaler.scale > 0.0 || words_malformed(&w));
}

static bool read_head(const tn_safetensors *f, plan *p) {
    words format = words_of(f, "format"), step = words_of(f, "step"), note = words_of(f, "note");
    if (strcmp(format.at, FORMAT) != 0) {
        return words_malformed(&format);
    }
    bool note_fits = note.all && strlen(note.all) < sizeof(((tn_checkpoint *)0)->note);
    return next_i64(&step, &p->step) && at_end(&step) && (note_fits || words_malformed(&note));
}

/* Changes nothing but *p. */
static bool make_plan(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    return tn__safetensors_check_digest(f, "checkpoint_load") == TN_OK && read_head(f, p) &&
           compare_model(p) && read_optim(c, f, p) && read_schedule(c, f, p) &&
           read_loader(c, f, p) && read_generator(c, f, p) && read_scaler(c, f, p) &&
           tn__differences_end(&p->differences) == TN_OK && state_collect(&p->state, c) &&
           tn__state_match(&p->state, f, false, c->partial);
}

static void apply_plan(plan *p) {
    tn_checkpoint *c = p->checkpoint;
    tn__state_apply(&p->state);
    if (c->optim) {
        tn_optim_set_steps(c->optim, p->optim_steps);
        tn_optim_set_lr(c->optim, p->lr);
        for (int i = 0; i < tn_optim_groups(c->optim); i++) {
            read_group(p->file, i, tn_optim_group(c->optim, i));
        }
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
    c->step = p->step;
    snprintf(c->note, sizeof(c->note), "%s", tn_safetensors_metadata(p->file, "note"));
}

void tn__checkpoint_apply(tn__checkpoint_plan *p) {
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    apply_plan(p);
    tn__plain_numbers_end(numbers);
}

void tn__checkpoint_plan_free(tn__checkpoint_plan *p) {
    if (p) {
        tn__state_free(&p->state);
        tn_safetensors_close(p->file);
        free(p);
    }
}

/* Takes f; NULL: there is none, which was raised. */
static plan *plan_of(tn_checkpoint *c, tn_safetensors *f, bool quiet) {
    plan *p = f ? tn__calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        tn__raise(TN_ENOMEM, "checkpoint_load", "no memory"); /* if there was no error before */
        tn_safetensors_close(f);
        return NULL;
    }
    p->checkpoint = c;
    p->file = f;
    p->state.operation = "checkpoint_load";
    p->differences = (tn__differences){.path = tn__safetensors_path(f),
                                       .operation = "checkpoint_load",
                                       .hint = " (tn_checkpoint.other_run: to go on all the same)",
                                       .warn = c->other_run,
                                       .quiet = quiet};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool made = make_plan(c, f, p);
    tn__plain_numbers_end(numbers);
    if (!made) {
        tn__checkpoint_plan_free(p);
        return NULL;
    }
    return p;
}

tn__checkpoint_plan *tn__checkpoint_read(tn_checkpoint *c, const char *path, void *data,
                                         size_t bytes, bool first) {
    if (!c) {
        tn__raise(TN_EVALUE, "checkpoint_load", "the checkpoint is NULL");
        return NULL;
    }
    return plan_of(c, tn__safetensors_over(path, data, bytes), !first);
}

const char *tn__checkpoint_digest(const tn__checkpoint_plan *p) {
    return tn__safetensors_digest(p->file);
}

char *tn__checkpoint_file(const char *path, size_t *bytes, const char *operation) {
    tn_safetensors *f = tn_safetensors_open(path);
    tn_safetensors_close(f);
    return f ? tn__read_whole(path, bytes, operation) : NULL;
}

/* Read once and as a whole: what is applied is what the digest was right for, whatever happens to
 * the file meanwhile. */
tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path) {
    if (!c) {
        return tn__raise(TN_EVALUE, "checkpoint_load", "the checkpoint is NULL");
    }
    size_t bytes;
    char *data = tn__checkpoint_file(path, &bytes, "checkpoint_load");
    plan *p = data ? tn__checkpoint_read(c, path, data, bytes, true) : NULL;
    if (p) {
        tn__checkpoint_apply(p);
    }
    tn__checkpoint_plan_free(p);
    free(data);
    return tn_error();
}
