/* What is searched: ranges and choices, a trial's values, and the whole as text. */
#include "core/error.h"
#include "core/buffer.h"
#include "core/memory.h"
#include "text/number.h"
#include "text/plain_numbers.h"
#include "train/search/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is searched ------------------------------------------------------------------------ */

/* Adds a named value to the space; NULL after raising. */
static tn__searched *space_add(tn_search *s, const char *name, const void *value) {
    const char *wrong =
        !s         ? "the search is NULL"
        : s->began ? "the search has begun"
        : !name || !*name || strlen(name) >= sizeof(s->space->name) || strpbrk(name, " ,\n")
            ? "that is not a name"
        : !value                              ? "the variable is NULL"
        : s->space_count == TN__MOST_SEARCHED ? "these are too many"
                                              : NULL;
    if (wrong || tn__pending()) {
        return tn__fail_null(TN_EVALUE, "search", "%s: %s", name ? name : "NULL",
                             wrong ? wrong : "");
    }
    tn__searched *v = &s->space[s->space_count++];
    strcpy(v->name, name);
    return v;
}

static tn_status add_range(tn_search *s, const char *name, tn__searched range, const void *value) {
    bool empty = range.whole ? range.least > range.most : !(range.low < range.high);
    if (empty || !isfinite(range.high - range.low) || (range.log && range.low <= 0)) {
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
    tn__searched range = {
        .whole = value, .low = (double)low, .high = (double)high + 1, .least = low, .most = high};
    return add_range(s, name, range, value);
}

static tn_status add_choices(tn_search *s, const char *name, tn__searched list, const void *value,
                             const void *choices, size_t size) {
    if (!choices || list.count < 1 || list.count > TN__MOST_TRIALS) {
        return tn__raise(TN_EVALUE, "search", "%s: a choice of %d", name ? name : "NULL",
                         choices ? list.count : 0);
    }
    tn__searched *v = space_add(s, name, value);
    if (!v) { return tn_error(); }
    list.choices = tn__malloc_for((size_t)list.count * size, "search");
    if (!list.choices) {
        s->space_count--; /* there is no variable to set */
        return tn_error();
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

static int64_t draw_whole(double part, int64_t least, int64_t most) {
    uint64_t last = (uint64_t)most - (uint64_t)least;
    double at = floor(part * ((double)last + 1));
    return (int64_t)((uint64_t)least + (at < (double)last ? (uint64_t)at : last));
}

static void draw_range(const tn__searched *v, double part, tn__setting *setting) {
    if (v->whole) {
        setting->whole = draw_whole(part, v->least, v->most);
        return;
    }
    double low = v->log ? log(v->low) : v->low, high = v->log ? log(v->high) : v->high;
    double value = low + part * (high - low);
    value = fmax(v->low, v->log ? exp(value) : value);
    setting->real = value < v->high ? value : nextafter(v->high, v->low); /* despite rounding */
}

void tn__search_draw(const tn_search *s, int64_t trial, tn__setting *settings) {
    tn_generator g = {.seed = s->options.seed, .stream = (uint64_t)trial};
    int64_t left = trial; /* in a grid the last one varies fastest */
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

const char *tn__search_value(const tn__searched *v, const tn__setting *setting,
                             char number[TN__SEARCH_VALUE]) {
    if (v->real) {
        snprintf(number, TN__SEARCH_VALUE, "%.6g", setting->real);
    } else if (v->whole) {
        snprintf(number, TN__SEARCH_VALUE, "%lld", (long long)setting->whole);
    }
    return v->text ? setting->text : number;
}

/* ---- As text --------------------------------------------------------------------------------- */

char *tn__search_describe(const tn_search *s, int64_t trial) {
    tn__buffer t = {.operation = "search"};
    tn__setting settings[TN__MOST_SEARCHED];
    tn__search_draw(s, trial, settings);
    for (int i = 0; i < s->space_count; i++) {
        char number[TN__SEARCH_VALUE];
        tn__buffer_format(&t, "%s%s ", i ? ", " : "", s->space[i].name);
        tn__buffer_text(&t, tn__search_value(&s->space[i], &settings[i], number));
    }
    return tn__buffer_take(&t);
}

/* Users are shown six digits; here all count. */
static void put_searched(tn__buffer *t, const tn__searched *v) {
    tn__buffer_text(t, v->name);
    if (!v->choices) {
        tn__buffer_format(t, " from %s to %s%s", tn__number_of(v->low).text,
                          tn__number_of(v->high).text,
                          v->log     ? " by its logarithm"
                          : v->whole ? ", whole"
                                     : "");
    }
    for (int k = 0; v->choices && k < v->count; k++) {
        char number[TN__SEARCH_VALUE];
        tn__setting setting = {0};
        draw_choice(v, k, &setting);
        tn__buffer_text(t, " ");
        tn__buffer_text(t, v->real ? tn__number_of(setting.real).text
                                   : tn__search_value(v, &setting, number));
    }
    tn__buffer_text(t, "\n");
}

char *tn__search_text(const tn_search *s) {
    const tn_search_options *o = &s->options;
    tn__buffer t = {.operation = "search"};
    tn__buffer_format(&t,
                      "seed %llu, steps %lld, first_steps %lld, factor %lld, "
                      "grid %d, larger_is_better %d\n",
                      (unsigned long long)o->seed, (long long)o->steps, (long long)o->first_steps,
                      (long long)o->factor, o->grid, o->larger_is_better);
    for (int i = 0; i < s->space_count; i++) {
        put_searched(&t, &s->space[i]);
    }
    return tn__buffer_take(&t);
}
