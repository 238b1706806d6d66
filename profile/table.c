/* Tables of what the profiler saw.
 *
 * The sites are walked once, parents first. A row is a name (operations) or a path (modules) and
 * gathers its sites wherever they are in the tree. A site counts once in the total of each row
 * around it; if it has a row itself, its time is subtracted from the self time of the row around
 * it.
 */
#include "core/error.h"
#include "core/memory.h"
#include "profile/profiler.h"
#include "profile/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 128 };

typedef struct table_row {
    char name[PATH];
    uint64_t calls;
    double total, own, back; /* seconds; back: of the total, in backward */
    double bytes, flops, least;
} table_row;

/* A site on the path from the root to the current site, and its row. */
typedef struct table_step {
    const tn__site *site;
    int row; /* -1: none of its own */
} table_step;

typedef struct table {
    tn_profiler_view view;
    table_row *rows;
    int count;
    int64_t capacity;
    table_step *path;
    int depth;
    int64_t path_capacity;
    bool failed;
} table;

static bool has_row(const table *t, const tn__site *site) {
    switch (site->kind) {
    case TN__SPAN_MODULE:
        return t->view == TN_PROFILER_MODULES;
    case TN__SPAN_REGION:
    case TN__SPAN_OP:
    case TN__SPAN_GRADIENT:
    case TN__SPAN_COLLECTIVE:
    case TN__SPAN_WAIT:
        return t->view == TN_PROFILER_OPS;
    default:
        return false;
    }
}

static int find_row(table *t, const tn__site *site) {
    char name[PATH];
    if (site->kind == TN__SPAN_MODULE) {
        tn__site_path(site, name, sizeof(name));
    } else {
        snprintf(name, sizeof(name), "%s", site->name);
    }
    for (int i = 0; i < t->count; i++) {
        if (strcmp(t->rows[i].name, name) == 0) { return i; }
    }
    if (!tn__grow(&t->rows, t->count + 1, &t->capacity, sizeof(*t->rows), NULL)) {
        t->failed = true;
        return -1;
    }
    t->rows[t->count] = (table_row){0};
    memcpy(t->rows[t->count].name, name, sizeof(name));
    return t->count++;
}

/* Adds a site's work, and its time if it has a row, to the rows around it. */
static void count_site(table *t, const tn__site *site, int own_row) {
    bool back = false, inner = false;
    for (int i = 0; i < t->depth; i++) {
        back |= t->path[i].site->kind == TN__SPAN_BACKWARD;
    }
    for (int i = t->depth - 1; i >= 0; i--) {
        int index = t->path[i].row;
        bool again = index < 0; /* or counted already: a row inside itself */
        for (int k = i + 1; k < t->depth && !again; k++) {
            again = t->path[k].row == index;
        }
        if (again) { continue; }
        table_row *row = &t->rows[index];
        row->bytes += site->bytes;
        row->flops += site->flops;
        row->least += site->least;
    }
    for (int i = t->depth - 2; own_row >= 0 && i >= 0; i--) {
        int index = t->path[i].row;
        if (index >= 0) {
            t->rows[index].own -= site->seconds;
            break;
        }
    }
    for (int i = 0; i < t->depth - 1; i++) {
        inner |= own_row >= 0 && t->path[i].row == own_row;
    }
    if (own_row >= 0) {
        table_row *row = &t->rows[own_row];
        row->own += site->seconds;
        row->calls += back && site->kind == TN__SPAN_MODULE ? 0 : site->calls;
        row->total += inner ? 0 : site->seconds;
        row->back += inner || !back ? 0 : site->seconds;
    }
}

static void visit_site(const tn__site *site, void *user) {
    table *t = user;
    while (t->depth > 0 && t->path[t->depth - 1].site != site->up) {
        t->depth--;
    }
    if (t->failed || !tn__grow(&t->path, t->depth + 1, &t->path_capacity, sizeof(*t->path), NULL)) {
        t->failed = true;
        return;
    }
    int row = has_row(t, site) ? find_row(t, site) : -1;
    t->path[t->depth++] = (table_step){site, row};
    count_site(t, site, row);
}

/* ---- Printing -------------------------------------------------------------------------------- */

static int by_own(const void *a, const void *b) {
    double x = ((const table_row *)a)->own, y = ((const table_row *)b)->own;
    return (x < y) - (x > y);
}

static int by_total(const void *a, const void *b) {
    double x = ((const table_row *)a)->total, y = ((const table_row *)b)->total;
    return (x < y) - (x > y);
}

static bool has_limits(void) {
    tn__limits most = tn__profile_limits;
    return most.bytes > 0 || most.flops > 0 || most.half_flops > 0;
}

static void print_head(FILE *file, double seconds) {
    int rank = tn__profiler_rank();
    int64_t steps = tn__profiler_steps();
    fprintf(file, "profile");
    if (rank >= 0) { fprintf(file, " of rank %d", rank); }
    if (steps > 0) { fprintf(file, ", %lld step%s", (long long)steps, steps == 1 ? "" : "s"); }
    fprintf(file, ", %.3f s", seconds);
    if (has_limits()) {
        tn__limits most = tn__profile_limits;
        fprintf(file, "; limits: %.1f GB/s, %.1f GFLOP/s f32, %.1f bf16", most.bytes / 1e9,
                most.flops / 1e9, most.half_flops / 1e9);
    }
    fprintf(file, "\n");
}

/* A number, or blanks if there is none. */
static void print_rate(FILE *file, double amount, double seconds) {
    if (amount > 0 && seconds > 0) {
        fprintf(file, " %8.2f", amount / seconds / 1e9);
    } else {
        fprintf(file, " %8s", "");
    }
}

static void print_row(FILE *file, const table *t, const table_row *row, double seconds) {
    double own = row->own > 0 ? row->own : 0;
    fprintf(file, "%-32s %8llu", row->name, (unsigned long long)row->calls);
    if (t->view == TN_PROFILER_MODULES) {
        fprintf(file, " %10.3f %10.3f", (row->total - row->back) * 1e3, row->back * 1e3);
    }
    fprintf(file, " %10.3f %10.3f %6.1f", row->total * 1e3, own * 1e3,
            seconds > 0 ? 100 * (t->view == TN_PROFILER_OPS ? own : row->total) / seconds : 0);
    if (t->view == TN_PROFILER_OPS) {
        fprintf(file, " %10.1f", row->calls > 0 ? row->total / (double)row->calls * 1e6 : 0);
    }
    print_rate(file, row->bytes, row->total);
    print_rate(file, row->flops, row->total);
    if (row->least > 0 && row->total > 0) {
        fprintf(file, " %7.1f", 100 * row->least / row->total);
    }
    fprintf(file, "\n");
}

static void print_table(FILE *file, const table *t, int most) {
    double seconds = tn__spans_seconds();
    const char *limit = has_limits() ? " % limit" : "";
    print_head(file, seconds);
    if (t->view == TN_PROFILER_MODULES) {
        fprintf(file, "%-32s %8s %10s %10s %10s %10s %6s %8s %8s%s\n", "module", "calls",
                "forward ms", "backward", "total", "self", "% time", "GB/s", "GFLOP/s", limit);
    } else {
        fprintf(file, "%-32s %8s %10s %10s %6s %10s %8s %8s%s\n", "operation", "calls", "total ms",
                "self ms", "% time", "mean us", "GB/s", "GFLOP/s", limit);
    }
    for (int i = 0; i < t->count && i < most; i++) {
        print_row(file, t, &t->rows[i], seconds);
    }
    if (t->count > most) { fprintf(file, "and %d more\n", t->count - most); }
}

tn_status tn_profiler_table(FILE *file, tn_profiler_view view, int most) {
    if (!file || most < 1 || (view != TN_PROFILER_OPS && view != TN_PROFILER_MODULES)) {
        return tn__raise(TN_EVALUE, "profiler_table",
                         "the file is NULL, the view is unknown, or most is below 1");
    }
    table t = {.view = view};
    tn__sites_each(visit_site, &t);
    if (t.failed) {
        tn__raise(TN_ENOMEM, "profiler_table", "no memory");
    } else {
        if (t.count > 0) {
            qsort(t.rows, (size_t)t.count, sizeof(*t.rows),
                  view == TN_PROFILER_OPS ? by_own : by_total);
        }
        print_table(file, &t, most);
    }
    free(t.rows);
    free(t.path);
    return tn_error();
}
