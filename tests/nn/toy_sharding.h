/* A toy version of fully sharded training, on public hooks only: one process plays all ranks, so
 * nothing is sent, but the rest is real.
 *
 * A unit's parameters are in a store; their tensors' storages are empty except while the unit runs.
 * Before forward and before backward the unit gathers (fills storages from the store), afterwards
 * it lets go. A module's parameters belong to the nearest unit above them, and a tied weight to the
 * lowest unit that holds all its uses. Tapes keep the tensors while they are empty.
 *
 *     toy_shard toy = {0};
 *     toy_unit_add(&toy, &net.block.base);          // inner units first
 *     toy_unit_add(&toy, &net.base);                // the root takes the rest
 *     ... train; toy_gather_all / toy_store_all around the optimiser's step ...
 */
#ifndef TOY_SHARDING_H
#define TOY_SHARDING_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <tern/sys/device.h>
#include <tern/tern.h>

enum { TOY_UNITS = 8, TOY_PARAMS = 32 };

typedef struct toy_unit {
    struct toy_shard *all;
    tn_module *module;
    tn_tensor *params[TOY_PARAMS];
    void *store[TOY_PARAMS]; /* all ranks' shards together */
    int count, gathers;
} toy_unit;

typedef struct toy_shard {
    toy_unit unit[TOY_UNITS];
    int count;
} toy_shard;

static size_t toy_bytes(const tn_tensor *t) {
    return (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
}

static bool toy_gathered(const toy_unit *u) {
    return u->count == 0 || !tn_storage_is_empty(u->params[0]);
}

static void toy_gather(toy_unit *u) {
    if (toy_gathered(u)) {
        return;
    }
    u->gathers++;
    for (int i = 0; i < u->count; i++) {
        if (tn_storage_refill(u->params[i]) == TN_OK) {
            (void)!tn__copy_bytes(tn_device_of(u->params[i]), tn_data_mut(u->params[i]), tn_cpu(),
                                  u->store[i], toy_bytes(u->params[i]), "gather");
        }
    }
}

static void toy_release(toy_unit *u) {
    for (int i = 0; i < u->count; i++) {
        if (!tn_storage_is_empty(u->params[i])) {
            tn_storage_empty(u->params[i]);
        }
    }
}

static tn_values toy_before(tn_module *m, tn_values in, void *user) {
    toy_gather(user);
    return in;
}

/* Inside a recompute the unit's backward follows at once, so what was gathered stays. */
static tn_values toy_after(tn_module *m, tn_values in, tn_values out, void *user) {
    if (!tn_in_recompute()) {
        toy_release(user);
    }
    return out;
}

static void toy_backward_before(tn_module *m, void *user) {
    toy_gather(user);
}

static void toy_backward_after(tn_module *m, tn_values grads, void *user) {
    toy_release(user);
}

static bool toy_claim(const tn_entry *entry, void *user) {
    toy_unit *u = user;
    for (int i = 0; i < u->all->count; i++) {
        for (int k = 0; k < u->all->unit[i].count; k++) {
            if (u->all->unit[i].params[k] == *entry->field) {
                return true; /* a unit further down has it */
            }
        }
    }
    u->params[u->count] = tn_keep(*entry->field);
    u->store[u->count] = malloc(toy_bytes(*entry->field));
    return tn_copy_out(*entry->field, u->store[u->count++]) == TN_OK;
}

static void toy_unit_add(toy_shard *toy, tn_module *module) {
    toy_unit *u = &toy->unit[toy->count];
    *u = (toy_unit){.all = toy, .module = module};
    tn_module_each(module, (tn_walk){0}, toy_claim, u);
    toy->count++;
    tn_module_hook(module, (tn_module_hooks){.before = toy_before,
                                             .after = toy_after,
                                             .backward_before = toy_backward_before,
                                             .backward_after = toy_backward_after,
                                             .user = u});
    toy_release(u);
}

static void toy_gather_all(toy_shard *toy) {
    for (int i = 0; i < toy->count; i++) {
        toy_gather(&toy->unit[i]);
    }
}

/* Copies the parameters, which the optimiser changed, back to the store. */
static void toy_store_all(toy_shard *toy) {
    for (int i = 0; i < toy->count; i++) {
        toy_unit *u = &toy->unit[i];
        for (int k = 0; k < u->count; k++) {
            (void)!tn_copy_out(u->params[k], u->store[k]); /* an error stays pending */
        }
        toy_release(u);
    }
}

static void toy_free(toy_shard *toy) {
    for (int i = 0; i < toy->count; i++) {
        for (int k = 0; k < toy->unit[i].count; k++) {
            free(toy->unit[i].store[k]);
            tn_release(toy->unit[i].params[k]);
        }
    }
}

#endif
