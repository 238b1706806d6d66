/* Meshes: the ranks of a group as a block with named dimensions, and for each dimension the group
 * of the ranks that differ in nothing else. Groups are made by all ranks in one order, so every
 * rank makes those of all lines and keeps its own. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 32 };

typedef struct dimension {
    char name[NAME];
    int size, place; /* of this rank */
    int step;        /* from a rank to its neighbour along this dimension */
    tn_group *group; /* NULL where g is */
} dimension;

struct tn_mesh {
    int n;
    dimension dims[TN_MESH_DIMS];
};

/* Raises unless the names are good and the sizes give `ranks`. */
static bool check_sizes(int ranks, int n, const int *sizes, const char *const *names) {
    static const char name[] = "mesh";
    if (n < 1 || n > TN_MESH_DIMS || !sizes || !names) {
        tn__raise(TN_EVALUE, name, "%d dimensions (1 to %d), sizes at %p, names at %p", n,
                  TN_MESH_DIMS, (const void *)sizes, (const void *)names);
        return false;
    }
    int64_t product = 1;
    for (int i = 0; i < n; i++) {
        if (!names[i] || !*names[i] || strlen(names[i]) >= NAME) {
            tn__raise(TN_EVALUE, name, "dimension %d is called \"%.40s\" (1 to %d bytes)", i,
                      names[i] ? names[i] : "(NULL)", NAME - 1);
            return false;
        }
        for (int j = 0; j < i; j++) {
            if (strcmp(names[i], names[j]) == 0) {
                tn__raise(TN_EVALUE, name, "dimensions %d and %d are both called %s", j, i,
                          names[i]);
                return false;
            }
        }
        if (sizes[i] < 1 || sizes[i] > ranks) {
            tn__raise(TN_EVALUE, name, "dimension %s has size %d, but there are %d ranks", names[i],
                      sizes[i], ranks);
            return false;
        }
        product *= sizes[i];
    }
    if (product != ranks) {
        tn__raise(TN_EVALUE, name, "the sizes multiply to %lld, but there are %d ranks",
                  (long long)product, ranks);
    }
    return product == ranks;
}

/* Makes the groups of all lines along d; keeps the one of this rank. */
static bool make_groups(tn_group *g, dimension *d, int *line) {
    int ranks = tn_group_size(g), me = tn_group_rank(g);
    for (int first = 0; first < ranks; first++) {
        if (first / d->step % d->size != 0) {
            continue;
        }
        bool mine = false;
        for (int i = 0; i < d->size; i++) {
            line[i] = first + i * d->step;
            mine = mine || line[i] == me;
        }
        tn_group *made = tn_group_new(g, line, d->size);
        if (!made) {
            return false;
        }
        if (mine) {
            d->group = made;
        } else {
            tn_group_free(made);
        }
    }
    return true;
}

tn_mesh *tn_mesh_new(tn_group *g, int n, const int *sizes, const char *const *names) {
    int ranks = tn_group_size(g), step = ranks;
    if (tn__pending() || !check_sizes(ranks, n, sizes, names)) {
        tn_group_abort(g, tn_error_message());
        return NULL;
    }
    tn_mesh *m = tn__calloc(1, sizeof(*m));
    int *line = tn__malloc((size_t)ranks * sizeof(int));
    bool fine = m && line;
    if (!fine) {
        tn__raise(TN_ENOMEM, "mesh", "out of memory for %d ranks", ranks);
        tn_group_abort(g, tn_error_message());
    }
    for (int i = 0; i < n && fine; i++) {
        dimension *d = &m->dims[m->n++];
        step /= sizes[i];
        *d = (dimension){
            .size = sizes[i], .step = step, .place = tn_group_rank(g) / step % sizes[i]};
        snprintf(d->name, sizeof(d->name), "%s", names[i]);
        fine = !g || make_groups(g, d, line);
    }
    free(line);
    if (!fine) {
        tn_mesh_free(m);
        return NULL;
    }
    return m;
}

/* NULL after raising. */
static const dimension *find_dimension(const tn_mesh *m, const char *name, const char *operation) {
    if (!m || !name) {
        tn__raise(TN_EVALUE, operation, "%s is NULL", m ? "the name" : "the mesh");
        return NULL;
    }
    char known[TN_MESH_DIMS * (NAME + 1) + 1] = "";
    for (int i = 0; i < m->n; i++) {
        if (strcmp(m->dims[i].name, name) == 0) {
            return &m->dims[i];
        }
        strcat(strcat(known, " "), m->dims[i].name);
    }
    tn__raise(TN_EVALUE, operation, "no dimension is called \"%.40s\"; there are%s", name, known);
    return NULL;
}

tn_group *tn_mesh_group(tn_mesh *m, const char *name) {
    const dimension *d = find_dimension(m, name, "mesh_group");
    return d ? d->group : NULL;
}

int tn_mesh_rank(tn_mesh *m, const char *name) {
    const dimension *d = find_dimension(m, name, "mesh_rank");
    return d ? d->place : -1;
}

void tn_mesh_free(tn_mesh *m) {
    for (int i = 0; m && i < m->n; i++) {
        tn_group_free(m->dims[i].group);
    }
    free(m);
}
