/* Copies of saves in memory, on the next host (copies.h). */
#include "distributed/parallel/save/copies.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/parallel/save/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of the time that is left for the save: so `done` is sent long before rank 0 misses it, and no
 * rank is blamed that has only waited for another. */
#define COPIES_SHARE 0.5

/* ---- Who sends to whom ----------------------------------------------------------------------- */

static int receiver_of(const tn__copy_place *places, int ranks, int rank) {
    int first = places[rank].first, next = 0, n = 0, index = 0, r;
    for (r = ranks - 1; r > first; r--) {
        next = places[r].first == r ? r : next;
    }
    for (r = 0; r < ranks; r++) {
        n += places[r].first == next;
        index += r < rank && places[r].first == first;
    }
    if (next == first || n == 0) {
        return -1;
    }
    for (r = next, index %= n; index > 0; index -= places[r].first == next) {
        r++;
    }
    return r;
}

void tn__copies_deal(tn__copy_place *places, int ranks) {
    for (int r = 0; r < ranks; r++) {
        places[r].first = 0;
        while (strcmp(places[places[r].first].host, places[r].host) != 0) {
            places[r].first++;
        }
    }
    for (int r = 0; r < ranks; r++) {
        places[r].to = receiver_of(places, ranks, r);
    }
}

void tn__copies_put(const tn__copy_place *places, int ranks, int rank, tn__buffer *text) {
    for (int from = 0; from < ranks; from++) {
        int to = places[from].to;
        if (to >= 0 && (from == rank || to == rank)) {
            tn__buffer_format(text, " %d>%d:%d", from, to, places[from].local);
        }
    }
}

/* ---- Links ----------------------------------------------------------------------------------- */

void tn__copies_free(tn__copies *c) {
    for (int i = 0; i < c->count; i++) {
        tn_group_free(c->links[i].pair);
    }
    free(c->links);
    free(c->text);
    *c = (tn__copies){0};
}

static bool link_sound(const tn_saver *s, const tn__copy_link *l) {
    return l->from >= 0 && l->from < s->ranks && l->to >= 0 && l->to < s->ranks &&
           (l->from == s->rank) != (l->to == s->rank) && l->place >= 0;
}

bool tn__copies_set(tn_saver *s, const char *text) {
    tn__copies *c = &s->copies;
    int64_t capacity = 0;
    if (c->text && strcmp(c->text, text) == 0) {
        return true;
    }
    tn__copies_free(c);
    const char *at = text;
    for (int used = 0; *at; at += used) {
        tn__copy_link l = {.fd = -1};
        if (sscanf(at, " %d>%d:%d%n", &l.from, &l.to, &l.place, &used) != 3 || !link_sound(s, &l)) {
            tn__raise(TN_EFORMAT, s->operation, "rank 0 lists \"%.40s\" as a link", at);
            return false;
        }
        if (!tn__grow(&c->links, c->count + 1, &capacity, sizeof(l), s->operation)) {
            return false;
        }
        c->links[c->count++] = l;
    }
    c->text = tn__strdup_for(text, s->operation);
    return c->text != NULL;
}

static bool is_sender(const tn_saver *s, const tn__copy_link *l) {
    return l->from == s->rank;
}

/* ---- Agreeing -------------------------------------------------------------------------------- */

static void unmap_block(void *data, void *bytes) {
    munmap((char *)data - TN__VAULT_BEGIN, (size_t)(uintptr_t)bytes);
}

/* Maps the link's block, whose pages are all there, until the link and the engine let it go. */
static void map_block(const tn_saver *s, tn__copy_link *l, int fd, int how) {
    TN_SCOPE;
    int64_t data = l->head.image + l->head.tail;
    size_t bytes = (size_t)(TN__VAULT_BEGIN + data);
    char *at = mmap(NULL, bytes, how, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        tn__raise(TN_ENOMEM, s->operation, "%zu bytes cannot be mapped: %s", bytes,
                  strerror(errno));
        return;
    }
    tn_tensor *block = tn_from_memory(at + TN__VAULT_BEGIN, TN_DIMS(data), TN_U8, unmap_block,
                                      (void *)(uintptr_t)bytes);
    if (tn_is_inert(block)) {
        munmap(at, bytes);
    } else {
        l->block = tn_keep(block);
    }
}

/* Says that this rank has something to send, unless its save has failed. */
static void offer_copy(tn_saver *s, tn__copy_link *l, bool saved) {
    int fd = s->vault.own[s->vault.newest];
    if (saved && tn__vault_head_of(fd, &l->head)) {
        map_block(s, l, fd, PROT_READ);
    }
    tn__saver_send(s, l->from, "copy", &l->head, l->block ? sizeof(l->head) : 0);
}

/* Receives the sender's offer, and makes room. */
static void answer_offer(tn_saver *s, tn__copy_link *l, bool saved, char *why) {
    size_t bytes = 0;
    char *offer = tn__saver_receive_by(s, s->copies.deadline, l->from, "copy", l->from,
                                       "offered its copy of", &bytes);
    if (offer && bytes == sizeof(l->head) && saved) {
        memcpy(&l->head, offer, sizeof(l->head));
        if (!tn__vault_head_sound(&l->head) || l->head.save != s->number ||
            l->head.rank != l->from) {
            tn__raise(TN_EFORMAT, s->operation, "rank %d offers a copy of another save", l->from);
        } else if ((l->fd = tn__vault_take(&s->vault, l->place, &l->head, why)) >= 0) {
            map_block(s, l, l->fd, PROT_READ | PROT_WRITE);
        }
    }
    l->runs = l->block != NULL;
    tn__saver_send(s, l->from, "takes", "", l->runs);
    free(offer);
}

static void read_answer(tn_saver *s, tn__copy_link *l) {
    size_t bytes = 0;
    free(tn__saver_receive_by(s, s->copies.deadline, l->from, "takes", l->to, "taken a copy of",
                              &bytes));
    l->runs = bytes > 0;
}

void tn__copies_refuse(tn_saver *s) {
    for (int i = 0; i < s->copies.count; i++) {
        const tn__copy_link *l = &s->copies.links[i];
        tn__saver_send(s, l->from, is_sender(s, l) ? "copy" : "takes", NULL, 0);
    }
}

/* ---- Sending --------------------------------------------------------------------------------- */

static double seconds_left(const tn_saver *s) {
    return fmax(s->copies.deadline - tn__now(), 1e-3);
}

/* Makes the group of the link's two ranks, once: after an error copies end. It sends host memory,
 * so the part of the engine for devices is not needed. */
static void connect_pair(tn_saver *s, tn__copy_link *l) {
    char name[64], engine[32];
    bool up = l->from < l->to;
    const int *world = s->world->world;
    int both[] = {world[up ? l->from : l->to], world[up ? l->to : l->from]};
    tn_dist_options o = s->world->options;
    o.timeout = seconds_left(s);
    snprintf(name, sizeof(name), "%" PRId64 "/copies%d", s->saves, l->from);
    snprintf(engine, sizeof(engine), "%.*s", (int)strcspn(s->world->engine_name, "+"),
             s->world->engine_name);
    tn_store *store = tn_prefix_store(s->store, name);
    l->pair = store ? tn__group_create("copies", engine, store, is_sender(s, l) != up, 2, both, &o)
                    : NULL;
    tn_store_free(store);
}

static void start_copy(tn_saver *s, tn__copy_link *l) {
    TN_SCOPE;
    l->pair->owned = false; /* each save has a thread of its own; the last one's has ended */
    tn_group_set_timeout(l->pair, seconds_left(s));
    int peer = !tn_group_rank(l->pair);
    l->work = is_sender(s, l) ? tn_send(l->pair, l->block, peer) : tn_recv(l->pair, l->block, peer);
    if (!l->work) {
        tn_group_abort(l->pair, tn_error_message());
    }
}

static void finish_copy(tn_saver *s, tn__copy_link *l) {
    bool arrived = tn_work_wait(l->work, 0) == TN_OK;
    l->work = NULL;
    if (arrived && !is_sender(s, l) && !tn__vault_keep(l->fd, &l->head)) {
        tn__raise(TN_EIO, s->operation, "it cannot be written to the launcher's memory: %s",
                  strerror(errno));
    }
}

static void drop_copy(tn__copy_link *l) {
    l->runs = false;
    tn_release(l->block);
    if (l->fd >= 0) {
        close(l->fd);
    }
    l->block = NULL;
    l->fd = -1;
}

/* ---- All of a rank's links ------------------------------------------------------------------- */

/* An error ends its link, and the others go on: their peers count on this rank. Who got it from
 * another rank need not say it again. */
static void put_aside(tn_saver *s, tn__copy_link *l, char *why) {
    tn_error_record error;
    if (tn_error_take(&error)) {
        l->runs = false;
        if (!s->shared_error && !why[0]) {
            snprintf(why, TN__VAULT_WHY, "the copy of rank %d's part, to rank %d: %.180s", l->from,
                     l->to, tn__saver_plain(s, error.message));
        }
        s->shared_error = false;
    }
}

typedef enum stage { OFFER, ANSWER, READ, CONNECT, START, FINISH } stage;

static void take_stage(tn_saver *s, tn__copy_link *l, stage now, bool saved, char *why) {
    bool sender = is_sender(s, l);
    if (now == OFFER && sender) {
        offer_copy(s, l, saved);
    } else if (now == ANSWER && !sender) {
        answer_offer(s, l, saved, why);
    } else if (now == READ && sender && l->block) {
        read_answer(s, l);
    } else if (now == CONNECT && l->runs && !l->pair) {
        connect_pair(s, l); /* by senders, on all ranks: so none waits in a circle */
    } else if (now == START && l->runs) {
        start_copy(s, l);
    } else if (now == FINISH && l->runs) {
        finish_copy(s, l);
    }
}

void tn__copies_exchange(tn_saver *s, bool saved, char *why) {
    tn__copies *c = &s->copies;
    double now_is = tn__now(), last = fmin(s->deadline, s->first_deadline);
    c->deadline = now_is + (last - now_is) * COPIES_SHARE;
    for (stage now = OFFER; now <= FINISH; now++) {
        for (int i = 0; i < c->count; i++) {
            take_stage(s, &c->links[i], now, saved, why);
            put_aside(s, &c->links[i], why);
        }
    }
    for (int i = 0; i < c->count; i++) {
        drop_copy(&c->links[i]);
    }
}
