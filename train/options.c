/* A program's options by a table, through argp: --help, abbreviations and usage errors are those
 * of other GNU programs. */
#include "train/options.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/number.h"
#include "core/quote.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_KEY = 256 }; /* of options without a letter: row i has FIRST_KEY + i */

static const int64_t whole_most = 1000000000000;

/* The command line that was parsed last. */
static int line_count;
static char **line_words;

/* A table with the rows that it stands for, and argp's. */
typedef struct table {
    tn_option *rows; /* [count], and one with nothing */
    int count;
    struct argp_option *options;
    bool *given; /* [count] */
} table;

/* ---- Values ---------------------------------------------------------------------------------- */

/* "a whole number from 1 to 3", "a number above 0" */
static void describe_number(const tn_option *o, char *text, size_t room) {
    const char *what = o->whole ? "a whole number" : "a number", *word = o->word;
    char most[40] = "";
    if (o->most > 0) {
        snprintf(most, sizeof(most), "%s%g", o->whole || o->zero ? " to " : ", up to ", o->most);
    }
    const char *least = o->zero ? " from 0" : o->whole && o->most > 0 ? " from 1" : " above 0";
    snprintf(text, room, "%s%s%s%s%s%s", what, least, o->zero && !o->most ? " on" : "", most,
             word ? ", or " : "", word ? word : "");
}

static void refuse_number(const tn_option *o, const char *text, struct argp_state *state) {
    char wanted[128];
    describe_number(o, wanted, sizeof(wanted));
    argp_error(state, "--%s: \"%s\" should be %s", o->name, text, wanted);
}

static void parse_whole(const tn_option *o, const char *text, struct argp_state *state) {
    int64_t value, most = o->most > 0 ? (int64_t)o->most : whole_most;
    if (o->word && strcmp(text, o->word) == 0) {
        *o->whole = -1;
    } else if (!tn__whole_from(text, &value) || value < !o->zero || value > most) {
        refuse_number(o, text, state);
    } else {
        *o->whole = value;
    }
}

static void parse_real(const tn_option *o, const char *text, struct argp_state *state) {
    double value;
    bool fits = tn__real_from(text, &value) && isfinite(value) &&
                (o->zero ? value >= 0 : value > 0) && (o->most <= 0 || value <= o->most);
    if (fits) {
        *o->real = value;
    } else {
        refuse_number(o, text, state);
    }
}

/* "f32, bf16 or f16" */
static void list_choices(const tn_option *o, char *text, size_t room) {
    size_t used = 0;
    for (int i = 0; o->choices[i] && used < room; i++) {
        const char *between = i == 0 ? "" : o->choices[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(text + used, room - used, "%s%s", between, o->choices[i]);
    }
}

static void parse_choice(const tn_option *o, const char *text, struct argp_state *state) {
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], text) == 0) {
            *o->choice = i;
            return;
        }
    }
    char choices[512];
    list_choices(o, choices, sizeof(choices));
    argp_error(state, "--%s: \"%s\" should be %s", o->name, text, choices);
}

static void parse_value(const tn_option *o, char *text, struct argp_state *state) {
    if (o->flag) {
        *o->flag = true;
    } else if (o->text) {
        *o->text = text;
    } else if (o->whole) {
        parse_whole(o, text, state);
    } else if (o->real) {
        parse_real(o, text, state);
    } else {
        parse_choice(o, text, state);
    }
}

/* ---- The table ------------------------------------------------------------------------------- */

/* The default as --help shows it; "": there is none. */
static void default_text(const tn_option *o, char *text, size_t room) {
    *text = 0;
    if (o->text && *o->text) {
        snprintf(text, room, "%s", *o->text);
    } else if (o->whole && (*o->whole > 0 || o->zero)) {
        snprintf(text, room, "%lld", (long long)*o->whole);
    } else if (o->real && (*o->real > 0 || o->zero)) {
        snprintf(text, room, "%g", *o->real);
    } else if (o->choice && *o->choice >= 0) {
        snprintf(text, room, "%s", o->choices[*o->choice]);
    }
}

/* The caller frees; NULL: no memory. */
static char *help_text(const tn_option *o) {
    char value[256], choices[512] = "";
    default_text(o, value, sizeof(value));
    if (o->choice) {
        list_choices(o, choices, sizeof(choices));
    }
    const char *help = o->help ? o->help : "";
    size_t room = strlen(help) + sizeof(value) + sizeof(choices) + 8;
    char *text = tn__malloc(room);
    if (text) {
        const char *given = o->needed ? "needed" : value;
        snprintf(text, room, "%s%s%s%s%s%s", help, *choices ? ": " : "", choices,
                 *given ? " (" : "", given, *given ? ")" : "");
    }
    return text;
}

static bool row_ends(const tn_option *o) {
    return !o->name && !o->help && !o->setup && !o->run;
}

static void add_rows(table *t, const tn_option *rows) {
    for (; !row_ends(rows); rows++) {
        if (rows->setup) {
            t->count += tn__setup_options(rows->setup, t->rows + t->count);
        } else if (rows->run) {
            t->count += tn__run_options(rows->run, t->rows + t->count);
        } else {
            t->rows[t->count++] = *rows;
        }
    }
}

/* A heading begins a group of options, which --help sorts by their names. */
static bool fill_argp(table *t) {
    int group = 0;
    for (int i = 0; i < t->count; i++) {
        const tn_option *o = &t->rows[i];
        group += !o->name;
        char *help = help_text(o);
        t->options[i] = (struct argp_option){.name = o->name,
                                             .key = !o->name    ? 0
                                                    : o->letter ? o->letter
                                                                : FIRST_KEY + i,
                                             .arg = o->flag ? NULL : o->value,
                                             .doc = help,
                                             .group = group};
        if (!help) {
            return false;
        }
    }
    return true;
}

static void table_free(table *t) {
    for (int i = 0; t->options && i < t->count; i++) {
        free((char *)t->options[i].doc);
    }
    free(t->options);
    free(t->rows);
    free(t->given);
}

/* False when there is no memory. */
static bool table_make(table *t, const tn_option *rows) {
    size_t room = 1;
    for (int i = 0; !row_ends(&rows[i]); i++) {
        room += TN__OPTION_ROWS;
    }
    *t = (table){.rows = tn__calloc(room, sizeof(*t->rows)),
                 .options = tn__calloc(room, sizeof(*t->options)),
                 .given = tn__calloc(room, sizeof(*t->given))};
    if (!t->rows || !t->options || !t->given) {
        return false;
    }
    add_rows(t, rows);
    return fill_argp(t);
}

/* ---- Parsing --------------------------------------------------------------------------------- */

static void refuse_missing(const table *t, struct argp_state *state) {
    for (int i = 0; i < t->count; i++) {
        if (t->rows[i].needed && !t->given[i]) {
            argp_error(state, "--%s %s is missing", t->rows[i].name, t->rows[i].value);
        }
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    table *t = state->input;
    if (key == ARGP_KEY_END) {
        refuse_missing(t, state);
        return 0;
    }
    for (int i = 0; i < t->count && key > 0; i++) {
        if (t->options[i].key == key) {
            t->given[i] = true;
            parse_value(&t->rows[i], text, state);
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
    table t;
    tn_status status = TN_OK;
    if (table_make(&t, rows)) {
        const struct argp parser = {.options = t.options, .parser = parse_option, .doc = about};
        line_count = argc;
        line_words = argv;
        argp_parse(&parser, argc, argv, 0, NULL, &t);
    } else {
        status = tn__raise(TN_ENOMEM, "options_parse", "no memory");
    }
    table_free(&t);
    return status;
}

/* ---- The command line ------------------------------------------------------------------------ */

/* --overwrite, in whatever length argp takes it, would do more than to go on. */
static bool begins_anew(const char *word) {
    return strncmp(word, "--ov", 4) == 0 && strncmp("--overwrite", word, strlen(word)) == 0;
}

static bool goes_on(const char *word) {
    return strcmp(word, "--resume") == 0 || strcmp(word, "-r") == 0;
}

/* `launcher` (NULL: none) and the words, as one line. */
static char *join_line(const char *launcher, char *const *words, int count) {
    char *line = tn__shell_line(words, count);
    if (!line || !launcher) {
        return line;
    }
    size_t room = strlen(launcher) + strlen(line) + 2;
    char *all = tn__malloc(room);
    if (all) {
        snprintf(all, room, "%s %s", launcher, line);
    }
    free(line);
    return all;
}

char *tn__command_to_go_on(int ranks) {
    static char resume[] = "--resume";
    const char *launcher = getenv("TERN_COMMAND"); /* from `tern run` */
    char **words = tn__calloc((size_t)line_count + 1, sizeof(*words)), *line = NULL;
    int count = 0;
    bool said = false;
    for (int i = 0; words && i < line_count; i++) {
        if (!begins_anew(line_words[i])) {
            words[count++] = line_words[i];
            said |= goes_on(line_words[i]);
        }
    }
    if (words && line_count > 0 && (launcher || ranks == 1)) {
        words[count] = resume;
        line = join_line(launcher, words, count + !said);
    }
    free(words);
    return line;
}
