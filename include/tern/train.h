/* Around a training loop that stays the program's.
 *
 *     tn_options_parse(argc, argv, "Trains a net.", table);       // its options and those of a run
 *     tn_group *world = tn_setup_world(&setup);                   // ranks, device, threads
 *     ... data, net ...
 *     tn_setup_model(&setup, world, &net);                        // precision, shares of ranks
 *     ... optimiser, schedule ...
 *     tn_run *run = tn_run_new(world, options, (tn_checkpoint){.model = &net, .optim = opt});
 *     while (tn_run_next(run)) {
 *         ... forward, backward, step ...
 *         tn_run_log(run, "loss", loss);
 *     }
 *     return tn_run_end(run);
 *
 * A run continues where it was stopped or killed, is not overwritten by mistake, and keeps what was
 * measured, as numbers and as a picture. Its parts can be used alone too: a progress line, the
 * history of a run, curves, stopping when asked to. examples/11_gpt2.c uses it all.
 *
 * Read next: train/run.c.
 */
#ifndef TERN_TRAIN_H
#define TERN_TRAIN_H

#include "models.h"
#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Options: a table becomes --help, checks and values -------------------------------------- */

/* --NAME VALUE, or -LETTER VALUE; hyphens in a name may be underscores. Exactly one of the pointers
 * says where the value goes, and so what it is; what is there is the default, which --help shows
 * unless `help` ends with a `)`. A row with no more than `help` is a heading ("": only a group of
 * its own in --help), one with no more than `setup` or `run` stands for all options of that, and
 * one with nothing ends the table. A row without a name but with a value is of the arguments that
 * are no options ("IN... --out DIR", as --help shows them): each is read, or the first and all
 * after it are the rest, NULL at the end, options or not. Without such a row there may be none. */
typedef struct tn_option {
    const char *name;
    int letter;        /* 0: none */
    const char *value; /* what --help calls the value: "N"; a flag has none */
    const char *help;
    bool *flag;                 /* given, it is true */
    const char **text;          /* any text */
    int64_t *whole;             /* a whole number above 0 */
    double *real;               /* a number above 0 */
    int *choice;                /* the index of one of; below 0: none was given */
    const char *const *choices; /* these, up to a NULL; --help lists them, unless `value` has a | */
    double most;                /* of a number; 0: there is no limit; of a whole one it is 1e12 */
    bool zero;                  /* 0 is a value too */
    double least;               /* 0: above 0, or from 0 on by `zero` */
    const char *word;           /* of a whole number: this word is a value too, for -1 */
    bool needed;                /* there is no default: it must be given */
    struct tn_setup *setup;     /* --device, --precision, --threads, --shard, … */
    struct tn_run_options *run; /* --out, --steps, --resume, … */
    /* What else there is: called with the value (of a flag NULL) and `to`, once for each time. */
    void (*read)(const char *text, void *to);
    void *to;
    char ***rest; /* of the arguments, see above */
    bool hidden;  /* --help does not show it */
} tn_option;

/* Reads a program's arguments by its table, as argparse does in Python. Prints and ends the process
 * for --help, and, with status 64, after which launchers do not start it again, for what is no
 * option or has a wrong value: the message says what it should be. `about`: what the program does;
 * behind a \v what is said after the options. A run then knows the command line (tn_run_end); argv
 * must live. */
TN_API tn_status tn_options_parse(int argc, char **argv, const char *about, const tn_option *table);

/* Prints what is wrong with the command line as tn_options_parse does, and ends the process with
 * status 64. In a row's `read`, or after tn_options_parse. */
TN_API void tn_options_refuse(const char *format, ...) TN_PRINTF(1, 2);

/* ---- Where and how to compute, by options ---------------------------------------------------- */

/* What to compute in; and for `shard`: on all ranks there are. */
typedef enum tn_setup_precision { TN_SETUP_F32, TN_SETUP_BF16, TN_SETUP_F16 } tn_setup_precision;
enum { TN_ALL_RANKS = -1 };

typedef struct tn_setup {
    const char *device; /* "cpu". "cuda": each rank its own, as far as there are enough. "cuda:1" */
    int precision;      /* TN_SETUP_F32: of the computation; weights are f32 */
    int64_t threads;    /* 0: the cores, shared among the ranks */
    int64_t shard;  /* ranks that have the model together, or TN_ALL_RANKS; 0: each has it all */
    int64_t stage;  /* of tn_fsdp_options; 0: 3 if there is a shard, or offload */
    bool offload;   /* of tn_fsdp_options */
    bool recompute; /* blocks keep only their inputs for backward */
    double peak;    /* 10^12 floating-point operations a second of the device; 0: tn_setup_flops */
    tn_mesh *mesh;  /* tn_setup_model's own */
    bool from_defaults;
} tn_setup;
TN_API tn_setup tn_setup_defaults(void);

/* All ranks (tn_dist_init), after which the default device and the number of threads are set. */
TN_API tn_group *tn_setup_world(const tn_setup *s);

/* Gives m its precision, and lays it on the ranks: each has all of it (tn_ddp), or `shard` of them
 * have it together (tn_fsdp); s->stage is then the stage, 0 where each has all. Weights that wait
 * for it (TN_DEFER_INIT) are made. Every rank calls, before the optimiser is made. TN_EVALUE: what
 * does not divide. */
TN_API tn_status tn_setup_model(tn_setup *s, tn_group *world, void *m);
TN_API void tn_setup_finish(tn_setup *s); /* after m is finished, before tn_dist_finish */

/* How many micro-batches of `at_once` units each rank computes for a step of `units`, of all ranks
 * together; units 0: one. 1 after TN_EVALUE: they do not divide. */
TN_API int64_t tn_micro_batches(tn_group *world, int64_t units, int64_t at_once);

/* For the precision: enabled with f16 alone. NULL after an error. */
TN_API tn_scaler *tn_setup_scaler(const tn_setup *s);

/* The most floating-point operations a second of all ranks' devices: `peak`, or in dense bf16 as
 * the makers' data sheets have it; 0: not known. */
TN_API double tn_setup_flops(const tn_setup *s, tn_group *world);

/* What a language model's mathematics takes for each token, forward and backward, in sequences of
 * its context (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): 6 for each weight but those of
 * tables that are only read, and the products of causal attention, which see half of the context.
 * 0 after TN_EVALUE: m is none. */
TN_API double tn_lm_flops(void *m);

/* ---- A run ----------------------------------------------------------------------------------- */

typedef struct tn_run_options {
    const char *out;    /* "run": the folder of all that it writes */
    int64_t steps;      /* 1000 */
    int64_t val_every;  /* 250: steps between validations */
    int64_t save_every; /* 1000: steps between checkpoints */
    bool resume;        /* go on from the checkpoint in the folder, if there is one */
    bool resume_anyway; /* also as another run (tn_checkpoint.other_run); says what differs */
    bool overwrite;     /* start over */
    bool allow_nan;     /* go on after a loss that is NaN or infinite */
    const char *unit;   /* "tok": what tn_run_count counts */
    bool tensorboard;   /* also write event files for TensorBoard into the folder */
    bool from_defaults;
} tn_run_options;
TN_API tn_run_options tn_run_defaults(void);

/* FOLDER/step-000100   checkpoints in parts, the last two (tn_saver)
 * FOLDER/loss.csv      a row a step: what was logged, units a second, memory (tn_history)
 * FOLDER/loss.svg      the curves of loss and val_loss, at each checkpoint
 *
 * FOLDER/events…       with tensorboard: what was logged; the weights' histograms, at each
 * checkpoint
 *
 * Rank 0 shows a progress line on stderr, and says the rest on stdout. */
typedef struct tn_run tn_run;

/* Begins a run or continues it: then the objects of `parts` have the state that was saved. That
 * happens with `resume`, and when the launcher has started the job again. A folder that has a run
 * is left alone unless resume or overwrite is set: tn_run_next is then false at once. The schedule
 * may have become longer than it was, its warm-up too: the learning rate continues along the longer
 * one. Every rank calls, with all members of parts but `step`; what they point to must live as long
 * as the run. From then on the process stops as tn_stop_on_signals says. NULL after an error.
 *
 * One job at a time runs in a folder, all its ranks together; another one is TN_EIO at once. Rank 0
 * holds FOLDER/lock, with flock, until its process ends, however it does. On NFS other hosts see
 * that; on a file system without locks no process is refused. */
TN_API tn_run *tn_run_new(tn_group *world, tn_run_options options, tn_checkpoint parts);

/* Ends the step before and says whether there is another: not after the last one, nor when any rank
 * was asked to stop. Saves where that is due. Every rank calls.
 *
 * TN_EVALUE, on all ranks, after a step in which any rank has logged a "loss" that is NaN or
 * infinite (unless allow_nan), or before a save, of the best weights too, that would have such a
 * parameter: what was saved stays as it is, and the message names the last checkpoint and, on the
 * other ranks, the first rank that had one. With a scaler too: what overflows then is gradients,
 * and the loss to log is the one before it is scaled. */
TN_API bool tn_run_next(tn_run *r);
TN_API int64_t tn_run_step(const tn_run *r); /* steps done: the number of this one, from 0 on */
TN_API bool tn_run_done(const tn_run *r);    /* all of them are */

/* A number of this step, for the history; shown, too. "loss" and "val_loss" are drawn. */
TN_API void tn_run_log(tn_run *r, const char *name, double value);
/* To add your own histograms, texts and pictures (tensorboard.h): NULL without
 * options.tensorboard, and on ranks but 0; then they do nothing. */
TN_API struct tn_summary_writer *tn_run_board(const tn_run *r);
/* What the step took of the data, on all ranks together. */
TN_API void tn_run_count(tn_run *r, int64_t units);
/* Shows how much of `peak` operations a second are used, with `flops` for each unit. */
TN_API void tn_run_utilisation(tn_run *r, double flops, double peak);

/* Whether to validate after this step; what that takes is not of the step's time. What is logged
 * from then on is shown as a line. */
TN_API bool tn_run_validates(tn_run *r);

/* ---- Who watches a run ----------------------------------------------------------------------- */

/* The last value that was logged under a name, on every rank that logged one; NaN: none. */
TN_API double tn_run_value(const tn_run *r, const char *name);

/* Functions that are called, in a scope, in the order of tn_run_on: after a step; after a step that
 * was validated; after a checkpoint was begun; when all is saved, before the end. Not while an
 * error is pending. */
typedef enum tn_run_event {
    TN_RUN_STEPPED,
    TN_RUN_VALIDATED,
    TN_RUN_SAVED,
    TN_RUN_ENDED
} tn_run_event;
typedef void (*tn_run_callback)(tn_run *r, void *user);
TN_API tn_status tn_run_on(tn_run *r, tn_run_event event, tn_run_callback f, void *user);

/* The run is at its end after this step, as if all were done; one rank is enough. */
TN_API void tn_run_stop(tn_run *r);

/* Ends the run when `patience` values of this name in a row were no better than the best before
 * them. That is asked of the history, so a run that is continued counts those before it too. Every
 * rank calls this and the next function, before the first step, and logs the value. */
typedef struct tn_early_options {
    int64_t patience;      /* 3 */
    double min_delta;      /* 0: better by no more is not better */
    bool larger_is_better; /* false */
    bool from_defaults;
} tn_early_options;
TN_API tn_early_options tn_early_defaults(void);
TN_API tn_status tn_run_stop_early(tn_run *r, const char *name, tn_early_options options);

/* Keeps the model's weights of the k steps with the best values of this name, whole, as
 * tn_dist_export writes them: FOLDER/best-000100.safetensors after 100 steps, for tn_load. Of equal
 * ones the first is better. Until the run ends those stay too that were the best at the last two
 * checkpoints: a run that is killed continues from there. */
TN_API tn_status tn_run_keep_best(tn_run *r, const char *name, int64_t k, bool larger_is_better);
/* The path of the best; free it. NULL: there is none yet, or after an error. Every rank calls. */
TN_API char *tn_run_best(tn_run *r);

/* The curves in characters; nothing on ranks but 0. */
TN_API void tn_run_draw(tn_run *r, FILE *file);

/* Puts the model, a language model of models.h, into the run's folder as tn_dist_save_lm does:
 * there `tern eval`, `tern generate` and transformers open it. words: a folder whose tokenizer's
 * files come along, such as the one that the model began with; NULL: none. Every rank calls.
 * Nothing happens where the run was refused. What tn_dist_save_lm raises; TN_EIO. */
TN_API tn_status tn_run_export(tn_run *r, const char *words);

/* Waits for what is being saved, says how the run has ended, and frees it. When it was stopped it
 * says what to type to go on. The program's exit status: 0 when all steps are done; 1 after an
 * error, or when not all output could be written; 64 when a run was not to be overwritten, and 65
 * after a NaN, as tn_error_exit has it too: launchers start neither again. Else tn_stop_status. */
TN_API int tn_run_end(tn_run *r);

/* ---- Progress: one line that is redrawn on a terminal; a line every few seconds elsewhere ---- */

typedef struct tn_progress tn_progress;

/* For steps start … total-1, written to `file`. `unit` is what is counted in a step ("tok"); where
 * nothing is, no rate is shown. NULL after TN_ENOMEM; every function takes NULL. */
TN_API tn_progress *tn_progress_new(FILE *file, int64_t start, int64_t total, const char *unit);
/* a step is done, with its units */
TN_API void tn_progress_step(tn_progress *p, int64_t step, double loss, int64_t units);

/* Also shows the model FLOPs utilisation, "MFU 45 %": of the device's `peak` floating-point
 * operations a second, those that the model's mathematics takes, `flops` for each unit (Chowdhery
 * et al. 2022, arXiv:2204.02311, appendix B). 0: not shown. */
TN_API void tn_progress_utilisation(tn_progress *p, double flops, double peak);

/* The median time of a step so far, in milliseconds; 0 before the first. A step's time runs from
 * the call of tn_progress_step before it, or from tn_progress_resume, which leaves out what the
 * program did since then (a save, say). */
TN_API double tn_progress_median_ms(const tn_progress *p);
TN_API void tn_progress_resume(tn_progress *p);

/* More to show where the line is wide enough: "lr 0.0006   memory 1.2 GB". NULL: nothing. */
TN_API void tn_progress_note(tn_progress *p, const char *text);
/* Takes a redrawn line away, so that the program can print one; the next step draws it again. */
TN_API void tn_progress_clear(tn_progress *p);
TN_API void tn_progress_free(tn_progress *p); /* finishes the line */

/* ---- Curves ---------------------------------------------------------------------------------- */

typedef struct tn_curve {
    const char *name;
    const double *x, *y; /* NaN and what is beyond 1e300 break the line */
    int64_t count;
    bool faint; /* thin and pale: raw numbers behind their mean */
} tn_curve;
typedef struct tn_plot {
    const char *title, *x_label, *y_label; /* may be NULL */
    const tn_curve *curves;
    int count;
} tn_plot;

/* In characters: braille dots where the locale is UTF-8, ASCII elsewhere. `rows` lines (names that
 * need a line of their own are more) of `columns`, or of the terminal's where that is narrower. */
TN_API void tn_plot_text(const tn_plot *plot, FILE *file, int columns, int rows);

/* As a picture that any browser shows. Written as io.h says. */
TN_API tn_status tn_plot_svg(const tn_plot *plot, const char *path);

/* ---- Metrics: what a model is worth, over batches and over ranks ----------------------------- */

/* Counts that are added up; numbers are made of them at the end, so that N ranks say what one
 * would.
 *
 *     tn_metrics *m = tn_metrics_new(10, 5);
 *     while (tn_loader_next(loader, &b)) {
 *         tn_metrics_add(m, tn_call(&net, b.x), b.y, b.valid);
 *     }
 *     tn_metrics_share(m, world);
 *     printf("%.4f\n", tn_metrics_accuracy(m)); */
typedef struct tn_metrics tn_metrics;
enum { TN_ALL_CLASSES = -1 };
/* For up to 10000 classes (0: only losses); k: whose first k scores count in tn_metrics_top. */
TN_API tn_metrics *tn_metrics_new(int64_t classes, int64_t k);
TN_API void tn_metrics_free(tn_metrics *m);
TN_API void tn_metrics_reset(tn_metrics *m);
/* scores (…, classes), of which the first largest is the prediction; labels (…) integers; valid (…)
 * bool, or NULL: which rows are real, as in tn_batch. TN_ESHAPE, TN_EINDEX. */
TN_API tn_status tn_metrics_add(tn_metrics *m, tn_tensor *scores, tn_tensor *labels,
                                tn_tensor *valid);
/* A mean loss of `count` examples or tokens. */
TN_API tn_status tn_metrics_add_loss(tn_metrics *m, double mean, double count);
/* Adds up what all ranks have; then all have the same. Every rank calls, once. */
TN_API tn_status tn_metrics_share(tn_metrics *m, tn_group *g);

/* NaN where there is nothing. c: a class, or TN_ALL_CLASSES for the mean over those that are there
 * or were predicted ("macro"). A class that was never predicted has precision 0. */
TN_API double tn_metrics_accuracy(const tn_metrics *m);
TN_API double tn_metrics_top(const tn_metrics *m);
TN_API double tn_metrics_precision(const tn_metrics *m, int64_t c);
TN_API double tn_metrics_recall(const tn_metrics *m, int64_t c);
TN_API double tn_metrics_f1(const tn_metrics *m, int64_t c);
TN_API int64_t tn_metrics_count(const tn_metrics *m, int64_t actual, int64_t predicted);
TN_API double tn_metrics_loss(const tn_metrics *m);
TN_API double tn_metrics_perplexity(const tn_metrics *m); /* exp(loss) */
/* A line a class, with its row of the confusion matrix where there are at most 20. names: of the
 * classes, or NULL. */
TN_API void tn_metrics_print(const tn_metrics *m, FILE *file, const char *const *names);

/* The loss of what a model gives for x, and y: tn_cross_entropy, tn_mse, …, or one's own. */
typedef tn_tensor *(*tn_loss)(tn_tensor *output, tn_tensor *y, tn_reduction how);

/* What m, a module of one input, is worth over one epoch of the loader, from its first batch on:
 *
 *     tn_metrics *metrics = tn_metrics_new(10, 1);
 *     tn_evaluate(&net, loader, tn_cross_entropy, NULL, metrics);
 *     printf("%.4f\n", tn_metrics_accuracy(metrics));
 *
 * The metrics are reset, and have this pass alone: the scores where they have classes, and the
 * loss, with TN_MEAN, of each batch's real rows, by their number (NULL: none). m computes as
 * tn_module_train(m, false) says, without gradients; then each module is in the mode that it had.
 * world: the ranks that have parts of the data (tn_distributed_sampler), after which all have the
 * same metrics; every rank calls. NULL: this process alone. */
TN_API tn_status tn_evaluate(void *m, tn_loader *loader, tn_loss loss, tn_group *world,
                             tn_metrics *metrics);

/* ---- Search: which settings are best? -------------------------------------------------------- */

/* Trains with many settings and keeps what each was worth, as Ray Tune does.
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
 * tn_search_next is true once; what it prints is in its folder, a trace of TERN_PROFILE too, and
 * what happens before tn_search_next happens in each. A value that was reported counts, however the
 * process ends. Such a program has one search. Processes 0: all in this one, one after the other.
 *
 * With `first_steps` trials are halved (ASHA; Li et al. 2018, arXiv:1810.05934): all train so many
 * steps, the best 1/factor of them factor times as many, and so on up to `steps`. A trial is then
 * called again, with more steps: a tn_run in its folder with `resume` continues where it was.
 * Trials count in the order of their numbers, and of their promotions, whichever ends first: with
 * the same values the table is the same for any number of processes, and after a kill.
 *
 * A search that was killed continues when it is started again; what failed is tried again. Another
 * search in the same folder is TN_EMISMATCH; one program at a time searches in it. */
typedef struct tn_search tn_search;
typedef struct tn_search_options {
    const char *out;       /* "search": the folder of all that it writes */
    int64_t trials;        /* 10; of a grid: all points */
    int64_t steps;         /* 1000: of a whole trial */
    int64_t first_steps;   /* 0: every trial is a whole one */
    int64_t factor;        /* 3 */
    int64_t processes;     /* 0: at once */
    bool grid;             /* false; true: all combinations of choices */
    bool larger_is_better; /* false */
    uint64_t seed;         /* 0: trial i has the same values in every search with this seed */
    bool from_defaults;
} tn_search_options;
TN_API tn_search_options tn_search_defaults(void);
TN_API tn_search *tn_search_new(tn_search_options options); /* NULL after an error */

/* What is searched, before the first tn_search_next: in [low, high), by its logarithm, or one of n.
 * *value is set for each trial. A name of up to 31 characters without spaces and commas. A list is
 * copied, texts must live. */
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

/* Whether there is a trial for this process to train. */
TN_API bool tn_search_next(tn_search *s);
TN_API int64_t tn_search_trial(const tn_search *s);      /* its number; -1: none */
TN_API int64_t tn_search_steps(const tn_search *s);      /* how many it is to have in all */
TN_API const char *tn_search_folder(const tn_search *s); /* its own, or the best one's; NULL: none
                                                          */
/* What it is worth after these steps. Not when the process was asked to stop: then it goes on next
 * time. */
TN_API void tn_search_report(tn_search *s, double value);
/* Sets the values of the best of those that came furthest, in the process that was started first.
 * False elsewhere, where there is none, and when the search was stopped. */
TN_API bool tn_search_best(tn_search *s);
/* Prints the table, writes it to FOLDER/trials.csv, and frees. The program's exit status: 0; 1
 * after an error; tn_stop_status when it was stopped. */
TN_API int tn_search_end(tn_search *s);

/* ---- Batch norm after an average ------------------------------------------------------------- */

/* Gives the batch norms of m, a module of one input, running statistics that fit its weights now:
 * means over the batches of one walk through the loader, from where it is to the end of its pass
 * (epochs). For tn_average:
 *
 *     {
 *         TN_AVERAGED(ema);
 *         if (tn_update_bn(loader, &net) == TN_OK) { ... evaluate, save ... }
 *     } */
TN_API tn_status tn_update_bn(tn_loader *loader, void *m);

/* ---- Finding a learning rate ----------------------------------------------------------------- */

/* The rate rises at each step, and the loss shows where it is large enough and where too large
 * (Smith 2015, arXiv:1506.01186).
 *
 *     tn_lr_finder *finder = tn_lr_finder_new(&net, opt, tn_lr_finder_defaults());
 *     while (tn_lr_finder_next(finder)) {
 *         ... forward, backward, step ...
 *         tn_lr_finder_log(finder, tn_item(loss));
 *     }
 *     tn_lr_finder_draw(finder, stdout);
 *     tn_optim_set_lr(opt, tn_lr_finder_suggest(finder));
 *     tn_lr_finder_free(finder);
 *
 * Once tn_lr_finder_next is false, weights, buffers and the optimiser are as they were. What else
 * the steps have moved, a loader, a generator, is not put back. Gradients are cleared. */
typedef struct tn_lr_finder tn_lr_finder;
typedef struct tn_lr_finder_options {
    double low, high; /* 1e-7, 10 */
    int64_t steps;    /* 100 */
    double smooth;    /* 0.05: the share of each loss in the moving average */
    double diverges;  /* 5: ends early when the average is so many times the best */
    bool from_defaults;
} tn_lr_finder_options;
TN_API tn_lr_finder_options tn_lr_finder_defaults(void);
/* NULL after an error; model and optimiser must live as long. */
TN_API tn_lr_finder *tn_lr_finder_new(void *m, tn_optim *optim, tn_lr_finder_options options);
TN_API bool tn_lr_finder_next(tn_lr_finder *f); /* sets the rate of the next step */
TN_API void tn_lr_finder_log(tn_lr_finder *f, double loss);
/* Where the averaged loss falls most steeply; NaN where it never falls. */
TN_API double tn_lr_finder_suggest(const tn_lr_finder *f);
TN_API void tn_lr_finder_draw(const tn_lr_finder *f, FILE *file); /* as tn_plot_text */
TN_API tn_status tn_lr_finder_svg(const tn_lr_finder *f, const char *path);
TN_API void tn_lr_finder_free(tn_lr_finder *f);

/* ---- History: what was measured at every step, as a CSV file that survives a crash ----------- */

typedef struct tn_history tn_history;

/* start 0: a new file. Otherwise the file's rows of steps 0 … start-1 are read and what follows
 * them, half a row perhaps, is cut off: with a checkpoint of `start` steps, the file ends up the
 * same as without the interruption. A symbolic link to a file is not followed: TN_EIO. NULL after
 * TN_EIO, or TN_EFORMAT when rows are missing. Call tn_history_sync before the checkpoint is saved,
 * so that it never has more steps than the file. */
TN_API tn_history *tn_history_open(const char *path, int64_t start);
/* A value of the next step, with 9 digits, which is exact for f32. The first column is "loss"; a
 * name that is new (31 characters, without spaces, commas and quotes) is another one, empty in the
 * rows of the steps before. */
TN_API tn_status tn_history_put(tn_history *h, const char *name, double value);
/* Writes the row. Here and in tn_history_sync a file that was deleted or changed in between is
 * rewritten, with all rows; where that cannot be, it is an error. TN_ESTATE: an empty row. */
TN_API tn_status tn_history_step(tn_history *h);
TN_API tn_status tn_history_add(tn_history *h, double loss); /* both */
TN_API tn_status tn_history_sync(tn_history *h);
TN_API void tn_history_free(tn_history *h); /* NULL is fine */

/* As curves, valid until the next call with h: a column, which has points where it has values; the
 * loss as it is, or the mean of `window` steps around each. Where the window reaches beyond the
 * first or last step, a straight line through its steps takes the mean's place. */
TN_API tn_curve tn_history_column(const tn_history *h, const char *column, const char *name);
TN_API tn_curve tn_history_curve(const tn_history *h, const char *name);
TN_API tn_curve tn_history_smooth(tn_history *h, const char *name, int64_t window);

/* ---- Stopping -------------------------------------------------------------------------------- */

/* From now on the first SIGINT or SIGTERM only makes tn_stop_asked true, so that the loop can end
 * after a whole step and save; the second ends the process as usual. */
TN_API void tn_stop_on_signals(void);
TN_API bool tn_stop_asked(void);
/* The exit status of a program that stopped before its end: 128 + the number of the signal that
 * asked, as shells and schedulers write it; 143, as after SIGTERM, when another rank was asked. */
TN_API int tn_stop_status(void);

#ifdef __cplusplus
}
#endif
#endif
