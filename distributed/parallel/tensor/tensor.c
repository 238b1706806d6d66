/* Tensor parallelism: attaching. Which modules a plan names, what is refused, and cutting.
 *
 * Everything is checked and compared with the other ranks before the first parameter is cut. The
 * fields then hold blocks, and the registry knows which (tn_module_set_part): sharding cuts these
 * again, clipping and optimisers sum over tn_parts, checkpoints write blocks like any other part.
 */
#include "distributed/group/agree.h"
#include "distributed/parallel/tensor/tensor.h"

#include "autograd/leaf.h"
#include "core/memory.h"
#include "models/language.h"
#include "nn/attention.h"
#include "nn/defer.h"
#include "nn/misuse.h"
#include "nn/paths.h"
#include "ops/deferred.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char operation[] = "tensor_parallel";
static const tn__parallel_rules tensor_rules = {.operation = operation, .deferred = true};

tn_tp_options tn_tp_defaults(void) {
    return (tn_tp_options){.from_defaults = true};
}

/* ---- The modules of a plan ------------------------------------------------------------------- */

/* The weight that the place's style cuts; NULL: none. */
static const tn_tensor *weight_of(const tn__tp_place *place) {
    return tn__tp_cut_dim(place->rule->style) < 0 ? NULL
           : place->rule->style == TN_TP_VOCAB    ? ((const tn_embedding *)place->module)->weight
                                                  : ((const tn_linear *)place->module)->weight;
}

static bool add_place(tn__tp *tp, tn_module *m, const char *path, const tn_tp_rule *rule) {
    tn__tp_place place = {.of = tp, .module = m, .rule = rule};
    if (!tn__grow(&tp->places, tp->count + 1, &tp->capacity, sizeof(place), operation)) {
        return false;
    }
    place.path = tn__strdup_for(path, operation);
    tp->places[tp->count++] = place;
    return place.path != NULL;
}

static bool find_place(tn_module *m, const char *path, void *user) {
    tn__tp *tp = user;
    bool named = *path && m->name[0]; /* a transparent one has the path of another */
    for (const tn_tp_rule *rule = tp->plan; named && rule->paths; rule++) {
        if (tn__paths_fit(rule->paths, path) && !add_place(tp, m, path, rule)) { return false; }
    }
    return true;
}

static bool find_places(tn__tp *tp) {
    for (const tn_tp_rule *rule = tp->plan; rule->paths; rule++) {
        if (!tn__patterns_used(tp->root, rule->paths, false, operation, "plan")) { return false; }
    }
    tn_module_each_module(tp->root, find_place, tp);
    return !tn__pending();
}

/* ---- What is refused ------------------------------------------------------------------------- */

/* What the place's style needs and does not find there; NULL: nothing is missing. */
static const char *missing_at(const tn__tp_place *place) {
    const tn_module *m = place->module;
    bool embedding = strcmp(m->kind, "embedding") == 0;
    switch (place->rule->style) {
    case TN_TP_ENTER:
        return NULL;
    case TN_TP_COLUMN:
    case TN_TP_ROW:
    case TN_TP_LOGITS:
        return strcmp(m->kind, "linear") == 0 ? NULL : "linear";
    case TN_TP_VOCAB:
        return embedding && ((const tn_embedding *)m)->padding_idx < 0
                   ? NULL
                   : "embedding without padding";
    case TN_TP_SEQUENCE: /* what sequence_forward can lend */
        return m->forward && (!m->lists || m->lists->record_count <= 4)
                   ? NULL
                   : "norm, dropout or embedding";
    default:
        return "rule with a style";
    }
}

static bool ranks_divide(const tn__tp_place *place, int64_t count, const char *what) {
    return tn__parallel_divides(place->of->group, count, what, place->path, "", operation);
}

/* The gradient of what enters a region is summed once, so a matrix that is cut by rows has one
 * ENTER, at it or around it. */
static bool region_fits(const tn__tp_place *place) {
    const tn__tp *tp = place->of;
    int regions = 0;
    for (const tn_module *m = place->module; m; m = m->parent) {
        for (int i = 0; i < tp->count; i++) {
            regions += tp->places[i].module == m && tp->places[i].rule->style == TN_TP_ENTER;
        }
    }
    return regions == 1 ||
           tn__fail(TN_EVALUE, operation,
                    "%s is in %d regions: the plan needs TN_TP_ENTER once, there or for a module "
                    "around it",
                    place->path, regions);
}

/* A projection into heads is divided by heads, not by rows. */
static bool rows_fit(const tn__tp_place *place) {
    const tn_tensor *weight = weight_of(place);
    const tn_module *around = place->module->parent;
    int64_t rows = tn_size(weight, 0) / tn__tp_pieces(place->rule);
    int64_t head = tn__head_width(around);
    bool projects = around && strcmp(around->kind, "self_attention") == 0 &&
                    place->module == &((const tn_self_attention *)around)->c_attn.base;
    if (projects && tn__tp_pieces(place->rule) != 3) {
        return tn__fail(
            TN_EVALUE, operation,
            "%s is 3 matrices side by side, of queries, keys and values; the plan says %d",
            place->path, tn__tp_pieces(place->rule));
    }
    if (tn_size(weight, 0) % tn__tp_pieces(place->rule) != 0) {
        return tn__fail(TN_EVALUE, operation, "%s: %s is not %d matrices side by side", place->path,
                        tn_shape_text(weight), tn__tp_pieces(place->rule));
    }
    return ranks_divide(place, head > 0 ? rows / head : rows, head > 0 ? "heads" : "rows");
}

/* The last rank may have fewer rows of a vocabulary than the others, but not none. */
static bool vocabulary_fits(tn__tp_place *place) {
    const tn_group *g = place->of->group;
    int last = tn_group_size(g) - 1;
    place->whole = tn_size(weight_of(place), 0);
    place->first = tn__tp_slice(g, tn_group_rank(g), place->whole).first;
    return tn__tp_slice(g, last, place->whole).count > 0 ||
           tn__fail(TN_ESHAPE, operation, "%s: %lld rows leave none for rank %d", place->path,
                    (long long)place->whole, last);
}

/* Also counts the columns of the logits. */
static bool place_fits(tn__tp_place *place) {
    const char *missing = missing_at(place);
    if (missing) {
        return tn__fail(TN_EVALUE, operation, "%s is a %s; the plan needs a %s there", place->path,
                        place->module->kind, missing);
    }
    const tn_tensor *weight = weight_of(place);
    if (weight && !tn_dtype_is_float(tn_dtype_of(weight))) {
        return tn__fail(TN_EUNSUPPORTED, operation, "%s is quantised: cut the model first",
                        place->path);
    }
    switch (place->rule->style) {
    case TN_TP_COLUMN:
        return region_fits(place) && rows_fit(place);
    case TN_TP_ROW:
        return ranks_divide(place, tn_size(weight, 1), "columns");
    case TN_TP_LOGITS:
        place->of->classes = tn_size(weight, 0);
        return region_fits(place) && vocabulary_fits(place);
    case TN_TP_VOCAB:
        return vocabulary_fits(place);
    default:
        return true;
    }
}

/* The places of a module are neighbours. Its forward is replaced once. */
static bool places_fit(tn__tp *tp) {
    const tn_module *replaced = NULL;
    for (int i = 0; i < tp->count; i++) {
        tn__tp_place *place = &tp->places[i];
        bool enters = place->rule->style == TN_TP_ENTER;
        if (!place_fits(place)) { return false; }
        if (!enters && place->module == replaced) {
            return tn__fail(TN_EVALUE, operation, "two rules of the plan name %s", place->path);
        }
        replaced = enters ? replaced : place->module;
    }
    return true;
}

/* A tied parameter is cut under all its names, in the same way. */
static bool tie_fits(const tn_entry *entry, void *user) {
    const tn__tp_place *first = user;
    const tn__tp *tp = first->of;
    bool same = *entry->field != weight_of(first);
    for (int i = 0; i < tp->count && !same; i++) {
        const tn__tp_place *p = &tp->places[i];
        same = p->module == entry->owner &&
               tn__tp_cut_dim(p->rule->style) == tn__tp_cut_dim(first->rule->style) &&
               tn__tp_pieces(p->rule) == tn__tp_pieces(first->rule);
    }
    return same ||
           tn__fail(TN_EVALUE, operation, "%s.weight is %s too: the plan must cut both alike",
                    first->path, entry->path);
}

static bool ties_fit(tn__tp *tp) {
    tn_module *all = tn__module_root(tp->root, operation);
    for (int i = 0; i < tp->count && !tn__pending(); i++) {
        if (weight_of(&tp->places[i])) {
            tn_module_each(all, (tn_walk){.with_shared = true}, tie_fits, &tp->places[i]);
        }
    }
    return !tn__pending();
}

/* Under `sequence` what is not cut sees a part of the positions. */
static bool has_style(const tn_entry *entry, void *user) {
    const tn__tp *tp = user;
    for (int i = 0; i < tp->count; i++) {
        if (tp->places[i].module == entry->owner && tp->places[i].rule->style != TN_TP_ENTER) {
            return true;
        }
    }
    return tn__fail(
        TN_EVALUE, operation,
        "the plan has no style for %s: with `sequence` every module with parameters needs "
        "one, TN_TP_SEQUENCE where it is not cut",
        entry->path);
}

static bool styles_fit(tn__tp *tp) {
    if (tp->sequence) { tn_module_each(tp->root, (tn_walk){0}, has_style, tp); }
    return !tn__pending();
}

static bool is_whole(const tn_entry *entry, void *user) {
    return !tn__entry_record(entry)->cut ||
           tn__fail(TN_ESTATE, operation, "%s is cut already", entry->path);
}

/* ---- Cutting --------------------------------------------------------------------------------- */

/* A leaf for the block, like the whole's; inert after raising. */
static tn_tensor *make_block(tn_tensor *whole, const tn_layout *layout) {
    TN_SCOPE;
    tn_dims dims = tn__layout_block(layout);
    tn_tensor *waits = tn__deferred_even(whole, dims); /* perhaps to be read from a file */
    tn_tensor *block = waits ? waits : tn_empty_on(tn_device_of(whole), dims, tn_dtype_of(whole));
    bool made = !tn_is_inert(block) && (waits || tn__fill_part(whole, layout, block)) &&
                tn__leaf_like(block, whole);
    return made ? tn_return(block) : tn_inert();
}

/* A parameter of the place's module, under all its names. False after raising. */
static bool cut_param(tn__tp_place *place, const char *name, int dim) {
    TN_SCOPE;
    tn__tp *tp = place->of;
    const tn__record *record = tn__module_find(place->module, name);
    tn_tensor *whole = record ? *record->field : NULL;
    if (!whole || record->cut || record->absent) { /* cut: a tied one */
        return true;
    }
    tn_layout layout = {.whole = tn_shape(whole),
                        .dim = dim,
                        .pieces = tn__tp_pieces(place->rule),
                        .slice = tn_group_rank(tp->group),
                        .slices = tn_group_size(tp->group)};
    layout.length = tn_dims_count(tn__layout_block(&layout));
    const tn_parts *parts =
        tn__parallel_chain(tp->links, &tp->link_count, tp->group, record->parts);
    tn_tensor *block = make_block(whole, &layout);
    return !tn_is_inert(block) && tn__module_exchange(tp->root, whole, block, operation) &&
           tn_module_set_part(place->module, name, NULL, layout, parts) == TN_OK;
}

static bool cut_place(tn__tp_place *place) {
    tn_tp_style style = place->rule->style;
    bool bias = style == TN_TP_COLUMN || style == TN_TP_LOGITS;
    return (tn__tp_cut_dim(style) < 0 || cut_param(place, "weight", tn__tp_cut_dim(style))) &&
           (!bias || cut_param(place, "bias", 0)) && tn__tp_apply(place);
}

/* ---- The beginning and the end --------------------------------------------------------------- */

static void tp_free(void *user) {
    tn__tp *tp = user;
    for (int i = 0; tp && i < tp->count; i++) {
        free(tp->places[i].path);
    }
    free(tp ? tp->places : NULL);
    free(tp);
}

/* The plan that was given, or the language model's own; NULL after raising. */
static const tn_tp_rule *plan_of(const tn_module *m, const tn_tp_options *options) {
    const tn__lm_family *family = tn__lm_family_kind(m->kind);
    if (!options->plan && !family) {
        return tn__fail_null(TN_EVALUE, operation, "no plan is given, and a %s has none", m->kind);
    }
    return options->plan ? options->plan : family->tp;
}

static void read_plan(tn__tp *tp, const tn_tp_options *options) {
    if (tn__parallel_may_attach(tp->root, tp->group, &tensor_rules) &&
        tn__options_made(options->from_defaults, operation, "tn_tp")) {
        tp->plan = plan_of(tp->root, options);
        tn_module_each(tp->root, (tn_walk){0}, is_whole, NULL);
        if (!tn__pending()) { find_places(tp); }
    }
}

/* Ends tn__agree_begin: whether all ranks may cut, by the same plan. False after raising on all. */
static bool plan_fits(tn__tp *tp) {
    char text[64]; /* what the ranks agree on */
    snprintf(text, sizeof(text), "%d places, %s", tp->count,
             tp->sequence ? "sequence" : "no sequence");
    if (!tn__parallel_make_same(tp->root, tp->group, NULL, &tensor_rules, text)) { return false; }
    if (tp->root->lists && tp->root->lists->loss.f) {
        tn__raise(TN_ESTATE, operation,
                  "the model is split in another way already: tensor parallelism comes first");
    }
    return !tn__pending() && places_fit(tp) && ties_fit(tp) && styles_fit(tp);
}

/* After a failure the module can only be finished. */
static void cut_all(tn__tp *tp) {
    for (int i = 0; i < tp->count && !tn__pending(); i++) {
        if (!cut_place(&tp->places[i])) { tp->root->state = TN__MODULE_BROKEN; }
    }
}

tn_status tn_tensor_parallel(void *module, tn_group *group, tn_tp_options options) {
    if (!tn__agree_begin(group, operation)) { return tn_error(); }
    tn__tp *tp = tn__calloc_for(1, sizeof(*tp), operation);
    if (tp) {
        *tp = (tn__tp){.root = module, .group = group, .sequence = options.sequence};
        read_plan(tp, &options);
    }
    bool fits = tp ? plan_fits(tp) : tn__agree(group, NULL, operation) == TN_OK;
    if (tp && fits && tn_group_size(group) > 1 && tn__tp_hook_root(tp, tp_free)) {
        cut_all(tp); /* the module owns tp from now on */
    } else {
        tp_free(tp);
    }
    if (fits && tn__pending()) { tn_group_abort(group, tn_error_message()); }
    return tn_error();
}
