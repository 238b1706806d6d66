/* The guard: a process that outlives the launcher by a moment and ends all of its ranks.
 *
 * Each rank already has PR_SET_PDEATHSIG, but processes that a rank starts do not. So the guard
 * knows the ranks' process groups from lines "+GROUP" and "-GROUP" in a pipe. The launcher holds
 * the only writing end: when it is closed, the launcher has ended, for whatever reason. The guard
 * then kills the groups that are left, and after them every process that carries the launcher's
 * marker in its environment: that finds those that have left their group. A launcher that ends
 * normally has already done this, and writes "." before it closes the pipe. In either case the
 * guard then removes the folder in memory (tmpfs) in which ranks save what must outlive them. Both
 * know its name from the marker.
 *
 * The guard is in its own session, so that no Ctrl-C reaches it, and holds no file but the pipe:
 * otherwise readers of our output would not see end-of-file. If the guard is killed, the launcher
 * starts another.
 */
#include "tools/run.h"
#include "tools/verbs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_GROUPS = 8192 };

/* ---- The launcher's side --------------------------------------------------------------------- */

bool guard_start(guard *g) {
    if (!*g->marker) {
        char unique[17];
        random_text(unique, 8);
        snprintf(g->marker, sizeof(g->marker), "TERN_LAUNCHER=%d-%s", (int)getpid(), unique);
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) { return false; }
    char number[16];
    snprintf(number, sizeof(number), "%d", ends[0]);
    char *arguments[] = {"tern", "_guard", number, g->marker, NULL};
    g->pid = fork();
    if (g->pid == 0) {
        setsid(); /* signals to our process group no longer reach it */
        fcntl(ends[0], F_SETFD, 0);
        execv("/proc/self/exe", arguments);
        _exit(127);
    }
    close(ends[0]);
    if (g->pid < 0) {
        close(ends[1]);
        return false;
    }
    g->pipe = ends[1];
    return true;
}

void guard_write(const guard *g, char sign, pid_t group) {
    char line[16];
    int length = snprintf(line, sizeof(line), "%c%d\n", sign, (int)group);
    ssize_t put = write(g->pipe, line, (size_t)length);
    (void)put; /* fails when the guard is dead: noticed elsewhere */
}

void guard_finish(guard *g) {
    if (g->pid > 0) {
        kill(g->pid, SIGCONT); /* in case somebody has stopped it; not when it may be ending: a
                                  leak checker stops it then */
        guard_write(g, '.', 0);
        close(g->pipe);
        while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR) {}
    }
    g->pid = 0;
}

/* ---- Finding processes with the marker ------------------------------------------------------- */

static bool carries_marker(const char *pid, const char *marker) {
    char path[64], *text = NULL;
    size_t capacity = 0;
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%.20s/environ", pid);
    FILE *file = fopen(path, "re");
    while (file && !found && getdelim(&text, &capacity, 0, file) > 0) {
        found = strcmp(text, marker) == 0;
    }
    free(text);
    if (file) { fclose(file); }
    return found;
}

int guard_sweep(const char *marker) {
    int found = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        int pid = atoi(entry->d_name);
        if (pid > 1 && pid != getpid() && carries_marker(entry->d_name, marker)) {
            found++;
            kill(pid, SIGKILL);
        }
    }
    if (processes) { closedir(processes); }
    return found;
}

/* ---- The folder in memory ---------------------------------------------------------------------
 */

/* marker: TERN_LAUNCHER=PID-UNIQUE. A launcher that is a rank makes its folder in the outer one's,
 * whose guard ends its guard. */
static void folder_path(const char *marker, char *path, size_t size) {
    const char *outer = getenv("TERN_MEMORY_DIR");
    snprintf(path, size, "%s/tern-%s", outer ? outer : "/dev/shm", strchr(marker, '=') + 1);
}

char *memory_folder(const char *marker, output *out) {
    char path[4096];
    folder_path(marker, path, sizeof(path));
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        output_say(out, "%s: %s: ranks cannot save in memory", path, strerror(errno));
        return NULL;
    }
    return text_new("%s", path);
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *at) {
    remove(path); /* what stays is not worth more than a try: nobody could be told */
    return 0;
}

void memory_remove(const char *marker) {
    char path[4096];
    folder_path(marker, path, sizeof(path));
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- The guard itself ------------------------------------------------------------------------ */

typedef struct groups {
    pid_t list[MOST_GROUPS];
    int count;
} groups;

static void record_group(groups *g, const char *line) {
    pid_t group = (pid_t)atoi(line + 1);
    int at = 0;
    while (at < g->count && g->list[at] != group) {
        at++;
    }
    if (line[0] == '-' && at < g->count) {
        g->list[at] = g->list[--g->count];
    } else if (line[0] == '+' && at == g->count && at < MOST_GROUPS && group > 1) {
        g->list[g->count++] = group;
    }
}

static void stand_apart(int pipe) {
    for (int signal = 1; signal < NSIG; signal++) {
        sigaction(signal, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    }
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) {
        dup2(nothing, fd);
    }
    for (int fd = 3; fd < (int)sysconf(_SC_OPEN_MAX) && fd < 65536; fd++) {
        if (fd != pipe) { close(fd); }
    }
    if (chdir("/") != 0) { return; /* harmless: only keeps a file system busy longer */ }
}

int guard_main(int argc, char **argv) {
    static groups left;
    if (argc != 4) { return 2; }
    int pipe = atoi(argv[2]);
    stand_apart(pipe);
    char *line = NULL;
    size_t capacity = 0;
    FILE *lines = fdopen(pipe, "r");
    while (lines && getline(&line, &capacity, lines) > 0 && line[0] != '.') {
        record_group(&left, line);
    }
    bool all_well = line && line[0] == '.';
    for (int i = 0; !all_well && i < left.count; i++) {
        kill(-left.list[i], SIGKILL);
    }
    /* Processes started during one pass are found by the next. */
    for (int quiet = 0, tries = 0; !all_well && quiet < 2 && tries < 100; tries++) {
        quiet = guard_sweep(argv[3]) == 0 ? quiet + 1 : 0;
        usleep(10000);
    }
    memory_remove(argv[3]);
    free(line);
    if (lines) { fclose(lines); }
    return 0;
}
