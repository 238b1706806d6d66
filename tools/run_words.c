/* Reads the messages of run_words.h, each whole or not at all, and writes those that have
 * numbers. */
#include "tools/run_words.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool refuse_word(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse_word(char *why, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, WORD_WHY, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- Pieces; each moves `at` after what it has read ------------------------------------------ */

static bool take_character(const char **at, char c) {
    bool there = **at == c;
    *at += there;
    return there;
}

/* Decimal, in one spelling: neither "+1" nor "01" nor "-0". */
static bool take_integer(const char **at, int64_t *value) {
    const char *c = *at;
    bool minus = *c == '-';
    c += minus;
    if (*c < '0' || *c > '9' || (*c == '0' && (minus || (c[1] >= '0' && c[1] <= '9')))) {
        return false;
    }
    int64_t sum = 0;
    for (; *c >= '0' && *c <= '9'; c++) {
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, *c - '0', &sum)) {
            return false;
        }
    }
    *value = minus ? -sum : sum;
    *at = c;
    return true;
}

typedef struct number_field {
    const char *name;
    int64_t least, most;
} number_field;

/* `count` numbers separated by single spaces. */
static bool take_numbers(const char **at, const number_field *fields, int count, int64_t *values,
                         char *why) {
    for (int i = 0; i < count; i++) {
        const number_field *f = &fields[i];
        bool there = (i == 0 || take_character(at, ' ')) && take_integer(at, &values[i]);
        if (!there) {
            refuse_word(why, "its %s is not a number", f->name);
            return false;
        }
        if (values[i] < f->least || values[i] > f->most) {
            refuse_word(why,
                        f->least == f->most ? "its %s is %" PRId64 ", not %" PRId64
                                            : "its %s is %" PRId64 ", not from %" PRId64
                                              " to %" PRId64,
                        f->name, values[i], f->least, f->most);
            return false;
        }
    }
    return true;
}

/* Up to `size` - 1 printable characters without spaces. */
static bool take_name(const char **at, char *name, size_t size) {
    size_t length = 0;
    while ((*at)[length] > ' ' && (*at)[length] < 0x7f) {
        length++;
    }
    if (length == 0 || length >= size) {
        return false;
    }
    memcpy(name, *at, length);
    name[length] = 0;
    *at += length;
    return true;
}

/* ---- A node's description -------------------------------------------------------------------- */

void card_write(char text[LONGEST_CARD], const node_card *c) {
    snprintf(text, LONGEST_CARD, "%s %s %d %d %d %d %d %s %s", c->version, c->name, c->min, c->max,
             c->ranks, c->wanted, c->pid, c->run_id, c->devices);
}

bool card_read(const char *text, node_card *c, char *why) {
    static const number_field fields[] = {
        {"smallest number of nodes", 1, MOST_NODES},
        {"largest number of nodes", 1, MOST_NODES},
        {"number of ranks", 1, MOST_RANKS},
        {"requested rank", -1, MOST_NODES - 1},
        {"process", 1, INT_MAX},
    };
    int64_t n[5];
    *c = (node_card){0};
    bool named = take_name(&text, c->version, sizeof(c->version)) && take_character(&text, ' ') &&
                 take_name(&text, c->name, sizeof(c->name)) && take_character(&text, ' ');
    if (!named) {
        return refuse_word(why, "its version and host are not valid names");
    }
    if (!take_numbers(&text, fields, 5, n, why)) {
        return false;
    }
    c->min = (int)n[0];
    c->max = (int)n[1];
    c->ranks = (int)n[2];
    c->wanted = (int)n[3];
    c->pid = (int)n[4];
    if (c->min > c->max) {
        return refuse_word(why, "it needs at least %d nodes and at most %d", c->min, c->max);
    }
    named = take_character(&text, ' ') && take_name(&text, c->run_id, sizeof(c->run_id)) &&
            take_character(&text, ' ') && take_name(&text, c->devices, sizeof(c->devices));
    return (named && !*text) || refuse_word(why, "its job and devices are not valid names");
}

void sign_write(char text[LONGEST_SIGN], const node_sign *s) {
    snprintf(text, LONGEST_SIGN, "%" PRId64 " %d %c %d %" PRId64, s->count, s->round, s->state,
             s->code, s->failure);
}

bool sign_read(const char *text, int rounds, node_sign *s, char *why) {
    const number_field first[] = {{"count", 0, INT64_MAX}, {"round", 0, rounds}};
    static const number_field second[] = {{"exit code", 0, 255}, {"failure", 0, INT64_MAX}};
    int64_t n[4];
    if (!take_numbers(&text, first, 2, n, why)) {
        return false;
    }
    char state = take_character(&text, ' ') ? *text : 0;
    if (!state || !strchr("irfsdl", state) || text[1] != ' ') {
        return refuse_word(why, "its state is unknown");
    }
    text += 2;
    if (!take_numbers(&text, second, 2, n + 2, why)) {
        return false;
    }
    *s = (node_sign){n[0], (int)n[1], (node_state)state, (int)n[2], n[3]};
    if (*text) {
        return refuse_word(why, "extra text after its numbers");
    }
    bool ended = s->state == NODE_FAILED || s->state == NODE_STOPPED;
    if (s->code == 0 && (s->state == NODE_FAILED || (ended && s->failure > 0))) {
        return refuse_word(why, "it reports a failure with exit code 0");
    }
    return true;
}

/* ---- Orders ---------------------------------------------------------------------------------- */

/* Whether this node has sent this state for the last round. */
static bool has_told(const order_view *v, node_state state) {
    return v->told == v->round && v->state == state;
}

/* Reads the lines of a start, one per node, and finds this node's. */
static bool read_places(const char **at, const order_view *v, run_round *r, char *why) {
    int64_t first = 0, n[4];
    for (int i = 0; i < r->nodes; i++) {
        const number_field fields[] = {
            {"node", 1, MOST_LAUNCHERS},
            {"node's rank", i, i},
            {"node's first rank", first, first},
            {"node's number of ranks", 1, MOST_RANKS},
        };
        if (!take_numbers(at, fields, 4, n, why)) {
            return false;
        }
        if (!take_character(at, '\n')) {
            return refuse_word(why, "extra text after the numbers of node rank %d", i);
        }
        if (n[0] == v->own && r->local > 0) {
            return refuse_word(why, "it names this node twice");
        }
        if (n[0] == v->own && n[3] != v->ranks) {
            return refuse_word(why, "it starts %" PRId64 " ranks here, where -n is %d", n[3],
                               v->ranks);
        }
        if (n[0] == v->own) {
            r->node = i;
            r->first = (int)first;
            r->local = (int)n[3];
        }
        first += n[3];
        r->most = n[3] > r->most ? (int)n[3] : r->most;
    }
    return first == r->world ||
           refuse_word(why, "its nodes have %" PRId64 " ranks, and its world has %d", first,
                       r->world);
}

static bool read_start(const char **at, const order_view *v, said_order *o, char *why) {
    int64_t next = v->round < INT_MAX ? v->round + 1 : 0, n[4];
    const number_field fields[] = {
        {"round", next, next},
        {"number of restarts", v->round, v->round},
        {"world", 1, (int64_t)MOST_NODES * MOST_RANKS},
        {"number of nodes", v->min_nodes, v->max_nodes},
    };
    if (v->started) {
        return refuse_word(why, "round %d has not been stopped", v->round);
    }
    if (v->member && !has_told(v, NODE_STOPPED) && !has_told(v, NODE_DONE)) {
        return refuse_word(why, "this node has ranks of round %d", v->round);
    }
    if (!take_numbers(at, fields, 4, n, why)) {
        return false;
    }
    if (!take_character(at, '\n')) {
        return refuse_word(why, "extra text after its numbers");
    }
    o->round = (run_round){
        .number = (int)n[0], .restarts = (int)n[1], .world = (int)n[2], .nodes = (int)n[3]};
    return read_places(at, v, &o->round, why);
}

/* Reads the other orders' only number and the end of its line. */
static bool take_last_number(const char **at, number_field field, int *value, char *why) {
    int64_t n;
    if (!take_numbers(at, &field, 1, &n, why)) {
        return false;
    }
    *value = (int)n;
    return take_character(at, '\n') || refuse_word(why, "extra text after its number");
}

static bool read_stop(const char **at, const order_view *v, said_order *o, char *why) {
    if (!v->started) {
        return refuse_word(why, "no round has been started");
    }
    return take_last_number(at, (number_field){"round", v->round, v->round}, &o->round.number, why);
}

static bool read_end(const char **at, const order_view *v, said_order *o, char *why) {
    if (!take_last_number(at, (number_field){"exit code", 0, 255}, &o->code, why)) {
        return false;
    }
    if (o->code == 0 && !v->started) {
        return refuse_word(why, "it reports success, but no round has been started");
    }
    if (o->code == 0 && v->member && !has_told(v, NODE_DONE)) {
        return refuse_word(why, "it reports success, but this node's ranks have not ended");
    }
    return true;
}

bool order_read(const char *text, order_view *v, said_order *o, char *why) {
    static const char *const names[] = {"start ", "stop ", "drop ", "end "};
    int kind = 0, kinds = (int)(sizeof(names) / sizeof(*names));
    while (kind < kinds && strncmp(text, names[kind], strlen(names[kind])) != 0) {
        kind++;
    }
    if (kind == kinds) {
        return refuse_word(why, "it is not a start, stop, drop or end");
    }
    *o = (said_order){.kind = (order_kind)kind};
    const char *at = text + strlen(names[kind]);
    bool holds =
        o->kind == ORDER_START  ? read_start(&at, v, o, why)
        : o->kind == ORDER_STOP ? read_stop(&at, v, o, why)
        : o->kind == ORDER_END
            ? read_end(&at, v, o, why)
            : take_last_number(&at, (number_field){"node", 1, MOST_LAUNCHERS}, &o->node, why);
    if (holds && strlen(at) > LONGEST_TEXT) {
        return refuse_word(why, "its text has more than %d bytes", LONGEST_TEXT);
    }
    if (!holds) {
        return false;
    }
    o->text = at;
    if (o->kind == ORDER_START) {
        v->round = o->round.number;
        v->member = o->round.local > 0;
    }
    v->started = o->kind == ORDER_START || (o->kind != ORDER_STOP && v->started);
    return true;
}
