/* Checkpoints in parts: every rank writes what it has, and a step's folder gets its name when all
 * have (saver.h describes the protocol).
 *
 * tn_saver_save in the program's thread: waits for the previous save; every rank sends what it has,
 * receives which of it to write, and copies that. A thread does the rest (write.c).
 */
#include "core/clock.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/group/agree.h"
#include "distributed/parallel/save/saver.h"
#include "distributed/store/store.h"
#include "io/checkpoint/metadata.h"
#include "tensor/tensor.h"
#include "tern/sys/device.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

tn_saver_options tn_saver_defaults(void) {
    return (tn_saver_options){
        .keep = 2, .behind = true, .timeout = tn_dist_defaults().timeout, .from_defaults = true};
}

/* ---- Making and ending ----------------------------------------------------------------------- */

static bool arguments_sound(const tn_group *world, const char *folder, const tn_saver_options *o) {
    if (tn__pending() || (world && tn__group_refuse_inherited(world, "saver_new"))) {
        return false;
    }
    if (!folder || !*folder) {
        tn__raise(TN_EVALUE, "saver_new", "the folder is %s", folder ? "empty" : "NULL");
    } else if (tn_group_rank(world) < 0) {
        tn__raise(TN_EVALUE, "saver_new", "this rank is not a member of the group");
    } else if (!tn__options_made(o->from_defaults, "saver_new", "tn_saver")) {
        return false;
    } else if (o->keep < 1) {
        tn__raise(TN_EVALUE, "saver_new", "keep is %d (must be at least 1)", o->keep);
    } else if (!(o->timeout > 0) || o->timeout > TN__TIMEOUT_MOST) {
        tn__raise(TN_EVALUE, "saver_new", "the time-out is %g seconds", o->timeout);
    }
    return !tn__pending();
}

/* A separate store for this saver. Its prefix has the saver's number: all ranks of the group make
 * their savers in the same order. NULL after raising. */
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

TN__ALIVE_LIST(savers, "saver");

bool tn__saver_here(const tn_saver *s, const char *operation) {
    return tn__alive_is(&savers, s, operation);
}

tn_saver *tn_saver_new(tn_group *world, const char *folder, tn_saver_options options) {
    tn_saver *s = arguments_sound(world, folder, &options)
                      ? tn__calloc_for(1, sizeof(*s), "saver_new")
                      : NULL;
    if (s) {
        tn__alive_begin(&savers, s);
        s->world = world;
        s->rank = tn_group_rank(world);
        s->ranks = tn_group_size(world);
        s->process = tn__process();
        s->options = options;
        s->lock = -1;
        s->operation = "saver_new";
        s->state.operation = "saver_save";
        s->folder = tn__strdup_for(folder, s->operation);
        s->manifest = s->rank == 0 ? tn__manifest_new(s->ranks, "saver_save") : NULL;
        s->places = s->rank == 0 && options.copies
                        ? tn__calloc_for((size_t)s->ranks, sizeof(*s->places), s->operation)
                        : NULL;
        s->store = s->folder ? open_store(world) : NULL;
    }
    if (tn__pending()) {
        tn_saver_free(s);
        return NULL;
    }
    return s;
}

void tn_saver_free(tn_saver *s) {
    if (!s || !tn__saver_here(s, "saver_free")) {
        return;
    }
    if (!tn__inherited(s->process) && s->under_way) {
        tn_saver_wait(s);
    }
    if (!tn__inherited(s->process)) {
        tn__after_finish(s);
    }
    if (!tn__alive_end(&savers, s, "saver_free")) {
        return;
    }
    tn__state_free(&s->state);
    tn__manifest_free(s->manifest);
    tn__saver_unlock(s);
    tn__vault_close(&s->vault);
    tn__copies_free(&s->copies);
    tn__buffer_free(&s->list);
    tn_store_free(s->store);
    free(s->places);
    free(s->metadata);
    free(s->writes);
    free(s->made);
    free(s->folder);
    free(s);
}

/* Whether s can be used, even with an error pending. False after raising. */
static bool saver_sound(const tn_saver *s, const char *operation) {
    if (!s) {
        tn__raise(TN_EVALUE, operation, "the saver is NULL");
    }
    return s && tn__saver_here(s, operation) &&
           !tn__refuse_inherited(s->process, operation, "the saver");
}

/* ---- What this rank has ---------------------------------------------------------------------- */

static bool put_label(void *user, const char *key, const char *value) {
    tn__buffer *j = user;
    tn__buffer_format(j, "%s", j->bytes > 1 ? "," : "");
    tn__json_put_string(j, key);
    tn__buffer_format(j, ":");
    tn__json_put_string(j, value);
    return true;
}

/* The checkpoint's strings, as they are now. They are the program's, and may not be UTF-8: what
 * could not be read back is not written. */
static void note_metadata(tn_saver *s, const tn_checkpoint *c) {
    tn__buffer j = {.operation = s->operation};
    tn__json_file json;
    tn__buffer_format(&j, "{");
    bool made = tn__metadata_write(c, s->operation, put_label, &j);
    tn__buffer_text(&j, "}");
    if (made && !j.failed && tn__json_read(&json, j.at, j.bytes)) {
        tn__json_free(&json);
    } else if (made && !j.failed) {
        tn__raise(json.wrong ? TN_EVALUE : TN_ENOMEM, s->operation,
                  "the strings of step %" PRId64 " (its note, descriptions of data and model): %s",
                  s->step, json.wrong ? json.wrong : "no memory");
    }
    free(s->metadata);
    s->metadata = j.at;
}

/* Where the current save goes: 'f'iles, 'm'emory, or memory with 'c'opies. */
static char kind_of(const tn_saver *s) {
    return !s->memory ? 'f' : s->options.copies ? 'c' : 'm';
}

static const char *kind_text(char kind) {
    return kind == 'f' ? "files" : kind == 'm' ? "memory" : "memory with copies";
}

/* Sends '+' or '=', the kind, the step and the folder, a 0; for copies where this rank is, a 0;
 * after '+' also the list, since it is new. Or '-' and the same, and why this rank has no memory.
 */
static void send_list(tn_saver *s, const tn__state *state) {
    tn__buffer j = {.operation = s->operation}, *list = &s->list;
    char digest[TN__DIGEST_DIGITS + 1] = "";
    tn__buffer_free(list);
    list->operation = s->operation;
    if (!tn__pending()) {
        tn__manifest_put(list, state, true);
        tn__digest_of(list->at, list->failed ? 0 : list->bytes, digest);
        bool new = strcmp(digest, s->sent) != 0, none = s->memory && s->vault.why[0];
        tn__buffer_format(&j, "%c%c%" PRId64 " ",
                          none  ? '-'
                          : new ? '+'
                                : '=',
                          kind_of(s), s->step);
        tn__buffer_add(&j, s->folder, strlen(s->folder) + 1);
        if (kind_of(s) == 'c') {
            tn__buffer_format(&j, "%d %s", tn_local_rank(), s->vault.host);
            tn__buffer_add(&j, "", 1);
        }
        if (none) {
            tn__buffer_text(&j, s->vault.why);
            *digest = 0;
        } else if (new) {
            tn__buffer_add(&j, list->at, list->bytes);
        }
    }
    tn__saver_send(s, s->rank, "list", j.at, j.bytes);
    memcpy(s->sent, digest, sizeof(digest));
    tn__buffer_free(&j);
}

/* ---- Rank 0: who writes what ----------------------------------------------------------------- */

/* Where a rank is. Returns the bytes that say so. */
static size_t read_place(tn_saver *s, int rank, const char *said) {
    tn__copy_place *place = &s->places[rank];
    if (sscanf(said, "%d %32s", &place->local, place->host) < 1) {
        place->host[0] = 0;
    }
    return strlen(said) + 1;
}

/* Checks that the ranks are at the same save, and reads the list if it is new. */
static void read_list(tn_saver *s, int rank, const char *said, size_t bytes) {
    char *folder, kind = said[1], own = kind_of(s);
    int64_t step = strtoll(said + (kind ? 2 : 1), &folder, 10);
    size_t head = strlen(said) + 1;
    folder += *folder == ' ';
    if (kind != own) {
        tn__raise(TN_EMISMATCH, s->operation, "rank %d saves to %s, but rank 0 to %s", rank,
                  kind_text(kind), kind_text(own));
        return;
    }
    if (kind == 'c' && head < bytes) {
        head += read_place(s, rank, said + head);
    }
    if (step != s->step) {
        tn__raise(TN_EMISMATCH, s->operation,
                  "rank %d saves step %" PRId64 " but rank 0 saves step %" PRId64, rank, step,
                  s->step);
    } else if (strcmp(folder, s->folder) != 0) {
        tn__raise(TN_EMISMATCH, s->operation, "rank %d saves to %.200s, but rank 0 to %.200s", rank,
                  folder, s->folder);
    } else if (*said == '+' && head <= bytes) {
        tn__manifest_set(s->manifest, rank, said + head, bytes - head);
    } else if (*said == '-' && head <= bytes) {
        tn__saver_no_memory(s, rank, said + head);
    }
}

/* Decides who writes, and, for files, where. */
static void prepare_save(tn_saver *s) {
    if (!s->memory) {
        if (tn__manifest_deal(s->manifest)) {
            tn__saver_prepare(s);
        }
    } else if (!s->memory_ends && tn__manifest_deal(s->manifest) &&
               getrandom(&s->number, sizeof(s->number), 0) != sizeof(s->number)) {
        tn__raise(TN_EIO, s->operation, "no random number: %s", strerror(errno));
    } else if (s->places && !s->copies_end) {
        tn__copies_deal(s->places, s->ranks);
    }
}

/* Digits for what this rank writes; for memory then a space, the save's number, the milliseconds
 * that rank 0 has left and the links for copies, or only '-'. */
static void send_digits(tn_saver *s, int rank) {
    const tn__manifest_list *l = &s->manifest->lists[rank];
    tn__buffer digits = {.operation = s->operation};
    bool off = s->memory && s->memory_ends;
    for (int i = 0; !tn__pending() && !off && i < l->count; i++) {
        tn__buffer_text(&digits, l->at[i].writes ? "1" : "0");
    }
    if (!tn__pending() && off) {
        tn__buffer_text(&digits, "-");
    } else if (!tn__pending() && s->memory) {
        tn__buffer_format(&digits, " %016" PRIx64 " %.0f", s->number,
                          1e3 * (s->deadline - tn__now()));
        if (s->places && !s->copies_end) {
            tn__copies_put(s->places, s->ranks, rank, &digits);
        }
    }
    tn__saver_send(s, rank, "writes", digits.at, digits.bytes);
    tn__buffer_free(&digits);
}

/* Answers every rank, even after one has failed. */
static void decide_writers(tn_saver *s) {
    for (int r = 0; r < s->ranks && !tn__pending(); r++) {
        size_t bytes;
        char *said = tn__saver_receive(s, r, "list", "begun to save", &bytes);
        if (said && bytes) {
            read_list(s, r, said, bytes);
        }
        free(said);
    }
    if (!tn__pending()) {
        tn__saver_forget(s); /* all have arrived, so all know that it ended */
    }
    if (!tn__pending()) {
        prepare_save(s);
    }
    for (int r = 0; r < s->ranks; r++) {
        send_digits(s, r);
    }
}

/* ---- Copying --------------------------------------------------------------------------------- */

/* Whether `old` is a copy that t fits into. */
static bool copy_fits(const tn__state_item *old, const tn__state_item *item) {
    const tn_tensor *a = old->tensor, *b = item->tensor;
    return a && strcmp(old->name, item->name) == 0 && tn_dtype_of(a) == tn_dtype_of(b) &&
           tn_dims_equal(tn_shape(a), tn_shape(b));
}

/* Copies item's tensor into the previous save's copy (NULL: a new one), which then replaces it. */
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

/* Drops what this rank does not write; copies the rest if a thread writes it. */
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

/* ---- A save ---------------------------------------------------------------------------------- */

/* Returns when this rank knows what it writes. False: an error is pending, on every rank. */
static bool agree_to_save(tn_saver *s, const tn_checkpoint *c, tn__state *fresh) {
    if (!tn__pending() && tn__checkpoint_sound(c, s->operation)) {
        s->step = c->step;
        tn__state_add(fresh, c);
        if (s->rank == 0) {
            note_metadata(s, c);
        }
    }
    send_list(s, fresh);
    if (s->rank == 0) {
        decide_writers(s);
    }
    free(s->writes);
    s->writes = tn__saver_receive(s, s->rank, "writes", "begun to save", NULL);
    char *number = s->writes && s->memory ? strchr(s->writes, ' ') : NULL, *links;
    if (number) {
        s->number = strtoull(number, &links, 16);
        s->first_deadline = tn__now() + 1e-3 * (double)strtoll(links, &links, 10);
        tn__copies_set(s, links);
        *number = 0;
    }
    s->memory_off = s->memory_off || (s->writes && strcmp(s->writes, "-") == 0);
    if (s->writes && !s->memory_off && strlen(s->writes) != (size_t)fresh->count) {
        tn__raise(TN_EMISMATCH, s->operation, "rank 0 lists %zu tensors, but this rank has %d",
                  strlen(s->writes), fresh->count);
    }
    return !tn__pending();
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

static void begin_save(tn_saver *s, const tn_checkpoint *c) {
    tn__state fresh = {.operation = s->operation, .parts = true};
    tn__warn_ranks_differ(s->world, c, s->operation);
    s->saves++;
    s->deadline = tn__now() + s->options.timeout;
    if (!agree_to_save(s, c, &fresh)) {
        tn__state_free(&fresh);
        s->sent[0] = 0;
        /* tells those that have agreed and count on this rank */
        tn__saver_send(s, s->rank, "done", NULL, 0);
        if (kind_of(s) == 'c') {
            tn__copies_refuse(s);
        }
        if (s->rank == 0) {
            tn__saver_give_up(s);
            tn__saver_send(s, -1, "end", NULL, 0);
        }
        return;
    }
    if (s->memory && s->memory_off) { /* for all: nothing is saved */
        tn__state_free(&fresh);
        tn__vault_close(&s->vault);
        return;
    }
    /* From here on the others count on this rank, so its errors are raised at the end of the
     * save. */
    bool copied = copy_state(s, &fresh);
    tn__state_free(copied ? &s->state : &fresh);
    if (copied) {
        s->state = fresh;
    }
    s->failed.status = TN_OK;
    tn_error_take(&s->failed);
    s->under_way = true;
    s->has_thread = s->options.behind && pthread_create(&s->thread, NULL, tn__saver_write, s) == 0;
    if (!s->has_thread) {
        tn__saver_write(s); /* in this thread if no other can be started */
    }
}

static tn_status save_to(tn_saver *s, const tn_checkpoint *c, bool memory, const char *operation) {
    tn_error_record mine = {.status = TN_OK}; /* a pending one, which the others get too */
    tn_error_take(&mine);
    if (tn_saver_wait(s) != TN_OK) {
        if (mine.status != TN_OK) { /* the first error stays */
            tn_error_clear();
            tn_error_give(&mine);
        }
        return tn_error();
    }
    s->operation = operation;
    s->memory = memory;
    if (memory) {
        tn__vault_open(&s->vault, s->folder);
    }
    tn__agree_begin();
    tn_error_give(&mine);
    begin_save(s, c);
    tn__saver_leave(s);
    mine = tn__agree_end();
    tn_error_give(&mine);
    return mine.status != TN_OK || s->options.behind ? tn_error() : tn_saver_wait(s);
}

tn_status tn_saver_save(tn_saver *s, const tn_checkpoint *c) {
    return saver_sound(s, "saver_save") ? save_to(s, c, false, "saver_save") : tn_error();
}

tn_status tn_saver_remember(tn_saver *s, const tn_checkpoint *c) {
    static const char operation[] = "saver_remember";
    bool off = !saver_sound(s, operation) || s->memory_off;
    return off ? tn_error() : save_to(s, c, true, operation);
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
    tn__agree_begin();
    free(tn__saver_receive(s, -1, "end", "ended the save of", NULL));
    if (s->shared_error) {
        tn__saver_leave(s);
    }
    if (!s->options.behind) {
        tn__state_free(&s->state); /* not copies but the model's */
    }
    tn_error_record why = tn__agree_end();
    if (why.status == TN_OK && s->memory) {
        s->vault.whole = s->number;
    }
    if (why.status != TN_OK) {
        s->sent[0] = 0;
        tn_error_give(&why);
    }
    return tn_error();
}
