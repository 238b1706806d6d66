/* A greedy choice: each row begins with a pair that is missing, and each further option takes the
 * value that makes the most missing pairs. */
#include "tests/support/pairs.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

typedef struct seen {
    bool pair[PAIRS_AXES][PAIRS_VALUES][PAIRS_AXES][PAIRS_VALUES]; /* the first axis is the lower */
} seen;

/* A pair that no row has: true, and the row's two values. */
static bool find_missing(const pairs *p, const seen *s, int *row) {
    for (int a = 0; a < p->axes; a++) {
        for (int b = a + 1; b < p->axes; b++) {
            for (int i = 0; i < p->sizes[a] * p->sizes[b]; i++) {
                if (!s->pair[a][i / p->sizes[b]][b][i % p->sizes[b]]) {
                    row[a] = i / p->sizes[b];
                    row[b] = i % p->sizes[b];
                    return true;
                }
            }
        }
    }
    return false;
}

/* How many pairs are missing of this value with those that the row has already (-1: none). */
static int count_gains(const pairs *p, const seen *s, const int *row, int axis, int value) {
    int gains = 0;
    for (int i = 0; i < p->axes; i++) {
        if (i != axis && row[i] >= 0) {
            gains += i < axis ? !s->pair[i][row[i]][axis][value] : !s->pair[axis][value][i][row[i]];
        }
    }
    return gains;
}

static void complete_row(const pairs *p, const seen *s, int *row) {
    for (int axis = 0; axis < p->axes; axis++) {
        int best = 0, most = -1;
        for (int i = 0; i < p->sizes[axis] && row[axis] < 0; i++) {
            int value = (p->count + i) % p->sizes[axis]; /* of equal ones not always the first */
            int gains = count_gains(p, s, row, axis, value);
            best = gains > most ? value : best;
            most = gains > most ? gains : most;
        }
        row[axis] = row[axis] < 0 ? best : row[axis];
    }
}

static void add_row(pairs *p, seen *s, const int *row) {
    assert(p->count < PAIRS_ROWS);
    for (int a = 0; a < p->axes; a++) {
        p->rows[p->count][a] = (unsigned char)row[a];
        for (int b = a + 1; b < p->axes; b++) {
            s->pair[a][row[a]][b][row[b]] = true;
        }
    }
    p->count++;
}

void pairs_make(pairs *p, const int *sizes, int axes) {
    static seen s;
    int row[PAIRS_AXES];
    assert(axes <= PAIRS_AXES);
    for (int i = 0; i < axes; i++) {
        assert(sizes[i] <= PAIRS_VALUES);
    }
    memset(&s, 0, sizeof(s));
    *p = (pairs){.axes = axes};
    memcpy(p->sizes, sizes, (size_t)axes * sizeof(*sizes));
    memset(row, -1, sizeof(row));
    while (find_missing(p, &s, row)) {
        complete_row(p, &s, row);
        add_row(p, &s, row);
        memset(row, -1, sizeof(row));
    }
}
