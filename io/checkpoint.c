/* Checkpoints: one safetensors file with everything that a run needs to go on.
 *
 * Tensors are model.NAME and optim.NAME. The rest is metadata, each one text:
 *
 *     format          tern-checkpoint-1
 *     step, note      as given
 *     optim           kind, steps, learning rate, number of groups;
 *                     optim.group.I: lr scale and weight decay
 *     schedule        kind, peak, end, warm-up, steps
 *     loader          what it loads and how: load compares it; loader.place: epoch and index of the
 *                     next batch; loader.share: size of a batch, and number of parts (ranks)
 *     generator       seed, stream, call
 *     scaler          scale, streak
 *
 * Real numbers are written as %a, which is exact. Loading reads and checks everything into a
 * `plan`, then applies it.
 */
#include "io/checkpoint.h"

#include "core/error.h"
#include "core/memory.h"
#include "io/numbers.h"
#include "io/safetensors.h"
#include "io/state.h"

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

/* ---- Saving ---------------------------------------------------------------------------------- */

static bool put_text(tn_safetensors_writer *w, const char *key, text value) {
    return tn_safetensors_writer_add_metadata(w, key, value.at) == TN_OK;
}

static bool put_optim(tn_safetensors_writer *w, tn_optim *opt) {
    int groups = tn_optim_groups(opt);
    bool done = put_text(w, "optim",
                         text_of("%s %" PRId64 " %a %d", tn_optim_kind(opt), tn_optim_steps(opt),
                                 tn_optim_lr(opt), groups));
    for (int i = 0; done && i < groups; i++) {
        const tn_optim_group_options *g = tn_optim_group(opt, i);
        if (!isfinite(g->lr_scale) || !isfinite(g->weight_decay)) {
            tn__raise(TN_EVALUE, "checkpoint_save",
                      "group %d of the optimiser has lr scale %g and weight decay %g", i,
                      g->lr_scale, g->weight_decay);
            return false;
        }
        done = put_text(w, group_key(i).at, text_of("%a %a", g->lr_scale, g->weight_decay));
    }
    return done;
}

static bool put_scaler(tn_safetensors_writer *w, const tn_scaler *scaler) {
    tn_scaler_state state = tn_scaler_where(scaler);
    return put_text(w, "scaler", text_of("%a %" PRId64, state.scale, state.streak));
}

static bool put_metadata(tn_safetensors_writer *w, const tn_checkpoint *c) {
    tn_loader_place place = tn_loader_where(c->loader);
    return put_text(w, "format", text_of(FORMAT)) &&
           put_text(w, "step", text_of("%" PRId64, c->step)) &&
           put_text(w, "note", text_of("%.*s", (int)sizeof(c->note) - 1, c->note)) &&
           (!c->optim || put_optim(w, c->optim)) && (!c->scaler || put_scaler(w, c->scaler)) &&
           (!c->schedule || put_text(w, "schedule", describe_schedule(c->schedule))) &&
           (!c->loader ||
            (put_text(w, "loader", describe_loader(c->loader)) &&
             put_text(w, "loader.place",
                      text_of("%" PRId64 " %" PRId64, place.epoch, place.index)) &&
             put_text(w, "loader.share",
                      text_of("%" PRId64 " %" PRId64, tn_loader_options_of(c->loader).batch,
                              tn_loader_sampler(c->loader).parts)))) &&
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

/* The description in the file is the program's own. */
static bool text_same(const tn_safetensors *f, const char *key, text mine) {
    const char *theirs = tn_safetensors_metadata(f, key);
    if (strcmp(theirs, mine.at) != 0) {
        text was = text_for_people(theirs, 6), is = text_for_people(mine.at, 6);
        if (strcmp(was.at, is.at) == 0) { /* they differ in a later digit */
            was = text_for_people(theirs, 17);
            is = text_for_people(mine.at, 17);
        }
        tn__raise(TN_EMISMATCH, "checkpoint_load", "%s: the %s was (%.200s) but is (%s)",
                  tn__safetensors_path(f), key, was.at, is.at);
        return false;
    }
    return true;
}

static bool read_group(const tn_safetensors *f, int index, tn_optim_group_options *g) {
    text key = group_key(index);
    words w = words_of(f, key.at);
    return next_double(&w, &g->lr_scale) && next_double(&w, &g->weight_decay) && at_end(&w);
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
    return true;
}

static bool read_schedule(const tn_checkpoint *c, const tn_safetensors *f) {
    bool wanted;
    return member_in_file(c, f, c->schedule, "schedule", &wanted) &&
           (!wanted || text_same(f, "schedule", describe_schedule(c->schedule)));
}

/* The place among batches of `batch` from `parts` ranks, for this loader: the same when both
 * numbers are. With another number of parts, the batch that holds the next example of all parts
 * together, so that up to a batch is seen again. With the same parts and another batch: an
 * error. */
static bool convert_place(const tn_loader *l, const tn_safetensors *f, int64_t batch, int64_t parts,
                          tn_loader_place *place) {
    int64_t my_batch = tn_loader_options_of(l).batch, my_parts = tn_loader_sampler(l).parts;
    if (parts == my_parts && batch == my_batch) {
        return true;
    }
    if (parts == my_parts) {
        tn__raise(TN_EMISMATCH, "checkpoint_load",
                  "%s: the batch was %" PRId64 " but is %" PRId64 " (with as many ranks as before)",
                  tn__safetensors_path(f), batch, my_batch);
        return false;
    }
    double done = (double)place->index * (double)batch * (double)parts;
    double index = floor(done / ((double)my_batch * (double)my_parts));
    int64_t batches = tn_loader_batches(l);
    place->index = index < (double)batches ? (int64_t)index : batches - 1;
    return true;
}

static bool read_loader(const tn_checkpoint *c, const tn_safetensors *f, plan *p) {
    bool wanted;
    if (!member_in_file(c, f, c->loader, "loader", &wanted) || !wanted) {
        return !tn__pending();
    }
    words place = words_of(f, "loader.place"), share = words_of(f, "loader.share");
    int64_t batch, parts;
    return text_same(f, "loader", describe_loader(c->loader)) &&
           next_i64(&place, &p->place.epoch) && next_i64(&place, &p->place.index) &&
           at_end(&place) && next_i64(&share, &batch) && next_i64(&share, &parts) &&
           at_end(&share) && ((batch > 0 && parts > 0) || words_malformed(&share)) &&
           convert_place(c->loader, f, batch, parts, &p->place) &&
           (tn_loader_has(c->loader, p->place) || words_malformed(&place));
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
           read_optim(c, f, p) && read_schedule(c, f) && read_loader(c, f, p) &&
           read_generator(c, f, p) && read_scaler(c, f, p) && state_collect(&p->state, c) &&
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
static plan *plan_of(tn_checkpoint *c, tn_safetensors *f) {
    plan *p = f ? tn__calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        tn__raise(TN_ENOMEM, "checkpoint_load", "no memory"); /* if there was no error before */
        tn_safetensors_close(f);
        return NULL;
    }
    p->checkpoint = c;
    p->file = f;
    p->state.operation = "checkpoint_load";
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
                                         size_t bytes) {
    if (!c) {
        tn__raise(TN_EVALUE, "checkpoint_load", "the checkpoint is NULL");
        return NULL;
    }
    return plan_of(c, tn__safetensors_over(path, data, bytes));
}

const char *tn__checkpoint_digest(const tn__checkpoint_plan *p) {
    return tn__safetensors_digest(p->file);
}

tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path) {
    if (!c) {
        return tn__raise(TN_EVALUE, "checkpoint_load", "the checkpoint is NULL");
    }
    plan *p = plan_of(c, tn_safetensors_open(path));
    if (p) {
        tn__checkpoint_apply(p);
    }
    tn__checkpoint_plan_free(p);
    return tn_error();
}
