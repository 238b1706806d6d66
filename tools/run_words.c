/* Writes and reads the messages of run_words.h by their tables of fields. */
#include "tools/run.h"

#include "tensor/fields.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *const states[] = {"idle", "running", "failed", "stopped", "done", "left", NULL};
static const char *const kinds[] = {"start", "stop", "drop", "end", NULL};

static const tn_field info_fields[] = {
    TN_FIELD(node_info, version),
    TN_FIELD_AS("host", node_info, name),
    TN_FIELD_AS("smallest number of nodes", node_info, min, .least = 1, .most = MOST_NODES),
    TN_FIELD_AS("largest number of nodes", node_info, max, .least = 1, .most = MOST_NODES),
    TN_FIELD_AS("number of ranks", node_info, ranks, .least = 1, .most = MOST_RANKS),
    TN_FIELD_AS("requested rank", node_info, wanted, .least = -1, .most = MOST_NODES - 1),
    TN_FIELD_AS("process", node_info, pid, .least = 1, .most = INT_MAX),
    TN_FIELD_AS("job", node_info, run_id),
    {0},
};

static const tn_field heartbeat_fields[] = {
    TN_FIELD(heartbeat, count, .least = 0, .most = (double)INT64_MAX),
    TN_FIELD(heartbeat, round, .least = 0, .most = INT_MAX),
    TN_FIELD(heartbeat, state, .names = states),
    TN_FIELD_AS("exit code", heartbeat, code, .least = 0, .most = 255),
    TN_FIELD(heartbeat, failure, .least = 0, .most = (double)INT64_MAX),
    {0},
};

static const tn_field order_fields[] = {
    TN_FIELD(order, kind, .names = kinds),
    TN_FIELD(order, number, .least = 0, .most = INT_MAX),
    {0},
};

static const tn_field member_fields[] = {
    TN_FIELD(round_member, node, .least = 0, .most = MOST_LAUNCHERS),
    TN_FIELD_AS("number of ranks", round_member, ranks, .least = 1, .most = MOST_RANKS),
    {0},
};

/* ---- Lines of words -------------------------------------------------------------------------- */

/* false, after raising */
#define refuse(...) (tn_raise(TN_EPEER, __VA_ARGS__) == TN_OK)

static char *write_line(const tn_field *fields, const void *at) {
    tn__buffer b = {0};
    tn__fields_put_words(&b, fields, at);
    return text_take(&b);
}

static bool refuse_word(const tn_field *f, const char *text) {
    char range[128];
    int plain = 0;
    if (f->kind == TN_FIELD_CHARS) { return refuse("its %s is not a name", f->name); }
    while (plain < LONGEST_QUOTE && text[plain] > ' ' && text[plain] <= '~') {
        plain++;
    }
    tn__field_range(f, range, sizeof(range));
    return refuse("its %s is \"%.*s\" (%s)", f->name, plain, text, range);
}

/* Reads a line's words; *text is then what comes after them. Numbers have one spelling: neither
 * "+1" nor "01". */
static bool read_line(const tn_field *fields, void *at, const char **text) {
    const char *line = *text;
    const tn_field *wrong = tn__fields_read_words(fields, at, text);
    if (wrong) { return refuse_word(wrong, *text); }
    char *again = write_line(fields, at);
    size_t length = (size_t)(*text - line);
    bool same = strlen(again) == length && memcmp(again, line, length) == 0;
    free(again);
    return same || refuse("\"%.*s\" is not a line of words and numbers",
                          length < LONGEST_QUOTE ? (int)length : LONGEST_QUOTE, line);
}

/* A text of one line. */
static bool read_message(const tn_field *fields, void *at, const char *text) {
    return read_line(fields, at, &text) && (!*text || refuse("it has extra text after its words"));
}

/* ---- A node's description and state ---------------------------------------------------------- */

char *info_write(const node_info *info) {
    return write_line(info_fields, info);
}

bool info_read(const char *text, node_info *info) {
    *info = (node_info){0};
    return read_message(info_fields, info, text) &&
           (info->min <= info->max ||
            refuse("it needs at least %d nodes and at most %d", info->min, info->max));
}

char *heartbeat_write(const heartbeat *h) {
    return write_line(heartbeat_fields, h);
}

bool heartbeat_read(const char *text, int rounds, heartbeat *h) {
    *h = (heartbeat){0};
    if (!read_message(heartbeat_fields, h, text)) { return false; }
    if (h->round > rounds) { return refuse("its round is %d, of %d", h->round, rounds); }
    bool failed = h->state == NODE_FAILED || (h->state == NODE_STOPPED && h->failure > 0);
    return !failed || h->code > 0 || refuse("it reports a failure with exit code 0");
}

/* ---- Orders ---------------------------------------------------------------------------------- */

order *order_new(order_kind kind, int number, char *text) {
    order *o = memory_new(1, sizeof(*o));
    *o = (order){.kind = kind, .number = number, .text = text ? text : text_new("%s", "")};
    if (strlen(o->text) > LONGEST_TEXT) { o->text[LONGEST_TEXT] = 0; }
    return o;
}

void order_free(order *o) {
    if (o) {
        free(o->members);
        free(o->text);
        free(o);
    }
}

void orders_add(order_queue *q, order *o) {
    *(q->first ? &q->last->next : &q->first) = o;
    q->last = o;
    o->next = NULL;
}

order *orders_take(order_queue *q) {
    order *o = q->first;
    if (o) { q->first = o->next; }
    return o;
}

char *order_write(const order *o) {
    tn__buffer b = {0};
    tn__fields_put_words(&b, order_fields, o);
    for (int i = 0; i < o->count; i++) {
        tn__buffer_text(&b, "\n");
        tn__fields_put_words(&b, member_fields, &o->members[i]);
    }
    tn__buffer_format(&b, "\n\n%s", o->text);
    return text_take(&b);
}

static bool end_line(const char **at) {
    bool ends = **at == '\n';
    *at += ends;
    return ends || refuse("it has extra text after its numbers, or no end of a line");
}

static bool read_order(order *o, const char *text) {
    if (!read_line(order_fields, o, &text) || !end_line(&text)) { return false; }
    o->members =
        memory_new(strlen(text) / 4 + 1, sizeof(*o->members)); /* "0 1\n" is the shortest */
    while (*text && *text != '\n') {
        if (!read_line(member_fields, &o->members[o->count++], &text) || !end_line(&text)) {
            return false;
        }
    }
    if (!end_line(&text)) { return false; }
    if (strlen(text) > LONGEST_TEXT) {
        return refuse("its text has more than %d bytes", LONGEST_TEXT);
    }
    free(o->text);
    o->text = text_new("%s", text);
    return true;
}

order *order_read(const char *text) {
    order *o = order_new(ORDER_END, 1, NULL);
    if (!read_order(o, text)) {
        order_free(o);
        o = NULL;
    }
    return o;
}

run_round order_round(const order *o, int own) {
    run_round r = {.number = o->number, .restarts = o->number - 1, .nodes = o->count};
    for (int i = 0; i < o->count; i++) {
        const round_member *m = &o->members[i];
        if (m->node == own) {
            r.node = i;
            r.first = r.world;
            r.local = m->ranks;
        }
        r.world += m->ranks;
    }
    return r;
}

/* Whether this node's ranks have ended, and in one of these states. */
static bool has_ended(const order_view *v, bool well) {
    return !v->member || (v->reported == v->round &&
                          (v->state == NODE_DONE || (!well && v->state == NODE_STOPPED)));
}

static bool may_start(const order_view *v, const order *o) {
    if (v->started) { return refuse("round %d has not been stopped", v->round); }
    if (!has_ended(v, false)) { return refuse("this node has ranks of round %d", v->round); }
    if (o->number - 1 != v->round) {
        return refuse("its round is %d after round %d", o->number, v->round);
    }
    if (o->count < v->min_nodes || o->count > v->max_nodes) {
        return refuse("it starts %d nodes, where --nnodes is %d:%d", o->count, v->min_nodes,
                      v->max_nodes);
    }
    for (int i = 0, named = 0; i < o->count; i++) {
        const round_member *m = &o->members[i];
        if (m->node == v->own && m->ranks != v->ranks) {
            return refuse("it starts %d ranks here, where -n is %d", m->ranks, v->ranks);
        }
        if (m->node == v->own && named++) { return refuse("it names this node twice"); }
    }
    return true;
}

static bool may_stop(const order_view *v, const order *o) {
    if (!v->started) { return refuse("no round has been started"); }
    return o->number == v->round || refuse("its round is %d, not %d", o->number, v->round);
}

static bool may_end(const order_view *v, const order *o) {
    if (o->number > 255) { return refuse("its exit code is %d", o->number); }
    if (o->number == 0 && !v->started) {
        return refuse("it reports success, but no round has been started");
    }
    return o->number > 0 || has_ended(v, true) ||
           refuse("it reports success, but this node's ranks have not ended");
}

bool order_accept(order_view *v, const order *o) {
    bool start = o->kind == ORDER_START;
    if (o->count > 0 && !start) { return refuse("only a start has members"); }
    if ((start && !may_start(v, o)) || (o->kind == ORDER_STOP && !may_stop(v, o)) ||
        (o->kind == ORDER_END && !may_end(v, o))) {
        return false;
    }
    if (start) {
        v->round = o->number;
        v->member = order_round(o, v->own).local > 0;
    }
    v->started = start || (o->kind != ORDER_STOP && v->started);
    return true;
}
