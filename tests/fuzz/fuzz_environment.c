/* The input is an environment, one NAME=VALUE per line, and each of its values is also tried as one
 * of Slurm's lists of nodes. It is refused with a reason, or what comes out makes sense. */
#include "tests/fuzz/bytes.h"

#include "distributed/init/environment.h"
#include "distributed/init/nodelist.h"

#include <string.h>

enum { VARIABLES = 64 };

static void check_list(const char *list) {
    char name[128], again[128];
    bool several;
    if (tn__nodelist_first(list, name, sizeof(name), &several)) {
        must_hold(*name && !strpbrk(name, "[], "), "an invalid name");
        must_hold(tn__nodelist_first(name, again, sizeof(again), &several) && !several &&
                      strcmp(name, again) == 0,
                  "a name that is not a list of itself");
    }
}

static void check_environment(const char *const *variables) {
    tn__environment e;
    bool fine = tn__environment_read(variables, 1, &e, "fuzz");
    if (!WAS_TAKEN(fine, NULL, TN_EVALUE)) { return; }
    must_hold(e.rank >= 0 && e.rank < e.ranks, "the rank");
    must_hold(e.local_ranks == -1 || (e.local_ranks >= 1 && e.local_ranks <= e.ranks),
              "local ranks");
    must_hold(e.launcher || e.ranks == 1, "ranks without a launcher");
    must_hold(!e.launcher || (*e.job && e.port >= 1 && e.port <= 65535), "job or port");
    must_hold(!e.secret || strlen(e.secret) >= 32, "a secret that is short");
    must_hold(!e.launcher || *e.host || e.no_host, "neither a host nor a reason");
    must_hold(memchr(e.host, 0, sizeof(e.host)) && memchr(e.second, 0, sizeof(e.second)) &&
                  memchr(e.token, 0, sizeof(e.token)) && memchr(e.job, 0, sizeof(e.job)),
              "a text without an end");
}

FUZZ(environment, NULL) {
    char *text = malloc(bytes + 1), *rest = text;
    const char *variables[VARIABLES + 1] = {NULL};
    memcpy(text, data, bytes);
    text[bytes] = 0;
    for (int n = 0; rest && n < VARIABLES; n++) {
        variables[n] = strsep(&rest, "\n");
        const char *value = strchr(variables[n], '=');
        check_list(value ? value + 1 : variables[n]);
    }
    check_environment(variables);
    free(text);
}
