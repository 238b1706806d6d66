/* Mixed precision: a policy on a module, and what the bracket does with it.
 *
 *     cast inputs -> copies into the fields -> recompute, forward -> parameters back
 *                 -> cast outputs
 *
 * The outermost call of a region puts in the copies for everything below it, so that a forward may
 * read a child's parameter (a classifier tied to the embedding); the calls inside only cast inputs.
 * A unit of sharding is a separate region: its parameters arrive in its `before` hook. The copies
 * belong to the parameters (autograd/low_precision.c): tied ones share theirs. A record remembers
 * the parameter while its field holds the copy, so walks know what is tied, recompute leads its
 * gradients to the parameter, and finishing a module in its own forward loses nothing.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "nn/call.h"
#include "nn/defer.h"
#include "nn/misuse.h"

#include <stdlib.h>

/* ---- The policy ------------------------------------------------------------------------------ */

tn_precision tn_precision_defaults(void) {
    return (tn_precision){.param = TN_F32,
                          .compute = TN_BF16,
                          .reduce = TN_F32,
                          .output = TN_F32,
                          .from_defaults = true};
}

const tn_precision *tn__precision_of(const tn_module *m) {
    for (const tn_module_lists *l = m->lists; l; l = l->up) {
        if (l->precision) { return l->precision; }
    }
    return NULL;
}

tn_dtype tn_module_compute_dtype(const void *module, tn_dtype none) {
    const tn_module *m = tn__module_of((void *)module, "module_compute_dtype");
    const tn_precision *policy = m ? tn__precision_of(m) : NULL;
    return policy ? policy->compute : none;
}

/* A tensor of the same shape without elements, for a parameter that is not on this rank. */
static tn_tensor *absent_like(const tn_tensor *t, tn_dtype dtype) {
    tn_tensor *empty = tn_empty_on(tn_device_of(t), tn_shape(t), dtype);
    return tn_storage_empty(empty) == TN_OK ? empty : tn_inert();
}

/* Converts the parameter to another dtype, everywhere in the tree. False after raising. */
static bool convert_tensor(tn_module *m, tn_tensor *t, tn_dtype dtype, bool absent) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *converted = tn__deferred(t) ? tn__deferred_like(t, dtype, tn_device_of(t))
                           : absent        ? absent_like(t, dtype)
                                           : tn_cast(t, dtype);
    return !tn_is_inert(tn_set_requires_grad(converted, tn_requires_grad(t))) &&
           tn__module_exchange(m, t, converted, "module_set_precision");
}

/* Brings one parameter in line with the policy; false after raising. */
static bool apply_to(tn_module *m, const tn__record *record, const tn_precision *policy) {
    tn_tensor *t = *record->field;
    if (record->buffer || !t || !tn_dtype_is_float(tn_dtype_of(t))) { return true; }
    if (tn_dtype_of(t) != policy->param && !convert_tensor(m, t, policy->param, record->absent)) {
        return false;
    }
    t = *record->field;
    tn__low_precision_drop(t);
    return !tn_requires_grad(t) || tn_set_grad_dtype(t, policy->reduce) == TN_OK;
}

/* m and what is below it, up to modules with their own policy. False after raising. */
static bool apply_below(tn_module *m, const tn_precision *policy) {
    const tn_module_lists *lists = m->lists;
    for (int i = 0; lists && i < lists->record_count; i++) {
        if (!apply_to(m, lists->records[i], policy)) { return false; }
    }
    for (int i = 0; lists && i < lists->child_count; i++) {
        tn_module *child = tn__module_in_place(lists->children[i], "module_set_precision");
        if (!child || (!lists->children[i]->precision && !apply_below(child, policy))) {
            return false;
        }
    }
    return true;
}

static bool is_sharded_below(const tn_module_lists *lists) {
    bool sharded = lists->unit;
    for (int i = 0; i < lists->record_count && !sharded; i++) {
        sharded = lists->records[i]->part;
    }
    for (int i = 0; i < lists->child_count && !sharded; i++) {
        sharded = is_sharded_below(lists->children[i]);
    }
    return sharded;
}

/* Whether m, a module around it or one below it is sharded: sharding then handles dtypes. */
static bool is_sharded(const tn_module_lists *lists) {
    bool sharded = is_sharded_below(lists);
    for (const tn_module_lists *l = lists->up; l && !sharded; l = l->up) {
        sharded = l->unit;
    }
    return sharded;
}

tn_status tn_module_set_precision(void *module, tn_precision policy) {
    tn_module *m = tn__module_of(module, "module_set_precision");
    if (!m || tn__pending()) { return tn_error(); }
    if (!tn__options_made(policy.from_defaults, "module_set_precision", "tn_precision")) {
        return tn_error();
    }
    const tn_dtype dtypes[] = {policy.param, policy.compute, policy.reduce, policy.output};
    for (int i = 0; i < 4; i++) {
        if ((unsigned)dtypes[i] >= TN_DTYPES || !tn_dtype_is_float(dtypes[i])) {
            static const char *const names[] = {"param", "compute", "reduce", "output"};
            return tn__raise(TN_EDTYPE, "module_set_precision", "%s is %s (f32, f64, bf16 or f16)",
                             names[i], tn_dtype_name(dtypes[i]));
        }
    }
    tn_module_lists *lists = tn__module_lists(m, "module_set_precision");
    if (!lists) { return tn_error(); }
    if (lists->lending) {
        return tn__raise(TN_ESTATE, "module_set_precision", "%s is being called", m->kind);
    }
    if (is_sharded(lists)) {
        return tn__raise(TN_ESTATE, "module_set_precision",
                         "%s is sharded, or around or below a sharded module: set precision first",
                         m->kind);
    }
    tn_precision *kept = lists->precision ? lists->precision : tn__malloc(sizeof(*kept));
    if (!kept) { return tn__raise(TN_ENOMEM, "module_set_precision", "no memory for a policy"); }
    *kept = policy;
    lists->precision = kept;
    apply_below(m, kept);
    return tn_error();
}

/* ---- Inputs and outputs ---------------------------------------------------------------------- */

static bool dtype_differs(const tn_tensor *t, tn_dtype dtype) {
    return t && tn_dtype_is_float(tn_dtype_of(t)) && tn_dtype_of(t) != dtype;
}

/* False after raising. */
static bool cast_all(tn_values *values, tn_dtype dtype) {
    for (int i = 0; i < values->n; i++) {
        if (dtype_differs(values->v[i], dtype)) {
            values->v[i] = tn_cast(values->v[i], dtype);
            if (tn_is_inert(values->v[i])) { return false; }
        }
    }
    return true;
}

bool tn__precision_inputs(const tn_module *m, tn_values *in) {
    const tn_precision *policy = tn__precision_of(m);
    return !policy || cast_all(in, policy->compute);
}

void tn__precision_outputs(const tn_module *m, tn_values *out) {
    const tn_precision *own = m->lists ? m->lists->precision : NULL;
    if (own && own->cast_output && !cast_all(out, own->output)) { *out = tn__no_values(); }
}

bool tn__precision_idle(const tn_module *m, const tn_values *in) {
    const tn_precision *policy = tn__precision_of(m);
    if (!policy) { return true; }
    const tn_module_lists *lists = m->lists;
    if (lists && (!lists->lending || (lists->precision && lists->precision->cast_output))) {
        return false;
    }
    for (int i = 0; i < in->n; i++) {
        if (dtype_differs(in->v[i], policy->compute)) { return false; }
    }
    return true;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* The copy that a record in or below lists has in its field instead of the parameter; NULL:
 * none. */
static tn_tensor *copy_lent(const tn_module_lists *lists, const tn_tensor *param, tn_dtype dtype) {
    for (int i = 0; i < lists->record_count; i++) {
        const tn__record *record = lists->records[i];
        if (record->lent == param && tn_dtype_of(*record->field) == dtype) {
            return *record->field;
        }
    }
    tn_tensor *found = NULL;
    for (int i = 0; !found && i < lists->child_count; i++) {
        if (tn__module_is_valid(lists->children[i])) {
            found = copy_lent(lists->children[i], param, dtype);
        }
    }
    return found;
}

/* A second name gets the first one's copy, where the gradients of both are summed before they reach
 * the parameter. False after raising. */
static bool lend_one(const tn_module_lists *region, tn__record *record, tn_dtype dtype) {
    if (record->buffer || record->lent || record->absent || !dtype_differs(*record->field, dtype)) {
        return true;
    }
    tn_tensor *copy = record->tied ? copy_lent(region, *record->field, dtype) : NULL;
    copy = copy ? copy : tn__low_precision(*record->field, dtype);
    if (tn_is_inert(copy)) { return false; }
    record->lent = *record->field;
    *record->field = tn_keep(copy);
    return true;
}

static bool cast_below(const tn_module_lists *region, tn_module *m, const tn_precision *policy) {
    tn_module_lists *lists = m->lists;
    if (!lists || lists->lending) { return true; }
    policy = lists->precision ? lists->precision : policy;
    lists->lending = true;
    for (int i = 0; i < lists->record_count; i++) {
        if (!lend_one(region, lists->records[i], policy->compute)) { return false; }
    }
    for (int i = 0; i < lists->child_count; i++) {
        tn_module *child = tn__module_in_place(lists->children[i], "call");
        if (!child || (!lists->children[i]->unit && !cast_below(region, child, policy))) {
            return false;
        }
    }
    return true;
}

static void take_back(tn_module_lists *lists) {
    lists->lending = false;
    if (!tn__module_in_place(lists, "call")) { return; }
    for (int i = 0; i < lists->record_count; i++) {
        tn__record *record = lists->records[i];
        if (record->lent) {
            tn_tensor *copy = *record->field;
            *record->field = record->lent;
            record->lent = NULL;
            tn_release(copy);
        }
    }
    for (int i = 0; i < lists->child_count; i++) {
        if (!lists->children[i]->unit) { take_back(lists->children[i]); }
    }
}

bool tn__precision_begin(tn_module *m, bool *ok) {
    const tn_precision *policy = tn__precision_of(m);
    *ok = true;
    if (!policy || !m->lists || m->lists->lending) { return false; }
    tn__module_lists_keep(m->lists);
    *ok = cast_below(m->lists, m, policy);
    return true;
}

void tn__precision_end(tn_module_lists *lists) {
    if (lists->module) { take_back(lists); }
    tn__module_lists_release(lists);
}
