/* A pipeline's ranks wait only for what the schedule has before them: each action begins when all
 * that the simulation ends before it is done, on every rank, and no sooner. A rank that waited for
 * more (for its message to be taken, say) would wait here for ever, whatever the clock. */
#include "tests/distributed/rank_check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 4, MICROS = 8, ACTIONS = 3 * 2 * MICROS, LIMIT = 60 };

typedef struct course {
    tn_pipe_kind kind;
    int chunks;
    tn_pipe_schedule *schedule;
    int begins[RANKS][ACTIONS], ends[RANKS][ACTIONS]; /* in columns of the drawing */
    int done[RANKS];                                  /* actions */
    bool late;
    pthread_mutex_t lock;
    pthread_cond_t moved;
} course;

typedef struct rank_course {
    course *of;
    int rank;
} rank_course;

/* A column is four characters: an action's name, "===" where it goes on, a dot. */
static void read_course(course *c) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tn_pipe_simulate(c->schedule, (tn_pipe_cost){1, 1, 1, 0}, NULL, f), TN_OK);
    fclose(f);
    char *line = text;
    for (int rank = 0; rank < RANKS; rank++) {
        int n = 0;
        line += strlen("rank 0");
        for (int column = 0; *line != '\n'; column++, line += 4) {
            if (line[3] == '=') {
                c->ends[rank][n - 1]++;
            } else if (line[3] != '.') {
                c->begins[rank][n] = column;
                c->ends[rank][n++] = column + 1;
            }
        }
        assert_int_equal(n, c->schedule->counts[rank]);
        line++;
    }
    free(text);
}

/* Whether all that ends by the column is done. */
static bool may_begin(const course *c, int column) {
    for (int rank = 0; rank < RANKS; rank++) {
        int next = c->done[rank];
        if (next < c->schedule->counts[rank] && c->ends[rank][next] <= column) { return false; }
    }
    return true;
}

static void follow_course(tn_pipe_action a, bool done, void *user) {
    rank_course *r = user;
    course *c = r->of;
    pthread_mutex_lock(&c->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LIMIT;
    const tn_pipe_action *next = &c->schedule->rows[r->rank][c->done[r->rank]];
    CHECK(a.what == next->what && a.stage == next->stage && a.micro == next->micro);
    if (done) {
        c->done[r->rank]++;
        pthread_cond_broadcast(&c->moved);
    }
    while (!done && !c->late && !may_begin(c, c->begins[r->rank][c->done[r->rank]])) {
        if (pthread_cond_timedwait(&c->moved, &c->lock, &until) != 0) {
            print_message("# rank %d waits with %c%d.%d\n", r->rank, a.what, a.stage, a.micro);
            c->late = true;
            pthread_cond_broadcast(&c->moved);
        }
    }
    pthread_mutex_unlock(&c->lock);
}

static tn_tensor *mean_square(tn_tensor *out, tn_tensor *y, void *user) {
    return tn_mse(out, y, TN_MEAN);
}

static void take_step(tn_group *world, void *user) {
    course *c = user;
    rank_course mine = {c, tn_group_rank(world)};
    tn_sequential *m = tn_sequential_new();
    for (int i = 0; i < RANKS * c->chunks; i++) {
        tn_sequential_add(m, tn_linear_new(4, 4));
    }
    tn_pipeline *p =
        tn_pipeline_new(m, world,
                        TN_WITH(tn_pipeline, .kind = c->kind, .chunks = c->chunks,
                                .loss = mean_square, .on_action = follow_course, .user = &mine));
    tn_batch batches[MICROS];
    for (int i = 0; i < MICROS; i++) {
        batches[i] =
            (tn_batch){.x = tn_ones(TN_DIMS(2, 4), TN_F32), .y = tn_zeros(TN_DIMS(2, 4), TN_F32)};
    }
    tn_pipeline_step(p, batches, MICROS, NULL);
    CHECK(!c->late && c->done[mine.rank] == c->schedule->counts[mine.rank]);
    tn_module_free(m);
}

static void follows_course(tn_pipe_kind kind, int chunks) {
    course c = {.kind = kind,
                .chunks = chunks,
                .schedule = tn_pipe_schedule_new(kind, RANKS, chunks, MICROS),
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .moved = PTHREAD_COND_INITIALIZER};
    read_course(&c);
    run_ok(RANKS, take_step, &c);
    tn_pipe_schedule_free(c.schedule);
}

TEST(ranks_wait_only_where_the_schedule_does) {
    follows_course(TN_PIPE_1F1B, 1);
    follows_course(TN_PIPE_GPIPE, 1);
    follows_course(TN_PIPE_INTERLEAVED, 2);
    follows_course(TN_PIPE_ZERO_BUBBLE, 1);
}
