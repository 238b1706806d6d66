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

/* In the child, between fork and exec: must not allocate or lock. `apart`: in a process group of
 * its own. A launcher signals the whole group of a rank, and of the programs that are asked to stop
 * by it and by the search too, not all would still save. */
static void become_trial(const tn__search_launch *l, pid_t parent, int lock, bool apart) {
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
    tn__search_launch l = {0}; /* all that allocates is done before the fork */
    int slot = free_slot(s);
    pid_t pid = -1, self = getpid();
    if (tn__search_launch_make(&l, s, trial, slot, lock)) {
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
    tn__search_launch_free(&l);
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
