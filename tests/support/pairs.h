/* Rows of a table of options, so few that a test can run each, and so many that every two values of
 * any two options are together in some row: most mistakes need no more than two. */
#ifndef TERN_TESTS_SUPPORT_PAIRS_H
#define TERN_TESTS_SUPPORT_PAIRS_H

enum { PAIRS_AXES = 16, PAIRS_VALUES = 64, PAIRS_ROWS = 512 };

typedef struct pairs {
    int axes, sizes[PAIRS_AXES]; /* how many values each option has */
    int count;
    unsigned char rows[PAIRS_ROWS][PAIRS_AXES];
} pairs;

/* The same rows for the same sizes. */
void pairs_make(pairs *p, const int *sizes, int axes);

#endif
