/* What there is to know of a model before it is laid on ranks: its parameters, where its parts use
 * them and how its plan cuts them; and what a block and the top compute and keep.
 *
 * What a forward keeps for backward follows from the linears, since each keeps what it reads and
 * somebody after it keeps what it gives:
 *
 *     x -> norm -> qkv -> attention -> proj -> + -> norm -> fc -> gelu -> proj -> +
 *          C      3C      C            C            C      4C    4C       C           16 C
 *
 * Linears of one module that are cut by rows read the same tensor.
 */
#include "core/memory.h"
#include "distributed/parallel/pipeline/pipeline.h"
#include "distributed/parallel/plan/plan.h"
#include "distributed/parallel/tensor/tensor.h"
#include "nn/attention.h"
#include "nn/paths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char operation[] = "plan";

typedef struct reading {
    tn__plan_model *model;
    const tn_module *root;
    tn_module **parts; /* [model->parts] */
    const tn_tp_rule *rules;
    const tn_module *reader; /* of the last linear that is cut by rows */
} reading;

/* The part around a module, or -1. */
static int part_around(const reading *r, const tn_module *m) {
    for (; m && m != r->root; m = m->parent) {
        for (int i = 0; i < r->model->parts; i++) {
            if (r->parts[i] == m) { return i; }
        }
    }
    return -1;
}

/* The rule by which a module's matrix is cut; NULL: none. */
static const tn_tp_rule *rule_of(const reading *r, const char *path) {
    for (const tn_tp_rule *rule = r->rules; rule && rule->paths; rule++) {
        if (tn__tp_cut_dim(rule->style) >= 0 && tn__paths_fit(rule->paths, path)) { return rule; }
    }
    return NULL;
}

/* ---- Parameters ------------------------------------------------------------------------------ */

/* Another name of a parameter: another part may use it, too. */
static bool add_name(tn__plan_model *model, const tn_tensor *tensor, int part) {
    for (int i = 0; i < model->count; i++) {
        tn__plan_param *p = &model->params[i];
        if (p->tensor == tensor) {
            p->first = part < p->first ? part : p->first;
            p->last = part > p->last ? part : p->last;
            p->block &= p->first == p->last;
            return true;
        }
    }
    return false;
}

static bool add_param(const tn_entry *entry, void *user) {
    reading *r = user;
    tn__plan_model *model = r->model;
    int part = part_around(r, entry->owner);
    if (entry->shared && add_name(model, *entry->field, part)) { return true; }
    if (!tn__grow(&model->params, model->count + 1, &model->capacity, sizeof(*model->params),
                  operation)) {
        return false;
    }
    char owner[256];
    snprintf(owner, sizeof(owner), "%s", entry->path);
    char *dot = strrchr(owner, '.');
    bool bias = dot && strcmp(dot, ".bias") == 0;
    if (dot) { *dot = '\0'; }
    const tn_tp_rule *rule = rule_of(r, owner);
    tn__plan_param p = {.tensor = *entry->field,
                        .layout = tn__layout_whole(entry->layout.whole),
                        .first = part,
                        .last = part,
                        .block = part > 0 && part < model->parts - 1};
    if (rule && !(bias && rule->style == TN_TP_ROW)) {
        p.layout.dim = tn__tp_cut_dim(rule->style);
        p.layout.pieces = tn__tp_pieces(rule);
    }
    model->params[model->count++] = p;
    return true;
}

/* ---- Work ------------------------------------------------------------------------------------ */

static void add_linear(reading *r, tn__plan_work *w, const tn_linear *m, const char *path) {
    const tn_tp_rule *rule = rule_of(r, path);
    bool rows = rule && tn__tp_cut_dim(rule->style) == 0;
    double out = (double)tn_size(m->weight, 0), in = (double)tn_size(m->weight, 1);
    w->products += in * out;
    w->matrix = fmax(w->matrix, in * out);
    w->widest = fmax(w->widest, out);
    *(rows ? &w->kept_cut : &w->kept) += out;
    if (!rows) {
        w->kept_cut += in;
    } else if (r->reader != m->base.parent) {
        w->read += in;
    }
    r->reader = rows ? m->base.parent : NULL;
}

static bool add_work(tn_module *m, const char *path, void *user) {
    reading *r = user;
    tn__plan_model *model = r->model;
    int part = part_around(r, m);
    if (part != 1 && part != model->parts - 1) { return true; }
    tn__plan_work *w = part == 1 ? &model->block : &model->top;
    if (strcmp(m->kind, "linear") == 0) {
        add_linear(r, w, (const tn_linear *)m, path);
    } else if (strcmp(m->kind, "layer_norm") == 0) {
        w->sums += 2; /* mean and 1 / deviation */
    } else if (strcmp(m->kind, "rms_norm") == 0) {
        w->sums += 1;
    }
    int64_t head = tn__head_width(m);
    if (head > 0) {
        model->attended = head * model->shape.heads;
        model->attended_kv = head * model->shape.kv_heads;
    }
    return true;
}

/* ---- All of it ------------------------------------------------------------------------------- */

bool tn__plan_read_model(void *m, tn__plan_model *model) {
    *model = (tn__plan_model){0};
    if (tn__pending() || tn_lm_shape_of(m, &model->shape) != TN_OK) { return false; }
    model->parts = model->shape.layers + 2;
    model->costs = tn__calloc_for((size_t)model->parts, sizeof(*model->costs), operation);
    reading r = {.model = model, .root = m, .rules = tn__lm_family_of(m, operation)->tp};
    r.parts = tn__calloc_for((size_t)model->parts, sizeof(tn_module *), operation);
    if (model->costs && r.parts) {
        tn_lm_parts(m, r.parts, model->parts);
        for (int i = 0; i < model->parts; i++) {
            model->costs[i] = tn__pipe_cost(r.parts[i]);
        }
        tn_module_each(m, (tn_walk){.with_shared = true}, add_param, &r);
        tn_module_each_module(m, add_work, &r);
    }
    free(r.parts);
    return !tn__pending();
}

void tn__plan_model_free(tn__plan_model *model) {
    free(model->params);
    free(model->costs);
    *model = (tn__plan_model){0};
}
