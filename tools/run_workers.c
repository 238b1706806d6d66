/* The ranks of this host as processes.
 *
 * Each rank leads a process group, so a signal reaches everything that it started, and it dies with
 * the launcher (PR_SET_PDEATHSIG; run_guard.c does the rest). When a rank ends, its group is killed
 * before the rank is reaped: until then no other group can get its number. The launcher is a
 * subreaper: a process that has left a group becomes its child when its parents have ended. At the
 * end of a round such children are killed; without a list of children (list_children), every
 * process that carries the launcher's marker.
 *
 * Only the main thread starts ranks: PR_SET_PDEATHSIG refers to the thread that forked.
 */
#include "tools/run.h"

#include "core/plain_text.h"
#include "distributed/init/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

/* A process that still exists this long after SIGKILL hangs in the kernel. */
static const double unkillable_seconds = 10;

/* ---- The program ----------------------------------------------------------------------------- */

/* Whether a program may be started; false with errno. */
static bool is_program(const char *file) {
    struct stat about;
    bool folder = stat(file, &about) == 0 && S_ISDIR(about.st_mode);
    bool fits = !folder && access(file, X_OK) == 0;
    errno = folder ? EISDIR : errno;
    return fits;
}

/* NULL: it is in none of the folders of PATH. */
static char *search_path(const char *name) {
    const char *path = getenv("PATH");
    char *folders = text_new("%s", path ? path : "/bin:/usr/bin"), *rest = folders, *file = NULL;
    for (char *folder; !file && (folder = strsep(&rest, ":"));) {
        file = text_new("%s/%s", *folder ? folder : ".", name);
        if (!is_program(file)) {
            free(file);
            file = NULL;
        }
    }
    free(folders);
    return file;
}

char *find_program(const char *name) {
    bool named = strchr(name, '/');
    char *file = named ? text_new("%s", name) : search_path(name);
    if (file && is_program(file)) { return file; }
    free(file);
    int code = named && errno != ENOENT ? 126 : 127;
    const char *why =
        named ? strerror(errno) : "not found in PATH (a program in this folder begins with ./)";
    char *text = text_new("tern run: %s: %s", name, why);
    tn__plain_lines(text);
    fprintf(stderr, "%s\n", text);
    free(text);
    exit(code);
}

/* ---- The environment of a rank --------------------------------------------------------------- */

/* Without a value the rank has no such variable, even if the launcher, itself a rank, has one. */
static void put_variable(tn__buffer *to, const char *name, const char *value) {
    tn__buffer_format(to, value ? "%s=%s%c" : "%s%s%c", name, value ? value : "", 0);
}

/* What is laid over the launcher's environment; distributed/init/environment.c reads it. */
static tn__buffer rank_settings(const workers *w, const run_options *o, const run_round *r,
                                int local, const char *folder, int columns) {
    char width[16];
    tn__buffer b = {0};
    tn__buffer_format(&b, "RANK=%d%c", r->first + local, 0);
    tn__buffer_format(&b, "LOCAL_RANK=%d%c", local, 0);
    tn__buffer_format(&b, "WORLD_SIZE=%d%c", r->world, 0);
    tn__buffer_format(&b, "LOCAL_WORLD_SIZE=%d%c", r->local, 0);
    tn__buffer_format(&b, "GROUP_RANK=%d%c", r->node, 0);
    tn__buffer_format(&b, "GROUP_WORLD_SIZE=%d%c", r->nodes, 0);
    tn__buffer_format(&b, "MASTER_ADDR=%s%c", o->host, 0);
    tn__buffer_format(&b, "MASTER_PORT=%d%c", r->port, 0);
    tn__buffer_format(&b, "TERN_TOKEN=%s%c", o->token, 0);
    tn__buffer_format(&b, "TERN_STORE=agent%c", 0); /* rank 0 need not serve it */
    tn__buffer_format(&b, "TERN_RUN_ID=%s%c", o->node.run_id, 0);
    tn__buffer_format(&b, "TERN_RESTART_COUNT=%d%c", r->restarts, 0);
    tn__buffer_format(&b, "TORCHELASTIC_RESTART_COUNT=%d%c", r->restarts, 0);
    tn__buffer_format(&b, "TORCHELASTIC_MAX_RESTARTS=%d%c", o->max_restarts, 0);
    tn__buffer_format(&b, "TORCHELASTIC_RUN_ID=%s%c", o->node.run_id, 0);
    tn__buffer_format(&b, "%s%c", w->guard.marker, 0);
    put_variable(&b, "TERN_MEMORY_DIR", w->memory);
    put_variable(&b, "TERN_COMMAND", o->command);
    snprintf(width, sizeof(width), "%d", columns);
    put_variable(&b, "TERN_PROGRESS", r->first + local == 0 && columns > 0 ? width : NULL);
    if (folder) { tn__buffer_format(&b, "TERN_FLIGHT_DIR=%s%c", folder, 0); }
    return b;
}

/* Makes DIR/ID/attempt_K/RANK; NULL when none is wanted, or on failure. */
static char *log_folder(const run_options *o, const run_round *r, int rank, output *out) {
    if (!o->log_dir) { return NULL; }
    char *folder = text_new("%s/%s/attempt_%d/%d", o->log_dir, o->node.run_id, r->restarts, rank);
    for (char *slash = strchr(folder + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) { *slash = 0; }
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            output_say(out, "%s: %s: rank %d has no log files", folder, strerror(errno), rank);
            free(folder);
            return NULL;
        }
        if (!slash) { return folder; }
        *slash = '/';
    }
}

/* Lists the main thread's children, at most MOST_CHILDREN. Returns how many; -1 if the kernel has
 * no list, or it means nothing: the first process of a container inherits all orphans. */
static int list_children(pid_t *list) {
    FILE *children = getpid() == 1 ? NULL : fopen("/proc/thread-self/children", "re");
    int count = 0;
    while (children && count < MOST_CHILDREN && fscanf(children, "%d", &list[count]) == 1) {
        count++;
    }
    if (children) { fclose(children); }
    return children ? count : -1;
}

bool workers_init(workers *w) {
    w->earlier_count = list_children(w->earlier);
    return guard_start(&w->guard);
}

/* Replaces a guard that was killed; the new one is told the groups. */
static void keep_guard(workers *w, output *out) {
    if (w->guard.pid > 0 || !guard_start(&w->guard)) { return; /* the next tick tries again */ }
    output_say(out, "the guard process was killed: another one, pid %d, takes its place",
               (int)w->guard.pid);
    for (int i = 0; i < w->count; i++) {
        if (!w->list[i].ended) { guard_write(&w->guard, '+', w->list[i].pid); }
    }
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* What execve's error does not say. A shell would run a file that is not a program as a shell
 * script; here that is an error, since such a file may contain anything. */
static const char *explain_exec(const char *path, int why) {
    if (why == ENOEXEC) {
        return ": neither a program for this machine nor a script that begins with #!";
    }
    return why == ENOENT && access(path, F_OK) == 0 ? " (its #! interpreter, or its loader)" : "";
}

/* The child, from fork to exec: other threads may have held any lock at the fork, so nothing
 * here allocates. */
static _Noreturn void become_rank(const workers *w, const run_options *o, char **env,
                                  const int ends[2], pid_t launcher) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) { _exit(1); /* it died before the line above */ }
    guard_write(&w->guard, '+', getpid());
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO); /* a background group that reads a terminal is stopped */
    dup2(ends[0], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    sigprocmask(SIG_SETMASK, &w->mask, NULL);
    execve(o->path, o->program, env);
    int why = errno;
    const char *texts[] = {"tern: cannot start ",      o->program[0], ": ", strerrordesc_np(why),
                           explain_exec(o->path, why), "\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        ssize_t put = write(STDERR_FILENO, texts[i], strlen(texts[i]));
        (void)put;
    }
    _exit(why == ENOENT ? 127 : 126);
}

static void start_one(workers *w, const run_options *o, const run_round *r, int nth, output *out) {
    worker *one = &w->list[nth];
    *one = (worker){.rank = r->first + nth, .began = tn__now()};
    char *folder = log_folder(o, r, one->rank, out);
    tn__buffer settings = rank_settings(w, o, r, nth, folder, output_columns(out));
    char **env = tn__environment_with(&settings);
    memory_needed(env != NULL);
    int ends[2];
    pid_t launcher = getpid();
    bool opened = output_open(out, one->rank, folder, ends);
    one->pid = opened ? fork() : -1;
    int why = errno;
    if (one->pid == 0) { become_rank(w, o, env, ends, launcher); }
    if (one->pid > 0) {
        setpgid(one->pid, one->pid); /* in both processes, as either may be first */
        w->running++;
    } else {
        output_say(out, "rank %d cannot be started: %s", one->rank, strerror(why));
        one->ended = true;
        one->end = one->began;
        one->status = EX_OSERR << 8; /* it may succeed next time */
        one->order = ++w->failures;
    }
    if (opened) {
        close(ends[0]);
        close(ends[1]);
    }
    tn__buffer_free(&settings);
    free(env);
    free(folder);
}

void workers_start(workers *w, const run_options *o, const run_round *r, output *out) {
    keep_guard(w, out);
    free(w->memory);
    w->memory = r->nodes == 1 ? memory_folder(w->guard.marker, out) : NULL;
    free(w->list);
    w->list = memory_new((size_t)r->local, sizeof(*w->list));
    w->count = r->local;
    w->running = w->failures = 0;
    w->stopping = w->killed = w->ended = 0;
    w->gone = false;
    for (int i = 0; i < r->local; i++) {
        start_one(w, o, r, i, out);
    }
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static worker *find_worker(workers *w, pid_t pid) {
    for (int i = 0; i < w->count; i++) {
        if (w->list[i].pid == pid && !w->list[i].ended) { return &w->list[i]; }
    }
    return NULL;
}

static void record_end(workers *w, worker *one, int status) {
    one->ended = true;
    one->status = status;
    one->end = tn__now();
    w->running--;
    w->ended = one->end;
}

/* Among failures seen at once, one killed by a signal comes first: its peers notice, and end with
 * an exit code. */
static void order_failures(workers *w, double since) {
    for (int by_signal = 1; by_signal >= 0; by_signal--) {
        for (int i = 0; i < w->count; i++) {
            worker *one = &w->list[i];
            if (one->ended && one->end >= since && one->status != 0 && !one->order &&
                WIFSIGNALED(one->status) == by_signal) {
                one->order = ++w->failures;
            }
        }
    }
}

bool workers_reap(workers *w) {
    bool any = false;
    double began = tn__now();
    siginfo_t info = {0};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid > 0) {
        worker *one = find_worker(w, info.si_pid);
        if (one) {
            kill(-one->pid, SIGKILL);
            guard_write(&w->guard, '-', one->pid);
        }
        int status = 0;
        waitpid(info.si_pid, &status, 0);
        if (one) {
            record_end(w, one, status);
            any = true;
        } else if (info.si_pid == w->guard.pid) {
            close(w->guard.pipe);
            w->guard.pid = 0;
            w->guard.pipe = -1;
        }
        info.si_pid = 0;
    }
    if (any && w->stopping == 0) { order_failures(w, began); }
    return any;
}

void workers_signal(const workers *w, int signal, bool groups) {
    for (int i = 0; i < w->count; i++) {
        pid_t pid = w->list[i].pid;
        if (!w->list[i].ended) { kill(groups ? -pid : pid, signal); }
    }
}

void workers_stop(workers *w, int signal) {
    double now = tn__now();
    if (w->stopping == 0) { w->stopping = now; }
    if (signal == SIGKILL && w->killed == 0) { w->killed = now; }
    workers_signal(w, signal, true);
    workers_signal(w, SIGCONT, true); /* a stopped process cannot end by itself */
}

void workers_tick(workers *w, double grace, output *out) {
    double now = tn__now();
    if (w->running > 0) { keep_guard(w, out); }
    if (w->running > 0 && w->stopping > 0 && w->killed == 0 && now - w->stopping >= grace) {
        workers_stop(w, SIGKILL);
    }
    for (int i = 0; w->killed > 0 && now - w->killed > unkillable_seconds && i < w->count; i++) {
        if (!w->list[i].ended) {
            output_say(out,
                       "rank %d (pid %d) hangs in the kernel: SIGKILL did not end it within %.0f s",
                       w->list[i].rank, (int)w->list[i].pid, unkillable_seconds);
            record_end(w, &w->list[i], SIGKILL);
        }
    }
}

/* Kills children that we inherited when a rank ended: not the guard, and not children that we had
 * before the first round. Returns how many. */
static int kill_strays(const workers *w) {
    pid_t list[MOST_CHILDREN];
    int found = list_children(list), strays = 0;
    for (int i = 0; i < found; i++) {
        bool known = list[i] == w->guard.pid;
        for (int k = 0; k < w->earlier_count; k++) {
            known = known || w->earlier[k] == list[i];
        }
        if (!known) {
            kill(list[i], SIGKILL);
            strays++;
        }
    }
    return found >= 0 ? strays : guard_sweep(w->guard.marker);
}

bool workers_gone(workers *w) {
    if (!w->gone && w->running == 0) {
        bool late = tn__now() - w->ended > unkillable_seconds;
        w->gone = w->count == 0 || late || kill_strays(w) == 0;
    }
    return w->gone;
}

const worker *workers_first_failure(const workers *w) {
    for (int i = 0; i < w->count; i++) {
        if (w->list[i].order == 1) { return &w->list[i]; }
    }
    return NULL;
}

void workers_finish(workers *w) {
    guard_finish(&w->guard);
    free(w->memory);
    free(w->list);
    w->list = NULL;
    w->count = 0;
}
