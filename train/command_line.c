/* The command line that a program's options came in: what messages begin with, what run.json has,
 * and the command that continues a run. */
#define _GNU_SOURCE 1 /* program_invocation_name */
#include "core/memory.h"
#include "core/plain_text.h"
#include "text/json_write.h"
#include "text/quote.h"
#include "train/options.h"

#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last command line parsed, and the values that it gave its options, as JSON. */
static char no_name[] = "", *no_words[] = {no_name};
static int line_count;
static char **line_words = no_words;
static char *line_values;

void tn__line_keep(int count, char **words) {
    line_count = count;
    line_words = words;
}

void tn__line_keep_values(char *json) {
    free(line_values);
    line_values = json;
}

void tn_options_refuse(const char *format, ...) {
    char *name = line_words[0], *slash = strrchr(name, '/');
    name = slash ? slash + 1 : name;
    char text[4096]; /* an argument may hold anything */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    text[tn__plain_text(text, text, strlen(text))] = 0;
    fprintf(stderr, "%s: %s\n", name, text);
    argp_help(&(struct argp){0}, stderr, ARGP_HELP_STD_ERR, name);
    exit(argp_err_exit_status); /* argp_help has exited already */
}

/* --overwrite, or any abbreviation that argp takes, would not just continue. */
static bool starts_over(const char *word) {
    return strncmp(word, "--ov", 4) == 0 && strncmp("--overwrite", word, strlen(word)) == 0;
}

/* -r, --resume, --resume-anyway and abbreviations; a program may have others with this beginning.
 */
static bool goes_on(const char *word) {
    size_t length = strlen(word);
    return strcmp(word, "-r") == 0 ||
           (length >= 8 && (strncmp("--resume-anyway", word, length) == 0 ||
                            strncmp("--resume_anyway", word, length) == 0));
}

/* The program; and the verb of one that has verbs, whose argv[0] ends in it ("tern train"). */
static int line_names(const char *names[2]) {
    names[0] = line_words[0];
    const char *space = strrchr(line_words[0], ' ');
    bool has_verb = space && strcmp(line_words[0], program_invocation_name) != 0;
    if (has_verb) {
        names[0] = program_invocation_name;
        names[1] = space + 1;
    }
    return has_verb ? 2 : 1;
}

static void put_word(tn__buffer *j, const char *word) {
    bool first = j->at[j->bytes - 1] == '[';
    tn__buffer_text(j, first ? "" : ", ");
    tn__json_put_string(j, word);
}

void tn__options_put(tn__buffer *j) {
    const char *names[2];
    tn__buffer_text(j, "\"command\": [");
    for (int i = 0, n = line_names(names); i < n && !j->failed; i++) {
        put_word(j, names[i]);
    }
    for (int i = 1; i < line_count && !j->failed; i++) {
        if (!starts_over(line_words[i]) && !goes_on(line_words[i])) { put_word(j, line_words[i]); }
    }
    tn__buffer_format(j, "], \"options\": %s", line_values ? line_values : "{}");
}

char *tn__command_to_continue(int ranks) {
    static char resume[] = "--resume";
    const char *launcher = getenv("TERN_COMMAND"); /* from `tern run` */
    char **words = tn__calloc((size_t)line_count + 3, sizeof(*words)), *line = NULL;
    bool said = false;
    if (words && line_count > 0 && (launcher || ranks == 1)) {
        int count = line_names((const char **)words);
        for (int i = 1; i < line_count; i++) {
            if (!starts_over(line_words[i])) {
                words[count++] = line_words[i];
                said |= goes_on(line_words[i]);
            }
        }
        words[count] = resume;
        line = tn__shell_line(words, count + !said);
    }
    free(words);
    if (!line || !launcher) { return line; }
    char *all = tn__asprintf(NULL, "%s %s", launcher, line);
    free(line);
    return all;
}
