/* A search over several ranks, which are usually on different hosts. They share a log in a store,
 * and each event in it is there because its author had read all events before it: whoever finds
 * another event in the next place reads that one first, and decides again. So all read the same
 * events in the same order, a trial is taken once, and no rank leads.
 *
 *     search/what       what is searched; a rank that searches something else is refused
 *     search/event/N    N = 0, 1, …:
 *         join ID RESTARTS WHO               the n-th of these makes its author member n
 *         take MEMBER TRIAL RUNG             the member runs this rung of the trial
 *         value MEMBER TRIAL RUNG VALUE      its result; MEMBER 0: it was in a folder
 *         fail MEMBER TRIAL RUNG             its process ended without one
 *         gone MEMBER                        it has left, or is dead: its trials are free again
 *     search/beat/N     a counter that member N increases as long as it lives
 *     search/came       how many ranks have found the store
 *
 * A member whose counter stands still for too long is dead: the first to notice says that it is
 * gone. If it was only slow, it finds that in the log, ends its trials, and joins anew. When a
 * launcher has restarted all ranks, those of earlier starts are gone too; a store of the launcher
 * still has the log.
 *
 * Every rank writes the others' values into its own folder, unless it is the same one. So each
 * folder has all that is known, and any of them continues the search, with any number of ranks.
 */
#include "core/buffer.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "distributed/init/host.h"
#include "distributed/init/members.h"
#include "distributed/init/rendezvous.h"
#include "distributed/store/store.h"
#include "tern/distributed.h"
#include "text/number.h"
#include "train/search/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { KEY = 40, EVENT = 192 };

/* A store that has not answered for so long is lost, however short the lease is. */
#define ANSWER_SECONDS 10.0
/* Seconds for which rank 0 keeps serving the store for the others. */
#define GOODBYE_SECONDS 10.0
#define FAILED_GOODBYE_SECONDS 2.0

typedef struct member {
    char who[TN__WHO];
    int restarts;
    bool gone;
    int64_t beats;
    double heard; /* when these last changed */
} member;

struct tn__search_hosts {
    tn__rendezvous place; /* empty where the world's store is used */
    tn_store *store;
    int restarts, ranks;
    member *members; /* [count], member N at N - 1 */
    int64_t count, capacity;
    int mine;     /* this rank's number */
    int64_t read; /* events */
    double beaten, looked;
    bool lost; /* the store; then */
    char why[TN_STORE_WHY];
};

extern char **environ;

/* ---- What an event changes ------------------------------------------------------------------- */

static member *member_of(const tn__search_hosts *h, int number) {
    return &h->members[number - 1];
}

static void lose_member(tn_search *s, int number) {
    member_of(s->hosts, number)->gone = true;
    for (int64_t i = 0; i < s->trial_count; i++) {
        tn__trial *t = &s->trials[i];
        if (t->holder == number) {
            t->running = false;
            t->holder = 0;
        }
    }
}

static bool add_member(tn_search *s, int restarts, const char *who) {
    tn__search_hosts *h = s->hosts;
    if (!tn__grow(&h->members, h->count + 1, &h->capacity, sizeof(*h->members), "search")) {
        return false;
    }
    for (int i = 1; i <= h->count; i++) {
        if (member_of(h, i)->restarts < restarts && !member_of(h, i)->gone) {
            lose_member(s, i);
        }
    }
    member *m = &h->members[h->count++];
    *m = (member){.restarts = restarts, .heard = tn__now()};
    m->who[tn__plain_text(m->who, who, strlen(who), false)] = 0;
    return true;
}

static void end_rung(tn_search *s, int64_t trial, const double *value) {
    tn__trial *t = &s->trials[trial];
    t->running = false;
    t->holder = 0;
    t->failed = !value;
    if (value && tn__search_keep_value(s, trial, *value, &t->here)) {
        t->values[t->rungs++] = *value;
    }
}

/* An event about a trial. Those of a member that has lost the trial do not count. */
static bool apply_to_trial(tn_search *s, const char *text) {
    tn__search_hosts *h = s->hosts;
    char kind[8];
    int number, rung, end = 0;
    long long trial;
    double value = 0;
    if (sscanf(text, "%7s %d %lld %d%n", kind, &number, &trial, &rung, &end) != 4 || number < 0 ||
        number > h->count || trial < 0 || trial >= s->trial_count || rung < 0 ||
        rung >= s->rung_count) {
        return false;
    }
    bool is_take = strcmp(kind, "take") == 0, is_value = strcmp(kind, "value") == 0;
    if ((is_value && !(text[end] == ' ' && tn__real_from(text + end + 1, &value))) ||
        (!is_value && text[end]) || (!is_take && !is_value && strcmp(kind, "fail") != 0) ||
        (number == 0 && !is_value)) {
        return false;
    }
    tn__trial *t = &s->trials[trial];
    bool holds = number > 0 ? t->holder == number : !t->running;
    if (is_take && t->rungs == rung && !t->running && !t->failed && !member_of(h, number)->gone) {
        t->running = true;
        t->holder = number;
    } else if (!is_take && holds && t->rungs == rung) {
        end_rung(s, trial, is_value ? &value : NULL);
    }
    return true;
}

static void apply_event(tn_search *s, const char *text) {
    tn__search_hosts *h = s->hosts;
    char id[20], who[TN__WHO];
    int number, end = 0;
    bool known;
    h->read++;
    if (sscanf(text, "join %19s %d %79s", id, &number, who) == 3) {
        known = add_member(s, number, who) || tn__pending();
    } else if (sscanf(text, "gone %d%n", &number, &end) == 1 && !text[end]) {
        known = number >= 1 && number <= h->count;
        if (known) {
            lose_member(s, number);
        }
    } else {
        known = apply_to_trial(s, text);
    }
    if (!known && !h->lost) {
        h->lost = true;
        tn__why(h->why, TN_EFORMAT, "its event %lld makes no sense: \"%.80s\"",
                (long long)h->read - 1, text);
    }
}

/* ---- Reading and writing the log ------------------------------------------------------------- */

static double answer_by(const tn_search *s) {
    return tn__now() + fmax(s->options.lease, ANSWER_SECONDS);
}

/* A value as text; frees it. */
static void take_text(tn_store_value *value, char text[EVENT]) {
    snprintf(text, EVENT, "%.*s", (int)fmin((double)value->bytes, EVENT),
             value->data ? (const char *)value->data : "");
    free(value->data);
}

/* The next event. False: there is none yet, or the store is lost. */
static bool find_event(const tn_search *s, char text[EVENT]) {
    tn__search_hosts *h = s->hosts;
    char key[KEY];
    bool there = false;
    tn_store_value value = {0};
    snprintf(key, KEY, "event/%lld", (long long)h->read);
    h->lost = h->store->check(h->store, key, &there, answer_by(s), h->why) != TN_OK ||
              (there && h->store->get(h->store, key, &value, answer_by(s), h->why) != TN_OK);
    if (there && !h->lost) {
        take_text(&value, text);
    }
    return there && !h->lost;
}

static void read_events(tn_search *s) {
    char text[EVENT];
    while (!s->hosts->lost && !tn__pending() && find_event(s, text)) {
        apply_event(s, text);
    }
}

/* Puts an event in the next place, unless there is one; next[EVENT] is what is there now. False:
 * the store is lost. */
static bool put_event(const tn_search *s, const char *text, char next[EVENT]) {
    tn__search_hosts *h = s->hosts;
    char key[KEY];
    tn_store_value nothing = {0}, now = {0},
                   said = {.data = (void *)(uintptr_t)text, .bytes = strlen(text)};
    snprintf(key, KEY, "event/%lld", (long long)h->read);
    h->lost =
        h->store->compare_set(h->store, key, &nothing, &said, &now, answer_by(s), h->why) != TN_OK;
    take_text(&now, next);
    return !h->lost;
}

/* Appends an event, if all others have been read. False: there was another, which has been read
 * now; or the store is lost. */
static bool append_event(tn_search *s, const char *text) {
    char next[EVENT];
    if (s->hosts->lost || tn__pending() || !put_event(s, text, next)) {
        return false;
    }
    apply_event(s, next);
    return !s->hosts->lost && strcmp(next, text) == 0;
}

/* Says that a trial of this rank, or of a folder, has ended. */
static bool append_end(tn_search *s, int number, int64_t trial, const double *value) {
    char text[EVENT];
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    snprintf(text, EVENT, "%s %d %lld %d%s%s", value ? "value" : "fail", number, (long long)trial,
             s->trials[trial].rungs, value ? " " : "", value ? tn__number_of(*value).text : "");
    tn__plain_numbers_end(numbers);
    return append_event(s, text);
}

/* Increases a counter; returns what it is now, or 0: the store is lost. */
static int64_t add_to(const tn_search *s, const char *key, int64_t more) {
    tn__search_hosts *h = s->hosts;
    int64_t now = 0;
    h->lost = h->lost || h->store->add(h->store, key, more, &now, answer_by(s), h->why) != TN_OK;
    return now;
}

/* ---- Trials ---------------------------------------------------------------------------------- */

bool tn__search_take(tn_search *s, int64_t trial) {
    tn__search_hosts *h = s->hosts;
    tn__trial *t = &s->trials[trial];
    if (h) {
        char text[EVENT];
        snprintf(text, EVENT, "take %d %lld %d", h->mine, (long long)trial, t->rungs);
        return append_event(s, text) && t->holder == h->mine;
    }
    t->running = true;
    return true;
}

bool tn__search_settle(tn_search *s, int64_t trial, const double *value) {
    tn__search_hosts *h = s->hosts;
    tn__trial *t = &s->trials[trial];
    while (h && !h->lost && !tn__pending() && t->holder == h->mine) {
        if (append_end(s, h->mine, trial, value)) {
            return !tn__pending();
        }
    }
    if (h) {
        return false;
    }
    t->running = false;
    t->failed = !value;
    return t->failed || tn__search_publish(s, trial, *value);
}

bool tn__search_publish(tn_search *s, int64_t trial, double value) {
    tn__search_hosts *h = s->hosts;
    tn__trial *t = &s->trials[trial];
    int rung = t->rungs;
    while (h && !h->lost && !tn__pending() && t->rungs == rung && !t->running) {
        append_end(s, 0, trial, &value);
    }
    if (!h) {
        t->values[t->rungs++] = value;
        t->here = true;
    }
    return t->rungs > rung;
}

/* ---- Joining and leaving --------------------------------------------------------------------- */

/* Reads the environment. False after raising: it makes no sense, or says that there are several
 * ranks but not which one this is. */
static bool read_environment(tn__environment *e) {
    char why[TN_STORE_WHY] = "";
    if (tn__environment_read((const char *const *)environ, tn__host_launcher(), e, why) != TN_OK) {
        tn__raise(TN_EVALUE, "search", "%s", why);
    } else if (*e->several && !e->alone && !tn_world()) {
        tn__raise(TN_EVALUE, "search",
                  "%s, but nothing says which rank this process is: start it with tern run (a "
                  "search on one of them: RANK=0 WORLD_SIZE=1)",
                  e->several);
    }
    return !tn__pending();
}

/* Which of this host's ranks this is, and of how many: at least up to this one, where no launcher
 * says it. */
static void find_neighbours(tn_search *s, const tn__environment *e, bool in_world) {
    int number = e->one_host ? e->rank : 0;
    int count = e->local_ranks > 0 ? e->local_ranks : e->one_host ? e->ranks : 1;
    s->local_rank = in_world ? tn_local_rank() : e->local_rank >= 0 ? e->local_rank : number;
    s->local_ranks = count > s->local_rank ? count : s->local_rank + 1;
}

/* Finds the store of the world, or else, as tn_dist_init would, one of this search's own: the
 * program may still make a world. h->store is NULL for a process on its own. */
static void find_store(tn_search *s, tn__search_hosts *h) {
    tn__environment e;
    tn_store *base = NULL;
    if (!read_environment(&e)) {
        return;
    }
    bool in_world = tn_group_size(tn_world()) > 1;
    if (in_world) {
        base = tn_dist_store();
    } else if (e.ranks > 1) {
        double timeout = tn_dist_defaults().timeout;
        e.world = TN__OWN_WORLD;
        tn__rendezvous_begin(&h->place, "env://", &e, timeout, tn__now() + timeout);
        base = h->place.store;
    }
    if (base) {
        s->rank = in_world ? tn_group_rank(tn_world()) : e.rank;
        find_neighbours(s, &e, in_world);
        h->restarts = e.restarts;
        h->ranks = e.ranks;
        h->store = tn_prefix_store(base, "search");
    }
}

/* Raises unless all search the same. */
static void agree_on_search(tn_search *s) {
    tn__search_hosts *h = s->hosts;
    char *what = tn__search_text(s), *other = NULL;
    char *text =
        what ? tn__asprintf("search", "%strials %lld\n", what, (long long)s->trial_count) : NULL;
    tn_store_value nothing = {0}, now = {0},
                   mine = {.data = text, .bytes = text ? strlen(text) : 0};
    if (text && !h->lost) {
        h->lost = h->store->compare_set(h->store, "what", &nothing, &mine, &now, answer_by(s),
                                        h->why) != TN_OK;
    }
    if (text && !h->lost && (now.bytes != mine.bytes || memcmp(now.data, text, now.bytes) != 0)) {
        other = tn__asprintf("search", "%.*s", (int)now.bytes, now.bytes ? (char *)now.data : "");
    }
    if (other) {
        tn__plain_lines(other);
        tn__raise(TN_EMISMATCH, "search",
                  "rank %d has another search than the first rank:\n%snot\n%s", s->rank, text,
                  other);
    }
    free(other);
    free(now.data);
    free(text);
    free(what);
}

static void join_members(tn_search *s) {
    tn__search_hosts *h = s->hosts;
    char text[EVENT], who[TN__WHO];
    uint64_t id; /* no two authors may say the same */
    if (getrandom(&id, sizeof(id), 0) != sizeof(id)) {
        tn__raise(TN_EIO, "search", "the system gives no random number");
        return;
    }
    tn__host_who(who, sizeof(who));
    snprintf(text, EVENT, "join %016llx %d %s", (unsigned long long)id, h->restarts, who);
    while (!h->lost && !tn__pending()) {
        if (append_event(s, text)) {
            h->mine = (int)h->count;
            return;
        }
    }
}

bool tn__search_join(tn_search *s) {
    tn__search_hosts *h = tn__calloc_for(1, sizeof(*h), "search");
    if (!h) {
        return false;
    }
    find_store(s, h);
    if (!h->store) {
        tn__rendezvous_end(&h->place, 0);
        free(h);
        return !tn__pending();
    }
    s->hosts = h;
    add_to(s, "came", 1);
    agree_on_search(s);
    join_members(s);
    if (h->lost) {
        tn__search_part(s);
    }
    return !tn__pending();
}

/* A rank that starts when all is known already still looks for the store. Who serves it waits until
 * all have come, but not for ever: one may be dead. */
static void await_ranks(const tn_search *s) {
    const tn__search_hosts *h = s->hosts;
    double pause = 0.01, deadline = tn__now() + fmax(s->options.lease, GOODBYE_SECONDS);
    while (h->place.server && add_to(s, "came", 0) < h->ranks && !h->lost && !tn_stop_asked() &&
           tn__rest_until(&pause, 0.2, deadline)) {
    }
}

void tn__search_part(tn_search *s) {
    tn__search_hosts *h = s->hosts;
    if (!h) {
        return;
    }
    bool early = s->stopped || tn__pending(), said = !early || h->mine == 0;
    char text[EVENT], next[EVENT], why[TN_STORE_WHY];
    if (!early) {
        await_ranks(s);
    }
    snprintf(text, EVENT, "gone %d", h->mine);
    for (; !said && !h->lost && put_event(s, text, next); h->read++) {
        said = strcmp(next, text) == 0;
    }
    bool lost = h->lost && !early;
    snprintf(why, sizeof(why), "%s", h->why);
    tn_store_free(h->store);
    tn__rendezvous_end(&h->place, h->lost || early ? FAILED_GOODBYE_SECONDS : GOODBYE_SECONDS);
    free(h->members);
    free(h);
    s->hosts = NULL;
    if (lost) {
        tn__raise(TN_EPEER, "search",
                  "the store from which rank %d got its trials is lost: %s. What was found is in "
                  "%s; the same command continues",
                  s->rank, why, s->out);
    }
}

/* ---- Signs of life --------------------------------------------------------------------------- */

static int64_t add_beats(const tn_search *s, int number, int64_t more) {
    char key[KEY];
    snprintf(key, KEY, "beat/%d", number);
    return add_to(s, key, more);
}

/* Says of those that are silent that they are gone. */
static void look_at_others(tn_search *s) {
    tn__search_hosts *h = s->hosts;
    for (int i = 1; i <= h->count && !h->lost; i++) {
        if (i == h->mine || member_of(h, i)->gone) {
            continue;
        }
        int64_t beats = add_beats(s, i, 0);
        double now = tn__now(), silent = now - member_of(h, i)->heard;
        if (beats != member_of(h, i)->beats) {
            member_of(h, i)->beats = beats;
            member_of(h, i)->heard = now;
        } else if (silent > s->options.lease) {
            char text[EVENT];
            snprintf(text, EVENT, "gone %d", i);
            if (append_event(s, text)) {
                printf("%s has given no sign of life for %.0f s: its trials go to others\n",
                       member_of(h, i)->who, silent);
                fflush(stdout);
            }
        }
    }
}

bool tn__search_listen(tn_search *s) {
    tn__search_hosts *h = s->hosts;
    if (!h) {
        return !tn__pending();
    }
    read_events(s);
    double now = tn__now(), pause = fmin(1, s->options.lease / 5);
    if (now - h->beaten >= pause) {
        add_beats(s, h->mine, 1);
        h->beaten = now;
    }
    if (now - h->looked >= s->options.lease / 5) {
        look_at_others(s);
        h->looked = tn__now();
    }
    if (!h->lost && member_of(h, h->mine)->gone) {
        printf("this rank was silent for too long: its trials went to others, and it joins anew\n");
        fflush(stdout);
        tn__search_stop(s);
        join_members(s);
    }
    return !h->lost && !tn__pending();
}
