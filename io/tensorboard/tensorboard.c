/* Event files: a record for each event, which is a protocol buffer (io/protobuf.h). TensorFlow
 * frames records like this:
 *
 *     length (8 bytes, little-endian), its check, `length` bytes, their check
 *
 * A check is CRC-32C, rotated and offset, so that a check over bytes that contain a check is not
 * trivial.
 *
 * Field numbers are those of tensorflow/core/util/event.proto and framework/summary.proto; only
 * what TensorBoard needs is written.
 */
#include "tern/tensorboard.h"

#include "core/alive.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "io/png.h"
#include "io/protobuf.h"
#include "tern/ops.h"
#include "tern/sys/device.h"
#include "text/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, SESSION_STATUS = 1, SESSION_START = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_IMAGE = 4, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8 };
enum { VALUE_METADATA = 9, METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };
enum { IMAGE_HEIGHT = 1, IMAGE_WIDTH = 2, IMAGE_COLOURS = 3, IMAGE_BYTES = 4 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { DTYPE_STRING = 7 };

struct tn_summary_writer {
    tn__alive alive;
    int fd;
    char *path;
    off_t bytes; /* of whole records */
};

/* ---- Records --------------------------------------------------------------------------------- */

static uint32_t crc_table[256];

static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
        crc_table[i] = crc;
    }
}

/* Stores a record's check of these bytes: 4 bytes. */
static void put_check(unsigned char *to, const void *data, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    const unsigned char *at = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc = crc >> 8 ^ crc_table[(crc ^ at[i]) & 255];
    }
    crc = ~crc;
    uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8u;
    memcpy(to, &masked, sizeof(masked));
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* Appends the event as a record, and frees it. */
static tn_status write_event(tn_summary_writer *w, tn__buffer *event, const char *operation) {
    unsigned char before[12], after[4];
    tn_status status = TN_OK;
    if (event->failed) {
        status = tn__raise(TN_ENOMEM, operation, "no memory for an event");
    } else {
        uint64_t bytes = event->bytes;
        memcpy(before, &bytes, 8);
        put_check(before + 8, before, 8);
        put_check(after, event->at, event->bytes);
        struct iovec parts[] = {
            {before, sizeof(before)}, {event->at, event->bytes}, {after, sizeof(after)}};
        ssize_t all = (ssize_t)(sizeof(before) + event->bytes + sizeof(after));
        errno = ENOSPC; /* what a short write means */
        if (writev(w->fd, parts, 3) == all) {
            w->bytes += all;
        } else {
            status = tn__raise(TN_EIO, operation, "%s: %s", w->path, strerror(errno));
            if (ftruncate(w->fd, w->bytes) != 0) { /* half a record would hide all after it */
                close(w->fd);
                w->fd = -1;
            }
        }
    }
    tn__buffer_free(event);
    return status;
}

static tn__buffer event_now(int64_t step) {
    struct timespec now;
    tn__buffer event = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    tn__message_double(&event, EVENT_TIME, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    tn__message_whole(&event, EVENT_STEP, (uint64_t)step);
    return event;
}

/* Writes an event with one value, and frees the value. */
static tn_status write_value(tn_summary_writer *w, tn__buffer *value, int64_t step,
                             const char *operation) {
    tn__buffer event = event_now(step), summary = {0};
    tn__message_put(&summary, SUMMARY_VALUE, value);
    tn__message_put(&event, EVENT_SUMMARY, &summary);
    return write_event(w, &event, operation);
}

TN__ALIVE_LIST(writers, "writer");

/* TN_OK if a value may be added; otherwise it has raised. One record that is not UTF-8 would hide
 * all that follow: TensorBoard cannot read it. */
static tn_status check_add(const tn_summary_writer *w, const char *tag, const char *operation) {
    if (!w || tn__pending()) { return tn_error(); }
    if (!tn__alive_is(&writers, w, operation)) { return TN_ESTATE; }
    if (!tag || !*tag) { return tn__raise(TN_EVALUE, operation, "the tag is NULL or empty"); }
    if (!tn__is_utf8(tag)) {
        return tn__raise(TN_EVALUE, operation, "the tag \"%s\" is not UTF-8", tag);
    }
    return w->fd >= 0 ? TN_OK
                      : tn__raise(TN_EIO, operation, "%s: half a record was written", w->path);
}

static tn__buffer value_of(const char *tag) {
    tn__buffer value = {0};
    tn__message_text(&value, VALUE_TAG, tag);
    return value;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* events.out.tfevents.SECONDS.HOST.PROCESS.NUMBER: the names sort by time. */
static bool open_file(tn_summary_writer *w, const char *folder) {
    static int last; /* atomic */
    char host[64] = "", name[160];
    gethostname(host, sizeof(host) - 1);
    snprintf(name, sizeof(name), "events.out.tfevents.%010lld.%.60s.%d.%d", (long long)time(NULL),
             host, (int)getpid(), __atomic_fetch_add(&last, 1, __ATOMIC_RELAXED));
    w->path = tn__folder_path(folder, name, "summary_writer");
    w->fd = -1;
    if (w->path) {
        int how = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
        w->fd = tn__above_streams(open(w->path, how, 0666));
    }
    if (w->path && w->fd < 0) {
        tn__raise(TN_EIO, "summary_writer", "%s: %s", w->path, strerror(errno));
    }
    return w->fd >= 0;
}

static bool write_head(tn_summary_writer *w, int64_t purge_step) {
    tn__buffer event = event_now(0);
    tn__message_text(&event, EVENT_VERSION, "brain.Event:2");
    if (write_event(w, &event, "summary_writer") == TN_OK && purge_step >= 0) {
        tn__buffer session = {0};
        tn__message_whole(&session, SESSION_STATUS, SESSION_START);
        event = event_now(purge_step);
        tn__message_put(&event, EVENT_SESSION, &session);
        write_event(w, &event, "summary_writer");
    }
    return !tn__pending();
}

tn_summary_writer *tn_summary_writer_new(const char *folder, int64_t purge_step) {
    if (tn__pending()) { return NULL; }
    if (!folder || !*folder) {
        tn__raise(TN_EVALUE, "summary_writer", "the folder is NULL or empty");
        return NULL;
    }
    tn_summary_writer *w = tn__calloc_for(1, sizeof(*w), "summary_writer");
    if (!w) { return NULL; }
    tn__alive_begin(&writers, w);
    w->fd = -1;
    if (!tn__folder_make(folder, "summary_writer") || !open_file(w, folder) ||
        !write_head(w, purge_step)) {
        tn_summary_writer_free(w);
        return NULL;
    }
    return w;
}

void tn_summary_writer_free(tn_summary_writer *w) {
    if (w && tn__alive_end(&writers, w, "summary_writer_free")) {
        if (w->fd >= 0) { close(w->fd); }
        free(w->path);
        free(w);
    }
}

tn_status tn_summary_flush(tn_summary_writer *w) {
    if (w && tn__alive_is(&writers, w, "summary_flush") && w->fd >= 0 && fsync(w->fd) != 0 &&
        errno != EINVAL && errno != EROFS) {
        return tn__raise(TN_EIO, "summary_flush", "%s: %s", w->path, strerror(errno));
    }
    return tn_error();
}

/* ---- Scalars and texts ----------------------------------------------------------------------- */

tn_status tn_summary_add_scalar(tn_summary_writer *w, const char *tag, double value, int64_t step) {
    tn_status status = check_add(w, tag, "summary_add_scalar");
    if (!w || status != TN_OK) { return status; }
    tn__buffer scalar = value_of(tag);
    tn__message_float(&scalar, VALUE_SIMPLE, (float)value);
    return write_value(w, &scalar, step, "summary_add_scalar");
}

tn_status tn_summary_add_text(tn_summary_writer *w, const char *tag, const char *text,
                              int64_t step) {
    tn_status status = check_add(w, tag, "summary_add_text");
    if (!w || status != TN_OK) { return status; }
    if (!text || !tn__is_utf8(text)) {
        return tn__raise(TN_EVALUE, "summary_add_text", "the text of %s is %s", tag,
                         text ? "not UTF-8" : "NULL");
    }
    tn__buffer value = value_of(tag), plugin = {0}, metadata = {0};
    tn__buffer dim = {0}, shape = {0}, tensor = {0};
    tn__message_text(&plugin, PLUGIN_NAME, "text");
    tn__message_put(&metadata, METADATA_PLUGIN, &plugin);
    tn__message_put(&value, VALUE_METADATA, &metadata);
    tn__message_whole(&dim, DIM_SIZE, 1);
    tn__message_put(&shape, SHAPE_DIM, &dim);
    tn__message_whole(&tensor, TENSOR_DTYPE, DTYPE_STRING);
    tn__message_put(&tensor, TENSOR_SHAPE, &shape);
    tn__message_text(&tensor, TENSOR_STRING, text);
    tn__message_put(&value, VALUE_TENSOR, &tensor);
    return write_value(w, &value, step, "summary_add_text");
}

/* ---- Histograms ------------------------------------------------------------------------------ */

/* Limits of the buckets: …, -1.1e-12, -1e-12, 0, 1e-12, 1.1e-12, …, 1e20. */
enum { SIDE = 774, LIMITS = 2 * SIDE + 1 };

typedef struct histogram {
    double limits[LIMITS];
    double counts[LIMITS - 1]; /* [i]: from limits[i] on, to limits[i + 1] */
    double min, max, number, sum, squares;
} histogram;

static void make_limits(histogram *h) {
    double limit = 1e-12;
    h->limits[SIDE] = 0;
    for (int i = 1; i <= SIDE; i++, limit *= 1.1) {
        h->limits[SIDE + i] = limit;
        h->limits[SIDE - i] = -limit;
    }
}

/* The last limit that is not above x, or at the far end the one before. */
static int find_bucket(const histogram *h, double x) {
    int low = 0, high = LIMITS - 1;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (h->limits[middle] <= x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void count_values(histogram *h, const double *x, int64_t n) {
    h->min = INFINITY;
    h->max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i])) {
            h->counts[find_bucket(h, x[i])]++;
            h->min = fmin(h->min, x[i]);
            h->max = fmax(h->max, x[i]);
            h->number++;
            h->sum += x[i];
            h->squares += x[i] * x[i];
        }
    }
}

/* From the bucket before the first that is not empty to the last one. */
static tn__buffer histogram_message(const histogram *h) {
    tn__buffer m = {0};
    int first = 0, last = LIMITS - 2;
    while (h->counts[first] == 0) {
        first++;
    }
    while (h->counts[last] == 0) {
        last--;
    }
    first -= first > 0;
    tn__message_double(&m, 1, h->min);
    tn__message_double(&m, 2, h->max);
    tn__message_double(&m, 3, h->number);
    tn__message_double(&m, 4, h->sum);
    tn__message_double(&m, 5, h->squares);
    tn__message_doubles(&m, 6, h->limits + first + 1, last - first + 1);
    tn__message_doubles(&m, 7, h->counts + first, last - first + 1);
    return m;
}

/* The elements on the host, row by row, in a dtype; inert after raising. */
static tn_tensor *host_values(const tn_tensor *t, tn_dtype dtype) {
    tn_tensor *here = tn_to(tn_detach(t), tn_cpu());
    return tn_contiguous(tn_cast(here, dtype));
}

tn_status tn_summary_add_histogram(tn_summary_writer *w, const char *tag, const tn_tensor *values,
                                   int64_t step) {
    static const char operation[] = "summary_add_histogram";
    tn_status status = check_add(w, tag, operation);
    if (!w || status != TN_OK) { return status; }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = host_values(values, TN_F64);
    histogram *h = tn_is_inert(x) ? NULL : tn__calloc(1, sizeof(*h));
    if (!h) {
        return tn__pending() ? tn_error()
                             : tn__raise(TN_ENOMEM, operation, "no memory for a histogram");
    }
    make_limits(h);
    count_values(h, tn_data(x), tn_count(x));
    if (h->number > 0) {
        tn__buffer value = value_of(tag), counts = histogram_message(h);
        tn__message_put(&value, VALUE_HISTOGRAM, &counts);
        status = write_value(w, &value, step, operation);
    }
    free(h);
    return status;
}

/* ---- Pictures -------------------------------------------------------------------------------- */

static unsigned char pixel_of(double x) {
    return x > 0 ? (unsigned char)lround(fmin(x, 1) * 255) : 0; /* NaN too */
}

/* (C, H, W) as a picture's rows (io/png.h); NULL: no memory. */
static unsigned char *rows_of(const tn_tensor *x, const int64_t *shape) {
    int64_t channels = shape[0], height = shape[1], width = shape[2], plane = height * width;
    unsigned char *rows = tn__calloc((size_t)height, (size_t)(width * channels + 1));
    const unsigned char *bytes = tn_dtype_of(x) == TN_U8 ? tn_data(x) : NULL;
    const double *reals = bytes ? NULL : tn_data(x);
    for (int64_t i = 0; rows && i < plane; i++) {
        unsigned char *pixel = rows + i * channels + i / width + 1;
        for (int64_t c = 0; c < channels; c++) {
            pixel[c] = bytes ? bytes[c * plane + i] : pixel_of(reals[c * plane + i]);
        }
    }
    return rows;
}

/* Whether it is a picture; stores its channels, height and width. */
static bool image_shape(const tn_tensor *t, int64_t *shape) {
    int n = tn_ndim(t);
    bool fits =
        (n == 2 || n == 3) && (tn_dtype_of(t) == TN_U8 || tn_dtype_is_float(tn_dtype_of(t)));
    for (int i = 0; i < 3; i++) {
        shape[i] = fits && n - 3 + i >= 0 ? tn_size(t, n - 3 + i) : 1;
        fits = fits && shape[i] >= 1;
    }
    return fits && (shape[0] == 1 || shape[0] == 3);
}

tn_status tn_summary_add_image(tn_summary_writer *w, const char *tag, const tn_tensor *pixels,
                               int64_t step) {
    static const char operation[] = "summary_add_image";
    tn_status status = check_add(w, tag, operation);
    int64_t shape[3];
    if (!w || status != TN_OK) { return status; }
    if (!pixels || tn_is_inert(pixels) || !image_shape(pixels, shape)) {
        return tn__raise(TN_EVALUE, operation,
                         "%s is %s (a picture is (C, H, W) or (H, W) in u8 or a float dtype, with "
                         "1 or 3 channels)",
                         tag, tn_shape_text(pixels));
    }
    TN_SCOPE;
    TN_NO_GRAD;
    bool bytes = tn_dtype_of(pixels) == TN_U8;
    tn_tensor *x = host_values(pixels, bytes ? TN_U8 : TN_F64);
    if (tn_is_inert(x)) { return tn_error(); }
    size_t png_bytes = 0;
    unsigned char *rows = rows_of(x, shape);
    if (!rows) { return tn__raise(TN_ENOMEM, operation, "no memory for a picture"); }
    unsigned char *png =
        tn__png_encode(rows, shape[2], shape[1], (int)shape[0], &png_bytes, operation);
    free(rows);
    if (!png) { return tn_error(); }
    tn__buffer value = value_of(tag), image = {0};
    tn__message_whole(&image, IMAGE_HEIGHT, (uint64_t)shape[1]);
    tn__message_whole(&image, IMAGE_WIDTH, (uint64_t)shape[2]);
    tn__message_whole(&image, IMAGE_COLOURS, (uint64_t)shape[0]);
    tn__message_bytes(&image, IMAGE_BYTES, png, png_bytes);
    tn__message_put(&value, VALUE_IMAGE, &image);
    free(png);
    return write_value(w, &value, step, operation);
}
