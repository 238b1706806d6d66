/* A vocabulary from texts: the most frequent pair of neighbours becomes a token, repeatedly
 * (Sennrich et al. 2016).
 *
 * Equal pieces are counted together, as a word. A pair waits in a heap with the words that it was
 * seen in. Joining it changes only the counts of its neighbours, so the counts in the heap may be
 * out of date: a pair that comes up with a wrong count goes back with the right one. A pair that is
 * seen again later waits a second time, with the new words. All this is as in `tokenizers`
 * (BpeTrainer), including the order of equal counts (lower ids first), so that the same texts give
 * the same merges.
 */
#include "data/tokenizer/build.h"

#include "core/error.h"
#include "core/memory.h"
#include "data/tokenizer/byte_alphabet.h"

#include <string.h>

static const char OPERATION[] = "tokenizer_train";

/* Places of words; in order, none twice. */
typedef struct places {
    uint32_t *of;
    uint32_t count;
    int64_t capacity;
} places;

typedef struct candidate {
    int32_t left, right;
    int64_t count;
    places fresh; /* words in which the last join made it */
} candidate;

typedef struct waiting {
    int64_t count; /* when it was put there */
    uint32_t candidate;
    places words;
} waiting;

typedef struct word {
    const char *text;
    uint32_t bytes, symbols; /* how many of its symbols are left */
    uint64_t first;          /* its first symbol */
    int64_t count;
} word;

typedef struct trainer {
    tn_tokenizer_train_options o;
    tn__build b;
    tn__text_table known; /* words, then tokens: their places */
    word *words;
    uint32_t word_count;
    int64_t word_capacity;
    int32_t *symbols;
    char **tokens; /* texts of those that were joined */
    uint32_t *bytes;
    int32_t token_count; /* including the 256 bytes */
    tn__pairs pairs;     /* places of candidates, as their ids */
    candidate *candidates;
    uint32_t candidate_count;
    int64_t candidate_capacity;
    uint32_t *touched; /* candidates with fresh words */
    uint32_t touched_count;
    int64_t touched_capacity;
    waiting *heap;
    uint32_t heap_count;
    int64_t heap_capacity;
    char single[256]; /* the 256 tokens of one byte, by id */
} trainer;

static bool raise_memory(void) {
    return tn__fail(TN_ENOMEM, OPERATION, "no memory");
}

/* ---- Words ----------------------------------------------------------------------------------- */

static bool count_word(void *user, const char *text, size_t bytes) {
    trainer *t = user;
    if (bytes > INT32_MAX || t->word_count == INT32_MAX) {
        return tn__fail(TN_EVALUE, OPERATION, "%u different pieces, and one of %zu bytes",
                        t->word_count, bytes);
    }
    tn__text_entry *entry = tn__text_put(&t->known, text, (uint32_t)bytes);
    if (!entry) { return raise_memory(); }
    if (entry->value < 0) {
        if (!tn__grow(&t->words, t->word_count + 1, &t->word_capacity, sizeof(*t->words),
                      OPERATION)) {
            return false;
        }
        entry->value = (int32_t)t->word_count;
        t->words[t->word_count++] = (word){.text = text, .bytes = (uint32_t)bytes};
    }
    t->words[entry->value].count++;
    return true;
}

static bool count_words(trainer *t, const char *const *texts, const size_t *bytes, int64_t n) {
    tn__cutter c = {.patterns = &t->b.t->patterns, .piece = count_word, .user = t};
    bool done = tn__cut_begin(&c);
    for (int64_t i = 0; done && i < n; i++) {
        tn__cut_whole(&c, bytes[i]);
        done = tn__cut_part(&c, texts[i], bytes[i], 0);
    }
    tn__cut_end(&c);
    tn__text_table_free(&t->known);
    return done;
}

/* The ids of single bytes are in the order of the alphabet, as GPT-2's are. */
static bool spell_words(trainer *t) {
    const tn__byte_alphabet alphabet = tn__byte_alphabet_make();
    int32_t id_of[256], next = 0;
    uint64_t all = 0;
    for (size_t i = 0; i < sizeof(alphabet.byte) / sizeof(alphabet.byte[0]); i++) {
        if (alphabet.byte[i] >= 0) {
            t->single[next] = (char)alphabet.byte[i];
            id_of[alphabet.byte[i]] = next++;
        }
    }
    for (uint32_t i = 0; i < t->word_count; i++) {
        all += t->words[i].bytes;
    }
    t->symbols = tn__malloc_for(all * sizeof(int32_t), OPERATION);
    if (!t->symbols) { return false; }
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->word_count; i++) {
        word *w = &t->words[i];
        w->first = at;
        w->symbols = w->bytes;
        for (uint32_t j = 0; j < w->bytes; j++) {
            t->symbols[at++] = id_of[(unsigned char)w->text[j]];
        }
    }
    return true;
}

/* ---- Candidates ------------------------------------------------------------------------------ */

static bool is_before(const trainer *t, const waiting *a, const waiting *b) {
    const candidate *x = &t->candidates[a->candidate], *y = &t->candidates[b->candidate];
    if (a->count != b->count) { return a->count > b->count; }
    return x->left < y->left || (x->left == y->left && x->right < y->right);
}

static bool push_waiting(trainer *t, waiting w) {
    if (!(t->heap_count < INT32_MAX || raise_memory()) ||
        !tn__grow(&t->heap, t->heap_count + 1, &t->heap_capacity, sizeof(*t->heap), OPERATION)) {
        free(w.words.of);
        return false;
    }
    uint32_t i = t->heap_count++;
    for (; i > 0 && is_before(t, &w, &t->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        t->heap[i] = t->heap[(i - 1) / 2];
    }
    t->heap[i] = w;
    return true;
}

static waiting pop_waiting(trainer *t) {
    waiting first = t->heap[0], last = t->heap[--t->heap_count];
    uint32_t i = 0;
    for (uint32_t child = 1; child < t->heap_count; child = 2 * i + 1) {
        child += child + 1 < t->heap_count && is_before(t, &t->heap[child + 1], &t->heap[child]);
        if (!is_before(t, &t->heap[child], &last)) { break; }
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = last;
    return first;
}

/* The candidate for two neighbours; NULL after raising. */
static candidate *candidate_of(trainer *t, int32_t left, int32_t right) {
    const tn__pair *there = tn__pairs_find(&t->pairs, left, right);
    if (there) { return &t->candidates[there->id]; }
    if (!tn__grow(&t->candidates, t->candidate_count + 1, &t->candidate_capacity,
                  sizeof(*t->candidates), OPERATION)) {
        return NULL;
    }
    if (t->candidate_count == INT32_MAX ||
        !tn__pairs_put(&t->pairs, (tn__pair){left, right, 0, (int32_t)t->candidate_count})) {
        raise_memory();
        return NULL;
    }
    t->candidates[t->candidate_count] = (candidate){.left = left, .right = right};
    return &t->candidates[t->candidate_count++];
}

/* These two are neighbours `times` more often in a word; negative: less often. */
static bool change_count(trainer *t, int32_t left, int32_t right, int64_t times, uint32_t place) {
    candidate *c = candidate_of(t, left, right);
    if (!c) { return false; }
    c->count += times;
    places *fresh = &c->fresh;
    if (times < 0 || (fresh->count && fresh->of[fresh->count - 1] == place)) { return true; }
    if (fresh->count == 0) {
        if (!tn__grow(&t->touched, t->touched_count + 1, &t->touched_capacity, sizeof(*t->touched),
                      OPERATION)) {
            return false;
        }
        t->touched[t->touched_count++] = (uint32_t)(c - t->candidates);
    }
    if (!tn__grow(&fresh->of, fresh->count + 1, &fresh->capacity, sizeof(*fresh->of), OPERATION)) {
        return false;
    }
    fresh->of[fresh->count++] = place;
    return true;
}

/* Puts candidates with fresh words into the heap, with these words. */
static bool queue_fresh(trainer *t) {
    bool done = true;
    for (uint32_t i = 0; i < t->touched_count; i++) {
        candidate *c = &t->candidates[t->touched[i]];
        places words = c->fresh;
        c->fresh = (places){0};
        if (!done || c->count <= 0) {
            free(words.of);
        } else {
            done = push_waiting(t, (waiting){c->count, t->touched[i], words});
        }
    }
    t->touched_count = 0;
    return done;
}

static bool count_pairs(trainer *t) {
    for (uint32_t i = 0; i < t->word_count; i++) {
        const word *w = &t->words[i];
        for (uint32_t j = 0; j + 1 < w->symbols; j++) {
            const int32_t *at = &t->symbols[w->first + j];
            if (!change_count(t, at[0], at[1], w->count, i)) { return false; }
        }
    }
    return queue_fresh(t);
}

/* ---- Joining --------------------------------------------------------------------------------- */

static bool join_in_word(trainer *t, uint32_t place, int32_t left, int32_t right, int32_t id) {
    word *w = &t->words[place];
    int32_t *s = &t->symbols[w->first];
    uint32_t to = 0;
    for (uint32_t from = 0; from < w->symbols; to++) {
        bool pair = s[from] == left && from + 1 < w->symbols && s[from + 1] == right;
        s[to] = pair ? id : s[from];
        from += pair ? 2 : 1;
        if (!pair) { continue; }
        if (to > 0 && (!change_count(t, s[to - 1], left, -w->count, place) ||
                       !change_count(t, s[to - 1], id, w->count, place))) {
            return false;
        }
        if (from < w->symbols && (!change_count(t, right, s[from], -w->count, place) ||
                                  !change_count(t, id, s[from], w->count, place))) {
            return false;
        }
    }
    w->symbols = to;
    return true;
}

static const char *token_text(const trainer *t, int32_t id, uint32_t *bytes) {
    *bytes = id < 256 ? 1 : t->bytes[id - 256];
    return id < 256 ? &t->single[id] : t->tokens[id - 256];
}

/* The id of two tokens joined, which other pairs may already have made; -1: it is the text of a
 * special token, which no pair may make; -2 after raising. */
static int32_t joined_id(trainer *t, int32_t left, int32_t right) {
    uint32_t first, second;
    const char *a = token_text(t, left, &first), *b = token_text(t, right, &second);
    char *text = tn__malloc_for(first + second, OPERATION);
    if (!text) { return -2; }
    memcpy(text, a, first);
    memcpy(text + first, b, second);
    bool special = false;
    for (int i = 0; i < t->o.special_count; i++) {
        special = special || (strlen(t->o.special[i]) == first + second &&
                              memcmp(t->o.special[i], text, first + second) == 0);
    }
    tn__text_entry *entry = special ? NULL : tn__text_put(&t->known, text, first + second);
    if (entry && entry->value < 0) {
        entry->value = t->token_count++;
        t->tokens[entry->value - 256] = text;
        t->bytes[entry->value - 256] = first + second;
    } else {
        free(text);
    }
    if (!entry && !special) { raise_memory(); }
    return entry ? entry->value : special ? -1 : -2;
}

static bool join_pair(trainer *t, const waiting *w) {
    const candidate c = t->candidates[w->candidate];
    int32_t id = joined_id(t, c.left, c.right);
    if (id < 0) { return id == -1; }
    tn__pair pair = {c.left, c.right, t->b.rank++, id};
    if (!tn__pairs_put(&t->b.t->pairs, pair)) { return raise_memory(); }
    for (uint32_t i = 0; i < w->words.count; i++) {
        if (!join_in_word(t, w->words.of[i], c.left, c.right, id)) { return false; }
    }
    return queue_fresh(t);
}

static bool join_pairs(trainer *t) {
    int64_t most = t->o.vocab - t->o.special_count;
    bool done = true;
    while (done && t->token_count < most && t->heap_count) {
        waiting w = pop_waiting(t);
        int64_t count = t->candidates[w.candidate].count;
        if (w.count != count) {
            w.count = count;
            done = push_waiting(t, w);
            continue;
        }
        if (count < 1 || count < t->o.min_count) {
            free(w.words.of);
            break;
        }
        done = join_pair(t, &w);
        free(w.words.of);
    }
    return done;
}

/* ---- Training -------------------------------------------------------------------------------- */

static bool add_tokens(trainer *t) {
    bool done = true;
    for (int32_t id = 0; done && id < t->token_count; id++) {
        uint32_t bytes;
        const char *text = token_text(t, id, &bytes);
        done = tn__build_token(&t->b, text, bytes, id, TN__TOKEN_BYTES);
    }
    for (int i = 0; done && i < t->o.special_count; i++) {
        const char *text = t->o.special[i];
        done = tn__build_token(&t->b, text, strlen(text), t->token_count + i, TN__TOKEN_SPECIAL);
    }
    return done;
}

static bool begin_training(trainer *t) {
    const char *pattern = tn__pattern_named(t->o.pattern);
    size_t most = (size_t)(t->o.vocab - t->o.special_count - 256) + 1;
    t->token_count = 256;
    t->tokens = tn__calloc_for(most, sizeof(char *), OPERATION);
    t->bytes = tn__calloc_for(most, sizeof(uint32_t), OPERATION);
    if (!t->tokens || !t->bytes) { return false; }
    return tn__build_begin(&t->b, OPERATION, "the new vocabulary", TN__AS_IS) &&
           tn__build_pattern(&t->b, pattern ? pattern : t->o.pattern, false);
}

static void free_trainer(trainer *t) {
    for (uint32_t i = 0; i < t->heap_count; i++) {
        free(t->heap[i].words.of);
    }
    for (uint32_t i = 0; i < t->candidate_count; i++) {
        free(t->candidates[i].fresh.of);
    }
    for (int32_t id = 256; id < t->token_count; id++) {
        free(t->tokens[id - 256]);
    }
    tn__text_table_free(&t->known);
    tn__pairs_free(&t->pairs);
    free(t->heap);
    free(t->touched);
    free(t->candidates);
    free(t->tokens);
    free(t->bytes);
    free(t->symbols);
    free(t->words);
}

tn_tokenizer_train_options tn_tokenizer_train_defaults(void) {
    static const char *const special[] = {"<|endoftext|>"};
    return (tn_tokenizer_train_options){.vocab = 50257,
                                        .pattern = "gpt2",
                                        .special = special,
                                        .special_count = 1,
                                        .from_defaults = true};
}

/* False after raising. */
static bool check_training(const char *const *texts, const size_t *bytes, int64_t n,
                           const tn_tokenizer_train_options *o) {
    const char *null = n > 0 && !texts                       ? "texts"
                       : n > 0 && !bytes                     ? "bytes"
                       : !o->pattern                         ? "pattern"
                       : o->special_count > 0 && !o->special ? "special"
                                                             : NULL;
    for (int64_t i = 0; !null && i < n; i++) {
        null = !texts[i] && bytes[i] ? "one of the texts" : NULL;
    }
    for (int i = 0; !null && i < o->special_count; i++) {
        null = !o->special[i] ? "one of the special tokens" : NULL;
    }
    if (null) { return tn__fail(TN_EVALUE, OPERATION, "%s is NULL", null); }
    const char *wrong = TN__BEYOND({"n", n, 0, 0}, {"special_count", o->special_count, 0, 0},
                                   {"vocab", o->vocab, 256 + (int64_t)o->special_count, 1 << 24});
    return !wrong || tn__fail(TN_EVALUE, OPERATION, "%s", wrong);
}

tn_tokenizer *tn_tokenizer_train(const char *const *texts, const size_t *bytes, int64_t n,
                                 tn_tokenizer_train_options o) {
    if (tn__pending() ||
        !tn__options_made(o.from_defaults, "tokenizer_train", "tn_tokenizer_train") ||
        !check_training(texts, bytes, n, &o)) {
        return NULL;
    }
    trainer t = {.o = o};
    bool done = begin_training(&t) && count_words(&t, texts, bytes, n) && spell_words(&t) &&
                count_pairs(&t) && join_pairs(&t) && add_tokens(&t);
    tn_tokenizer *made = tn__build_end(&t.b, done);
    free_trainer(&t);
    return made;
}
