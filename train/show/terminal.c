/* What the other end of a FILE can show (terminal.h). */
#include "train/show/terminal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The columns that `tern run` has for the progress line of rank 0, whose stderr is its pipe; 0:
 * none. */
static int launcher_columns(FILE *file) {
    const char *columns = getenv("TERN_PROGRESS");
    struct stat about;
    bool pipe = columns && fileno(file) == STDERR_FILENO && fstat(STDERR_FILENO, &about) == 0 &&
                S_ISFIFO(about.st_mode);
    return pipe ? atoi(columns) : 0;
}

bool tn__is_terminal(FILE *file) {
    const char *kind = getenv("TERM");
    bool terminal = isatty(fileno(file)) || launcher_columns(file) > 0;
    return terminal && !(kind && strcmp(kind, "dumb") == 0);
}

int tn__terminal_columns(FILE *file) {
    if (!isatty(fileno(file))) {
        int most = launcher_columns(file);
        return most > 0 ? most : INT_MAX;
    }
    struct winsize size;
    if (ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) { return size.ws_col; }
    const char *columns = getenv("COLUMNS");
    int said = columns ? atoi(columns) : 0;
    return said > 0 ? said : 80;
}

/* One column for each character: a byte that does not continue one. */
int tn__text_columns(const char *text) {
    int columns = 0;
    for (; text && *text; text++) {
        columns += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return columns;
}

bool tn__shows_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) {
            const char *codeset = strchr(value, '.');
            return codeset && (strncasecmp(codeset, ".utf-8", 6) == 0 ||
                               strncasecmp(codeset, ".utf8", 5) == 0);
        }
    }
    return false;
}
