/* What is searched: ranges and choices, a trial's values, and the whole as text. */
#include "core/error.h"
#include "core/memory.h"
#include "core/number.h"
#include "io/numbers.h"
#include "train/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is searched ------------------------------------------------------------------------ */

/* The next of the space, with its name; NULL after raising. */
static tn__searched *space_add(tn_search *s, const char *name, const void *value) {
    const char *wrong =
        !s         ? "the search is NULL"
        : s->began ? "the search has begun"
        : !name || !*name || strlen(name) >= sizeof(s->space->name) || strpbrk(name, " ,\n")
            ? "that is no name"
        : !value                              ? "the variable is NULL"
        : s->space_count == TN__MOST_SEARCHED ? "these are too many"
                                              : NULL;
    if (wrong || tn__pending()) {
        tn__raise(TN_EVALUE, "search", "%s: %s", name ? name : "NULL", wrong ? wrong : "");
        return NULL;
    }
    tn__searched *v = &s->space[s->space_count++];
    strcpy(v->name, name);
    return v;
}

static tn_status add_range(tn_search *s, const char *name, tn__searched range, const void *value) {
    if (!(range.low < range.high) || !isfinite(range.high - range.low) ||
        (range.log && range.low <= 0)) {
        return tn__raise(TN_EVALUE, "search", "%s: from %g to %g%s", name ? name : "NULL",
                         range.low, range.high, range.log ? " by its logarithm" : "");
    }
    tn__searched *v = space_add(s, name, value);
    if (v) {
        memcpy(range.name, v->name, sizeof(range.name));
        *v = range;
    }
    return tn_error();
}

tn_status tn_search_real(tn_search *s, const char *name, double *value, double low, double high) {
    return add_range(s, name, (tn__searched){.real = value, .low = low, .high = high}, value);
}

tn_status tn_search_log_real(tn_search *s, const char *name, double *value, double low,
                             double high) {
    return add_range(s, name, (tn__searched){.real = value, .low = low, .high = high, .log = true},
                     value);
}

tn_status tn_search_whole(tn_search *s, const char *name, int64_t *value, int64_t low,
                          int64_t high) {
    tn__searched range = {.whole = value, .low = (double)low, .high = (double)high + 1};
    return add_range(s, name, range, value);
}

static tn_status add_choices(tn_search *s, const char *name, tn__searched list, const void *value,
                             const void *choices, size_t size) {
    if (!choices || list.count < 1 || list.count > TN__MOST_TRIALS) {
        return tn__raise(TN_EVALUE, "search", "%s: a choice of %d", name ? name : "NULL",
                         choices ? list.count : 0);
    }
    tn__searched *v = space_add(s, name, value);
    if (!v) {
        return tn_error();
    }
    list.choices = tn__malloc((size_t)list.count * size);
    if (!list.choices) {
        s->space_count--; /* it has no place to be set in */
        return tn__raise(TN_ENOMEM, "search", "no memory for %d choices", list.count);
    }
    memcpy(list.choices, choices, (size_t)list.count * size);
    memcpy(list.name, v->name, sizeof(list.name));
    *v = list;
    return TN_OK;
}

tn_status tn_search_choose(tn_search *s, const char *name, double *value, const double *choices,
                           int n) {
    return add_choices(s, name, (tn__searched){.real = value, .count = n}, value, choices,
                       sizeof(*choices));
}

tn_status tn_search_choose_whole(tn_search *s, const char *name, int64_t *value,
                                 const int64_t *choices, int n) {
    return add_choices(s, name, (tn__searched){.whole = value, .count = n}, value, choices,
                       sizeof(*choices));
}

tn_status tn_search_choose_text(tn_search *s, const char *name, const char **value,
                                const char *const *choices, int n) {
    return add_choices(s, name, (tn__searched){.text = value, .count = n}, value, choices,
                       sizeof(*choices));
}

/* ---- A trial's values ------------------------------------------------------------------------ */

static void draw_choice(const tn__searched *v, int64_t at, tn__setting *setting) {
    if (v->real) {
        setting->real = ((const double *)v->choices)[at];
    } else if (v->whole) {
        setting->whole = ((const int64_t *)v->choices)[at];
    } else {
        setting->text = ((const char *const *)v->choices)[at];
    }
}

static void draw_range(const tn__searched *v, double part, tn__setting *setting) {
    double low = v->log ? log(v->low) : v->low, high = v->log ? log(v->high) : v->high;
    double value = low + part * (high - low);
    setting->real = v->log ? exp(value) : value;
    setting->whole = v->whole ? (int64_t)floor(value) : 0;
}

void tn__search_draw(const tn_search *s, int64_t trial, tn__setting *settings) {
    tn_generator g = {.seed = s->options.seed, .stream = (uint64_t)trial};
    int64_t left = trial; /* of a grid: the last one changes first */
    for (int i = s->space_count - 1; i >= 0; i--) {
        const tn__searched *v = &s->space[i];
        if (s->options.grid) {
            draw_choice(v, left % v->count, &settings[i]);
            left /= v->count;
        } else if (v->choices) {
            draw_choice(v, (int64_t)tn_random_below(&g, (uint64_t)v->count), &settings[i]);
        } else {
            draw_range(v, tn_random_uniform(&g), &settings[i]);
        }
    }
}

void tn__search_set(const tn_search *s, int64_t trial) {
    tn__setting settings[TN__MOST_SEARCHED];
    tn__search_draw(s, trial, settings);
    for (int i = 0; i < s->space_count; i++) {
        const tn__searched *v = &s->space[i];
        if (v->real) {
            *v->real = settings[i].real;
        } else if (v->whole) {
            *v->whole = settings[i].whole;
        } else {
            *v->text = settings[i].text;
        }
    }
}

void tn__search_value(const tn__searched *v, const tn__setting *setting, char *text, size_t room) {
    if (v->real) {
        snprintf(text, room, "%.6g", setting->real);
    } else if (v->whole) {
        snprintf(text, room, "%lld", (long long)setting->whole);
    } else {
        snprintf(text, room, "%s", setting->text);
    }
}

void tn__search_describe(const tn_search *s, int64_t trial, char *text, size_t room) {
    size_t used = 0;
    *text = 0;
    tn__setting settings[TN__MOST_SEARCHED];
    tn__search_draw(s, trial, settings);
    for (int i = 0; i < s->space_count && used < room; i++) {
        char value[64];
        tn__search_value(&s->space[i], &settings[i], value, sizeof(value));
        used += (size_t)snprintf(text + used, room - used, "%s%s %s", i ? ", " : "",
                                 s->space[i].name, value);
    }
}

char *tn__search_text(const tn_search *s) {
    const tn_search_options *o = &s->options;
    size_t room = 1024;
    for (int i = 0; i < s->space_count; i++) {
        room += 256 + (size_t)s->space[i].count * 64;
    }
    char *text = tn__malloc(room);
    size_t used = 0;
    if (!text) {
        tn__raise(TN_ENOMEM, "search", "no memory");
        return NULL;
    }
    used += (size_t)snprintf(text, room,
                             "seed %llu, steps %lld, first_steps %lld, factor %lld, "
                             "grid %d, larger_is_better %d\n",
                             (unsigned long long)o->seed, (long long)o->steps,
                             (long long)o->first_steps, (long long)o->factor, o->grid,
                             o->larger_is_better);
    for (int i = 0; i < s->space_count; i++) {
        const tn__searched *v = &s->space[i];
        used += (size_t)snprintf(text + used, room - used, "%s", v->name);
        if (!v->choices) {
            used += (size_t)snprintf(text + used, room - used, " from %s to %s%s",
                                     tn__number_of(v->low).text, tn__number_of(v->high).text,
                                     v->log     ? " by its logarithm"
                                     : v->whole ? ", whole"
                                                : "");
        }
        for (int k = 0; v->choices && k < v->count; k++) {
            char value[64];
            tn__setting setting;
            draw_choice(v, k, &setting);
            tn__search_value(v, &setting, value, sizeof(value));
            used += (size_t)snprintf(text + used, room - used, " %.62s", value);
        }
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    return text;
}
