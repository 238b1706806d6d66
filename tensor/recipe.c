/* Deferred tensors, whose elements are not made yet (recipe.h). */
#include "tensor/recipe.h"

#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>

_Thread_local tn_status (*tn__deferring)(const tn_tensor *t);

tn_tensor *tn__new_deferred(tn_dims dims, tn_dtype dtype, tn_device device, const char *operation) {
    size_t bytes;
    if (!tn__device_exists(device, operation) || !tn__bytes_of(dims, dtype, &bytes, operation)) {
        return tn_inert();
    }
    struct tn__recipe *recipe = tn__calloc_for(1, sizeof(*recipe), operation);
    tn_storage *storage = recipe ? tn__storage_new(0, device, operation) : NULL;
    if (!storage) {
        free(recipe);
        return tn_inert();
    }
    recipe->dtype = dtype;
    recipe->device = device;
    storage->bytes = bytes;
    storage->emptied = true;
    storage->recipe = recipe;
    return tn__tensor_over(storage, dims, dtype);
}

void tn__recipe_name(tn_tensor *t, const char *name) {
    snprintf(t->storage->recipe->name, TN__RECIPE_NAME, "%s", name);
}

void tn__recipe_drop(tn_tensor *t) {
    free(t->storage->recipe);
    t->storage->recipe = NULL;
}

bool tn__usable_or_deferred(const tn_tensor *t, const char *operation) {
    return tn__readable(t, operation) && (tn__deferred(t) || tn__usable(t, operation));
}

bool tn__elements_made(const tn_tensor *t, const char *path, const char *operation) {
    if (tn__deferred(t)) {
        return tn__fail(TN_ESTATE, operation,
                        "%s has no elements yet: it was built under TN_DEFER_INIT "
                        "(tn_module_materialize makes them)",
                        path);
    }
    return true;
}
