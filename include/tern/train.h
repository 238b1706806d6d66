/* What goes around a training loop, which stays the program's own.
 *
 *     tn_options_parse(argc, argv, "Trains a net.", table);       // the program's options, a run's
 *     tn_group *world = tn_setup_world(&setup);                   // ranks, device, threads
 *     ... data, net ...
 *     tn_setup_model(&setup, world, &net);                        // precision, layout on ranks
 *     ... optimiser, schedule ...
 *     tn_run *run = tn_run_new(world, options, (tn_checkpoint){.model = &net, .optim = opt});
 *     while (tn_run_next(run)) {
 *         ... forward, backward, step ...
 *         tn_run_log(run, "loss", loss);
 *     }
 *     return tn_run_end(run);
 *
 * A run continues where it was stopped or killed, is not overwritten by mistake, and keeps its
 * measurements, as numbers and as a picture. Its parts can be used alone too: a progress line, the
 * history of a run, curves, stopping on signals. examples/11_gpt2.c uses it all.
 *
 * Read next: train/run.c.
 */
#ifndef TERN_TRAIN_H
#define TERN_TRAIN_H

#include "models.h"
#include "split.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Options: --help, checks and values from a table ----------------------------------------- */

/* --NAME VALUE, or -LETTER VALUE; hyphens in a name may be underscores. Exactly one of the pointers
 * is set: it says where the value goes, and so its type; the value there is the default, which
 * --help shows unless `help` ends with a `)`. A row with only `help` is a heading ("": only starts
 * a new group in --help), one with only `setup` or `run` adds all their options, and an empty one
 * ends the table. A row without a name but with a value is for the other arguments ("IN... --out
 * DIR", as --help shows them): each is passed to `read`, or `rest` gets the first and all after it,
 * options or not, with NULL at the end. Without such a row there may be none. */
typedef struct tn_option {
    const char *name;
    int letter;        /* 0: none */
    const char *value; /* the value's name in --help: "N"; NULL for a flag, else "VALUE" */
    const char *help;
    bool *flag;                 /* true if given */
    const char **text;          /* any string */
    int64_t *whole;             /* an integer above 0 */
    double *real;               /* a number above 0 */
    int *choice;                /* the index of one of the choices; below 0: none given */
    const char *const *choices; /* up to a NULL; --help lists them, unless `value` has a | */
    double most;                /* of a number; 0: no limit (for an integer 1e12) */
    bool zero;                  /* 0 is allowed too */
    double least;               /* 0: above 0, or at least 0 with `zero` */
    const char *word;           /* of an integer: this word is allowed too, for -1 */
    bool needed;                /* must be given: there is no default */
    struct tn_setup *setup;     /* --device, --precision, --threads, --shard, … */
    struct tn_run_options *run; /* --out, --steps, --resume, … */
    /* Anything else: called with the value (NULL for a flag) and `to`, each time it is given. */
    void (*read)(const char *text, void *to);
    void *to;
    char ***rest; /* of the arguments, see above */
    bool hidden;  /* --help does not show it */
} tn_option;

/* Reads a program's arguments by its table, like argparse in Python. Prints and ends the process
 * for --help, and for unknown options and wrong values, with a message that says what is expected
 * and status 64, after which launchers do not restart it. `about`: what the program does; text
 * after a \v is shown after the options. A run then knows the command line (tn_run_end); argv must
 * stay valid. */
TN_API tn_status tn_options_parse(int argc, char **argv, const char *about, const tn_option *table);

/* Prints an error in the command line as tn_options_parse does, and ends the process with status
 * 64. For a row's `read`, or after tn_options_parse. */
TN_API void tn_options_refuse(const char *format, ...) TN_PRINTF(1, 2);

/* ---- Options for where and how to compute ---------------------------------------------------- */

/* For `precision`; for `shard`: over all ranks. */
typedef enum tn_setup_precision { TN_SETUP_F32, TN_SETUP_BF16, TN_SETUP_F16 } tn_setup_precision;
enum { TN_ALL_RANKS = -1 };

typedef struct tn_setup {
    const char *device; /* "cpu". "cuda": each rank its own, if there are enough. "cuda:1" */
    int precision;      /* TN_SETUP_F32: of the computation; weights are f32 */
    int64_t threads;    /* 0: the cores, shared among the ranks */
    int64_t shard; /* number of ranks that share the model, or TN_ALL_RANKS; 0: each has it all */
    int64_t stage; /* of tn_fsdp_options; 0: 3 if there is a shard, or offload */
    /* NULL; instead of both: how matrices, positions, parts and copies are laid out on the ranks,
     * for tn_spread_read ("tp=2,shard=all") */
    const char *mesh;
    bool offload;      /* of tn_fsdp_options */
    bool recompute;    /* blocks keep only their inputs for backward (gradient checkpointing) */
    double peak;       /* TFLOP/s of the device; 0: see tn_setup_flops */
    tn_spread *spread; /* for tn_setup_model */
    bool from_defaults;
} tn_setup;
TN_API tn_setup tn_setup_defaults(void);

/* Joins all ranks (tn_dist_init), and sets the default device and the number of threads. */
TN_API tn_group *tn_setup_world(const tn_setup *s);

/* Sets m's precision, and splits it over the ranks by `mesh` (tn_spread_new): each has all of it,
 * or `shard` of them share it; s->stage is then the stage used, 0 if each has all. Makes deferred
 * weights (TN_DEFER_INIT). Every rank calls, before the optimiser is made. TN_EVALUE: sizes that do
 * not divide. */
TN_API tn_status tn_setup_model(tn_setup *s, tn_group *world, void *m);
/* After it: the ranks with different batches, for the sampler (tn_spread_data). */
TN_API tn_group *tn_setup_data(const tn_setup *s);
TN_API void tn_setup_finish(tn_setup *s); /* after m is finished, before tn_dist_finish */

/* How many micro-batches of `at_once` units each rank computes for a step of `units` on all ranks
 * together; units 0: one. 1 after TN_EVALUE: they do not divide. */
TN_API int64_t tn_micro_batches(tn_group *world, int64_t units, int64_t at_once);

/* A scaler for the precision: enabled only with f16. NULL after an error. */
TN_API tn_scaler *tn_setup_scaler(const tn_setup *s);

/* The peak floating-point operations per second of all ranks' devices: `peak`, or for dense bf16
 * from the vendors' data sheets; 0: not known. */
TN_API double tn_setup_flops(const tn_setup *s, tn_group *world);

/* The floating-point operations that a language model needs per token, forward and backward, in
 * sequences of its context's length (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): 6 per
 * weight, except in tables that are only looked up, and the products of causal attention over half
 * of the context. 0 after TN_EVALUE: m is not a language model. */
TN_API double tn_lm_flops(void *m);

/* ---- A run ----------------------------------------------------------------------------------- */

typedef struct tn_run_options {
    const char *out;    /* "run": the folder for all its output */
    int64_t steps;      /* 1000 */
    int64_t val_every;  /* 250: steps between validations */
    int64_t save_every; /* 1000: steps between checkpoints */
    /* 0: none. Steps between saves in memory, from which `tern run` on one host continues the job
     * if a rank crashes; when it ends, they are gone. A step and the one being saved take as much
     * of /dev/shm as checkpoints of disk. Where that fails, a warning says so, and none are saved.
     */
    int64_t memory_every;
    int64_t log_every; /* 0: never. Steps between printed lines of what was logged */
    double epochs;     /* 0: `steps` counts. Else passes over the data, until tn_run_steps */
    int64_t patience;  /* 0. Of tn_run_stop_early on "val_loss" */
    int64_t keep_best; /* 0. The k of tn_run_keep_best on "val_loss" */
    /* Limits, 0 each: none. The run ends, saved, after the step that reaches one: hours since
     * tn_run_new, and what these cost at `price` for an hour of a rank; units counted
     * (tn_run_count) since the run's first step, before it continued too. */
    double hours, until_cost, price;
    int64_t until_units;
    const char *after_save; /* NULL; a command after each checkpoint: tn_saver_options.after */
    bool resume;            /* continue from the checkpoint in the folder, if there is one */
    bool resume_anyway;     /* even as another run (tn_checkpoint.other_run); logs what differs */
    bool overwrite;         /* start over */
    bool allow_nan;         /* continue after a loss that is NaN or infinite */
    const char *unit;       /* "tok": what tn_run_count counts */
    bool tensorboard;       /* also write event files for TensorBoard into the folder */
    bool from_defaults;
} tn_run_options;
TN_API tn_run_options tn_run_defaults(void);

/* The steps of a run in which each step takes n of l's batches: `steps`, or, with `epochs`, so many
 * passes over l's data, rounded up; `steps` is then that, and `epochs` 0. */
TN_API int64_t tn_run_steps(tn_run_options *o, const tn_loader *l, int64_t n);

/* A run. Files in its folder:
 *
 *     step-000100   sharded checkpoints, the last two (tn_saver)
 *     loss.csv      a row per step: what was logged, units, also per second, memory (tn_history)
 *     loss.svg      the curves of loss and val_loss, redrawn at each checkpoint
 *     run.json      a list of its starts: command, all options, launcher, git revision, library,
 *                   device, ranks, times in UTC, how it ended; --again does the last one again
 *     events…       with tensorboard: what was logged, and weight histograms at each checkpoint
 *
 * Rank 0 shows a progress line on stderr, and prints the rest to stdout. */
typedef struct tn_run tn_run;

/* Begins a run, or continues one with `resume`, or if the launcher has restarted the job: then the
 * objects of `parts` get the saved state. A folder that has a run is left alone unless resume or
 * overwrite is set: tn_run_next is then false at once. The schedule and its warm-up may be longer
 * than they were: the learning rate continues along the longer one. Every rank calls, with all
 * members of parts but `step`; what they point to must live as long as the run. From then on
 * signals stop the process as in tn_stop_on_signals. NULL after an error.
 *
 * Only one job at a time, with all its ranks, runs in a folder; another one is TN_EIO at once. Rank
 * 0 holds FOLDER/lock, with flock, until its process ends, however it ends. On NFS other hosts see
 * the lock; on a file system without locks no process is refused. */
TN_API tn_run *tn_run_new(tn_group *world, tn_run_options options, tn_checkpoint parts);

/* Ends the current step and returns whether there is another: not after the last one, nor if any
 * rank was asked to stop, nor beyond a limit of the options, by rank 0's clock and count. Saves
 * when due. Every rank calls.
 *
 * TN_EVALUE, on all ranks, after a step in which any rank has logged a "loss" that is NaN or
 * infinite (unless allow_nan), or before a save (of the best weights too) with such a parameter:
 * earlier saves stay as they are, and the message names the last checkpoint and, on the other
 * ranks, the first rank with such a value. This holds with a scaler too: only gradients may
 * overflow then, and the loss to log is the unscaled one. */
TN_API bool tn_run_next(tn_run *r);
TN_API int64_t tn_run_step(const tn_run *r); /* steps done, so this step's number from 0 */
TN_API bool tn_run_done(const tn_run *r);    /* all steps are done, or it ended early */

/* Logs a number of this step in the history, and shows it. "loss" and "val_loss" are drawn. */
TN_API void tn_run_log(tn_run *r, const char *name, double value);
/* To add your own histograms, texts and images (tensorboard.h): NULL without options.tensorboard,
 * and on ranks other than 0; then those calls do nothing. */
TN_API struct tn_summary_writer *tn_run_board(const tn_run *r);
/* Counts the units of data in this step, on all ranks together. */
TN_API void tn_run_count(tn_run *r, int64_t units);
/* Shows what fraction of `peak` operations per second is used, with `flops` per unit. */
TN_API void tn_run_utilisation(tn_run *r, double flops, double peak);

/* Whether to validate after this step; the time of that is not counted in the step's. Numbers
 * logged after this call are shown as a line. */
TN_API bool tn_run_validates(tn_run *r);

/* ---- Callbacks of a run ---------------------------------------------------------------------- */

/* The last value logged under a name, on every rank that logged one; NaN: none. */
TN_API double tn_run_value(const tn_run *r, const char *name);

/* Callbacks are called, in a scope, in the order of registration: after a step; after a step that
 * was validated; after a checkpoint was begun; at the end, when all is saved. Not while an error is
 * pending. */
typedef enum tn_run_event {
    TN_RUN_STEPPED,
    TN_RUN_VALIDATED,
    TN_RUN_SAVED,
    TN_RUN_ENDED
} tn_run_event;
typedef void (*tn_run_callback)(tn_run *r, void *user);
TN_API tn_status tn_run_on(tn_run *r, tn_run_event event, tn_run_callback f, void *user);

/* Ends the run after this step, as if all were done; one rank is enough. */
TN_API void tn_run_stop(tn_run *r);

/* Ends the run when `patience` values of this name in a row were no better than the best before
 * them. It looks at the history, so a continued run counts earlier values too. Every rank calls
 * this and the next function, before the first step, and logs the value. */
typedef struct tn_early_options {
    int64_t patience;      /* 3 */
    double min_delta;      /* 0: better by no more than this does not count */
    bool larger_is_better; /* false */
    bool from_defaults;
} tn_early_options;
TN_API tn_early_options tn_early_defaults(void);
TN_API tn_status tn_run_stop_early(tn_run *r, const char *name, tn_early_options options);

/* Keeps the model's weights of the k steps with the best values of this name, whole, as written by
 * tn_dist_export: FOLDER/best-000100.safetensors after 100 steps, for tn_load. Of equal ones the
 * first counts as better. Until the run ends, the best at the last two checkpoints are kept too,
 * since a killed run continues from there. */
TN_API tn_status tn_run_keep_best(tn_run *r, const char *name, int64_t k, bool larger_is_better);
/* The path of the best, for the caller to free. NULL: none yet, or after an error. Every rank
 * calls. */
TN_API char *tn_run_best(tn_run *r);

/* Draws the curves in characters, on rank 0 only. */
TN_API void tn_run_draw(tn_run *r, FILE *file);

/* Writes the model, a language model of models.h, into the run's folder as tn_dist_save_lm does:
 * `tern eval`, `tern generate` and transformers can open it there. words: a folder whose tokenizer
 * files are copied too, such as the one the model was loaded from; NULL: none. Every rank calls.
 * Does nothing if the run was refused. What tn_dist_save_lm raises; TN_EIO. */
TN_API tn_status tn_run_export(tn_run *r, const char *words);

/* Waits for pending saves, prints how the run ended, and frees it. If it was stopped, prints the
 * command to continue it. Returns the program's exit status: 0 if all steps are done, or at a
 * limit; 1 after an error, or if not all output could be written; 64 if a run was not to be
 * overwritten, and 65 after a NaN, like tn_error_exit: launchers restart neither. Otherwise
 * tn_stop_status. */
TN_API int tn_run_end(tn_run *r);

/* ---- Progress: one line, redrawn on a terminal; elsewhere a line every few seconds ----------- */

typedef struct tn_progress tn_progress;

/* For steps start … total-1, written to `file`. `unit` is what is counted in a step ("tok"); if
 * nothing is counted, no rate is shown. NULL after TN_ENOMEM; every function takes NULL. */
TN_API tn_progress *tn_progress_new(FILE *file, int64_t start, int64_t total, const char *unit);
/* a step is done, with its units */
TN_API void tn_progress_step(tn_progress *p, int64_t step, double loss, int64_t units);

/* Also shows the model FLOPs utilisation, "MFU 45 %": the operations that the model needs, `flops`
 * per unit, as a share of the device's `peak` floating-point operations per second (Chowdhery et
 * al. 2022, arXiv:2204.02311, appendix B). 0: not shown. */
TN_API void tn_progress_utilisation(tn_progress *p, double flops, double peak);

/* The median time of a step so far, in milliseconds; 0 before the first. A step's time runs from
 * the previous call of tn_progress_step, or from tn_progress_resume, which excludes what the
 * program did in between (a save, say). */
TN_API double tn_progress_median_ms(const tn_progress *p);
TN_API void tn_progress_resume(tn_progress *p);

/* More to show if the line is wide enough: "lr 0.0006 memory 1.2 GB". NULL: nothing. */
TN_API void tn_progress_note(tn_progress *p, const char *text);
/* Erases the line, so that the program can print one; the next step draws it again. */
TN_API void tn_progress_clear(tn_progress *p);
TN_API void tn_progress_free(tn_progress *p); /* finishes the line */

/* ---- Curves ---------------------------------------------------------------------------------- */

typedef struct tn_curve {
    const char *name;
    const double *x, *y; /* NaN and values beyond 1e300 break the line */
    int64_t count;
    bool faint; /* thin and pale: for raw numbers behind their mean */
} tn_curve;
typedef struct tn_plot {
    const char *title, *x_label, *y_label; /* may be NULL */
    const tn_curve *curves;
    int count;
} tn_plot;

/* In characters: braille dots if the locale is UTF-8, otherwise ASCII. `rows` lines (plus one for
 * names that do not fit) of `columns`, or of the terminal's width if that is narrower. */
TN_API void tn_plot_text(const tn_plot *plot, FILE *file, int columns, int rows);

/* As a picture for a browser. Written as io.h describes. */
TN_API tn_status tn_plot_svg(const tn_plot *plot, const char *path);

/* ---- Metrics: how good a model is, over batches and over ranks ------------------------------- */

/* Counts are added up and turned into metrics only at the end, so N ranks give the same as one.
 *
 *     tn_metrics *m = tn_metrics_new(10, 5);
 *     while (tn_loader_next(loader, &b)) {
 *         tn_metrics_add(m, tn_call(&net, b.x), b.y, b.valid);
 *     }
 *     tn_metrics_share(m, world);
 *     printf("%.4f\n", tn_metrics_accuracy(m)); */
typedef struct tn_metrics tn_metrics;
enum { TN_ALL_CLASSES = -1 };
/* For up to 10000 classes (0: only losses); k: how many top scores count in tn_metrics_top. */
TN_API tn_metrics *tn_metrics_new(int64_t classes, int64_t k);
TN_API void tn_metrics_free(tn_metrics *m);
TN_API void tn_metrics_reset(tn_metrics *m);
/* scores (…, classes), of which the first largest is the prediction; labels (…) integers; valid (…)
 * bool, or NULL: which rows are real, as in tn_batch. TN_ESHAPE, TN_EINDEX. */
TN_API tn_status tn_metrics_add(tn_metrics *m, tn_tensor *scores, tn_tensor *labels,
                                tn_tensor *valid);
/* A mean loss of `count` examples or tokens. */
TN_API tn_status tn_metrics_add_loss(tn_metrics *m, double mean, double count);
/* Adds up the counts of all ranks, on each. Every rank calls, once. */
TN_API tn_status tn_metrics_share(tn_metrics *m, tn_group *g);

/* NaN if there is no data. c: a class, or TN_ALL_CLASSES for the mean over those that occur or were
 * predicted ("macro"). A class that was never predicted has precision 0. */
TN_API double tn_metrics_accuracy(const tn_metrics *m);
TN_API double tn_metrics_top(const tn_metrics *m);
TN_API double tn_metrics_precision(const tn_metrics *m, int64_t c);
TN_API double tn_metrics_recall(const tn_metrics *m, int64_t c);
TN_API double tn_metrics_f1(const tn_metrics *m, int64_t c);
TN_API int64_t tn_metrics_count(const tn_metrics *m, int64_t actual, int64_t predicted);
TN_API double tn_metrics_loss(const tn_metrics *m);
TN_API double tn_metrics_perplexity(const tn_metrics *m); /* exp(loss) */
/* One line per class, with its row of the confusion matrix if there are at most 20. names: of the
 * classes, or NULL. */
TN_API void tn_metrics_print(const tn_metrics *m, FILE *file, const char *const *names);

/* A loss of a model's output and y: tn_cross_entropy, tn_mse, …, or your own. */
typedef tn_tensor *(*tn_loss)(tn_tensor *output, tn_tensor *y, tn_reduction how);

/* Evaluates m, a module of one input, over one epoch of the loader, from its first batch:
 *
 *     tn_metrics *metrics = tn_metrics_new(10, 1);
 *     tn_evaluate(&net, loader, tn_cross_entropy, NULL, metrics);
 *     printf("%.4f\n", tn_metrics_accuracy(metrics));
 *
 * The metrics are reset, and then have only this pass: the scores, if they have classes, and the
 * loss (NULL: none), the TN_MEAN of each batch's real rows, weighted by their number. m runs as
 * after tn_module_train(m, false), without gradients; then each module's mode is restored. world:
 * the ranks that share the data (tn_distributed_sampler; of a mesh, tn_spread_data); all get the
 * same metrics, and every rank calls. NULL: only this process. A language model's scores are those
 * of all positions, on every rank of tn_context_parallel too. */
TN_API tn_status tn_evaluate(void *m, tn_loader *loader, tn_loss loss, tn_group *world,
                             tn_metrics *metrics);

/* ---- Search: which settings are best? -------------------------------------------------------- */

/* Trains with many settings and records how good each was, like Ray Tune.
 *
 *     tn_search *search = tn_search_new(TN_WITH(tn_search, .trials = 20));
 *     tn_search_log_real(search, "lr", &lr, 1e-4, 1e-1);
 *     tn_search_choose_whole(search, "width", &width, (int64_t[]){32, 64, 128}, 3);
 *     while (tn_search_next(search)) {           // lr and width are set
 *         double loss = train(lr, width, tn_search_steps(search), tn_search_folder(search));
 *         tn_search_report(search, loss);
 *     }
 *     if (tn_search_best(search)) { ... }        // lr and width are the best
 *     return tn_search_end(search);              // the table
 *
 * With `processes` each trial is a process: this program again, with the same arguments, in which
 * tn_search_next is true once; its output goes to its folder, as does a trace of TERN_PROFILE, and
 * whatever comes before tn_search_next runs in each. A reported value counts, however the process
 * ends. Such a program has one search. Processes 0: all in this one, one by one.
 *
 * `first_steps` turns on successive halving (ASHA; Li et al. 2018, arXiv:1810.05934): all trials
 * train for that many steps, the best 1/factor of them for factor times as many, and so on up to
 * `steps`. A trial then runs again, with more steps: a tn_run in its folder with `resume` continues
 * where it was. Trials are compared in the order of their numbers and promotions, not of their
 * ends: the same values give the same table for any number of processes, and after a kill.
 *
 * A search that was killed continues when it is started again, and retries failed trials. A
 * different search in the same folder is TN_EMISMATCH.
 *
 * Over several hosts it is started as ranks, by `tern run --nnodes 3` or any launcher that
 * tn_dist_init knows, with a folder on a file system that all of them share, and that has locks
 * (TN_EIO). Each rank takes trials that no other has, and trains `processes` of them at a time, at
 * least 1, each a process that is the only rank of its world. Ranks may come late, leave and die:
 * another takes their trials, and continues from the checkpoints. The values are the same as on one
 * host, and rank 0 has the best and the table. `ranks` and `gpus` are for one host too. */
typedef struct tn_search tn_search;
typedef struct tn_search_options {
    const char *out;     /* "search": the folder for all its output */
    int64_t trials;      /* 10; for a grid: all points */
    int64_t steps;       /* 1000: of a full trial */
    int64_t first_steps; /* 0: every trial is a full one */
    int64_t factor;      /* 3 */
    int64_t processes;   /* 0: at the same time; on each rank */
    /* 1: ranks of each trial, started with `tern run` (of PATH, or the one that runs), so that
     * tn_dist_init joins them; rank 0 reports its value. Above 1 each trial is a process. */
    int64_t ranks;
    /* 0: each trial sees all GPUs. Else it sees so many of its own, of CUDA_VISIBLE_DEVICES if that
     * is set, and is a process. TN_EDEVICE: fewer than the processes of this host need. */
    int64_t gpus;
    bool grid;             /* false; true: all combinations of choices */
    bool larger_is_better; /* false */
    uint64_t seed;         /* 0: trial i has the same values in every search with this seed */
    bool from_defaults;
} tn_search_options;
TN_API tn_search_options tn_search_defaults(void);
TN_API tn_search *tn_search_new(tn_search_options options); /* NULL after an error */

/* Parameters to search, before the first tn_search_next: in [low, high), the same by logarithm, or
 * one of n. *value is set for each trial. A name has up to 31 characters, without spaces and
 * commas. Lists are copied, but their strings must live. */
TN_API tn_status tn_search_real(tn_search *s, const char *name, double *value, double low,
                                double high);
TN_API tn_status tn_search_log_real(tn_search *s, const char *name, double *value, double low,
                                    double high);
/* low … high, both included */
TN_API tn_status tn_search_whole(tn_search *s, const char *name, int64_t *value, int64_t low,
                                 int64_t high);
TN_API tn_status tn_search_choose(tn_search *s, const char *name, double *value,
                                  const double *choices, int n);
TN_API tn_status tn_search_choose_whole(tn_search *s, const char *name, int64_t *value,
                                        const int64_t *choices, int n);
TN_API tn_status tn_search_choose_text(tn_search *s, const char *name, const char **value,
                                       const char *const *choices, int n);

/* Whether there is another trial for this process to train. Once a search could not begin, or has
 * lost its store, there is none. */
TN_API bool tn_search_next(tn_search *s);
TN_API int64_t tn_search_trial(const tn_search *s); /* its number; -1: none */
TN_API int64_t tn_search_steps(const tn_search *s); /* how many it should have in total */
/* its folder, or the best one's; NULL: none */
TN_API const char *tn_search_folder(const tn_search *s);
/* Reports its value after these steps; of a trial's ranks the first one's counts. Ignored if the
 * process was asked to stop: the trial then continues next time. */
TN_API void tn_search_report(tn_search *s, double value);
/* Sets the values to the best of those that got furthest, in the process that was started first, on
 * rank 0. False in the others, if there is none, and if the search was stopped. */
TN_API bool tn_search_best(tn_search *s);
/* Prints the table and writes it to FOLDER/trials.csv, on rank 0, and frees. Returns the program's
 * exit status: 0; 1 after an error; tn_stop_status if it was stopped. */
TN_API int tn_search_end(tn_search *s);

/* ---- Batch norm for averaged weights --------------------------------------------------------- */

/* Recomputes the running statistics of the batch norms in m, a module of one input, for its current
 * weights: means over the loader's batches, from where it is to the end of its pass (epochs). For
 * tn_average:
 *
 *     {
 *         TN_AVERAGED(ema);
 *         if (tn_update_bn(loader, &net) == TN_OK) { ... evaluate, save ... }
 *     } */
TN_API tn_status tn_update_bn(tn_loader *loader, void *m);

/* ---- History: measurements of every step, in a CSV file that survives a crash ---------------- */

typedef struct tn_history tn_history;

/* start 0: a new file. Otherwise the file's rows of steps 0 … start-1 are read and the rest,
 * perhaps half a row, is cut off: continued from a checkpoint of `start` steps, the file ends up
 * the same as without the interruption. A symbolic link is not followed: TN_EIO. NULL after TN_EIO,
 * or TN_EFORMAT if rows are missing. Call tn_history_sync before the checkpoint is saved, so that
 * the checkpoint never has more steps than the file. */
TN_API tn_history *tn_history_open(const char *path, int64_t start);
/* A value of the next step, with 9 digits, which is exact for f32. The first column is "loss"; a
 * new name (up to 31 characters, without spaces, commas and quotes) adds a column, empty in earlier
 * rows. */
TN_API tn_status tn_history_put(tn_history *h, const char *name, double value);
/* Writes the row. Here and in tn_history_sync, a file that was deleted or changed in between is
 * rewritten with all rows; if that fails, it is an error. TN_ESTATE: an empty row. */
TN_API tn_status tn_history_step(tn_history *h);
TN_API tn_status tn_history_add(tn_history *h, double loss); /* both */
TN_API tn_status tn_history_sync(tn_history *h);
TN_API void tn_history_free(tn_history *h); /* NULL is fine */

/* Curves, valid until the next call with h: a column, at the steps where it has values; the loss;
 * and the loss as a mean of `window` steps around each. Where the window reaches beyond the first
 * step, a straight line fitted to its steps replaces the mean; the last window is a whole one. */
TN_API tn_curve tn_history_column(const tn_history *h, const char *column, const char *name);
TN_API tn_curve tn_history_curve(const tn_history *h, const char *name);
TN_API tn_curve tn_history_smooth(tn_history *h, const char *name, int64_t window);

/* ---- Stopping -------------------------------------------------------------------------------- */

/* From now on SIGTERM and the first SIGINT only make tn_stop_asked true, so that the loop can end
 * after a whole step and save; a second SIGINT ends the process as usual. */
TN_API void tn_stop_on_signals(void);
TN_API bool tn_stop_asked(void);
/* The exit status of a program that stopped early: 128 + the number of the signal, as in shells and
 * schedulers; 143, as for SIGTERM, if another rank was asked. */
TN_API int tn_stop_status(void);

#ifdef __cplusplus
}
#endif
#endif
