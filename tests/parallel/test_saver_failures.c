/* A save that fails in the middle, on ranks that are threads: because any one allocation fails, or
 * because something is in the way of its files. Each rank learns of it without waiting for the
 * timeout; the folder keeps the steps that were there, whole, and nothing incomplete. */
#include "tests/support/test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/allocator.h"
#include "core/folder.h"
#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

enum { MOST_RANKS = 2 };

/* Saves step 2 to a folder that has step 1. */
typedef struct attempt {
    const char *folder;
    bool behind;
    int keep;
    int n; /* the allocation, counted over all ranks, that fails; -1: none */
    tn_status status[MOST_RANKS];
} attempt;

static void open_saver(parts_run *r, const attempt *a) {
    parts_run_saver(r, a->folder,
                    TN_WITH(tn_saver, .behind = a->behind, .keep = a->keep, .timeout = 120));
}

static void save_step(tn_group *world, attempt *a, int64_t step) {
    int rank = tn_group_rank(world);
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    parts_run_values(&r, (uint64_t)step, false);
    open_saver(&r, a);
    r.c.step = step;
    must(tn_barrier(world) == TN_OK);
    if (rank == 0) { tn__alloc_fail_at(a->n); }
    a->status[rank] = tn_saver_save(r.saver, &r.c);
    a->status[rank] = a->status[rank] == TN_OK ? tn_saver_wait(r.saver) : a->status[rank];
    must(a->status[rank] == tn_error());
    must(tn_error() == TN_OK || a->n < 0 || strstr(tn_error_message(), "memory"));
    tn_error_clear();
    parts_run_close(&r);
}

static void save_first(tn_group *world, void *user) {
    save_step(world, user, 1);
}

static void save_second(tn_group *world, void *user) {
    save_step(world, user, 2);
}

typedef struct loading {
    attempt *saved;
    int64_t step; /* the step that is expected */
} loading;

static void load_newest(tn_group *world, void *user) {
    const loading *l = user;
    parts_run r;
    parts_run_open(&r, world, LIES_WHOLE);
    open_saver(&r, l->saved);
    parts_run_loads(&r, l->step);
    parts_run_close(&r);
}

/* Makes a folder with step 1. */
static attempt begin_attempts(const char *name, int ranks, bool behind) {
    attempt a = {.folder = temp_path(name), .behind = behind, .keep = 2, .n = -1};
    run_ok(ranks, save_first, &a);
    for (int rank = 0; rank < ranks; rank++) {
        assert_int_equal(a.status[rank], TN_OK);
    }
    return a;
}

/* What a folder has besides step 1 and the lock. */
typedef struct contents {
    int others;
    bool second;
    char other[256];
} contents;

static bool note_name(const char *name, void *user) {
    contents *c = user;
    if (strcmp(name, "step-000002") == 0) {
        c->second = true;
    } else if (strcmp(name, "step-000001") != 0 && strcmp(name, "lock") != 0) {
        c->others++;
        snprintf(c->other, sizeof(c->other), "%s", name);
    }
    return true;
}

/* Returns whether step 2 is there. It must be if all ranks called it saved; if it is there, it must
 * be whole; and besides it there must be `others` other names. */
static bool check_folder(attempt *a, int ranks, int others) {
    contents c = {0};
    assert_true(tn__folder_each(a->folder, note_name, &c, "test"));
    if (c.others != others) {
        fail_msg("%d ranks, allocation %d: there is %s", ranks, a->n, c.other);
    }
    bool saved = true;
    for (int rank = 0; rank < ranks; rank++) {
        saved = saved && a->status[rank] == TN_OK;
    }
    assert_true(c.second || !saved);
    loading l = {a, c.second ? 2 : 1};
    run_ok(1, load_newest, &l);
    return c.second;
}

/* ---- Without memory -------------------------------------------------------------------------- */

/* `replaces`: every save but the first finds a step 2 already, and only one step is kept. */
static void walk_allocations(const char *name, int ranks, bool behind, bool replaces) {
    attempt a = begin_attempts(name, ranks, behind);
    char second[600];
    snprintf(second, sizeof(second), "%s/step-000002", a.folder);
    int failed = 0;
    a.keep = replaces ? 1 : 2;
    a.n = 0;
    for (bool armed = false; !armed; a.n++) {
        run_ok(ranks, save_second, &a);
        armed = tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        for (int rank = 0; rank < ranks; rank++) {
            /* others: a rank had no memory to say so, and gave up */
            assert_true(a.status[rank] == TN_OK || a.status[rank] == TN_ENOMEM || ranks > 1);
            failed += a.status[rank] != TN_OK;
        }
        if (check_folder(&a, ranks, 0) && !replaces) {
            assert_true(tn__folder_remove(second, "test"));
        }
    }
    assert_true(failed > 100);
}

TEST(without_memory) {
    walk_allocations("alone", 1, false, false);
    walk_allocations("alone_behind", 1, true, false);
    walk_allocations("replaced", 1, false, true);
}

TEST(without_memory_on_two_ranks) {
    walk_allocations("both", 2, false, false);
    walk_allocations("both_behind", 2, true, true);
}

/* ---- Names that are taken -------------------------------------------------------------------- */

/* If something else has a name that a save needs, the saver does not remove it, but raises an
 * error. */
TEST(names_are_taken) {
    static const char *const names[] = {"step-000002.tmp", "step-000002"};
    for (int i = 0; i < 4; i++) {
        char name[32], path[600];
        snprintf(name, sizeof(name), "taken%d", i);
        attempt a = begin_attempts(name, MOST_RANKS, i >= 2);
        snprintf(path, sizeof(path), "%s/%s", a.folder, names[i % 2]);
        temp_write(path, "somebody's", 10);
        run_ok(MOST_RANKS, save_second, &a);
        assert_true(a.status[0] == TN_EIO && a.status[1] == TN_EIO);
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(unlink(path), 0);
        assert_false(check_folder(&a, MOST_RANKS, 0));
        run_ok(MOST_RANKS, save_second, &a);
        assert_true(check_folder(&a, MOST_RANKS, 0));
        assert_true(a.status[0] == TN_OK && a.status[1] == TN_OK);
    }
}

/* From now on, files can have up to `most` bytes. */
static void limit_files(rlim_t most) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(files_that_cannot_grow) {
    signal(SIGXFSZ, SIG_IGN);
    attempt a = begin_attempts("full", MOST_RANKS, true);
    bool saved = false;
    for (rlim_t most = 0; !saved; most += 300) {
        a.behind = most % 600 == 0;
        limit_files(most);
        run_ok(MOST_RANKS, save_second, &a);
        limit_files(RLIM_INFINITY);
        saved = check_folder(&a, MOST_RANKS, 0);
        for (int rank = 0; rank < MOST_RANKS; rank++) {
            assert_int_equal(a.status[rank], saved ? TN_OK : TN_EIO);
        }
        assert_true(most > 0 || !saved);
    }
    signal(SIGXFSZ, SIG_DFL);
}
