/* Real numbers for people that lose nothing: the shortest text that reads back as the number,
 * "0.1" and not "0.10000000000000001".
 */
#ifndef TERN_CORE_NUMBER_H
#define TERN_CORE_NUMBER_H

#include <stdio.h>
#include <stdlib.h>

typedef struct tn__number {
    char text[32];
} tn__number;

static inline tn__number tn__number_of(double value) {
    tn__number n;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(n.text, sizeof(n.text), "%.*g", digits, value);
        if (strtod(n.text, NULL) == value) {
            break;
        }
    }
    return n;
}

#endif
