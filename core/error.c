/* Errors: the first one sticks.
 *
 * tn__raise puts status and text into this thread's record; later raises are ignored until
 * tn_error_clear. The text is `place (in module.path): operation: what`. What is known at that
 * point goes into fixed buffers: an error needs no memory. The place is looked up (place.c) when
 * the text is shown: to a handler, by tn_error_message, or when it moves to another thread.
 */
#include "core/error.h"
#include "core/place.h"
#include "core/plain_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_SIZE = sizeof(((tn_error_record *)0)->message) };

static _Thread_local tn_error_handler thread_handler;
static tn_error_handler process_handler; /* atomic */

/* Appends at `used`, cut off at the end of the buffer; returns the new end. */
static size_t append_text(char *text, size_t size, size_t used, const char *format, ...)
    TN_PRINTF(4, 5);

static size_t append_v(char *text, size_t size, size_t used, const char *format,
                       va_list arguments) {
    int n = vsnprintf(text + used, size - used, format, arguments);
    if (n < 0) {
        text[used] = 0;
        return used;
    }
    return (size_t)n < size - used ? used + (size_t)n : size - 1;
}

static size_t append_text(char *text, size_t size, size_t used, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    used = append_v(text, size, used, format, arguments);
    va_end(arguments);
    return used;
}

/* Begins the text with " (in mlp.fc1)", or nothing outside modules. Very deep paths keep the
 * innermost names. */
static size_t append_modules(char *text, size_t size) {
    enum { MAX_NAMES = 24 };
    const char *names[MAX_NAMES];
    int count = 0;
    bool more = false;
    for (const tn__frame *f = tn__self.frames; f; f = f->up) {
        if (!f->name || !f->name[0]) { continue; }
        if (count == MAX_NAMES) {
            more = true;
            break;
        }
        names[count++] = f->name;
    }
    size_t used = count ? append_text(text, size, 0, " (in %s", more ? "..." : "") : 0;
    for (int i = count - 1; i >= 0; i--) {
        used = append_text(text, size, used, "%.64s%s", names[i], i ? "." : ")");
    }
    return used;
}

/* The pending error's text, with its place: the text kept so far begins with " (in" or ": ", to go
 * after the place. */
static const char *shown_message(void) {
    tn__stack *stack = tn__thread_stack();
    tn__texts *t = tn__thread_texts();
    if (stack->pending) {
        char place[160], text[MESSAGE_SIZE];
        tn__place_of(stack, place, sizeof(place));
        int skipped = place[0] ? 0 : t->message[0] == ' ' ? 1 : 2;
        append_text(text, MESSAGE_SIZE, 0, "%s%.*s", place, t->why - skipped, t->message + skipped);
        tn__plain_lines(text);
        size_t why = strlen(text);
        append_text(text, MESSAGE_SIZE, why, "%s", tn__error_why());
        memcpy(t->message, text, MESSAGE_SIZE);
        t->why = (int)why;
        stack->pending = false;
    }
    return t->message;
}

const char *tn__error_why(void) {
    if (tn__self.error == TN_OK) { return ""; }
    tn__texts *t = tn__thread_texts();
    tn__plain_lines(t->message + t->why); /* it may quote a file or a peer */
    return t->message + t->why;
}

static _Thread_local int quiet;

void tn__quiet(int step) {
    quiet += step;
}

static _Thread_local bool handling;
static _Thread_local int exit_status = 1;

/* A handler that clears the error and fails again would be called endlessly: what it raises is only
 * recorded. It reads a copy, since its own error would overwrite the text. */
static void call_handler(void) {
    if (quiet > 0 || handling) { return; }
    tn_error_handler handler =
        thread_handler ? thread_handler : __atomic_load_n(&process_handler, __ATOMIC_ACQUIRE);
    if (handler) {
        char text[MESSAGE_SIZE];
        snprintf(text, sizeof(text), "%s", shown_message());
        handling = true;
        handler(tn__self.error, text);
        handling = false;
    }
}

static tn_status raise_v(tn_status status, const char *operation, const char *format,
                         va_list arguments) {
    if (tn__self.error != TN_OK || status == TN_OK) { return status; }
    tn__self.error = status;
    tn__stack_keep(tn__thread_stack());
    tn__texts *t = tn__thread_texts();
    char *message = t->message;
    size_t used = append_modules(message, MESSAGE_SIZE);
    used = append_text(message, MESSAGE_SIZE, used, ": ");
    if (operation) { used = append_text(message, MESSAGE_SIZE, used, "%s: ", operation); }
    t->why = (int)used;
    append_v(message, MESSAGE_SIZE, used, format, arguments);
    call_handler();
    return status;
}

__attribute__((noinline)) tn_status tn__raise(tn_status status, const char *operation,
                                              const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    raise_v(status, operation, format, arguments);
    va_end(arguments);
    return status;
}

tn_status tn__raise_again(const char *operation, const char *format, ...) {
    tn_status status = tn__self.error;
    char context[MESSAGE_SIZE], why[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof(context), format, arguments);
    va_end(arguments);
    snprintf(why, sizeof(why), "%s", tn__error_why());
    tn_error_clear();
    return tn__raise(status, operation, "%s: %s", context, why);
}

bool tn__options_made(bool made, const char *operation, const char *what) {
    return made || tn__fail(TN_EVALUE, operation,
                            "the options are not from %s_defaults(), so members without a value "
                            "are 0: write TN_WITH(%s, .member = value)",
                            what, what);
}

tn_status tn_raise(tn_status status, const char *format, ...) {
    if (tn__self.error != TN_OK) { return status; }
    char text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    text[0] = 0;
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return tn__raise(status, NULL, "%s", text);
}

tn_status tn_error(void) {
    return tn__self.error;
}

const char *tn_error_message(void) {
    return tn__self.error == TN_OK ? "" : shown_message();
}

void tn_error_clear(void) {
    tn__self.error = TN_OK;
}

bool tn_error_take(tn_error_record *record) {
    if (tn__self.error == TN_OK) { return false; }
    if (record) {
        record->status = tn__self.error;
        memcpy(record->message, shown_message(), MESSAGE_SIZE);
        record->why = tn__thread_texts()->why;
    }
    tn__self.error = TN_OK;
    return true;
}

void tn_error_give(const tn_error_record *record) {
    if (!record || record->status == TN_OK || tn__self.error != TN_OK) { return; }
    tn__self.error = record->status;
    tn__texts *t = tn__thread_texts();
    snprintf(t->message, MESSAGE_SIZE, "%.*s", MESSAGE_SIZE - 1, record->message);
    tn__plain_lines(t->message);
    t->why = (size_t)record->why < strlen(t->message) ? record->why : 0;
    tn__thread_stack()->pending = false;
    call_handler();
}

void tn_on_error(tn_error_handler handler) {
    __atomic_store_n(&process_handler, handler, __ATOMIC_RELEASE);
}

void tn_on_error_thread(tn_error_handler handler) {
    thread_handler = handler;
}

void tn_error_exit(tn_status status, const char *text) {
    bool named = status != TN_OK;
    fprintf(stderr, "%s%s%s%s\n", text ? text : "", named ? " [" : "",
            named ? tn_status_name(status) : "", named ? "]" : "");
    exit(exit_status);
}

void tn__exit_with(int status) {
    exit_status = status;
}

const char *tn_status_name(tn_status status) {
    static const char *const names[] = {
        "TN_OK",           "TN_ESHAPE", "TN_EDTYPE",    "TN_EDEVICE", "TN_EINDEX",
        "TN_EVALUE",       "TN_ESTATE", "TN_ENOMEM",    "TN_EIO",     "TN_EFORMAT",
        "TN_EUNSUPPORTED", "TN_EPEER",  "TN_EMISMATCH",
    };
    _Static_assert(sizeof(names) / sizeof(names[0]) == TN_EMISMATCH + 1, "a name for every status");
    return (unsigned)status <= TN_EMISMATCH ? names[status] : "TN_UNKNOWN";
}
