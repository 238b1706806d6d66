/* Between the ranks and the user: a thread that reads every rank's stdout and stderr, writes the
 * bytes as they are to log files, and whole lines, each with "[rank] " in front, to our own stdout
 * and stderr. On a terminal the lines are plain text, since the screen is shared, and below them is
 * rank 0's progress: the line that it begins with a \r again and again.
 *
 * The thread may block on a slow terminal; then the pipes fill, the ranks wait, and nothing is
 * lost. The main thread never blocks here: it adds sources, and its own lines, under a lock that is
 * not held during writes. A source's fields belong to the thread, except for its tail and list
 * links, which the lock guards.
 */
#include "tools/run.h"

#include "core/plain_text.h"
#include "train/show/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LAUNCHER = -1,   /* in the place of a rank: the launcher's own lines */
    CHUNK = 1 << 16, /* bytes that one read takes */
    /* longer lines are shown in pieces, so that none holds up other ranks' */
    LONGEST_LINE = 1 << 20,
    EVENTS_AT_ONCE = 64,
    TAIL_BYTES = 1 << 14, /* of each rank's stderr, for a report */
};

static const char *const stream_names[] = {"stdout", "stderr"};
static const char cleared[] = "\033[K"; /* what a rank clears its progress with, after a \r */

typedef struct source {
    struct source *next;
    int fd; /* -1: closed */
    int rank, stream;
    int log;         /* -1: none */
    tn__buffer line; /* not complete yet */
    size_t tail_bytes;
    char tail[TAIL_BYTES]; /* the last bytes of stderr */
} source;

/* Our stdout or stderr. */
typedef struct stream {
    bool terminal, closed;
    tn__buffer text; /* not written yet */
} stream;

struct output {
    pthread_t thread;
    pthread_mutex_t lock;
    int ready; /* epoll: of sources, and of wake */
    int wake;  /* eventfd */
    stream streams[2];
    source *progress; /* whose progress is on the screen; NULL: none is */
    source *sources;
    tn__buffer said; /* the launcher's own lines, to be shown */
    int open;        /* sources whose fd is open */
    bool ending;
    bool ended, lost; /* atomic */
};

/* ---- Our own streams ------------------------------------------------------------------------- */

/* False with errno. */
static bool write_all(int fd, const char *text, size_t length) {
    while (length > 0) {
        ssize_t put = write(fd, text, length);
        if (put > 0) {
            text += put;
            length -= (size_t)put;
        } else if (put < 0 && errno == EAGAIN) { /* another program made it non-blocking */
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        } else if (put == 0 || errno != EINTR) {
            errno = put == 0 ? EIO : errno;
            return false;
        }
    }
    return true;
}

static void flush_stream(output *o, int which) {
    stream *s = &o->streams[which];
    int fds[] = {STDOUT_FILENO, STDERR_FILENO};
    memory_needed(!s->text.failed);
    bool written = s->closed || write_all(fds[which], s->text.at, s->text.bytes);
    s->text.bytes = 0;
    if (written) { return; }
    char *text = text_new("tern: %s: %s: ranks' output there is no longer shown\n",
                          stream_names[which], strerror(errno));
    s->closed = true;
    __atomic_store_n(&o->lost, true, __ATOMIC_RELAXED);
    stream *other = &o->streams[!which];
    other->closed = other->closed || !write_all(fds[!which], text, strlen(text));
    free(text);
}

static void flush_streams(output *o) {
    flush_stream(o, 0);
    flush_stream(o, 1);
}

void shown_part(const char **text, size_t *length) {
    while (*length > 0 && (*text)[*length - 1] == '\r') {
        --*length;
    }
    const char *last = *length > 0 ? memrchr(*text, '\r', *length) : NULL;
    if (last) {
        *length -= (size_t)(last + 1 - *text);
        *text = last + 1;
    }
}

/* A rank's line goes to a pipe or file byte for byte. Our own lines quote peers and ranks. */
static void put_text(stream *s, int rank, const char *text, size_t length) {
    if (rank == LAUNCHER) {
        tn__buffer_text(&s->text, "tern: ");
    } else {
        tn__buffer_format(&s->text, "[%d] ", rank);
    }
    if (rank != LAUNCHER && !s->terminal) {
        tn__buffer_add(&s->text, text, length);
    } else if (tn__buffer_hold(&s->text, length)) {
        shown_part(&text, &length);
        s->text.bytes += tn__plain_text(s->text.at + s->text.bytes, text, length);
    }
}

/* ---- The progress line ----------------------------------------------------------------------- */

static void draw_progress(output *o) {
    source *s = o->progress;
    stream *to = &o->streams[s->stream];
    tn__buffer_text(&to->text, "\r");
    put_text(to, s->rank, s->line.at, s->line.bytes);
    tn__buffer_text(&to->text, "\033[K");
}

static void erase_progress(output *o) {
    if (o->progress) {
        tn__buffer_text(&o->streams[o->progress->stream].text, "\r\033[K");
        flush_stream(o, o->progress->stream);
    }
}

/* Keeps of an incomplete line what comes after its last \r, and shows it. */
static void take_progress(output *o, source *s) {
    const char *text = s->line.at;
    size_t length = s->line.bytes;
    bool redrawn = length > 0 && memchr(text, '\r', length);
    if (s->rank != 0 || !o->streams[s->stream].terminal || !(redrawn || o->progress == s)) {
        return;
    }
    shown_part(&text, &length);
    size_t ends = (size_t)(s->line.at + s->line.bytes - text);
    memmove(s->line.at, text, ends);
    s->line.bytes = ends;
    if (o->progress != s) { erase_progress(o); }
    o->progress = s;
    if (length == strlen(cleared) && memcmp(s->line.at, cleared, length) == 0) {
        erase_progress(o);
        o->progress = NULL;
        s->line.bytes = 0;
    } else {
        draw_progress(o);
    }
}

/* Shows a line; `s`: whose it is, NULL for our own. */
static void show_line(output *o, int which, source *s, const char *text, size_t length) {
    bool above = o->progress && o->streams[which].terminal;
    if (above) { erase_progress(o); }
    put_text(&o->streams[which], s ? s->rank : LAUNCHER, text, length);
    tn__buffer_text(&o->streams[which].text, "\n");
    if (o->progress == s) {
        o->progress = NULL; /* the progress has become this line */
    } else if (above) {
        flush_stream(o, which);
        draw_progress(o);
    }
}

/* ---- One source ------------------------------------------------------------------------------ */

static void write_log(output *o, source *s, const char *text, size_t length) {
    if (s->log < 0 || write_all(s->log, text, length)) { return; }
    char *complaint = text_new("the log file for rank %d's %s: %s: it ends here", s->rank,
                               stream_names[s->stream], strerror(errno));
    show_line(o, 1, NULL, complaint, strlen(complaint));
    free(complaint);
    close(s->log);
    s->log = -1;
    __atomic_store_n(&o->lost, true, __ATOMIC_RELAXED);
}

static void keep_tail(output *o, source *s, const char *text, size_t length) {
    size_t more = length < TAIL_BYTES ? length : TAIL_BYTES, most = TAIL_BYTES - more;
    pthread_mutex_lock(&o->lock);
    size_t kept = s->tail_bytes < most ? s->tail_bytes : most;
    memmove(s->tail, s->tail + s->tail_bytes - kept, kept);
    memcpy(s->tail + kept, text + length - more, more);
    s->tail_bytes = kept + more;
    pthread_mutex_unlock(&o->lock);
}

static void end_line(output *o, source *s) {
    memory_needed(!s->line.failed);
    show_line(o, s->stream, s, s->line.at, s->line.bytes);
    s->line.bytes = 0;
}

static void take_text(output *o, source *s, const char *text, size_t length) {
    write_log(o, s, text, length);
    if (s->stream == 1) { keep_tail(o, s, text, length); }
    for (const char *newline; (newline = memchr(text, '\n', length));) {
        size_t here = (size_t)(newline - text);
        tn__buffer_add(&s->line, text, here);
        end_line(o, s);
        text += here + 1;
        length -= here + 1;
    }
    tn__buffer_add(&s->line, text, length);
    take_progress(o, s);
    if (s->line.bytes >= LONGEST_LINE) { end_line(o, s); }
}

static void close_source(output *o, source *s) {
    if (s->line.bytes > 0 || o->progress == s) {
        end_line(o, s); /* the last line had no newline */
    }
    tn__buffer_free(&s->line);
    epoll_ctl(o->ready, EPOLL_CTL_DEL, s->fd, NULL); /* a child before exec has it, too */
    close(s->fd);
    if (s->log >= 0) { close(s->log); }
    pthread_mutex_lock(&o->lock);
    s->fd = s->log = -1;
    o->open--;
    pthread_mutex_unlock(&o->lock);
}

static void read_source(output *o, source *s) {
    static char chunk[CHUNK];
    ssize_t got = read(s->fd, chunk, sizeof(chunk));
    if (got > 0) {
        take_text(o, s, chunk, (size_t)got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        close_source(o, s);
    }
    flush_streams(o);
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* Waits once and handles what comes; false when nothing more can come. */
static bool output_turn(output *o) {
    struct epoll_event ready[EVENTS_AT_ONCE];
    pthread_mutex_lock(&o->lock);
    char *said = text_take(&o->said);
    bool ending = o->ending, more = !ending || o->open > 0;
    pthread_mutex_unlock(&o->lock);

    char *rest = said;
    for (char *line; (line = strsep(&rest, "\n")) && rest;) {
        show_line(o, 1, NULL, line, strlen(line));
    }
    free(said);
    flush_streams(o);
    if (!more) { return false; }
    /* At the end, a pipe silent for a second is held open by a process that could not be killed. */
    int count = epoll_wait(o->ready, ready, EVENTS_AT_ONCE, ending ? 1000 : -1);
    for (int i = 0; i < count; i++) {
        if (ready[i].data.ptr) {
            read_source(o, ready[i].data.ptr);
        } else {
            eventfd_read(o->wake, &(eventfd_t){0});
        }
    }
    return !(ending && count == 0);
}

static void *output_main(void *user) {
    output *o = user;
    while (output_turn(o)) {}
    for (source *s = o->sources; s; s = s->next) {
        if (s->fd >= 0) { close_source(o, s); }
    }
    flush_streams(o);
    __atomic_store_n(&o->ended, true, __ATOMIC_RELEASE);
    return NULL;
}

/* ---- The main thread's side ------------------------------------------------------------------ */

static bool watch_file(output *o, int fd, source *s) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    return epoll_ctl(o->ready, EPOLL_CTL_ADD, fd, &event) == 0;
}

output *output_new(void) {
    output *o = memory_new(1, sizeof(*o));
    /* a pipe to another launcher is none: what is in it is for a file, perhaps */
    o->streams[0].terminal = isatty(STDOUT_FILENO) && tn__is_terminal(stdout);
    o->streams[1].terminal = isatty(STDERR_FILENO) && tn__is_terminal(stderr);
    pthread_mutex_init(&o->lock, NULL);
    o->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    o->ready = epoll_create1(EPOLL_CLOEXEC);
    if (!watch_file(o, o->wake, NULL) || pthread_create(&o->thread, NULL, output_main, o) != 0) {
        free(o);
        return NULL;
    }
    return o;
}

int output_columns(const output *o) {
    int columns = o->streams[1].terminal ? tn__terminal_columns(stderr) : 0;
    int prefix = (int)strlen("[0] ");
    return columns > prefix ? columns - prefix : 0;
}

/* Follows no link and waits for no FIFO: we are in the main thread. */
static int open_log(output *o, const char *folder, int which) {
    if (!folder) { return -1; }
    char *path = text_new("%s/%s.log", folder, stream_names[which]);
    int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    int fd = open(path, how, 0666);
    struct stat about;
    if (fd >= 0 && (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))) {
        close(fd);
        fd = -1;
        errno = ENXIO; /* as for a FIFO without a reader */
    }
    if (fd < 0) {
        output_say(o, "no log: %s: %s", path,
                   errno == ENXIO   ? "not a regular file"
                   : errno == ELOOP ? "a symbolic link is not followed"
                                    : strerror(errno));
        __atomic_store_n(&o->lost, true, __ATOMIC_RELAXED);
    }
    free(path);
    return fd;
}

/* The writing end; -1 with errno. */
static int open_source(output *o, int rank, int which, const char *folder) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) { return -1; }
    source *s = memory_new(1, sizeof(*s));
    *s = (source){.fd = ends[0], .rank = rank, .stream = which, .log = open_log(o, folder, which)};
    pthread_mutex_lock(&o->lock);
    s->next = o->sources;
    o->sources = s;
    o->open++;
    pthread_mutex_unlock(&o->lock);
    memory_needed(watch_file(o, s->fd, s));
    return ends[1];
}

bool output_open(output *o, int rank, const char *folder, int ends[2]) {
    ends[0] = open_source(o, rank, 0, folder);
    ends[1] = ends[0] < 0 ? -1 : open_source(o, rank, 1, folder);
    if (ends[0] >= 0 && ends[1] < 0) {
        int why = errno;
        close(ends[0]);
        errno = why;
    }
    return ends[1] >= 0;
}

void output_say(output *o, const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    memory_needed(vasprintf(&text, format, arguments) >= 0);
    va_end(arguments);
    pthread_mutex_lock(&o->lock);
    tn__buffer_format(&o->said, "%s\n", text);
    pthread_mutex_unlock(&o->lock);
    free(text);
    eventfd_write(o->wake, 1);
}

/* One that a process holds open stays in the list, behind those of the next round. */
void output_forget(output *o) {
    pthread_mutex_lock(&o->lock);
    for (source **link = &o->sources; *link;) {
        source *s = *link;
        if (s->fd < 0) {
            *link = s->next;
            free(s);
        } else {
            link = &s->next;
        }
    }
    pthread_mutex_unlock(&o->lock);
}

bool output_read(output *o) {
    pthread_mutex_lock(&o->lock);
    bool done = o->open == 0;
    pthread_mutex_unlock(&o->lock);
    return done;
}

tn__buffer output_tail(output *o, int rank) {
    tn__buffer b = {0};
    pthread_mutex_lock(&o->lock);
    const source *s = o->sources;
    while (s && !(s->rank == rank && s->stream == 1)) {
        s = s->next;
    }
    if (s) { memory_needed(tn__buffer_add(&b, s->tail, s->tail_bytes)); }
    pthread_mutex_unlock(&o->lock);
    while (b.bytes > 0 && (b.at[b.bytes - 1] == '\n' || b.at[b.bytes - 1] == '\r')) {
        b.bytes--;
    }
    return b;
}

void output_end(output *o) {
    pthread_mutex_lock(&o->lock);
    o->ending = true;
    pthread_mutex_unlock(&o->lock);
    eventfd_write(o->wake, 1);
}

bool output_ended(output *o) {
    return __atomic_load_n(&o->ended, __ATOMIC_ACQUIRE);
}

bool output_lost(output *o) {
    return __atomic_load_n(&o->lost, __ATOMIC_RELAXED);
}

void output_free(output *o) {
    pthread_join(o->thread, NULL);
    for (source *s = o->sources, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    tn__buffer_free(&o->said);
    tn__buffer_free(&o->streams[0].text);
    tn__buffer_free(&o->streams[1].text);
    close(o->wake);
    close(o->ready);
    pthread_mutex_destroy(&o->lock);
    free(o);
}
