/* What a step needs to know about a whole parameter (sys/optim.h): its norm, or all its elements,
 * if ranks have parts of it.
 *
 * Parts share one primitive, a sum of doubles (tn_parts.sum), which is enough: a norm is the root
 * of a sum, and a whole tensor is the sum of its parts, each with zeros where the others are. That
 * is exact, so a step on parts is the same bits as one on the whole.
 */
#include "nn/layout.h"
#include "optim/optim.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* False after raising. */
static bool call_fits(const tn_optim_call *c, const tn_tensor *t, const char *operation) {
    if (!tn__pending() && (!c || !c->entry)) {
        tn__raise(TN_EVALUE, operation, "the call is not a reference step's");
    }
    return !tn__pending() && tn__usable(t, operation);
}

double tn_optim_norm(const tn_optim_call *c, tn_tensor *part) {
    if (!call_fits(c, part, "optim_norm")) { return NAN; }
    TN_SCOPE;
    tn_tensor *sum = tn_empty_on(tn_device_of(part), TN_DIMS(1), TN_F64);
    tn_span span = tn__span_of(part);
    if (tn_is_inert(sum) || !tn__sum_squares(&span, 1, sum, "optim_norm")) { return NAN; }
    double square = tn_item(sum);
    return tn__sum_over_ranks(c->entry->parts, &square, 1) ? sqrt(square) : NAN;
}

/* Copies between a tensor of this layout and the whole, both on the host. */
static void copy_runs(const tn_layout *l, char *whole, char *part, size_t size, bool to_whole) {
    for (int64_t here = 0; here < l->length;) {
        tn__layout_span run = tn__layout_run(l, here);
        char *a = whole + (size_t)run.whole * size, *b = part + (size_t)run.here * size;
        memcpy(to_whole ? a : b, to_whole ? b : a, (size_t)run.length * size);
        here += run.length;
    }
}

tn_tensor *tn_optim_gather(const tn_optim_call *c, tn_tensor *part) {
    if (!call_fits(c, part, "optim_gather")) { return tn_inert(); }
    const tn_layout *l = &c->entry->layout;
    if (!tn__parts_of_one(c->entry->parts)) { return tn_reshape(part, l->whole); }
    TN_SCOPE;
    int64_t count = tn_dims_count(l->whole);
    tn_tensor *mine = tn_contiguous(tn_cast(tn_to(part, tn_cpu()), TN_F64));
    tn_tensor *all = tn_zero_(tn_empty_on(tn_cpu(), l->whole, TN_F64));
    if (tn_is_inert(mine) || tn_is_inert(all)) { return tn_inert(); }
    if (count > INT_MAX || tn_count(mine) != l->length) {
        tn__raise(TN_EUNSUPPORTED, "optim_gather", "%s is %s: %lld elements here, %lld in all",
                  c->entry->path, tn_shape_text(all), (long long)tn_count(mine), (long long)count);
        return tn_inert();
    }
    if (l->length > 0) { copy_runs(l, tn__address(all), tn__address(mine), sizeof(double), true); }
    if (!tn__sum_over_ranks(c->entry->parts, (double *)tn__address(all), (int)count)) {
        return tn_inert();
    }
    return tn_return(tn_to(tn_cast(all, tn_dtype_of(part)), tn_device_of(part)));
}

tn_tensor *tn_optim_part(const tn_optim_call *c, tn_tensor *whole) {
    if (!call_fits(c, whole, "optim_part")) { return tn_inert(); }
    const tn_layout *l = &c->entry->layout;
    if (!tn__parts_of_one(c->entry->parts)) { return whole; }
    TN_SCOPE;
    tn_tensor *all = tn_contiguous(tn_to(whole, tn_cpu()));
    tn_tensor *mine = tn_empty_on(tn_cpu(), TN_DIMS(l->length), tn_dtype_of(whole));
    if (tn_is_inert(all) || tn_is_inert(mine)) { return tn_inert(); }
    if (tn_count(all) != tn_dims_count(l->whole)) {
        tn__raise(TN_ESHAPE, "optim_part", "%s is not the whole of %s", tn_shape_text(all),
                  c->entry->path);
        return tn_inert();
    }
    if (l->length > 0) {
        copy_runs(l, tn__address(all), tn__address(mine), tn_dtype_size(tn_dtype_of(all)), false);
    }
    mine = tn_reshape(mine, tn__reference_dims(c->entry, tn_shape(tn__entry_stored(c->entry))));
    return tn_return(tn_to(mine, tn_device_of(whole)));
}
