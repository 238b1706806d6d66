/* What a trial's process is started with: this program's words, and an environment that says which
 * trial it is, and gives it its share of the host.
 *
 * A trial with several ranks is `tern run` with this program. One of a search over several ranks
 * must not take itself for one of these, so it is told that it is a world of its own.
 */
#define _GNU_SOURCE
#include "core/buffer.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "train/search/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

void tn__search_launch_free(tn__search_launch *l) {
    free(l->line);
    free(l->arguments);
    free(l->environment);
    free(l->output);
    free(l->profile);
    free(l->gpus);
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* The launcher that has started this process, as it says in its marker "PID-…": else the one that
 * PATH has, found by env. */
static size_t put_launcher(tn__search_launch *l, const tn_search *s) {
    static char env[] = "env", tern[] = "tern", run[] = "run", alone[] = "--standalone", n[] = "-n";
    char path[64];
    const char *marker = getenv("TERN_LAUNCHER");
    size_t words = 0;
    snprintf(path, sizeof(path), "/proc/%d/exe", marker ? atoi(marker) : 0);
    ssize_t found = readlink(path, l->tern, sizeof(l->tern) - 1);
    if (found > 0) {
        l->path = l->tern;
    } else {
        l->path = "/usr/bin/env";
        l->arguments[words++] = env;
    }
    snprintf(l->ranks, sizeof(l->ranks), "%lld", (long long)s->options.ranks);
    char *const rest[] = {tern, run, alone, n, l->ranks};
    memcpy(l->arguments + words, rest, sizeof(rest));
    return words + sizeof(rest) / sizeof(*rest);
}

/* The words that this process was started with, after those of a launcher. */
static bool find_arguments(tn__search_launch *l, const tn_search *s) {
    enum { LAUNCHER = 8 };
    size_t bytes, words = 0, first = 0;
    l->line = tn__read_whole("/proc/self/cmdline", &bytes, "search");
    if (!l->line) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        words += l->line[i] == 0;
    }
    l->arguments = tn__calloc(words + 2 + LAUNCHER, sizeof(*l->arguments));
    if (!l->arguments) {
        return false;
    }
    l->path = "/proc/self/exe";
    if (s->options.ranks > 1) {
        first = put_launcher(l, s);
    }
    for (size_t i = first, at = 0; at < bytes; i++) {
        l->arguments[i] = l->line + at;
        at += strlen(l->line + at) + 1;
    }
    if (s->options.ranks > 1) { /* the launcher would look for a name in PATH */
        ssize_t got = readlink("/proc/self/exe", l->self, sizeof(l->self) - 1);
        l->arguments[first] = got > 0 ? l->self : l->arguments[first];
    }
    return true;
}

/* ---- Variables ------------------------------------------------------------------------------- */

static bool is_variable(const char *entry, const char *name) {
    size_t length = strcspn(name, "=");
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

/* Removes the variable of this name, which may be "NAME=VALUE". */
static void drop_variable(tn__search_launch *l, const char *name) {
    size_t kept = 0;
    for (size_t i = 0; l->environment[i]; i++) {
        if (!is_variable(l->environment[i], name)) {
            l->environment[kept++] = l->environment[i];
        }
    }
    l->environment[kept] = NULL;
}

/* "NAME=VALUE" replaces what there is of that name. */
static void set_variable(tn__search_launch *l, char *entry) {
    size_t count = 0;
    drop_variable(l, entry);
    while (l->environment[count]) {
        count++;
    }
    l->environment[count] = entry;
    l->environment[count + 1] = NULL;
}

/* If TERN_PROFILE names a file, all processes would write it, so each gets one in its own folder.
 * NULL: no file, or after raising. */
static char *make_profile(const char *folder) {
    const char *wish = getenv("TERN_PROFILE");
    if (!wish || !strstr(wish, ".json")) {
        return NULL;
    }
    const char *slash = strrchr(wish, '/');
    return tn__asprintf("search", "TERN_PROFILE=%s/%s", folder, slash ? slash + 1 : wish);
}

/* The trial is the only rank of its world, whatever launcher has started this process. */
static void leave_launcher(tn__search_launch *l) {
    static const char *const names[] = {"GROUP_RANK",
                                        "GROUP_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TERN_STORE",
                                        "TERN_TOKEN",
                                        "TERN_RESTART_COUNT",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_USE_AGENT_STORE"};
    static char alone[][24] = {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        drop_variable(l, names[i]);
    }
    for (size_t i = 0; i < sizeof(alone) / sizeof(*alone); i++) {
        set_variable(l, alone[i]);
    }
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* How many there are: those in the list, or where that is NULL, the host's. */
static int64_t count_gpus(const char *list) {
    int64_t count = list ? *list != 0 : tn_device_count(TN_CUDA);
    for (; list && *list; list++) {
        count += *list == ',';
    }
    return count;
}

bool tn__search_gpus_suffice(const tn_search *s) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    const tn_search_options *o = &s->options;
    int64_t needed = o->gpus * s->processes * s->local_ranks;
    int64_t count = o->gpus > 0 ? count_gpus(list) : 0;
    if (needed > count && !tn__pending()) {
        tn__raise(TN_EDEVICE, "search",
                  "the %d processes of this host need %lld GPUs, but there are %lld%s",
                  s->processes * s->local_ranks, (long long)needed, (long long)count,
                  list ? " in CUDA_VISIBLE_DEVICES" : "");
    }
    return !tn__pending();
}

/* "CUDA_VISIBLE_DEVICES=2,3": those of the slot. NULL after raising. */
static char *make_gpus(const tn_search *s, int slot) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int64_t each = s->options.gpus, first = (s->local_rank * (int64_t)s->processes + slot) * each;
    tn__buffer t = {.operation = "search"};
    tn__buffer_text(&t, "CUDA_VISIBLE_DEVICES=");
    for (int64_t i = 0; list && i < first; i++) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    for (int64_t gpu = first; gpu < first + each; gpu++) {
        tn__buffer_text(&t, gpu > first ? "," : "");
        if (list) {
            size_t length = strcspn(list, ",");
            tn__buffer_add(&t, list, length);
            list += length + (list[length] == ',');
        } else {
            tn__buffer_format(&t, "%lld", (long long)gpu);
        }
    }
    return tn__buffer_take(&t);
}

/* ---- All together ---------------------------------------------------------------------------- */

/* The cores are shared among all processes of all ranks of this host. */
static void share_cores(tn__search_launch *l, const tn_search *s) {
    int64_t sharers = (int64_t)s->processes * s->local_ranks * s->options.ranks;
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN), each = cores > sharers ? cores / sharers : 1;
    snprintf(l->threads, sizeof(l->threads), "OMP_NUM_THREADS=%lld", (long long)each);
    set_variable(l, l->threads);
}

static bool make_environment(tn__search_launch *l, const tn_search *s, int64_t trial, int slot,
                             const char *folder) {
    enum { OURS = 16 };
    size_t count = 0;
    while (environ[count]) {
        count++;
    }
    l->profile = make_profile(folder);
    l->gpus = s->options.gpus > 0 ? make_gpus(s, slot) : NULL;
    l->environment = tn__calloc(count + OURS, sizeof(*l->environment));
    if (!l->environment || tn__pending()) {
        return false;
    }
    memcpy(l->environment, environ, count * sizeof(*environ));
    snprintf(l->mark, sizeof(l->mark), "TERN_TRIAL=%lld %d", (long long)trial,
             s->trials[trial].rungs);
    set_variable(l, l->mark);
    drop_variable(l, "TERN_MEMORY_DIR"); /* what killed trials had saved would stay there */
    if (s->hosts) {
        leave_launcher(l);
    }
    if (l->profile) {
        set_variable(l, l->profile);
    }
    if (l->gpus) {
        set_variable(l, l->gpus);
    }
    if (!getenv("OMP_NUM_THREADS")) {
        share_cores(l, s);
    }
    return true;
}

bool tn__search_launch_make(tn__search_launch *l, const tn_search *s, int64_t trial, int slot) {
    char *folder = tn__search_trial_folder(s, trial);
    bool made = folder && tn__folder_make(folder, "search") && find_arguments(l, s) &&
                make_environment(l, s, trial, slot, folder);
    l->output = made ? tn__folder_path(folder, "output.txt", "search") : NULL;
    free(folder);
    if (!l->output) {
        tn__raise(TN_ENOMEM, "search", "no memory for a process"); /* unless something was raised */
    }
    return l->output != NULL;
}
