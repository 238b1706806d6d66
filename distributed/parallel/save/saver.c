/* Checkpoints in parts: every rank writes what it has, and a step's folder gets its name when all
 * have (saver.h: who does what, and where). */
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/group/group.h"
#include "distributed/parallel/save/saver.h"
#include "io/checkpoint/metadata.h"
#include "tensor/tensor.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <string.h>

tn_saver_options tn_saver_defaults(void) {
    return (tn_saver_options){
        .keep = 2, .behind = true, .timeout = tn_dist_defaults().timeout, .from_defaults = true};
}

/* ---- Making and ending ----------------------------------------------------------------------- */

static bool arguments_sound(const tn_group *world, const char *folder, const tn_saver_options *o) {
    if (tn_group_rank(world) < 0) {
        tn__raise(TN_EVALUE, "saver_new", "this rank is not a member of the group");
    } else if (!folder || !*folder) {
        tn__raise(TN_EVALUE, "saver_new", "the folder is %s", folder ? "empty" : "NULL");
    } else if (!tn__options_made(o->from_defaults, "saver_new", "tn_saver")) {
        return false;
    } else if (o->keep < 1) {
        tn__raise(TN_EVALUE, "saver_new", "keep is %d (must be at least 1)", o->keep);
    } else if (!(o->timeout > 0) || o->timeout > TN__TIMEOUT_MOST) {
        tn__raise(TN_EVALUE, "saver_new", "the time-out is %g seconds", o->timeout);
    }
    return !tn__pending();
}

TN__ALIVE_LIST(savers, "saver");

bool tn__saver_sound(const tn_saver *s, const char *operation) {
    if (!s) { tn__raise(TN_EVALUE, operation, "the saver is NULL"); }
    return s && tn__alive_is(&savers, s, operation) &&
           !tn__refuse_inherited(s->process, operation, "the saver");
}

static tn_saver *make_saver(tn_group *world, const char *folder, tn_saver_options options) {
    if (!arguments_sound(world, folder, &options)) { return NULL; }
    tn_saver *s = tn__calloc_for(1, sizeof(*s), "saver_new");
    if (!s) { return NULL; }
    *s = (tn_saver){.world = world,
                    .rank = tn_group_rank(world),
                    .ranks = tn_group_size(world),
                    .process = tn__process(),
                    .folder = tn__strdup_for(folder, "saver_new"),
                    .options = options,
                    .operation = "saver_new",
                    .manifest = {.operation = "saver_save", .ranks = tn_group_size(world)},
                    .lock = -1};
    tn__alive_begin(&savers, s);
    return s;
}

tn_saver *tn_saver_new(tn_group *world, const char *folder, tn_saver_options options) {
    static const char operation[] = "saver_new";
    if (!tn__agree_begin(world, operation)) { return NULL; }
    tn_saver *s = make_saver(world, folder, options);
    bool agreed = tn__agree(world, NULL, operation) == TN_OK;
    if (agreed && s->ranks > 1) {
        tn__agree_begin(world, operation);
        s->group = tn__group_again(world, "saver", options.timeout);
        agreed = tn__agree(world, NULL, operation) == TN_OK;
    }
    if (agreed) { return s; }
    tn_saver_free(s);
    return NULL;
}

void tn_saver_free(tn_saver *s) {
    if (!s || !tn__alive_is(&savers, s, "saver_free")) { return; }
    if (!tn__inherited(s->process) && s->under_way) { tn_saver_wait(s); }
    if (!tn__inherited(s->process)) { tn__after_finish(s); }
    if (!tn__alive_end(&savers, s, "saver_free")) { return; }
    tn_group_free(s->group);
    tn__state_free(&s->state);
    tn__manifest_free(&s->manifest);
    tn__saver_unlock(s);
    free(s->metadata);
    free(s->made);
    free(s->part);
    free(s->folder);
    free(s);
}

/* ---- What this rank has ---------------------------------------------------------------------- */

/* The strings are the program's, and may not be UTF-8: such a file could not be read back. */
static bool put_label(void *user, const char *key, const char *value) {
    tn__buffer *j = user;
    if (!tn__is_utf8(value)) {
        return tn__fail(TN_EVALUE, j->operation, "the checkpoint's \"%s\" is not UTF-8", key);
    }
    tn__buffer_format(j, "%s", j->bytes > 1 ? "," : "");
    tn__json_put_string(j, key);
    tn__buffer_format(j, ":");
    tn__json_put_string(j, value);
    return true;
}

/* The checkpoint's strings, as they are now. */
static void note_metadata(tn_saver *s, const tn_checkpoint *c) {
    tn__buffer j = {.operation = s->operation};
    tn__buffer_text(&j, "{");
    tn__metadata_write(c, s->operation, put_label, &j);
    tn__buffer_text(&j, "}");
    free(s->metadata);
    s->metadata = j.at;
}

/* ---- Copying --------------------------------------------------------------------------------- */

/* Replaces item's tensor by a copy. May raise. */
static void copy_item(tn__state_item *item) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *t = item->tensor;
    tn_tensor *copy = tn_copy_(tn_empty_on(tn_cpu(), tn_shape(t), tn_dtype_of(t)), t);
    if (tn__pending()) { return; }
    tn_release(t);
    item->tensor = tn_keep(copy);
}

/* Drops what this rank does not write; copies the rest if a thread writes it. May raise. */
static void copy_state(const tn_saver *s, const tn__state *fresh) {
    const tn__manifest_entry *mine = s->manifest.lists[s->rank].at;
    for (int i = 0; i < fresh->count && !tn__pending(); i++) {
        if (!mine[i].writes) {
            tn_release(fresh->items[i].tensor);
            fresh->items[i].tensor = NULL;
        } else if (s->options.behind) {
            copy_item(&fresh->items[i]);
        }
    }
}

/* ---- A save ---------------------------------------------------------------------------------- */

/* After tn__agree_begin. Returns when this rank knows what it writes, and the step's folder is
 * there. False after raising, on every rank. */
static bool agree_to_save(tn_saver *s, const tn_checkpoint *c, tn__state *fresh) {
    tn__buffer list = {.operation = s->operation};
    if (!tn__pending() && tn__checkpoint_sound(c, s->operation)) {
        s->step = c->step;
        if (tn__state_add(fresh, c)) { tn__manifest_put(&list, fresh, true); }
        if (s->rank == 0) { note_metadata(s, c); }
    }
    char *what = tn__asprintf(s->operation, "step %" PRId64 " for %s", s->step, s->folder);
    bool agreed = tn__agree(s->group, what, s->operation) == TN_OK;
    free(what);
    if (agreed) {
        tn__agree_begin(s->group, s->operation);
        bool prepares = tn__manifest_gather(&s->manifest, s->group, &list) && tn__saver_prepare(s);
        agreed = tn__agree(s->group, NULL, s->operation) == TN_OK;
        if (prepares && !agreed) { tn__saver_discard(s); }
    }
    tn__buffer_free(&list);
    return agreed;
}

static bool ranks_differ(tn_module *m, const char *path, void *user) {
    *(bool *)user = *(bool *)user || m->ranks_differ;
    return true;
}

void tn__warn_ranks_differ(const tn_group *g, const tn_checkpoint *c, const char *operation) {
    bool differ = false;
    if (c && c->model && tn_group_size(g) > 1 && tn_group_rank(g) == 0 && !tn__pending()) {
        tn_module_each_module(c->model, ranks_differ, &differ);
    }
    if (differ) {
        tn__log_loud("%s: the ranks' models differ (local SGD, before its next synchronisation), "
                     "and one rank's copy of each parameter is saved for all (tn_local_sgd_new "
                     "says how to save)",
                     operation);
    }
}

/* From here on the others count on this rank, so its errors are raised at the end of the save. */
static void start_writing(tn_saver *s, tn__state *fresh) {
    tn__quiet(1);
    s->part = tn__saver_part(s, s->rank);
    if (s->part) { copy_state(s, fresh); }
    tn__quiet(-1);
    s->state = *fresh;
    s->result.status = TN_OK;
    tn_error_take(&s->result);
    if (s->group) { s->group->owned = false; }
    s->under_way = true;
    s->has_thread = s->options.behind && pthread_create(&s->thread, NULL, tn__saver_write, s) == 0;
    if (!s->has_thread) { tn__saver_write(s); /* in this thread if no other can be started */ }
}

/* `mine` is the program's own error, if any, which the others get too. */
static void begin_save(tn_saver *s, const tn_checkpoint *c, const tn_error_record *mine) {
    s->operation = "saver_save";
    tn__state fresh = {.operation = s->operation, .parts = true};
    tn__agree_begin(s->group, s->operation); /* no error is pending: it begins */
    tn__warn_ranks_differ(s->world, c, s->operation);
    tn_error_give(mine);
    if (agree_to_save(s, c, &fresh)) {
        start_writing(s, &fresh);
    } else {
        tn__state_free(&fresh);
    }
}

tn_status tn_saver_save(tn_saver *s, const tn_checkpoint *c) {
    if (!tn__saver_sound(s, "saver_save")) { return tn_error(); }
    tn_error_record mine = {.status = TN_OK};
    bool failed = tn_error_take(&mine); /* before: a handler has heard of it */
    tn__quiet(failed);
    if (tn_saver_wait(s) == TN_OK) {
        begin_save(s, c, &mine);
    } else if (failed) { /* the first error stays */
        tn_error_clear();
        tn_error_give(&mine);
    }
    tn__quiet(-failed);
    return tn__pending() || s->options.behind ? tn_error() : tn_saver_wait(s);
}

tn_status tn_saver_wait(tn_saver *s) {
    if (!tn__saver_sound(s, "saver_wait") || !s->under_way) { return tn_error(); }
    if (s->has_thread) { pthread_join(s->thread, NULL); }
    s->under_way = s->has_thread = false;
    tn__state_free(&s->state);
    tn_error_give(&s->result);
    return tn_error();
}
