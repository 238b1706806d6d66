/* `tern run`: starts a program as ranks, together with launchers on other hosts,
 * and ends with them.
 *
 *     run.c            the main thread: one poll loop over signals, orders and deadlines
 *     run_options.c    what the user asked for
 *     run_refused.c    torchrun's options that this launcher lacks, and why
 *     run_workers.c    the ranks of this host as processes: start, end, reap
 *     run_memory.c     a folder in memory in which ranks save what must outlive them
 *     run_guard.c      a process that ends the ranks when the launcher itself is killed
 *     run_output.c     a thread between the ranks' pipes and the terminal and log files
 *     run_screen.c     whole lines with prefixes; one redrawn line at the bottom
 *     run_report.c     which rank failed first, and its last lines
 *     run_words.c      what launchers write to each other, and when an order is valid
 *     run_agent.c      a thread that talks to the store: this node's orders, and its state
 *     run_leader.c     on node 0, in the same thread: who takes part, rounds, restarts, the verdict
 *
 * The main thread never waits for the network or for a terminal; the threads that do may hang
 * there, and the program still ends in bounded time.
 *
 * A node is one launcher with its ranks. A round is one start of all ranks on all nodes.
 */
#ifndef TERN_TOOLS_RUN_H
#define TERN_TOOLS_RUN_H

#include "core/clock.h"
#include "distributed/init/token.h"
#include "tools/run_words.h"

#include <tern/store.h>

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* ---- Options (run_options.c) ----------------------------------------------------------------- */

typedef struct run_options {
    int min_nodes, max_nodes;
    int ranks; /* of this node */
    int max_restarts;
    int node_rank;  /* requested; -1: by arrival */
    char host[256]; /* where the store is served; a loopback address when the job has one node */
    int port;       /* 0: any */
    bool alone;     /* one node, a random token: no one else can join */
    bool own_token; /* the token is made from the user's own */
    char run_id[65];
    char token[TN__TOKEN];
    char node_name[65];  /* of this host, for messages */
    char devices[257];   /* as in a node's card */
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

/* `tern run`; the exit status. */
int run_main(int argc, char **argv);

/* ---- Small things (run_options.c) ------------------------------------------------------------ */

/* printf into new memory. Ends the program when out of memory; the guard then ends the ranks. */
char *text_new(const char *format, ...) TN_PRINTF(1, 2);
/* calloc that ends the program when out of memory. */
void *memory_new(size_t count, size_t bytes);
/* `bytes` random bytes as text of twice the length. */
void random_text(char *text, int bytes);

/* ---- Guard (run_guard.c) --------------------------------------------------------------------- */

typedef struct guard {
    pid_t pid;
    int pipe;        /* closed by our death, whatever the cause */
    char marker[64]; /* "TERN_LAUNCHER=…": in the environment of every rank and what it starts */
} guard;

/* Starts the guard's process, also to replace one that died. False with errno. */
bool guard_start(guard *g);
/* From now on the guard ends this process group. Also called between fork and exec. */
void guard_add(const guard *g, pid_t group);
void guard_remove(const guard *g, pid_t group);
/* Kills every process that carries the marker, in any group or session; returns how many. */
int guard_sweep(const char *marker);
/* Lets it finish and waits for its end. */
void guard_finish(guard *g);
/* The guard's own main program: `tern _guard PIPE MARKER`. */
int guard_main(int argc, char **argv);

/* ---- Memory (run_memory.c) ------------------------------------------------------------------- */

typedef struct output output;

/* Makes the folder, unless it exists. Returns the variable that tells the ranks of it; NULL: there
 * is none, which was said. */
char *memory_folder(const char *marker, output *out);
void memory_remove(const char *marker);

/* ---- Workers (run_workers.c) ----------------------------------------------------------------- */

typedef struct worker {
    int rank;
    pid_t pid; /* also its process group */
    bool ended;
    int status;        /* of waitpid, when ended */
    int order;         /* its place among those that failed by themselves, from 1; 0: it did not */
    bool told;         /* the agent knows that it has succeeded */
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
    char *memory;               /* a variable for the ranks of a job on one host; NULL */
    sigset_t mask;              /* for the ranks: the signals that were blocked before we started */
    pid_t elder[MOST_CHILDREN]; /* earlier children: those of a shell that then called exec */
    int elders;
} workers;

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
/* Passes a signal on to the ranks themselves. */
void workers_signal(workers *w, int signal);
void workers_finish(workers *w);

/* ---- Output (run_output.c) ------------------------------------------------------------------- */

/* How much of each rank's stderr is kept for a report. */
enum { TAIL_LINES = 20, TAIL_BYTES = 1 << 14 };

output *output_new(void);
/* The writing ends for a rank's stdout and stderr, close-on-exec: the caller closes them after the
 * start. `folder` (or NULL) gets stdout.log and stderr.log. False with errno. */
bool output_open(output *o, int rank, bool show_redraws, const char *folder, int ends[2]);
/* A line of our own on stderr, with "tern: " in front. Never blocks. */
void output_say(output *o, const char *format, ...) TN_PRINTF(2, 3);
/* Forgets the tails of earlier rounds. */
void output_forget(output *o);
/* Call when the terminal's size has changed. */
void output_resize(output *o);
/* Whether all output of ended ranks has been read (not necessarily written). */
bool output_read(output *o);
/* Copies the last bytes of a rank's stderr, with a 0 after them; the caller frees. `later`: how
 * many lines were shown after them. */
char *output_tail(output *o, int rank, size_t *length, uint64_t *later);
/* Readable when the last pipe has been closed, and when output_end is done. */
int output_event(const output *o);
/* Call after the last rank: the thread ends when all is written. Then output_ended is true. */
void output_end(output *o);
bool output_ended(output *o);
/* After the end: whether something could not be written, on screen or to a log file. */
bool output_lost(output *o);
void output_free(output *o); /* only when it has ended */

/* ---- Screen (run_screen.c) ------------------------------------------------------------------- */

typedef struct screen_end {
    int fd;
    bool terminal, colour, closed;
    char *buffer; /* written when full and by screen_flush */
    size_t used, capacity;
} screen_end;

typedef struct screen {
    screen_end end[2]; /* stdout, stderr */
    /* The line at the bottom that its rank redraws; length 0: there is none. */
    int open_end, open_rank;
    char *open;
    size_t open_length, open_capacity;
    bool lost; /* something could not be written: the disk is full, the reader has gone */
} screen;

/* The rank of the launcher's own lines. */
enum { RANK_TERN = -1 };

void screen_init(screen *s);
/* One whole line, without its newline. */
void screen_line(screen *s, int end, int rank, const char *text, size_t length);
/* A line that is not complete, to be shown as it is: replaces what this rank showed before. */
void screen_redraw(screen *s, int end, int rank, const char *text, size_t length);
/* Blocks while the terminal blocks. */
void screen_flush(screen *s);
/* Columns that a prefix takes. */
int screen_prefix_columns(int rank);
void screen_finish(screen *s);

/* ---- Reports (run_report.c) ------------------------------------------------------------------ */

/* "rank 1 (host a, pid 42) was killed by SIGSEGV …", its last lines, and who failed besides: the
 * first that failed, or if that ended without a word, one that has said why. With `here` the report
 * is shown where the ranks' lines are, and does not repeat those that are still in view. The caller
 * frees. NULL if none failed. */
char *report_failure(const workers *w, const run_options *o, bool here, output *out);
/* The exit status for this worker's end: its own, or 128 + signal. */
int report_code(const worker *w);

/* ---- Agent (run_agent.c) --------------------------------------------------------------------- */

typedef struct order {
    struct order *next;
    order_kind kind;
    run_round round; /* START: of this node. STOP: only the number */
    int code;        /* END, BROKEN: the exit status */
    char *text;      /* why, for the user; "": nothing to say */
} order;

typedef struct agent agent;

/* Starts the thread: serves the store or joins it, then gives orders. */
agent *agent_new(const run_options *o);
/* Readable when there are orders or the agent has ended. */
int agent_event(const agent *a);
/* The next order, or NULL. The caller frees it with order_free. A launcher that was stopped may
 * have lost its place meanwhile: a start waits until it has been heard that it has not.
 */
order *agent_order(agent *a);
void order_free(order *o);
/* Sends the leader this node's state. FAILED and STOPPED may come with a report, LEFT with a
 * reason; `code` goes with them. */
void agent_tell(agent *a, node_state state, int round, int code, const char *text);
/* Tells the ranks that a rank has succeeded: those that wait for it in tn_dist_init can stop. */
void agent_rank_ended(agent *a, const run_round *r, const worker *w);
/* On node 0: ends the job on all nodes. */
void agent_end_job(agent *a, int code, const char *text);
bool agent_leads(agent *a);
bool agent_joined(agent *a);
/* Whether everything has been sent, or cannot be. */
bool agent_ended(agent *a);
void agent_free(agent *a); /* only when it has ended */

/* ---- Leader (run_leader.c) ------------------------------------------------------------------- */

typedef struct leader leader;

/* `own` is the number of this node. */
leader *leader_new(const run_options *o, tn_store *keys, int own);
/* Looks at all nodes and decides. An error of the store stays pending. */
void leader_tick(leader *l);
/* Ends the job, if it has not ended yet. */
void leader_end(leader *l, int code, const char *text);
/* Whether the job has ended and every other node has read that, or had time to. */
bool leader_over(const leader *l);
void leader_free(leader *l);

/* ---- Keys (run_agent.c) ---------------------------------------------------------------------- */

/* The text at this key; the caller frees. NULL: there is none, or an error is pending. */
char *agent_find(tn_store *keys, const char *key_format, ...) TN_PRINTF(2, 3);

#endif
