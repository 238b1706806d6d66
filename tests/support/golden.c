#include "tests/support/golden.h"

#include <tern/tern.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *text; /* the whole file, after a newline */
static FILE *accepted;

static void open_file(const char *path) {
    char whole[1024];
    snprintf(whole, sizeof(whole), "%s/%s", getenv("TERN_ROOT"), path);
    bool accept = getenv("TERN_ACCEPT");
    FILE *f = fopen(whole, accept ? "w" : "r");
    assert_non_null(f);
    size_t size = 0, bytes = 1;
    FILE *copy = open_memstream(&text, &size);
    for (char part[4096] = "\n"; bytes > 0; bytes = accept ? 0 : fread(part, 1, sizeof(part), f)) {
        fwrite(part, 1, bytes, copy);
    }
    fclose(copy);
    accepted = accept ? f : NULL;
    if (!accept) { fclose(f); }
}

/* "file.c:12 (in a.b): add: x is …" without the place; an operation's name has only such letters.
 */
static const char *without_place(const char *message) {
    const char *end = strstr(message, ": ");
    for (const char *c = message; end && c < end; c++) {
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_') {
            return end + 2;
        }
    }
    return message;
}

const char *golden_refused(const char *path, const char *call, tn_tensor *result, const char *file,
                           int line) {
    static char entry[2048];
    if (!text) { open_file(path); }
    bool refused = tn_is_inert(result) && tn_error() != TN_OK;
    int at = snprintf(entry, sizeof(entry), "\n%s\n    %s ", call, tn_status_name(tn_error()));
    snprintf(entry + at, sizeof(entry) - (size_t)at, "%s\n", without_place(tn_error_message()));
    tn_error_clear(); /* so that later tests report their own errors */
    if (accepted) {
        fputs(entry + 1, accepted);
        fflush(accepted);
    }
    if (!refused || (!accepted && !strstr(text, entry))) {
        print_message("%s:%d: %s:%s(TERN_ACCEPT=1 takes new words into %s)\n", file, line,
                      refused ? "not what is accepted" : "not refused", entry, path);
        _fail(file, line);
    }
    return entry + at;
}
