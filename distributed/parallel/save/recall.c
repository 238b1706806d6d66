/* Loading what tn_saver_remember has saved: from the vaults of all hosts onto the present ranks,
 * whose number and layout may differ.
 *
 * One rank of each host tells what the blocks there hold: those of its ranks, also of ranks that
 * are no longer there, and copies. The newest save of which some host holds each part is the one to
 * load, if the files have no newer one. Its lists go to all, who make the same index of them as a
 * step's folder has; then each reads what overlaps its own parts, through the memory of its host,
 * or from a broadcast of the parts that some host lacks. A part that is damaged is passed over,
 * with a warning: its copy is next, then the older save, then the files.
 */
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/group/agree.h"
#include "distributed/parallel/save/saver.h"
#include "nn/layout.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* One part of the save that is being loaded. */
typedef struct part {
    const tn__vault_head *head; /* of a block that holds it, */
    int holder;                 /* and the rank that has told of it */
    void *mapped;               /* of this host's memory; NULL: not here */
    size_t bytes;
    void *received; /* or what another rank has sent */
} part;

typedef struct recall {
    tn_saver *s;
    const char *operation;
    int teller;            /* the rank that tells of this host's blocks */
    tn__vault_head *heads; /* [count], of all hosts; zeros: tried already */
    int *holders;          /* [count]: who has told of it */
    int count;
    part *parts; /* [ranks] of the save; room for `count` */
    int ranks;
    int64_t step;
    tn__index *index;
    int damaged;            /* a part that could not be read here; -1 */
    tn_error_record failed; /* the first error of this rank, while it works with the others */
} recall;

/* Keeps an error for later: groups refuse to work while one is pending. */
static void put_aside(recall *r) {
    tn_error_record error;
    if (tn_error_take(&error) && r->failed.status == TN_OK) {
        r->failed = error;
    }
}

/* ---- Which ----------------------------------------------------------------------------------- */

/* Finds the first rank that opens the same blocks. False after raising. */
static bool find_teller(recall *r) {
    TN_SCOPE;
    TN__ON_CPU;
    const tn__vault *v = &r->s->vault;
    char mine[sizeof(v->host)] = "";
    const int64_t bytes = sizeof(mine);
    if (v->own[0] >= 0) {
        memcpy(mine, v->host, sizeof(mine));
    }
    tn_tensor *sent = tn_from_data(mine, TN_DIMS(bytes), TN_U8);
    tn_tensor *received = tn_empty(TN_DIMS(r->s->ranks, bytes), TN_U8);
    if (tn_work_wait(tn_all_gather(r->s->world, received, sent), 0) != TN_OK) {
        return false;
    }
    const char *all = tn_data(received);
    while (memcmp(all + r->teller * bytes, mine, sizeof(mine)) != 0) {
        r->teller++;
    }
    return true;
}

/* Appends what a rank has told. */
static bool add_heads(recall *r, int rank, const void *heads, size_t bytes) {
    const int more = (int)(bytes / sizeof(*r->heads));
    int64_t had = r->count;
    int64_t held = had;
    if (more == 0) {
        return true;
    }
    if (!tn__grow(&r->heads, r->count + more, &had, sizeof(*r->heads), r->operation) ||
        !tn__grow(&r->holders, r->count + more, &held, sizeof(*r->holders), r->operation)) {
        return false;
    }
    memcpy(r->heads + r->count, heads, (size_t)more * sizeof(*r->heads));
    for (int i = 0; i < more; i++) {
        r->holders[r->count++] = rank;
    }
    return true;
}

/* False after raising. */
static bool gather_heads(recall *r) {
    tn__buffer mine = {.operation = r->operation};
    size_t n = (size_t)r->s->ranks;
    void **all = tn__calloc_for(n, sizeof(*all), r->operation);
    size_t *bytes = tn__calloc_for(n, sizeof(*bytes), r->operation);
    if (all && bytes && r->teller == r->s->rank) {
        tn__vault_heads(&r->s->vault, &mine);
    }
    if (tn__pending()) {
        tn_group_abort(r->s->world, tn_error_message());
    }
    bool told = all && bytes && !tn__pending() &&
                tn_all_gather_bytes(r->s->world, mine.at, mine.bytes, all, bytes) == TN_OK;
    for (int i = 0; told && i < r->s->ranks; i++) {
        add_heads(r, i, all[i], bytes[i]);
        tn_bytes_free(all[i]);
    }
    r->parts = told ? tn__calloc_for((size_t)r->count + 1, sizeof(*r->parts), r->operation) : NULL;
    if (told && tn__pending()) {
        tn_group_abort(r->s->world, tn_error_message());
    }
    tn__buffer_free(&mine);
    free(all);
    free(bytes);
    return !tn__pending();
}

static bool same_save(const tn__vault_head *a, const tn__vault_head *b) {
    return a->magic[0] && a->step == b->step && a->save == b->save && a->ranks == b->ranks;
}

/* Finds the holders of all parts of the save that h belongs to. False: some part is nowhere. */
static bool find_parts(recall *r, const tn__vault_head *h) {
    memset(r->parts, 0, (size_t)r->count * sizeof(*r->parts));
    int64_t found = 0;
    for (int i = 0; i < r->count; i++) {
        const tn__vault_head *other = &r->heads[i];
        if (same_save(other, h) && other->rank >= 0 && other->rank < h->ranks &&
            !r->parts[other->rank].head) {
            r->parts[other->rank] = (part){.head = other, .holder = r->holders[i]};
            found++;
        }
    }
    r->ranks = (int)h->ranks;
    r->step = h->step;
    return found == h->ranks;
}

/* The head of a rank's part as one host holds it; NULL: it does not, or the part was dropped. */
static tn__vault_head *find_held(const recall *r, const tn__vault_head *h, int64_t rank,
                                 int holder) {
    for (int i = 0; i < r->count; i++) {
        if (same_save(&r->heads[i], h) && r->heads[i].rank == rank && r->holders[i] == holder) {
            return &r->heads[i];
        }
    }
    return NULL;
}

static void drop_save(recall *r, const tn__vault_head *h) {
    const tn__vault_head dropped = *h;
    for (int i = 0; i < r->count; i++) {
        if (same_save(&r->heads[i], &dropped)) {
            memset(&r->heads[i], 0, sizeof(r->heads[i]));
        }
    }
}

/* The head of the newest save whose parts are all there, from step `least` on; NULL: there is
 * none. The same on all ranks. */
static const tn__vault_head *choose_save(recall *r, int64_t least) {
    for (;;) {
        const tn__vault_head *newest = NULL;
        for (int i = 0; i < r->count; i++) {
            const tn__vault_head *h = &r->heads[i];
            bool newer = !newest || h->step > newest->step ||
                         (h->step == newest->step && h->save > newest->save);
            if (h->magic[0] && h->step >= least && newer) {
                newest = h;
            }
        }
        /* no more parts than blocks: find_parts has no place for others */
        bool whole =
            newest && newest->ranks > 0 && newest->ranks <= r->count && find_parts(r, newest);
        if (whole || !newest) {
            return newest;
        }
        drop_save(r, newest);
    }
}

/* ---- Its index ------------------------------------------------------------------------------- */

/* Takes a rank's list, digests and metadata from its tail. False after raising. */
static bool read_tail(recall *r, tn__manifest *m, int rank, const char *tail, size_t bytes,
                      char **metadata) {
    int64_t list = -1;
    if (bytes >= sizeof(list)) {
        memcpy(&list, tail, sizeof(list));
    }
    size_t head = sizeof(list) + (size_t)list;
    if (list < 0 || (size_t)list > bytes || head > bytes) {
        tn__raise(TN_EFORMAT, r->operation, "rank %d sent no list of its part", rank);
        return false;
    }
    if (!tn__manifest_set(m, rank, tail + sizeof(list), (size_t)list)) {
        return false;
    }
    tn__manifest_list *l = &m->lists[rank];
    size_t digests = (size_t)l->count * TN__DIGEST_DIGITS;
    if (digests > bytes - head) {
        tn__raise(TN_EFORMAT, r->operation, "rank %d sent no digests of its part", rank);
        return false;
    }
    for (int i = 0; i < l->count; i++) {
        memcpy(l->at[i].digest, tail + head + (size_t)i * TN__DIGEST_DIGITS, TN__DIGEST_DIGITS);
    }
    l->bytes = r->parts[rank].head->image;
    if (rank == 0) {
        *metadata = tn__asprintf(r->operation, "%.*s", (int)(bytes - head - digests),
                                 tail + head + digests);
    }
    return !tn__pending();
}

/* All ranks get the tail of each part from its holder, if *all is true then. False: the group has
 * failed. */
static bool share_tails(recall *r, tn__manifest *m, char **metadata, bool *all) {
    bool whole = true;
    for (int i = 0; i < r->ranks; i++) {
        const part *p = &r->parts[i];
        bool mine = p->holder == r->s->rank;
        int fd = mine ? tn__vault_find(p->head) : -1;
        void *tail = fd >= 0 ? tn__vault_tail(fd, p->head, r->operation) : NULL;
        size_t bytes = tail ? (size_t)p->head->tail : 0;
        if (fd >= 0) {
            close(fd);
        }
        if (mine && !tail) {
            r->damaged = i;
        }
        put_aside(r);
        if (tn_broadcast_bytes(r->s->world, &tail, &bytes, p->holder) != TN_OK) {
            return false;
        }
        whole = whole && bytes > 0; /* otherwise its holder has an error for all */
        if (m && bytes > 0) {
            read_tail(r, m, i, tail, bytes, metadata);
        }
        mine ? free(tail) : tn_bytes_free(tail);
        put_aside(r);
    }
    *all = whole;
    return true;
}

/* False: the group has failed. Otherwise the index may be missing on some ranks, which have put
 * their error aside. */
static bool make_index(recall *r) {
    char name[64], *metadata = NULL;
    tn__buffer j = {.operation = r->operation};
    tn__manifest *m = tn__manifest_new(r->ranks, r->operation);
    put_aside(r);
    bool all = false, shared = share_tails(r, m, &metadata, &all);
    if (all && r->failed.status == TN_OK && tn__manifest_deal(m)) {
        tn__saver_put_index(m, metadata, &j);
        snprintf(name, sizeof(name), "step %" PRId64 " in memory", r->step);
        r->index = j.failed ? NULL : tn__index_read(name, j.at, j.bytes, r->operation);
    }
    if (r->index) {
        r->index->damaged = &r->damaged;
    }
    if (shared) {
        put_aside(r);
    }
    tn__buffer_free(&j);
    free(metadata);
    tn__manifest_free(m);
    return shared;
}

/* ---- Its parts ------------------------------------------------------------------------------- */

/* Lends the index a part. */
static void lend_part(recall *r, int i, void *image, size_t bytes) {
    if (!tn__index_lend(r->index, i, image, bytes)) {
        r->damaged = i;
        put_aside(r);
    }
}

/* Lends the index what this host's memory has. */
static void map_parts(recall *r) {
    for (int i = 0; i < r->ranks; i++) {
        part *p = &r->parts[i];
        int fd = find_held(r, p->head, i, r->teller) ? tn__vault_find(p->head) : -1;
        size_t bytes = (size_t)TN__VAULT_BEGIN + (size_t)p->head->image;
        void *at = fd >= 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
        if (at != MAP_FAILED) {
            p->mapped = at;
            p->bytes = bytes;
            lend_part(r, i, (char *)at + TN__VAULT_BEGIN, (size_t)p->head->image);
        } else if (fd >= 0) {
            tn__raise(TN_ENOMEM, r->operation, "%zu bytes in memory cannot be mapped: %s", bytes,
                      strerror(errno));
            put_aside(r);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
}

/* Marks the parts that this rank needs and its host does not have. */
static void mark_missing(recall *r, const tn_checkpoint *c, uint8_t *missing) {
    tn__state state = {.operation = r->operation, .parts = true, .deferred = true};
    tn__state_add(&state, c);
    for (int i = 0; i < state.count; i++) {
        const tn__index_tensor *t = tn__index_find(r->index, state.items[i].name);
        for (int k = 0; t && k < t->count; k++) {
            tn__common common = {0};
            if (!r->parts[t->pieces[k].file].mapped &&
                tn_dims_equal(t->whole, state.items[i].layout.whole) &&
                tn__layouts_next(&t->pieces[k].layout, &state.items[i].layout, &common)) {
                missing[t->pieces[k].file] = 1;
            }
        }
    }
    tn__state_free(&state);
    put_aside(r);
}

/* Sends the parts that some rank lacks to all, one after another; those who need one keep it.
 * False: the group has failed. */
static bool fetch_parts(recall *r, const tn_checkpoint *c) {
    TN_SCOPE;
    TN__ON_CPU;
    uint8_t *mine = tn__calloc_for((size_t)r->ranks, 1, r->operation);
    if (!mine) {
        tn_group_abort(r->s->world, tn_error_message());
        return false;
    }
    mark_missing(r, c, mine);
    tn_tensor *any = tn_from_data(mine, TN_DIMS(r->ranks), TN_U8);
    bool working = tn_work_wait(tn_all_reduce(r->s->world, any, TN_MAX), 0) == TN_OK;
    for (int i = 0; working && i < r->ranks; i++) {
        part *p = &r->parts[i];
        bool sends = p->holder == r->s->rank;
        void *data = sends && p->mapped ? (char *)p->mapped + TN__VAULT_BEGIN : NULL;
        size_t bytes = data ? (size_t)p->head->image : 0;
        if (((const uint8_t *)tn_data(any))[i] == 0) {
            continue;
        }
        working = tn_broadcast_bytes(r->s->world, &data, &bytes, p->holder) == TN_OK;
        if (working && !sends && mine[i]) {
            p->received = data;
            lend_part(r, i, data, bytes);
        } else if (working && !sends) {
            tn_bytes_free(data);
        }
    }
    free(mine);
    return working;
}

static void drop_parts(recall *r) {
    for (int i = 0; i < r->ranks; i++) {
        if (r->parts[i].mapped) {
            munmap(r->parts[i].mapped, r->parts[i].bytes);
        }
        tn_bytes_free(r->parts[i].received);
    }
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* Loads the save whose parts were found. */
static tn_status load_save(recall *r, tn_checkpoint *c) {
    r->failed.status = TN_OK;
    r->index = NULL;
    r->damaged = -1;
    bool working = make_index(r);
    if (working) {
        tn__agree_begin();
        tn_error_give(&r->failed);
        r->failed.status = TN_OK;
        working = tn__agree(r->s->world, r->index ? r->index->digest : NULL, r->operation) == TN_OK;
        if (working && !r->index) { /* on all */
            tn__raise(TN_EFORMAT, r->operation, "step %" PRId64 " in memory has no list", r->step);
            working = false;
        }
    }
    if (working) {
        map_parts(r);
        working = fetch_parts(r, c);
    }
    if (working) {
        tn__agree_begin();
        tn_error_give(&r->failed);
        tn__saver_load_index(r->s->world, c, r->index, r->operation);
    } else {
        tn__index_free(r->index);
    }
    drop_parts(r);
    return tn_error();
}

/* What each rank says of a save that could not be loaded. */
typedef struct verdict {
    int32_t stop;         /* it is not damaged, something else is wrong */
    int32_t part, holder; /* what is damaged; -1: not known */
} verdict;

/* With the error of the save that h belongs to: whether to go on without it, or without the parts
 * that are damaged, on all ranks. */
static bool pass_over(recall *r, const tn__vault_head *h, const tn_error_record *why) {
    TN_SCOPE;
    TN__ON_CPU;
    bool damaged = why->status == TN_EFORMAT || why->status == TN_EIO;
    verdict mine = {.stop = !damaged, .part = r->damaged, .holder = -1};
    if (mine.part >= 0) {
        mine.holder = r->parts[mine.part].mapped ? r->teller : r->parts[mine.part].holder;
    }
    tn_tensor *sent = tn_from_data(&mine, TN_DIMS(3), TN_I32);
    tn_tensor *received = tn_empty(TN_DIMS(r->s->ranks, 3), TN_I32);
    if (tn_work_wait(tn_all_gather(r->s->world, received, sent), 0) != TN_OK) {
        return false;
    }
    const verdict *all = tn_data(received);
    const tn__vault_head save = *h;
    bool parts = false;
    for (int i = 0; i < r->s->ranks; i++) {
        if (all[i].stop) {
            return false;
        }
        tn__vault_head *held =
            all[i].part >= 0 ? find_held(r, &save, all[i].part, all[i].holder) : NULL;
        if (held) {
            memset(held, 0, sizeof(*held));
            parts = true;
        }
    }
    if (!parts) {
        drop_save(r, &save);
    }
    if (r->s->rank == 0) {
        tn__log_loud("%sstep %" PRId64 " in memory is passed over: %.300s", parts ? "part of " : "",
                     r->step, why->message);
    }
    return true;
}

tn_status tn__saver_recall(tn_saver *s, tn_checkpoint *c, int64_t least, int64_t *step,
                           const char *operation) {
    recall r = {.s = s, .operation = operation};
    tn_error_record why = {.status = TN_OK};
    *step = -1;
    tn__vault_open(&s->vault, s->folder);
    const tn__vault_head *h = find_teller(&r) && gather_heads(&r) ? choose_save(&r, least) : NULL;
    while (h && *step < 0) {
        tn__quiet(1); /* its error may be passed over */
        bool loaded = load_save(&r, c) == TN_OK;
        tn_error_take(&why);
        bool next = !loaded && pass_over(&r, h, &why);
        put_aside(&r);
        tn__quiet(-1);
        *step = loaded ? r.step : -1;
        s->vault.whole = loaded ? h->save : s->vault.whole;
        if (!loaded && !next) {
            tn_error_give(&why);
            break;
        }
        h = loaded ? NULL : choose_save(&r, least);
    }
    free(r.heads);
    free(r.holders);
    free(r.parts);
    return tn_error();
}
