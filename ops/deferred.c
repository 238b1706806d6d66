/* Recipes of deferred tensors: recording and running them.
 *
 * Every step is a kernel that works element by element, so a part of a tensor comes from the same
 * kernels over fewer elements. A draw begins at a multiple of four elements (backends/random.h); up
 * to three before that come from four elements drawn separately.
 */
#include "ops/deferred.h"

#include "tern/sys/device.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_FILL, STEP_DRAW, STEP_UNARY, DRAW_GRAIN = 4 };

/* ---- Recording ------------------------------------------------------------------------------- */

bool tn__defer_covers(const tn_tensor *x) {
    return x->offset == 0 && tn_is_contiguous(x) &&
           (size_t)tn_count(x) * tn_dtype_size(x->dtype) == x->storage->bytes;
}

/* Why the step cannot be recorded; NULL if it can. A step that sets all elements replaces earlier
 * ones. */
static const char *why_not(const tn_tensor *x, const tn__recipe_step *step) {
    const struct tn__recipe *recipe = x->storage->recipe;
    return !tn__defer_covers(x)                ? "this is a part of a tensor"
           : step->what != STEP_UNARY          ? NULL
           : recipe->dtype != x->dtype         ? "they are made in another dtype"
           : recipe->steps >= TN__RECIPE_STEPS ? "too many steps are recorded already"
                                               : NULL;
}

static tn_tensor *write_step(tn_tensor *x, tn__recipe_step step, const char *operation) {
    struct tn__recipe *recipe = x->storage->recipe;
    const char *why = why_not(x, &step);
    if (why) {
        return tn__refused(TN_EUNSUPPORTED, operation,
                           "the elements of %s are not made yet (TN_DEFER_INIT), and %s",
                           tn_shape_text(x), why);
    }
    if (step.what != STEP_UNARY) {
        recipe->steps = 0;
        recipe->dtype = x->dtype;
        recipe->device = x->storage->device;
    }
    recipe->step[recipe->steps++] = step;
    tn__touch(x);
    return x;
}

tn_tensor *tn__defer_fill(tn_tensor *x, double value, const char *operation) {
    return write_step(x, (tn__recipe_step){.what = STEP_FILL, .a = value}, operation);
}

tn_tensor *tn__defer_draw(tn_tensor *x, tn_random_kind kind, tn_random_key key, double a, double b,
                          const char *operation) {
    tn__recipe_step step = {STEP_DRAW, kind, key.seed, key.stream, key.call, a, b};
    return write_step(x, step, operation);
}

tn_tensor *tn__defer_unary(tn_tensor *x, tn_unary f, double a, double b, const char *operation) {
    tn__recipe_step step = {.what = STEP_UNARY, .function = f, .a = a, .b = b};
    return write_step(x, step, operation);
}

tn_tensor *tn__defer_copy(tn_tensor *x, const tn_tensor *from, const char *operation) {
    const struct tn__recipe *made = from->storage->recipe;
    if (!tn__defer_covers(x) || !tn__defer_covers(from) || !tn_dims_equal(x->dims, from->dims) ||
        (made->dtype != from->dtype && x->dtype != from->dtype)) {
        return tn__refused(
            TN_EUNSUPPORTED, operation,
            "the elements of %s and %s are not made yet (TN_DEFER_INIT): only all of one can "
            "become all of the other, through at most one other dtype",
            tn_shape_text(x), tn_shape_text(from));
    }
    struct tn__recipe *recipe = x->storage->recipe;
    char name[TN__RECIPE_NAME];
    memcpy(name, recipe->name, sizeof(name));
    *recipe = *made;
    memcpy(recipe->name, name, sizeof(name));
    tn__touch(x);
    return x;
}

tn_tensor *tn__deferred_like(const tn_tensor *t, tn_dtype dtype, tn_device device) {
    tn_tensor *x = tn__new_deferred(t->dims, dtype, device, "deferred");
    if (tn_is_inert(x)) { return x; }
    memcpy(x->storage->recipe->name, t->storage->recipe->name, TN__RECIPE_NAME);
    return tn__defer_copy(x, t, "deferred");
}

tn_tensor *tn__deferred_even(const tn_tensor *t, tn_dims dims) {
    const struct tn__recipe *recipe = t->storage->recipe;
    bool even = recipe != NULL;
    for (int i = 0; even && i < recipe->steps; i++) {
        even = recipe->step[i].what != STEP_DRAW;
    }
    tn_tensor *x = even ? tn__new_deferred(dims, t->dtype, tn_device_of(t), "deferred") : NULL;
    if (x && !tn_is_inert(x)) { *x->storage->recipe = *recipe; }
    return x;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Runs all steps on y, which is contiguous and begins at element `first` of the whole, a multiple
 * of DRAW_GRAIN. */
static tn_status run_steps(const struct tn__recipe *recipe, const tn_tensor *y, int64_t first) {
    const tn_backend *kernels = tn_backend_of(y->storage->device);
    tn_context *ctx = tn_context_of(y->storage->device);
    tn_desc d = tn_desc_of(y);
    for (int i = 0; i < recipe->steps; i++) {
        const tn__recipe_step *s = &recipe->step[i];
        tn_random_key key = {s->seed, s->stream, s->call, (uint64_t)first};
        tn_status status =
            s->what == STEP_FILL ? kernels->fill(ctx, &d, s->a)
            : s->what == STEP_DRAW
                ? kernels->random(ctx, &d, (tn_random_kind)s->function, key, s->a, s->b)
                : kernels->unary(ctx, (tn_unary)s->function, &d, &d, s->a, s->b);
        if (!tn__kernel_ok(status, "materialize")) { return status; }
    }
    return TN_OK;
}

/* Makes the elements from `start` on in y, 1-dimensional, of the recipe's dtype and device. */
static tn_status make_range(const struct tn__recipe *recipe, tn_tensor *y, int64_t start) {
    int64_t before = start % DRAW_GRAIN, n = tn_count(y);
    if (before == 0) { return run_steps(recipe, y, start); }
    int64_t head = DRAW_GRAIN - before < n ? DRAW_GRAIN - before : n;
    tn_tensor *aside = tn__new(TN_DIMS(DRAW_GRAIN), recipe->dtype, recipe->device);
    if (tn_is_inert(aside) || run_steps(recipe, aside, start - before) != TN_OK) {
        return tn_error();
    }
    tn_copy_(tn_alias(y, y->offset, TN_DIMS(head)), tn_narrow(aside, 0, before, head));
    if (head < n && !tn__pending()) {
        run_steps(recipe, tn_alias(y, y->offset + head, TN_DIMS(n - head)), start + head);
    }
    return tn_error();
}

/* Makes the elements from `start` on in out, in its dtype and on its device. */
static tn_status make_part(const struct tn__recipe *recipe, int64_t start, tn_tensor *out) {
    TN_SCOPE;
    TN_NO_GRAD;
    if (tn__pending() || tn_count(out) == 0) { return tn_error(); }
    bool direct = recipe->dtype == out->dtype && tn_is_contiguous(out) &&
                  tn__same_device(recipe->device, out->storage->device);
    tn_dims flat = TN_DIMS(tn_count(out));
    tn_tensor *y =
        direct ? tn_alias(out, out->offset, flat) : tn__new(flat, recipe->dtype, recipe->device);
    if (tn_is_inert(y) || make_range(recipe, y, start) != TN_OK) { return tn_error(); }
    if (!direct) { tn_copy_(tn_detach(out), tn_reshape(tn_cast(y, out->dtype), out->dims)); }
    return tn_error();
}

tn_status tn__deferred_part(const tn_tensor *t, int64_t start, tn_tensor *out) {
    return make_part(t->storage->recipe, start, out);
}

tn_status tn__deferred_make(const tn_tensor *t) {
    TN_SCOPE;
    tn_storage *storage = t->storage;
    struct tn__recipe *recipe = storage->recipe;
    tn_dims flat = TN_DIMS((int64_t)(storage->bytes / tn_dtype_size(t->dtype)));
    tn_tensor *all = tn_alias((tn_tensor *)t, 0, flat);
    if (tn_is_inert(all)) { return tn_error(); }
    storage->recipe = NULL;
    tn_status status = tn_storage_refill(all);
    if (status == TN_OK) { status = make_part(recipe, 0, all); }
    if (status == TN_OK) {
        free(recipe);
    } else {
        storage->recipe = recipe;
        tn__storage_drop_bytes(storage);
    }
    return status;
}
