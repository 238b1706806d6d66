/* An average of a model's weights, and of its buffers of floats (a batch norm's running
 * statistics), kept in the same layout: parts where ranks have parts, so that each rank keeps its
 * share and nothing is communicated.
 *
 * In at least f32: a bf16 weight moves by less than its rounding. While the model has the average
 * (TN_AVERAGED) its own weights are set aside.
 */
#include "optim/average.h"

#include "core/alive.h"
#include "core/memory.h"
#include "nn/misuse.h"
#include "optim/optim.h"

#include <stdlib.h>
#include <string.h>

/* A parameter or buffer, its average, and while the model has that, its own elements. */
typedef struct average_item {
    tn_entry entry;         /* path is a copy */
    tn_module_lists *lists; /* of entry.owner, one reference */
    tn_tensor *mean, *own;
} average_item;

struct tn_average {
    tn__alive alive;
    average_item *items;
    int64_t capacity;
    int count, lent; /* lent: how many scopes have the average in the model */
    bool alike;      /* equal weights; otherwise: */
    double decay;    /* of an exponential one */
    int64_t updates;
};

static const char *const weighings[] = {"weighted", "alike", NULL};
const tn_field tn__average_fields[] = {
    TN_FIELD_AS("all", tn_average, alike, .optional = true, .names = weighings),
    TN_FIELD_AS("decay", tn_average, decay, .unless = TN_UNLESS(tn_average, alike)),
    {0},
};

static tn_tensor *stored_now(const average_item *item) {
    bool valid = tn__module_is_valid(item->lists);
    tn_tensor *t = valid ? tn__entry_stored(&item->entry) : NULL;
    if (!t) {
        tn__raise(TN_ESTATE, "average", "%s is gone: its module was finished or has moved",
                  item->entry.path);
    } else if (tn_count(t) != tn_count(item->mean)) {
        tn__raise(TN_ESTATE, "average", "%s is now %s but the average was made for %s",
                  item->entry.path, tn_shape_text(t), tn_shape_text(item->mean));
    }
    return tn__pending() ? NULL : t;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static bool add_entry(const tn_entry *entry, void *user) {
    tn_average *a = user;
    if (!tn_dtype_is_float(tn_dtype_of(entry->stored)) ||
        !tn__grow(&a->items, a->count + 1, &a->capacity, sizeof(*a->items), "average")) {
        return !tn__pending();
    }
    TN_SCOPE;
    TN_NO_GRAD;
    average_item *item = &a->items[a->count];
    *item = (average_item){.entry = *entry, .lists = tn__module_lists_keep(entry->owner->lists)};
    item->entry.path = tn__strdup_for(entry->path, "average");
    a->count++; /* from here on tn_average_free releases it */
    tn_dtype dtype = tn_dtype_of(entry->stored) == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor *mean = tn_copy(tn_cast(tn_detach(entry->stored), dtype));
    if (!item->entry.path || tn_is_inert(mean)) { return false; }
    item->mean = tn_keep(mean);
    return true;
}

TN__ALIVE_LIST(averages, "average");

static tn_average *average_new(void *m, bool alike, double decay, const char *operation) {
    tn_average *a = tn__pending() ? NULL : tn__calloc_for(1, sizeof(*a), operation);
    if (!a) { return NULL; }
    tn__alive_begin(&averages, a);
    a->alike = alike;
    a->decay = decay;
    tn_module_each(m, (tn_walk){.buffers = true}, add_entry, a);
    if (tn__pending()) {
        tn_average_free(a);
        return NULL;
    }
    return a;
}

tn_average *tn_ema(void *m, double decay) {
    if (!(decay >= 0.0 && decay <= 1.0)) {
        tn__raise(TN_EVALUE, "ema", "decay is %g (in [0, 1])", decay);
        return NULL;
    }
    return average_new(m, false, decay, "ema");
}

tn_average *tn_swa(void *m) {
    return average_new(m, true, 0.0, "swa");
}

void tn_average_free(tn_average *a) {
    if (!a || !tn__alive_end(&averages, a, "average_free")) { return; }
    for (int i = 0; i < a->count; i++) {
        average_item *item = &a->items[i];
        free((char *)item->entry.path);
        tn__module_lists_release(item->lists);
        tn_release(item->mean);
        tn_release(item->own);
    }
    free(a->items);
    free(a);
}

/* ---- Updating -------------------------------------------------------------------------------- */

/* Moves the mean by this share of its way. A buffer may have infinities (a mask), which stay. */
static void move_mean(tn_tensor *mean, tn_tensor *now, double share, bool buffer) {
    tn_tensor *moved = tn_add(mean, tn_mul_scalar(tn_sub(now, mean), share));
    tn_copy_(mean, buffer ? tn_where(tn_eq(now, mean), mean, moved) : moved);
}

/* The first update copies, as in PyTorch. */
tn_status tn_average_update(tn_average *a) {
    if (!a || tn__pending()) {
        return tn__raise(TN_EVALUE, "average_update", "the average is NULL");
    }
    if (!tn__alive_is(&averages, a, "average_update")) { return tn_error(); }
    if (a->lent) { return tn__raise(TN_ESTATE, "average_update", "the model has the average now"); }
    double updates = (double)a->updates;
    double kept = updates == 0 ? 0.0 : a->alike ? updates / (updates + 1.0) : a->decay;
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < a->count; i++) {
        TN_SCOPE;
        tn_tensor *mean = a->items[i].mean, *p = stored_now(&a->items[i]);
        if (!p) { return tn_error(); }
        p = tn_reshape(tn_cast(tn_detach(p), tn_dtype_of(mean)), tn_shape(mean));
        move_mean(mean, p, 1.0 - kept, a->items[i].entry.buffer);
    }
    a->updates += tn__pending() ? 0 : 1;
    return tn_error();
}

int64_t tn_average_updates(const tn_average *a) {
    return a && tn__alive_is(&averages, a, "average_updates") ? a->updates : 0;
}

void tn__average_set_updates(tn_average *a, int64_t updates) {
    a->updates = updates;
}

/* ---- In the model ---------------------------------------------------------------------------- */

/* Puts elements into the stored tensor; ranks without one must see a change too. */
static void put_elements(tn_tensor *stored, tn_tensor *from) {
    tn_copy_(stored, tn_reshape(from, tn_shape(stored)));
    tn__touch(stored);
}

tn_average *tn_average_begin(tn_average *a) {
    if (!a || tn__pending()) {
        tn__raise(TN_EVALUE, "average_begin", "the average is NULL");
        return NULL;
    }
    if (!tn__alive_is(&averages, a, "average_begin")) { return NULL; }
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; a->lent == 0 && i < a->count; i++) {
        tn_tensor *p = stored_now(&a->items[i]);
        tn_tensor *own = p ? tn_copy(tn_detach(p)) : NULL;
        if (!own || tn_is_inert(own)) { break; }
        a->items[i].own = tn_keep(own);
        put_elements(p, a->items[i].mean);
    }
    a->lent++;
    return a;
}

void tn_average_end(tn_average **scope) {
    tn_average *a = scope ? *scope : NULL;
    if (!a || !tn__alive_is(&averages, a, "average_end") || a->lent == 0 || --a->lent > 0) {
        return;
    }
    tn_error_record record;
    bool failed = tn_error_take(&record); /* the weights are restored even then */
    {
        TN_SCOPE;
        TN_NO_GRAD;
        for (int i = 0; i < a->count; i++) {
            average_item *item = &a->items[i];
            tn_tensor *p = item->own ? stored_now(item) : NULL;
            if (p) { put_elements(p, item->own); }
            tn_release(item->own);
            item->own = NULL;
            if (tn__pending()) { /* the others are restored anyway */
                tn_error_record later;
                tn_error_take(failed ? &later : &record);
                failed = true;
            }
        }
    }
    if (failed) { tn_error_give(&record); }
}

void tn__average_each(tn_average *a, tn__optim_visitor *f, void *user) {
    for (int i = 0; i < a->count; i++) {
        if (!f(a->items[i].entry.path, a->items[i].mean, &a->items[i].entry, user)) { return; }
    }
}
