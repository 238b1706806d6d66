/* A program's options from a table, through argp: --help, abbreviations and usage errors are those
 * of other GNU programs. */
#include "train/options.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/json_write.h"
#include "text/number.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_KEY = 256 }; /* for options without a letter: row i has FIRST_KEY + i */

static const double whole_most = 1e12;

/* A table with all its rows, and argp's. */
typedef struct table {
    tn_option *rows; /* [count], and an empty one */
    int count;
    const tn_option *arguments;  /* NULL: there may be none */
    struct argp_option *options; /* one per row, and one with underscores */
    const char **given;          /* [count] the last text, "" of a flag; NULL: not given */
    bool again;                  /* it has a run's options, and so --again */
} table;

/* ---- Values ---------------------------------------------------------------------------------- */

/* "a whole number from 1 to 3", "a number above 0" */
static void describe_number(const tn_option *o, char *text, size_t size) {
    const char *what = o->whole ? "a whole number" : "a number", *word = o->word;
    int digits = o->whole ? 19 : 9;
    bool limited = o->most > 0 && isfinite(o->most), from = o->least > 0 || o->zero || o->whole;
    double first = o->least > 0 || o->zero || !o->whole ? o->least : 1;
    char most[40] = "", least[40] = " above 0";
    if (from && (limited || o->least > 0 || o->zero)) {
        snprintf(least, sizeof(least), " %s %.*g", limited ? "from" : ">=", digits, first);
    }
    if (limited) {
        snprintf(most, sizeof(most), "%s%.*g", from ? " to " : ", up to ", digits, o->most);
    }
    snprintf(text, size, "%s%s%s%s%s", what, least, most, word ? ", or " : "", word ? word : "");
}

static void parse_number(const tn_option *o, const char *text) {
    int64_t whole = -1;
    double value = 0, most = o->most > 0 ? o->most : o->whole ? whole_most : INFINITY;
    bool word = o->word && strcmp(text, o->word) == 0;
    bool read = o->whole ? tn__whole_from(text, &whole) : tn__real_from(text, &value);
    value = o->whole ? (double)whole : value;
    bool fits = read && isfinite(value) && (o->zero ? value >= 0 : value > 0) &&
                value >= o->least && value <= most;
    if (!word && !fits) {
        char wanted[128];
        describe_number(o, wanted, sizeof(wanted));
        tn_options_refuse("--%s: \"%s\" should be %s", o->name, text, wanted);
    } else if (o->whole) {
        *o->whole = word ? -1 : whole;
    } else {
        *o->real = value;
    }
}

/* "f32, bf16 or f16" */
static void list_choices(const tn_option *o, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; o->choices[i] && used < size; i++) {
        const char *between = i == 0 ? "" : o->choices[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(text + used, size - used, "%s%s", between, o->choices[i]);
    }
}

static void parse_choice(const tn_option *o, const char *text) {
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], text) == 0) {
            *o->choice = i;
            return;
        }
    }
    char choices[512];
    list_choices(o, choices, sizeof(choices));
    tn_options_refuse("--%s: \"%s\" should be %s", o->name, text, choices);
}

static void parse_value(const tn_option *o, const char *text) {
    if (o->read) {
        o->read(text, o->to);
    } else if (o->flag) {
        *o->flag = true;
    } else if (o->text) {
        *o->text = text;
    } else if (o->choice) {
        parse_choice(o, text);
    } else {
        parse_number(o, text);
    }
}

/* ---- The table ------------------------------------------------------------------------------- */

/* The default as shown by --help; "": none. */
static void default_text(const tn_option *o, char *text, size_t size) {
    size_t length = o->help ? strlen(o->help) : 0;
    *text = 0;
    if (length && o->help[length - 1] == ')') { return; }
    if (o->text && *o->text) {
        snprintf(text, size, "%s", *o->text);
    } else if (o->whole && *o->whole >= !o->zero) {
        snprintf(text, size, "%lld", (long long)*o->whole);
    } else if (o->real && (*o->real > 0 || o->zero)) {
        snprintf(text, size, "%g", *o->real);
    } else if (o->choice && *o->choice >= 0) {
        snprintf(text, size, "%s", o->choices[*o->choice]);
    }
}

/* The caller frees; NULL: out of memory. */
static char *help_text(const tn_option *o) {
    char value[256], choices[512] = "";
    default_text(o, value, sizeof(value));
    if (o->choice && !strchr(o->value, '|')) { list_choices(o, choices, sizeof(choices)); }
    const char *help = o->help ? o->help : "";
    size_t size = strlen(help) + sizeof(value) + sizeof(choices) + 8;
    char *text = tn__malloc(size);
    if (text) {
        const char *given = o->needed ? "needed" : value;
        snprintf(text, size, "%s%s%s%s%s%s", help, *choices ? ": " : "", choices,
                 *given ? " (" : "", given, *given ? ")" : "");
    }
    return text;
}

static bool row_ends(const tn_option *o) {
    return !o->name && !o->help && !o->setup && !o->run && !o->value;
}

static void add_rows(table *t, const tn_option *rows) {
    for (; !row_ends(rows); rows++) {
        if (rows->setup) {
            t->count += tn__setup_options(rows->setup, t->rows + t->count);
        } else if (rows->run) {
            t->count += tn__run_options(rows->run, t->rows + t->count);
            t->again = true;
        } else if (!rows->name && rows->value) {
            t->arguments = rows;
        } else {
            tn_option *row = &t->rows[t->count++];
            *row = *rows;
            bool takes = row->name && !row->flag && !row->read;
            row->value = takes && !row->value ? "VALUE" : row->value;
        }
    }
}

/* Adds to `to` a name that has hyphens with underscores too, as in torchrun and argparse; false
 * when out of memory. */
static bool add_spelling(const tn_option *o, struct argp_option **to) {
    if (!o->name || !strchr(o->name, '-')) { return true; }
    char *name = tn__strdup(o->name);
    for (char *c = name; c && *c; c++) {
        *c = (char)(*c == '-' ? '_' : *c);
    }
    *(*to)++ = (struct argp_option){.name = name, .flags = OPTION_ALIAS | OPTION_HIDDEN};
    return name != NULL;
}

/* A heading begins a group of options, which --help sorts by name. */
static bool fill_argp(table *t) {
    int group = 0;
    struct argp_option *to = t->options;
    bool filled = true;
    for (int i = 0; i < t->count && filled; i++) {
        const tn_option *o = &t->rows[i];
        group += !o->name;
        if (o->name || *o->help) {
            char *help = help_text(o);
            *to++ = (struct argp_option){.name = o->name,
                                         .key = !o->name    ? 0
                                                : o->letter ? o->letter
                                                            : FIRST_KEY + i,
                                         .arg = o->flag ? NULL : o->value,
                                         .flags = o->hidden ? OPTION_HIDDEN : 0,
                                         .doc = help,
                                         .group = group};
            filled = help && add_spelling(o, &to);
        }
    }
    return filled;
}

static void table_free(table *t) {
    for (struct argp_option *o = t->options; o && (o->name || o->doc); o++) {
        free((char *)o->doc);
        if (o->flags & OPTION_ALIAS) { free((char *)o->name); }
    }
    free(t->options);
    free(t->rows);
    free(t->given);
}

/* False when out of memory. */
static bool table_make(table *t, const tn_option *rows) {
    size_t count = 1;
    for (int i = 0; !row_ends(&rows[i]); i++) {
        count += rows[i].setup || rows[i].run ? TN__OPTION_ROWS : 1;
    }
    *t = (table){.rows = tn__calloc(count, sizeof(*t->rows)),
                 .options = tn__calloc(2 * count, sizeof(*t->options)),
                 .given = tn__calloc(count, sizeof(*t->given))};
    if (!t->rows || !t->options || !t->given) { return false; }
    add_rows(t, rows);
    return fill_argp(t);
}

/* ---- Parsing --------------------------------------------------------------------------------- */

static void put_value(tn__buffer *j, const tn_option *o, const char *given) {
    if (o->read && given) {
        tn__json_put_string(j, given);
    } else if (o->flag) {
        tn__buffer_text(j, *o->flag ? "true" : "false");
    } else if (o->text && *o->text) {
        tn__json_put_string(j, *o->text);
    } else if (o->whole) {
        tn__buffer_format(j, "%lld", (long long)*o->whole);
    } else if (o->real) {
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        tn__buffer_text(j, tn__number_of(*o->real).text);
        tn__plain_numbers_end(numbers);
    } else if (o->choice && *o->choice >= 0) {
        tn__json_put_string(j, o->choices[*o->choice]);
    } else {
        tn__buffer_text(j, "null");
    }
}

/* {"steps": 100, ...}: all options; what a function reads as it was given. NULL: no memory. */
static char *values_text(const table *t) {
    tn__buffer j = {0};
    const char *between = "{";
    for (int i = 0; i < t->count; i++) {
        const tn_option *o = &t->rows[i];
        if (o->name && o->read != tn__record_refuse) {
            tn__buffer_text(&j, between);
            tn__json_put_string(&j, o->name);
            tn__buffer_text(&j, ": ");
            put_value(&j, o, t->given[i]);
            between = ", ";
        }
    }
    tn__buffer_text(&j, *between == '{' ? "{}" : "}");
    return tn__buffer_take(&j);
}

static error_t parse_argument(const table *t, char *text, struct argp_state *state) {
    if (t->arguments && t->arguments->rest) {
        *t->arguments->rest = &state->argv[state->next - 1];
        state->next = state->argc;
    } else if (t->arguments) {
        t->arguments->read(text, t->arguments->to);
    }
    return t->arguments ? 0 : ARGP_ERR_UNKNOWN;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    table *t = state->input;
    if (key == ARGP_KEY_ARG) { return parse_argument(t, text, state); }
    for (int i = 0; i < t->count; i++) {
        const tn_option *o = &t->rows[i];
        if (key == ARGP_KEY_END && o->needed && !t->given[i]) {
            tn_options_refuse("--%s %s is missing", o->name, o->value);
        }
        if (key > 0 && o->name && key == (o->letter ? o->letter : FIRST_KEY + i)) {
            t->given[i] = text ? text : "";
            parse_value(o, t->given[i]);
            return 0;
        }
    }
    return ARGP_ERR_UNKNOWN;
}

tn_status tn_options_parse(int argc, char **argv, const char *about, const tn_option *rows) {
    if (argc < 1 || !argv || !rows || tn__pending()) {
        return tn__raise(TN_EVALUE, "options_parse", "%s",
                         rows ? "there are no arguments" : "the table is NULL");
    }
    tn__line_keep(argc, argv);
    table t;
    if (!table_make(&t, rows)) {
        tn__raise(TN_ENOMEM, "options_parse", "no memory");
    } else if (!t.again || tn__record_expand(&argc, &argv)) {
        const struct argp parser = {.options = t.options,
                                    .parser = parse_option,
                                    .args_doc = t.arguments ? t.arguments->value : NULL,
                                    .doc = about};
        tn__line_keep(argc, argv);
        argp_parse(&parser, argc, argv, t.arguments && t.arguments->rest ? ARGP_IN_ORDER : 0, NULL,
                   &t);
        tn__line_keep_values(values_text(&t));
    }
    table_free(&t);
    return tn_error();
}
