/* What the other end of a FILE can show (terminal.h). */
#include "train/show/terminal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool tn__is_terminal(FILE *file) {
    const char *kind = getenv("TERM");
    return isatty(fileno(file)) && !(kind && strcmp(kind, "dumb") == 0);
}

int tn__terminal_columns(FILE *file) {
    if (!isatty(fileno(file))) {
        return INT_MAX;
    }
    struct winsize size;
    if (ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        return size.ws_col;
    }
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
