/* A hash table from texts of any bytes to numbers. Open addressing; the texts are lent, not copied.
 *
 * Most texts are short: the first 8 bytes are in the table itself, so that one of up to 8 bytes is
 * compared without reading the text.
 */
#ifndef TERN_DATA_TOKENIZER_TEXT_TABLE_H
#define TERN_DATA_TOKENIZER_TEXT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tn__text_entry {
    uint64_t head;    /* the first 8 bytes, or all of them and zeros */
    const char *text; /* NULL: free */
    uint32_t bytes;
    int32_t value;
} tn__text_entry;

/* Zeros to begin with. */
typedef struct tn__text_table {
    tn__text_entry *entries; /* a power of two of them, or NULL */
    uint32_t mask, count;
} tn__text_table;

/* Reserves memory for `count` texts in total. False: no memory. */
bool tn__text_reserve(tn__text_table *t, uint32_t count);
void tn__text_table_free(tn__text_table *t);

/* The entry of this text; NULL: there is none. */
const tn__text_entry *tn__text_find(const tn__text_table *t, const char *text, size_t bytes);

/* The entry of this text, made with the value -1 if there was none. Valid until the next one is
 * made. NULL: no memory. */
tn__text_entry *tn__text_put(tn__text_table *t, const char *text, uint32_t bytes);

#endif
