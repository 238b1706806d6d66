/* Numbers in files use '.', whatever locale the program has set.
 *
 *     tn__plain_numbers numbers = tn__plain_numbers_begin();
 *     ... printf, strtod ...
 *     tn__plain_numbers_end(numbers);
 */
#ifndef TERN_TEXT_PLAIN_NUMBERS_H
#define TERN_TEXT_PLAIN_NUMBERS_H

#include <locale.h>

typedef struct tn__plain_numbers {
    locale_t plain, before; /* of this thread only */
} tn__plain_numbers;

/* If there is no memory for a locale, the program's own stays, which is nearly always "C". */
static inline tn__plain_numbers tn__plain_numbers_begin(void) {
    tn__plain_numbers n = {.plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0)};
    n.before = n.plain ? uselocale(n.plain) : (locale_t)0;
    return n;
}

static inline void tn__plain_numbers_end(tn__plain_numbers n) {
    if (n.plain) {
        uselocale(n.before);
        freelocale(n.plain);
    }
}

#endif
