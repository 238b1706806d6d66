/* The functions of optim.h, train.h and evaluate.h, called as no one should; see test_inert.c. */
#include "inert.h"

#include <tern/sys/optim.h>

/* ---- optim.h --------------------------------------------------------------------------------- */

static bool match_all(const tn_entry *entry, void *user) {
    return entry != NULL;
}

static bool see_state(const char *name, tn_tensor *state, void *user) {
    return name && state;
}

static void null_optimisers(tn_tensor *t) {
    QUIET(tn_optim_split(NULL, match_all, NULL), -1);
    QUIET(tn_match_vectors(NULL, NULL), false);
    TAKES(tn_optim_group(NULL, 0)->weight_decay = 1.0);
    QUIET(tn_optim_groups(NULL), 0);
    TAKES(tn_optim_set_lr(NULL, 1.0));
    TAKES(tn_optim_lr(NULL));
    TAKES(tn_optim_step(NULL));
    TAKES(tn_optim_zero_grad(NULL));
    TAKES(tn_optim_clip(NULL, 1.0));
    INERT(tn_optim_clip_later(NULL, 1.0));
    QUIET(tn_optim_steps(NULL), 0);
    TAKES(tn_optim_each(NULL, see_state, NULL));
    TAKES(tn_optim_set_steps(NULL, 1));
    TAKES(tn_optim_kind(NULL));
    TAKES(tn_optim_free(NULL));
    NOTHING(tn_parameters(NULL, 1));
    NOTHING(tn_parameters(&t, -1));
    TAKES(tn_parameters_free(tn_parameters(&t, 1)));
    tn_optim_call call = {0};
    IS_NAN(tn_optim_norm(&call, t));
    INERT(tn_optim_gather(&call, t));
    INERT(tn_optim_part(&call, t));
    FAILS(tn_average_update(NULL));
    QUIET(tn_average_updates(NULL), 0);
    NOTHING(tn_average_begin(NULL));
    TAKES(tn_average_end(NULL));
    TAKES(tn_average_free(NULL));
    tn_optim_method empty = {.name = "empty"};
    tn_optim_rates rates = {.lr = NAN};
    TAKES(tn_optim_free(tn_optim_new(NULL, NULL, NULL, rates)));
    TAKES(tn_optim_free(tn_optim_new(NULL, &empty, NULL, rates)));
}

static void odd_schedules(tn_tensor *t) {
    TAKES(tn_schedule_multi_step(1.0, NULL, 99, 0.1));
    IS_NAN(tn_plateau_step(NULL, 1.0));
    tn_plateau plateau = tn_plateau_defaults(NAN);
    TAKES(tn_plateau_step(&plateau, NAN));
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            tn_schedule all[] = {tn_schedule_constant(1.0, longs[i]),
                                 tn_schedule_linear(1.0, 0.0, longs[i], longs[j]),
                                 tn_schedule_cosine(1.0, NAN, longs[i], longs[j]),
                                 tn_schedule_step(1.0, longs[i], NAN),
                                 tn_schedule_exponential(1.0, INFINITY),
                                 tn_schedule_warm_restarts(1.0, 0.0, longs[i], longs[j]),
                                 tn_schedule_one_cycle(1.0, longs[i]),
                                 {.kind = TN_MULTI_STEP, .milestone_count = 99},
                                 {.kind = (tn_schedule_kind)99}};
            enum { ALL = sizeof(all) / sizeof(*all) };
            for (size_t k = 0; k < ALL * LONGS; k++) {
                TAKES(tn_schedule_at(all[k % ALL], longs[k / ALL]));
            }
        }
    }
}

static void odd_optimisers(tn_tensor *t) {
    tn_linear m = {0};
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    if (opt) {
        QUIET(tn_optim_split(opt, NULL, NULL), -1);
        TAKES(tn_optim_group(opt, -1)->weight_decay = 1.0);
        TAKES(tn_optim_group(opt, 1)->weight_decay = 1.0);
        TAKES(tn_optim_each(opt, NULL, NULL));
        TAKES(tn_optim_set_steps(opt, INT64_MIN));
        for (int i = 0; i < REALS; i++) {
            TAKES(tn_optim_set_lr(opt, reals[i]));
            TAKES(tn_optim_clip(opt, reals[i]));
            TAKES(tn_optim_clip_later(opt, reals[i]));
            TAKES(tn_clip_grad_norm(&m, reals[i]));
        }
    }
    for (int i = 0; i < REALS; i++) {
        tn_sgd_options s = TN_WITH(tn_sgd, .lr = reals[i], .momentum = reals[i]);
        tn_adam_options a = TN_WITH(tn_adam, .lr = reals[i], .beta1 = reals[i], .eps = reals[i]);
        TAKES(tn_optim_free(tn_sgd(&m, s)));
        TAKES(tn_optim_free(tn_adam(&m, a)));
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
}

#define REFUSES(kind, member, value) NOTHING(tn_##kind(&m, TN_WITH(tn_##kind, .member = value)))
#define REFUSES_RATE(kind, rate)           \
    do {                                   \
        REFUSES(kind, lr, rate);           \
        REFUSES(kind, weight_decay, rate); \
    } while (0)

/* Rates are finite and not negative; the other numbers are at least numbers. */
static void odd_numbers(tn_tensor *t) {
    bool was = null;
    null = true; /* always errors */
    static const double rates[] = {NAN, INFINITY, -INFINITY, -1.0};
    static const int steps[] = {INT32_MIN, -1, INT32_MAX};
    tn_linear m = {0};
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    for (int i = 0; i < 4; i++) {
        REFUSES_RATE(sgd, rates[i]);
        REFUSES_RATE(adam, rates[i]);
        REFUSES_RATE(adamw, rates[i]);
        REFUSES_RATE(rmsprop, rates[i]);
        REFUSES_RATE(adagrad, rates[i]);
        REFUSES_RATE(adadelta, rates[i]);
        REFUSES_RATE(adamax, rates[i]);
        REFUSES_RATE(nadam, rates[i]);
        REFUSES_RATE(radam, rates[i]);
        REFUSES_RATE(asgd, rates[i]);
        REFUSES_RATE(lion, rates[i]);
        REFUSES_RATE(lamb, rates[i]);
        REFUSES_RATE(adafactor, rates[i]);
        REFUSES_RATE(muon, rates[i]);
    }
    REFUSES(sgd, momentum, NAN);
    REFUSES(sgd, dampening, NAN);
    REFUSES(adam, beta1, NAN);
    REFUSES(adam, beta2, NAN);
    REFUSES(adam, eps, NAN);
    REFUSES(rmsprop, alpha, NAN);
    REFUSES(rmsprop, eps, NAN);
    REFUSES(rmsprop, momentum, NAN);
    REFUSES(adagrad, lr_decay, NAN);
    REFUSES(adagrad, initial_accumulator, NAN);
    REFUSES(adagrad, eps, NAN);
    REFUSES(adadelta, rho, NAN);
    REFUSES(adadelta, eps, NAN);
    REFUSES(adamax, beta1, NAN);
    REFUSES(adamax, beta2, NAN);
    REFUSES(adamax, eps, NAN);
    REFUSES(nadam, beta1, NAN);
    REFUSES(nadam, beta2, NAN);
    REFUSES(nadam, eps, NAN);
    REFUSES(nadam, momentum_decay, NAN);
    REFUSES(radam, beta1, NAN);
    REFUSES(radam, beta2, NAN);
    REFUSES(radam, eps, NAN);
    REFUSES(asgd, lambd, NAN);
    REFUSES(asgd, alpha, NAN);
    REFUSES(asgd, t0, NAN);
    REFUSES(lion, beta1, NAN);
    REFUSES(lion, beta2, NAN);
    REFUSES(lamb, beta1, NAN);
    REFUSES(lamb, beta2, NAN);
    REFUSES(lamb, eps, NAN);
    REFUSES(adafactor, beta2_decay, NAN);
    REFUSES(adafactor, eps1, NAN);
    REFUSES(adafactor, eps2, NAN);
    REFUSES(adafactor, d, NAN);
    REFUSES(muon, momentum, NAN);
    REFUSES(muon, ns_a, NAN);
    REFUSES(muon, ns_b, NAN);
    REFUSES(muon, ns_c, NAN);
    REFUSES(muon, eps, NAN);
    REFUSES(muon, adamw_beta1, NAN);
    REFUSES(muon, adamw_beta2, NAN);
    REFUSES(muon, adamw_eps, NAN);
    for (int i = 0; i < 3; i++) {
        REFUSES(muon, ns_steps, steps[i]);
    }
    NOTHING(tn_ema(&m, NAN));
    tn_module_finish(&m);
    null = was;
}

/* ---- train.h: metrics and searches ----------------------------------------------------------- */

static void odd_metrics(tn_tensor *t) {
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_metrics_free(tn_metrics_new(longs[i], longs[i])));
    }
    tn_metrics *m = tn_metrics_new(3, 1);
    if (m) {
        FAILS(tn_metrics_add(m, t, t, t));
        TAKES(tn_metrics_add_loss(m, NAN, 1));
        QUIET(tn_metrics_count(m, -1, 99), 0);
        TAKES(tn_metrics_precision(m, 99));
    }
    tn_metrics_free(m);
    FAILS(tn_metrics_add(NULL, t, t, t));
    FAILS(tn_metrics_add_loss(NULL, 1, 1));
    FAILS(tn_metrics_share(NULL, NULL));
    FAILS(tn_evaluate(NULL, NULL, NULL, NULL, NULL));
    TAKES(tn_metrics_reset(NULL));
    TAKES(tn_metrics_free(NULL));
    TAKES(tn_metrics_accuracy(NULL));
    TAKES(tn_metrics_top(NULL));
    TAKES(tn_metrics_precision(NULL, 0));
    TAKES(tn_metrics_recall(NULL, 0));
    TAKES(tn_metrics_f1(NULL, 0));
    QUIET(tn_metrics_count(NULL, 0, 0), 0);
    TAKES(tn_metrics_loss(NULL));
    TAKES(tn_metrics_perplexity(NULL));
    TAKES(tn_metrics_print(NULL, NULL, NULL));
}

static void odd_searches(tn_tensor *t) {
    double real;
    int64_t whole = 1;
    const char *text = "";
    NOTHING(tn_search_new((tn_search_options){0}));
    FAILS(tn_search_real(NULL, "x", &real, 0, 1));
    FAILS(tn_search_log_real(NULL, "x", &real, 1, 2));
    FAILS(tn_search_whole(NULL, "x", &whole, 0, 1));
    FAILS(tn_search_choose(NULL, "x", &real, &real, 1));
    FAILS(tn_search_choose_whole(NULL, "x", &whole, &whole, 1));
    FAILS(tn_search_choose_text(NULL, "x", &text, &text, 1));
    NOTHING(tn_search_next(NULL));
    QUIET(tn_search_trial(NULL), -1);
    QUIET(tn_search_steps(NULL), 0);
    QUIET(tn_search_folder(NULL), NULL);
    TAKES(tn_search_report(NULL, 1));
    QUIET(tn_search_best(NULL), false);
    TAKES(tn_search_end(NULL));
    tn_search_options o = tn_search_defaults();
    for (int i = 0; i < LONGS; i++) {
        o.trials = o.steps = o.factor = longs[i];
        tn_search *s = tn_search_new(o);
        if (s) {
            TAKES(tn_search_real(s, NULL, NULL, NAN, NAN));
            TAKES(tn_search_end(s));
        }
    }
}

static void null_lr_finder(tn_tensor *t) {
    QUIET(tn_lr_finder_next(NULL), false);
    TAKES(tn_lr_finder_log(NULL, 1.0));
    TAKES(tn_lr_finder_suggest(NULL));
    TAKES(tn_lr_finder_draw(NULL, stdout));
    FAILS(tn_lr_finder_svg(NULL, temp_path("svg")));
    TAKES(tn_lr_finder_free(NULL));
}

/* ---- train.h: what is shown ------------------------------------------------------------------ */

static void odd_progress(tn_tensor *t) {
    FILE *nowhere = fopen("/dev/null", "w");
    TAKES(tn_progress_step(NULL, 0, 1.0, 1));
    TAKES(tn_progress_median_ms(NULL));
    TAKES(tn_progress_utilisation(NULL, 1, 1));
    TAKES(tn_progress_resume(NULL));
    TAKES(tn_progress_note(NULL, "a"));
    TAKES(tn_progress_clear(NULL));
    TAKES(tn_progress_free(NULL));
    TAKES(tn_progress_free(tn_progress_new(NULL, 0, 3, "tok")));
    for (int i = 0; i < LONGS; i++) {
        tn_progress *p = tn_progress_new(nowhere, longs[i], longs[LONGS - 1 - i], NULL);
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_progress_step(p, longs[j], NAN, longs[j]));
        }
        TAKES(tn_progress_note(p, NULL));
        TAKES(tn_progress_clear(p));
        TAKES(tn_progress_free(p));
    }
    fclose(nowhere);
}

static void odd_plots(tn_tensor *t) {
    FILE *nowhere = fopen("/dev/null", "w");
    static const double xs[2] = {NAN, INFINITY};
    static const tn_curve odd[] = {
        {0}, {.count = 5}, {.count = INT64_MIN}, {"a", xs, xs, 2, true}, {"a", NULL, xs, 2, false}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tn_plot plot = {.curves = &odd[i], .count = 1};
        for (int j = 0; j < INTS; j++) {
            TAKES(tn_plot_text(&plot, nowhere, ints[j], ints[INTS - 1 - j]));
        }
        tn_status status = tn_plot_svg(&plot, temp_path("plot.svg"));
        check_call(__LINE__, "tn_plot_svg", (int)status >= 0, false);
    }
    TAKES(tn_plot_text(NULL, nowhere, 40, 10));
    TAKES(tn_plot_text(&(tn_plot){.count = 3}, nowhere, 40, 10));
    TAKES(tn_plot_text(&(tn_plot){.count = -3}, NULL, 40, 10));
    FAILS(tn_plot_svg(NULL, temp_path("plot.svg")));
    fclose(nowhere);
}

static void odd_histories(tn_tensor *t) {
    NOTHING(tn_history_open(temp_path("no_rows.csv"), INT64_MAX));
    NOTHING(tn_history_open(temp_path("no_rows.csv"), -1));
    FAILS(tn_history_add(NULL, 1.0));
    FAILS(tn_history_sync(NULL));
    FAILS(tn_history_put(NULL, "loss", 1.0));
    FAILS(tn_history_step(NULL));
    TAKES(tn_history_column(NULL, NULL, NULL));
    TAKES(tn_history_free(NULL));
    TAKES(tn_history_curve(NULL, NULL));
    TAKES(tn_history_smooth(NULL, NULL, 0));
    tn_history *h = tn_history_open(temp_path("history.csv"), 0);
    if (h) {
        TAKES(tn_history_add(h, NAN));
        for (int i = 0; i < LONGS; i++) {
            TAKES(tn_history_smooth(h, NULL, longs[i]));
        }
        TAKES(tn_history_curve(h, NULL));
        TAKES(tn_history_column(h, NULL, NULL));
        TAKES(tn_history_column(h, "none", NULL));
        DOES(tn_history_put(h, NULL, 1.0));
        DOES(tn_history_put(h, "a,b", 1.0));
        DOES(tn_history_step(h));
    }
    TAKES(tn_history_free(h));
}

/* ---- evaluate.h ------------------------------------------------------------------------------ */

static void odd_evaluations(tn_tensor *t) {
    bool was = null;
    null = true; /* always errors */
    static const int64_t tokens[1][2] = {{0}};
    tn_tensor *rows = TN_FROM(tokens, TN_DIMS(1, 2), TN_I64);
    tn_dataset *windows = tn_tensor_dataset(rows, rows);
    tn_evaluate_options o = tn_evaluate_defaults();
    tn_linear m = {0};
    tn_perplexity p;
    tn_choice_scores c;
    FAILS(tn_evaluate_perplexity(NULL, windows, NULL, o, &p));
    FAILS(tn_evaluate_perplexity(&m, windows, NULL, o, &p));
    FAILS(tn_evaluate_perplexity(&m, NULL, NULL, o, &p));
    FAILS(tn_evaluate_perplexity(&m, windows, NULL, o, NULL));
    FAILS(tn_evaluate_perplexity(&m, &(tn_dataset){.size = 3}, NULL, o, &p));
    FAILS(tn_evaluate_choices(NULL, NULL, NULL, 4, o, &c));
    FAILS(tn_evaluate_choices(&m, "/nowhere", NULL, 4, o, NULL));
    for (int i = 0; i < LONGS; i++) {
        o.batch = longs[i];
        FAILS(tn_evaluate_perplexity(&m, windows, NULL, o, &p));
        FAILS(tn_evaluate_choices(&m, "/nowhere", NULL, longs[i], o, &c));
    }
    tn_dataset_free(windows);
    null = was;
}

/* ---- train.h: runs --------------------------------------------------------------------------- */

static void odd_setups(tn_tensor *t) {
    TAKES(tn_setup_defaults());
    tn_setup setup = {0};
    tn_linear layer;
    memset(&layer, 0, sizeof layer);
    char name[] = "program", *words[] = {name, NULL};
    FAILS(tn_options_parse(1, words, NULL, NULL));
    FAILS(tn_options_parse(0, NULL, NULL, &(tn_option){0}));
    NOTHING(tn_setup_world(NULL));
    NOTHING(tn_setup_world(&setup));
    FAILS(tn_setup_model(NULL, NULL, &layer));
    FAILS(tn_setup_model(&setup, NULL, NULL));
    FAILS(tn_setup_model(&setup, NULL, &layer));
    NOTHING(tn_setup_data(NULL));
    NOTHING(tn_setup_data(&setup));
    TAKES(tn_setup_finish(NULL));
    TAKES(tn_setup_finish(&setup));
    TAKES(tn_scaler_free(tn_setup_scaler(NULL)));
    QUIET(tn_setup_flops(NULL, NULL), 0);
    GIVES(tn_lm_flops(NULL), 0);
    GIVES(tn_lm_flops(&layer), 0);
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            int64_t n = tn_micro_batches(NULL, longs[i], longs[j]);
            check_call(__LINE__, "tn_micro_batches", n >= 0, false);
        }
    }
}

static void odd_runs(tn_tensor *t) {
    TAKES(tn_run_defaults());
    tn_run_options o = tn_run_defaults();
    tn_checkpoint parts = {0};
    NOTHING(tn_run_new(NULL, (tn_run_options){0}, parts));
    o.out = "/dev/null/run";
    NOTHING(tn_run_new(NULL, o, parts));
    QUIET(tn_run_steps(NULL, NULL, 1), 0);
    QUIET(tn_run_steps(&o, NULL, 1), o.steps);
    QUIET(tn_run_next(NULL), false);
    QUIET(tn_run_step(NULL), 0);
    QUIET(tn_run_done(NULL), false);
    QUIET(tn_run_validates(NULL), false);
    FAILS(tn_run_export(NULL, NULL));
    QUIET(tn_run_end(NULL), 1);
    TAKES(tn_run_log(NULL, NULL, 0));
    TAKES(tn_run_count(NULL, 1));
    TAKES(tn_run_utilisation(NULL, 1, 1));
    TAKES(tn_run_draw(NULL, NULL));
    TAKES(tn_run_value(NULL, "loss"));
    FAILS(tn_run_on(NULL, TN_RUN_STEPPED, NULL, NULL));
    TAKES(tn_run_stop(NULL));
    FAILS(tn_run_stop_early(NULL, "loss", tn_early_defaults()));
    FAILS(tn_run_keep_best(NULL, "loss", 1, false));
    NOTHING(tn_run_best(NULL));
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(null_optimisers)
PART(odd_schedules)
PART(odd_optimisers)
PART(odd_numbers)
PART(odd_metrics)
PART(odd_searches)
PART(null_lr_finder)
PART(odd_progress)
PART(odd_plots)
PART(odd_histories)
PART(odd_evaluations)
PART(odd_setups)
PART(odd_runs)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
