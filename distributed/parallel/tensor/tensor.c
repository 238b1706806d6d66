/* Tensor parallelism: attaching. Which modules a plan names, what is refused, and cutting.
 *
 * Everything is checked and compared with the other ranks before the first parameter is cut. The
 * fields then hold blocks, and the registry knows which (tn_module_set_part): sharding cuts these
 * again, clipping and optimisers sum over tn_parts, checkpoints write blocks like any other part.
 */
#include "distributed/parallel/tensor/tensor.h"

#include "autograd/leaf.h"
#include "core/memory.h"
#include "models/language.h"
#include "nn/defer.h"
#include "nn/layout.h"
#include "nn/paths.h"
#include "tensor/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn__parallel_rules tensor_rules = {.operation = "tensor_parallel", .deferred = true};

tn_tp_options tn_tp_defaults(void) {
    return (tn_tp_options){.from_defaults = true};
}

/* ---- The modules of a plan ------------------------------------------------------------------- */

/* The dimension of the weight that a style cuts; -1: none. */
static int cut_dim(tn_tp_style style) {
    bool rows = style == TN_TP_COLUMN || style == TN_TP_VOCAB || style == TN_TP_LOGITS;
    return rows ? 0 : style == TN_TP_ROW ? 1 : -1;
}

/* The weight that the place's style cuts; NULL: none. */
static const tn_tensor *weight_of(const tn__tp_place *place) {
    return cut_dim(place->rule->style) < 0     ? NULL
           : place->rule->style == TN_TP_VOCAB ? ((const tn_embedding *)place->module)->weight
                                               : ((const tn_linear *)place->module)->weight;
}

static int pieces_of(const tn_tp_rule *rule) {
    return rule->pieces > 1 ? rule->pieces : 1;
}

/* A walk over the modules, once to count and once to fill. */
typedef struct search {
    tn__tp *tp;
    const tn_tp_rule *plan;
    bool fills;
} search;

static bool find_place(tn_module *m, const char *path, void *user) {
    const search *s = user;
    tn__tp *tp = s->tp;
    bool named = *path && m->name[0]; /* a transparent one has the path of another */
    for (const tn_tp_rule *rule = s->plan; named && rule->paths; rule++) {
        if (!tn__paths_fit(rule->paths, path)) {
            continue;
        }
        if (s->fills) {
            tn__tp_place place = {.of = tp, .module = m, .path = tn__strdup(path), .rule = rule};
            tp->places[tp->count] = place;
        }
        tp->count++;
    }
    return true;
}

static bool find_places(tn__tp *tp, const tn_tp_rule *plan) {
    search s = {tp, plan, false};
    for (const tn_tp_rule *rule = plan; rule->paths; rule++) {
        if (!tn__patterns_used(tp->root, rule->paths, false, tensor_rules.operation, "plan")) {
            return false;
        }
    }
    tn_module_each_module(tp->root, find_place, &s);
    tp->places = tn__calloc_for((size_t)tp->count + 1, sizeof(*tp->places), "tensor_parallel");
    if (!tp->places) {
        return false;
    }
    s.fills = true;
    tp->count = 0;
    tn_module_each_module(tp->root, find_place, &s);
    for (int i = 0; i < tp->count; i++) {
        if (!tp->places[i].path) {
            tn__raise(TN_ENOMEM, tensor_rules.operation, "no memory for a name");
            return false;
        }
    }
    return true;
}

/* ---- What is refused ------------------------------------------------------------------------- */

static bool ranks_divide(const tn__tp_place *place, int64_t count, const char *what) {
    return tn__parallel_divides(place->of->group, count, what, place->path, "",
                                tensor_rules.operation);
}

/* How many rows of a projection into heads are of one head; 1: it is none. */
static int64_t rows_of_head(const tn_module *attention) {
    if (attention && strcmp(attention->kind, "self_attention") == 0) {
        const tn_self_attention *m = (const tn_self_attention *)attention;
        return tn_size(m->c_proj.weight, 1) / m->heads;
    }
    if (attention && strcmp(attention->kind, "grouped_attention") == 0) {
        return ((const tn_grouped_attention *)attention)->head_width;
    }
    return 1;
}

static bool rows_fit(const tn__tp_place *place) {
    const tn_tensor *weight = ((const tn_linear *)place->module)->weight;
    int64_t rows = tn_size(weight, 0) / pieces_of(place->rule);
    int64_t head = rows_of_head(place->module->parent);
    if (tn_size(weight, 0) % pieces_of(place->rule) != 0) {
        tn__raise(TN_EVALUE, tensor_rules.operation, "%s: %s is not %d matrices side by side",
                  place->path, tn_shape_text(weight), pieces_of(place->rule));
        return false;
    }
    return ranks_divide(place, head > 1 ? rows / head : rows, head > 1 ? "heads" : "rows");
}

/* Of a vocabulary the last rank may have fewer rows than the others, but not none. */
static bool vocabulary_fits(const tn__tp_place *place, int64_t rows) {
    int last = tn_group_size(place->of->group) - 1;
    if (tn__tp_slice(place->of->group, last, rows).count == 0) {
        tn__raise(TN_ESHAPE, tensor_rules.operation, "%s: %lld rows leave none for rank %d",
                  place->path, (long long)rows, last);
    }
    return !tn__pending();
}

static bool kind_fits(const tn__tp_place *place) {
    const tn_module *m = place->module;
    bool linear = strcmp(m->kind, "linear") == 0, embedding = strcmp(m->kind, "embedding") == 0;
    const char *wanted = NULL;
    switch (place->rule->style) {
    case TN_TP_ENTER:
        break;
    case TN_TP_COLUMN:
    case TN_TP_ROW:
    case TN_TP_LOGITS:
        wanted = linear ? NULL : "linear";
        break;
    case TN_TP_VOCAB:
        wanted = embedding && ((const tn_embedding *)m)->padding_idx < 0
                     ? NULL
                     : "embedding without padding";
        break;
    case TN_TP_SEQUENCE: /* what sequence_forward can lend */
        wanted = m->forward && (!m->lists || m->lists->record_count <= 4)
                     ? NULL
                     : "norm, dropout or embedding";
        break;
    default:
        wanted = "rule with a style";
    }
    if (wanted) {
        tn__raise(TN_EVALUE, tensor_rules.operation, "%s is a %s; the plan needs a %s there",
                  place->path, m->kind, wanted);
    }
    return !wanted;
}

/* Also counts the columns of the logits. */
static bool place_fits(tn__tp_place *place) {
    if (!kind_fits(place)) {
        return false;
    }
    const tn_tensor *weight = weight_of(place);
    if (weight && !tn_dtype_is_float(tn_dtype_of(weight))) {
        tn__raise(TN_EUNSUPPORTED, tensor_rules.operation, "%s is quantised: cut the model first",
                  place->path);
        return false;
    }
    switch (place->rule->style) {
    case TN_TP_COLUMN:
        return rows_fit(place);
    case TN_TP_ROW:
        return ranks_divide(place, tn_size(weight, 1), "columns");
    case TN_TP_LOGITS:
        place->of->classes = tn_size(weight, 0);
        return vocabulary_fits(place, tn_size(weight, 0));
    case TN_TP_VOCAB:
        place->whole = tn_size(weight, 0);
        return vocabulary_fits(place, place->whole);
    default:
        return true;
    }
}

static bool places_fit(tn__tp *tp) {
    for (int i = 0; i < tp->count; i++) {
        if (!place_fits(&tp->places[i])) {
            return false;
        }
        for (int k = 0; k < i; k++) { /* a forward is replaced once */
            const tn__tp_place *a = &tp->places[k], *b = &tp->places[i];
            if (a->module == b->module && a->rule->style != TN_TP_ENTER &&
                b->rule->style != TN_TP_ENTER) {
                tn__raise(TN_EVALUE, tensor_rules.operation, "two rules of the plan name %s",
                          b->path);
                return false;
            }
        }
    }
    return true;
}

/* A tied parameter is cut under all its names, and alike. */
typedef struct tie_check {
    const tn__tp_place *place;
    const tn_tensor *weight;
} tie_check;

static bool tie_fits(const tn_entry *entry, void *user) {
    const tie_check *c = user;
    const tn__tp *tp = c->place->of;
    bool same = *entry->field != c->weight;
    for (int i = 0; i < tp->count && !same; i++) {
        const tn__tp_place *p = &tp->places[i];
        same = p->module == entry->owner &&
               cut_dim(p->rule->style) == cut_dim(c->place->rule->style) &&
               pieces_of(p->rule) == pieces_of(c->place->rule);
    }
    if (!same) {
        tn__raise(TN_EVALUE, tensor_rules.operation,
                  "%s.weight is %s too: the plan must cut both alike", c->place->path, entry->path);
    }
    return same;
}

static bool ties_fit(tn__tp *tp) {
    tn_module *all = tn__module_root(tp->root, tensor_rules.operation);
    for (int i = 0; i < tp->count && !tn__pending(); i++) {
        const tn__tp_place *p = &tp->places[i];
        if (cut_dim(p->rule->style) >= 0) {
            tie_check c = {p, weight_of(p)};
            tn_module_each(all, (tn_walk){.with_shared = true}, tie_fits, &c);
        }
    }
    return !tn__pending();
}

static bool is_whole(const tn_entry *entry, void *user) {
    (void)user;
    if (tn__entry_record(entry)->cut) {
        tn__raise(TN_ESTATE, tensor_rules.operation, "%s is cut already", entry->path);
    }
    return !tn__pending();
}

/* ---- Cutting --------------------------------------------------------------------------------- */

/* The elements of a block: those of the whole, or only these are made (TN_DEFER_INIT). */
static bool fill_block(tn_tensor *whole, const tn_layout *layout, tn_tensor *block) {
    bool deferred = tn__deferred(whole);
    tn_tensor *to = tn_reshape(block, TN_DIMS(layout->length)),
              *from = deferred ? NULL : tn_reshape(tn_detach(whole), TN_DIMS(tn_count(whole)));
    for (int64_t here = 0; here < layout->length && !tn__pending();) {
        TN_SCOPE;
        tn__layout_span run = tn__layout_run(layout, here);
        tn_tensor *place = tn_narrow(to, 0, here, run.length);
        if (deferred) {
            tn__draw_part(whole, run.whole, run.length, place);
        } else {
            tn_copy_(place, tn_narrow(from, 0, run.whole, run.length));
        }
        here += run.length;
    }
    return !tn__pending();
}

/* A leaf for the block, as the whole is; inert after raising. */
static tn_tensor *make_block(tn_tensor *whole, const tn_layout *layout) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *block =
        tn_empty_on(tn_device_of(whole), tn__layout_block(layout), tn_dtype_of(whole));
    if (tn_is_inert(block) || !fill_block(whole, layout, block)) {
        return tn_inert();
    }
    tn_set_requires_grad(block, true);
    if (whole->leaf) {
        tn_set_grad_dtype(block, whole->leaf->grad_dtype);
    }
    tn_set_requires_grad(block, tn_requires_grad(whole));
    return tn_return(block);
}

typedef struct exchange {
    tn_tensor *from, *to;
} exchange;

static bool exchange_field(const tn_entry *entry, void *user) {
    const exchange *e = user;
    if (*entry->field == e->from) {
        *entry->field = tn_keep(e->to);
        tn_release(e->from);
    }
    return true;
}

/* A parameter of the place's module, under all its names. False after raising. */
static bool cut_param(tn__tp_place *place, const char *name, int dim, int pieces) {
    TN_SCOPE;
    tn__tp *tp = place->of;
    const tn__record *record = tn__module_find(place->module, name, NULL);
    tn_tensor *whole = record ? *record->field : NULL;
    if (!whole || record->cut) { /* a tied one */
        return true;
    }
    tn_layout layout = {.whole = tn_shape(whole),
                        .dim = dim,
                        .pieces = pieces,
                        .slice = tn_group_rank(tp->group),
                        .slices = tn_group_size(tp->group)};
    layout.length = tn_dims_count(tn__layout_block(&layout));
    exchange e = {tn_keep(whole), make_block(whole, &layout)};
    if (!tn_is_inert(e.to)) {
        tn_module *all = tn__module_root(tp->root, tensor_rules.operation);
        tn_module_each(all, (tn_walk){.with_shared = true}, exchange_field, &e);
        tn_module_set_part(place->module, name, NULL, layout, &tp->parts);
    }
    tn_release(e.from);
    return !tn__pending();
}

static bool cut_place(tn__tp_place *place) {
    tn_tp_style style = place->rule->style;
    int dim = cut_dim(style), pieces = pieces_of(place->rule);
    if (dim >= 0 && !cut_param(place, "weight", dim, pieces)) {
        return false;
    }
    if (style == TN_TP_VOCAB) {
        const tn_group *g = place->of->group;
        place->first = tn__tp_slice(g, tn_group_rank(g), place->whole).first;
    }
    bool bias = style == TN_TP_COLUMN || style == TN_TP_LOGITS;
    return (!bias || cut_param(place, "bias", 0, pieces)) && tn__tp_apply(place);
}

/* ---- The beginning and the end --------------------------------------------------------------- */

static void tp_free(void *user) {
    tn__tp *tp = user;
    if (tp->root->state != TN__MODULE_FINISHED) { /* attaching failed */
        for (int i = 0; i < tp->count && tp->places; i++) {
            tn__tp_undo(&tp->places[i]);
        }
    }
    for (int i = 0; i < tp->count && tp->places; i++) {
        free(tp->places[i].path);
    }
    free(tp->places);
    free(tp);
}

/* Which the ranks compare. */
static const char *options_text(const tn__tp *tp, char *text, size_t size) {
    snprintf(text, size, "%d places, %s", tp->count, tp->sequence ? "sequence" : "no sequence");
    return text;
}

/* After the ranks agree. A failure leaves a module that can be finished and nothing else. */
static bool cut_all(tn__tp *tp) {
    for (int i = 0; i < tp->count && !tn__pending(); i++) {
        if (!cut_place(&tp->places[i])) {
            tp->root->state = TN__MODULE_BROKEN;
        }
    }
    return !tn__pending();
}

/* The plan that was given, or the language model's own; NULL after raising. */
static const tn_tp_rule *plan_of(const tn_module *m, const tn_tp_options *options) {
    const tn__lm_family *family = tn__lm_family_kind(m->kind);
    if (!options->plan && !family) {
        tn__raise(TN_EVALUE, tensor_rules.operation, "no plan is given, and a %s has none",
                  m->kind);
        return NULL;
    }
    return options->plan ? options->plan : family->tp;
}

/* *known: all ranks know of the error. */
static bool attach_plan(tn__tp *tp, const tn_tp_options *options, bool *known) {
    char text[64];
    const tn_tp_rule *plan = plan_of(tp->root, options);
    tn_module_each(tp->root, (tn_walk){0}, is_whole, NULL);
    if (!plan || tn__pending() || !find_places(tp, plan)) {
        return false;
    }
    if (!tn__parallel_make_same(tp->root, tp->group, NULL, &tensor_rules,
                                options_text(tp, text, sizeof(text)), known)) {
        return false;
    }
    *known = true; /* the same on all ranks */
    if (tp->root->lists && tp->root->lists->loss.f) {
        tn__raise(TN_ESTATE, tensor_rules.operation,
                  "the model is split in another way already: tensor parallelism comes first");
    }
    if (tn__pending() || !places_fit(tp) || !ties_fit(tp)) {
        return false;
    }
    *known = false;
    return tn_group_size(tp->group) == 1 || cut_all(tp);
}

tn_status tn_tensor_parallel(void *module, tn_group *group, tn_tp_options options) {
    static const char operation[] = "tensor_parallel";
    bool known = false;
    if (!tn__parallel_may_attach(module, group, &tensor_rules) ||
        !tn__options_made(options.from_defaults, operation, "tn_tp")) {
        tn_group_abort(group, tn_error_message());
        return tn_error();
    }
    tn__tp *tp = tn__calloc_for(1, sizeof(*tp), operation);
    if (tp) {
        *tp = (tn__tp){.root = module,
                       .group = group,
                       .parts = {.sum = tn__parallel_sum_parts, .group = group, .counts = true},
                       .sequence = options.sequence};
    }
    bool whole = tn_group_size(group) == 1;
    if (tp && attach_plan(tp, &options, &known) && (whole || tn__tp_hook_root(tp, tp_free))) {
        if (whole) {
            tp_free(tp);
        }
        return TN_OK;
    }
    if (!known) {
        tn_group_abort(group, tn_error_message());
    }
    if (tp) {
        tp_free(tp);
    }
    return tn_error();
}
