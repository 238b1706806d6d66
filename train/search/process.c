/* Trials as processes: this program again with the same arguments, and the trial's number in the
 * environment. So a trial may use threads and devices, crash, and be killed, and the search
 * continues.
 *
 * The search locks the trial's folder (flock) and hands the open file to the process, so the lock
 * ends with that. The ranks of a search, also on several hosts, need nothing else but the folder: a
 * rank takes a trial that it can lock, unless its value is there by now. The same holds for a
 * search that was killed and is started again, while its trials are still saving.
 */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "distributed/init/environment.h"
#include "distributed/init/host.h"
#include "tern/distributed.h"
#include "train/search/search.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

bool tn__search_told(int64_t *trial, int64_t *rung) {
    const char *text = getenv("TERN_TRIAL");
    long long t, r;
    int lock, end = 0;
    if (!text || sscanf(text, "%lld %lld %d%n", &t, &r, &lock, &end) != 3 || text[end] || t < 0 ||
        r < 0) {
        return false;
    }
    *trial = t;
    *rung = r;
    unsetenv("TERN_TRIAL");
    fcntl(lock, F_SETFD, FD_CLOEXEC); /* what the trial starts may live on */
    return true;
}

bool tn__search_find_rank(tn_search *s) {
    tn__environment e;
    if (!tn__environment_read((const char *const *)environ, tn__host_launcher(), &e, "search")) {
        return false;
    }
    bool in_world = tn_group_size(tn_world()) > 1;
    int number = e.one_host ? e.rank : 0;
    s->rank = in_world ? tn_group_rank(tn_world()) : e.rank;
    s->ranks = in_world ? tn_group_size(tn_world()) : e.ranks;
    s->local_rank = in_world ? tn_local_rank() : e.local_rank >= 0 ? e.local_rank : number;
    s->local_ranks = e.local_ranks > 0 ? e.local_ranks : e.one_host ? e.ranks : 1;
    if (s->local_ranks <= s->local_rank) {
        s->local_ranks = s->local_rank + 1; /* where no launcher says it */
    }
    return true;
}

int tn__search_lock(const tn_search *s, int64_t trial) {
    char *folder = tn__search_trial_folder(s, trial);
    bool made = folder && tn__folder_make(folder, "search");
    char *path = made ? tn__folder_path(folder, "process.lock", "search") : NULL;
    free(folder);
    if (!path) { return -1; }
    int lock = tn__above_streams(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    bool locked = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0, taken = errno == EWOULDBLOCK;
    if (lock < 0) {
        tn__raise(TN_EIO, "search", "%s: %s", path, strerror(errno));
    } else if (!locked && !taken && s->ranks > 1) { /* one rank can do without */
        tn__raise(TN_EIO, "search", "%s: no lock for several ranks: %s", path, strerror(errno));
    }
    free(path);
    if (lock >= 0 && !locked && (taken || tn__pending())) {
        close(lock);
        lock = -1;
    }
    return lock;
}

/* ---- What a process is started with ---------------------------------------------------------- */

/* This program's words, and an environment that says which trial it is, and gives it its share of
 * the host. A trial with several ranks is `tern run` with this program; one of a search over
 * several ranks must not take itself for one of these, so it is told that it is a world of its
 * own. */
typedef struct launch {
    const char *path;
    char **arguments;           /* ended by NULL */
    char **environment;         /* the same */
    tn__buffer words, settings; /* what these point to */
    char *output;               /* the file for what it prints */
} launch;

static void launch_free(launch *l) {
    tn__buffer_free(&l->words);
    tn__buffer_free(&l->settings);
    free(l->arguments);
    free(l->environment);
    free(l->output);
}

static void put_string(tn__buffer *to, const char *text) {
    tn__buffer_add(to, text, strlen(text) + 1);
}

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
static bool make_arguments(launch *l, int64_t ranks) {
    size_t bytes, first = 0;
    char *line = tn__read_whole("/proc/self/cmdline", &bytes, "search");
    if (line && ranks > 1) {
        put_launcher(&l->words, ranks);
        first = strlen(line) + 1; /* its name, instead of which there is the path */
    }
    if (line && first < bytes) { tn__buffer_add(&l->words, line + first, bytes - first); }
    free(line);
    if (line && !l->words.failed) { /* more room than they need */
        l->arguments = tn__calloc_for(l->words.bytes + 1, sizeof(char *), "search");
    }
    size_t count = 0;
    for (char *word = NULL; l->arguments && (word = tn__string_after(&l->words, word));) {
        l->arguments[count++] = word;
    }
    l->path = ranks > 1 && l->arguments ? l->arguments[0] : "/proc/self/exe";
    return l->arguments != NULL;
}

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

/* For the trial's next rung. False after raising; call launch_free in any case. */
static bool launch_make(launch *l, const tn_search *s, int64_t trial, int slot, int lock) {
    *l = (launch){.words.operation = "search", .settings.operation = "search"};
    char *folder = tn__search_trial_folder(s, trial);
    if (folder && tn__folder_make(folder, "search")) {
        put_settings(&l->settings, s, trial, slot, lock, folder);
        bool made = make_arguments(l, s->options.ranks);
        l->environment = made ? tn__environment_with(&l->settings) : NULL;
        l->output = l->environment ? tn__folder_path(folder, "output.txt", "search") : NULL;
    }
    free(folder);
    return l->output != NULL;
}

/* ---- Processes ------------------------------------------------------------------------------- */

/* In the child, between fork and exec: must not allocate or lock. `apart`: in a process group of
 * its own. A launcher signals the whole group of a rank, and of the programs that are asked to stop
 * by it and by the search too, not all would still save. */
static void become_trial(const launch *l, pid_t parent, int lock, bool apart) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    fcntl(lock, F_SETFD, 0);
    if (apart) { setpgid(0, 0); }
    int output =
        tn__above_streams(open(l->output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (getppid() != parent || output < 0) { _exit(1); }
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execve(l->path, l->arguments, l->environment);
    _exit(127);
}

static int free_slot(const tn_search *s) {
    int slot = 0;
    for (int i = 0; i < s->worker_count; i++) {
        if (s->workers[i].slot == slot) {
            slot++;
            i = -1; /* look at all again */
        }
    }
    return slot;
}

bool tn__search_start(tn_search *s, int64_t trial, int lock) {
    launch l = {0}; /* all that allocates is done before the fork */
    int slot = free_slot(s);
    pid_t pid = -1, self = getpid();
    if (launch_make(&l, s, trial, slot, lock)) {
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            become_trial(&l, self, lock, s->ranks > 1);
        } else if (pid < 0) {
            tn__raise(TN_EIO, "search", "starting a process: %s", strerror(errno));
        } else {
            s->workers[s->worker_count++] = (tn__search_worker){pid, trial, slot};
        }
    }
    launch_free(&l);
    close(lock);
    return pid > 0;
}

void tn__search_stop(tn_search *s) {
    for (int i = 0; i < s->worker_count; i++) {
        kill(s->workers[i].pid, SIGTERM);
    }
    for (; s->worker_count > 0; s->worker_count--) {
        while (waitpid(s->workers[s->worker_count - 1].pid, NULL, 0) < 0 && errno == EINTR) {}
    }
}

int64_t tn__search_wait(tn_search *s, bool *well) {
    enum { LOOKS = 50, PAUSE = 20 }; /* milliseconds */
    for (int look = 0; look < LOOKS && !tn_stop_asked(); look++) {
        for (int i = 0; i < s->worker_count; i++) {
            int status = 0; /* stays where the program ignores SIGCHLD */
            int64_t trial = s->workers[i].trial;
            if (waitpid(s->workers[i].pid, &status, WNOHANG) != 0) {
                s->workers[i] = s->workers[--s->worker_count];
                *well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
                return trial;
            }
        }
        poll(NULL, 0, PAUSE); /* a signal ends it */
    }
    return -1;
}
