/* run.json, a run's record: how each start of it was called, on what, and how it ended. It is
 * enough to do the run again:
 *
 *     [
 *     {"command": ["tern", "train", "--data", "tokens.bin"], "options": {"lr": 0.0006, ...},
 *      "launcher": "tern run -n 2", "directory": "/home/ada", "git": "1f2e...-dirty", ...},
 *     {"command": ...}
 *     ]
 */
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/json.h"
#include "text/json_write.h"
#include "text/utf8.h"
#include "train/options.h"
#include "train/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Writing --------------------------------------------------------------------------------- */

/* The revision of the sources in this directory: 40 digits, and -dirty if something differs. "":
 * no repository, or no git. */
static void read_revision(char *text, int size) {
    /* fsmonitor is a program that a repository's configuration names: it is not run. Filters of
     * files that have changed are, as by every `git status`; git refuses other users' repositories.
     */
    FILE *git = popen("exec git -c core.fsmonitor=false --no-optional-locks describe --always "
                      "--dirty --abbrev=40 --exclude '*' 2>/dev/null",
                      "re");
    *text = 0;
    if (git) {
        bool found = fgets(text, size, git) != NULL;
        text[strcspn(text, "\n")] = 0;
        if (pclose(git) != 0 || !found) {
            *text = 0;
        }
    }
}

/* `, "name": "value"`, or null for an empty one. */
static void put_fact(tn__buffer *j, const char *name, const char *value) {
    tn__buffer_format(j, ", \"%s\": ", name);
    if (value && *value) {
        tn__json_put_string(j, value);
    } else {
        tn__buffer_text(j, "null");
    }
}

static void put_time(tn__buffer *j, const char *name) {
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    put_fact(j, name, text);
}

/* What is known when it begins. NULL after raising. */
static char *describe_start(const tn_run *r) {
    char host[256] = "", directory[4096] = "", revision[128];
    gethostname(host, sizeof(host) - 1);
    read_revision(revision, sizeof(revision));
    tn_device device = tn_default_device();
    tn_device_info info = {0};
    tn_device_describe(device, &info);
    tn__buffer j = {.operation = "run_new"};
    tn__buffer_text(&j, "{");
    tn__options_put(&j);
    put_fact(&j, "launcher", getenv("TERN_COMMAND"));
    put_fact(&j, "directory", getcwd(directory, sizeof(directory)) ? directory : NULL);
    put_fact(&j, "git", revision);
    put_fact(&j, "library", tn_build_info());
    put_fact(&j, "host", host);
    put_fact(&j, "device", tn_device_text(device));
    put_fact(&j, "device_name", info.name);
    tn__buffer_format(&j, ", \"ranks\": %d, \"threads\": %d", r->ranks, tn_threads());
    put_time(&j, "began");
    tn__buffer_format(&j, ", \"first_step\": %lld", (long long)r->start);
    return tn__buffer_take(&j);
}

/* The starts of a record, as they are written. NULL: no usable record. */
static char *read_starts(const char *path) {
    size_t bytes;
    tn__json_file f;
    char *text = access(path, F_OK) == 0 ? tn__read_whole(path, &bytes, "run_new") : NULL;
    bool valid = text && tn__json_read_any(&f, text, bytes), list = false;
    if (valid) {
        list = f.values->kind == TN__JSON_LIST && f.values->count > 0;
        tn__json_free(&f);
    }
    if (text && !list) {
        tn_log_write(TN_LOG_WARN, "%s is not a run's record: it is written anew", path);
        free(text);
        return NULL;
    }
    if (text) {
        char *from = strchr(text, '[') + 1, *to = strrchr(text, ']');
        from += strspn(from, " \n");
        while (to > from && strchr(" \n", to[-1])) {
            to--;
        }
        *to = 0;
        memmove(text, from, (size_t)(to - from) + 1);
    }
    return text;
}

/* Names of files may have any bytes, JSON may not: the others become '?'. */
static void replace_bytes(char *text) {
    for (size_t left = strlen(text); left > 0;) {
        int32_t code;
        int bytes = tn__utf8_decode(text, left, &code);
        if (bytes == 0) {
            *text = '?';
            bytes = 1;
        }
        text += bytes;
        left -= (size_t)bytes;
    }
}

void tn__run_record_open(tn_run *r, bool continued) {
    r->starts_before = continued ? read_starts(r->record) : NULL;
    r->start_text = tn__pending() ? NULL : describe_start(r);
    if (r->start_text) {
        replace_bytes(r->start_text);
    }
}

void tn__run_record(tn_run *r, const char *end) {
    if (!r->start_text || tn__pending()) {
        return;
    }
    const char *before = r->starts_before;
    tn__buffer j = {.operation = "run"};
    tn__buffer_format(&j, "[\n%s%s%s", before ? before : "", before ? ",\n" : "", r->start_text);
    tn__buffer_format(&j, ", \"steps\": %lld", (long long)r->parts.step);
    put_fact(&j, "end", end);
    if (end) {
        put_time(&j, "ended");
    }
    tn__buffer_text(&j, "}\n]\n");
    size_t bytes = j.bytes;
    char *text = tn__buffer_take(&j);
    tn__file f;
    if (text && tn__file_begin(&f, r->record, "run")) {
        tn__file_put(&f, text, bytes);
        tn__file_commit(&f);
    }
    free(text);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The record of --again, whose words a command line now has. */
static tn__json_file again;

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A start's member; NULL: it has none, or there is no such start. */
static const tn__json *start_member(uint32_t start, const char *key) {
    const tn__json *root = again.values;
    if (root->kind != TN__JSON_LIST || start >= root->count) {
        return NULL;
    }
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
    if (strcmp(base_name(first), base_name(name)) == 0) {
        return 1;
    }
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
    if (access(path, R_OK) != 0) {
        tn_options_refuse("--again %s: %s", path, strerror(errno));
    }
    size_t bytes;
    char *text = tn__read_whole(path, &bytes, "again");
    if (!text) {
        return NULL;
    }
    bool read = tn__json_read_any(&again, text, bytes);
    free(text);
    const tn__json *command = read ? last_command() : NULL;
    if (!command) {
        tn_options_refuse("--again %s: it is not a run's record, a run.json", path);
    }
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
    if (!fit) {
        tn__raise(TN_EMISMATCH, "run_new",
                  "--again: the run had %lld ranks, here are %d, which would train something else "
                  "(use its launcher; its command without --again runs on any number)",
                  (long long)before, ranks);
    }
    return fit;
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
    if (!path) {
        return true;
    }
    const tn__json *command = read_command(path, (*argv)[0], &names);
    if (!command) {
        return false;
    }
    int count = 1;
    char **words =
        tn__calloc_for((size_t)*argc + command->count + 1, sizeof(*words), "options_parse");
    if (!words) {
        return false;
    }
    words[0] = (*argv)[0];
    for (uint32_t i = names; i < command->count; i++) {
        words[count++] = (char *)tn__json_at(command, i)->text;
    }
    for (int i = 1; i < *argc; i++) {
        if (i < at || i >= after) {
            words[count++] = (*argv)[i];
        }
    }
    *argc = count;
    *argv = words;
    return true;
}
