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

static tn_status run_beneath(tn_store *s, tn_store_call *c) {
    const prefix_store *p = (const prefix_store *)s;
    const char *key = c->key;
    char whole[TN_STORE_KEY + 2];
    if (snprintf(whole, sizeof(whole), "%s/%s", p->prefix, key) > TN_STORE_KEY) {
        return tn__why(c->why, TN_EVALUE, "\"%.120s…\" has more than %d bytes with its prefix",
                       whole, TN_STORE_KEY);
    }
    c->key = whole;
    tn_status status = p->beneath->run(p->beneath, c);
    c->key = key;
    return status;
}

static void prefix_destroy(tn_store *s) {
    tn_store_free(((prefix_store *)s)->beneath);
    free(s);
}

tn_store *tn_prefix_store(tn_store *s, const char *prefix) {
    if (tn__pending()) { return NULL; }
    if (!s) { return tn__fail_null(TN_EVALUE, "prefix_store", "the store is NULL"); }
    if (!tn__store_key(prefix)) {
        return tn__fail_null(
            TN_EVALUE, "prefix_store",
            "the prefix is \"%.60s\" (must be 1 to %d bytes without spaces and control characters)",
            prefix ? prefix : "(NULL)", TN_STORE_KEY);
    }
    if (tn__refuse_inherited(s->process, "prefix_store", "the store")) { return NULL; }
    prefix_store *p = tn__calloc_for(1, sizeof(*p), "prefix_store");
    if (!p) { return NULL; }
    p->base = *s;
    p->base.refs = 1;
    p->base.run = run_beneath;
    p->base.destroy = prefix_destroy;
    p->beneath = tn__store_keep(s);
    strcpy(p->prefix, prefix);
    return &p->base;
}
