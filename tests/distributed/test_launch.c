/* Launching: in which order, how far ahead, and with which deadlines a group gives operations to an
 * engine that only queues them. A stand-in replaces the engine for CPU tensors: it moves nothing,
 * and an operation is over when the test says so. */
#include "distributed/group/group.h"

#include <tern/tern.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include "rank_check.h"

enum { GROUPS = 3, MOST = 400 };

/* What the stand-ins of one rank record. */
typedef struct diary {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int launches;
    int group[MOST]; /* of each launch */
    bool closed;     /* launches wait until this is false */
} diary;

typedef struct stand_in {
    tn_engine base;
    tn_engine *inner;
    diary *diary;
    int name;
    int launched, polled;   /* operations; polled: those found over */
    int wanted;             /* no operation is over before this many are launched */
    int broken;             /* the operation, from 1, that fails; 0: none */
    double deadlines[MOST]; /* of each operation, when it is first polled */
    int early;              /* allocations while an operation was under way */
} stand_in;

static tn_status stand_launch(tn_engine *base, const tn_transfer *t) {
    stand_in *e = (stand_in *)base;
    diary *d = e->diary;
    pthread_mutex_lock(&d->lock);
    while (d->closed) {
        pthread_cond_wait(&d->changed, &d->lock);
    }
    d->group[d->launches++] = e->name;
    e->launched++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return TN_OK;
}

static tn_status stand_poll(tn_engine *base, const tn_transfer *t, bool *over) {
    stand_in *e = (stand_in *)base;
    if (e->deadlines[e->polled] == 0) { e->deadlines[e->polled] = t->deadline; }
    if (e->broken > 0 && e->polled + 1 >= e->broken) { return tn_raise(TN_EPEER, "it broke"); }
    *over = e->launched >= e->wanted;
    e->polled += *over;
    return TN_OK;
}

static void stand_stop(tn_engine *base, const char *reason) {
    stand_in *e = (stand_in *)base;
    e->inner->abort(e->inner, reason);
}

static void *stand_alloc(tn_engine *base, size_t bytes, double deadline) {
    stand_in *e = (stand_in *)base;
    e->early += e->polled < e->launched;
    return malloc(bytes);
}

static void stand_free(tn_engine *base, void *memory) {
    free(memory);
}

static void stand_destroy(tn_engine *base) {
    stand_in *e = (stand_in *)base;
    e->inner->destroy(e->inner);
}

/* A group of all ranks, whose engine is replaced by *e. */
static tn_group *stand_in_group(tn_group *world, stand_in *e, diary *d, int name) {
    tn_group *g = tn_group_split(world, 0);
    CHECK(g != NULL);
    *e = (stand_in){.base = {.size = sizeof(tn_engine),
                             .version = TN_ENGINE_VERSION,
                             .name = "stand-in",
                             .rank = tn_group_rank(g),
                             .ranks = tn_group_size(g),
                             .devices = 1U << TN_CPU,
                             .queues = 1U << TN_CPU,
                             .launch = stand_launch,
                             .poll = stand_poll,
                             .abort = stand_stop,
                             .alloc = stand_alloc,
                             .free = stand_free,
                             .destroy = stand_destroy},
                    .inner = g->engine->engine,
                    .diary = d,
                    .name = name};
    g->engine->engine = &e->base; /* its thread reads this once there is work */
    return g;
}

typedef struct stage {
    diary diary;
    stand_in engines[GROUPS];
    tn_group *groups[GROUPS];
    tn_tensor *t;
} stage;

static void set_stage(stage *s, tn_group *world) {
    *s = (stage){.t = tn_zeros(TN_DIMS(1), TN_F32)};
    pthread_mutex_init(&s->diary.lock, NULL);
    pthread_cond_init(&s->diary.changed, NULL);
    for (int i = 0; i < GROUPS; i++) {
        s->groups[i] = stand_in_group(world, &s->engines[i], &s->diary, i);
    }
}

static void clear_stage(stage *s) {
    for (int i = 0; i < GROUPS; i++) {
        tn_group_free(s->groups[i]);
    }
    pthread_cond_destroy(&s->diary.changed);
    pthread_mutex_destroy(&s->diary.lock);
}

static tn_work *issue_reduce(stage *s, int group) {
    return tn_all_reduce(s->groups[group], s->t, TN_SUM);
}

static void close_diary(diary *d, bool closed) {
    pthread_mutex_lock(&d->lock);
    d->closed = closed;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void await_launches(diary *d, int n) {
    pthread_mutex_lock(&d->lock);
    while (d->launches < n) {
        pthread_cond_wait(&d->changed, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* Whichever of the groups' threads is faster, what was issued first is launched first. */
RANKS_TEST(test_the_order_of_issue_is_the_order_of_launch, 2) {
    TN_SCOPE;
    stage s;
    tn_work *works[MOST];
    int issued[MOST];
    uint32_t random = 1;
    set_stage(&s, world);
    close_diary(&s.diary, true);
    for (int i = 0; i < MOST; i++) {
        random = random * 1664525 + 1013904223;
        issued[i] = (int)(random >> 16) % GROUPS;
        works[i] = issue_reduce(&s, issued[i]);
        if (i == 50) { /* all threads have operations: now they may begin */
            close_diary(&s.diary, false);
        }
    }
    for (int i = MOST - 1; i >= 0; i--) {
        CHECK(tn_work_wait(works[i], 0) == TN_OK);
    }
    CHECK(s.diary.launches == MOST && memcmp(s.diary.group, issued, sizeof(issued)) == 0);
    clear_stage(&s);
}

/* ---- Depth ----------------------------------------------------------------------------------- */

/* No operation is over before all have been launched; memory is allocated when none is under
 * way. */
RANKS_TEST(test_the_next_is_launched_before_the_last_is_over, 2) {
    enum { N = 20 };
    TN_SCOPE;
    stage s;
    tn_work *works[N];
    set_stage(&s, world);
    s.engines[0].wanted = N;
    for (int i = 0; i < N; i++) {
        works[i] = issue_reduce(&s, 0);
    }
    tn_tensor *own = tn_group_empty(s.groups[0], TN_DIMS(100), TN_F32);
    CHECK(tn_error() == TN_OK && tn_data(own) && s.engines[0].early == 0);
    for (int i = 0; i < N; i++) {
        CHECK(tn_work_wait(works[i], 0) == TN_OK);
    }
    CHECK(s.engines[0].launched == N && s.engines[0].polled == N);
    tn_drop(own);
    clear_stage(&s);
}

/* An operation's deadline starts when the operations before it are over, not when it is
 * launched. */
RANKS_TEST(test_a_deadline_begins_when_the_others_are_over, 2) {
    TN_SCOPE;
    stage s;
    tn_work *works[3];
    set_stage(&s, world);
    s.engines[0].wanted = 3;
    works[0] = issue_reduce(&s, 0);
    works[1] = issue_reduce(&s, 0);
    await_launches(&s.diary, 2);
    double before = tn__now();
    works[2] = issue_reduce(&s, 0);
    for (int i = 0; i < 3; i++) {
        CHECK(tn_work_wait(works[i], 0) == TN_OK);
    }
    double timeout = s.groups[0]->options.timeout;
    CHECK(s.engines[0].deadlines[0] < before + timeout);
    CHECK(s.engines[0].deadlines[1] >= before + timeout);
    clear_stage(&s);
}

/* ---- Failure --------------------------------------------------------------------------------- */

/* One operation fails: so do those under way and those that wait; the other groups continue. */
RANKS_TEST(test_a_failure_ends_what_is_under_way, 2) {
    enum { N = 6 };
    TN_SCOPE;
    stage s;
    tn_work *works[N], *others[N];
    set_stage(&s, world);
    s.engines[0].broken = 2;
    close_diary(&s.diary, true);
    for (int i = 0; i < N; i++) {
        works[i] = issue_reduce(&s, 0);
        others[i] = issue_reduce(&s, 1);
    }
    close_diary(&s.diary, false);
    CHECK(tn_work_wait(works[0], 0) == TN_OK);
    for (int i = 1; i < N; i++) {
        CHECK(tn_work_wait(works[i], 0) == TN_EPEER &&
              failed_with(TN_EPEER, "operation 2, all_reduce f32 [1] sum: it broke"));
    }
    for (int i = 0; i < N; i++) {
        CHECK(tn_work_wait(others[i], 0) == TN_OK);
    }
    CHECK(s.engines[1].launched == N);
    clear_stage(&s);
}
