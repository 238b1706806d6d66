/* Checkpoints in parts: every rank writes what it has, and the folder of a step takes its name when
 * all have (saver.h tells how they talk).
 *
 * tn_saver_save in the program's thread: the save before is over; every rank tells what it has and
 * hears what of it it writes; that is copied. The rest, write.c, is a thread's.
 */
#include "core/clock.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/saver.h"
#include "distributed/store/store.h"
#include "io/metadata.h"
#include "tensor/tensor.h"
#include "tern/sys/device.h"
#include "tern/sys/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

tn_saver_options tn_saver_defaults(void) {
    return (tn_saver_options){
        .keep = 2, .behind = true, .timeout = tn_dist_defaults().timeout, .from_defaults = true};
}

/* ---- Making and ending ----------------------------------------------------------------------- */

static bool options_sound(const tn_saver_options *o) {
    if (!tn__options_made(o->from_defaults, "saver_new", "tn_saver")) {
        return false;
    }
    if (o->keep < 1) {
        tn__raise(TN_EVALUE, "saver_new", "keep is %d (1 at least)", o->keep);
    } else if (!(o->timeout > 0) || o->timeout > TN__TIMEOUT_MOST) {
        tn__raise(TN_EVALUE, "saver_new", "the time-out is %g seconds", o->timeout);
    }
    return !tn__pending();
}

/* A store of this saver's own: its number among those that the group's ranks have made, all in the
 * same order, is in its prefix. NULL after raising. */
static tn_store *open_store(const tn_group *world) {
    tn_store *base = world && world->store ? tn__store_keep(world->store) : tn_memory_store();
    char name[64];
    int64_t number;
    snprintf(name, sizeof(name), "savers/%d", tn_group_rank(world));
    tn_store *own = NULL;
    if (base && tn_store_add(base, name, 1, &number) == TN_OK) {
        snprintf(name, sizeof(name), "saver/%" PRId64, number);
        own = tn_prefix_store(base, name);
    }
    tn_store_free(base);
    return own;
}

tn_saver *tn_saver_new(tn_group *world, const char *folder, tn_saver_options options) {
    if (tn__pending() || (world && tn__group_refuse_inherited(world, "saver_new"))) {
        return NULL;
    }
    if (!folder || !*folder) {
        tn__raise(TN_EVALUE, "saver_new", "the folder is %s", folder ? "empty" : "NULL");
        return NULL;
    }
    if (tn_group_rank(world) < 0) {
        tn__raise(TN_EVALUE, "saver_new", "this rank is no member of the group");
        return NULL;
    }
    tn_saver *s = options_sound(&options) ? tn__calloc(1, sizeof(*s)) : NULL;
    if (!s) {
        tn__raise(TN_ENOMEM, "saver_new", "no memory");
        return NULL;
    }
    s->world = world;
    s->rank = tn_group_rank(world);
    s->ranks = tn_group_size(world);
    s->process = tn__process();
    s->options = options;
    s->lock = -1;
    s->operation = "saver_new";
    s->state.operation = "saver_save";
    s->folder = tn__strdup(folder);
    s->holdings = s->rank == 0 ? tn__holdings_new(s->ranks, s->operation) : NULL;
    s->store = s->folder ? open_store(world) : NULL;
    if (!s->store || (s->rank == 0 && !s->holdings)) {
        tn__raise(TN_ENOMEM, "saver_new", "no memory"); /* if there was no error before */
        tn_saver_free(s);
        return NULL;
    }
    return s;
}

/* What belongs to one save alone. */
static void forget_written(tn_saver *s) {
    for (int i = 0; i < s->written_count; i++) {
        tn_release(s->written[i].tensor);
    }
    free(s->written);
    s->written = NULL;
    s->written_count = 0;
    free(s->metadata);
    s->metadata = NULL;
}

void tn_saver_free(tn_saver *s) {
    if (!s) {
        return;
    }
    bool ours = !tn__inherited(s->process);
    if (ours && s->under_way) {
        tn_status status = tn_saver_wait(s);
        (void)status; /* pending */
    }
    forget_written(s);
    tn__state_free(&s->state);
    tn__holdings_free(s->holdings);
    tn__saver_unlock(s);
    tn_store_free(s->store);
    free(s->writes);
    free(s->made);
    free(s->folder);
    free(s);
}

/* Whether s can be used now; the pending error is no hindrance. False after raising. */
static bool saver_sound(const tn_saver *s, const char *operation) {
    if (!s) {
        tn__raise(TN_EVALUE, operation, "the saver is NULL");
    }
    return s && !tn__refuse_inherited(s->process, operation, "the saver");
}

/* ---- Telling what this rank has -------------------------------------------------------------- */

static bool put_label(void *user, const char *key, const char *value) {
    tn__json_text *j = user;
    tn__json_put(j, "%s", j->bytes > 1 ? "," : "");
    tn__json_put_string(j, key);
    tn__json_put(j, ":");
    tn__json_put_string(j, value);
    return true;
}

/* What nobody could read is not written: texts are the program's, and may be no UTF-8. */
static void check_metadata(const tn_saver *s, const char *text) {
    tn__json_file json;
    if (tn__json_read(&json, text, strlen(text))) {
        tn__json_free(&json);
    } else {
        tn__raise(json.wrong ? TN_EVALUE : TN_ENOMEM, s->operation,
                  "the texts of step %" PRId64
                  " (its note, what data and model say of themselves): %s",
                  s->step, json.wrong ? json.wrong : "no memory");
    }
}

/* The texts of the checkpoint, as they are now. */
static void note_metadata(tn_saver *s, const tn_checkpoint *c) {
    tn__json_text j = {0};
    tn__json_put(&j, "{");
    bool made = tn__metadata_write(c, s->operation, put_label, &j);
    tn__json_put_bytes(&j, "}", 2);
    if (made && j.failed) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for the metadata");
    } else if (made) {
        check_metadata(s, j.at);
    }
    s->metadata = j.at;
}

/* {"step":100,"folder":"…","list":"DIGEST","tensors":{…}}; the tensors unless rank 0 has them. */
static void tell_list(tn_saver *s, const tn__state *state) {
    tn__json_text list = {0}, j = {0};
    char digest[TN__DIGEST_DIGITS + 1] = "";
    if (!tn__pending()) {
        tn__holdings_put(&list, state, true);
        tn__digest_of(list.at, list.failed ? 0 : list.bytes, digest);
        tn__json_put(&j, "{\"step\":%" PRId64 ",\"folder\":", s->step);
        tn__json_put_string(&j, s->folder);
        tn__json_put(&j, ",\"list\":\"%s\"", digest);
        if (strcmp(digest, s->told) != 0) {
            tn__json_put(&j, ",\"tensors\":");
            tn__json_put_bytes(&j, list.at, list.bytes);
        }
        tn__json_put(&j, "}");
    }
    if (list.failed || j.failed) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for the names of %d tensors", state->count);
    }
    tn__saver_tell(s, s->rank, "has", j.at, j.bytes);
    memcpy(s->told, digest, sizeof(digest));
    free(list.at);
    free(j.at);
}

/* ---- Rank 0: who writes what ----------------------------------------------------------------- */

/* Whether the ranks are at the same save. */
static bool same_save(const tn_saver *s, int rank, const tn__json *said) {
    const char *folder = tn__text_get(said, "folder");
    int64_t step = -1;
    tn__whole_get(said, "step", 0, INT64_MAX, &step);
    if (step != s->step) {
        tn__raise(TN_EMISMATCH, s->operation,
                  "rank %d saves step %" PRId64 " but rank 0 step %" PRId64, rank, step, s->step);
    } else if (!folder || strcmp(folder, s->folder) != 0) {
        tn__raise(TN_EMISMATCH, s->operation, "rank %d saves to %.200s but rank 0 to %.200s", rank,
                  folder ? folder : "?", s->folder);
    }
    return !tn__pending();
}

static void read_list(tn_saver *s, int rank, const char *said) {
    tn__json_file json;
    if (!tn__json_read(&json, said, strlen(said))) {
        tn__raise(json.wrong ? TN_EFORMAT : TN_ENOMEM, s->operation, "what rank %d has: %s", rank,
                  json.wrong ? json.wrong : "no memory");
        return;
    }
    const tn__json *tensors = tn__json_get(json.values, "tensors");
    if (same_save(s, rank, json.values) && tensors) {
        tn__holdings_set(s->holdings, rank, &json, tensors, s->operation);
    }
    tn__json_free(&json);
}

/* Hears every rank, also behind one that failed: whoever comes later finds an answer. */
static void hear_lists(tn_saver *s) {
    for (int r = 0; r < s->ranks && !tn__pending(); r++) {
        char late[160];
        snprintf(late, sizeof(late),
                 "rank %d has not come to save step %" PRId64 " within %g seconds", r, s->step,
                 s->options.timeout);
        char *said = tn__saver_hear(s, r, "has", s->deadline, late);
        if (said) {
            read_list(s, r, said);
        }
        free(said);
    }
}

static void tell_writes(tn_saver *s, int rank) {
    const tn__holdings_list *l = &s->holdings->lists[rank];
    char *digits = tn__pending() ? NULL : tn__malloc((size_t)l->count + 1);
    if (!digits) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for %d digits", l->count);
    }
    for (int i = 0; digits && i < l->count; i++) {
        digits[i] = l->at[i].writes ? '1' : '0';
    }
    tn__saver_tell(s, rank, "writes", digits, digits ? (size_t)l->count : 0);
    free(digits);
}

static void decide_writers(tn_saver *s) {
    hear_lists(s);
    if (!tn__pending()) {
        tn__saver_forget(s, s->saves - 1); /* all have come, so all have heard its end */
    }
    if (!tn__pending() && tn__holdings_deal(s->holdings, s->operation)) {
        tn__saver_prepare(s);
    }
    for (int r = 0; r < s->ranks; r++) {
        tell_writes(s, r);
    }
}

/* ---- Copying --------------------------------------------------------------------------------- */

/* Whether `old` is a copy that t fits into. */
static bool copy_fits(const tn__state_item *old, const tn__state_item *item) {
    const tn_tensor *a = old->tensor, *b = item->tensor;
    return a && strcmp(old->name, item->name) == 0 && tn_dtype_of(a) == tn_dtype_of(b) &&
           tn_dims_equal(tn_shape(a), tn_shape(b));
}

/* Copies what item has into the copy of the save before (NULL: a new one) and puts it in its
 * place. */
static bool copy_item(tn_saver *s, tn__state_item *item, tn__state_item *old) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *from = tn_contiguous(item->tensor);
    tn_tensor *to = old && copy_fits(old, item)
                        ? old->tensor
                        : tn_empty_on(tn_cpu(), tn_shape(from), tn_dtype_of(from));
    size_t bytes = (size_t)tn_count(from) * tn_dtype_size(tn_dtype_of(from));
    if (tn_is_inert(from) || tn_is_inert(to) ||
        (bytes && tn__copy_bytes(tn_cpu(), tn__address(to), from->storage->device,
                                 tn__address(from), bytes, s->operation) != TN_OK)) {
        return false;
    }
    tn_keep(to);
    tn_release(item->tensor);
    item->tensor = to;
    return true;
}

/* What this rank does not write goes; the rest becomes copies where a thread writes them. */
static bool copy_state(tn_saver *s, tn__state *fresh) {
    bool copied = true;
    for (int i = 0; copied && i < fresh->count; i++) {
        if (s->writes[i] == '0') {
            tn_release(fresh->items[i].tensor);
            fresh->items[i].tensor = NULL;
        } else if (s->options.behind) {
            copied = copy_item(s, &fresh->items[i], i < s->state.count ? &s->state.items[i] : NULL);
        }
    }
    return copied;
}

static void list_written(tn_saver *s) {
    TN_SCOPE;
    TN_NO_GRAD;
    s->written = tn__calloc((size_t)s->state.count, sizeof(*s->written));
    if (!s->written) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for a list of %d tensors", s->state.count);
    }
    for (int i = 0; s->written && i < s->state.count; i++) {
        tn__state_item *item = &s->state.items[i];
        tn_tensor *t =
            item->tensor ? tn_reshape(item->tensor, TN_DIMS(tn_count(item->tensor))) : NULL;
        if (t && !tn_is_inert(t)) {
            s->written[s->written_count++] =
                (tn__written){.tensor = tn_keep(tn_detach(t)), .name = item->name};
        }
    }
}

/* ---- A save ---------------------------------------------------------------------------------- */

static void *write_behind(void *user) {
    tn__saver_write(user);
    return NULL;
}

/* In this thread where no other can be had. */
static void start_writing(tn_saver *s) {
    s->under_way = true;
    s->has_thread = s->options.behind && pthread_create(&s->thread, NULL, write_behind, s) == 0;
    if (!s->has_thread) {
        tn__saver_write(s);
    }
}

/* Until this rank knows what it writes. False: an error is pending, on every rank. */
static bool agree_to_save(tn_saver *s, const tn_checkpoint *c, tn__state *fresh) {
    if (!tn__pending() && tn__checkpoint_sound(c, s->operation)) {
        s->step = c->step;
        tn__state_add(fresh, c);
        if (s->rank == 0) {
            note_metadata(s, c);
        }
    }
    tell_list(s, fresh);
    if (s->rank == 0) {
        decide_writers(s);
    }
    char late[160];
    snprintf(late, sizeof(late), "rank 0 has not come to save step %" PRId64 " within %g seconds",
             s->step, s->options.timeout);
    free(s->writes);
    s->writes = tn__saver_hear(s, s->rank, "writes", s->deadline + tn__saver_grace(s), late);
    if (s->writes && strlen(s->writes) != (size_t)fresh->count) {
        tn__raise(TN_EMISMATCH, s->operation, "rank 0 speaks of %zu tensors, but here are %d",
                  strlen(s->writes), fresh->count);
    }
    return !tn__pending();
}

/* What is wrong here alone, for those who have agreed and count on this rank. */
static void tell_failure(tn_saver *s) {
    tn__saver_tell(s, s->rank, "done", NULL, 0);
    if (s->rank == 0) {
        tn__saver_give_up(s);
        tn__saver_tell(s, -1, "end", NULL, 0);
    }
}

static void begin_save(tn_saver *s, const tn_checkpoint *c) {
    tn__state fresh = {.operation = s->operation, .parts = true};
    forget_written(s);
    s->saves++;
    s->deadline = tn__now() + s->options.timeout;
    if (!agree_to_save(s, c, &fresh)) {
        tn__state_free(&fresh);
        s->told[0] = 0;
        tell_failure(s);
        return;
    }
    /* From here on the others count on this rank: its errors are told at the end of the save. */
    if (copy_state(s, &fresh)) {
        tn__state_free(&s->state);
        s->state = fresh;
        list_written(s);
    } else {
        tn__state_free(&fresh);
    }
    s->failed.status = TN_OK;
    tn_error_take(&s->failed);
    start_writing(s);
}

tn_status tn_saver_save(tn_saver *s, const tn_checkpoint *c) {
    if (!saver_sound(s, "saver_save")) {
        return tn_error();
    }
    tn_error_record mine; /* pending already: the others will hear of it */
    bool failed = tn_error_take(&mine);
    if (tn_saver_wait(s) != TN_OK) {
        if (failed) { /* the first stays */
            tn_error_clear();
            tn_error_give(&mine);
        }
        return tn_error();
    }
    s->operation = "saver_save";
    tn__quiet(1); /* a handler may end the program: not before the others know */
    if (failed) {
        tn_error_give(&mine);
    }
    begin_save(s, c);
    tn__saver_part(s);
    failed = tn_error_take(&mine);
    tn__quiet(-1);
    if (failed) {
        tn_error_give(&mine);
    }
    return failed || s->options.behind ? tn_error() : tn_saver_wait(s);
}

tn_status tn_saver_wait(tn_saver *s) {
    if (!saver_sound(s, "saver_wait") || !s->under_way) {
        return tn_error();
    }
    if (s->has_thread) {
        pthread_join(s->thread, NULL);
    }
    s->under_way = s->has_thread = false;
    s->operation = "saver_wait";
    char late[160];
    snprintf(late, sizeof(late),
             "rank 0 has not ended the save of step %" PRId64 " within %g seconds", s->step,
             s->options.timeout);
    tn__quiet(1); /* as above */
    free(tn__saver_hear(s, -1, "end", s->deadline + tn__saver_grace(s), late));
    if (s->shared_error) {
        tn__saver_part(s);
    }
    forget_written(s);
    if (!s->options.behind) {
        tn__state_free(&s->state); /* no copies: they are the model's */
    }
    tn_error_record why;
    bool failed = tn_error_take(&why);
    tn__quiet(-1);
    if (failed) {
        s->told[0] = 0;
        tn_error_give(&why);
    }
    return tn_error();
}
