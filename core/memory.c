/* Memory for the library's own structs. Each thread has free lists: an operation allocates and
 * frees a handful. */
#include "core/memory.h"

#include "core/error.h"
#include "core/sanitize.h"

#include <string.h>

enum { STEP = 64, LISTS = 8, MAX_SPARE = 1024, RETIRED = 4096 };

/* Free structs of up to 64, 128, … 512 bytes. A free struct's first word links to the next.
 * Retired ones wait in a ring, in which the oldest is the next to be replaced. */
typedef struct tn__spares {
    struct list {
        void *first;
        int count;
    } list[LISTS];
    unsigned oldest;
    void *retired[RETIRED];
} tn__spares;

/* NULL when there is no memory for them. */
static tn__spares *own_spares(void) {
    if (!tn__self.spares) {
        tn__self.spares = calloc(1, sizeof(tn__spares));
        tn__thread_watch();
    }
    return tn__self.spares;
}

/* The list for `bytes`; NULL when structs of this size are not kept,
 * or there is no memory for lists. */
static struct list *list_for(size_t bytes) {
    size_t i = (bytes + STEP - 1) / STEP - 1;
    if (bytes == 0 || i >= LISTS || TN__ASAN) { return NULL; }
    tn__spares *spares = own_spares();
    return spares ? &spares->list[i] : NULL;
}

void *tn__struct_alloc(size_t bytes) {
    struct list *list = list_for(bytes);
    if (!list) { return tn__malloc(bytes); }
    if (tn__alloc_fails()) { return NULL; }
    void *block = list->first;
    if (!block) { return malloc((bytes + STEP - 1) / STEP * STEP); }
    memcpy(&list->first, block, sizeof(list->first));
    list->count--;
    return block;
}

void tn__struct_free(void *block, size_t bytes) {
    struct list *list = list_for(bytes);
    if (!block || !list || list->count >= MAX_SPARE) {
        free(block);
        return;
    }
    memcpy(block, &list->first, sizeof(list->first));
    list->first = block;
    list->count++;
}

void tn__struct_retire(void *block, size_t bytes) {
    tn__spares *spares = own_spares();
    if (spares) {
        unsigned at = spares->oldest++ % RETIRED;
        void *oldest = spares->retired[at];
        spares->retired[at] = block;
        block = oldest;
    }
    if (block) { tn__struct_free(block, bytes); }
}

void tn__memory_thread_end(void) {
    tn__spares *spares = tn__self.spares;
    for (int i = 0; spares && i < RETIRED; i++) {
        free(spares->retired[i]);
    }
    for (int i = 0; spares && i < LISTS; i++) {
        struct list *list = &spares->list[i];
        while (list->first) {
            void *block = list->first;
            memcpy(&list->first, block, sizeof(list->first));
            free(block);
        }
    }
    tn__self.spares = NULL;
    free(spares);
}

char *tn__strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = tn__malloc(bytes);
    if (copy) { memcpy(copy, text, bytes); }
    return copy;
}

/* ---- Variants that raise --------------------------------------------------------------------- */

void *tn__malloc_for(size_t bytes, const char *operation) {
    void *memory = tn__malloc(bytes);
    if (!memory) { tn__raise(TN_ENOMEM, operation, "no memory for %zu bytes", bytes); }
    return memory;
}

void *tn__calloc_for(size_t count, size_t size, const char *operation) {
    void *memory = tn__calloc(count, size);
    if (!memory) {
        tn__raise(TN_ENOMEM, operation, "no memory for %zu times %zu bytes", count, size);
    }
    return memory;
}

char *tn__strdup_for(const char *text, const char *operation) {
    char *copy = tn__strdup(text);
    if (!copy) { tn__raise(TN_ENOMEM, operation, "no memory for \"%.60s\"", text); }
    return copy;
}

bool tn__grow_array(void *array, int64_t count, int64_t *capacity, size_t size,
                    const char *operation) {
    int64_t more, bytes;
    if (__builtin_mul_overflow(*capacity, 2, &more) || more < count) {
        more = count < 8 ? 8 : count;
    }
    void *before, *larger = NULL;
    memcpy(&before, array, sizeof(before)); /* `array` points to the caller's T * */
    if (!__builtin_mul_overflow(more, size, &bytes)) {
        larger = tn__realloc(before, (size_t)bytes);
    }
    if (larger) {
        memcpy(array, &larger, sizeof(larger));
        *capacity = more;
    } else if (operation) {
        tn__raise(TN_ENOMEM, operation, "no memory for %lld times %zu bytes", (long long)more,
                  size);
    }
    return larger != NULL;
}
