/* Rows of tokens through a model, shared among ranks (evaluate.h).
 *
 * Work goes in rounds: in round k rank r has batch k N + r of N ranks, and after each round the
 * costs of all its rows are gathered, so that no rank waits long for another. If the last round has
 * fewer batches than ranks, those without one repeat the last batch and drop the result: all ranks
 * must call a model in parts.
 */
#include "train/evaluate/evaluate.h"

#include "autograd/mode.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "models/language.h"
#include "tern/nn.h"
#include "tern/ops.h"

#include <stdio.h>
#include <string.h>

enum { NO_TOKEN = 0, NO_TARGET = -100, COSTS = sizeof(tn__row_cost) / sizeof(double) };

tn_evaluate_options tn_evaluate_defaults(void) {
    return (tn_evaluate_options){.batch = 4, .from_defaults = true};
}

typedef struct evaluation {
    void *model;
    tn__token_rows *rows;
    tn_group *group;
    int64_t batch, batches, multiple;
    int64_t *x, *y; /* one batch's tokens and targets, (rows, T) */
    int64_t x_capacity, y_capacity;
    tn__row_cost *costs; /* [batch]: of this rank's batch */
    double nats, targets;
    tn_progress *progress;
} evaluation;

/* ---- One batch ------------------------------------------------------------------------------- */

static int64_t rows_in(const evaluation *e, int64_t number) {
    int64_t left = e->rows->count - number * e->batch;
    return left < e->batch ? left : e->batch;
}

/* Makes room for `rows` rows as long as the batch's longest, or as the next length that the model
 * takes, which it returns; 0 after raising. */
static int64_t grow_batch(evaluation *e, int64_t first, int64_t rows) {
    int64_t T = 1, elements;
    for (int64_t i = 0; i < rows; i++) {
        int64_t length = e->rows->length(e->rows, first + i);
        T = length > T ? length : T;
    }
    T = (T + e->multiple - 1) / e->multiple * e->multiple;
    if (__builtin_mul_overflow(T, rows, &elements) || elements > INT64_MAX / 8) {
        elements = INT64_MAX / 8;
    }
    if (!tn__grow(&e->x, elements, &e->x_capacity, sizeof(*e->x), e->rows->operation) ||
        !tn__grow(&e->y, elements, &e->y_capacity, sizeof(*e->y), e->rows->operation)) {
        return 0;
    }
    return T;
}

/* Fills x and y (rows, T), with ignored values after a row's end. */
static tn_status read_batch(evaluation *e, int64_t first, int64_t rows, int64_t T) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t *x = e->x + i * T, *y = e->y + i * T;
        if (e->rows->get(e->rows, first + i, x, y) != TN_OK) { return tn_error(); }
        for (int64_t t = e->rows->length(e->rows, first + i); t < T; t++) {
            x[t] = NO_TOKEN;
            y[t] = NO_TARGET;
        }
    }
    return TN_OK;
}

/* -log p of every target, (rows, T), f32 on the CPU; inert after an error. */
static tn_tensor *target_nats(evaluation *e, int64_t rows, int64_t T) {
    TN_SCOPE; /* frees the logits, which are large */
    tn_tensor *x = tn_from_data(e->x, TN_DIMS(rows, T), TN_I64);
    tn_tensor *y = tn_from_data(e->y, TN_DIMS(rows, T), TN_I64);
    tn_tensor *nats = tn__lm_losses(e->model, x, y, TN_NONE, 0);
    return tn_return(tn_contiguous(tn_cast(tn_to(nats, tn_cpu()), TN_F32)));
}

/* One row's share, added up in the order of its tokens. */
static tn_status add_up(const tn__token_rows *rows, const float *nats, const int64_t *y, int64_t T,
                        tn__row_cost *cost) {
    *cost = (tn__row_cost){0};
    for (int64_t t = 0; t < T; t++) {
        if (y[t] == NO_TARGET) { continue; }
        cost->nats += (double)nats[t];
        cost->targets++;
        if (rows->text_bytes && (y[t] < 0 || y[t] >= rows->vocab)) {
            return tn__raise(TN_EVALUE, rows->operation,
                             "target %lld is not a token of the tokenizer, which has %lld",
                             (long long)y[t], (long long)rows->vocab);
        }
        if (rows->text_bytes && rows->text_bytes[y[t]] > 0) {
            cost->text_nats += (double)nats[t];
            cost->bytes += rows->text_bytes[y[t]];
        }
    }
    return TN_OK;
}

static tn_status do_batch(evaluation *e, int64_t number) {
    TN_SCOPE;
    int64_t first = number * e->batch, rows = rows_in(e, number), T = grow_batch(e, first, rows);
    if (T == 0 || read_batch(e, first, rows, T) != TN_OK) { return tn_error(); }
    const tn_tensor *nats = target_nats(e, rows, T);
    if (tn_error() != TN_OK) { return tn_error(); }
    const float *at = tn_data(nats);
    for (int64_t i = 0; i < rows; i++) {
        if (add_up(e->rows, at + i * T, e->y + i * T, T, &e->costs[i]) != TN_OK) {
            return tn_error();
        }
    }
    return TN_OK;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

/* Passes on the costs of the round's rows, rank 0's first. */
static void take_round(evaluation *e, int64_t first_batch, const tn__row_cost *all) {
    double targets = e->targets;
    int ranks = tn_group_size(e->group);
    for (int r = 0; r < ranks && first_batch + r < e->batches; r++) {
        int64_t number = first_batch + r, rows = rows_in(e, number);
        for (int64_t i = 0; i < rows; i++) {
            const tn__row_cost *cost = &all[r * e->batch + i];
            e->rows->take(e->rows, number * e->batch + i, cost);
            e->nats += cost->nats;
            e->targets += cost->targets;
        }
    }
    tn_progress_step(e->progress, first_batch / ranks, e->nats / e->targets,
                     (int64_t)(e->targets - targets));
}

static tn_status do_round(evaluation *e, int64_t first_batch) {
    TN_SCOPE;
    int ranks = tn_group_size(e->group);
    int64_t mine = first_batch + tn_group_rank(e->group), last = e->batches - 1;
    do_batch(e, mine < last ? mine : last); /* an error ends the others' rounds, below */
    TN__ON_CPU;
    tn_tensor *costs = tn_from_data(e->costs, TN_DIMS(e->batch, COSTS), TN_F64);
    tn_tensor *all = tn_empty(TN_DIMS(ranks, e->batch, COSTS), TN_F64);
    if (tn_work_wait(tn_all_gather(e->group, all, costs), 0) != TN_OK) { return tn_error(); }
    take_round(e, first_batch, tn_data(all));
    return tn_error();
}

static tn_status do_rounds(evaluation *e) {
    TN_NO_GRAD;
    int ranks = tn_group_size(e->group);
    for (int64_t first = 0; first < e->batches; first += ranks) {
        if (do_round(e, first) != TN_OK) { return tn_error(); }
    }
    return TN_OK;
}

/* The first parameter of which other ranks have different blocks. */
typedef struct first_block {
    char path[256];
    int64_t slice;
} first_block;

static bool find_block(const tn_entry *entry, void *user) {
    first_block *found = user;
    if (entry->layout.dim < 0) { return true; }
    snprintf(found->path, sizeof(found->path), "%s", entry->path);
    found->slice = entry->layout.slice;
    return false;
}

/* Whether another rank of g has positions of this one's sequences. */
static bool shares_sequences(const tn__loss_rule *rule, const tn_group *g) {
    int mine = tn_group_world_rank(g, tn_group_rank(g));
    bool shares = false;
    for (int i = 0; rule->sequence && i < tn_group_size(rule->sequence); i++) {
        int other = tn_group_world_rank(rule->sequence, i);
        for (int k = 0; k < tn_group_size(g); k++) {
            shares |= other != mine && tn_group_world_rank(g, k) == other;
        }
    }
    return shares;
}

/* Ranks that have different blocks of a matrix, or positions of one sequence, compute a batch
 * together: they must not be given batches of their own. False after raising, on all ranks. */
static bool ranks_alike(const evaluation *e, const tn__loss_rule *rule) {
    TN_SCOPE;
    TN__ON_CPU;
    first_block mine = {.slice = 0};
    tn_module_each(e->model, (tn_walk){0}, find_block, &mine);
    int64_t ends[] = {mine.slice, -mine.slice, shares_sequences(rule, e->group)};
    tn_tensor *most = tn_from_data(ends, TN_DIMS(3), TN_I64);
    if (tn_work_wait(tn_all_reduce(e->group, most, TN_MAX), 0) != TN_OK ||
        tn_copy_out(most, ends) != TN_OK) {
        return false;
    }
    bool blocks = ends[0] != -ends[1];
    if (blocks || ends[2]) {
        tn__raise(TN_EVALUE, e->rows->operation,
                  "the ranks of the group have different %s%s and need the same batches: the group "
                  "is that of the ranks with other batches (tn_spread_data)",
                  blocks ? "blocks of " : "positions", blocks ? mine.path : "");
    }
    return !tn__pending();
}

static void begin_evaluation(evaluation *e, tn_evaluate_options options) {
    e->batch = e->batch < e->rows->count ? e->batch : e->rows->count;
    e->batches = (e->rows->count - 1) / e->batch + 1;
    e->costs = tn__calloc_for((size_t)e->batch, sizeof(*e->costs), e->rows->operation);
    if (e->costs && options.progress && tn_group_rank(e->group) == 0) {
        int ranks = tn_group_size(e->group);
        e->progress = tn_progress_new(options.progress, 0, (e->batches - 1) / ranks + 1, "tok");
    }
}

tn_status tn__evaluate_rows(void *m, tn__token_rows *rows, tn_evaluate_options options) {
    if (tn__pending()) { return tn_error(); }
    const char *wrong =
        TN__BEYOND({"the number of rows", rows->count, 1, 0}, {"batch", options.batch, 1, 0});
    wrong = !m                                 ? "the model is NULL"
            : tn_group_rank(options.group) < 0 ? "this rank is not a member of the group"
                                               : wrong;
    if (wrong) { return tn__raise(TN_EVALUE, rows->operation, "%s", wrong); }
    evaluation e = {.model = m, .rows = rows, .group = options.group, .batch = options.batch};
    const tn_module_lists *lists = ((const tn_module *)m)->lists;
    tn__loss_rule rule = lists ? lists->loss : (tn__loss_rule){0};
    e.multiple = rule.multiple ? rule.multiple : 1;
    tn__modes modes;
    if (tn__modes_set(m, false, rows->operation, &modes)) { begin_evaluation(&e, options); }
    if (ranks_alike(&e, &rule)) { /* after an error it ends the others' wait */
        do_rounds(&e);
    }
    tn__modes_restore(m, &modes);
    tn_progress_free(e.progress);
    free(e.costs);
    free(e.x);
    free(e.y);
    return tn_error();
}
