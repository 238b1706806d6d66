/* Meshes: the ranks of a group as a block with named dimensions. A set of dimensions has a group:
 * the ranks that differ in these dimensions only. Groups for one dimension are made with the mesh,
 * by one split each; those for several at the first request. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 32, SETS = 1 << TN_MESH_DIMS };

typedef struct dimension {
    char name[NAME];
    int size, place; /* of this rank */
    int step;        /* from a rank to its neighbour along this dimension */
} dimension;

struct tn_mesh {
    tn__alive alive;
    tn_group *whole;
    int n;
    dimension dims[TN_MESH_DIMS];
    tn_group *groups[SETS]; /* by the set's bits; NULL: not made yet, or `whole` is NULL */
};

/* Spaces separate names. */
static bool good_name(const char *name) {
    return name && *name && strlen(name) < NAME && !strchr(name, ' ');
}

/* Raises unless the names are good and the sizes give `ranks`. */
static bool check_sizes(int ranks, int n, const int *sizes, const char *const *names) {
    static const char name[] = "mesh";
    if (n < 1 || n > TN_MESH_DIMS || !sizes || !names) {
        return tn__fail(TN_EVALUE, name, "%d dimensions (1 to %d), sizes at %p, names at %p", n,
                        TN_MESH_DIMS, (const void *)sizes, (const void *)names);
    }
    int64_t product = 1;
    for (int i = 0; i < n; i++) {
        if (!good_name(names[i])) {
            return tn__fail(TN_EVALUE, name,
                            "dimension %d is called \"%.40s\" (1 to %d bytes, no space)", i,
                            names[i] ? names[i] : "(NULL)", NAME - 1);
        }
        for (int j = 0; j < i; j++) {
            if (strcmp(names[i], names[j]) == 0) {
                return tn__fail(TN_EVALUE, name, "dimensions %d and %d are both called %s", j, i,
                                names[i]);
            }
        }
        if (sizes[i] < 1 || sizes[i] > ranks) {
            return tn__fail(TN_EVALUE, name, "dimension %s has size %d, but there are %d ranks",
                            names[i], sizes[i], ranks);
        }
        product *= sizes[i];
    }
    return product == ranks ||
           tn__fail(TN_EVALUE, name, "the sizes multiply to %lld, but there are %d ranks",
                    (long long)product, ranks);
}

/* The group of a set of dimensions. NULL after raising. */
static tn_group *group_of(tn_mesh *m, unsigned set) {
    if (!m->groups[set] && m->whole) {
        int first = tn_group_rank(m->whole); /* of the ranks that differ in the set only */
        for (int i = 0; i < m->n; i++) {
            first -= set >> i & 1 ? m->dims[i].place * m->dims[i].step : 0;
        }
        m->groups[set] = tn_group_split(m->whole, first);
    }
    return m->groups[set];
}

TN__ALIVE_LIST(meshes, "mesh");

tn_mesh *tn_mesh_new(tn_group *g, int n, const int *sizes, const char *const *names) {
    int ranks = tn_group_size(g), step = ranks;
    bool sound = !tn__pending() && check_sizes(ranks, n, sizes, names);
    tn_mesh *m = sound ? tn__calloc_for(1, sizeof(*m), "mesh") : NULL;
    if (!m) {
        tn_group_abort(g, tn_error_message());
        return NULL;
    }
    tn__alive_begin(&meshes, m);
    m->whole = g;
    bool fine = true;
    for (int i = 0; i < n && fine; i++) {
        dimension *d = &m->dims[m->n++];
        step /= sizes[i];
        *d = (dimension){
            .size = sizes[i], .step = step, .place = tn_group_rank(g) / step % sizes[i]};
        snprintf(d->name, sizeof(d->name), "%s", names[i]);
        fine = group_of(m, 1U << i) || !g;
    }
    if (!fine) {
        tn_mesh_free(m);
        return NULL;
    }
    return m;
}

/* The dimension that these bytes name; -1 after raising. */
static int find_dimension(const tn_mesh *m, const char *name, size_t length,
                          const char *operation) {
    char known[TN_MESH_DIMS * (NAME + 1) + 1] = "";
    for (int i = 0; i < m->n; i++) {
        if (strlen(m->dims[i].name) == length && memcmp(m->dims[i].name, name, length) == 0) {
            return i;
        }
        strcat(strcat(known, " "), m->dims[i].name);
    }
    tn__raise(TN_EVALUE, operation, "no dimension is called \"%.*s\"; there are%s",
              (int)(length < 40 ? length : 40), name, known);
    return -1;
}

/* The set of the named dimensions; 0 after raising. */
static unsigned find_set(const tn_mesh *m, const char *names, const char *operation) {
    if (!m || !names) {
        tn__raise(TN_EVALUE, operation, "%s is NULL", m ? "the name" : "the mesh");
        return 0;
    }
    if (!tn__alive_is(&meshes, m, operation)) { return 0; }
    unsigned set = 0;
    do {
        size_t length = strcspn(names, " ");
        int i = find_dimension(m, names, length, operation);
        if (i >= 0 && (set >> i & 1)) {
            tn__raise(TN_EVALUE, operation, "the dimension %s is named twice", m->dims[i].name);
        }
        if (i < 0 || tn__pending()) { return 0; }
        set |= 1U << i;
        names += length;
    } while (*names++);
    return set;
}

tn_group *tn_mesh_group(tn_mesh *m, const char *names) {
    unsigned set = find_set(m, names, "mesh_group");
    return set ? group_of(m, set) : NULL;
}

int tn_mesh_rank(tn_mesh *m, const char *names) {
    unsigned set = find_set(m, names, "mesh_rank");
    int rank = set ? 0 : -1;
    for (int i = 0; set && i < m->n; i++) {
        rank = set >> i & 1 ? rank * m->dims[i].size + m->dims[i].place : rank;
    }
    return rank;
}

void tn_mesh_free(tn_mesh *m) {
    if (!m || !tn__alive_end(&meshes, m, "mesh_free")) { return; }
    for (int set = 0; set < SETS; set++) {
        tn_group_free(m->groups[set]);
    }
    free(m);
}
