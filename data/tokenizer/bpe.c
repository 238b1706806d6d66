/* Joining pairs (BPE's merges): the pair with the lowest rank first, the leftmost of equals, until
 * no two neighbours are a pair.
 *
 * A short piece, as nearly all are, is searched for the lowest rank after each join. That is
 * quadratic, so a long one keeps its symbols in a list and the possible joins in a heap: n log n.
 * Both join the same pairs in the same order.
 */
#include "data/tokenizer/bpe.h"

#include "core/error.h"
#include "core/memory.h"

#include <string.h>

enum { SHORT = 64 };

/* ---- The table of pairs ---------------------------------------------------------------------- */

static uint32_t pair_slot(const tn__pairs *p, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & p->mask;
}

static tn__pair *find_pair(const tn__pairs *p, int32_t left, int32_t right) {
    uint32_t i = pair_slot(p, left, right);
    while (p->entries[i].left >= 0 &&
           (p->entries[i].left != left || p->entries[i].right != right)) {
        i = (i + 1) & p->mask;
    }
    return &p->entries[i];
}

static bool grow_pairs(tn__pairs *p) {
    if (p->entries && 2 * (uint64_t)p->count < p->mask) { return true; }
    uint64_t capacity = p->entries ? 2 * ((uint64_t)p->mask + 1) : 64;
    tn__pairs larger = {.mask = (uint32_t)(capacity - 1), .count = p->count};
    larger.entries = capacity > UINT32_MAX ? NULL : tn__malloc(capacity * sizeof(tn__pair));
    if (!larger.entries) { return false; }
    memset(larger.entries, 0xff, capacity * sizeof(tn__pair));
    for (uint32_t i = 0; p->entries && i <= p->mask; i++) {
        if (p->entries[i].left >= 0) {
            *find_pair(&larger, p->entries[i].left, p->entries[i].right) = p->entries[i];
        }
    }
    free(p->entries);
    *p = larger;
    return true;
}

bool tn__pairs_put(tn__pairs *p, tn__pair pair) {
    if (!grow_pairs(p)) { return false; }
    tn__pair *at = find_pair(p, pair.left, pair.right);
    p->count += at->left < 0;
    *at = pair;
    return true;
}

const tn__pair *tn__pairs_find(const tn__pairs *p, int32_t left, int32_t right) {
    if (!p->entries) { return NULL; }
    const tn__pair *at = find_pair(p, left, right);
    return at->left < 0 ? NULL : at;
}

void tn__pairs_free(tn__pairs *p) {
    free(p->entries);
    *p = (tn__pairs){0};
}

/* ---- Short pieces ---------------------------------------------------------------------------- */

/* Looks up what ids[i] and its right neighbour may become; nothing if it has none. */
static void offer_at(const tn__pairs *p, const int32_t *ids, const tn__pair **offers, int64_t i,
                     int64_t count) {
    if (i >= 0 && i + 1 < count) { offers[i] = tn__pairs_find(p, ids[i], ids[i + 1]); }
}

static int64_t join_short(const tn__pairs *p, int32_t *ids, int64_t count) {
    const tn__pair *offers[SHORT] = {NULL};
    for (int64_t i = 0; i + 1 < count; i++) {
        offer_at(p, ids, offers, i, count);
    }
    for (;;) {
        int64_t best = -1;
        for (int64_t i = 0; i + 1 < count; i++) {
            if (offers[i] && (best < 0 || offers[i]->rank < offers[best]->rank)) { best = i; }
        }
        if (best < 0) { return count; }
        ids[best] = offers[best]->id;
        count--;
        for (int64_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            offers[i] = offers[i + 1];
        }
        offer_at(p, ids, offers, best - 1, count);
        offer_at(p, ids, offers, best, count);
    }
}

/* ---- Long pieces ----------------------------------------------------------------------------- */

typedef struct tn__symbol {
    int32_t id;            /* -1: joined to one on its left */
    int32_t before, after; /* -1: none */
} symbol;

/* A join that was possible when it was put into the heap. */
typedef struct tn__offer {
    int32_t rank, at;
    int32_t left, right; /* ids; if they are gone, the offer is void */
} offer;

typedef struct heap {
    offer *offers;
    size_t count;
} heap;

static bool comes_first(const offer *a, const offer *b) {
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

static void push_offer(heap *h, offer o) {
    size_t i = h->count++;
    for (; i > 0 && comes_first(&o, &h->offers[(i - 1) / 2]); i = (i - 1) / 2) {
        h->offers[i] = h->offers[(i - 1) / 2];
    }
    h->offers[i] = o;
}

static offer pop_offer(heap *h) {
    offer first = h->offers[0], last = h->offers[--h->count];
    size_t i = 0;
    for (size_t child = 1; child < h->count; child = 2 * i + 1) {
        child += child + 1 < h->count && comes_first(&h->offers[child + 1], &h->offers[child]);
        if (!comes_first(&h->offers[child], &last)) { break; }
        h->offers[i] = h->offers[child];
        i = child;
    }
    h->offers[i] = last;
    return first;
}

/* Offers to join the symbol at `at` to the one after it, if they are a pair. */
static void make_offer(const tn__pairs *p, const symbol *symbols, int32_t at, heap *h) {
    if (at < 0 || symbols[at].after < 0) { return; }
    int32_t left = symbols[at].id, right = symbols[symbols[at].after].id;
    const tn__pair *pair = tn__pairs_find(p, left, right);
    if (pair) { push_offer(h, (offer){pair->rank, at, left, right}); }
}

static void join_symbols(const tn__pairs *p, symbol *symbols, const offer *o, heap *h) {
    symbol *s = &symbols[o->at];
    int32_t after = s->after;
    if (s->id != o->left || after < 0 || symbols[after].id != o->right) { return; }
    s->id = tn__pairs_find(p, o->left, o->right)->id;
    symbols[after].id = -1;
    s->after = symbols[after].after;
    if (s->after >= 0) { symbols[s->after].before = o->at; }
    make_offer(p, symbols, s->before, h);
    make_offer(p, symbols, o->at, h);
}

/* Each join removes one symbol and makes up to two offers: 3 * count is enough for all. */
static int64_t join_long(const tn__pairs *p, int32_t *ids, int64_t count, tn__bpe_scratch *s) {
    if (!tn__grow(&s->symbols, count, &s->symbol_capacity, sizeof(symbol), NULL) ||
        !tn__grow(&s->offers, 3 * count, &s->offer_capacity, sizeof(offer), NULL)) {
        return -1;
    }
    heap h = {.offers = s->offers};
    symbol *symbols = s->symbols;
    for (int32_t i = 0; i < count; i++) {
        symbols[i] = (symbol){ids[i], i - 1, i + 1 < count ? i + 1 : -1};
    }
    for (int32_t i = 0; i < count; i++) {
        make_offer(p, symbols, i, &h);
    }
    while (h.count) {
        offer o = pop_offer(&h);
        join_symbols(p, symbols, &o, &h);
    }
    int64_t left = 0;
    for (int32_t i = 0; i >= 0; i = symbols[i].after) {
        ids[left++] = symbols[i].id;
    }
    return left;
}

void tn__bpe_scratch_free(tn__bpe_scratch *s) {
    free(s->symbols);
    free(s->offers);
    *s = (tn__bpe_scratch){0};
}

int64_t tn__bpe_join(const tn__pairs *p, int32_t *ids, int64_t count, tn__bpe_scratch *s) {
    return count <= SHORT ? join_short(p, ids, count) : join_long(p, ids, count, s);
}

/* ---- Lists of ids ---------------------------------------------------------------------------- */

bool tn__ids_reserve(tn_ids *ids, int64_t more, const char *operation) {
    int64_t count = ids->count + more;
    return tn__grow(&ids->ids, count, &ids->capacity, sizeof(*ids->ids), operation);
}

bool tn__ids_append(tn_ids *ids, int32_t id, const char *operation) {
    if (!tn__ids_reserve(ids, 1, operation)) { return false; }
    ids->ids[ids->count++] = id;
    return true;
}

void tn_ids_free(tn_ids *ids) {
    if (ids) {
        free(ids->ids);
        *ids = (tn_ids){0};
    }
}
