/* The calls of store.h on any store: arguments, time-outs as deadlines, reasons as errors. */
#include "distributed/store/store.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "core/plain_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- What stores use ------------------------------------------------------------------------- */

tn_status tn__why(char *why, tn_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, TN_STORE_WHY, format, arguments);
    va_end(arguments);
    why[tn__plain_text(why, why, strlen(why))] = 0; /* a peer's text may be in it */
    return status;
}

tn_status tn__store_late(tn_store_call *c, double seconds) {
    return tn__why(c->why, TN_EPEER, "\"%.120s\" was not set within %.1f seconds", c->key, seconds);
}

tn_status tn__store_put(tn_store *s, const char *key, const void *data, size_t bytes,
                        double deadline, char *why) {
    tn_store_call c = {
        .kind = TN_STORE_SET, .key = key, .data = data, .bytes = bytes, .deadline = deadline};
    tn_status status = s->run(s, &c);
    if (why) { memcpy(why, c.why, TN_STORE_WHY); }
    return status;
}

char *tn__store_text(tn_store_call *c) {
    char *text = tn__realloc(c->value.data, c->value.bytes + 1);
    if (text) {
        text[c->value.bytes] = 0;
    } else {
        free(c->value.data);
        tn__why(c->why, TN_ENOMEM, "no memory for a value of %zu bytes", c->value.bytes);
    }
    return text;
}

bool tn__rest_until(double *pause, double longest, double deadline) {
    double left = deadline - tn__now();
    if (left > 0) {
        struct timespec t = {.tv_nsec = (long)(fmin(*pause, left) * 1e9)};
        nanosleep(&t, NULL);
        *pause = fmin(2 * *pause, longest);
    }
    return left > 0;
}

bool tn__store_key(const char *key) {
    size_t length = 0;
    for (; key && key[length]; length++) {
        unsigned char c = (unsigned char)key[length];
        if (length == TN_STORE_KEY || c <= ' ' || c == 127) { return false; }
    }
    return length > 0;
}

tn_store *tn__store_keep(tn_store *s) {
    if (s) { __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED); }
    return s;
}

void tn_store_free(tn_store *s) {
    if (s && !tn__inherited(s->process) && __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        s->destroy(s);
    }
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* A year: more would mean "no limit", which no call has. */
#define LONGEST (365.0 * 24 * 3600)

static bool call_sound(const char *operation, const tn_store *s, const char *key) {
    if (tn__pending()) { return false; }
    if (!s) {
        tn__raise(TN_EVALUE, operation, "the store is NULL");
    } else if (!tn__store_key(key)) {
        tn__raise(
            TN_EVALUE, operation,
            "the key is \"%.60s\" (must be 1 to %d bytes without spaces and control characters)",
            key ? key : "(NULL)", TN_STORE_KEY);
    } else {
        tn__refuse_inherited(s->process, operation, "the store");
    }
    return !tn__pending();
}

static bool sound_value(const char *operation, const char *key, const void *data, size_t bytes) {
    if (bytes > TN_STORE_VALUE) {
        tn__raise(TN_EVALUE, operation,
                  "\"%.120s\" would have %zu bytes, but a value has at most %d", key, bytes,
                  TN_STORE_VALUE);
    } else if (!data && bytes) {
        tn__raise(TN_EVALUE, operation, "the data of \"%.120s\" is NULL, but has %zu bytes", key,
                  bytes);
    }
    return !tn__pending();
}

static bool sound_timeout(const char *operation, double timeout) {
    if (!(timeout >= 0)) {
        tn__raise(TN_EVALUE, operation, "the time-out is %g seconds (must be at least 0)", timeout);
    }
    return !tn__pending();
}

static bool sound_result(const char *operation, const void *result) {
    if (!result) { tn__raise(TN_EVALUE, operation, "the pointer for the result is NULL"); }
    return result != NULL;
}

static double deadline_in(double timeout) {
    return tn__now() + fmin(timeout, LONGEST);
}

/* Asks the store, within its own time-out if the call has no deadline; raises what goes wrong. */
static tn_status run_call(const char *operation, tn_store *s, tn_store_call *c) {
    if (!c->deadline) { c->deadline = deadline_in(s->timeout > 0 ? s->timeout : TN_STORE_TIMEOUT); }
    tn_status status = s->run(s, c);
    return status == TN_OK ? TN_OK : tn__raise(status, operation, "%s", c->why);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

tn_status tn_store_set(tn_store *s, const char *key, const void *data, size_t bytes) {
    if (!call_sound("store_set", s, key) || !sound_value("store_set", key, data, bytes)) {
        return tn_error();
    }
    tn_store_call c = {.kind = TN_STORE_SET, .key = key, .data = data, .bytes = bytes};
    return run_call("store_set", s, &c);
}

tn_status tn_store_get(tn_store *s, const char *key, void **data, size_t *bytes, double timeout) {
    if (data) { *data = NULL; }
    if (bytes) { *bytes = 0; }
    if (!call_sound("store_get", s, key) || !sound_result("store_get", data) ||
        !sound_timeout("store_get", timeout)) {
        return tn_error();
    }
    tn_store_call c = {.kind = TN_STORE_GET, .key = key, .deadline = deadline_in(timeout)};
    tn_status status = run_call("store_get", s, &c);
    if (status != TN_OK) { return status; }
    *data = tn__store_text(&c);
    if (!*data) { return tn__raise(TN_ENOMEM, "store_get", "%s", c.why); }
    if (bytes) { *bytes = c.value.bytes; }
    return TN_OK;
}

tn_status tn_store_add(tn_store *s, const char *key, int64_t amount, int64_t *result) {
    if (!call_sound("store_add", s, key)) { return tn_error(); }
    tn_store_call c = {.kind = TN_STORE_ADD, .key = key, .number = amount};
    tn_status status = run_call("store_add", s, &c);
    if (status == TN_OK && result) { *result = c.number; }
    return status;
}

tn_status tn_store_compare_set(tn_store *s, const char *key, const char *expected,
                               const char *desired, bool *is_set) {
    static const char *const operation = "store_compare_set";
    if (is_set) { *is_set = false; }
    if (!call_sound(operation, s, key)) { return tn_error(); }
    tn_store_call c = {.kind = TN_STORE_COMPARE_SET,
                       .key = key,
                       .data = desired,
                       .bytes = desired ? strlen(desired) : 0,
                       .expected = expected,
                       .expected_bytes = expected ? strlen(expected) : 0};
    if (c.bytes == 0) {
        return tn__raise(TN_EVALUE, operation, "the text to set \"%.120s\" to is %s", key,
                         desired ? "empty" : "NULL");
    }
    if (!sound_value(operation, key, expected, c.expected_bytes) ||
        !sound_value(operation, key, desired, c.bytes)) {
        return tn_error();
    }
    tn_status status = run_call(operation, s, &c);
    if (status == TN_OK && is_set) {
        *is_set = c.value.bytes == c.bytes && memcmp(c.value.data, desired, c.bytes) == 0;
    }
    free(c.value.data);
    return status;
}

tn_status tn_store_check(tn_store *s, const char *key, bool *exists) {
    if (exists) { *exists = false; }
    if (!call_sound("store_check", s, key) || !sound_result("store_check", exists)) {
        return tn_error();
    }
    tn_store_call c = {.kind = TN_STORE_CHECK, .key = key};
    tn_status status = run_call("store_check", s, &c);
    *exists = status == TN_OK && c.number;
    return status;
}

tn_status tn_store_delete(tn_store *s, const char *key, bool *existed) {
    if (!call_sound("store_delete", s, key)) { return tn_error(); }
    tn_store_call c = {.kind = TN_STORE_DELETE, .key = key};
    tn_status status = run_call("store_delete", s, &c);
    if (existed) { *existed = status == TN_OK && c.number; }
    return status;
}

/* ---- Several keys ---------------------------------------------------------------------------- */

/* Lists the missing keys from `first` on, as text. Asks the store briefly after the deadline. */
static void list_missing(tn_store *s, const char *const *keys, int first, int n, char *text,
                         size_t size) {
    double deadline = deadline_in(1);
    size_t used = 0;
    int missing = 0, named = 0;
    for (int i = first; i < n; i++) {
        tn_store_call c = {.kind = TN_STORE_CHECK, .key = keys[i], .deadline = deadline};
        if (s->run(s, &c) == TN_OK && c.number) { continue; }
        missing++;
        if (used + strlen(keys[i]) + 32 < size) {
            used +=
                (size_t)snprintf(text + used, size - used, "%s\"%s\"", named ? ", " : "", keys[i]);
            named++;
        }
    }
    if (missing > named) { snprintf(text + used, size - used, " and %d more", missing - named); }
}

tn_status tn_store_wait(tn_store *s, const char *const *keys, int n, double timeout) {
    const char *operation = "store_wait";
    char missing[512] = "";
    if (tn__pending()) { return tn_error(); }
    if (n < 0 || (n && !keys)) {
        return tn__raise(TN_EVALUE, operation, "%d keys at %p", n, (const void *)keys);
    }
    for (int i = 0; i < n; i++) {
        if (!call_sound(operation, s, keys[i])) { return tn_error(); }
    }
    if (!sound_timeout(operation, timeout)) { return tn_error(); }
    double begin = tn__now(), deadline = deadline_in(timeout);
    for (int i = 0; i < n; i++) {
        tn_store_call c = {.kind = TN_STORE_GET, .key = keys[i], .deadline = deadline};
        tn_status status = s->run(s, &c);
        free(c.value.data);
        if (status == TN_EPEER && tn__now() >= deadline) {
            list_missing(s, keys, i, n, missing, sizeof(missing));
        }
        if (status != TN_OK && !*missing) { return tn__raise(status, operation, "%s", c.why); }
        if (status != TN_OK) {
            return tn__raise(status, operation,
                             "still missing after %.1f seconds: %s (of %d keys): %s",
                             tn__now() - begin, missing, n, c.why);
        }
    }
    return TN_OK;
}
