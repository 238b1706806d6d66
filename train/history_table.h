/* The table of a history, in memory and as text. */
#ifndef TERN_TRAIN_HISTORY_TABLE_H
#define TERN_TRAIN_HISTORY_TABLE_H

#include "tern/train.h"

enum {
    TN__COLUMNS = 64, /* at most */
    TN__COLUMN_NAME = 32,
    /* of a head, where a name has its comma, and of a row, whose numbers have at most 17 characters
     */
    TN__LINE_SIZE = 32 + TN__COLUMN_NAME * TN__COLUMNS,
};

/* The steps that have a value here, and their values. */
typedef struct tn__column {
    char name[TN__COLUMN_NAME];
    double *x, *y; /* [capacity] */
    int64_t count, capacity;
    double next; /* of the step to come, if there is one */
    bool given;
} tn__column;

typedef struct tn__history_table {
    tn__column *columns; /* [count] */
    int count;
    int64_t capacity;
    int64_t rows; /* steps */
} tn__history_table;

void tn__history_free(tn__history_table *t);

/* NULL: there is none. */
tn__column *tn__history_find(const tn__history_table *t, const char *name, size_t bytes);
/* NULL after raising: TN_EVALUE, a name that cannot be in a head, or too many; TN_ENOMEM. */
tn__column *tn__history_add(tn__history_table *t, const char *name, size_t bytes);

/* What was given of the next step becomes its row. False after raising TN_ENOMEM. */
bool tn__history_step(tn__history_table *t);

/* To text[TN__LINE_SIZE], with the end of the line; how many bytes. */
int tn__history_head(const tn__history_table *t, char *text);
/* The row of a step. at[i]: where the values of column i continue; it is moved over this step's. */
int tn__history_row(const tn__history_table *t, int64_t step, int64_t *at, char *text);

/* Reads a head, and the row of the next step, at *text, which is moved past them. False: something
 * else is there, or after raising TN_ENOMEM. */
bool tn__history_read_head(tn__history_table *t, const char **text);
bool tn__history_read_row(tn__history_table *t, const char **text);

#endif
