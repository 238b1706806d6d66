/* The prefix store: another store in which every key begins with "prefix/". */
#include "distributed/store/store.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

typedef struct prefix_store {
    tn_store base;
    tn_store *beneath; /* one reference */
    char prefix[TN_STORE_KEY + 1];
} prefix_store;

typedef struct full_key {
    char text[TN_STORE_KEY + 2];
} full_key;

/* A key that is too long keeps one byte too many, so that the caller refuses it. */
static full_key key_in(const tn_store *s, const char *key) {
    full_key k;
    snprintf(k.text, sizeof(k.text), "%s/%s", ((const prefix_store *)s)->prefix, key);
    return k;
}

static tn_store *store_beneath(const tn_store *s) {
    return ((const prefix_store *)s)->beneath;
}

static bool key_fits(const full_key *k, char *why) {
    if (strlen(k->text) > TN_STORE_KEY) {
        tn__why(why, TN_EVALUE, "\"%.120s…\" has more than %d bytes with its prefix", k->text,
                TN_STORE_KEY);
        return false;
    }
    return true;
}

static tn_status prefix_set(tn_store *s, const char *key, const void *data, size_t bytes,
                            double deadline, char *why) {
    full_key k = key_in(s, key);
    return key_fits(&k, why)
               ? store_beneath(s)->set(store_beneath(s), k.text, data, bytes, deadline, why)
               : TN_EVALUE;
}

static tn_status prefix_get(tn_store *s, const char *key, tn_store_value *value, double deadline,
                            char *why) {
    full_key k = key_in(s, key);
    return key_fits(&k, why) ? store_beneath(s)->get(store_beneath(s), k.text, value, deadline, why)
                             : TN_EVALUE;
}

static tn_status prefix_add(tn_store *s, const char *key, int64_t amount, int64_t *result,
                            double deadline, char *why) {
    full_key k = key_in(s, key);
    return key_fits(&k, why)
               ? store_beneath(s)->add(store_beneath(s), k.text, amount, result, deadline, why)
               : TN_EVALUE;
}

static tn_status prefix_compare_set(tn_store *s, const char *key, const tn_store_value *expected,
                                    const tn_store_value *desired, tn_store_value *now,
                                    double deadline, char *why) {
    full_key k = key_in(s, key);
    return key_fits(&k, why) ? store_beneath(s)->compare_set(store_beneath(s), k.text, expected,
                                                             desired, now, deadline, why)
                             : TN_EVALUE;
}

static tn_status prefix_check(tn_store *s, const char *key, bool *exists, double deadline,
                              char *why) {
    full_key k = key_in(s, key);
    return key_fits(&k, why)
               ? store_beneath(s)->check(store_beneath(s), k.text, exists, deadline, why)
               : TN_EVALUE;
}

static tn_status prefix_remove(tn_store *s, const char *key, bool *existed, double deadline,
                               char *why) {
    full_key k = key_in(s, key);
    return key_fits(&k, why)
               ? store_beneath(s)->remove(store_beneath(s), k.text, existed, deadline, why)
               : TN_EVALUE;
}

static void prefix_destroy(tn_store *s) {
    tn_store_free(store_beneath(s));
    free(s);
}

tn_store *tn_prefix_store(tn_store *s, const char *prefix) {
    if (tn__pending()) { return NULL; }
    if (!s) {
        tn__raise(TN_EVALUE, "prefix_store", "the store is NULL");
        return NULL;
    }
    if (!tn__store_key(prefix)) {
        tn__raise(
            TN_EVALUE, "prefix_store",
            "the prefix is \"%.60s\" (must be 1 to %d bytes without spaces and control characters)",
            prefix ? prefix : "(NULL)", TN_STORE_KEY);
        return NULL;
    }
    if (tn__refuse_inherited(s->process, "prefix_store", "the store")) { return NULL; }
    prefix_store *p = tn__calloc_for(1, sizeof(*p), "prefix_store");
    if (!p) { return NULL; }
    p->base = (tn_store){.kind = s->kind,
                         .refs = 1,
                         .process = s->process,
                         .timeout = s->timeout,
                         .token = s->token,
                         .set = prefix_set,
                         .get = prefix_get,
                         .add = prefix_add,
                         .compare_set = prefix_compare_set,
                         .check = prefix_check,
                         .remove = prefix_remove,
                         .destroy = prefix_destroy};
    p->beneath = tn__store_keep(s);
    strcpy(p->prefix, prefix);
    return &p->base;
}
