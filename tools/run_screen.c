/* What the user sees: whole lines, each with "[rank] " in front, and on a terminal one line at the
 * bottom that its rank redraws (a progress bar). Another rank's line overwrites the bottom line,
 * which is then drawn again below.
 *
 * Only the output thread runs here. Lines are collected and written by screen_flush, usually in one
 * piece.
 */
#include "tools/run.h"

#include "core/plain_text.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GATHERED = 1 << 16 };

static const char colours[][6] = {"\033[36m", "\033[32m", "\033[33m",
                                  "\033[35m", "\033[34m", "\033[96m"};
static const char erase_line[] = "\r\033[K", plain[] = "\033[0m", bold[] = "\033[1m";

void screen_init(screen *s) {
    *s = (screen){0};
    const char *kind = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    for (int i = 0; i < 2; i++) {
        screen_end *e = &s->end[i];
        e->fd = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        e->terminal = isatty(e->fd) && !(kind && strcmp(kind, "dumb") == 0);
        e->colour = e->terminal && !(no_colour && *no_colour);
    }
}

void screen_finish(screen *s) {
    free(s->end[0].buffer);
    free(s->end[1].buffer);
    free(s->open);
    *s = (screen){0};
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* False when the reader has gone. */
static bool write_all(int fd, const char *text, size_t length) {
    while (length > 0) {
        ssize_t put = write(fd, text, length);
        if (put > 0) {
            text += put;
            length -= (size_t)put;
        } else if (errno == EAGAIN) { /* another program has made our terminal non-blocking */
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static void flush_end(screen *s, int end) {
    static const char *const ends[] = {"stdout", "stderr"};
    screen_end *e = &s->end[end];
    size_t length = e->used;
    e->used = 0;
    if (length == 0 || e->closed || write_all(e->fd, e->buffer, length)) {
        return;
    }
    int why = errno;
    e->closed = true;
    s->lost = true;
    char *text = text_new("tern: %s: %s: ranks' output there is no longer shown\n", ends[end],
                          strerror(why));
    screen_end *other = &s->end[!end];
    other->closed = other->closed || !write_all(other->fd, text, strlen(text));
    free(text);
}

void screen_flush(screen *s) {
    flush_end(s, 0);
    flush_end(s, 1);
}

/* Reserves `length` bytes at the buffer's end. */
static char *reserve_bytes(screen *s, int end, size_t length) {
    screen_end *e = &s->end[end];
    if (e->used + length > e->capacity) {
        flush_end(s, end);
    }
    if (length > e->capacity) {
        free(e->buffer);
        e->capacity = length > GATHERED ? length : GATHERED;
        e->buffer = memory_new(1, e->capacity);
    }
    return e->buffer + e->used;
}

static void put_bytes(screen *s, int end, const char *text, size_t length) {
    if (length > 0) {
        memcpy(reserve_bytes(s, end, length), text, length);
        s->end[end].used += length;
    }
}

/* Appends text without control sequences, except colours if `coloured`. Returns whether a colour is
 * left on. */
static bool put_plain(screen *s, int end, const char *text, size_t length, bool coloured) {
    char *to = reserve_bytes(s, end, length);
    size_t put = length > 0 ? tn__plain_text(to, text, length, coloured) : 0;
    s->end[end].used += put;
    return put > 0 && memchr(to, '\033', put);
}

static void put_text(screen *s, int end, const char *text) {
    put_bytes(s, end, text, strlen(text));
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static int format_prefix(char *text, size_t size, int rank) {
    return rank == RANK_TERN ? snprintf(text, size, "tern: ") : snprintf(text, size, "[%d] ", rank);
}

int screen_prefix_columns(int rank) {
    char text[32];
    return format_prefix(text, sizeof(text), rank);
}

static void put_prefix(screen *s, int end, int rank) {
    char text[32];
    format_prefix(text, sizeof(text), rank);
    if (s->end[end].colour) {
        int count = (int)(sizeof(colours) / sizeof(*colours));
        put_text(s, end, rank == RANK_TERN ? bold : colours[rank % count]);
    }
    put_text(s, end, text);
    if (s->end[end].colour) {
        put_text(s, end, plain);
    }
}

/* On a terminal a \r inside a line would wipe out the prefix, so only the part after the last one
 * is shown. */
static const char *visible_part(const char *text, size_t *length) {
    while (*length > 0 && text[*length - 1] == '\r') {
        --*length;
    }
    const char *last = *length > 0 ? memrchr(text, '\r', *length) : NULL;
    if (last) {
        *length -= (size_t)(last + 1 - text);
        text = last + 1;
    }
    return text;
}

/* Our own lines quote peers and ranks: they are plain. A rank's line goes to a pipe or file byte
 * for byte; on a terminal only its colours pass, since the screen is shared. */
static void put_line(screen *s, int end, int rank, const char *text, size_t length) {
    const screen_end *e = &s->end[end];
    put_prefix(s, end, rank);
    if (rank == RANK_TERN) {
        put_plain(s, end, text, length, false);
    } else if (!e->terminal) {
        put_bytes(s, end, text, length);
    } else {
        text = visible_part(text, &length);
        if (put_plain(s, end, text, length, true)) {
            put_text(s, end, plain); /* a colour must not reach other ranks' lines */
        }
    }
}

static void draw_open(screen *s) {
    put_text(s, s->open_end, erase_line);
    put_line(s, s->open_end, s->open_rank, s->open, s->open_length);
}

void screen_line(screen *s, int end, int rank, const char *text, size_t length) {
    bool shown = s->open_length > 0 && s->end[end].terminal;
    if (shown) {
        put_text(s, s->open_end, erase_line);
        if (s->open_end != end) {
            flush_end(s, s->open_end);
        }
    }
    if (shown && s->open_end == end && s->open_rank == rank) {
        s->open_length = 0; /* the open line has become this one */
        shown = false;
    }
    put_line(s, end, rank, text, length);
    put_bytes(s, end, "\n", 1);
    if (shown) {
        flush_end(s, end);
        draw_open(s);
    }
}

void screen_redraw(screen *s, int end, int rank, const char *text, size_t length) {
    if (!s->end[end].terminal) {
        return;
    }
    if (s->open_length > 0 && s->open_end != end) {
        put_text(s, s->open_end, erase_line);
        flush_end(s, s->open_end);
    }
    if (length > s->open_capacity) {
        free(s->open);
        s->open_capacity = length;
        s->open = memory_new(1, length);
    }
    memcpy(s->open, text, length);
    s->open_length = length;
    s->open_end = end;
    s->open_rank = rank;
    draw_open(s);
}
