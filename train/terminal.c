/* What the other end of a FILE can show (terminal.h). */
#include "train/terminal.h"

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
    struct winsize size;
    return ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
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
