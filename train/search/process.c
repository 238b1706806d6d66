/* Trials as processes: this program again with the same arguments, and the trial's number in the
 * environment. So a trial may use threads and devices, crash, and be killed, and the search
 * continues.
 *
 * When a search is killed, its trials are asked to stop, and may still be saving when it is
 * restarted. So each locks its folder with a POSIX lock, which its children do not hold and which
 * ends with the process.
 */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
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

/* In the child, between fork and exec: must not allocate or lock. `apart`: in a process group of
 * its own. A launcher signals the whole group of a rank, and of the programs that are asked to stop
 * by it and by the search too, not all would still save. */
static void become_trial(const tn__search_launch *l, pid_t parent, bool apart) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (apart) {
        setpgid(0, 0);
    }
    int output =
        tn__above_streams(open(l->output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (getppid() != parent || output < 0) {
        _exit(1);
    }
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

bool tn__search_start(tn_search *s, int64_t trial) {
    tn__search_launch l = {0}; /* all that allocates is done before the fork */
    int ends[2] = {-1, -1}, slot = free_slot(s);
    pid_t pid = -1, self = getpid();
    bool made = tn__search_launch_make(&l, s, trial, slot);
    if (made && pipe2(ends, O_CLOEXEC) == 0) {
        ends[0] = tn__above_streams(ends[0]);
        ends[1] = tn__above_streams(ends[1]);
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            fcntl(ends[1], F_SETFD, 0); /* stays open until the trial has ended */
            become_trial(&l, self, s->hosts != NULL);
        }
    }
    if (made && pid < 0) {
        tn__raise(TN_EIO, "search", "starting a process: %s", strerror(errno));
    }
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    if (pid > 0) {
        s->workers[s->worker_count++] = (tn__search_worker){pid, ends[0], trial, slot};
    } else if (ends[0] >= 0) {
        close(ends[0]);
    }
    tn__search_launch_free(&l);
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
    enum { LISTENS = 200, LOOKS = 1000 }; /* milliseconds: to the other ranks; at our processes */
    struct pollfd *polls = tn__calloc_for((size_t)s->worker_count + 1, sizeof(*polls), "search");
    int64_t trial = -1;
    for (int i = 0; polls && i < s->worker_count; i++) {
        polls[i] = (struct pollfd){.fd = s->workers[i].gone, .events = POLLIN};
    }
    while (polls && !tn_stop_asked() &&
           poll(polls, (nfds_t)s->worker_count, s->hosts ? LISTENS : LOOKS) <= 0 && !s->hosts &&
           !any_ended(s)) {
    }
    for (int i = 0; polls && trial < 0 && !tn_stop_asked() && i < s->worker_count; i++) {
        bool ended = polls[i].revents || has_ended(&s->workers[i]);
        trial = ended ? bury_worker(s, i, well) : -1;
    }
    free(polls);
    return trial;
}
