#include "io/labels.h"

#include "core/memory.h"

#include <string.h>

static int compare_keys(const void *a, const void *b) {
    return strcmp((*(const tn__json *const *)a)->key, (*(const tn__json *const *)b)->key);
}

tn_status tn__labels_read(tn__labels *t, const tn__json *object, const char **key,
                          const char **wrong) {
    *t = (tn__labels){.at = tn__calloc(object->count, sizeof(tn__json *))};
    if (!t->at) { return TN_ENOMEM; }
    const tn__json *text = tn__json_first(object);
    for (uint32_t i = 0; i < object->count; i++, text = tn__json_next(text)) {
        if (text->kind != TN__JSON_TEXT) {
            *key = text->key;
            *wrong = "is not a string";
            return TN_EFORMAT;
        }
        t->at[t->count++] = text;
    }
    qsort(t->at, (size_t)t->count, sizeof(*t->at), compare_keys);
    for (int i = 1; i < t->count; i++) {
        if (compare_keys(&t->at[i - 1], &t->at[i]) == 0) {
            *key = t->at[i]->key;
            *wrong = "is a duplicate";
            return TN_EFORMAT;
        }
    }
    return TN_OK;
}

void tn__labels_free(tn__labels *t) {
    free(t->at);
    *t = (tn__labels){0};
}

const char *tn__labels_get(const tn__labels *t, const char *key) {
    tn__json wanted = {.key = key};
    const tn__json *pointer = &wanted, **found = NULL;
    if (key && t->count) {
        found = bsearch(&pointer, t->at, (size_t)t->count, sizeof(pointer), compare_keys);
    }
    return found ? (*found)->text : NULL;
}
