/* The measurements of every step as a CSV file: `step,loss`, further columns that the program
 * names, and a row per step. A row is written at once, so that a killed process loses none; rows
 * beyond the checkpoint are cut off when the run continues. A file that was deleted or changed
 * meanwhile, or gets another column, is rewritten from memory. */
#include "core/alive.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "text/plain_numbers.h"
#include "train/history_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tn_history {
    tn__alive alive;
    int fd;
    char *path;
    char *place;             /* the path from the root: the program may change its directory */
    int64_t bytes;           /* of the file */
    bool failed;             /* half a row may have been written: writes no more */
    tn__history_table table; /* the first column is the loss */
    bool wider;              /* than the file's header */
    bool given;              /* the next step has a value */
    double *smooth;          /* [smooth_capacity], filled on request */
    int64_t smooth_capacity;
};

static tn_status history_fail(tn_history *h, const char *doing) {
    h->failed = true;
    return tn__raise(errno == ENOMEM ? TN_ENOMEM : TN_EIO, "history", "%s: %s: %s", h->path, doing,
                     strerror(errno));
}

static bool write_all(tn_history *h, const char *text, size_t bytes) {
    while (bytes) {
        ssize_t put = write(h->fd, text, bytes);
        if (put < 0 && errno != EINTR) {
            history_fail(h, "writing");
            return false;
        }
        text += put > 0 ? put : 0;
        h->bytes += put > 0 ? put : 0;
        bytes -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Keeps the rows of the first `start` steps. */
static bool keep_rows(tn_history *h, int64_t start) {
    size_t bytes;
    char *text = tn_text_read(h->path, &bytes);
    if (!text) { return false; }
    const char *at = text;
    bool sound = tn__history_read_head(&h->table, &at);
    while (sound && h->table.rows < start) {
        sound = tn__history_read_row(&h->table, &at);
    }
    if (!sound) {
        tn__raise(TN_EFORMAT, "history",
                  "%s: the row of step %lld is missing, and the run continues at step %lld",
                  h->path, (long long)h->table.rows, (long long)start);
    }
    off_t keep = (off_t)(at - text);
    tn_text_free(text);
    h->bytes = keep;
    if (sound && (ftruncate(h->fd, keep) != 0 || lseek(h->fd, keep, SEEK_SET) < 0)) {
        history_fail(h, "cutting off");
        return false;
    }
    return sound;
}

static bool write_head(tn_history *h) {
    char head[TN__LINE_SIZE];
    return write_all(h, head, (size_t)tn__history_head(&h->table, head));
}

/* A terminal or a pipe is not a file. */
static bool is_file(const tn_history *h, struct stat *about) {
    return fstat(h->fd, about) == 0 && S_ISREG(about->st_mode);
}

static int open_file(const char *path, int how) {
    return tn__above_streams(open(path, how | O_RDWR | O_CLOEXEC, 0666));
}

/* Follows no link to a file, which may be another user's; a link to a pipe or terminal is fine:
 * /dev/stdout. */
static int open_path(const char *path, int64_t start) {
    struct stat about;
    int fd = open_file(path, O_NOFOLLOW | (start ? 0 : O_CREAT | O_TRUNC));
    if (fd >= 0 || errno != ELOOP) { return fd; }
    fd = open_file(path, 0);
    if (fd >= 0 && fstat(fd, &about) == 0 && !S_ISREG(about.st_mode)) { return fd; }
    if (fd >= 0) { close(fd); }
    tn__raise(TN_EIO, "history", "%s is a symbolic link to a file: remove it, or name the file",
              path);
    return -1;
}

TN__ALIVE_LIST(histories, "history");

tn_history *tn_history_open(const char *path, int64_t start) {
    if (!path || start < 0 || tn__pending()) {
        return tn__fail_null(TN_EVALUE, "history", "path %s, start %lld", path ? path : "NULL",
                             (long long)start);
    }
    tn_history *h = tn__calloc(1, sizeof(*h));
    if (!h || !(h->path = tn__strdup(path)) || !tn__history_add(&h->table, "loss", 4)) {
        tn__raise(TN_ENOMEM, "history", "%s: no memory", path);
        free(h ? h->path : NULL);
        free(h);
        return NULL;
    }
    tn__alive_begin(&histories, h);
    h->fd = open_path(path, start);
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool open_now = h->fd >= 0 && (start ? keep_rows(h, start) : write_head(h));
    tn__plain_numbers_end(numbers);
    struct stat about;
    h->place = open_now ? realpath(h->path, NULL) : NULL;
    if (!open_now || (!h->place && is_file(h, &about))) {
        if (h->fd < 0 || open_now) { history_fail(h, "opening"); }
        tn_history_free(h);
        return NULL;
    }
    return h;
}

void tn_history_free(tn_history *h) {
    if (h && tn__alive_end(&histories, h, "history_free")) {
        if (h->fd >= 0) { close(h->fd); }
        tn__history_free(&h->table);
        free(h->path);
        free(h->place);
        free(h->smooth);
        free(h);
    }
}

/* ---- Use ------------------------------------------------------------------------------------- */

/* Whether the path still refers to exactly what was written. */
static bool file_is_there(const tn_history *h) {
    struct stat named, open_now;
    if (!is_file(h, &open_now)) { return true; }
    return stat(h->place, &named) == 0 && named.st_dev == open_now.st_dev &&
           named.st_ino == open_now.st_ino && named.st_size == (off_t)h->bytes;
}

static bool write_anew(tn_history *h) {
    tn__file f;
    if (!tn__file_begin(&f, h->place, "history")) { return false; }
    char text[TN__LINE_SIZE];
    int64_t at[TN__COLUMNS] = {0};
    int length = tn__history_head(&h->table, text);
    int64_t bytes = length;
    tn__file_put(&f, text, (size_t)length);
    for (int64_t step = 0; step < h->table.rows; step++) {
        length = tn__history_row(&h->table, step, at, text);
        tn__file_put(&f, text, (size_t)length);
        bytes += length;
    }
    if (tn__file_commit(&f) != TN_OK) { return false; }
    int fd = open_file(h->place, O_NOFOLLOW);
    if (fd < 0 || lseek(fd, 0, SEEK_END) != (off_t)bytes) {
        history_fail(h, "opening it again");
        if (fd >= 0) { close(fd); }
        return false;
    }
    close(h->fd);
    h->fd = fd;
    h->bytes = bytes;
    h->wider = false;
    return true;
}

/* Restores the file if it was removed. */
static bool keep_file(tn_history *h) {
    if (file_is_there(h)) { return true; }
    h->failed = !write_anew(h);
    if (!h->failed) {
        tn_log_write(TN_LOG_WARN, "history: %s was deleted or changed; it has been rewritten",
                     h->path);
    }
    return !h->failed;
}

static bool history_usable(const tn_history *h) {
    if (!h || h->failed || tn__pending()) {
        return tn__fail(TN_ESTATE, "history", "%s",
                        h ? "an earlier write has failed" : "the history is NULL");
    }
    return true;
}

tn_status tn_history_put(tn_history *h, const char *name, double value) {
    if (!history_usable(h)) { return tn_error(); }
    if (!name) { return tn__raise(TN_EVALUE, "history", "%s: the name is NULL", h->path); }
    tn__column *c = tn__history_find(&h->table, name, strlen(name));
    if (!c) {
        c = tn__history_add(&h->table, name, strlen(name));
        h->wider |= c != NULL;
    }
    if (c) {
        c->next = value;
        c->given = h->given = true;
    }
    return tn_error();
}

/* Appends the row; a file that has become wider is rewritten. A pipe gets another header. */
static bool write_row(tn_history *h) {
    struct stat about;
    if (h->wider && is_file(h, &about)) {
        h->failed = !write_anew(h);
        return !h->failed;
    }
    char row[TN__LINE_SIZE];
    int64_t at[TN__COLUMNS];
    for (int i = 0; i < h->table.count; i++) {
        const tn__column *c = &h->table.columns[i];
        bool has = c->count > 0 && c->x[c->count - 1] == (double)(h->table.rows - 1);
        at[i] = c->count - has;
    }
    bool headed = !h->wider || write_head(h);
    h->wider = false;
    return headed &&
           write_all(h, row, (size_t)tn__history_row(&h->table, h->table.rows - 1, at, row));
}

tn_status tn_history_step(tn_history *h) {
    if (!history_usable(h)) { return tn_error(); }
    if (!h->given) {
        return tn__raise(TN_ESTATE, "history", "%s: no value was put for step %lld", h->path,
                         (long long)h->table.rows);
    }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool done = keep_file(h) && tn__history_step(&h->table) && write_row(h);
    h->given = !done;
    tn__plain_numbers_end(numbers);
    return done ? TN_OK : tn_error();
}

tn_status tn_history_add(tn_history *h, double loss) {
    return tn_history_put(h, "loss", loss) == TN_OK ? tn_history_step(h) : tn_error();
}

tn_status tn_history_sync(tn_history *h) {
    if (!history_usable(h)) { return tn_error(); }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool there = keep_file(h);
    tn__plain_numbers_end(numbers);
    if (!there) { return tn_error(); }
    return fsync(h->fd) == 0 || errno == EINVAL || errno == EROFS ? TN_OK
                                                                  : history_fail(h, "syncing");
}

tn_curve tn_history_column(const tn_history *h, const char *column_name, const char *name) {
    const tn__column *c =
        h && column_name ? tn__history_find(&h->table, column_name, strlen(column_name)) : NULL;
    return c ? (tn_curve){.name = name, .x = c->x, .y = c->y, .count = c->count}
             : (tn_curve){.name = name};
}

tn_curve tn_history_curve(const tn_history *h, const char *name) {
    return tn_history_column(h, "loss", name);
}

/* The least-squares line through steps first … last, at `at`; in the middle it is their mean. */
static double line_at(const double *y, int64_t first, int64_t last, double at) {
    double steps = (double)(last - first + 1), middle = (double)(first + last) / 2;
    double sum = 0, tilt = 0;
    for (int64_t k = first; k <= last; k++) {
        sum += y[k];
        tilt += ((double)k - middle) * y[k];
    }
    double spread = steps * (steps * steps - 1) / 12; /* the sum of (k - middle)^2 */
    return sum / steps + (steps > 1 ? tilt / spread * (at - middle) : 0);
}

/* At the end no window shrinks: what is drawn there would be mostly noise, such as a rise. */
tn_curve tn_history_smooth(tn_history *h, const char *name, int64_t window) {
    tn_curve c = tn_history_curve(h, name);
    if (!h || window < 1 ||
        !tn__grow(&h->smooth, c.count, &h->smooth_capacity, sizeof(*h->smooth), "history")) {
        return (tn_curve){.name = name};
    }
    window = window < c.count ? window : c.count;
    int64_t before = window / 2;
    c.count -= c.count > 0 ? window - 1 - before : 0; /* the others' windows would end later */
    for (int64_t i = 0; i < c.count; i++) {
        int64_t first = i - before, last = first + window - 1;
        double at = (double)(first + last) / 2; /* i, or half a step before it */
        h->smooth[i] = line_at(c.y, first > 0 ? first : 0, last, at);
    }
    c.y = h->smooth;
    return c;
}
