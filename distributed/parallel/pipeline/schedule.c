/* Schedules of a pipeline: in what order each rank runs forwards and backwards of its stages.
 *
 *     1F1B, 3 ranks      F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3      rank 0: three graphs alive
 *     4 micro-batches    .. F0 F1 .. B0 F2 B1 F3 B2 .. B3
 *                        .. .. F0 B0 F1 B1 F2 B2 F3 B3
 *
 * Only the order is given here, not the time: a rank waits for what an action needs. So a schedule
 * is a table of actions, whose rows are written by the rules of a kind or read from a text, and
 * simulate.c says how long ranks then wait. step.c runs it.
 */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/parallel/pipeline/pipeline.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_action(tn_pipe_schedule *s, int rank, char what, int stage, int micro) {
    s->rows[rank][s->counts[rank]++] = (tn_pipe_action){what, stage, micro};
}

/* Without rows; NULL after raising. */
static tn_pipe_schedule *schedule_alloc(int ranks, int stages, int micros) {
    static const char operation[] = "pipe_schedule";
    tn_pipe_schedule *s = tn__calloc_for(1, sizeof(*s), operation);
    if (!s) { return NULL; }
    *s = (tn_pipe_schedule){.ranks = ranks, .stages = stages, .micros = micros};
    s->counts = tn__calloc_for((size_t)ranks, sizeof(*s->counts), operation);
    s->rows = tn__calloc_for((size_t)ranks, sizeof(*s->rows), operation);
    if (s->counts && s->rows) { return s; }
    tn_pipe_schedule_free(s);
    return NULL;
}

void tn_pipe_schedule_free(tn_pipe_schedule *s) {
    if (!s) { return; }
    for (int r = 0; r < s->ranks && s->rows; r++) {
        free(s->rows[r]);
    }
    free(s->rows);
    free(s->counts);
    free(s);
}

/* ---- The kinds ------------------------------------------------------------------------------- */

static int smaller_of(int a, int b) {
    return a < b ? a : b;
}

static void row_gpipe(tn_pipe_schedule *s, int rank) {
    for (int m = 0; m < s->micros; m++) {
        add_action(s, rank, 'F', rank, m);
    }
    for (int m = 0; m < s->micros; m++) {
        add_action(s, rank, 'B', rank, m);
    }
}

/* Forward k of a rank: its chunks take `ranks` micro-batches each, in turn. */
static tn_pipe_action forward_at(const tn_pipe_schedule *s, int rank, int k) {
    int chunks = s->stages / s->ranks, chunk = k / s->ranks % chunks;
    int micro = k / (s->ranks * chunks) * s->ranks + k % s->ranks;
    return (tn_pipe_action){'F', chunk * s->ranks + rank, micro};
}

/* Backward k likewise, the last chunk first. */
static tn_pipe_action backward_at(const tn_pipe_schedule *s, int rank, int k) {
    tn_pipe_action a = forward_at(s, rank, k);
    return (tn_pipe_action){'B', s->stages - s->ranks + 2 * rank - a.stage, a.micro};
}

/* Some forwards to begin with, then a forward and a backward in turn. With one chunk the last rank
 * begins with none; with more a rank needs all of its chunks but the last, and twice as many for
 * the way to the last rank and back. */
static void row_1f1b(tn_pipe_schedule *s, int rank) {
    int chunks = s->stages / s->ranks, all = chunks * s->micros, behind = s->ranks - rank - 1;
    int ahead = smaller_of(chunks == 1 ? behind : 2 * behind + (chunks - 1) * s->ranks, all);
    for (int k = 0; k < all + ahead; k++) {
        tn_pipe_action f = forward_at(s, rank, k), b = backward_at(s, rank, k - ahead);
        if (k < all) { add_action(s, rank, 'F', f.stage, f.micro); }
        if (k >= ahead) { add_action(s, rank, 'B', b.stage, b.micro); }
    }
}

/* 1F1B with the halves of backward apart: later ranks put off more of the weights' gradients, which
 * then fill the time in which they would wait. */
static void row_zero_bubble(tn_pipe_schedule *s, int rank) {
    int ahead = smaller_of(s->ranks - rank - 1, s->micros), weights = 0;
    for (int k = 0; k < s->micros + ahead; k++) {
        if (k < s->micros) { add_action(s, rank, 'F', rank, k); }
        int done = k - ahead + 1; /* inputs' gradients, after this one's */
        if (done > 0) { add_action(s, rank, 'I', rank, done - 1); }
        if (done > 0 && (k >= s->micros || done - weights > rank)) {
            add_action(s, rank, 'W', rank, weights++);
        }
    }
    while (weights < s->micros) {
        add_action(s, rank, 'W', rank, weights++);
    }
}

tn_pipe_schedule *tn_pipe_schedule_new(tn_pipe_kind kind, int ranks, int chunks, int micros) {
    static void (*const rules[])(tn_pipe_schedule *, int) = {
        [TN_PIPE_1F1B] = row_1f1b,
        [TN_PIPE_GPIPE] = row_gpipe,
        [TN_PIPE_INTERLEAVED] = row_1f1b,
        [TN_PIPE_ZERO_BUBBLE] = row_zero_bubble,
    };
    bool interleaved = kind == TN_PIPE_INTERLEAVED;
    const char *wrong =
        TN__BEYOND({"kind", (int)kind, 0, TN_PIPE_ZERO_BUBBLE}, {"ranks", ranks, 1, 0},
                   {"chunks", chunks, 1, 0}, {"micros", micros, 1, 0});
    if (wrong) { return tn__fail_null(TN_EVALUE, "pipe_schedule", "%s", wrong); }
    if (chunks > 1 && !interleaved) {
        return tn__fail_null(
            TN_EVALUE, "pipe_schedule",
            "chunks is %d (more than one stage a rank only with TN_PIPE_INTERLEAVED)", chunks);
    }
    if (chunks > 1 && micros % ranks != 0) {
        return tn__fail_null(
            TN_EVALUE, "pipe_schedule",
            "%d micro-batches are not a multiple of %d ranks, which interleaved stages need",
            micros, ranks);
    }
    double most = (double)chunks * fmax(ranks, micros);
    if (most > INT_MAX / 4) { /* of which a few are added */
        return tn__fail_null(TN_EVALUE, "pipe_schedule",
                             "%d ranks with %d stages each and %d micro-batches are too many",
                             ranks, chunks, micros);
    }
    size_t actions = (size_t)chunks * (size_t)micros * 3;
    tn_pipe_schedule *s = schedule_alloc(ranks, ranks * chunks, micros);
    for (int r = 0; s && r < ranks; r++) {
        s->rows[r] = tn__calloc_for(actions, sizeof(*s->rows[r]), "pipe_schedule");
        if (!s->rows[r]) {
            tn_pipe_schedule_free(s);
            return NULL;
        }
        rules[kind](s, r);
    }
    return s;
}

/* ---- Checking -------------------------------------------------------------------------------- */

static const char whats[] = "FBIW";

static size_t cell_of(const tn_pipe_schedule *s, tn_pipe_action a) {
    return (size_t)a.stage * (size_t)s->micros + (size_t)a.micro;
}

/* Counts how often each action of the first cells occurs: times[cell][what]. False after raising.
 */
static bool count_actions(const tn_pipe_schedule *s, size_t cells, unsigned char (*times)[4]) {
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->counts[r]; i++) {
            tn_pipe_action a = s->rows[r][i];
            const char *what = a.what ? strchr(whats, a.what) : NULL;
            if (!what || a.stage < 0 || a.stage >= s->stages || a.stage % s->ranks != r ||
                a.micro < 0 || a.micro >= s->micros) {
                return tn__fail(TN_EVALUE, "pipe_schedule",
                                "action %d of rank %d is \"%c%d.%d\" (needed: F, B, I or W of this "
                                "rank's stages below %d and of micro-batches below %d)",
                                i, r, isprint((unsigned char)a.what) ? a.what : '?', a.stage,
                                a.micro, s->stages, s->micros);
            }
            if (cell_of(s, a) < cells && times[cell_of(s, a)][what - whats] < UCHAR_MAX) {
                times[cell_of(s, a)][what - whats]++;
            }
        }
    }
    return true;
}

bool tn__pipe_schedule_complete(const tn_pipe_schedule *s) {
    static const char operation[] = "pipe_schedule";
    size_t cells = (size_t)s->stages * (size_t)s->micros, actions = 0;
    bool sized = s->ranks > 0 && s->stages > 0 && s->micros > 0 && s->stages % s->ranks == 0;
    for (int r = 0; r < s->ranks && sized; r++) {
        sized = s->counts && s->rows && s->counts[r] >= 0 && (s->rows[r] || s->counts[r] == 0);
        actions += sized ? (size_t)s->counts[r] : 0;
    }
    if (!sized) {
        return tn__fail(
            TN_EVALUE, operation,
            "%d ranks, %d stages and %d micro-batches (each above 0, the stages a multiple "
            "of the ranks, a row for each rank)",
            s->ranks, s->stages, s->micros);
    }
    /* a cell needs two actions: of more cells than that, one of the first is incomplete */
    cells = cells < actions / 2 + 1 ? cells : actions / 2 + 1;
    unsigned char(*times)[4] = tn__calloc_for(cells, sizeof(*times), operation);
    bool complete = times && count_actions(s, cells, times);
    for (size_t i = 0; i < cells && complete; i++) {
        int f = times[i][0], b = times[i][1], in = times[i][2], w = times[i][3];
        complete = f == 1 && ((b == 1 && in == 0 && w == 0) || (b == 0 && in == 1 && w == 1));
        if (!complete) {
            tn__raise(TN_EVALUE, operation,
                      "stage %zu, micro-batch %zu: %d times F, %d B, %d I, %d W (needed: one F, "
                      "and one B or one I and one W)",
                      i / (size_t)s->micros, i % (size_t)s->micros, f, b, in, w);
        }
    }
    free(times);
    return complete;
}

/* ---- From text ------------------------------------------------------------------------------- */

/* The beginning of the next line that is not empty; NULL: there is none. */
static const char *next_line(const char *at) {
    at += strspn(at, " \t\r\n");
    return *at ? at : NULL;
}

/* Reads the actions of a line, which is a rank's. False after raising. */
static bool read_row(tn_pipe_schedule *s, int rank, const char *at) {
    size_t most = strcspn(at, "\n") / 4 + 1; /* "F0.0" */
    s->rows[rank] = tn__calloc_for(most, sizeof(*s->rows[rank]), "pipe_schedule");
    for (int used = 0; s->rows[rank] && *at && *at != '\n'; at += strspn(at, " \t\r")) {
        tn_pipe_action a;
        int length = (int)strcspn(at, " \t\r\n");
        char word[32]; /* sscanf goes through all of its text */
        snprintf(word, sizeof(word), "%.*s", length, at);
        if (sscanf(word, "%c%6d.%6d%n", &a.what, &a.stage, &a.micro, &used) != 3 ||
            used != length) {
            return tn__fail(TN_EVALUE, "pipe_schedule",
                            "line %d: \"%.*s\" is no action, which is F, B, I or W, then "
                            "stage.micro-batch",
                            rank + 1, length < 30 ? length : 30, at);
        }
        add_action(s, rank, a.what, a.stage, a.micro);
        s->stages = a.stage >= s->stages ? a.stage + 1 : s->stages;
        s->micros = a.micro >= s->micros ? a.micro + 1 : s->micros;
        at += length;
    }
    return s->rows[rank] != NULL;
}

tn_pipe_schedule *tn_pipe_schedule_read(const char *text) {
    int ranks = 0, read = 0;
    for (const char *at = text; at && (at = next_line(at)); at += strcspn(at, "\n")) {
        ranks++;
    }
    if (ranks == 0) {
        return tn__fail_null(TN_EVALUE, "pipe_schedule", "the text %s",
                             text ? "has no actions" : "is NULL");
    }
    tn_pipe_schedule *s = schedule_alloc(ranks, 0, 0);
    const char *at = next_line(text);
    while (s && at && read_row(s, read, at)) {
        read++;
        at = next_line(at + strcspn(at, "\n"));
    }
    if (s && read == ranks && tn__pipe_schedule_complete(s)) { return s; }
    tn_pipe_schedule_free(s);
    return NULL;
}
