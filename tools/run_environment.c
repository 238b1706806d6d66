/* Options of `tern run` that a service gives in its environment instead: torchrun's PET_NAME in the
 * place of --name, which Kubeflow sets, and SageMaker's list of hosts. */
#include "tools/run.h"

#include "distributed/init/environment.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* "PET_NODE_RANK" */
static const char *variable_for(const tn_option *row) {
    char *name = text_new("PET_%s", row->name);
    for (char *c = name; *c; c++) {
        *c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
    }
    const char *value = getenv(name);
    free(name);
    return value;
}

static int add_sagemaker(char **words) {
    extern char **environ;
    tn__sagemaker s;
    if (!tn__environment_sagemaker((const char *const *)environ, &s) || s.hosts < 2) { return 0; }
    int count = 0;
    words[count++] = text_new("--nnodes=%d", (int)s.hosts);
    words[count++] = text_new("--node-rank=%d", (int)s.index);
    words[count++] = text_new("--rdzv-endpoint=%s", s.first);
    if (s.gpus > 0) { words[count++] = text_new("--nproc-per-node=%d", (int)s.gpus); }
    if (*s.interface) { setenv("TERN_INTERFACE", s.interface, 0); }
    return count;
}

char **environment_words(char *command, const tn_option *rows, int *count) {
    enum { MOST = 64 };
    static char *words[MOST]; /* options keep pointing into them */
    words[0] = command;
    *count = 1;
    for (const tn_option *row = rows; row->name || row->help || row->value; row++) {
        const char *value = row->name ? variable_for(row) : NULL;
        if (value && *value && !row->flag) {
            words[(*count)++] = text_new("--%s=%s", row->name, value);
        } else if (value && strcmp(value, "1") == 0) { /* torchrun's way to give a flag */
            words[(*count)++] = text_new("--%s", row->name);
        }
    }
    if (!getenv("PET_NNODES")) { *count += add_sagemaker(words + *count); }
    return words;
}
