/* Groups of some ranks of another one: by a list, which all ranks know, or by colours.
 *
 * With a list, the parent's ranks agree on it: with different lists they would wait for each other
 * in different groups. Colours may differ: one all-gather in the parent gives them to all, and each
 * rank makes only its own group, however many there are.
 *
 * A child meets in the parent's store, under a prefix of its own.
 */
#include "core/buffer.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/group/group.h"
#include "distributed/group/values.h"
#include "distributed/on_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The child ------------------------------------------------------------------------------- */

/* Makes the group of the n ranks of g in `sorted`. */
static tn_group *make_subgroup(tn_group *g, const char *engine, const char *name, tn_store *store,
                               const int *sorted, int n) {
    int rank = -1, *world = tn__malloc_for((size_t)n * sizeof(int), "group");
    if (!world) { return NULL; }
    for (int i = 0; i < n; i++) {
        world[i] = g->world[sorted[i]];
        rank = sorted[i] == g->rank ? i : rank;
    }
    tn_group *child = tn__group_create(name, engine, store, rank, n, world, &g->options);
    if (child && child->reports) {
        tn_store_free(child->reports);
        child->reports = g->reports;
        __atomic_fetch_add(&g->reports->refs, 1, __ATOMIC_RELAXED);
    }
    free(world);
    return child;
}

/* ---- By a list ------------------------------------------------------------------------------- */

/* The ranks, ascending. False after raising. */
static bool sort_ranks(const tn_group *g, const int *ranks, int n, int *sorted) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= g->size) {
            return tn__fail(TN_EINDEX, "group_new", "rank %d, but group %s has ranks 0 … %d",
                            ranks[i], g->name, g->size - 1);
        }
    }
    for (int r = 0; r < g->size; r++) {
        int times = 0;
        for (int i = 0; i < n; i++) {
            times += ranks[i] == r;
        }
        if (times > 1) {
            return tn__fail(TN_EVALUE, "group_new", "rank %d is in the list %d times", r, times);
        }
        if (times) { sorted[found++] = r; }
    }
    return true;
}

/* Whether all ranks of g make the same group; each calls, even if `sorted` is none. */
static bool agree_on_ranks(tn_group *g, const int *sorted, int n) {
    tn__buffer list = {.operation = "group_new"};
    tn__buffer_text(&list, "a group of ranks");
    for (int i = 0; i < n && !tn__pending(); i++) {
        tn__buffer_format(&list, " %d", sorted[i]);
    }
    bool same = tn__agree(g, list.at, "group_new") == TN_OK;
    tn__buffer_free(&list);
    return same;
}

tn_group *tn_group_new(tn_group *g, const int *ranks, int n) {
    if (!g) { return tn__fail_null(TN_EVALUE, "group_new", "the parent is NULL"); }
    if (!tn__group_usable(g, "group_new") || !tn__agree_begin(g, "group_new")) { return NULL; }
    char key[32], name[64];
    snprintf(key, sizeof(key), "group%d", ++g->children);
    snprintf(name, sizeof(name), "%.48s/%d", g->name, g->children - 1);
    int *sorted = tn__calloc_for(n > 0 ? (size_t)n : 1, sizeof(int), "group_new");
    tn_store *store = g->size > 1 ? tn_prefix_store(g->store, key) : NULL;
    if (!tn__pending()) { sort_ranks(g, ranks, n, sorted); }
    tn_group *child = agree_on_ranks(g, sorted, n)
                          ? make_subgroup(g, g->engine_name, name, store, sorted, n)
                          : NULL;
    tn_store_free(store);
    free(sorted);
    return child;
}

/* ---- The same ranks -------------------------------------------------------------------------- */

tn_group *tn__group_again(tn_group *g, const char *name, double timeout) {
    TN__ON_CPU;
    if (!tn__group_usable(g, "group")) { return NULL; }
    char key[32], engine[32];
    snprintf(key, sizeof(key), "group%d", ++g->children);
    snprintf(engine, sizeof(engine), "%.*s", (int)strcspn(g->engine_name, "+"), g->engine_name);
    int *all = tn__calloc_for((size_t)g->size, sizeof(int), "group");
    tn_store *store = all ? tn_prefix_store(g->store, key) : NULL;
    for (int r = 0; all && r < g->size; r++) {
        all[r] = r;
    }
    tn_group *child = store ? make_subgroup(g, engine, name, store, all, g->size) : NULL;
    if (child) { tn_group_set_timeout(child, timeout); }
    tn_store_free(store);
    free(all);
    return child;
}

/* ---- By colours ------------------------------------------------------------------------------ */

/* The ranks of g with this rank's colour, ascending, in members[g->size]. Returns how many, or 0
 * after raising. */
static int find_members(tn_group *g, int colour, int *members) {
    int n = 0;
    if (tn__gather_values(g, &colour, 1, TN_I32, members) != TN_OK) { return 0; }
    for (int r = 0; r < g->size; r++) { /* colours make room for the ranks of one */
        if (members[r] == colour) { members[n++] = r; }
    }
    return n;
}

static tn_group *make_coloured(tn_group *g, int colour, const int *members, int n) {
    char name[64], key[64];
    snprintf(name, sizeof(name), "%.40s/%d.%d", g->name, g->children - 1, colour);
    if (colour < 0) {
        return tn__group_create(name, g->engine_name, NULL, -1, 0, NULL, &g->options);
    }
    snprintf(key, sizeof(key), "group%d.%d", g->children, colour);
    tn_store *store = n > 1 ? tn_prefix_store(g->store, key) : NULL;
    tn_group *child =
        tn__pending() ? NULL : make_subgroup(g, g->engine_name, name, store, members, n);
    tn_store_free(store);
    return child;
}

tn_group *tn_group_split(tn_group *g, int colour) {
    static const char name[] = "group_split";
    if (!g) { return tn__fail_null(TN_EVALUE, name, "the parent is NULL"); }
    if (!tn__group_usable(g, name)) { return NULL; }
    g->children++;
    int *members = tn__malloc_for((size_t)g->size * sizeof(int), name);
    if (!members) {
        tn_group_abort(g, tn_error_message());
        return NULL;
    }
    int n = find_members(g, colour, members);
    tn_group *child = n > 0 ? make_coloured(g, colour, members, n) : NULL;
    free(members);
    return child;
}
