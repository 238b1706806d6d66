/* What a trial's process is started with: this program's words, and an environment that says which
 * trial it is, and gives it its share of the host.
 *
 * A trial with several ranks is `tern run` with this program. One of a search over several ranks
 * must not take itself for one of these, so it is told that it is a world of its own.
 */
#define _GNU_SOURCE
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
    tn__buffer_free(&l->words);
    tn__buffer_free(&l->settings);
    free(l->arguments);
    free(l->environment);
    free(l->output);
}

static void put_string(tn__buffer *to, const char *text) {
    tn__buffer_add(to, text, strlen(text) + 1);
}

/* The string after `at`, each ending with 0; NULL: the first one. NULL: there is none. */
static char *next_string(const tn__buffer *from, char *at) {
    char *next = at ? at + strlen(at) + 1 : from->at;
    return next < from->at + from->bytes ? next : NULL;
}

/* A list with room for all strings of the buffer, `more`, and the NULL at its end. NULL after
 * raising. */
static char **new_list(const tn__buffer *from, size_t more) {
    return from->failed ? NULL : tn__calloc_for(from->bytes + more + 1, sizeof(char *), "search");
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* The launcher that has started this process, as it says in its marker "PID-…": else the one that
 * PATH has, found by env. And this program, by its path: the launcher would look for a name in
 * PATH. */
static void put_launcher(tn__buffer *words, int64_t ranks) {
    const char *marker = getenv("TERN_LAUNCHER");
    char name[64], path[4096] = "";
    snprintf(name, sizeof(name), "/proc/%d/exe", marker ? atoi(marker) : 0);
    if (readlink(name, path, sizeof(path) - 1) > 0) {
        put_string(words, path);
    } else {
        put_string(words, "/usr/bin/env");
        put_string(words, "tern");
    }
    tn__buffer_format(words, "run%c--standalone%c-n%c%lld%c", 0, 0, 0, (long long)ranks, 0);
    memset(path, 0, sizeof(path));
    if (readlink("/proc/self/exe", path, sizeof(path) - 1) > 0) { put_string(words, path); }
}

/* The words that this process was started with, after those of a launcher. */
static bool make_arguments(tn__search_launch *l, int64_t ranks) {
    size_t bytes, first = 0;
    char *line = tn__read_whole("/proc/self/cmdline", &bytes, "search");
    if (line && ranks > 1) {
        put_launcher(&l->words, ranks);
        first = strlen(line) + 1; /* its name, instead of which there is the path */
    }
    if (line && first < bytes) { tn__buffer_add(&l->words, line + first, bytes - first); }
    free(line);
    l->arguments = line ? new_list(&l->words, 0) : NULL;
    size_t count = 0;
    for (char *word = NULL; l->arguments && (word = next_string(&l->words, word));) {
        l->arguments[count++] = word;
    }
    l->path = ranks > 1 && l->arguments ? l->arguments[0] : "/proc/self/exe";
    return l->arguments != NULL;
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

/* "CUDA_VISIBLE_DEVICES=2,3": those of the slot. */
static void put_gpus(tn__buffer *to, const tn_search *s, int slot) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int64_t each = s->options.gpus, first = (s->local_rank * (int64_t)s->processes + slot) * each;
    tn__buffer_text(to, "CUDA_VISIBLE_DEVICES=");
    for (int64_t gpu = 0; gpu < first + each; gpu++) {
        int length = list ? (int)strcspn(list, ",") : 0;
        const char *comma = gpu > first ? "," : "";
        if (gpu >= first && list) {
            tn__buffer_format(to, "%s%.*s", comma, length, list);
        } else if (gpu >= first) {
            tn__buffer_format(to, "%s%lld", comma, (long long)gpu);
        }
        list = list ? list + length + (list[length] == ',') : NULL;
    }
    put_string(to, "");
}

/* ---- Variables ------------------------------------------------------------------------------- */

/* The trial is the only rank of its world, whatever launcher has started this process. */
static const char alone[] = "RANK=0\0WORLD_SIZE=1\0LOCAL_RANK=0\0LOCAL_WORLD_SIZE=1\0"
                            "GROUP_RANK\0GROUP_WORLD_SIZE\0MASTER_ADDR\0MASTER_PORT\0"
                            "TERN_STORE\0TERN_TOKEN\0TERN_RESTART_COUNT\0"
                            "TORCHELASTIC_RESTART_COUNT\0TORCHELASTIC_USE_AGENT_STORE";

/* "NAME=VALUE" replaces what this process has of that name, and "NAME" drops it. */
static void put_settings(tn__buffer *to, const tn_search *s, int64_t trial, int slot, int lock,
                         const char *folder) {
    const char *profile = getenv("TERN_PROFILE");
    int64_t sharers = (int64_t)s->processes * s->local_ranks * s->options.ranks;
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN), each = cores > sharers ? cores / sharers : 1;
    tn__buffer_format(to, "TERN_TRIAL=%lld %d %d%c", (long long)trial, s->trials[trial].rungs, lock,
                      0);
    if (s->options.ranks == 1) { /* a trial's launcher makes its folder inside of this one */
        put_string(to, "TERN_MEMORY_DIR"); /* what killed trials had saved would stay there */
    }
    if (s->ranks > 1) { tn__buffer_add(to, alone, sizeof(alone)); }
    if (profile && strstr(profile, ".json")) { /* all would write it, so each gets its own */
        const char *slash = strrchr(profile, '/');
        tn__buffer_format(to, "TERN_PROFILE=%s/%s%c", folder, slash ? slash + 1 : profile, 0);
    }
    if (s->options.gpus > 0) { put_gpus(to, s, slot); }
    if (!getenv("OMP_NUM_THREADS")) { /* the cores are shared among all processes of the host */
        tn__buffer_format(to, "OMP_NUM_THREADS=%lld%c", (long long)each, 0);
    }
}

/* Whether one of the settings is for the variable "NAME=VALUE". */
static bool is_set(const tn__buffer *settings, const char *variable) {
    bool found = false;
    for (char *setting = NULL; !found && (setting = next_string(settings, setting));) {
        size_t length = strcspn(setting, "=");
        found = strncmp(setting, variable, length) == 0 && variable[length] == '=';
    }
    return found;
}

static bool make_environment(tn__search_launch *l) {
    size_t count = 0, kept = 0;
    while (environ[count]) {
        count++;
    }
    l->environment = new_list(&l->settings, count);
    for (size_t i = 0; l->environment && i < count; i++) {
        if (!is_set(&l->settings, environ[i])) { l->environment[kept++] = environ[i]; }
    }
    for (char *setting = NULL; l->environment && (setting = next_string(&l->settings, setting));) {
        if (strchr(setting, '=')) { l->environment[kept++] = setting; }
    }
    return l->environment != NULL;
}

bool tn__search_launch_make(tn__search_launch *l, const tn_search *s, int64_t trial, int slot,
                            int lock) {
    *l = (tn__search_launch){.words.operation = "search", .settings.operation = "search"};
    char *folder = tn__search_trial_folder(s, trial);
    if (folder && tn__folder_make(folder, "search")) {
        put_settings(&l->settings, s, trial, slot, lock, folder);
        bool made = make_arguments(l, s->options.ranks) && make_environment(l);
        l->output = made ? tn__folder_path(folder, "output.txt", "search") : NULL;
    }
    free(folder);
    return l->output != NULL;
}
