/* `tern run`, the main thread: one loop over signals, ended ranks, the leader's orders, and time.
 *
 *     WAITING   no ranks: before the first round, between rounds, and when all have succeeded
 *     RUNNING   ranks are running
 *     STOPPING  a rank has failed, or the leader says so: the ranks are being ended, then the node
 *               reports
 *     ENDING    the job is over, for all nodes or for this one: the same, then the program exits
 *
 * The loop waits in poll and nowhere else. What may hang (network, terminal) runs in threads, which
 * are abandoned if they do not end in time.
 */
#include "tools/run.h"
#include "tools/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <unistd.h>

/* Extra seconds after the grace period, for last messages: a node's to the leader, the leader's to
 * all nodes. */
static const double last_messages = 3, shutdown_wait = 20;

typedef enum phase { WAITING, RUNNING, STOPPING, ENDING } phase;

typedef struct launcher {
    run_options options;
    workers workers;
    output *out;
    agent *agent;
    int signals; /* signalfd */
    phase phase;
    run_round round;
    int code;       /* the program's exit status, when ENDING */
    char *reason;   /* of the order to end; NULL: there was none */
    bool left;      /* the agent was told that this node ends */
    double left_at; /* since when we only wait for last messages */
    int interrupts; /* signals that asked us to end */
    int interrupt;  /* the first of them */
} launcher;

/* ---- Phases ---------------------------------------------------------------------------------- */

/* Node 0 ends the job for the others too. */
static void leave_job(launcher *l, int code, const char *reason) {
    if (!l->left) {
        l->left = true;
        agent_report(l->agent, NODE_LEFT, l->round.number, code, reason);
    }
}

static void begin_ending(launcher *l, int code, int signal) {
    if (l->phase != ENDING) {
        l->code = code;
        l->phase = ENDING;
        workers_stop(&l->workers, signal);
    }
}

static void begin_round(launcher *l, const order *o) {
    const run_round r = o->round;
    if (r.local == 0) {
        output_say(l->out, "job %s runs on %d host%s: this one waits for a free place",
                   l->options.node.run_id, r.nodes, r.nodes == 1 ? "" : "s");
        return;
    }
    if (r.nodes > 1) {
        char last[16] = "";
        snprintf(last, r.local > 1 ? sizeof(last) : 1, "-%d", r.first + r.local - 1);
        output_say(l->out, "node %d of %d, rank %d%s of %d", r.node, r.nodes, r.first, last,
                   r.world);
    }
    l->round = r;
    l->phase = RUNNING;
    agent_report(l->agent, NODE_RUNNING, r.number, 0, NULL);
    workers_start(&l->workers, &l->options, &r, l->out);
}

/* The exit status for a launcher that may not have taken part in the job. */
static int end_status(launcher *l, int code) {
    if (code != 0 || l->round.number > 0) { return code; }
    output_say(l->out, "job %s has succeeded, but this host arrived too late: nothing ran here",
               l->options.node.run_id);
    return EX_TEMPFAIL;
}

static void obey_order(launcher *l, const order *o) {
    if (l->phase == ENDING) { return; }
    if (*o->text) { output_say(l->out, "%s", o->text); }
    if (o->kind == ORDER_START && l->phase == WAITING) {
        begin_round(l, o);
    } else if (o->kind == ORDER_STOP && l->phase == RUNNING && o->number == l->round.number) {
        l->phase = STOPPING;
        workers_stop(&l->workers, SIGTERM);
    } else if (o->kind == ORDER_END) {
        l->reason = *o->text ? text_new("%s", o->text) : NULL;
        begin_ending(l, end_status(l, o->number), SIGTERM);
    }
}

/* SIGTERM comes twice where Slurm sends it to every process of a step, and what started this
 * launcher passes it on: a search does. The ranks may be saving then. */
static void take_interrupt(launcher *l, int signal) {
    if (l->interrupts > 0 && signal == SIGTERM) { return; }
    if (++l->interrupts > 1) {
        workers_stop(&l->workers, SIGKILL);
        return;
    }
    l->interrupt = signal;
    const char *name = sigabbrev_np(signal);
    char *reason = text_new("SIG%s ended the launcher on host %s", name, l->options.node.name);
    output_say(l->out, "SIG%s: ending the ranks (a second Ctrl-C kills them at once)", name);
    leave_job(l, 128 + signal, reason);
    begin_ending(l, 128 + signal, signal);
    free(reason);
}

/* ---- What happens ---------------------------------------------------------------------------- */

static void take_signals(launcher *l) {
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof(info)) == sizeof(info)) {
        int signal = (int)info.ssi_signo;
        if (signal == SIGUSR1 || signal == SIGUSR2) {
            workers_signal(&l->workers, signal, false);
        } else if (signal != SIGCHLD) { /* each turn looks for ended ranks anyway */
            take_interrupt(l, signal);
        }
    }
}

static void report_round(launcher *l) {
    const worker *first = workers_first_failure(&l->workers);
    char *text = report_failure(&l->workers, &l->options, l->out);
    agent_report(l->agent, NODE_STOPPED, l->round.number, first ? report_code(first) : 0, text);
    free(text);
    output_forget(l->out);
}

/* Reports successful ranks while others run, which may be waiting for them. */
static void report_good_ends(launcher *l) {
    workers *w = &l->workers;
    bool others = w->running > 0 || l->round.nodes > 1;
    for (int i = 0; others && i < w->count; i++) {
        worker *one = &w->list[i];
        if (one->ended && one->status == 0 && !one->reported) {
            one->reported = true;
            agent_rank_ended(l->agent, &l->round, one);
        }
    }
}

static void look_after_ranks(launcher *l) {
    workers *w = &l->workers;
    if (workers_reap(w) && l->phase == RUNNING) { report_good_ends(l); }
    workers_tick(w, l->options.grace, l->out);
    const worker *first = workers_first_failure(w);
    if (l->phase == RUNNING && first) {
        agent_report(l->agent, NODE_FAILED, l->round.number, report_code(first), NULL);
        workers_stop(w, SIGTERM);
        l->phase = STOPPING;
    } else if (l->phase == RUNNING && workers_gone(w)) {
        agent_report(l->agent, NODE_DONE, l->round.number, 0, NULL);
        output_forget(l->out);
        l->phase = WAITING;
    }
    /* Until their last output has been read, or has taken too long. */
    if (l->phase == STOPPING && workers_gone(w) &&
        (output_read(l->out) || tn__now() - w->ended > 1)) {
        report_round(l);
        l->phase = WAITING;
    }
}

/* True when the program may end. */
static bool may_end(launcher *l) {
    if (l->phase != ENDING || !workers_gone(&l->workers)) { return false; }
    if (l->left_at == 0) {
        leave_job(l, l->code, l->reason);
        l->left_at = tn__now();
        output_end(l->out);
    }
    double waited = tn__now() - l->left_at;
    agent_state state = agent_state_now(l->agent);
    double most = state == AGENT_LEADS    ? l->options.grace + shutdown_wait
                  : state == AGENT_JOINED ? last_messages
                                          : 0;
    bool hurry = l->interrupts > 1;
    bool said = state == AGENT_ENDED || waited > most || hurry;
    /* Waits for a stopped terminal, as any program would, unless we were asked to end. */
    bool shown = output_ended(l->out) || (l->interrupts > 0 && waited > l->options.grace) || hurry;
    return said && shown;
}

static void main_loop(launcher *l) {
    struct pollfd fds[] = {
        {.fd = l->signals, .events = POLLIN},
        {.fd = agent_event(l->agent), .events = POLLIN},
    };
    do {
        poll(fds, 2, l->phase == RUNNING || l->phase == WAITING ? 200 : 20);
        take_signals(l);
        look_after_ranks(l); /* before the orders, so that a failure here counts as one */
        for (order *o; (o = agent_order(l->agent)); order_free(o)) {
            obey_order(l, o);
        }
    } while (!may_end(l));
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static int open_signals(workers *w) {
    static const int taken[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++) {
        struct sigaction now; /* nohup, or a shell for a background job, may have it ignored */
        bool known = sigaction(taken[i], NULL, &now) == 0;
        if (known && now.sa_handler != SIG_IGN) { sigaddset(&set, taken[i]); }
    }
    signal(SIGCHLD, SIG_DFL); /* if ignored, the ranks' exit codes would be lost */
    sigaddset(&set, SIGCHLD);
    signal(SIGPIPE, SIG_IGN); /* write reports these two as errors */
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, &w->mask);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Files that we open must not become a rank's stdout. */
static bool open_standard_files(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    return fd >= 0 && close(fd) == 0;
}

static bool begin_job(launcher *l) {
    l->signals = open_signals(&l->workers);
    bool ready = l->signals >= 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    if (!ready || !workers_init(&l->workers)) { return false; }
    l->out = output_new();
    l->agent = l->out ? agent_new(&l->options) : NULL;
    return l->agent != NULL;
}

int run_main(int argc, char **argv) {
    launcher l = {0};
    run_options_parse(&l.options, argc, argv);
    if (!open_standard_files() || !begin_job(&l)) {
        fprintf(stderr, "tern: the launcher cannot start: %s\n", strerror(errno));
        return 1;
    }
    main_loop(&l);
    bool shown = output_ended(l.out), all_ended = shown && agent_state_now(l.agent) == AGENT_ENDED;
    int status = l.code; /* a job whose output could not all be shown has failed */
    if (status == 0 && !shown) {
        status = 128 + l.interrupt;
    } else if (status == 0 && output_lost(l.out)) {
        status = EXIT_FAILURE;
    }
    workers_finish(&l.workers);
    if (!all_ended) { _exit(status); /* a thread hangs; it ends with the process */ }
    free(l.reason);
    agent_free(l.agent);
    output_free(l.out);
    close(l.signals);
    return status;
}
