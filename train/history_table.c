/* The table of a history; columns are empty where nothing was measured (history_table.h).
 *
 *     step,loss,lr,val_loss
 *     0,10.9,0.0001,
 *     1,10.7,0.0002,10.6
 */
#include "train/history_table.h"

#include "core/error.h"
#include "core/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tn__history_free(tn__history_table *t) {
    for (int i = 0; i < t->count; i++) {
        free(t->columns[i].x);
        free(t->columns[i].y);
    }
    free(t->columns);
}

/* ---- Columns --------------------------------------------------------------------------------- */

static bool name_fits(const char *name, size_t bytes) {
    bool fits = bytes > 0 && bytes < TN__COLUMN_NAME;
    for (size_t i = 0; i < bytes && fits; i++) {
        fits = name[i] > ' ' && name[i] < 127 && name[i] != ',' && name[i] != '"';
    }
    return fits && !(bytes == 4 && memcmp(name, "step", 4) == 0);
}

tn__column *tn__history_find(const tn__history_table *t, const char *name, size_t bytes) {
    for (int i = 0; i < t->count; i++) {
        if (strncmp(t->columns[i].name, name, bytes) == 0 && !t->columns[i].name[bytes]) {
            return &t->columns[i];
        }
    }
    return NULL;
}

tn__column *tn__history_add(tn__history_table *t, const char *name, size_t bytes) {
    if (!name_fits(name, bytes) || t->count == TN__COLUMNS) {
        return tn__fail_null(
            TN_EVALUE, "history",
            "bad column \"%.*s\" (at most %d columns of up to %d characters, without spaces, "
            "commas or quotes, and not \"step\")",
            (int)(bytes < 40 ? bytes : 40), name, TN__COLUMNS, TN__COLUMN_NAME - 1);
    }
    if (!tn__grow(&t->columns, t->count + 1, &t->capacity, sizeof(*t->columns), "history")) {
        return NULL;
    }
    tn__column *c = &t->columns[t->count++];
    *c = (tn__column){0};
    memcpy(c->name, name, bytes);
    return c;
}

static bool column_grow(tn__column *c) {
    int64_t capacity = c->capacity; /* of both */
    return tn__grow(&c->x, c->count + 1, &capacity, sizeof(*c->x), "history") &&
           tn__grow(&c->y, c->count + 1, &c->capacity, sizeof(*c->y), "history");
}

bool tn__history_step(tn__history_table *t) {
    for (int i = 0; i < t->count; i++) {
        if (t->columns[i].given && !column_grow(&t->columns[i])) { return false; }
    }
    for (int i = 0; i < t->count; i++) {
        tn__column *c = &t->columns[i];
        if (c->given) {
            c->x[c->count] = (double)t->rows;
            c->y[c->count++] = c->next;
            c->given = false;
        }
    }
    t->rows++;
    return true;
}

/* ---- Text ------------------------------------------------------------------------------------ */

int tn__history_head(const tn__history_table *t, char *text) {
    int bytes = sprintf(text, "step");
    for (int i = 0; i < t->count; i++) {
        bytes += sprintf(text + bytes, ",%s", t->columns[i].name);
    }
    return bytes + sprintf(text + bytes, "\n");
}

int tn__history_row(const tn__history_table *t, int64_t step, int64_t *at, char *text) {
    int bytes = sprintf(text, "%lld", (long long)step);
    for (int i = 0; i < t->count; i++) {
        const tn__column *c = &t->columns[i];
        bool has = at[i] < c->count && c->x[at[i]] == (double)step;
        bytes += has ? sprintf(text + bytes, ",%.9g", c->y[at[i]]) : sprintf(text + bytes, ",");
        at[i] += has;
    }
    return bytes + sprintf(text + bytes, "\n");
}

/* ---- Reading --------------------------------------------------------------------------------- */

bool tn__history_read_head(tn__history_table *t, const char **at) {
    static const char begin[] = "step,loss";
    bool sound = strncmp(*at, begin, sizeof(begin) - 1) == 0;
    *at += sound ? sizeof(begin) - 1 : 0;
    while (sound && **at == ',') {
        const char *name = *at + 1;
        size_t bytes = strcspn(name, ",\n");
        sound = name_fits(name, bytes) && !tn__history_find(t, name, bytes) &&
                tn__history_add(t, name, bytes) != NULL;
        *at = name + bytes;
    }
    sound = sound && **at == '\n';
    *at += sound;
    return sound;
}

/* Reads ",2.5" or ",", and advances past it. */
static bool read_value(tn__column *c, const char **at) {
    if (**at != ',') { return false; }
    const char *number = *at + 1;
    char *end = (char *)number;
    c->given = *number != ',' && *number != '\n';
    c->next = c->given && *number != ' ' ? strtod(number, &end) : 0;
    *at = end;
    return c->given == (end != number);
}

bool tn__history_read_row(tn__history_table *t, const char **at) {
    char *end;
    errno = 0;
    long long step = strtoll(*at, &end, 10);
    bool sound = **at >= '0' && **at <= '9' && errno == 0 && step == t->rows, any = false;
    *at = end;
    for (int i = 0; i < t->count && sound; i++) {
        sound = read_value(&t->columns[i], at);
        any |= t->columns[i].given;
    }
    sound = sound && any && **at == '\n';
    *at += sound;
    return sound && tn__history_step(t);
}
