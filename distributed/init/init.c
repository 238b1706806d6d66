/* Starting and ending: a process becomes a rank of the world.
 *
 *     environment.c   who am I, and where do we meet: from variables
 *     rendezvous.c    the store: serving it, or finding the rank that does
 *     members.c       have all ranks arrived, and which host each is on
 *
 *     gpus.c          which GPU a rank has, and how tensors on GPUs are sent
 *
 * Then the group is made, with the engine that suits the hosts.
 */
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/init/gpus.h"
#include "distributed/init/members.h"
#include "distributed/init/rendezvous.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "dist_init"

/* Seconds for which rank 0 keeps serving the store after it has finished. */
#define GOODBYE_SECONDS 10.0
#define FAILED_GOODBYE_SECONDS 2.0

static struct world {
    tn_group *group; /* NULL: not started */
    tn_store *store; /* with the world's prefix */
    tn__rendezvous place;
    int rank, ranks;
    int local_rank;
    int restarts;
    int worlds; /* that this process has left */
} world;

/* ---- Arguments ------------------------------------------------------------------------------- */

static bool options_sound(const tn_dist_options *o) {
    if (!(o->timeout > 0 && o->timeout <= TN__TIMEOUT_MOST)) {
        tn__raise(TN_EVALUE, OPERATION, "the time-out is %g seconds (above 0, at most %g)",
                  o->timeout, TN__TIMEOUT_MOST);
    } else if ((o->rank >= 0) != (o->ranks >= 0) || o->rank >= (o->ranks < 0 ? 1 : o->ranks) ||
               o->ranks == 0) {
        tn__raise(TN_EVALUE, OPERATION,
                  "rank is %d and ranks is %d (ranks count from 0; both, or -1 for both)", o->rank,
                  o->ranks);
    } else if (!o->init || (strcmp(o->init, "env://") != 0 && strncmp(o->init, "tcp://", 6) != 0)) {
        tn__raise(TN_EVALUE, OPERATION, "init is \"%.100s\" (\"env://\" or \"tcp://HOST:PORT\")",
                  o->init ? o->init : "(NULL)");
    }
    return !tn__pending();
}

/* Nothing says which rank this is. If it is one of several it would train on its own beside the
 * others, and overwrite their files. */
static bool may_be_alone(const tn__environment *e) {
    if (*e->several && e->alone) {
        tn__log_loud("dist_init: one rank: %s, but this process was started without srun, and "
                     "trains by itself (srun ./train; one rank on purpose: RANK=0 WORLD_SIZE=1)",
                     e->several);
    } else if (*e->several) {
        tn__raise(TN_EVALUE, OPERATION,
                  "%s, but nothing says which rank this process is: start it with tern run (on "
                  "each of several hosts: --nnodes N --rdzv-endpoint HOST:PORT), or set RANK, "
                  "WORLD_SIZE and MASTER_ADDR (one rank by itself: RANK=0 WORLD_SIZE=1)",
                  e->several);
    }
    return !tn__pending();
}

/* The environment, overridden by the options. */
static bool find_place(const tn_dist_options *o, tn__environment *e) {
    extern char **environ;
    if (!tn__environment_read((const char *const *)environ, tn__host_launcher(), e, OPERATION)) {
        return false;
    }
    e->world = world.worlds;
    bool is_env = strcmp(o->init, "env://") == 0;
    if (o->rank >= 0) {
        bool agrees = o->rank == e->rank && o->ranks == e->ranks;
        e->local_rank = agrees ? e->local_rank : -1;
        e->local_ranks = agrees ? e->local_ranks : -1;
        e->rank = o->rank;
        e->ranks = o->ranks;
    } else if (!is_env && !e->launcher) {
        return tn__fail(
            TN_EVALUE, OPERATION,
            "init is \"%.100s\", but neither the options nor the environment say which rank this "
            "is, of how many",
            o->init);
    }
    return o->rank >= 0 || e->launcher || may_be_alone(e);
}

/* ---- Hosts ----------------------------------------------------------------------------------- */

/* This rank's number among those of its host, and how many share its cores, itself included. */
typedef struct neighbours {
    int local_rank;
    int on_cores;
    bool one_host;
} neighbours;

static neighbours check_engine(const tn__member *members, int rank, int ranks) {
    neighbours n = {.one_host = true, .on_cores = 1};
    const tn__member *mine = &members[rank];
    for (int r = 0; r < ranks; r++) {
        if (strcmp(members[r].host, mine->host) != 0) {
            n.one_host = false;
        } else if (r != rank) {
            n.local_rank += r < rank ? 1 : 0;
            n.on_cores += tn__cpus_overlap(members[r].cpus, mine->cpus) ? 1 : 0;
        }
    }
    return n;
}

/* Threads = cores / ranks that use them. TERN_HOST splits one machine into several hosts, which
 * still share its cores; it is for tests. */
static void set_threads(const tn_dist_options *o, const tn__member *mine, int on_cores) {
    const char *given = getenv("OMP_NUM_THREADS");
    if (o->threads && !(given && *given)) {
        int threads = tn__cpus_count(mine->cpus) / on_cores;
        tn_set_threads(threads > 1 ? threads : 1);
    }
}

/* Ranks that compute at different levels of the CPU's kernels would drift apart, one rounding after
 * another: all take the highest that every one has. False after raising. */
static bool share_level(const tn__member *members, const tn__environment *e) {
    char word[TN__KINDS], note[TN__NOTE];
    if (!tn__meet_level(members, e->ranks, word, note)) { return false; }
    if (*note && e->rank == 0) { tn__log_loud("dist_init: levels differ: %s", note); }
    tn__host_compute_at(members[e->rank].kinds, word);
    return true;
}

/* ---- Making the world ------------------------------------------------------------------------ */

static tn_store *world_store(tn_store *base, int restarts) {
    char prefix[64];
    snprintf(prefix, sizeof(prefix), "run/%d/%d", restarts, world.worlds);
    return tn_prefix_store(base, prefix);
}

/* The others may still read from the store that this process serves. */
static void leave_world(double seconds) {
    tn_store_free(world.store);
    tn__rendezvous_end(&world.place, seconds);
    world.group = NULL;
    world.store = NULL;
    world.local_rank = 0;
}

static tn_group *make_group(const char *engine, const tn_dist_options *o) {
    tn_store *store = tn_prefix_store(world.store, "world");
    tn_group *g =
        store ? tn__group_create("world", engine, store, world.rank, world.ranks, NULL, o) : NULL;
    tn_store_free(store);
    return g;
}

static tn_group *join_world(const tn_dist_options *o, const tn__environment *e,
                            tn__member *members) {
    tn__member mine;
    double deadline = tn__now() + o->timeout;
    if (!tn__rendezvous_begin(&world.place, o->init, e, o->timeout, deadline)) { return NULL; }
    world.store = world_store(world.place.store, e->restarts);
    if (!world.store) { return NULL; }
    tn__host_key(mine.host);
    tn__host_cpus(mine.cpus);
    tn__host_kinds(mine.kinds);
    tn__host_who(mine.who, sizeof(mine.who));
    tn__gpus_here(o, &mine);
    tn__meeting meeting = {.store = world.store,
                           .launcher = world.place.store,
                           .restarts = e->restarts,
                           .rank = e->rank,
                           .ranks = e->ranks,
                           .deadline = deadline};
    tn__quiet(1);
    bool met = tn__meet(&meeting, &mine, members) == TN_OK && share_level(members, e);
    tn__quiet(-1);
    if (!met) {
        leave_world(FAILED_GOODBYE_SECONDS); /* first: the error may end the process */
        tn__raise_again(OPERATION, "rank %d of %d", e->rank, e->ranks);
        return NULL;
    }
    neighbours n = check_engine(members, e->rank, e->ranks);
    world.local_rank = e->local_rank >= 0 ? e->local_rank : n.local_rank;
    set_threads(o, &mine, n.on_cores);
    char engine[64];
    if (!tn__gpus_assign(o, e->rank, world.local_rank) ||
        !tn__gpus_engine(o, members, e->ranks, n.one_host ? "shm" : "gloo", engine,
                         sizeof(engine))) {
        return NULL;
    }
    return make_group(engine, o);
}

static tn_group *join_others(const tn_dist_options *o, const tn__environment *e) {
    tn__member *members = tn__calloc_for((size_t)e->ranks, sizeof(*members), OPERATION);
    tn_group *g = members ? join_world(o, e, members) : NULL;
    free(members);
    return g;
}

/* A single rank has no one to meet: no server, no thread. */
static tn_group *stay_alone(const tn_dist_options *o, const tn__environment *e) {
    world.place.store = tn_memory_store();
    world.store = world.place.store ? world_store(world.place.store, e->restarts) : NULL;
    world.local_rank = e->local_rank >= 0 ? e->local_rank : 0;
    return world.store && tn__gpus_assign(o, e->rank, world.local_rank) ? make_group(NULL, o)
                                                                        : NULL;
}

/* When a program exits at its first error (tn_error_exit), the other ranks learn why, whichever
 * group they wait in. */
static void at_exit(void) {
    if (world.group && tn__pending()) { tn__groups_abort(world.group, tn_error_message()); }
}

tn_group *tn_dist_init(tn_dist_options options) {
    tn__environment e;
    if (world.group) {
        return tn__group_refuse_inherited(world.group, OPERATION) ? NULL : world.group;
    }
    if (tn__pending() || !tn__options_made(options.from_defaults, OPERATION, "tn_dist") ||
        !options_sound(&options) || !find_place(&options, &e)) {
        return NULL;
    }
    world.rank = e.rank;
    world.ranks = e.ranks;
    world.restarts = e.restarts;
    world.group = e.ranks == 1 ? stay_alone(&options, &e) : join_others(&options, &e);
    if (!world.group) {
        leave_world(FAILED_GOODBYE_SECONDS);
        return NULL;
    }
    if (options.signals && e.ranks > 1) { tn__flight_signals(e.rank); }
    static bool registered;
    registered = registered || atexit(at_exit) == 0;
    return world.group;
}

static bool is_dead(tn_group *g) {
    if (tn__group_inherited(g)) { return false; }
    pthread_mutex_lock(&g->lock);
    bool dead = g->dead != TN_OK;
    pthread_mutex_unlock(&g->lock);
    return dead;
}

void tn_dist_finish(void) {
    if (!world.group) { return; }
    if (tn__pending()) { tn__groups_abort(world.group, tn_error_message()); }
    tn_group *group = world.group;
    bool failing = is_dead(group);
    world.group = NULL; /* from here on it may be freed */
    tn_group_free(group);
    leave_world(failing ? FAILED_GOODBYE_SECONDS : GOODBYE_SECONDS);
    world.worlds++;
}

/* ---- Questions ------------------------------------------------------------------------------- */

tn_group *tn_world(void) {
    return world.group;
}

tn_store *tn_dist_store(void) {
    return world.group ? world.store : NULL;
}

int tn_local_rank(void) {
    return world.local_rank;
}

int tn_restart_count(void) {
    return world.restarts;
}
