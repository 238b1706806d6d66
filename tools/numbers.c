#include "tools/numbers.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int64_t argument_whole(struct argp_state *state, const char *name, const char *text, int64_t least,
                       int64_t most) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) {
        if (most == INT64_MAX) {
            argp_error(state, "--%s is \"%s\": a whole number of at least %lld is wanted", name,
                       text, (long long)least);
        } else {
            argp_error(state, "--%s is \"%s\": a whole number from %lld to %lld is wanted", name,
                       text, (long long)least, (long long)most);
        }
    }
    return value;
}

double argument_real(struct argp_state *state, const char *name, const char *text, double least,
                     double most) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most)) {
        if (most == INFINITY) {
            argp_error(state, "--%s is \"%s\": a number of at least %g is wanted", name, text,
                       least);
        } else {
            argp_error(state, "--%s is \"%s\": a number from %g to %g is wanted", name, text, least,
                       most);
        }
    }
    return value;
}
