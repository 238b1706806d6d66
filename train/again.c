/* --again FILE: the command in a run.json, which record.c has written, as the command line. */
#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/json.h"
#include "train/options.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The record of --again, whose words a command line now has. */
static tn__json_file again;

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A start's member; NULL: it has none, or there is no such start. */
static const tn__json *start_member(uint32_t start, const char *key) {
    const tn__json *root = again.values;
    if (root->kind != TN__JSON_LIST || start >= root->count) { return NULL; }
    const tn__json *object = tn__json_at(root, start);
    return object->kind == TN__JSON_OBJECT ? tn__json_get(object, key) : NULL;
}

static uint32_t last_start(void) {
    return again.values->count - 1; /* of an empty list there is none either */
}

/* The last start's command. NULL: the record has none. */
static const tn__json *last_command(void) {
    const tn__json *command = start_member(last_start(), "command");
    bool words = command && command->kind == TN__JSON_LIST && command->count > 0;
    for (uint32_t i = 0; words && i < command->count; i++) {
        words = tn__json_at(command, i)->kind == TN__JSON_TEXT;
    }
    return words ? command : NULL;
}

/* How many of the command's words name the program, and its verb if argv[0] ends in one; 0: they
 * name another. */
static uint32_t count_names(const tn__json *command, const char *name) {
    const char *verb = strrchr(name, ' '), *first = tn__json_at(command, 0)->text;
    const tn__json *second = command->count > 1 ? tn__json_at(command, 1) : NULL;
    if (strcmp(base_name(first), base_name(name)) == 0) { return 1; }
    size_t length = verb ? (size_t)(verb - base_name(name)) : 0;
    bool same = verb && second && strncmp(base_name(first), base_name(name), length) == 0 &&
                !base_name(first)[length] && strcmp(second->text, verb + 1) == 0;
    return same ? 2 : 0;
}

/* ---- What one command cannot do again -------------------------------------------------------- */

/* A number of a start; -1: it has none. */
static int64_t start_number(uint32_t start, const char *key) {
    const tn__json *number = start_member(start, key);
    return number && number->kind == TN__JSON_WHOLE ? number->whole : -1;
}

/* Whether what is trained depends on an option: not on where a run saves, what it shows, and when a
 * start of it ends. */
static bool option_matters(const char *name) {
    static const char *const others[] = {
        "out",       "save-every",   "memory-every", "after-save", "log-every", "keep-best",
        "hours",     "until-tokens", "until-cost",   "price",      "resume",    "resume-anyway",
        "overwrite", "allow-nan",    "tensorboard",  "threads",
    };
    bool matters = true;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        matters &= strcmp(name, others[i]) != 0;
    }
    return matters;
}

static const char *value_text(const tn__json *value) {
    return value && value->text ? value->text : "nothing";
}

/* The start did not go on with what the first one began: other ranks, or another option. */
static void compare_start(uint32_t start, const char *path) {
    long long after = (long long)start_number(start, "first_step");
    int64_t ranks = start_number(start, "ranks"), before = start_number(0, "ranks");
    static const char advice[] = "no single command repeats that (the record has those of all)";
    if (ranks != before) {
        tn_options_refuse("--again %s: its start %u went on after step %lld on %lld ranks instead "
                          "of %lld: %s",
                          path, start + 1, after, (long long)ranks, (long long)before, advice);
    }
    const tn__json *old = start_member(0, "options"), *new = start_member(start, "options");
    bool both = old && new && old->kind == TN__JSON_OBJECT &&new->kind == TN__JSON_OBJECT;
    const tn__json *value = both ? tn__json_first(new) : NULL;
    for (uint32_t i = 0; both && i < new->count; i++, value = tn__json_next(value)) {
        const tn__json *was = tn__json_get(old, value->key);
        if (option_matters(value->key) && strcmp(value_text(value), value_text(was)) != 0) {
            tn_options_refuse("--again %s: its start %u went on after step %lld with --%s %s "
                              "instead of %s: %s",
                              path, start + 1, after, value->key, value_text(value),
                              value_text(was), advice);
        }
    }
}

/* A run that was continued is done again by one command if all of its starts asked for the same;
 * otherwise ends the process. */
static void compare_starts(const char *path) {
    if (start_number(0, "first_step") > 0) {
        tn_options_refuse("--again %s: its first start continued after step %lld, and what was "
                          "before is not in the record",
                          path, (long long)start_number(0, "first_step"));
    }
    for (uint32_t i = 1; i <= last_start(); i++) {
        compare_start(i, path);
    }
}

/* ---- A command line with --again ------------------------------------------------------------- */

/* Reads FILE, or ends the process; NULL after raising. */
static const tn__json *read_command(const char *path, const char *name, uint32_t *names) {
    if (access(path, R_OK) != 0) { tn_options_refuse("--again %s: %s", path, strerror(errno)); }
    size_t bytes;
    char *text = tn__read_whole(path, &bytes, "again");
    if (!text) { return NULL; }
    bool read = tn__json_read_any(&again, text, bytes);
    free(text);
    const tn__json *command = read ? last_command() : NULL;
    if (!command) { tn_options_refuse("--again %s: it is not a run's record, a run.json", path); }
    *names = command ? count_names(command, name) : 0;
    if (command && *names == 0) {
        tn_options_refuse("--again %s: it is the record of another program, %s", path,
                          tn__json_at(command, 0)->text);
    }
    compare_starts(path);
    return command;
}

bool tn__record_ranks_fit(int ranks) {
    int64_t before = again.values ? start_number(last_start(), "ranks") : -1;
    bool fit = before < 0 || before == ranks || tn_restart_count() > 0;
    return fit ||
           tn__fail(
               TN_EMISMATCH, "run_new",
               "--again: the run had %lld ranks, here are %d, which would train something else "
               "(use its launcher; its command without --again runs on any number)",
               (long long)before, ranks);
}

void tn__record_refuse(const char *text, void *to) {
    tn_options_refuse("--again %s: once, and in full", text);
}

/* The first word that is --again, and its FILE; NULL: there is none. */
static const char *find_again(int argc, char **argv, int *at, int *after) {
    static const char name[] = "--again";
    const size_t length = sizeof(name) - 1;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        *at = i;
        *after = i + 1;
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
            return argv[i] + length + 1;
        }
        if (strcmp(argv[i], name) == 0 && i + 1 < argc) {
            *after = i + 2;
            return argv[i + 1];
        }
    }
    return NULL;
}

bool tn__record_expand(int *argc, char ***argv) {
    int at, after;
    uint32_t names;
    const char *path = find_again(*argc, *argv, &at, &after);
    if (!path) { return true; }
    const tn__json *command = read_command(path, (*argv)[0], &names);
    if (!command) { return false; }
    int count = 1;
    char **words =
        tn__calloc_for((size_t)*argc + command->count + 1, sizeof(*words), "options_parse");
    if (!words) { return false; }
    words[0] = (*argv)[0];
    for (uint32_t i = names; i < command->count; i++) {
        words[count++] = (char *)tn__json_at(command, i)->text;
    }
    for (int i = 1; i < *argc; i++) {
        if (i < at || i >= after) { words[count++] = (*argv)[i]; }
    }
    *argc = count;
    *argv = words;
    return true;
}
