/* run.json, a run's record: how each start of it was called, on what, and how it ended. It is
 * enough to do the run again (again.c):
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
        if (pclose(git) != 0 || !found) { *text = 0; }
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
    if (r->start_text) { replace_bytes(r->start_text); }
}

void tn__run_record(tn_run *r, const char *end) {
    if (!r->start_text || tn__pending()) { return; }
    const char *before = r->starts_before;
    tn__buffer j = {.operation = "run"};
    tn__buffer_format(&j, "[\n%s%s%s", before ? before : "", before ? ",\n" : "", r->start_text);
    tn__buffer_format(&j, ", \"steps\": %lld", (long long)r->parts.step);
    put_fact(&j, "end", end);
    if (end) { put_time(&j, "ended"); }
    tn__buffer_text(&j, "}\n]\n");
    size_t bytes = j.bytes;
    char *text = tn__buffer_take(&j);
    if (text) { tn__file_write_at(r->record, text, bytes, "run"); }
    free(text);
}
