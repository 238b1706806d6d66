/* A save that fails on one of several ranks, which are threads: it is an error on all, and changes
 * nothing. */
#define _GNU_SOURCE
#include "tests/support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "distributed/parallel/save/manifest.h"
#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

/* ---- Full disks, vanishing files ------------------------------------------------------------- */

/* Files with this in their path cannot grow, or take 5 seconds to grow, or to be removed from a
 * folder with it; NULL: all can. */
static _Atomic(const char *) full_disk, slow_disk;

static void path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    path[length > 0 ? length : 0] = 0;
}

static void be_slow(const char *path) {
    const char *slow = atomic_load(&slow_disk);
    if (slow && strstr(path, slow)) {
        atomic_store(&slow_disk, NULL);
        sleep(5);
    }
}

/* libtern, too, calls this one instead of the C library's. */
ssize_t write(int fd, const void *data, size_t bytes) {
    const char *full = atomic_load(&full_disk);
    char path[512] = "";
    if (full || atomic_load(&slow_disk)) { path_of(fd, path, sizeof(path)); }
    be_slow(path);
    if (full && strstr(path, full)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, data, bytes);
}

int unlinkat(int fd, const char *name, int flags) {
    char path[512] = "";
    if (atomic_load(&slow_disk)) { path_of(fd, path, sizeof(path)); }
    be_slow(path);
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

/* A file with this name, and how many more calls of stat find it. */
static _Atomic(const char *) vanishing;
static atomic_int looks;

int stat(const char *path, struct stat *about) {
    const char *name = atomic_load(&vanishing), *found = name ? strstr(path, name) : NULL;
    int result = fstatat(AT_FDCWD, path, about, 0);
    if (result == 0 && found && strcmp(found, name) == 0 && atomic_fetch_sub(&looks, 1) <= 0) {
        errno = ENOENT;
        result = -1;
    }
    return result;
}

/* ---- Errors on one rank ---------------------------------------------------------------------- */

/* A save that fails after a good one; every rank's error contains `part`. */
typedef struct failing {
    const char *folder, *part;
    tn_status status;
    void (*spoil)(parts_run *r, tn_checkpoint *c, const char **folder);
    bool late; /* the error is known only once all have written */
} failing;

static void save_failing(tn_group *world, void *user) {
    const failing *f = user;
    const char *folder = f->folder;
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_checkpoint c = r.c;
    c.step = 1;
    parts_run_values(&r, 1, false);
    tn_saver *saver = tn_saver_new(world, folder, patient_options(true));
    must(tn_saver_save(saver, &c) == TN_OK && tn_saver_wait(saver) == TN_OK);
    tn_saver_free(saver);

    c.step = 2;
    parts_run_values(&r, 2, false);
    f->spoil(&r, &c, &folder);
    saver = tn_saver_new(world, folder, patient_options(true));
    tn_status status = tn_saver_save(saver, &c);
    if (f->late) {
        must(status == TN_OK);
        status = tn_saver_wait(saver);
    }
    must(status == f->status);
    bool own = tn_group_rank(world) == 2 && strcmp(f->part, "rank 2: ") == 0;
    if (!own && !strstr(tn_error_message(), f->part)) {
        fprintf(stderr, "rank %d: \"%s\" should say \"%s\"\n", tn_group_rank(world),
                tn_error_message(), f->part);
        abort();
    }
    tn_error_clear();
    tn_saver_free(saver);
    must(tn_barrier(world) == TN_OK); /* the group still works */
    char rest[512]; /* of the step that failed nothing is left, not even an empty folder */
    snprintf(rest, sizeof(rest), "%s/step-000002.tmp", f->folder);
    must(access(rest, F_OK) != 0);
    atomic_store(&full_disk, NULL);
    atomic_store(&vanishing, NULL);
    must(tn_barrier(world) == TN_OK);

    bool found;
    parts_run_close(&r);
    parts_run_open(&r, world, LIES_FLAT);
    saver = tn_saver_new(world, f->folder, patient_options(true));
    c = r.c;
    must(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 1);
    parts_run_values(&r, 1, true);
    must(tn_saver_save(saver, &c) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void spoil_step(parts_run *r, tn_checkpoint *c, const char **folder) {
    c->step += tn_group_rank(r->world) == 2;
}

static void spoil_folder(parts_run *r, tn_checkpoint *c, const char **folder) {
    *folder = tn_group_rank(r->world) == 1 ? "/nowhere/at/all" : *folder;
}

static void spoil_error(parts_run *r, tn_checkpoint *c, const char **folder) {
    c->step = tn_group_rank(r->world) == 1 ? -3 : c->step;
}

/* Half a character, as snprintf leaves it when it truncates. */
static void spoil_note(parts_run *r, tn_checkpoint *c, const char **folder) {
    strcpy(c->note, "42 \xc2");
}

static void spoil_dtype(parts_run *r, tn_checkpoint *c, const char **folder) {
    if (tn_group_rank(r->world) == 1) {
        TN_SCOPE;
        must(tn_module_set_buffer(&r->net, "seen", tn_zeros(TN_DIMS(5), TN_F64)) == TN_OK);
    }
}

static void spoil_gap(parts_run *r, tn_checkpoint *c, const char **folder) {
    if (tn_group_rank(r->world) == 1) { c->model = NULL; }
}

/* From now on the file of rank 2 cannot grow. */
static void spoil_disk(parts_run *r, tn_checkpoint *c, const char **folder) {
    if (tn_group_rank(r->world) == 0) { atomic_store(&full_disk, "rank-00002"); }
    must(tn_barrier(r->world) == TN_OK);
}

static void spoil_index(parts_run *r, tn_checkpoint *c, const char **folder) {
    if (tn_group_rank(r->world) == 0) { atomic_store(&full_disk, "index.json"); }
    must(tn_barrier(r->world) == TN_OK);
}

/* Rank 1 sees its file in the folder, and rank 0 does not. */
static void spoil_sight(parts_run *r, tn_checkpoint *c, const char **folder) {
    if (tn_group_rank(r->world) == 0) {
        atomic_store(&looks, 1);
        atomic_store(&vanishing, "step-000002.tmp/rank-00001.safetensors");
    }
    must(tn_barrier(r->world) == TN_OK);
}

TEST(wrong_on_one_rank) {
    static const failing cases[] = {
        {NULL, "but rank 2 has step 3 for ", TN_EMISMATCH, spoil_step, false},
        {NULL, "but rank 1 has step 2 for /nowhere/at/all", TN_EMISMATCH, spoil_folder, false},
        {NULL, "step -3, but steps begin at 0", TN_EVALUE, spoil_error, false},
        {NULL, "the checkpoint's \"note\" is not UTF-8", TN_EVALUE, spoil_note, false},
        {NULL, "\"model.seen\" is f32 [5] on rank 0 but f64 [5] on rank 1", TN_EMISMATCH,
         spoil_dtype, false},
        {NULL, "rank 2: ", TN_EIO, spoil_disk, true},
        {NULL, "No space left on device", TN_EIO, spoil_disk, true},
        {NULL, "index.json: writing: No space left on device", TN_EIO, spoil_index, true},
        {NULL, "rank-00001.safetensors is not there, but rank 1 wrote", TN_EIO, spoil_sight, true},
        {NULL, "elements, but the ranks have pieces with 0", TN_EMISMATCH, spoil_gap, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char name[32];
        snprintf(name, sizeof(name), "wrong%zu", i);
        failing f = cases[i];
        f.folder = temp_path(name);
        run_ok(3, save_failing, &f);
    }
}

/* ---- A rank that does not come --------------------------------------------------------------- */

/* The error of a save that rank 1 has not come to within the time-out. */
static void must_name_it(tn_saver *saver, const tn_checkpoint *c) {
    must(tn_saver_save(saver, c) == TN_EPEER);
    must(strstr(tn_error_message(), "group saver") && strstr(tn_error_message(), "for rank 1"));
    tn_error_clear();
}

static void save_without_one(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    const tn_saver_options o = TN_WITH(tn_saver, .timeout = 3);
    parts_run_saver(&r, user, o);
    must(tn_barrier(world) == TN_OK);
    if (tn_group_rank(world) != 1) { must_name_it(r.saver, &r.c); }
    must(tn_barrier(world) == TN_OK);
    must_name_it(r.saver, &r.c);      /* rank 1 is too late; and this saver saves no more */
    must(tn_barrier(world) == TN_OK); /* the program's group still works */
    parts_run_saver(&r, user, o);
    must(tn_saver_save(r.saver, &r.c) == TN_OK);
    parts_run_close(&r);
}

TEST(a_rank_that_does_not_come) {
    run_ok(3, save_without_one, temp_path("missing"));
}

/* ---- A rank that is late with its file, or rank 0 with the commit ------------------------------
 */

typedef struct slow_save {
    const char *folder, *file;
    int rank; /* which is late */
} slow_save;

static void save_slowly(tn_group *world, void *user) {
    const slow_save *l = user;
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    const tn_saver_options o = TN_WITH(tn_saver, .timeout = 3);
    parts_run_saver(&r, l->folder, o);
    r.c.step = 1;
    must(tn_saver_save(r.saver, &r.c) == TN_OK && tn_saver_wait(r.saver) == TN_OK);
    if (tn_group_rank(world) == 0) { atomic_store(&slow_disk, l->file); }
    must(tn_barrier(world) == TN_OK);
    r.c.step = 2;
    must(tn_saver_save(r.saver, &r.c) == TN_OK); /* training goes on meanwhile */
    must(tn_barrier(world) == TN_OK);
    must(tn_saver_wait(r.saver) == TN_EPEER);
    char late[32];
    snprintf(late, sizeof(late), "for rank %d", l->rank);
    must(strstr(tn_error_message(), late) || strstr(tn_error_message(), "was not written within"));
    tn_error_clear();
    must(tn_barrier(world) == TN_OK);
    bool found;
    parts_run_saver(&r, l->folder, o);
    must(tn_saver_load(r.saver, &r.c, &found) == TN_OK && found && r.c.step == 1);
    parts_run_close(&r);
}

TEST(a_rank_that_is_late) {
    slow_save file = {temp_path("late"), "rank-00002", 2}, index = {temp_path("slow"), "index", 0};
    run_ok(3, save_slowly, &file);
    assert_int_equal(access(temp_path("late/step-000002.tmp"), F_OK), -1);
    run_ok(3, save_slowly, &index);
    assert_int_equal(access(temp_path("slow/step-000002.tmp"), F_OK), -1);
}

/* A step that is committed is saved, however long the older one takes to go. */
static void remove_slowly(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    parts_run_saver(&r, user, TN_WITH(tn_saver, .timeout = 3, .keep = 1));
    r.c.step = 1;
    must(tn_saver_save(r.saver, &r.c) == TN_OK && tn_saver_wait(r.saver) == TN_OK);
    if (tn_group_rank(world) == 0) { atomic_store(&slow_disk, "step-000001.tmp"); }
    must(tn_barrier(world) == TN_OK);
    r.c.step = 2;
    must(tn_saver_save(r.saver, &r.c) == TN_OK && tn_saver_wait(r.saver) == TN_OK);
    must(tn_barrier(world) == TN_OK);
    must(atomic_load(&slow_disk) == NULL);
    parts_run_close(&r);
}

TEST(an_old_step_goes_slowly) {
    run_ok(2, remove_slowly, temp_path("old"));
    assert_int_equal(access(temp_path("old/step-000001"), F_OK), -1);
    assert_int_equal(access(temp_path("old/step-000002"), F_OK), 0);
}

/* ---- An incomplete list ---------------------------------------------------------------------- */

/* One whole record of a list and the beginning of another. */
TEST(half_a_list) {
    struct record {
        tn_layout layout;
        int64_t dtype, dealt;
    } r = {.layout = tn__layout_whole(TN_DIMS(2)), .dtype = TN_F32};
    char list[1024] = "";
    size_t used = sizeof(r) + sizeof("");
    memcpy(list, &r, sizeof(r));
    tn__manifest m = {.operation = "test", .ranks = 2};
    assert_true(tn__manifest_set(&m, 1, list, used));
    assert_int_equal(m.lists[1].count, 1);
    assert_false(tn__manifest_set(&m, 1, list, used + 20));
    assert_error(TN_EFORMAT, "rank 1 sent no list of tensors");
    tn__manifest_free(&m);
}

/* ---- Errors of the program ------------------------------------------------------------------- */

/* An error that is pending on one rank reaches the others, which do not wait. */
static void save_with_an_error(tn_group *world, void *user) {
    parts_run r;
    parts_run_begin(&r, world, LIES_FLAT, user);
    if (tn_group_rank(world) == 2) { tn_raise(TN_EINDEX, "an error of its own"); }
    must(tn_saver_save(r.saver, &r.c) == TN_EINDEX);
    must(strstr(tn_error_message(), "an error of its own"));
    must(tn_group_rank(world) == 2 || strstr(tn_error_message(), "rank 2: "));
    tn_error_clear();
    must(tn_saver_save(r.saver, &r.c) == TN_OK);
    parts_run_close(&r);
}

TEST(an_error_from_before) {
    run_ok(3, save_with_an_error, temp_path("error"));
}

static int heard;

static void count_errors(tn_status status, const char *text) {
    heard++;
}

/* The program's own error, of which its handler hears once. */
static void must_keep_own(tn_saver *saver, const tn_checkpoint *c) {
    heard = 0;
    tn_on_error_thread(count_errors);
    tn_raise(TN_EINDEX, "an error of its own");
    assert_int_equal(tn_saver_save(saver, c), TN_EINDEX);
    tn_on_error_thread(NULL);
    assert_int_equal(heard, 1);
    assert_error(TN_EINDEX, "an error of its own");
}

/* The first of two errors stays: here the program's own, not that of the previous save. */
TEST(own_error_before_that_of_the_save) {
    parts_run r;
    parts_run_begin(&r, NULL, LIES_WHOLE, temp_path("first"));
    must_keep_own(r.saver, &r.c);
    atomic_store(&full_disk, "index.json");
    assert_int_equal(tn_saver_save(r.saver, &r.c), TN_OK);
    must_keep_own(r.saver, &r.c);
    atomic_store(&full_disk, NULL);
    assert_int_equal(tn_saver_save(r.saver, &r.c), TN_OK);
    parts_run_close(&r);
}
