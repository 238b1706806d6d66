/* Options of `tern run` that a service gives in its environment instead: torchrun's PET_NAME in the
 * place of --name, which Kubeflow sets, and SageMaker's list of hosts. */
#include "tools/run_services.h"

#include "distributed/init/environment.h"
#include "tools/run.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

typedef struct words {
    char **at; /* with room for MOST more */
    int count;
} words;

enum { MOST = 64 };

/* What the launcher's own words say: PROGRAM and what follows are not its options. */
typedef struct given {
    char *const *argv;
    int count;
    const tn_option *rows;
    int row_count;
} given;

/* The row that a word names, also abbreviated or with underscores; *ends: after its name. */
static const tn_option *row_of(const given *g, const char *word, const char **ends) {
    for (int i = 0; i < g->row_count; i++) {
        const tn_option *row = &g->rows[i];
        if (word[1] != '-') {
            *ends = word + 2;
            if (row->letter && row->letter == word[1]) {
                return row;
            }
            continue;
        }
        const char *name = row->name ? row->name : "", *at = word + 2;
        while (*at && *name && (*at == *name || (*at == '_' && *name == '-'))) {
            at++;
            name++;
        }
        *ends = at;
        if (at > word + 2 && (!*at || *at == '=')) {
            return row;
        }
    }
    return NULL;
}

static bool is_given(const given *g, const char *name) {
    for (int i = 1; i < g->count && g->argv[i][0] == '-' && strcmp(g->argv[i], "--") != 0; i++) {
        const char *ends = "";
        const tn_option *row = row_of(g, g->argv[i], &ends);
        if (row && row->name && strcmp(row->name, name) == 0) {
            return true;
        }
        i += row && row->value && !row->flag && !*ends; /* the next word is its value */
    }
    return false;
}

/* Whether an option says which hosts there are. */
static bool is_place(const char *name) {
    static const char *const all[] = {"nnodes",      "node-rank",     "master-addr",
                                      "master-port", "rdzv-endpoint", "standalone"};
    bool found = false;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        found |= strcmp(name, all[i]) == 0;
    }
    return found;
}

/* torchrun's: a flag is given by 1. */
static void add_variables(words *w, const given *g, bool placed) {
    const tn_option *rows = g->rows;
    bool has_point = is_given(g, "rdzv-endpoint") || getenv("PET_RDZV_ENDPOINT");
    bool has_address = is_given(g, "master-addr");
    for (int i = 0; i < g->row_count && w->count < MOST; i++) {
        char name[64] = "PET_";
        size_t length = strlen(name);
        const char *from = rows[i].name ? rows[i].name : "";
        for (; *from && length + 1 < sizeof(name); from++) {
            name[length++] = *from == '-' ? '_' : (char)toupper((unsigned char)*from);
        }
        bool counts = rows[i].name && !(placed && is_place(rows[i].name)) &&
                      !(has_point && strncmp(rows[i].name, "master-", 7) == 0) &&
                      !(has_address && strcmp(rows[i].name, "rdzv-endpoint") == 0);
        const char *value = counts ? getenv(name) : NULL;
        if (value && *value && rows[i].value) {
            w->at[w->count++] = text_new("--%s=%s", rows[i].name, value);
        } else if (value && strcmp(value, "1") == 0) {
            w->at[w->count++] = text_new("--%s", rows[i].name);
        }
    }
}

static void add_sagemaker(words *w, const given *g) {
    tn__sagemaker s;
    if (!tn__environment_sagemaker((const char *const *)environ, &s) || s.hosts < 2) {
        return;
    }
    w->at[w->count++] = text_new("--nnodes=%d", (int)s.hosts);
    w->at[w->count++] = text_new("--node-rank=%d", (int)s.index);
    if (!is_given(g, "master-addr")) {
        w->at[w->count++] = text_new("--rdzv-endpoint=%s", s.first);
    }
    if (s.gpus > 0) {
        w->at[w->count++] = text_new("--nproc-per-node=%d", (int)s.gpus);
    }
    if (*s.interface) {
        setenv("TERN_INTERFACE", s.interface, 0);
    }
}

char **service_words(int *argc, char **argv, const tn_option *rows, int count) {
    const given g = {argv, *argc, rows, count};
    bool placed = is_given(&g, "standalone") || is_given(&g, "nnodes");
    words w = {.at = memory_new((size_t)*argc + MOST + 8, sizeof(*w.at)), .count = 1};
    w.at[0] = argv[0];
    add_variables(&w, &g, placed);
    if (!placed && !getenv("PET_NNODES")) {
        add_sagemaker(&w, &g);
    }
    memcpy(w.at + w.count, argv + 1, (size_t)(*argc - 1) * sizeof(*argv));
    *argc += w.count - 1;
    return w.at;
}
