/* Scopes: who owns the tensors that an expression makes.
 *
 * Each thread has one stack of owned objects. A scope is a mark in it (tn_scope.base): what is
 * above it belongs to the scope and is released at its end. tn_return sets bit 0 of an entry; the
 * end of the scope leaves such entries, in their order, to the scope outside. The bottom of the
 * stack is the thread's root scope, released when the thread ends (the main thread's goes with the
 * process).
 *
 * Releasing can run anything: a graph is freed, a callback opens scopes. So the stack is in order
 * before each release.
 */
#include "core/scope.h"

#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

#define MOVES ((uintptr_t)1) /* the entry moves to the scope outside */

/* More than programs hold on purpose (the largest GPT-2 has 580 parameters), and few enough that a
 * loop of a thousand steps gets there. TERN_ROOT_TENSORS=N sets another number; 0: no warning. */
enum { ROOT_MANY = 10000 };

int64_t tn__live_count;

static tn_object *object_of(uintptr_t entry) {
    return (tn_object *)(entry & ~MOVES);
}

/* Grows the stack by at least one entry. */
static bool grow_stack(void) {
    int64_t wanted = (int64_t)tn__self.owned_count + 1;
    if (!tn__grow(&tn__self.owned, wanted, &tn__self.owned_capacity, sizeof(*tn__self.owned),
                  NULL)) {
        return false;
    }
    tn__thread_watch();
    return true;
}

static size_t root_many(void) {
    static size_t many; /* atomic; 0: the environment was not read yet */
    size_t known = __atomic_load_n(&many, __ATOMIC_RELAXED);
    if (known == 0) {
        const char *text = getenv("TERN_ROOT_TENSORS");
        char *end;
        long long number = text ? strtoll(text, &end, 10) : ROOT_MANY;
        bool sound = !text || (end != text && !*end && number >= 0);
        known = !sound ? ROOT_MANY : number > 0 ? (size_t)number : SIZE_MAX;
        __atomic_store_n(&many, known, __ATOMIC_RELAXED);
    }
    return known;
}

/* A loop without a scope: warned of once, where the latest tensor is made. */
static void warn_root(void) {
    static bool said; /* atomic */
    if (__atomic_load_n(&said, __ATOMIC_RELAXED) ||
        __atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) {
        return;
    }
    char place[160];
    tn__place(place, sizeof place);
    tn__log_loud("%s%smore than %zu tensors were made outside any scope and live until the thread "
                 "ends (write TN_SCOPE; as the first line of the loop's body; if they are meant to "
                 "live, TERN_ROOT_TENSORS=N allows more)",
                 place, place[0] ? ": " : "", root_many());
}

bool tn__scope_own(tn_object *object) {
    if (tn__self.scopes == 0 && tn__self.owned_count >= root_many()) { warn_root(); }
    if ((int64_t)tn__self.owned_count == tn__self.owned_capacity && !grow_stack()) {
        tn__raise(TN_ENOMEM, NULL, "no memory for a scope of %zu tensors",
                  tn__self.owned_count + 1);
        tn__object_release(object);
        return false;
    }
    tn__self.owned[tn__self.owned_count++] = (uintptr_t)object;
    return true;
}

tn_scope tn_scope_begin(const char *file, int line) {
    tn_scope scope = {
        .base = tn__self.owned_count, .outer = tn__self.base, .file = file, .line = line};
    tn__self.base = tn__self.owned_count;
    tn__self.scopes++;
    return scope;
}

/* Puts the entries that move outward first, in their order, and returns how high they reach. */
static size_t separate_moving(uintptr_t *owned, size_t base, size_t count) {
    size_t kept = base;
    for (size_t i = base; i < count; i++) {
        uintptr_t entry = owned[i];
        if (entry & MOVES) {
            owned[i] = owned[kept];
            owned[kept++] = entry & ~MOVES;
        }
    }
    return kept;
}

void tn_scope_end(tn_scope *scope) {
    if (!scope || scope->base > tn__self.owned_count) { return; }
    size_t kept = separate_moving(tn__self.owned, scope->base, tn__self.owned_count);
    tn__self.base = scope->outer;
    tn__self.scopes -= tn__self.scopes > 0;
    const tn_scope *outer_ending = tn__ending(scope);
    while (tn__self.owned_count > kept) {
        tn__object_release(object_of(tn__self.owned[--tn__self.owned_count]));
    }
    tn__ending(outer_ending);
}

void tn__scope_thread_end(void) {
    tn_scope root = {.file = "the end of its thread", .line = TN__NO_SCOPE};
    tn_scope_end(&root);
    free(tn__self.owned);
    tn__self.owned = NULL;
    tn__self.owned_capacity = 0;
}

/* The latest entry of the current scope for `object`, or -1. With `staying`, entries that already
 * move are skipped. */
static int64_t find_entry(const tn_object *object, bool staying) {
    for (size_t i = tn__self.owned_count; i > tn__self.base; i--) {
        uintptr_t entry = tn__self.owned[i - 1];
        if (object_of(entry) == object && !(staying && (entry & MOVES))) { return (int64_t)i - 1; }
    }
    return -1;
}

tn_tensor *tn_return(tn_tensor *t) {
    tn_object *object = (tn_object *)t;
    if (!object) {
        tn__raise(TN_EVALUE, "return", "the tensor is NULL");
        return (tn_tensor *)tn__inert_object;
    }
    if (!tn__object_immortal(object)) {
        int64_t at = find_entry(object, true);
        if (at >= 0) { tn__self.owned[at] |= MOVES; }
    }
    return t;
}

tn_tensor *tn_keep(tn_tensor *t) {
    if (t) { tn__object_keep((tn_object *)t); }
    return t;
}

void tn_release(tn_tensor *t) {
    if (t) { tn__object_release((tn_object *)t); }
}

tn_tensor *tn_adopt(tn_tensor *t) {
    tn_object *object = (tn_object *)t;
    if (!object) {
        tn__raise(TN_EVALUE, "adopt", "the tensor is NULL");
        return (tn_tensor *)tn__inert_object;
    }
    if (tn__object_immortal(object)) { return t; }
    return tn__scope_own(object) ? t : (tn_tensor *)tn__inert_object;
}

void tn_drop(tn_tensor *t) {
    tn_object *object = (tn_object *)t;
    int64_t at = object && !tn__object_immortal(object) ? find_entry(object, false) : -1;
    if (at < 0) { return; }
    size_t after = --tn__self.owned_count - (size_t)at;
    memmove(tn__self.owned + at, tn__self.owned + at + 1, after * sizeof(*tn__self.owned));
    tn__object_release(object);
}

int64_t tn_live_tensors(void) {
    return __atomic_load_n(&tn__live_count, __ATOMIC_RELAXED);
}
