/* The loss of every step as a CSV file: `step,loss` and a row a step. A row is written at once, so
 * that a killed process loses none; what a checkpoint does not have is cut off when
 * the run goes on. A file that somebody has deleted or changed meanwhile is written anew from what
 * is in memory. */
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "io/numbers.h"
#include "tern/train.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char head[] = "step,loss\n";

struct tn_history {
    int fd;
    char *path;
    char *place;            /* the path from the root: the program may change its folder */
    int64_t bytes;          /* of the file */
    bool failed;            /* half a row may have been written: nothing more is */
    double *x, *y, *smooth; /* [room]; smooth is filled when it is asked for */
    int64_t count, room;
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

static bool history_grow(tn_history *h) {
    if (h->count < h->room) {
        return true;
    }
    int64_t room = h->room ? h->room * 2 : 4096;
    double **all[] = {&h->x, &h->y, &h->smooth};
    for (int i = 0; i < 3; i++) {
        double *larger = tn__realloc(*all[i], (size_t)room * sizeof(double));
        if (!larger) {
            tn__raise(TN_ENOMEM, "history", "no memory for %lld steps", (long long)room);
            return false;
        }
        *all[i] = larger;
    }
    h->room = room;
    return true;
}

static bool remember_loss(tn_history *h, double loss) {
    if (!history_grow(h)) {
        return false;
    }
    h->x[h->count] = (double)h->count;
    h->y[h->count++] = loss;
    return true;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Reads the row of the next step at *at, and steps over it. */
static bool read_row(tn_history *h, const char **at) {
    char *end;
    errno = 0;
    long long step = strtoll(*at, &end, 10);
    bool sound = **at >= '0' && **at <= '9' && *end == ',' && errno == 0 && step == h->count;
    const char *number = sound ? end + 1 : end;
    double loss = sound ? strtod(number, &end) : 0;
    if (!sound || end == number || *number == '\n' || *end != '\n') {
        return false;
    }
    *at = end + 1;
    return remember_loss(h, loss);
}

/* Keeps the rows of the first `start` steps. */
static bool keep_rows(tn_history *h, int64_t start) {
    size_t bytes;
    char *text = tn_text_read(h->path, &bytes);
    if (!text) {
        return false;
    }
    const char *at = text;
    bool sound = strncmp(at, head, sizeof(head) - 1) == 0;
    at += sound ? sizeof(head) - 1 : 0;
    while (sound && h->count < start) {
        sound = read_row(h, &at);
    }
    if (!sound) {
        tn__raise(TN_EFORMAT, "history",
                  "%s: the row of step %lld is missing, and the run goes on at step %lld", h->path,
                  (long long)h->count, (long long)start);
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

/* A terminal or a pipe is no file. */
static bool is_file(const tn_history *h, struct stat *about) {
    return fstat(h->fd, about) == 0 && S_ISREG(about->st_mode);
}

/* Where the file is, whatever folder the process goes to. */
static bool find_place(tn_history *h) {
    struct stat about;
    h->place = realpath(h->path, NULL);
    return h->place || !is_file(h, &about);
}

tn_history *tn_history_open(const char *path, int64_t start) {
    if (!path || start < 0 || tn__pending()) {
        tn__raise(TN_EVALUE, "history", "path %s, start %lld", path ? path : "NULL",
                  (long long)start);
        return NULL;
    }
    tn_history *h = tn__calloc(1, sizeof(*h));
    if (!h || !(h->path = tn__strdup(path))) {
        tn__raise(TN_ENOMEM, "history", "%s: no memory", path);
        free(h);
        return NULL;
    }
    h->fd = open(path, O_RDWR | O_CLOEXEC | (start ? 0 : O_CREAT | O_TRUNC), 0666);
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool open_now =
        h->fd >= 0 && (start ? keep_rows(h, start) : write_all(h, head, sizeof(head) - 1));
    tn__plain_numbers_end(numbers);
    if (!open_now || !find_place(h)) {
        if (h->fd < 0 || open_now) {
            history_fail(h, "opening");
        }
        tn_history_free(h);
        return NULL;
    }
    return h;
}

void tn_history_free(tn_history *h) {
    if (h) {
        if (h->fd >= 0) {
            close(h->fd);
        }
        free(h->path);
        free(h->place);
        free(h->x);
        free(h->y);
        free(h->smooth);
        free(h);
    }
}

/* ---- Use ------------------------------------------------------------------------------------- */

static int row_text(char *row, size_t room, int64_t step, double loss) {
    return snprintf(row, room, "%lld,%.9g\n", (long long)step, loss);
}

/* Whether the name still leads to what was written, no more and no less. */
static bool file_is_there(const tn_history *h) {
    struct stat named, open_now;
    if (!is_file(h, &open_now)) {
        return true;
    }
    return stat(h->place, &named) == 0 && named.st_dev == open_now.st_dev &&
           named.st_ino == open_now.st_ino && named.st_size == (off_t)h->bytes;
}

static bool write_anew(tn_history *h) {
    tn__file f;
    if (!tn__file_begin(&f, h->place, "history")) {
        return false;
    }
    char row[64];
    int64_t bytes = sizeof(head) - 1;
    tn__file_put(&f, head, sizeof(head) - 1);
    for (int64_t k = 0; k < h->count; k++) {
        int length = row_text(row, sizeof(row), k, h->y[k]);
        tn__file_put(&f, row, (size_t)length);
        bytes += length;
    }
    if (tn__file_commit(&f) != TN_OK) {
        return false;
    }
    int fd = open(h->place, O_RDWR | O_CLOEXEC);
    if (fd < 0 || lseek(fd, 0, SEEK_END) != (off_t)bytes) {
        history_fail(h, "opening it again");
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    close(h->fd);
    h->fd = fd;
    h->bytes = bytes;
    return true;
}

/* Puts the file back when somebody has taken it away. */
static bool keep_file(tn_history *h) {
    if (file_is_there(h)) {
        return true;
    }
    h->failed = !write_anew(h);
    if (!h->failed) {
        tn_log_write(TN_LOG_WARN, "history: %s was deleted or changed; it has been written anew",
                     h->path);
    }
    return !h->failed;
}

static bool history_usable(const tn_history *h) {
    if (!h || h->failed || tn__pending()) {
        tn__raise(TN_ESTATE, "history", "%s",
                  h ? "a write has failed before" : "the history is NULL");
        return false;
    }
    return true;
}

tn_status tn_history_add(tn_history *h, double loss) {
    if (!history_usable(h)) {
        return tn_error();
    }
    char row[64];
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    int bytes = row_text(row, sizeof(row), h->count, loss);
    bool done = keep_file(h) && remember_loss(h, loss) && write_all(h, row, (size_t)bytes);
    tn__plain_numbers_end(numbers);
    return done ? TN_OK : tn_error();
}

tn_status tn_history_sync(tn_history *h) {
    if (!history_usable(h)) {
        return tn_error();
    }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool there = keep_file(h);
    tn__plain_numbers_end(numbers);
    if (!there) {
        return tn_error();
    }
    return fsync(h->fd) == 0 || errno == EINVAL || errno == EROFS ? TN_OK
                                                                  : history_fail(h, "syncing");
}

tn_curve tn_history_curve(const tn_history *h, const char *name) {
    return h ? (tn_curve){.name = name, .x = h->x, .y = h->y, .count = h->count}
             : (tn_curve){.name = name};
}

/* The straight line through the steps first … last, at `at`: their mean when that is the middle. */
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

/* A plain mean would begin and end with a kink: there the window has steps on one side only, and a
 * mean of those lags behind a loss that falls. */
tn_curve tn_history_smooth(tn_history *h, const char *name, int64_t window) {
    if (!h || window < 1) {
        return (tn_curve){.name = name};
    }
    for (int64_t i = 0; i < h->count; i++) {
        int64_t first = i - window / 2, last = first + window - 1;
        double at = (double)(first + last) / 2; /* i, or half a step before it */
        first = first > 0 ? first : 0;
        last = last < h->count - 1 ? last : h->count - 1;
        h->smooth[i] = line_at(h->y, first, last, at);
    }
    return (tn_curve){.name = name, .x = h->x, .y = h->smooth, .count = h->count};
}
