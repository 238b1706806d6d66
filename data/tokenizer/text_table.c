#include "data/tokenizer/text_table.h"

#include "core/memory.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

static uint64_t head_of(const char *text, size_t bytes) {
    const unsigned char *s = (const unsigned char *)text;
    if (bytes >= 8) {
        uint64_t whole;
        memcpy(&whole, s, 8);
        return le64toh(whole);
    }
    if (bytes >= 4) { /* two halves that may overlap */
        uint32_t low, high;
        memcpy(&low, s, 4);
        memcpy(&high, s + bytes - 4, 4);
        return le32toh(low) | (uint64_t)le32toh(high) << (8 * (bytes - 4));
    }
    uint64_t head = 0;
    for (size_t i = 0; i < bytes; i++) {
        head |= (uint64_t)s[i] << (8 * i);
    }
    return head;
}

static uint32_t slot_of(const tn__text_table *t, uint64_t head, const char *text, size_t bytes) {
    uint64_t hash = bytes > 8 ? XXH3_64bits(text, bytes) : (head + bytes) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 32) & t->mask;
}

/* Where the text is, or the free entry where it would be. There always is a free one. */
static tn__text_entry *find_slot(const tn__text_table *t, const char *text, size_t bytes) {
    uint64_t head = head_of(text, bytes);
    for (uint32_t i = slot_of(t, head, text, bytes);; i = (i + 1) & t->mask) {
        tn__text_entry *e = &t->entries[i];
        if (!e->text || (e->head == head && e->bytes == bytes &&
                         (bytes <= 8 || memcmp(e->text + 8, text + 8, bytes - 8) == 0))) {
            return e;
        }
    }
}

bool tn__text_reserve(tn__text_table *t, uint32_t count) {
    uint64_t capacity = 64;
    while (capacity < 2 * (uint64_t)count) {
        capacity *= 2;
    }
    if (t->entries && capacity <= (uint64_t)t->mask + 1) { return true; }
    tn__text_table larger = {.mask = (uint32_t)(capacity - 1), .count = t->count};
    larger.entries = capacity > UINT32_MAX ? NULL : tn__calloc(capacity, sizeof(tn__text_entry));
    if (!larger.entries) { return false; }
    for (uint32_t i = 0; t->entries && i <= t->mask; i++) {
        if (t->entries[i].text) {
            *find_slot(&larger, t->entries[i].text, t->entries[i].bytes) = t->entries[i];
        }
    }
    free(t->entries);
    *t = larger;
    return true;
}

void tn__text_table_free(tn__text_table *t) {
    free(t->entries);
    *t = (tn__text_table){0};
}

const tn__text_entry *tn__text_find(const tn__text_table *t, const char *text, size_t bytes) {
    if (!t->entries) { return NULL; }
    const tn__text_entry *e = find_slot(t, text, bytes);
    return e->text ? e : NULL;
}

tn__text_entry *tn__text_put(tn__text_table *t, const char *text, uint32_t bytes) {
    if (t->count == UINT32_MAX || !tn__text_reserve(t, t->count + 1)) { return NULL; }
    tn__text_entry *e = find_slot(t, text, bytes);
    if (!e->text) {
        *e = (tn__text_entry){head_of(text, bytes), text, bytes, -1};
        t->count++;
    }
    return e;
}
