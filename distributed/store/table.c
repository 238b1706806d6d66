/* A table of keys and values: hashed, chained, growing. Not thread-safe. */
#include "distributed/store/store.h"

#include "core/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct tn__entry {
    tn__entry *next;
    tn_store_value value;
    uint64_t hash;
    char key[];
};

enum { FIRST_BUCKETS = 64 };

/* FNV-1a */
static uint64_t hash_of(const char *key) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *key; key++) {
        hash = (hash ^ (unsigned char)*key) * UINT64_C(0x100000001b3);
    }
    return hash ^ hash >> 32;
}

/* The link to the entry, or where it would be. */
static tn__entry **place_of(const tn__table *t, const char *key, uint64_t hash) {
    tn__entry **at = &t->heads[hash & (t->buckets - 1)];
    while (*at && ((*at)->hash != hash || strcmp((*at)->key, key) != 0)) {
        at = &(*at)->next;
    }
    return at;
}

static size_t size_of(const char *key, size_t bytes) {
    return sizeof(tn__entry) + strlen(key) + 1 + bytes;
}

const tn_store_value *tn__table_find(const tn__table *t, const char *key) {
    tn__entry *entry = t->buckets ? *place_of(t, key, hash_of(key)) : NULL;
    return entry ? &entry->value : NULL;
}

/* Grows the table for one more entry. Without memory it stays as it is; only the first growth must
 * succeed. */
static bool grow_table(tn__table *t) {
    if (t->count < t->buckets) { return true; }
    size_t buckets = t->buckets ? 2 * t->buckets : FIRST_BUCKETS;
    tn__entry **heads = tn__calloc(buckets, sizeof(*heads));
    if (!heads) { return t->buckets > 0; }
    for (size_t i = 0; i < t->buckets; i++) {
        for (tn__entry *entry = t->heads[i], *next; entry; entry = next) {
            next = entry->next;
            tn__entry **head = &heads[entry->hash & (buckets - 1)];
            entry->next = *head;
            *head = entry;
        }
    }
    free(t->heads);
    t->heads = heads;
    t->buckets = buckets;
    return true;
}

static bool table_fits(const tn__table *t, size_t more, size_t less) {
    return !t->limit || (t->bytes - less <= t->limit && more <= t->limit - (t->bytes - less));
}

/* A new entry at *at, without a value. */
static tn__entry *add_entry(tn__table *t, tn__entry **at, const char *key, uint64_t hash) {
    tn__entry *entry = tn__calloc(1, sizeof(*entry) + strlen(key) + 1);
    if (entry) {
        strcpy(entry->key, key);
        entry->hash = hash;
        *at = entry;
        t->count++;
        t->bytes += size_of(key, 0);
    }
    return entry;
}

static tn_status no_memory(tn_store_call *c, size_t bytes) {
    return tn__why(c->why, TN_ENOMEM, "no memory for \"%.120s\" with %zu bytes", c->key, bytes);
}

static tn_status set_value(tn__table *t, tn_store_call *c, const void *data, size_t bytes) {
    uint64_t hash = hash_of(c->key);
    if (!grow_table(t)) { return no_memory(c, bytes); }
    tn__entry **at = place_of(t, c->key, hash), *entry = *at;
    size_t less = entry ? size_of(c->key, entry->value.bytes) : 0, more = size_of(c->key, bytes);
    if (!table_fits(t, more, less)) {
        return tn__why(c->why, TN_ENOMEM,
                       "\"%.120s\" with %zu bytes: the store is full (%zu bytes)", c->key, bytes,
                       t->limit);
    }
    void *copy = bytes ? tn__malloc(bytes) : NULL;
    bool there = copy || !bytes;
    entry = there && !entry ? add_entry(t, at, c->key, hash) : entry;
    if (!there || !entry) {
        free(copy);
        return no_memory(c, bytes);
    }
    if (bytes) { memcpy(copy, data, bytes); }
    t->bytes += bytes - entry->value.bytes;
    free(entry->value.data);
    entry->value = (tn_store_value){copy, bytes};
    return TN_OK;
}

/* Decimal digits, possibly after a minus sign, at most 20 characters. */
static bool number_of(const tn_store_value *value, int64_t *number) {
    char text[24] = "", *end;
    if (value->bytes == 0 || value->bytes > 20) { return false; }
    memcpy(text, value->data, value->bytes);
    errno = 0;
    *number = strtoll(text, &end, 10);
    const char *digits = text + (*text == '-');
    return errno == 0 && *digits >= '0' && *digits <= '9' && end == text + value->bytes;
}

static tn_status add_number(tn__table *t, tn_store_call *c) {
    const tn_store_value *old = tn__table_find(t, c->key);
    int64_t number = 0, sum;
    if (old && !number_of(old, &number)) {
        return tn__why(c->why, TN_EFORMAT,
                       "\"%.120s\" has %zu bytes that are not a number to add to", c->key,
                       old->bytes);
    }
    if (__builtin_add_overflow(number, c->number, &sum)) {
        return tn__why(c->why, TN_EFORMAT,
                       "\"%.120s\" is %" PRId64 ": with %" PRId64 " more it overflows 64 bits",
                       c->key, number, c->number);
    }
    char text[24];
    int length = snprintf(text, sizeof(text), "%" PRId64, sum);
    c->number = sum;
    return set_value(t, c, text, (size_t)length);
}

static tn_status compare_set(tn__table *t, tn_store_call *c) {
    const tn_store_value *old = tn__table_find(t, c->key);
    bool sets = old ? c->expected_bytes > 0 && old->bytes == c->expected_bytes &&
                          memcmp(old->data, c->expected, old->bytes) == 0
                    : c->expected_bytes == 0;
    tn_status status = sets ? set_value(t, c, c->data, c->bytes) : TN_OK;
    const tn_store_value *found = tn__table_find(t, c->key);
    if (status == TN_OK && found) { c->value = *found; }
    return status;
}

static bool remove_key(tn__table *t, const char *key) {
    tn__entry **at = t->buckets ? place_of(t, key, hash_of(key)) : NULL, *entry = at ? *at : NULL;
    if (!entry) { return false; }
    *at = entry->next;
    t->count--;
    t->bytes -= size_of(key, entry->value.bytes);
    free(entry->value.data);
    free(entry);
    return true;
}

tn_status tn__table_run(tn__table *t, tn_store_call *c) {
    const tn_store_value *found = tn__table_find(t, c->key);
    switch (c->kind) {
    case TN_STORE_SET:
        return set_value(t, c, c->data, c->bytes);
    case TN_STORE_GET:
        c->value = found ? *found : (tn_store_value){0};
        return found ? TN_OK : TN_EPEER;
    case TN_STORE_ADD:
        return add_number(t, c);
    case TN_STORE_COMPARE_SET:
        return compare_set(t, c);
    case TN_STORE_CHECK:
        c->number = found != NULL;
        return TN_OK;
    case TN_STORE_DELETE:
        c->number = remove_key(t, c->key);
        return TN_OK;
    }
    return tn__why(c->why, TN_EUNSUPPORTED, "a store has no call %d", (int)c->kind);
}

void tn__table_clear(tn__table *t) {
    for (size_t i = 0; i < t->buckets; i++) {
        for (tn__entry *entry = t->heads[i], *next; entry; entry = next) {
            next = entry->next;
            free(entry->value.data);
            free(entry);
        }
    }
    free(t->heads);
    *t = (tn__table){.limit = t->limit};
}
