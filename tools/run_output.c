/* Between the ranks and the user: a thread that reads every rank's stdout and stderr, writes the
 * bytes as they are to log files, and whole lines to the screen.
 *
 * The thread may block on a slow terminal; then the pipes fill, the ranks wait, and nothing is
 * lost. The main thread never blocks here: it adds sources, and its own lines, to lists under a
 * lock that is not held during writes. A source's fields belong to the thread, except for its tail
 * and list links, which the lock guards.
 *
 * Ranks write into pipes. Rank 0 gets a pseudo-terminal instead if we write to a terminal, so that
 * it draws its progress bar, the one that we show.
 */
#include "tools/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

enum {
    CHUNK = 1 << 16, /* bytes that one read takes */
    LONGEST_LINE =
        1 << 20 /* longer lines are shown in pieces, so that none holds up other ranks' */
};

typedef struct source {
    struct source *next;
    int fd; /* -1: closed */
    int rank, end;
    int log;    /* -1: none */
    bool live;  /* redraws are shown as they come */
    char *line; /* the part of an incomplete line so far */
    size_t used, capacity;
    bool forgotten; /* the tail will not be asked for */
    uint64_t written;
    uint64_t shown;        /* output.shown at its last line */
    char tail[TAIL_BYTES]; /* a ring: byte k of the stream is at k % TAIL_BYTES; for stderr only */
} source;

typedef struct said {
    struct said *next;
    char *text;
} said;

struct output {
    pthread_t thread;
    pthread_mutex_t lock;
    int wake, event; /* eventfds: for the thread, for the main thread */
    screen screen;   /* the thread's */
    source *sources;
    said *first_said, **last_said;
    int open;       /* sources whose fd is open */
    uint64_t shown; /* whole lines so far */
    bool resized, ending, ended, lost;
};

static void notify_event(int event) {
    ssize_t put = write(event, &(uint64_t){1}, sizeof(uint64_t));
    (void)put;
}

/* ---- One source ------------------------------------------------------------------------------ */

static void write_log(output *o, source *s, const char *text, size_t length) {
    while (s->log >= 0 && length > 0) {
        ssize_t put = write(s->log, text, length);
        if (put > 0) {
            text += put;
            length -= (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            char *complaint =
                text_new("the log file for rank %d's %s: %s: it ends here", s->rank,
                         s->end ? "stderr" : "stdout", strerror(put == 0 ? EIO : errno));
            screen_line(&o->screen, 1, RANK_TERN, complaint, strlen(complaint));
            free(complaint);
            close(s->log);
            s->log = -1;
            o->screen.lost = true;
        }
    }
}

static void keep_tail(output *o, source *s, const char *text, size_t length) {
    size_t kept = length < TAIL_BYTES ? length : TAIL_BYTES;
    pthread_mutex_lock(&o->lock);
    s->written += length - kept;
    for (size_t i = length - kept; i < length; i++) {
        s->tail[s->written++ % TAIL_BYTES] = text[i];
    }
    pthread_mutex_unlock(&o->lock);
}

static void append_text(source *s, const char *text, size_t length) {
    if (s->used + length > s->capacity) {
        size_t capacity = 2 * (s->used + length);
        char *line = memory_new(1, capacity);
        if (s->used) {
            memcpy(line, s->line, s->used);
        }
        free(s->line);
        s->line = line;
        s->capacity = capacity;
    }
    if (length > 0) { /* s->line may still be NULL: the first line is empty */
        memcpy(s->line + s->used, text, length);
    }
    s->used += length;
}

static void show_line(output *o, source *s) {
    screen_line(&o->screen, s->end, s->rank, s->line, s->used);
    s->used = 0;
    pthread_mutex_lock(&o->lock);
    s->shown = ++o->shown;
    pthread_mutex_unlock(&o->lock);
}

/* Shows a line that is being redrawn: only the part after its last \r is still visible. */
static void show_redraw(output *o, source *s) {
    size_t length = s->used, from;
    while (length > 0 && s->line[length - 1] == '\r') {
        length--;
    }
    for (from = length; from > 0 && s->line[from - 1] != '\r'; from--) {
    }
    memmove(s->line, s->line + from, s->used - from);
    s->used -= from;
    if (length > from) {
        screen_redraw(&o->screen, s->end, s->rank, s->line, length - from);
    }
}

static void take_text(output *o, source *s, const char *text, size_t length) {
    write_log(o, s, text, length);
    if (s->end == 1) {
        keep_tail(o, s, text, length);
    }
    for (const char *newline; length > 0 && (newline = memchr(text, '\n', length));) {
        size_t here = (size_t)(newline - text);
        append_text(s, text, here);
        show_line(o, s);
        text += here + 1;
        length -= here + 1;
    }
    if (length > 0) {
        append_text(s, text, length);
    }
    if (s->live && s->used > 0) {
        show_redraw(o, s);
    }
    if (s->used >= LONGEST_LINE) {
        show_line(o, s);
    }
}

static void close_source(output *o, source *s) {
    if (s->used > 0) {
        show_line(o, s); /* the last line had no newline */
    }
    close(s->fd);
    if (s->log >= 0) {
        close(s->log);
    }
    pthread_mutex_lock(&o->lock);
    s->fd = s->log = -1;
    o->open--;
    bool last = o->open == 0;
    pthread_mutex_unlock(&o->lock);
    if (last) {
        notify_event(o->event);
    }
}

static void read_source(output *o, source *s) {
    static char chunk[CHUNK];
    ssize_t got = read(s->fd, chunk, sizeof(chunk));
    if (got > 0) {
        take_text(o, s, chunk, (size_t)got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) { /* a terminal ends with EIO */
        close_source(o, s);
    }
}

static void free_source(source *s) {
    free(s->line);
    free(s);
}

/* ---- The thread ------------------------------------------------------------------------------ */

static void set_size(const source *s) {
    struct winsize size;
    int prefix = screen_prefix_columns(s->rank);
    if (s->live && ioctl(s->end ? STDERR_FILENO : STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
        size.ws_col > prefix) {
        size.ws_col = (unsigned short)(size.ws_col - prefix);
        ioctl(s->fd, TIOCSWINSZ, &size);
    }
}

/* Under the lock: lists what to wait for. Frees sources that are no longer needed. */
static int gather_sources(output *o, struct pollfd **fds, source ***sources) {
    int count = 0;
    *fds = memory_new((size_t)o->open + 1, sizeof(**fds));
    *sources = memory_new((size_t)o->open + 1, sizeof(**sources));
    for (source **link = &o->sources; *link;) {
        source *s = *link;
        if (s->fd < 0 && s->forgotten) {
            *link = s->next;
            free_source(s);
            continue;
        }
        if (s->fd >= 0) {
            if (o->resized) {
                set_size(s);
            }
            (*fds)[count] = (struct pollfd){.fd = s->fd, .events = POLLIN};
            (*sources)[count++] = s;
        }
        link = &s->next;
    }
    o->resized = false;
    (*fds)[count] = (struct pollfd){.fd = o->wake, .events = POLLIN};
    return count;
}

static void show_said(output *o, said *list) {
    while (list) {
        said *next = list->next;
        char *rest = list->text;
        for (char *line; (line = strsep(&rest, "\n"));) {
            screen_line(&o->screen, 1, RANK_TERN, line, strlen(line));
        }
        free(list->text);
        free(list);
        list = next;
    }
    screen_flush(&o->screen);
}

/* Waits once and handles what comes; false when nothing more can come. */
static bool output_turn(output *o) {
    struct pollfd *fds;
    source **sources;
    pthread_mutex_lock(&o->lock);
    int count = gather_sources(o, &fds, &sources);
    said *list = o->first_said;
    o->first_said = NULL;
    o->last_said = &o->first_said;
    bool ending = o->ending;
    pthread_mutex_unlock(&o->lock);

    show_said(o, list);
    bool more = !ending || count > 0;
    /* At the end, a pipe silent for a second is held open by a process that could not be killed. */
    int ready = more ? poll(fds, (nfds_t)count + 1, ending ? 1000 : -1) : 0;
    more = more && !(ending && ready == 0);
    for (int i = 0; i < count && ready > 0; i++) {
        if (fds[i].revents) {
            read_source(o, sources[i]);
            screen_flush(&o->screen);
        }
    }
    uint64_t times;
    if (ready > 0 && fds[count].revents && read(o->wake, &times, sizeof(times)) < 0) {
        more = more && errno == EAGAIN;
    }
    free(fds);
    free(sources);
    return more;
}

static void *output_main(void *user) {
    output *o = user;
    while (output_turn(o)) {
    }
    for (source *s = o->sources; s; s = s->next) {
        if (s->fd >= 0) {
            close_source(o, s);
        }
    }
    screen_flush(&o->screen);
    pthread_mutex_lock(&o->lock);
    o->ended = true;
    o->lost = o->lost || o->screen.lost;
    pthread_mutex_unlock(&o->lock);
    notify_event(o->event);
    return NULL;
}

/* ---- The main thread's side ------------------------------------------------------------------ */

output *output_new(void) {
    output *o = memory_new(1, sizeof(*o));
    pthread_mutex_init(&o->lock, NULL);
    o->last_said = &o->first_said;
    screen_init(&o->screen);
    o->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    o->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (o->wake < 0 || o->event < 0 || pthread_create(&o->thread, NULL, output_main, o) != 0) {
        free(o);
        return NULL;
    }
    return o;
}

/* Opens a raw terminal, which passes bytes unchanged. */
static bool open_terminal(int *reading, int *writing) {
    char name[64];
    struct termios mode;
    *reading = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    *writing = -1;
    if (*reading >= 0 && grantpt(*reading) == 0 && unlockpt(*reading) == 0 &&
        ptsname_r(*reading, name, sizeof(name)) == 0) {
        *writing = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    }
    if (*writing >= 0 && tcgetattr(*writing, &mode) == 0) {
        cfmakeraw(&mode);
        return tcsetattr(*writing, TCSANOW, &mode) == 0;
    }
    if (*writing >= 0) {
        close(*writing);
    }
    if (*reading >= 0) {
        close(*reading);
    }
    return false;
}

/* Follows no link and waits for no FIFO: we are in the main thread. */
static int open_log(output *o, const char *folder, int end) {
    if (!folder) {
        return -1;
    }
    char *path = text_new("%s/%s.log", folder, end ? "stderr" : "stdout");
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
        pthread_mutex_lock(&o->lock);
        o->lost = true;
        pthread_mutex_unlock(&o->lock);
    }
    free(path);
    return fd;
}

static source *source_new(output *o, int rank, int end, bool live, const char *folder, int *far) {
    int ends[2];
    live = live && o->screen.end[end].terminal && open_terminal(&ends[0], &ends[1]);
    if (!live && pipe2(ends, O_CLOEXEC) != 0) {
        return NULL;
    }
    source *s = memory_new(1, sizeof(*s));
    s->fd = ends[0];
    s->rank = rank;
    s->end = end;
    s->live = live;
    s->log = open_log(o, folder, end);
    *far = ends[1];
    set_size(s);
    return s;
}

bool output_open(output *o, int rank, bool show_redraws, const char *folder, int ends[2]) {
    source *out = source_new(o, rank, 0, show_redraws, folder, &ends[0]);
    source *err = out ? source_new(o, rank, 1, show_redraws, folder, &ends[1]) : NULL;
    if (!err) {
        int why = errno;
        if (out) {
            close(out->fd);
            close(ends[0]);
            free_source(out);
        }
        errno = why;
        return false;
    }
    pthread_mutex_lock(&o->lock);
    out->next = err;
    err->next = o->sources;
    o->sources = out;
    o->open += 2;
    pthread_mutex_unlock(&o->lock);
    notify_event(o->wake);
    return true;
}

void output_say(output *o, const char *format, ...) {
    said *one = memory_new(1, sizeof(*one));
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    one->text = memory_new((size_t)length + 1, 1);
    va_start(arguments, format);
    vsnprintf(one->text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&o->lock);
    *o->last_said = one;
    o->last_said = &one->next;
    pthread_mutex_unlock(&o->lock);
    notify_event(o->wake);
}

void output_forget(output *o) {
    pthread_mutex_lock(&o->lock);
    for (source *s = o->sources; s; s = s->next) {
        s->forgotten = true;
    }
    pthread_mutex_unlock(&o->lock);
}

void output_resize(output *o) {
    pthread_mutex_lock(&o->lock);
    o->resized = true;
    pthread_mutex_unlock(&o->lock);
    notify_event(o->wake);
}

bool output_read(output *o) {
    pthread_mutex_lock(&o->lock);
    bool done = o->open == 0;
    pthread_mutex_unlock(&o->lock);
    return done;
}

char *output_tail(output *o, int rank, size_t *length, uint64_t *later) {
    char *text = memory_new(TAIL_BYTES + 1, 1);
    *length = 0;
    *later = 0;
    pthread_mutex_lock(&o->lock);
    for (source *s = o->sources; s; s = s->next) {
        if (s->rank == rank && s->end == 1 && !s->forgotten) {
            *length = s->written < TAIL_BYTES ? (size_t)s->written : TAIL_BYTES;
            *later = o->shown - s->shown;
            for (size_t i = 0; i < *length; i++) {
                text[i] = s->tail[(s->written - *length + i) % TAIL_BYTES];
            }
        }
    }
    pthread_mutex_unlock(&o->lock);
    return text;
}

int output_event(const output *o) {
    return o->event;
}

void output_end(output *o) {
    pthread_mutex_lock(&o->lock);
    o->ending = true;
    pthread_mutex_unlock(&o->lock);
    notify_event(o->wake);
}

bool output_ended(output *o) {
    pthread_mutex_lock(&o->lock);
    bool ended = o->ended;
    pthread_mutex_unlock(&o->lock);
    return ended;
}

bool output_lost(output *o) {
    pthread_mutex_lock(&o->lock);
    bool lost = o->lost;
    pthread_mutex_unlock(&o->lock);
    return lost;
}

void output_free(output *o) {
    pthread_join(o->thread, NULL);
    for (source *s = o->sources, *next; s; s = next) {
        next = s->next;
        free_source(s);
    }
    for (said *one = o->first_said, *next; one; one = next) {
        next = one->next;
        free(one->text);
        free(one);
    }
    close(o->wake);
    close(o->event);
    screen_finish(&o->screen);
    pthread_mutex_destroy(&o->lock);
    free(o);
}
