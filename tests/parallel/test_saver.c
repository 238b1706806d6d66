/* Checkpoints in parts, on ranks that are threads: what is saved in one way is loaded in any other;
 * what is wrong on one rank is an error on all, and changes nothing. */
#define _GNU_SOURCE
#include "tests/support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/folder.h"
#include "distributed/group/group.h"
#include "distributed/parallel/save/convert.h"
#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

/* Files whose path has this in it get no more bytes; NULL: all do. */
static _Atomic(const char *) full_disk;

/* Comes before the C library's for libtern too. */
ssize_t write(int fd, const void *data, size_t bytes) {
    const char *full = atomic_load(&full_disk);
    char link[64], path[512] = "";
    if (full) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        (void)!readlink(link, path, sizeof(path) - 1);
    }
    if (full && strstr(path, full)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, data, bytes);
}

/* How often a file of this name is still there when it is looked at. */
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

static const lie ways[] = {LIES_WHOLE, LIES_FLAT, LIES_CUT, LIES_ODD};
enum { WAYS = sizeof(ways) / sizeof(*ways) };

/* ---- There and elsewhere --------------------------------------------------------------------- */

typedef struct leg {
    const char *folder;
    lie how;
    bool behind;
    int64_t load; /* the step that is expected; -1: none is loaded */
    int64_t save;
} leg;

static tn_saver_options patient(bool behind) {
    tn_saver_options o = tn_saver_defaults();
    o.behind = behind;
    o.timeout = 120;
    return o;
}

/* Loads what the leg before has saved, and saves the next. */
static void run_leg(tn_group *world, void *user) {
    const leg *l = user;
    parts_run r;
    parts_run_open(&r, world, l->how);
    tn_saver *saver = tn_saver_new(world, l->folder, patient(l->behind));
    must(saver != NULL);
    tn_checkpoint c = parts_run_checkpoint(&r);
    bool found = true;
    parts_run_values(&r, 999, false);
    must(tn_saver_load(saver, &c, &found) == TN_OK && found == (l->load >= 0));
    if (found) {
        must(c.step == l->load && strcmp(c.note, "noted") == 0);
        parts_run_values(&r, (uint64_t)l->load, true);
    }
    strcpy(c.note, "noted");
    for (c.step = l->save - 1; c.step <= l->save; c.step++) {
        parts_run_values(&r, (uint64_t)c.step, false);
        must(tn_saver_save(saver, &c) == TN_OK);
        parts_run_values(&r, 12345, false); /* what continues is not what was saved */
    }
    must(tn_saver_wait(saver) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

/* 4 -> 3 -> 2 -> 1 -> 4 ranks, from every way of lying to every other. */
static void any_way_onto_any_ranks(void **state) {
    (void)state;
    static const int ranks[] = {4, 3, 2, 1, 4};
    for (int i = 0; i < 2 * WAYS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "run%d", i);
        const char *folder = temp_path(name);
        int64_t step = -1;
        for (int k = 0; k < 5; k++) {
            leg l = {.folder = folder,
                     .how = ways[(i + k * (1 + i / WAYS)) % WAYS],
                     .behind = (i + k) % 2,
                     .load = step,
                     .save = step + 10};
            assert_int_equal(tn_local_run(ranks[k], run_leg, &l), TN_OK);
            step = l.save;
        }
    }
}

/* Pieces that are read in several goes, and runs that continue from one to the next. */
static void large_pieces(void **state) {
    (void)state;
    const char *folder = temp_path("large");
    parts_width = 600;
    leg l = {.folder = folder, .how = LIES_CUT, .load = -1, .save = 1};
    assert_int_equal(tn_local_run(2, run_leg, &l), TN_OK);
    l = (leg){.folder = folder, .how = LIES_ODD, .load = 1, .save = 3};
    assert_int_equal(tn_local_run(3, run_leg, &l), TN_OK);
    parts_width = 6;
}

/* What all ranks have is written by all of them in turn. */
static void whole_parameters_are_dealt_out(void **state) {
    (void)state;
    const char *folder = temp_path("dealt");
    parts_width = 60;
    leg l = {.folder = folder, .how = LIES_WHOLE, .load = -1, .save = 1};
    assert_int_equal(tn_local_run(3, run_leg, &l), TN_OK);
    parts_width = 6;
    size_t bytes[3], all = 0;
    for (int rank = 0; rank < 3; rank++) {
        char name[64];
        snprintf(name, sizeof(name), "dealt/step-000001/rank-%05d.safetensors", rank);
        free(temp_read(temp_path(name), &bytes[rank]));
        all += bytes[rank];
    }
    for (int rank = 0; rank < 3; rank++) {
        assert_in_range(bytes[rank], all / 4, all / 2);
    }
}

/* ---- The folder ------------------------------------------------------------------------------ */

static bool count_names(const char *name, void *user) {
    (void)name;
    ++*(int *)user;
    return true;
}

static int names_in(const char *folder) {
    int count = 0;
    assert_true(tn__folder_each(folder, count_names, &count, "test"));
    return count;
}

static bool is_there(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void save_steps(tn_group *world, void *user) {
    const char *folder = user;
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_saver_options o = patient(true);
    o.keep = 3;
    tn_saver *saver = tn_saver_new(world, folder, o);
    tn_checkpoint c = parts_run_checkpoint(&r);
    for (c.step = 10; c.step <= 70; c.step += 10) {
        parts_run_values(&r, (uint64_t)c.step, false);
        must(tn_saver_save(saver, &c) == TN_OK);
    }
    c.step = 70; /* once more: it is replaced */
    parts_run_values(&r, 71, false);
    must(tn_saver_save(saver, &c) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void some_steps_stay(void **state) {
    (void)state;
    const char *folder = temp_path("steps");
    assert_true(tn__folder_make(folder, "test"));
    const char *dead = temp_path("steps/step-000005.tmp"), *other = temp_path("steps/notes.tmp");
    assert_true(tn__folder_make(dead, "test") && tn__folder_make(other, "test"));
    temp_write(temp_path("steps/step-000005.tmp/rank-00000.safetensors"), "half", 4);
    assert_int_equal(tn_local_run(3, save_steps, (void *)(uintptr_t)folder), TN_OK);
    assert_true(is_there(folder, "step-000050") && is_there(folder, "step-000060"));
    assert_true(is_there(folder, "step-000070") && is_there(folder, "lock"));
    assert_true(is_there(folder, "notes.tmp")); /* not ours */
    assert_int_equal(names_in(folder), 5);
    assert_int_equal(names_in(temp_path("steps/step-000070")), 4);
}

/* A run that starts over in the folder of another: its steps stay, and so do those. */
static void save_low_step(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_ODD);
    tn_saver_options o = patient(true);
    o.keep = 1;
    tn_saver *saver = tn_saver_new(world, user, o);
    tn_checkpoint c = parts_run_checkpoint(&r);
    for (c.step = 2; c.step < 4; c.step++) {
        must(tn_saver_save(saver, &c) == TN_OK);
    }
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void higher_steps_are_another_runs(void **state) {
    (void)state;
    const char *folder = temp_path("steps");
    assert_int_equal(tn_local_run(2, save_low_step, (void *)(uintptr_t)folder), TN_OK);
    assert_true(is_there(folder, "step-000003") && is_there(folder, "step-000070"));
    assert_false(is_there(folder, "step-000002"));
}

/* What is there of step 70 is the second. */
static void load_replaced(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_WHOLE);
    tn_saver *saver = tn_saver_new(world, user, patient(true));
    tn_checkpoint c = parts_run_checkpoint(&r);
    bool found;
    must(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 70);
    parts_run_values(&r, 71, true);
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void a_step_is_replaced(void **state) {
    (void)state;
    assert_int_equal(tn_local_run(2, load_replaced, (void *)(uintptr_t)temp_path("steps")), TN_OK);
}

static void one_job_at_a_time(void **state) {
    (void)state;
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = parts_run_checkpoint(&r);
    const char *folder = temp_path("locked");
    tn_saver *first = tn_saver_new(NULL, folder, patient(false));
    tn_saver *second = tn_saver_new(NULL, folder, patient(false));
    bool found;
    c.step = 1;
    assert_int_equal(tn_saver_save(first, &c), TN_OK);
    assert_int_equal(tn_saver_save(second, &c), TN_EIO);
    assert_error(TN_EIO, "another job runs in");
    assert_int_equal(tn_saver_load(second, &c, &found), TN_OK);
    assert_true(found);
    tn_saver_free(first);
    c.step = 2;
    assert_int_equal(tn_saver_save(second, &c), TN_OK);
    tn_saver_free(second);
    parts_run_close(&r);
}

/* Another descriptor of the lock, as a child by fork has it. */
static int lock_again(const char *folder) {
    char path[512];
    struct stat lock, open_file;
    snprintf(path, sizeof(path), "%s/lock", folder);
    assert_int_equal(stat(path, &lock), 0);
    for (int fd = 3; fd < 1024; fd++) {
        if (fstat(fd, &open_file) == 0 && open_file.st_dev == lock.st_dev &&
            open_file.st_ino == lock.st_ino) {
            return dup(fd);
        }
    }
    return -1;
}

/* A saver that is gone locks nothing, whoever has inherited what it had open. */
static void children_keep_no_lock(void **state) {
    (void)state;
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = parts_run_checkpoint(&r);
    const char *folder = temp_path("inherited");
    tn_saver *first = tn_saver_new(NULL, folder, patient(false));
    assert_int_equal(tn_saver_save(first, &c), TN_OK);
    int again = lock_again(folder);
    assert_true(again >= 0);
    tn_saver_free(first);
    tn_saver *second = tn_saver_new(NULL, folder, patient(false));
    assert_int_equal(tn_saver_save(second, &c), TN_OK);
    tn_saver_free(second);
    close(again);
    parts_run_close(&r);
}

/* The first of two errors stays: the program's own, and then that of the save before. */
static void own_error_before_that_of_the_save(void **state) {
    (void)state;
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = parts_run_checkpoint(&r);
    tn_saver *saver = tn_saver_new(NULL, temp_path("first"), patient(true));
    atomic_store(&full_disk, "index.json");
    assert_int_equal(tn_saver_save(saver, &c), TN_OK);
    tn_raise(TN_EINDEX, "an error of its own");
    assert_int_equal(tn_saver_save(saver, &c), TN_EINDEX);
    atomic_store(&full_disk, NULL);
    assert_error(TN_EINDEX, "an error of its own");
    assert_int_equal(tn_saver_save(saver, &c), TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

/* What someone keeps in a step is not removed with it, and hinders no save: neither the one that
 * takes the step's place, nor those of the next job. */
static void folders_in_steps_stay(void **state) {
    (void)state;
    parts_run r;
    parts_run_open(&r, NULL, LIES_WHOLE);
    tn_checkpoint c = parts_run_checkpoint(&r);
    const char *folder = temp_path("kept");
    c.step = 1;
    for (int job = 0; job < 3; job++) {
        tn_saver *saver = tn_saver_new(NULL, folder, patient(false));
        c.step += job == 2;
        assert_int_equal(tn_saver_save(saver, &c), TN_OK);
        if (job == 0) {
            assert_true(tn__folder_make(temp_path("kept/step-000001/ours"), "test"));
            assert_int_equal(tn_saver_save(saver, &c), TN_OK);
            c.step = 2;
        }
        tn_saver_free(saver);
    }
    assert_true(is_there(folder, "step-000001.tmp/ours"));
    assert_true(is_there(folder, "step-000003") && is_there(folder, "step-000002"));
    parts_run_close(&r);
}

/* ---- What is wrong on one rank --------------------------------------------------------------- */

/* One save after a good one, which fails with `part` in what every rank raises. */
typedef struct failing {
    const char *folder, *part;
    tn_status status;
    void (*spoil)(parts_run *r, tn_checkpoint *c, const char **folder);
    bool late; /* it is known when all have written */
} failing;

static void save_failing(tn_group *world, void *user) {
    const failing *f = user;
    const char *folder = f->folder;
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_checkpoint c = parts_run_checkpoint(&r);
    c.step = 1;
    parts_run_values(&r, 1, false);
    tn_saver *saver = tn_saver_new(world, folder, patient(true));
    must(tn_saver_save(saver, &c) == TN_OK && tn_saver_wait(saver) == TN_OK);
    tn_saver_free(saver);

    c.step = 2;
    parts_run_values(&r, 2, false);
    f->spoil(&r, &c, &folder);
    saver = tn_saver_new(world, folder, patient(true));
    tn_status status = tn_saver_save(saver, &c);
    if (f->late) {
        must(status == TN_OK);
        status = tn_saver_wait(saver);
    }
    must(status == f->status);
    if (!strstr(tn_error_message(), f->part)) {
        fprintf(stderr, "rank %d: \"%s\" should say \"%s\"\n", tn_group_rank(world),
                tn_error_message(), f->part);
        abort();
    }
    tn_error_clear();
    tn_saver_free(saver);
    must(tn_barrier(world) == TN_OK); /* the group lives */
    atomic_store(&full_disk, NULL);
    atomic_store(&vanishing, NULL);
    must(tn_barrier(world) == TN_OK);

    bool found;
    parts_run_close(&r);
    parts_run_open(&r, world, LIES_FLAT);
    saver = tn_saver_new(world, f->folder, patient(true));
    c = parts_run_checkpoint(&r);
    must(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 1);
    parts_run_values(&r, 1, true);
    must(tn_saver_save(saver, &c) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void spoil_step(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)folder;
    c->step += tn_group_rank(r->world) == 2;
}

static void spoil_folder(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)c;
    *folder = tn_group_rank(r->world) == 1 ? "/nowhere/at/all" : *folder;
}

static void spoil_error(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)folder;
    c->step = tn_group_rank(r->world) == 1 ? -3 : c->step;
}

/* Half a character, as snprintf leaves it. */
static void spoil_note(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)r;
    (void)folder;
    strcpy(c->note, "42 \xc2");
}

static void spoil_dtype(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)c;
    (void)folder;
    if (tn_group_rank(r->world) == 1) {
        TN_SCOPE;
        must(tn_module_set_buffer(&r->net, "seen", tn_zeros(TN_DIMS(5), TN_F64)) == TN_OK);
    }
}

static void spoil_gap(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)folder;
    if (tn_group_rank(r->world) == 1) {
        c->model = NULL;
    }
}

/* From now on nothing more fits into files of this name. */
static void spoil_disk(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)c;
    (void)folder;
    if (tn_group_rank(r->world) == 0) {
        atomic_store(&full_disk, "rank-00002");
    }
    must(tn_barrier(r->world) == TN_OK);
}

static void spoil_index(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)c;
    (void)folder;
    if (tn_group_rank(r->world) == 0) {
        atomic_store(&full_disk, "index.json");
    }
    must(tn_barrier(r->world) == TN_OK);
}

/* Rank 1 sees its file in the folder, and rank 0 does not. */
static void spoil_sight(parts_run *r, tn_checkpoint *c, const char **folder) {
    (void)c;
    (void)folder;
    if (tn_group_rank(r->world) == 0) {
        atomic_store(&looks, 1);
        atomic_store(&vanishing, "step-000002.tmp/rank-00001.safetensors");
    }
    must(tn_barrier(r->world) == TN_OK);
}

static void wrong_on_one_rank(void **state) {
    (void)state;
    static const failing cases[] = {
        {NULL, "rank 2 saves step 3 but rank 0 step 2", TN_EMISMATCH, spoil_step, false},
        {NULL, "rank 1 saves to /nowhere/at/all but rank 0 to", TN_EMISMATCH, spoil_folder, false},
        {NULL, "step -3, and steps begin at 0", TN_EVALUE, spoil_error, false},
        {NULL, "(its note, what data and model say of themselves): not UTF-8", TN_EVALUE,
         spoil_note, false},
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
        assert_int_equal(tn_local_run(3, save_failing, &f), TN_OK);
    }
}

/* ---- A rank that does not come --------------------------------------------------------------- */

static void save_without_one(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_saver_options o = patient(true);
    o.timeout = 3;
    tn_saver *saver = tn_saver_new(world, user, o);
    tn_checkpoint c = parts_run_checkpoint(&r);
    must(tn_barrier(world) == TN_OK);
    if (tn_group_rank(world) != 1) {
        must(tn_saver_save(saver, &c) == TN_EPEER);
        must(strstr(tn_error_message(), "rank 1 has not begun to save step 0 within 3 seconds"));
        tn_error_clear();
    }
    must(tn_barrier(world) == TN_OK);
    if (tn_group_rank(world) == 1) { /* too late: it hears the same */
        must(tn_saver_save(saver, &c) == TN_EPEER);
        must(strstr(tn_error_message(), "rank 1 has not begun"));
        tn_error_clear();
    }
    must(tn_saver_save(saver, &c) == TN_OK); /* now all do */
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void a_rank_that_does_not_come(void **state) {
    (void)state;
    assert_int_equal(tn_local_run(3, save_without_one, (void *)(uintptr_t)temp_path("missing")),
                     TN_OK);
}

/* ---- A list that is none --------------------------------------------------------------------- */

/* Rank 1 sends one whole record of a list and the beginning of another, and then leaves. */
static void send_half_list(tn_group *world, const char *folder) {
    struct record {
        tn_layout layout;
        int64_t dtype, dealt;
    } r = {.layout = tn__layout_whole(TN_DIMS(2)), .dtype = TN_F32};
    char list[1024] = "";
    size_t used = (size_t)snprintf(list, 512, "++0 %s", folder) + 1;
    memcpy(list + used, &r, sizeof(r));
    used += sizeof(r) + sizeof("") + 20;
    tn_store *store = tn_prefix_store(world->store, "saver/1");
    must(tn_store_set(store, "1/1/list", list, used) == TN_OK);
    must(tn_store_set(store, "1/1/heard", "+", 1) == TN_OK);
    tn_store_free(store);
}

static void save_after_half_list(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_saver *saver = tn_saver_new(world, user, patient(true));
    tn_checkpoint c = parts_run_checkpoint(&r);
    if (tn_group_rank(world) == 1) {
        send_half_list(world, user);
    } else {
        must(tn_saver_save(saver, &c) == TN_EFORMAT);
        must(strstr(tn_error_message(), "rank 1 sends no list of tensors"));
        tn_error_clear();
    }
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void half_a_list(void **state) {
    (void)state;
    assert_int_equal(tn_local_run(2, save_after_half_list, (void *)(uintptr_t)temp_path("half")),
                     TN_OK);
}

/* ---- What is saved changes ------------------------------------------------------------------- */

static void save_changing(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_saver *saver = tn_saver_new(world, user, patient(true));
    tn_checkpoint all = parts_run_checkpoint(&r), nothing = {.note = "nothing"};
    for (int64_t step = 1; step <= 4; step += 2) {
        bool found;
        parts_run_values(&r, (uint64_t)step, false);
        all.step = step;
        must(tn_saver_save(saver, &all) == TN_OK);
        must(tn_saver_load(saver, &all, &found) == TN_OK && found && all.step == step);
        parts_run_values(&r, (uint64_t)step, true);
        nothing.step = step + 1;
        must(tn_saver_save(saver, &nothing) == TN_OK);
        must(tn_saver_load(saver, &nothing, &found) == TN_OK && found && nothing.step == step + 1);
    }
    tn_saver_free(saver);
    parts_run_close(&r);
}

/* A save has what it was given and no more, whatever the one before had. */
static void what_is_saved_changes(void **state) {
    (void)state;
    assert_int_equal(tn_local_run(2, save_changing, (void *)(uintptr_t)temp_path("changing")),
                     TN_OK);
}

/* An error that a rank had before is told to the others, which do not wait for it. */
static void save_with_an_error(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_saver *saver = tn_saver_new(world, user, patient(true));
    tn_checkpoint c = parts_run_checkpoint(&r);
    if (tn_group_rank(world) == 2) {
        tn_raise(TN_EINDEX, "an error of its own");
    }
    must(tn_saver_save(saver, &c) == TN_EINDEX);
    must(strstr(tn_error_message(), "an error of its own"));
    must(tn_group_rank(world) == 2 || strstr(tn_error_message(), "rank 2: "));
    tn_error_clear();
    must(tn_saver_save(saver, &c) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void an_error_from_before(void **state) {
    (void)state;
    assert_int_equal(tn_local_run(3, save_with_an_error, (void *)(uintptr_t)temp_path("error")),
                     TN_OK);
}

static void load_single(tn_group *world, void *user) {
    const leg *l = user;
    parts_run r;
    parts_run_open(&r, world, l->how);
    tn_saver *saver = tn_saver_new(world, l->folder, patient(true));
    tn_checkpoint c = parts_run_checkpoint(&r);
    bool found;
    must(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == l->load);
    parts_run_values(&r, (uint64_t)l->load, true);
    tn_saver_free(saver);
    parts_run_close(&r);
}

/* ---- Other files ----------------------------------------------------------------------------- */

typedef struct paths {
    const char *folder, *other;
} paths;

static void save_once(tn_group *world, void *user) {
    const paths *p = user;
    parts_run r;
    parts_run_open(&r, world, LIES_ODD);
    tn_saver *saver = tn_saver_new(world, p->folder, patient(true));
    tn_checkpoint c = parts_run_checkpoint(&r);
    c.step = 8;
    parts_run_values(&r, 8, false);
    must(tn_saver_save(saver, &c) == TN_OK);
    tn_saver_free(saver);
    must(tn_dist_export(world, &r.net, p->other) == TN_OK);
    parts_run_close(&r);
}

/* The same run on one rank. */
static void open_whole(parts_run *r, uint64_t seed) {
    parts_run_open(r, NULL, LIES_WHOLE);
    parts_run_values(r, seed, false);
}

static void converted_and_exported(void **state) {
    (void)state;
    paths p = {temp_path("converted"), temp_path("exported")};
    const char *one = temp_path("one"), *weights = temp_path("weights"),
               *saved = temp_path("saved");
    assert_int_equal(tn_local_run(3, save_once, &p), TN_OK);
    assert_int_equal(tn__saver_convert(temp_path("nothing"), one, false), TN_EIO);
    assert_contains(tn_error_message(), "nothing: No such file");
    tn_error_clear();
    assert_int_equal(tn__saver_convert(p.folder, one, false), TN_OK);
    assert_int_equal(tn__saver_convert(temp_path("converted/step-000008"), weights, true), TN_OK);
    parts_run r;
    open_whole(&r, 8);
    assert_int_equal(tn_save(&r.net, saved), TN_OK);
    temp_same(saved, p.other);
    temp_same(saved, weights);
    tn_checkpoint c = parts_run_checkpoint(&r);
    parts_run_values(&r, 9, false);
    assert_int_equal(tn_checkpoint_load(&c, one), TN_OK);
    assert_int_equal(c.step, 8);
    parts_run_values(&r, 8, true);
    parts_run_close(&r);
}

static void checkpoints_of_one_file(void **state) {
    (void)state;
    const char *folder = temp_path("single"), *file = temp_path("single/old");
    assert_true(tn__folder_make(folder, "test"));
    temp_write(temp_path("single/notes.txt"), "no checkpoint", 13);
    parts_run r;
    for (int step = 20; step < 23; step++) {
        open_whole(&r, (uint64_t)step);
        tn_checkpoint c = parts_run_checkpoint(&r);
        c.step = step;
        const char *path = step == 21 ? temp_path("single/newest") : file;
        assert_int_equal(tn_checkpoint_save(&c, step == 22 ? temp_path("elsewhere") : path), TN_OK);
        parts_run_close(&r);
    }
    for (int i = 0; i < WAYS; i++) {
        leg l = {.folder = folder, .how = ways[i], .load = 21};
        assert_int_equal(tn_local_run(4, load_single, &l), TN_OK);
        l = (leg){.folder = file, .how = ways[i], .load = 20};
        assert_int_equal(tn_local_run(3, load_single, &l), TN_OK);
    }
}

static void refuse_export(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    tn_checkpoint c = parts_run_checkpoint(&r);
    must(tn_dist_save(world, &c, user) == TN_EUNSUPPORTED);
    must(strstr(tn_error_message(), "tn_saver") != NULL);
    tn_error_clear();
    must(tn_dist_load(world, &c, user) == TN_EIO);
    tn_error_clear();
    must(tn_dist_export(world, &r.net, "/nowhere/at/all") == TN_EIO);
    must(strstr(tn_error_message(), "/nowhere/at/all") != NULL);
    tn_error_clear();
    must(tn_barrier(world) == TN_OK);
    parts_run_close(&r);
}

static void one_file_is_for_whole_models(void **state) {
    (void)state;
    const char *path = temp_path("refused");
    assert_int_equal(tn_local_run(2, refuse_export, (void *)(uintptr_t)path), TN_OK);
    assert_int_equal(access(path, F_OK), -1);
}

/* ---- What is wrong with the files ------------------------------------------------------------ */

typedef struct damage {
    const char *file;      /* in the step's folder; NULL: a file that every rank has its own of */
    const char *from, *to; /* texts of one length; NULL: the file is cut or gone */
    const char *part;      /* of the error */
    tn_status status;
} damage;

static char damaged_folder[512];

static void load_damaged(tn_group *world, void *user) {
    const damage *d = user;
    parts_run r;
    parts_run_open(&r, world, LIES_CUT);
    parts_run_values(&r, 5, false);
    tn_saver *saver = tn_saver_new(world, damaged_folder, patient(true));
    tn_checkpoint c = parts_run_checkpoint(&r);
    c.step = 77;
    bool found = true;
    tn_status status = tn_saver_load(saver, &c, &found);
    if (status != d->status || !strstr(tn_error_message(), d->part)) {
        fprintf(stderr, "%s: \"%s\" should say \"%s\"\n", d->file, tn_error_message(), d->part);
        abort();
    }
    tn_error_clear();
    must(!found && c.step == 77);
    visiting v = {&r, 5, true}; /* nothing has changed; buffers are each rank's own */
    tn_optim_each(r.optim, visit_state, &v);
    must(r.generator.seed == 5 && tn_optim_steps(r.optim) == 10);
    must(tn_barrier(world) == TN_OK);
    tn_saver_free(saver);
    parts_run_close(&r);
}

static void spoil_bytes(unsigned char *data, size_t *bytes, const damage *d) {
    size_t length = d->from ? strlen(d->from) : 0;
    if (!d->from) {
        *bytes /= 2;
        return;
    }
    assert_int_equal(length, strlen(d->to));
    unsigned char *at = memmem(data, *bytes, d->from, length);
    assert_non_null(at);
    memcpy(at, d->to, length);
}

static void damaged_files(void **state) {
    (void)state;
    static const damage damages[] = {
        {"index.json", NULL, NULL, "index.json: is damaged: its digest is", TN_EFORMAT},
        {"index.json", "\"length\":", "\"lenght\":", "is damaged: its digest", TN_EFORMAT},
        {"index.json", "{\"digest\"", "{\"digets\"", "is no index of a checkpoint", TN_EFORMAT},
        {"rank-00001.safetensors", NULL, NULL, "rank-00001.safetensors", TN_EFORMAT},
        {"rank-00000.safetensors", "\"shape\":[5]", "\"shape\":[6]", "rank-00000.safetensors",
         TN_EFORMAT},
    };
    snprintf(damaged_folder, sizeof(damaged_folder), "%s", temp_path("damaged"));
    paths p = {damaged_folder, temp_path("unused")};
    assert_int_equal(tn_local_run(3, save_once, &p), TN_OK);
    for (size_t i = 0; i < sizeof(damages) / sizeof(*damages); i++) {
        char name[128];
        snprintf(name, sizeof(name), "damaged/step-000008/%s", damages[i].file);
        const char *path = temp_path(name);
        size_t bytes, whole;
        unsigned char *data = temp_read(path, &whole), *spoilt = temp_read(path, &bytes);
        spoil_bytes(spoilt, &bytes, &damages[i]);
        temp_write(path, spoilt, bytes);
        assert_int_equal(tn_local_run(4, load_damaged, (void *)(uintptr_t)&damages[i]), TN_OK);
        temp_write(path, data, whole);
        free(data);
        free(spoilt);
    }
    /* a byte of the data */
    damage last = {"rank-00001.safetensors", "", "", "is damaged: its digest is", TN_EFORMAT};
    const char *path = temp_path("damaged/step-000008/rank-00001.safetensors");
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    data[bytes - 1] ^= 1;
    temp_write(path, data, bytes);
    assert_int_equal(tn_local_run(4, load_damaged, &last), TN_OK);
    data[bytes - 1] ^= 1;
    temp_write(path, data, bytes);
    free(data);
    /* a file that is not there; a step without an index */
    assert_int_equal(unlink(path), 0);
    last = (damage){"a file", NULL, NULL, "rank-00001.safetensors: No such file", TN_EIO};
    assert_int_equal(tn_local_run(4, load_damaged, &last), TN_OK);
    assert_int_equal(unlink(temp_path("damaged/step-000008/index.json")), 0);
    last = (damage){"the index", NULL, NULL, "index.json: No such file", TN_EIO};
    assert_int_equal(tn_local_run(4, load_damaged, &last), TN_OK);
}

/* ---- Another model --------------------------------------------------------------------------- */

typedef struct other_net {
    tn_module base;
    tn_linear in;
} other_net;

static void load_other(tn_group *world, void *user) {
    other_net n;
    tn_module_init(&n, "other_net", parts_forward);
    tn_linear_init(&n.in, 6, tn_group_rank(world) == 1 ? 13 : 12, tn_linear_defaults());
    tn_module_add(&n, "in", &n.in);
    tn_saver *saver = tn_saver_new(world, user, patient(true));
    tn_checkpoint c = {.model = &n, .partial = true};
    bool found;
    tn_status status = tn_saver_load(saver, &c, &found);
    must(status == TN_ESHAPE && !found); /* rank 1's error, on all */
    must(strstr(tn_error_message(), "model.in."));
    must(tn_group_rank(world) == 1 || strstr(tn_error_message(), "rank 1: "));
    tn_error_clear();
    tn_saver_free(saver);
    tn_module_finish(&n);
}

static void load_surplus(tn_group *world, void *user) {
    other_net n;
    tn_module_init(&n, "parts_net", parts_forward);
    tn_linear_init(&n.in, 6, 12, tn_linear_defaults());
    tn_module_add(&n, "in", &n.in);
    tn_saver *saver = tn_saver_new(world, user, patient(true));
    tn_checkpoint c = {.model = &n};
    bool found;
    must(tn_saver_load(saver, &c, &found) == TN_EMISMATCH && !found);
    tn_error_clear();
    tn_generator generator;
    c.optim = tn_adamw(&n, tn_adamw_defaults());
    c.generator = &generator;
    c.other_run = true; /* all else is the same */
    must(tn_saver_load(saver, &c, &found) == TN_EMISMATCH && !found);
    must(strstr(tn_error_message(), "which the program does not have"));
    tn_error_clear();
    c.partial = true;
    must(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 8);
    tn_optim_free(c.optim);
    must(((float *)tn_data_mut(n.in.weight))[3] == value_of("in.weight", 3, 8));
    tn_saver_free(saver);
    tn_module_finish(&n);
}

static void another_model(void **state) {
    (void)state;
    paths p = {temp_path("other"), temp_path("unused")};
    assert_int_equal(tn_local_run(3, save_once, &p), TN_OK);
    assert_int_equal(tn_local_run(2, load_other, (void *)(uintptr_t)p.folder), TN_OK);
    assert_int_equal(tn_local_run(2, load_surplus, (void *)(uintptr_t)p.folder), TN_OK);
}

/* A model that was built without elements gets those of the checkpoint. */
static void load_without_elements(tn_group *world, void *user) {
    tn_saver *saver = tn_saver_new(world, user, patient(false));
    tn_linear saved, loaded;
    tn_linear_init(&saved, 5, 3, tn_linear_defaults());
    {
        TN_DEFER_INIT;
        tn_linear_init(&loaded, 5, 3, tn_linear_defaults());
    }
    bool found;
    must(tn_saver_save(saver, &(tn_checkpoint){.model = &loaded}) == TN_ESTATE);
    tn_error_clear();
    must(tn_saver_save(saver, &(tn_checkpoint){.model = &saved, .step = 1}) == TN_OK);
    must(tn_saver_load(saver, &(tn_checkpoint){.model = &loaded}, &found) == TN_OK && found);
    must(tn_equal(saved.weight, loaded.weight) && tn_equal(saved.bias, loaded.bias));
    tn_module_finish(&saved);
    tn_module_finish(&loaded);
    tn_saver_free(saver);
}

static void into_a_model_without_elements(void **state) {
    (void)state;
    const char *folder = temp_path("deferred");
    assert_int_equal(tn_local_run(2, load_without_elements, (void *)(uintptr_t)folder), TN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(any_way_onto_any_ranks),
        TEST(large_pieces),
        TEST(whole_parameters_are_dealt_out),
        TEST(some_steps_stay),
        TEST(a_step_is_replaced),
        TEST(higher_steps_are_another_runs),
        TEST(one_job_at_a_time),
        TEST(children_keep_no_lock),
        TEST(folders_in_steps_stay),
        TEST(own_error_before_that_of_the_save),
        TEST(wrong_on_one_rank),
        TEST(a_rank_that_does_not_come),
        TEST(half_a_list),
        TEST(an_error_from_before),
        TEST(what_is_saved_changes),
        TEST(converted_and_exported),
        TEST(checkpoints_of_one_file),
        TEST(one_file_is_for_whole_models),
        TEST(damaged_files),
        TEST(another_model),
        TEST(into_a_model_without_elements),
    };
    return cmocka_run_group_tests(tests, temp_flights, temp_clean);
}
