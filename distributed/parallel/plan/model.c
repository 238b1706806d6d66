/* What there is to know of a model before it is laid on ranks: its parameters, which parts use them
 * and how its plan cuts them; and what a block computes and keeps.
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
#include "distributed/parallel/plan/plan.h"
#include "distributed/parallel/tensor/tensor.h"
#include "nn/attention.h"
#include "nn/paths.h"

#include <stdlib.h>
#include <string.h>

typedef struct reading {
    tn__plan_model *model;
    tn_module **parts; /* [model->parts] */
    const tn_tp_rule *rules;
    const tn_module *reader; /* of the last linear that is cut by rows */
} reading;

/* The part around a parameter's module. */
static int part_around(const reading *r, const tn_module *m) {
    for (; m; m = m->parent) {
        for (int i = 0; i < r->model->parts; i++) {
            if (r->parts[i] == m) { return i; }
        }
    }
    return 0;
}

/* How tp cuts a parameter. The bias of a matrix that is cut by columns is whole. */
static tn_layout layout_of(const reading *r, const tn_entry *entry) {
    tn_layout layout = tn__layout_whole(entry->layout.whole);
    const char *dot = strrchr(entry->path, '.');
    char owner[256];
    snprintf(owner, sizeof(owner), "%.*s", dot ? (int)(dot - entry->path) : 0, entry->path);
    for (const tn_tp_rule *rule = r->rules; rule && rule->paths; rule++) {
        int dim = tn__tp_cut_dim(rule->style);
        if (dim >= 0 && tn__paths_fit(rule->paths, owner)) {
            layout.dim = dim < layout.whole.ndim ? dim : -1;
            layout.pieces = tn__tp_pieces(rule);
            break;
        }
    }
    return layout;
}

static void add_linear(reading *r, const tn_module *m, const tn_layout *weight) {
    tn__plan_model *model = r->model;
    bool rows = weight->dim == 0;
    double out = (double)weight->whole.size[0], in = (double)weight->whole.size[1];
    model->products += in * out;
    *(rows ? &model->kept_cut : &model->kept) += out;
    if (!rows) {
        model->kept_cut += in;
    } else if (r->reader != m->parent) {
        model->read += in;
    }
    r->reader = rows ? m->parent : NULL;
    double head = (double)tn__head_width(m->parent);
    if (head > 0) {
        model->attended = head * model->shape.heads;
        model->attended_kv = head * model->shape.kv_heads;
    }
}

/* Of a parameter's names the first; another part may use it, too. */
static bool add_param(const tn_entry *entry, void *user) {
    reading *r = user;
    tn__plan_model *model = r->model;
    int part = part_around(r, entry->owner), top = model->parts - 1;
    tn_layout layout = layout_of(r, entry);
    if (part == 1 && strcmp(entry->owner->kind, "linear") == 0 && layout.whole.ndim == 2) {
        add_linear(r, entry->owner, &layout);
    }
    for (int i = 0; i < model->count && entry->shared; i++) {
        tn__plan_param *named = &model->params[i];
        if (named->tensor == *entry->field) {
            named->last = part;
            named->block &= named->first == part;
            return true;
        }
    }
    if (tn__grow(&model->params, model->count + 1, &model->capacity, sizeof(*model->params),
                 "plan")) {
        model->params[model->count++] =
            (tn__plan_param){*entry->field, layout, part, part, part > 0 && part < top};
    }
    return !tn__pending();
}

bool tn__plan_read_model(void *m, tn__plan_model *model) {
    *model = (tn__plan_model){0};
    if (tn__pending() || tn_lm_shape_of(m, &model->shape) != TN_OK) { return false; }
    model->parts = model->shape.layers + 2;
    model->table = (double)model->shape.vocab * (double)model->shape.width;
    model->costs = tn__calloc_for((size_t)model->parts, sizeof(*model->costs), "plan");
    reading r = {.model = model, .rules = tn__lm_family_of(m, "plan")->tp};
    r.parts = tn__calloc_for((size_t)model->parts, sizeof(tn_module *), "plan");
    if (model->costs && r.parts) {
        tn_lm_parts(m, r.parts, model->parts);
        for (int i = 0; i < model->parts; i++) {
            model->costs[i] = tn__pipe_cost(r.parts[i]);
        }
        tn_module_each(m, (tn_walk){.with_shared = true}, add_param, &r);
    }
    free(r.parts);
    return !tn__pending();
}

void tn__plan_model_free(tn__plan_model *model) {
    free(model->params);
    free(model->costs);
}
