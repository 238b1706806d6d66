#include "core/alive.h"

#include "core/error.h"

static uintptr_t hide_address(const tn__alive *a) {
    return a ? ~(uintptr_t)a : 0;
}

static tn__alive *show_address(uintptr_t hidden) {
    return hidden ? (tn__alive *)~hidden : NULL;
}

void *tn__alive_first(const tn__alive_list *list) {
    return show_address(list->first);
}

void *tn__alive_after(const void *object) {
    return show_address(((const tn__alive *)object)->next);
}

void tn__alive_begin(tn__alive_list *list, void *object) {
    tn__alive *a = object;
    pthread_mutex_lock(&list->lock);
    *a = (tn__alive){.next = list->first};
    list->first = hide_address(a);
    if (a->next) { show_address(a->next)->before = list->first; }
    pthread_mutex_unlock(&list->lock);
}

static void unlink_object(tn__alive_list *list, const tn__alive *a) {
    *(a->before ? &show_address(a->before)->next : &list->first) = a->next;
    if (a->next) { show_address(a->next)->before = a->before; }
}

/* Whether the object is on the list; from now on not, if `ends`. What it points to is not read
 * before it has been found. */
static bool find_object(tn__alive_list *list, const void *object, bool ends) {
    pthread_mutex_lock(&list->lock);
    const tn__alive *a = tn__alive_first(list);
    while (a && a != object) {
        a = tn__alive_after(a);
    }
    if (a && ends) { unlink_object(list, a); }
    pthread_mutex_unlock(&list->lock);
    return a != NULL;
}

static bool expect_object(tn__alive_list *list, const void *object, bool ends,
                          const char *operation) {
    bool found = find_object(list, object, ends);
    if (!found) { tn__raise(TN_ESTATE, operation, "the %s was freed before", list->what); }
    return found;
}

bool tn__alive_is(tn__alive_list *list, const void *object, const char *operation) {
    return expect_object(list, object, false, operation);
}

bool tn__alive_end(tn__alive_list *list, void *object, const char *operation) {
    return expect_object(list, object, true, operation);
}

bool tn__alive_has(tn__alive_list *list, const void *object) {
    return find_object(list, object, false);
}

void tn__alive_drop(tn__alive_list *list, void *object) {
    pthread_mutex_lock(&list->lock);
    unlink_object(list, object);
    pthread_mutex_unlock(&list->lock);
}
