/* The program's command after a commit (tn_saver_options.after): it runs beside training, and its
 * step is not removed meanwhile. One at a time: a step that is committed while it still runs is
 * passed over, unless it is the last. */
#include "core/buffer.h"
#include "core/error.h"
#include "core/log.h"
#include "distributed/parallel/save/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

/* Collects the command if it has ended, or when it does. */
static void collect_command(tn__saver_after *a, const char *command, bool wait) {
    int status = 0;
    pid_t got = a->pid > 0 ? waitpid(a->pid, &status, wait ? 0 : WNOHANG) : 0;
    while (got < 0 && errno == EINTR) {
        got = waitpid(a->pid, &status, wait ? 0 : WNOHANG);
    }
    if (got != 0) { /* below 0: the program has collected it, or wants to hear of no child */
        a->pid = 0;
    }
    if (got > 0 && status != 0) {
        bool killed = WIFSIGNALED(status);
        tn__log_loud("after step %" PRId64 " was saved, \"%s\" ended with %s %d", a->step, command,
                     killed ? "signal" : "status", killed ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

int64_t tn__after_step(const tn_saver *s) {
    return s->after.pid > 0 ? s->after.step : -1;
}

/* The command is not a rank: a program of ours in it would wait for the others. */
#define ALONE                                                      \
    "export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1; " \
    "unset TERN_STORE TERN_MEMORY_DIR MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE; "

static void start_command(tn_saver *s, int64_t step) {
    static char shell[] = "sh", flag[] = "-c", name[] = "after-save";
    char *folder = tn__step_path(s->folder, step, false, NULL, s->operation);
    char *command = tn__asprintf(NULL, ALONE "%s", s->options.after);
    char *arguments[] = {shell, flag, command, name, folder, NULL};
    int error = !folder || !command
                    ? ENOMEM
                    : posix_spawn(&s->after.pid, "/bin/sh", NULL, NULL, arguments, environ);
    if (error) {
        s->after.pid = 0;
        tn__log_loud("after step %" PRId64 " was saved, \"%s\" could not be run: %s", step,
                     s->options.after, strerror(error));
    }
    s->after.step = step;
    tn_error_clear(); /* the step is saved all the same */
    free(command);
    free(folder);
}

void tn__after_commit(tn_saver *s) {
    if (!s->options.after) { return; }
    s->after.newest = s->step;
    collect_command(&s->after, s->options.after, false);
    if (s->after.pid == 0) { start_command(s, s->step); }
}

void tn__after_finish(tn_saver *s) {
    collect_command(&s->after, s->options.after, true);
    if (s->after.newest != s->after.step) {
        start_command(s, s->after.newest);
        collect_command(&s->after, s->options.after, true);
    }
    if (s->after.newest > 0) {
        tn_error_record why = {0};
        bool failed = tn_error_take(&why);
        tn__saver_remove_old(s);
        if (failed) { tn_error_give(&why); }
    }
}
