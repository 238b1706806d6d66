/* `tern run`: starts a program as ranks, together with launchers on other hosts,
 * and ends with them.
 * README.md lists its parts.
 *
 * The main thread never waits for the network or for a terminal; the threads that do may hang
 * there, and the program still ends in bounded time.
 *
 * A node is one launcher with its ranks. A round is one start of all ranks on all nodes.
 */
#ifndef TERN_TOOLS_RUN_H
#define TERN_TOOLS_RUN_H

#include "core/buffer.h"
#include "core/clock.h"
#include "distributed/init/token.h"
#include "tools/run_words.h"

#include <tern/store.h>
#include <tern/train.h>

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* ---- Options (run_options.c) ----------------------------------------------------------------- */

typedef struct run_options {
    node_info node; /* what this launcher says of itself */
    int max_restarts;
    char host[256]; /* where the store is served; a loopback address when the job has one node */
    int port;       /* 0: any */
    bool alone;     /* one node, a random token: no one else can join */
    bool own_token; /* the token is made from the user's own */
    char token[TN__TOKEN];
    double monitor;      /* seconds between two signs of life */
    double heartbeat;    /* a node silent for this long is lost */
    double timeout;      /* to wait for enough nodes */
    double last_call;    /* to wait for more than enough nodes */
    double grace;        /* between SIGTERM and SIGKILL */
    const char *log_dir; /* NULL: no files */
    char **program;      /* with its arguments, NULL at the end */
    char *path;          /* of the program's file */
    char *command;       /* what was typed before the program; NULL: it has a secret in it */
} run_options;

/* Prints and exits when the arguments ask for it or are wrong. */
void run_options_parse(run_options *o, int argc, char **argv);

/* ---- Small things (run_small.c) -------------------------------------------------------------- */

/* Ends the program, and the guard then the ranks, where there was no memory. */
void memory_needed(bool there);
/* printf into new memory, calloc, and a buffer's string: all there is memory for. */
char *text_new(const char *format, ...) TN_PRINTF(1, 2);
void *memory_new(size_t count, size_t bytes);
char *text_take(tn__buffer *b);
/* The pending error, with what is wrong as its message; it is no longer pending then. */
tn_error_record error_take(void);
/* `bytes` random bytes as text of twice the length. */
void random_text(char *text, int bytes);

/* ---- Guard (run_guard.c) --------------------------------------------------------------------- */

typedef struct output output;

typedef struct guard {
    pid_t pid;
    int pipe;        /* closed by our death, whatever the cause */
    char marker[64]; /* "TERN_LAUNCHER=…": in the environment of every rank and what it starts */
} guard;

/* Starts the guard's process, also to replace one that died. False with errno. */
bool guard_start(guard *g);
/* '+': from now on the guard ends this process group; '-': it does not. Also called between fork
 * and exec. */
void guard_write(const guard *g, char sign, pid_t group);
/* Kills every process that carries the marker, in any group or session; returns how many. */
int guard_sweep(const char *marker);
/* Lets it finish and waits for its end. */
void guard_finish(guard *g);

/* Makes the ranks' folder in memory, unless it exists. Its path; NULL: there is none, which was
 * said. */
char *memory_folder(const char *marker, output *out);
void memory_remove(const char *marker);

/* ---- Workers (run_workers.c) ----------------------------------------------------------------- */

typedef struct worker {
    int rank;
    pid_t pid; /* also its process group */
    bool ended;
    int status;        /* of waitpid, when ended */
    int order;         /* its place among those that failed by themselves, from 1; 0: it did not */
    bool reported;     /* the agent knows that it has succeeded */
    double began, end; /* tn__now */
} worker;

enum { MOST_CHILDREN = 256 };

typedef struct workers {
    worker *list; /* [count] */
    int count, running;
    int failures;
    double stopping; /* when we began to end them; 0: not yet */
    double killed;   /* when SIGKILL was sent; 0: not yet */
    double ended;    /* when the last rank did */
    bool gone;
    guard guard;
    char *memory;  /* a folder for the ranks of a job on one host; NULL */
    sigset_t mask; /* for the ranks: the signals that were blocked before we started */
    pid_t earlier[MOST_CHILDREN]; /* children: those of a shell that then called exec */
    int earlier_count;
} workers;

/* Where a program is, as a shell would find it; else the launcher ends before anything starts:
 * restarts cannot help a wrong name. */
char *find_program(const char *name);
/* `mask` is the caller's to set. False with errno. */
bool workers_init(workers *w);
/* Starts the round's ranks; those that cannot be started appear as failures. */
void workers_start(workers *w, const run_options *o, const run_round *r, output *out);
/* Reaps those that have ended; true if one was a rank. */
bool workers_reap(workers *w);
/* Begins to end them with this signal. A further call with SIGKILL ends them at once. */
void workers_stop(workers *w, int signal);
/* Kills those still there `grace` seconds after workers_stop, and gives up on those that cannot be
 * killed. */
void workers_tick(workers *w, double grace, output *out);
/* Whether no rank is left, nor anything that one started. */
bool workers_gone(workers *w);
/* The first that failed; NULL if none did. */
const worker *workers_first_failure(const workers *w);
/* Sends the ranks a signal, themselves or with all that they have started (their groups). */
void workers_signal(const workers *w, int signal, bool groups);
void workers_finish(workers *w);

/* ---- Output (run_output.c) ------------------------------------------------------------------- */

output *output_new(void);
/* The columns that a rank's progress line may have; 0: none is shown. */
int output_columns(const output *o);
/* The writing ends for a rank's stdout and stderr, close-on-exec: the caller closes them after the
 * start. `folder` (or NULL) gets stdout.log and stderr.log. False with errno. */
bool output_open(output *o, int rank, const char *folder, int ends[2]);
/* A line of our own on stderr, with "tern: " in front. Never blocks. */
void output_say(output *o, const char *format, ...) TN_PRINTF(2, 3);
/* Forgets the tails of earlier rounds. */
void output_forget(output *o);
/* Whether all output of ended ranks has been read (not necessarily written). */
bool output_read(output *o);
/* The last bytes of a rank's stderr, without line ends at the end; the caller frees the buffer. */
tn__buffer output_tail(output *o, int rank);
/* Call after the last rank: the thread ends when all is written. Then output_ended is true. */
void output_end(output *o);
bool output_ended(output *o);
/* After the end: whether something could not be written, on screen or to a log file. */
bool output_lost(output *o);
void output_free(output *o); /* only when it has ended */
/* Of a line, what a terminal would show: what comes after its last \r, if more does. */
void shown_part(const char **text, size_t *length);

/* ---- Reports (run_report.c) ------------------------------------------------------------------ */

/* "rank 1 (host a, pid 42) was killed by SIGSEGV …", its last lines, and who failed besides: the
 * first that failed, or if that ended without a word, one that has said why. The caller frees. NULL
 * if none failed. */
char *report_failure(const workers *w, const run_options *o, output *out);
/* The exit status for this worker's end: its own, or 128 + signal. */
int report_code(const worker *w);

/* ---- Agent (run_agent.c) --------------------------------------------------------------------- */

typedef struct agent agent;

typedef enum agent_state {
    AGENT_JOINING, /* or it could not */
    AGENT_JOINED,
    AGENT_LEADS, /* this is node 0 */
    AGENT_ENDED  /* everything has been sent, or cannot be */
} agent_state;

/* Serves the store or joins it, then gives orders. On several hosts a thread does that. */
agent *agent_new(const run_options *o);
/* Readable when there are orders or the agent has ended. */
int agent_event(const agent *a);
/* The next order, or NULL. The caller frees it with order_free. A launcher that was stopped may
 * have lost its place meanwhile: a start waits until it is known that it has not. */
order *agent_order(agent *a);
/* Sends the leader this node's state. FAILED and STOPPED may come with a report, LEFT with a
 * reason; `code` goes with them. Node 0 ends the job by leaving. */
void agent_report(agent *a, node_state state, int round, int code, const char *text);
/* Says to the ranks that one has succeeded: those that wait for it in tn_dist_init can stop. */
void agent_rank_ended(agent *a, const run_round *r, const worker *w);
agent_state agent_state_now(agent *a);
void agent_free(agent *a); /* only when it has ended */

#endif
