/* KV caches: the keys and values of earlier positions, so that text is generated one position at a
 * time.
 *
 * A cache is begun for a whole model, but each attention makes its tensors when the first keys
 * arrive: only then are dtype, device and the heads on this rank known (precision and tensor
 * parallelism change them).
 */
#include "nn/cache.h"

#include "core/error.h"
#include "nn/module.h"

void tn__cache_register(void *module, tn_kv_cache *cache) {
    tn_module *m = module;
    *cache = (tn_kv_cache){0};
    if (tn_module_scratch(m, "cache_k", &cache->k, NULL) == TN_OK &&
        tn_module_scratch(m, "cache_v", &cache->v, NULL) == TN_OK) {
        m->lists->cache = cache;
    }
}

/* ---- For a forward --------------------------------------------------------------------------- */

/* False after raising. */
static bool make_tensors(tn_kv_cache *cache, const tn_tensor *like) {
    TN_SCOPE;
    tn_dims dims = TN_DIMS(cache->batch, tn_size(like, 1), cache->length, tn_size(like, 3));
    tn_tensor *k = tn_empty_on(tn_device_of(like), dims, tn_dtype_of(like)),
              *v = tn_empty_on(tn_device_of(like), dims, tn_dtype_of(like));
    if (tn_is_inert(k) || tn_is_inert(v)) { return false; }
    cache->k = tn_keep(k);
    cache->v = tn_keep(v);
    return true;
}

bool tn__cache_reserve(void *module, tn_kv_cache *cache, const tn_tensor *k, const tn_tensor *v,
                       tn__cache_place *place) {
    tn_module *m = module;
    if (tn_is_inert(k) || tn_is_inert(v)) { return false; }
    int64_t B = tn_size(k, 0), T = tn_size(k, 2), left = cache->length - cache->filled;
    if (B != cache->batch || T > left) {
        return tn__fail(
            TN_EVALUE, m->kind,
            "x has %lld sequences of %lld positions but the cache is for %lld, and %lld of "
            "its %lld positions are free",
            (long long)B, (long long)T, (long long)cache->batch, (long long)left,
            (long long)cache->length);
    }
    if (!cache->k && !make_tensors(cache, k)) { return false; }
    *place = (tn__cache_place){.new_k = tn_narrow(cache->k, 2, cache->filled, T),
                               .new_v = tn_narrow(cache->v, 2, cache->filled, T),
                               .all_k = tn_narrow(cache->k, 2, 0, cache->filled + T),
                               .all_v = tn_narrow(cache->v, 2, 0, cache->filled + T)};
    return !tn__pending();
}

bool tn__cache_append(void *m, tn_kv_cache *cache, tn_tensor **k, tn_tensor **v) {
    tn__cache_place place;
    if (!tn__cache_reserve(m, cache, *k, *v, &place)) { return false; }
    tn_copy_(place.new_k, *k);
    tn_copy_(place.new_v, *v);
    *k = place.all_k;
    *v = place.all_v;
    return !tn__pending();
}

void tn__cache_accept(tn_kv_cache *cache, int64_t T) {
    if (tn__cache_open(cache) && !tn__pending()) { cache->filled += T; }
}

static tn_kv_cache *cache_of(const tn_module *m) {
    return m->lists ? m->lists->cache : NULL;
}

static bool rewind_cache(tn_module *m, const char *path, void *user) {
    int64_t filled = *(const int64_t *)user;
    tn_kv_cache *cache = cache_of(m);
    if (cache && cache->filled > filled) { cache->filled = filled; }
    return true;
}

void tn__cache_restore(void *m, int64_t filled) {
    tn_module_each_module(m, rewind_cache, &filled);
}

static bool skip_positions(tn_module *m, const char *path, void *user) {
    tn_kv_cache *cache = cache_of(m);
    if (cache && !cache->k) { tn__cache_accept(cache, *(const int64_t *)user); }
    return true;
}

void tn__cache_skip(void *m, int64_t T) {
    tn_module_each_module(m, skip_positions, &T);
}

/* ---- For generating -------------------------------------------------------------------------- */

/* Drops a row of *field; the last row takes its place. */
static void drop_row_of(tn_tensor **field, int64_t row, int64_t last, int64_t filled) {
    tn_tensor *held = tn_narrow(*field, 2, 0, filled);
    if (row != last) { tn_copy_(tn_select(held, 0, row), tn_select(held, 0, last)); }
    tn_tensor *rest = tn_narrow(*field, 0, 0, last);
    if (!tn__pending()) { tn__field_set(field, rest); }
}

static bool drop_cache_row(tn_module *m, const char *path, void *user) {
    TN_SCOPE;
    tn_kv_cache *cache = cache_of(m);
    if (cache && cache->k) {
        cache->batch--;
        drop_row_of(&cache->k, *(int64_t *)user, cache->batch, cache->filled);
        drop_row_of(&cache->v, *(int64_t *)user, cache->batch, cache->filled);
    }
    return !tn__pending();
}

void tn__cache_drop_row(void *m, int64_t row) {
    tn_module_each_module(m, drop_cache_row, &row);
}

/* ---- For a program --------------------------------------------------------------------------- */

static bool find_broken(tn_module *m, const char *path, void *user) {
    if (m->state == TN__MODULE_BROKEN) {
        tn__raise(TN_ESTATE, "cache_begin", "%s%s%s is not complete", m->kind, *path ? " " : "",
                  path);
    }
    *(int *)user += cache_of(m) != NULL;
    return !tn__pending();
}

static bool begin_cache(tn_module *m, const char *path, void *user) {
    const tn_attention_cache_options *options = user;
    tn_kv_cache *cache = cache_of(m);
    if (cache) {
        tn__field_set(&cache->k, NULL);
        tn__field_set(&cache->v, NULL);
        cache->batch = options->batch;
        cache->length = options->length;
        cache->filled = 0;
    }
    return true;
}

tn_status tn_cache_begin(void *m, tn_attention_cache_options options) {
    if (!tn__module_of(m, "cache_begin") || tn__pending()) { return tn_error(); }
    const char *wrong =
        TN__BEYOND({"batch", options.batch, 1, 0}, {"length", options.length, 1, 0});
    if (wrong) { return tn__raise(TN_EVALUE, "cache_begin", "%s", wrong); }
    int caches = 0;
    tn_module_each_module(m, find_broken, &caches);
    if (!tn__pending() && caches == 0) {
        tn__raise(TN_EVALUE, "cache_begin", "%s has no attention module that can keep a cache",
                  ((tn_module *)m)->kind);
    }
    if (!tn__pending()) { tn_module_each_module(m, begin_cache, &options); }
    return tn_error();
}

void tn_cache_end(void *m) {
    if (m) { tn_module_each_module(m, begin_cache, &(tn_attention_cache_options){0}); }
}

static bool check_rewind(tn_module *m, const char *path, void *user) {
    int64_t filled = *(const int64_t *)user;
    const tn_kv_cache *cache = cache_of(m);
    if (cache && filled > cache->filled) {
        tn__raise(TN_EVALUE, "cache_rewind", "%lld positions but the cache of %s holds %lld",
                  (long long)filled, *path ? path : m->kind, (long long)cache->filled);
    }
    return !tn__pending();
}

tn_status tn_cache_rewind(void *m, int64_t filled) {
    if (!tn__module_of(m, "cache_rewind") || tn__pending()) { return tn_error(); }
    if (filled < 0) {
        return tn__raise(TN_EVALUE, "cache_rewind", "%lld positions", (long long)filled);
    }
    tn_module_each_module(m, check_rewind, &filled);
    if (!tn__pending()) { tn__cache_restore(m, filled); }
    return tn_error();
}
