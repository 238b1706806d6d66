/* How good a classifier or a language model is: counts are added up over batches and ranks, and the
 * metrics computed from them at the end. So N ranks compute what one would, not a mean of means.
 * tn_evaluate adds up a whole pass over a loader.
 */
#include "core/alive.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/values.h"
#include "models/language.h"
#include "tern/train.h"
#include "text/plain_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 10000 };

struct tn_metrics {
    tn__alive alive;
    int64_t classes, k;
    int64_t *counts; /* (classes, classes): actual, predicted; then how often the label was among
                        the first k */
    double sums[2];  /* of losses, and their number */
};

static int64_t count_numbers(const tn_metrics *m) {
    return m->classes * m->classes + 1;
}

TN__ALIVE_LIST(all_metrics, "object for metrics");

tn_metrics *tn_metrics_new(int64_t classes, int64_t k) {
    const char *wrong = TN__BEYOND({"classes", classes, 0, MOST_CLASSES}, {"k", k, 1, 0});
    if (tn__pending() || wrong) { return tn__fail_null(TN_EVALUE, "metrics_new", "%s", wrong); }
    tn_metrics *m = tn__calloc_for(1, sizeof(*m), "metrics_new");
    int64_t *counts =
        m ? tn__calloc_for((size_t)(classes * classes + 1), sizeof(*counts), "metrics_new") : NULL;
    if (!counts) {
        free(m);
        return NULL;
    }
    *m = (tn_metrics){.classes = classes, .k = k, .counts = counts};
    tn__alive_begin(&all_metrics, m);
    return m;
}

void tn_metrics_free(tn_metrics *m) {
    if (m && tn__alive_end(&all_metrics, m, "metrics_free")) {
        free(m->counts);
        free(m);
    }
}

void tn_metrics_reset(tn_metrics *m) {
    if (m && tn__alive_is(&all_metrics, m, "metrics_reset")) {
        memset(m->counts, 0, (size_t)count_numbers(m) * sizeof(*m->counts));
        m->sums[0] = m->sums[1] = 0;
    }
}

/* ---- Adding ---------------------------------------------------------------------------------- */

/* The predicted class is the first of the largest scores; the label's rank is how many scores come
 * before its own. */
static void add_row(tn_metrics *m, const double *scores, int64_t label) {
    int64_t largest = 0, before = 0;
    for (int64_t c = 0; c < m->classes; c++) {
        largest = scores[c] > scores[largest] ? c : largest;
        before += scores[c] > scores[label] || (scores[c] == scores[label] && c < label);
    }
    m->counts[label * m->classes + largest]++;
    m->counts[m->classes * m->classes] += before < m->k && !isnan(scores[label]);
}

static bool shapes_fit(const tn_metrics *m, tn_tensor *scores, tn_tensor *labels,
                       tn_tensor *valid) {
    int64_t rows = m->classes > 0 ? tn_count(scores) / m->classes : 0;
    bool fit = m->classes > 0 && tn_ndim(scores) > 0 && tn_size(scores, -1) == m->classes &&
               tn_count(labels) == rows && (!valid || tn_count(valid) == rows);
    return fit ||
           tn__fail(TN_ESHAPE, "metrics_add",
                    "scores are %s, labels %s, valid %s, for %lld classes (scores must be (…, "
                    "classes), the others one per row)",
                    tn_shape_text(scores), tn_shape_text(labels),
                    valid ? tn_shape_text(valid) : "NULL", (long long)m->classes);
}

static bool labels_fit(const tn_metrics *m, const int64_t *labels, const bool *valid, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if ((!valid || valid[i]) && (labels[i] < 0 || labels[i] >= m->classes)) {
            return tn__fail(TN_EINDEX, "metrics_add",
                            "label %lld is %lld, but there are %lld classes", (long long)i,
                            (long long)labels[i], (long long)m->classes);
        }
    }
    return true;
}

tn_status tn_metrics_add(tn_metrics *m, tn_tensor *scores, tn_tensor *labels, tn_tensor *valid) {
    if (!m || !scores || !labels || tn__pending()) {
        return tn__raise(TN_EVALUE, "metrics_add", "there are no %s",
                         !m        ? "metrics"
                         : !scores ? "scores"
                                   : "labels");
    }
    TN_SCOPE;
    TN_NO_GRAD;
    if (tn_is_inert(scores) || tn_is_inert(labels) || !shapes_fit(m, scores, labels, valid)) {
        return tn_error();
    }
    tn_tensor *s = tn_contiguous(tn_to(tn_cast(tn_detach(scores), TN_F64), tn_cpu()));
    tn_tensor *l = tn_contiguous(tn_to(tn_cast(labels, TN_I64), tn_cpu()));
    tn_tensor *v = valid ? tn_contiguous(tn_to(valid, tn_cpu())) : NULL;
    if (v && tn_dtype_of(v) != TN_BOOL) {
        tn__raise(TN_EDTYPE, "metrics_add", "valid is %s (must be bool)",
                  tn_dtype_name(tn_dtype_of(v)));
    }
    if (tn__pending()) { return tn_error(); }
    const int64_t *label = tn_data(l);
    const bool *real = v ? tn_data(v) : NULL;
    if (!labels_fit(m, label, real, tn_count(l))) { return tn_error(); }
    for (int64_t i = 0; i < tn_count(l); i++) {
        if (!real || real[i]) { add_row(m, (const double *)tn_data(s) + i * m->classes, label[i]); }
    }
    return TN_OK;
}

tn_status tn_metrics_add_loss(tn_metrics *m, double mean, double count) {
    if (!m || !(count >= 0)) {
        return tn__raise(TN_EVALUE, "metrics_add_loss", "%s",
                         m ? "the count is negative" : "there are no metrics");
    }
    m->sums[0] += mean * count;
    m->sums[1] += count;
    return tn_error();
}

tn_status tn_metrics_share(tn_metrics *m, tn_group *g) {
    if (!m || tn__pending()) {
        return tn__raise(TN_EVALUE, "metrics_share", "there are no metrics");
    }
    if (tn_group_size(g) == 1) { return TN_OK; }
    double sums[2] = {m->sums[0], m->sums[1]}; /* those of m change with its counts, or not */
    if (tn__reduce_values(g, sums, 2, TN_F64, TN_SUM) == TN_OK &&
        tn__reduce_values(g, m->counts, count_numbers(m), TN_I64, TN_SUM) == TN_OK) {
        memcpy(m->sums, sums, sizeof(m->sums));
    }
    return tn_error();
}

/* ---- One pass over a loader ------------------------------------------------------------------ */

/* A batch without the examples that are only there to fill it up. */
static void add_batch(tn_metrics *metrics, tn_loss loss, tn_tensor *output, const tn_batch *b) {
    tn_tensor *y = b->y;
    if (b->valid) {
        tn_tensor *real = tn_reshape(tn_nonzero(b->valid), TN_DIMS(-1));
        output = tn_index_select(output, 0, real);
        y = y ? tn_index_select(y, 0, real) : NULL;
    }
    int64_t rows = tn_ndim(output) > 0 ? tn_size(output, 0) : 1;
    if (rows > 0 && metrics->classes > 0) { tn_metrics_add(metrics, output, y, NULL); }
    if (rows > 0 && loss && !tn__pending()) {
        tn_metrics_add_loss(metrics, tn_item(loss(output, y, TN_MEAN)), (double)rows);
    }
}

tn_status tn_evaluate(void *m, tn_loader *loader, tn_loss loss, tn_group *world,
                      tn_metrics *metrics) {
    if (!m || !loader || !metrics || tn__pending()) {
        return tn__raise(TN_EVALUE, "evaluate", "the %s NULL",
                         !m        ? "model is"
                         : !loader ? "loader is"
                                   : "metrics are");
    }
    if (!loss && metrics->classes == 0) {
        return tn__raise(TN_EVALUE, "evaluate", "there are neither losses nor classes");
    }
    tn_metrics_reset(metrics);
    if (tn_loader_seek(loader, (tn_loader_place){0, 0}) == TN_OK) {
        tn__modes modes;
        TN_NO_GRAD;
        bool set = tn__modes_set(m, false, "evaluate", &modes);
        for (tn_batch b; set && tn_loader_next(loader, &b) && b.epoch == 0;) {
            TN_SCOPE;
            add_batch(metrics, loss, tn__lm_call(m, b.x), &b);
        }
        tn__modes_restore(m, &modes);
    }
    if (tn__pending()) {
        tn_group_mean(world, 0, 1); /* tells the others */
        return tn_error();
    }
    return tn_metrics_share(metrics, world);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static bool is_class(const tn_metrics *m, int64_t c) {
    return m && c >= 0 && c < m->classes;
}

int64_t tn_metrics_count(const tn_metrics *m, int64_t actual, int64_t predicted) {
    return is_class(m, actual) && is_class(m, predicted)
               ? m->counts[actual * m->classes + predicted]
               : 0;
}

/* One class's counts of correct, predicted and actual. */
typedef struct tally {
    double right, predicted, actual;
} tally;

static tally tally_class(const tn_metrics *m, int64_t c) {
    tally t = {.right = (double)tn_metrics_count(m, c, c)};
    for (int64_t other = 0; other < m->classes; other++) {
        t.predicted += (double)tn_metrics_count(m, other, c);
        t.actual += (double)tn_metrics_count(m, c, other);
    }
    return t;
}

/* right / predicted, right / actual, or 2 right / (predicted + actual), as `predicted` and `actual`
 * (0 or 1) count; of a class, or the mean over those that are actual or predicted. */
static double per_class(const tn_metrics *m, int64_t c, double predicted, double actual) {
    bool all = c == TN_ALL_CLASSES;
    if (!m || (!all && !is_class(m, c))) { return NAN; }
    double sum = 0, seen = 0;
    for (int64_t i = all ? 0 : c, end = all ? m->classes : c + 1; i < end; i++) {
        tally t = tally_class(m, i);
        double whole = predicted * t.predicted + actual * t.actual;
        sum += whole > 0 ? (predicted + actual) * t.right / whole : 0;
        seen += !all || t.predicted + t.actual > 0;
    }
    return seen > 0 ? sum / seen : NAN;
}

double tn_metrics_precision(const tn_metrics *m, int64_t c) {
    return per_class(m, c, 1, 0);
}

double tn_metrics_recall(const tn_metrics *m, int64_t c) {
    return per_class(m, c, 0, 1);
}

double tn_metrics_f1(const tn_metrics *m, int64_t c) {
    return per_class(m, c, 1, 1);
}

static double count_all(const tn_metrics *m) {
    double all = 0;
    for (int64_t i = 0; i < m->classes * m->classes; i++) {
        all += (double)m->counts[i];
    }
    return all;
}

double tn_metrics_accuracy(const tn_metrics *m) {
    double right = 0;
    for (int64_t c = 0; m && c < m->classes; c++) {
        right += (double)tn_metrics_count(m, c, c);
    }
    return m ? right / count_all(m) : NAN;
}

double tn_metrics_top(const tn_metrics *m) {
    return m ? (double)m->counts[m->classes * m->classes] / count_all(m) : NAN;
}

double tn_metrics_loss(const tn_metrics *m) {
    return m ? m->sums[0] / m->sums[1] : NAN;
}

double tn_metrics_perplexity(const tn_metrics *m) {
    return exp(tn_metrics_loss(m));
}

/* ---- The table ------------------------------------------------------------------------------- */

void tn_metrics_print(const tn_metrics *m, FILE *file, const char *const *names) {
    enum { WIDE = 20 }; /* most classes with the whole matrix shown */
    if (!m || !file) { return; }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    fprintf(file, "%-16s precision  recall      F1", "class");
    for (int64_t c = 0; m->classes <= WIDE && c < m->classes; c++) {
        fprintf(file, " %6lld", (long long)c);
    }
    fprintf(file, "\n");
    for (int64_t c = 0; c < m->classes; c++) {
        char name[40];
        snprintf(name, sizeof(name), "%lld %.16s", (long long)c, names ? names[c] : "");
        fprintf(file, "%-16s %9.4f  %6.4f  %6.4f", name, tn_metrics_precision(m, c),
                tn_metrics_recall(m, c), tn_metrics_f1(m, c));
        for (int64_t p = 0; m->classes <= WIDE && p < m->classes; p++) {
            fprintf(file, " %6lld", (long long)tn_metrics_count(m, c, p));
        }
        fprintf(file, "\n");
    }
    fprintf(file, "accuracy %.4f, among the first %lld %.4f, mean F1 %.4f\n",
            tn_metrics_accuracy(m), (long long)m->k, tn_metrics_top(m),
            tn_metrics_f1(m, TN_ALL_CLASSES));
    tn__plain_numbers_end(numbers);
}
