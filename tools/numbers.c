#include "tools/numbers.h"

#include "core/number.h"

#include <math.h>

int64_t argument_whole(struct argp_state *state, const char *name, const char *text, int64_t least,
                       int64_t most) {
    int64_t value;
    if (!tn__whole_from(text, &value) || value < least || value > most) {
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
    double value;
    if (!tn__real_from(text, &value) || !(value >= least && value <= most)) {
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
