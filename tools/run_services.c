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

static bool argv_has(char *const *argv, int argc, const char *word) {
    size_t length = strlen(word);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], word, length) == 0 && (!argv[i][length] || argv[i][length] == '=')) {
            return true;
        }
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
static void add_variables(words *w, const tn_option *rows, int count, bool placed) {
    for (int i = 0; i < count && w->count < MOST; i++) {
        char name[64] = "PET_";
        size_t length = strlen(name);
        const char *from = rows[i].name ? rows[i].name : "";
        for (; *from && length + 1 < sizeof(name); from++) {
            name[length++] = *from == '-' ? '_' : (char)toupper((unsigned char)*from);
        }
        bool counts = rows[i].name && !(placed && is_place(rows[i].name));
        const char *value = counts ? getenv(name) : NULL;
        if (value && *value && rows[i].value) {
            w->at[w->count++] = text_new("--%s=%s", rows[i].name, value);
        } else if (value && strcmp(value, "1") == 0) {
            w->at[w->count++] = text_new("--%s", rows[i].name);
        }
    }
}

static void add_sagemaker(words *w) {
    tn__sagemaker s;
    if (!tn__environment_sagemaker((const char *const *)environ, &s) || s.hosts < 2) {
        return;
    }
    w->at[w->count++] = text_new("--nnodes=%d", (int)s.hosts);
    w->at[w->count++] = text_new("--node-rank=%d", (int)s.index);
    w->at[w->count++] = text_new("--rdzv-endpoint=%s", s.first);
    if (s.gpus > 0) {
        w->at[w->count++] = text_new("--nproc-per-node=%d", (int)s.gpus);
    }
    if (*s.interface) {
        setenv("TERN_INTERFACE", s.interface, 0);
    }
}

char **service_words(int *argc, char **argv, const tn_option *rows, int count) {
    bool placed = argv_has(argv, *argc, "--standalone") || argv_has(argv, *argc, "--nnodes");
    words w = {.at = memory_new((size_t)*argc + MOST + 8, sizeof(*w.at)), .count = 1};
    w.at[0] = argv[0];
    add_variables(&w, rows, count, placed);
    if (!placed && !getenv("PET_NNODES")) {
        add_sagemaker(&w);
    }
    memcpy(w.at + w.count, argv + 1, (size_t)(*argc - 1) * sizeof(*argv));
    *argc += w.count - 1;
    return w.at;
}
