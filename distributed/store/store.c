/* The calls of store.h on any store: arguments, time-outs as deadlines, reasons as errors. */
#include "distributed/store/store.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "core/plain_text.h"

#include <math.h>
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

/* The deadline of calls without a time-out of their own. */
static double deadline_of(const tn_store *s) {
    return deadline_in(s->timeout > 0 ? s->timeout : TN_STORE_TIMEOUT);
}

static tn_status end_call(const char *operation, tn_status status, const char *why) {
    return status == TN_OK ? TN_OK : tn__raise(status, operation, "%s", why);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

tn_status tn_store_set(tn_store *s, const char *key, const void *data, size_t bytes) {
    char why[TN_STORE_WHY] = "";
    if (!call_sound("store_set", s, key) || !sound_value("store_set", key, data, bytes)) {
        return tn_error();
    }
    return end_call("store_set", s->set(s, key, data, bytes, deadline_of(s), why), why);
}

/* Adds a 0 after the value, so that text can be read as text. */
static tn_status terminate_value(const char *operation, tn_store_value *value) {
    char *longer = tn__realloc(value->data, value->bytes + 1);
    if (!longer) {
        free(value->data);
        return tn__raise(TN_ENOMEM, operation, "no memory for a value of %zu bytes", value->bytes);
    }
    longer[value->bytes] = 0;
    value->data = longer;
    return TN_OK;
}

tn_status tn_store_get(tn_store *s, const char *key, void **data, size_t *bytes, double timeout) {
    char why[TN_STORE_WHY] = "";
    tn_store_value value = {0};
    if (data) { *data = NULL; }
    if (bytes) { *bytes = 0; }
    if (!call_sound("store_get", s, key) || !sound_result("store_get", data) ||
        !sound_timeout("store_get", timeout)) {
        return tn_error();
    }
    tn_status status = s->get(s, key, &value, deadline_in(timeout), why);
    if (status != TN_OK) { return end_call("store_get", status, why); }
    if (terminate_value("store_get", &value) != TN_OK) { return TN_ENOMEM; }
    *data = value.data;
    if (bytes) { *bytes = value.bytes; }
    return TN_OK;
}

tn_status tn_store_add(tn_store *s, const char *key, int64_t amount, int64_t *result) {
    char why[TN_STORE_WHY] = "";
    int64_t sum = 0;
    if (!call_sound("store_add", s, key)) { return tn_error(); }
    tn_status status = s->add(s, key, amount, &sum, deadline_of(s), why);
    if (status == TN_OK && result) { *result = sum; }
    return end_call("store_add", status, why);
}

static tn_store_value value_of(const char *text) {
    return (tn_store_value){.data = (void *)(uintptr_t)text, .bytes = text ? strlen(text) : 0};
}

tn_status tn_store_compare_set(tn_store *s, const char *key, const char *expected,
                               const char *desired, bool *is_set) {
    const char *operation = "store_compare_set";
    char why[TN_STORE_WHY] = "";
    if (is_set) { *is_set = false; }
    if (!call_sound(operation, s, key)) { return tn_error(); }
    tn_store_value from = value_of(expected), to = value_of(desired), now = {0};
    if (to.bytes == 0) {
        return tn__raise(TN_EVALUE, operation, "the text to set \"%.120s\" to is %s", key,
                         desired ? "empty" : "NULL");
    }
    if (!sound_value(operation, key, from.data, from.bytes) ||
        !sound_value(operation, key, to.data, to.bytes)) {
        return tn_error();
    }
    tn_status status = s->compare_set(s, key, &from, &to, &now, deadline_of(s), why);
    if (status == TN_OK && is_set) {
        *is_set = now.bytes == to.bytes && memcmp(now.data, to.data, to.bytes) == 0;
    }
    free(now.data);
    return end_call(operation, status, why);
}

tn_status tn_store_check(tn_store *s, const char *key, bool *exists) {
    char why[TN_STORE_WHY] = "";
    if (exists) { *exists = false; }
    if (!call_sound("store_check", s, key) || !sound_result("store_check", exists)) {
        return tn_error();
    }
    return end_call("store_check", s->check(s, key, exists, deadline_of(s), why), why);
}

tn_status tn_store_delete(tn_store *s, const char *key, bool *existed) {
    char why[TN_STORE_WHY] = "";
    bool was = false;
    if (!call_sound("store_delete", s, key)) { return tn_error(); }
    tn_status status = s->remove(s, key, &was, deadline_of(s), why);
    if (existed) { *existed = status == TN_OK && was; }
    return end_call("store_delete", status, why);
}

/* ---- Several keys ---------------------------------------------------------------------------- */

/* Lists the missing keys from `first` on, as text. Asks the store briefly after the deadline. */
static void list_missing(tn_store *s, const char *const *keys, int first, int n, char *text,
                         size_t size) {
    char why[TN_STORE_WHY];
    double deadline = deadline_in(1);
    size_t used = 0;
    int missing = 0, named = 0;
    for (int i = first; i < n; i++) {
        bool exists = false;
        if (s->check(s, keys[i], &exists, deadline, why) == TN_OK && exists) { continue; }
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
    char why[TN_STORE_WHY] = "", missing[512] = "";
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
        tn_store_value value = {0};
        tn_status status = s->get(s, keys[i], &value, deadline, why);
        free(value.data);
        if (status == TN_EPEER && tn__now() >= deadline) {
            list_missing(s, keys, i, n, missing, sizeof(missing));
        }
        if (status != TN_OK && !*missing) { return end_call(operation, status, why); }
        if (status != TN_OK) {
            return tn__raise(status, operation,
                             "still missing after %.1f seconds: %s (of %d keys): %s",
                             tn__now() - begin, missing, n, why);
        }
    }
    return TN_OK;
}
