/* Numbers for people to read and write. Floating-point numbers round-trip: the shortest text that
 * reads back as the number, "0.1" and not "0.10000000000000001".
 */
#ifndef TERN_TEXT_NUMBER_H
#define TERN_TEXT_NUMBER_H

#include "text/plain_numbers.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct tn__number {
    char text[32];
} tn__number;

static inline tn__number tn__number_of(double value) {
    tn__number n;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(n.text, sizeof(n.text), "%.*g", digits, value);
        if (strtod(n.text, NULL) == value) { break; }
    }
    return n;
}

/* False unless the whole text is one number; *value is then undefined. A real one has a
 * point in every locale, and may be infinite or NaN. */
static inline bool tn__whole_from(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return end != text && !*end && errno == 0;
}

static inline bool tn__real_from(const char *text, double *value) {
    char *end;
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    *value = strtod(text, &end);
    tn__plain_numbers_end(numbers);
    return end != text && !*end;
}

#endif
