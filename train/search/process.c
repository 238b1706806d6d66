/* Trials as processes: this program again with the same arguments, and the trial's number in the
 * environment. So a trial may use threads and devices, crash, and be killed, and the search
 * continues.
 *
 * When a search is killed, its trials are asked to stop, and may still be saving when it is
 * restarted. So each locks its folder with a POSIX lock, which its children do not hold and which
 * ends with the process.
 */
#define _GNU_SOURCE
#include "core/buffer.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "train/search/search.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

bool tn__search_told(int64_t *trial, int64_t *rung) {
    const char *text = getenv("TERN_TRIAL");
    long long t, r;
    char rest;
    if (!text || sscanf(text, "%lld %lld%c", &t, &r, &rest) != 2 || t < 0 || r < 0) {
        return false;
    }
    *trial = t;
    *rung = r;
    unsetenv("TERN_TRIAL");
    return true;
}

bool tn__search_hold(tn_search *s) {
    char *path = tn__folder_path(s->folder, "process.lock", "search");
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    s->held = -1;
    if (path) {
        s->held = tn__above_streams(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    }
    if (path && s->held < 0) {
        tn__raise(TN_EIO, "search", "%s: %s", path, strerror(errno));
    }
    free(path);
    while (s->held >= 0 && fcntl(s->held, F_SETLKW, &whole) != 0 && errno == EINTR) {
        if (tn_stop_asked()) {
            return false;
        }
    }
    return s->held >= 0; /* on file systems without locks others go unnoticed */
}

void tn__search_leave(tn_search *s) {
    if (s->held >= 0) {
        close(s->held);
        s->held = -1;
    }
}

/* What a process is started with; all that allocates is done before the fork. */
typedef struct launch {
    char *line, **arguments, **environment;
    char mark[64], threads[64];
    char *output, *profile;
} launch;

static void launch_free(launch *l) {
    free(l->line);
    free(l->arguments);
    free(l->environment);
    free(l->output);
    free(l->profile);
}

/* Finds the words that this process was started with. */
static bool find_arguments(launch *l) {
    size_t bytes, words = 0;
    l->line = tn__read_whole("/proc/self/cmdline", &bytes, "search");
    if (!l->line) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        words += l->line[i] == 0;
    }
    l->arguments = tn__calloc(words + 2, sizeof(*l->arguments));
    for (size_t i = 0, at = 0; l->arguments && at < bytes; i++) {
        l->arguments[i] = l->line + at;
        at += strlen(l->line + at) + 1;
    }
    return l->arguments != NULL;
}

static bool is_variable(const char *entry, const char *name) {
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=';
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

static bool make_environment(launch *l, const tn_search *s, int64_t trial, const char *folder) {
    size_t count = 0, kept = 0;
    while (environ[count]) {
        count++;
    }
    l->profile = make_profile(folder);
    l->environment = tn__calloc(count + 4, sizeof(*l->environment));
    if (!l->environment || tn__pending()) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_variable(environ[i], "TERN_TRIAL") &&
            !(l->profile && is_variable(environ[i], "TERN_PROFILE"))) {
            l->environment[kept++] = environ[i];
        }
    }
    snprintf(l->mark, sizeof(l->mark), "TERN_TRIAL=%lld %d", (long long)trial,
             s->trials[trial].rungs);
    l->environment[kept++] = l->mark;
    if (l->profile) {
        l->environment[kept++] = l->profile;
    }
    if (!getenv("OMP_NUM_THREADS")) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN), each = cores / (long)s->options.processes;
        snprintf(l->threads, sizeof(l->threads), "OMP_NUM_THREADS=%ld", each > 1 ? each : 1);
        l->environment[kept] = l->threads;
    }
    return true;
}

static bool launch_make(launch *l, const tn_search *s, int64_t trial) {
    char *folder = tn__search_trial_folder(s, trial);
    bool made = folder && tn__folder_make(folder, "search") && find_arguments(l) &&
                make_environment(l, s, trial, folder);
    l->output = made ? tn__folder_path(folder, "output.txt", "search") : NULL;
    free(folder);
    if (!l->output) {
        tn__raise(TN_ENOMEM, "search", "no memory for a process"); /* unless something was raised */
    }
    return l->output != NULL;
}

/* In the child, between fork and exec: must not allocate or lock. */
static void become_trial(const launch *l, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int output =
        tn__above_streams(open(l->output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (getppid() != parent || output < 0) {
        _exit(1);
    }
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execve("/proc/self/exe", l->arguments, l->environment);
    _exit(127);
}

bool tn__search_start(tn_search *s, int64_t trial) {
    launch l = {0};
    int ends[2] = {-1, -1};
    pid_t pid = -1, self = getpid();
    bool made = launch_make(&l, s, trial);
    if (made && pipe2(ends, O_CLOEXEC) == 0) {
        ends[0] = tn__above_streams(ends[0]);
        ends[1] = tn__above_streams(ends[1]);
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            fcntl(ends[1], F_SETFD, 0); /* stays open until the trial has ended */
            become_trial(&l, self);
        }
    }
    if (made && pid < 0) {
        tn__raise(TN_EIO, "search", "starting a process: %s", strerror(errno));
    }
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    if (pid > 0) {
        s->workers[s->worker_count++] = (tn__search_worker){pid, ends[0], trial};
        s->trials[trial].running = true;
    } else if (ends[0] >= 0) {
        close(ends[0]);
    }
    launch_free(&l);
    return pid > 0;
}

/* Removes worker i; returns its trial. */
static int64_t bury_worker(tn_search *s, int i, bool *well) {
    tn__search_worker w = s->workers[i];
    int status = 0;
    while (waitpid(w.pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(w.gone);
    s->workers[i] = s->workers[--s->worker_count];
    s->trials[w.trial].running = false;
    *well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return w.trial;
}

void tn__search_stop(tn_search *s) {
    bool well;
    for (int i = 0; i < s->worker_count; i++) {
        kill(s->workers[i].pid, SIGTERM);
    }
    while (s->worker_count > 0) {
        bury_worker(s, 0, &well);
    }
}

/* Processes that a trial has started may live on and keep `gone` open. */
static bool has_ended(const tn__search_worker *w) {
    siginfo_t about = {0};
    int asked = waitid(P_PID, (id_t)w->pid, &about, WEXITED | WNOHANG | WNOWAIT);
    return asked == 0 && about.si_pid == w->pid;
}

static bool any_ended(const tn_search *s) {
    bool any = false;
    for (int i = 0; i < s->worker_count; i++) {
        any = any || has_ended(&s->workers[i]);
    }
    return any;
}

int64_t tn__search_wait(tn_search *s, bool *well) {
    struct pollfd *polls = tn__calloc_for((size_t)s->worker_count + 1, sizeof(*polls), "search");
    int64_t trial = -1;
    for (int i = 0; polls && i < s->worker_count; i++) {
        polls[i] = (struct pollfd){.fd = s->workers[i].gone, .events = POLLIN};
    }
    while (polls && !tn_stop_asked() && poll(polls, (nfds_t)s->worker_count, 1000) <= 0 &&
           !any_ended(s)) {
    }
    for (int i = 0; polls && trial < 0 && !tn_stop_asked() && i < s->worker_count; i++) {
        bool ended = polls[i].revents || has_ended(&s->workers[i]);
        trial = ended ? bury_worker(s, i, well) : -1;
    }
    free(polls);
    if (trial < 0) {
        tn__search_stop(s);
    }
    return trial;
}
