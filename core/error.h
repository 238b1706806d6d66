/* Raising errors, for every folder of the library. The public side is tern/core.h; docs/errors.md
 * has the whole story. */
#ifndef TERN_CORE_ERROR_H
#define TERN_CORE_ERROR_H

#include "core/thread.h"

/* Raises: records `place (in module.path): operation: text` as this thread's error, calls the
 * handler, and returns `status`. Does nothing for TN_OK, or while an error is pending. Every error
 * of the library starts here: a breakpoint on this function stops at the failing call. `operation`
 * may be NULL. Allocates nothing for itself. */
tn_status tn__raise(tn_status status, const char *operation, const char *format, ...)
    TN_PRINTF(3, 4);
/* Raise likewise, and are false, or NULL: what many functions return then. */
#define tn__fail(...) (tn__raise(__VA_ARGS__), false)
#define tn__fail_null(...) (tn__raise(__VA_ARGS__), NULL)

/* Whether `made`, the options' member from_defaults, says that what_defaults() made them. False
 * after raising TN_EVALUE: an initialiser would zero the members it does not name.
 *
 *     if (!tn__options_made(options.from_defaults, "adam", "tn_adam")) ...
 */
bool tn__options_made(bool made, const char *operation, const char *what);

/* Raises the pending error once more, as that of `operation` and with what its place did not know
 * in front: "rank 1 of 4: " and the reason. Returns its status. */
TN_API tn_status tn__raise_again(const char *operation, const char *format, ...) TN_PRINTF(2, 3);

/* Between tn__quiet(1) and tn__quiet(-1) errors of this thread are recorded but no handler is
 * called: for code that tries something and clears the error, or passes it on with
 * tn_error_give. */
void tn__quiet(int step);

/* The status with which tn_error_exit ends the process in this thread, instead of 1. For one
 * tn__raise only: back to 1 after it. */
void tn__exit_with(int status);

/* What is wrong: the pending error's text without its place, modules and operation; "" if none is
 * pending. Costs no look-up of the place. */
TN_API const char *tn__error_why(void);

/* Whether an error is pending in this thread. */
static inline bool tn__pending(void) {
    return tn__self.error != TN_OK;
}

/* The modules whose forward is running, innermost first. The caller's memory, pushed and popped
 * like a stack; an error's text joins the names: `(in mlp.fc1)`.
 * A frame whose name is NULL or "" adds nothing. */
typedef struct tn__frame {
    struct tn__frame *up;
    const char *name;
    void *module; /* whose forward is running; NULL while its hooks are */
} tn__frame;

static inline void tn__frame_push(tn__frame *frame) {
    frame->up = tn__self.frames;
    tn__self.frames = frame;
}

static inline void tn__frame_pop(tn__frame *frame) {
    tn__self.frames = frame->up;
}

/* How many forwards may be nested: far more than networks are deep, and few enough for a thread's
 * stack. */
#define TN__DEEPEST 1000

/* Brackets around what runs a forward, which may call itself. False after raising when too many are
 * running: then do not call leave. From there on all are refused until the outermost returns, since
 * one that calls itself twice would otherwise need 2^1000 calls to return. */
static inline bool tn__enter(const char *operation) {
    if (tn__self.depth >= TN__DEEPEST) {
        tn__self.too_deep = true;
        tn__raise(TN_ESTATE, operation,
                  "%d forwards are running inside each other (one that calls itself without end?)",
                  TN__DEEPEST);
    }
    if (tn__self.too_deep && tn__pending()) { return false; }
    tn__self.depth++;
    return true;
}

static inline void tn__leave(void) {
    tn__self.depth--;
    tn__self.too_deep = tn__self.too_deep && tn__self.depth > 0;
}

/* A whole number and its limits. */
typedef struct tn__limit {
    const char *name;           /* "width" */
    int64_t value, least, most; /* most: 0: none */
} tn__limit;

/* The first number outside its limits, "width is 0 (it must be at least 1)", in one of this
 * thread's few buffers; NULL: none is. The others, which are right, are not named. */
const char *tn__outside(const tn__limit *limits, int n);
#define TN__BEYOND(...)                           \
    tn__outside((const tn__limit[]){__VA_ARGS__}, \
                (int)(sizeof((const tn__limit[]){__VA_ARGS__}) / sizeof(tn__limit)))

/* Writes where this is called from: "train.c:17", "function+0x12" or "program+0x1234" of the first
 * stack frame outside the library, or "" when there is none. Never fails. */
void tn__place(char *text, size_t size);

#endif
