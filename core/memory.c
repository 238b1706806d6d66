/* Memory for the library's own structs. Each thread keeps some free ones: an operation makes and drops a handful. */
#include "core/memory.h"

#include "core/sanitize.h"
#include "core/thread.h"

#include <string.h>

enum { STEP = 64, MOST = 1024 };

/* The list for `bytes`; NULL when structs of this size are not kept. */
static struct tn__spare *list_for(size_t bytes) {
    size_t list = (bytes + STEP - 1) / STEP - 1;
    return bytes > 0 && list < TN__SPARE_LISTS && !TN__ASAN ? &tn__self.spare[list] : NULL;
}

void *tn__struct_alloc(size_t bytes) {
    struct tn__spare *list = list_for(bytes);
    if (!list) {
        return tn__malloc(bytes);
    }
    if (tn__alloc_fails()) {
        return NULL;
    }
    void *block = list->first;
    if (!block) {
        return malloc((bytes + STEP - 1) / STEP * STEP);
    }
    memcpy(&list->first, block, sizeof(list->first));
    list->count--;
    return block;
}

void tn__struct_free(void *block, size_t bytes) {
    struct tn__spare *list = list_for(bytes);
    if (!block || !list || list->count >= MOST) {
        free(block);
        return;
    }
    if (list->count == 0) {
        tn__thread_watch();
    }
    memcpy(block, &list->first, sizeof(list->first));
    list->first = block;
    list->count++;
}

void tn__memory_thread_end(void) {
    for (int i = 0; i < TN__SPARE_LISTS; i++) {
        struct tn__spare *list = &tn__self.spare[i];
        while (list->first) {
            void *block = list->first;
            memcpy(&list->first, block, sizeof(list->first));
            free(block);
        }
        list->count = 0;
    }
}

char *tn__strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = tn__malloc(bytes);
    if (copy) {
        memcpy(copy, text, bytes);
    }
    return copy;
}
