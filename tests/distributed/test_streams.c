/* Programs that have closed stdin, stdout or stderr, as `2>&-` does: none of the library's files
 * and connections receives descriptor 0, 1 or 2, so what the program still prints cannot land in a
 * checkpoint or reach another rank. */
#define _GNU_SOURCE
#include "tests/support/gloo.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tern/tern.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"

static int closed;      /* a bit for each stream */
static int good_stderr; /* where rank_assert prints */
static _Atomic(int) landed;

/* The program's own printf, at any moment. /dev/null may take it. */
static void write_stray(void) {
    static const char text[] = "stray\n";
    struct stat about;
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (closed & 1 << fd && fstat(fd, &about) == 0 &&
            !(S_ISCHR(about.st_mode) && about.st_rdev == makedev(1, 3))) {
            landed++;
            (void)!syscall(SYS_write, fd, text, sizeof(text) - 1);
        }
    }
}

/* libtern, too, calls this one instead of the C library's. */
ssize_t write(int fd, const void *data, size_t bytes) {
    write_stray();
    return syscall(SYS_write, fd, data, bytes);
}

static void must_at(bool truth, const char *what, int line) {
    if (!truth) {
        dup2(good_stderr, STDERR_FILENO);
        fprintf(stderr, "with %d closed: ", closed);
        ranks_failed(what, __FILE__, line);
    }
}

static bool still_closed(void) {
    bool all = true;
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        all = all && (!(closed & 1 << fd) || fcntl(fd, F_GETFD) < 0);
    }
    return all;
}

/* `truth` holds, no error is pending, and the closed streams are still closed. */
#define must(truth)                                                 \
    do {                                                            \
        must_at((truth), #truth, __LINE__);                         \
        must_at(tn_error() == TN_OK, tn_error_message(), __LINE__); \
        must_at(still_closed() && landed == 0, "closed", __LINE__); \
    } while (0)

/* ---- What programs do ------------------------------------------------------------------------ */

static const char *path_in(const char *folder, int rank, const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%d-%s", folder, rank, name);
    return path;
}

static void save_and_load(tn_group *world, tn_linear *line, const char *folder) {
    int rank = tn_group_rank(world);
    tn_checkpoint c = {.model = line, .step = 1};
    const char *path = path_in(folder, rank, "checkpoint");
    must(tn_checkpoint_save(&c, path) == TN_OK);
    must(tn_checkpoint_save(&c, path) == TN_OK && tn_checkpoint_load(&c, path) == TN_OK);
    char parts[512];
    snprintf(parts, sizeof(parts), "%s/parts", folder);
    bool found;
    tn_saver *saver = tn_saver_new(world, parts, tn_saver_defaults());
    must(saver && tn_saver_save(saver, &c) == TN_OK && tn_saver_wait(saver) == TN_OK);
    must(tn_saver_load(saver, &c, &found) == TN_OK && found);
    tn_saver_free(saver);
    must(true);
}

static void write_notes(tn_group *world, const char *folder) {
    int rank = tn_group_rank(world);
    tn_history *history = tn_history_open(path_in(folder, rank, "loss.csv"), 0);
    must(history && tn_history_add(history, 2.5) == TN_OK && tn_history_sync(history) == TN_OK);
    tn_summary_writer *board = tn_summary_writer_new(path_in(folder, rank, "board"), -1);
    must(board && tn_summary_add_scalar(board, "loss", 2.5, 0) == TN_OK);
    must(tn_summary_flush(board) == TN_OK);
    tn_log_write(TN_LOG_WARN, "a warning that goes to stderr");
    tn_summary_writer_free(board);
    tn_history_free(history);
    must(true);
}

static void fail_once(void) {
    tn_linear line;
    tn_linear_init(&line, 2, 2, tn_linear_defaults());
    must_at(tn_save(&line, "/nowhere/at/all") == TN_EIO, "an error", __LINE__);
    fprintf(stderr, "%s\n", tn_error_message());
    tn_error_clear();
    tn_module_finish(&line);
    must(true);
}

static void use_stores(void) {
    tn_store *store = tn_memory_store();
    must(store && tn_store_set(store, "key", "value", 5) == TN_OK);
    tn_store_free(store);
    must(true);
}

/* "ENGINE CLOSED FOLDER" */
PLAIN_RANK(work_without_streams) {
    char engine[8], folder[400];
    must_at(sscanf(argument, "%7s %d %399s", engine, &closed, folder) == 3, argument, __LINE__);
    good_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 50);
    int wanted = closed;
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (wanted & 1 << fd) { close(fd); }
    }
    tn_group *world = tn_dist_init(TN_WITH(tn_dist, .engine = engine));
    must(world != NULL);
    TN_SCOPE;
    tn_linear line;
    tn_linear_init(&line, 3, 2, tn_linear_defaults());
    must(tn_barrier(world) == TN_OK);
    save_and_load(world, &line, folder);
    write_notes(world, folder);
    fail_once();
    use_stores();
    must(tn_barrier(world) == TN_OK);
    tn_module_finish(&line);
    tn_dist_finish();
    must(true);
    return 0;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void closed_streams(const char *engine) {
    for (int which = 0; which < 8; which++) {
        char name[32], argument[600], part[64];
        snprintf(name, sizeof(name), "%s%d", engine, which);
        const char *folder = temp_path(name);
        assert_int_equal(mkdir(folder, 0700), 0);
        snprintf(argument, sizeof(argument), "%s %d %s", engine, which, folder);
        ranks_pass(2, "work_without_streams", argument);
        snprintf(part, sizeof(part), "%s/parts/lock", name);
        struct stat about;
        assert_int_equal(stat(temp_path(part), &about), 0);
        assert_int_equal(about.st_size, 0);
    }
}

TEST(test_shm) {
    closed_streams("shm");
}

TEST(test_gloo) {
    if (!gloo_is_here()) { skip(); }
    closed_streams("gloo");
}
