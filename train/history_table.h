/* The table of a history, in memory and as text. */
#ifndef TERN_TRAIN_HISTORY_TABLE_H
#define TERN_TRAIN_HISTORY_TABLE_H

#include "tern/train.h"

enum {
    TN__COLUMNS = 64, /* at most */
    TN__COLUMN_NAME = 32,
    /* of a header, a comma per name, or of a row, with numbers of at most 17 characters */
    TN__LINE_SIZE = 32 + TN__COLUMN_NAME * TN__COLUMNS,
};

/* A column: the steps that have a value, and the values. */
typedef struct tn__column {
    char name[TN__COLUMN_NAME];
    double *x, *y; /* [capacity] */
    int64_t count, capacity;
    double next; /* the next step's value, if set */
    bool given;
} tn__column;

typedef struct tn__history_table {
    tn__column *columns; /* [count] */
    int count;
    int64_t capacity;
    int64_t rows; /* steps */
} tn__history_table;

void tn__history_free(tn__history_table *t);

/* NULL: not found. */
tn__column *tn__history_find(const tn__history_table *t, const char *name, size_t bytes);
/* NULL after raising: TN_EVALUE, an invalid name, or too many columns; TN_ENOMEM. */
tn__column *tn__history_add(tn__history_table *t, const char *name, size_t bytes);

/* Makes a row of the values given for the next step. False after raising TN_ENOMEM. */
bool tn__history_step(tn__history_table *t);

/* Writes the header to text[TN__LINE_SIZE], with a newline; returns its length. */
int tn__history_head(const tn__history_table *t, char *text);
/* Writes a step's row. at[i]: the next value of column i, which advances past this step's. */
int tn__history_row(const tn__history_table *t, int64_t step, int64_t *at, char *text);

/* Read a header, or the next step's row, at *text, which advances past it. False if something else
 * is there, or after raising TN_ENOMEM. */
bool tn__history_read_head(tn__history_table *t, const char **text);
bool tn__history_read_row(tn__history_table *t, const char **text);

#endif
