/* 17. Translation: an encoder reads a word, a decoder writes another, token by token.
 *
 * The translation of a word is the same word backwards: to write its first letter the decoder must
 * look up the last one in the encoder's output (cross-attention). Words have different lengths, so
 * batches are padded and the padding masked. Prints the loss, then translations of words that it
 * never saw, and how many are right.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <string.h>

enum { PAD, START, END, LETTERS, TOKENS = LETTERS + 26 };
enum { LONGEST = 7, BATCH = 64, STEPS = 400, WIDTH = 64 };

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base;
    tn_embedding *tokens;
    tn_transformer *transformer;
    tn_linear *out;
    tn_tensor *places; /* (LONGEST + 1, WIDTH) */
} translator;

/* (B, T) -> (B, T, WIDTH) */
static tn_tensor *embed_tokens(translator *m, tn_tensor *ids) {
    return tn_add(tn_call(m->tokens, ids), tn_narrow(m->places, 0, 0, tn_size(ids, 1)));
}

/* word (B, S) -> memory (B, S, WIDTH) */
static tn_tensor *read_words(translator *m, tn_tensor *word) {
    return TN_CALL(m->transformer->encoder, embed_tokens(m, word), NULL,
                   tn_eq(word, tn_scalar(PAD, TN_I64)));
}

/* Scores of what comes next after each of the tokens so far: (B, T, TOKENS). */
static tn_tensor *write_next(translator *m, tn_tensor *memory, tn_tensor *word, tn_tensor *so_far) {
    tn_tensor *y = embed_tokens(m, so_far), *padding = tn_eq(word, tn_scalar(PAD, TN_I64));
    y = TN_CALL(m->transformer->decoder, y, memory, NULL, NULL, NULL, padding);
    return tn_call(m->out, y);
}

static tn_values translator_forward(tn_module *self, tn_values in, void *context) {
    (void)context;
    translator *m = (translator *)self;
    return TN_VALUES(write_next(m, read_words(m, in.v[0]), in.v[0], in.v[1]));
}

static void translator_init(translator *m) {
    tn_module_init_values(m, "translator", translator_forward);
    TN_OWN(m, tokens, tn_embedding_new(TOKENS, WIDTH));
    TN_OWN(m, transformer, /* causal: a token of the translation sees those before it */
           tn_transformer_new_with(WIDTH, 4, 2, 2,
                                   TN_WITH(tn_transformer, .hidden = 2 * WIDTH, .dropout = 0,
                                           .norm_first = true, .causal = true)));
    TN_OWN(m, out, tn_linear_new(WIDTH, TOKENS));
    tn_module_buffer(m, "places", &m->places, tn_sinusoids(LONGEST + 1, WIDTH, TN_F32));
}

/* ---- The data -------------------------------------------------------------------------------- */

/* Words and their translations: the tokens so far, from START, and the next one after each, up to
 * END. PAD pads words; losses ignore -100. */
typedef struct {
    int64_t word[BATCH][LONGEST], so_far[BATCH][LONGEST + 1], next[BATCH][LONGEST + 1];
} pairs;

static void make_pairs(pairs *p) {
    tn_generator *g = tn_default_generator();
    for (int i = 0; i < BATCH; i++) {
        int n = 3 + (int)tn_random_below(g, LONGEST - 2);
        for (int j = 0; j < LONGEST; j++) {
            p->word[i][j] = j < n ? LETTERS + tn_random_below(g, 26) : PAD;
        }
        for (int j = 0; j <= LONGEST; j++) {
            p->next[i][j] = j < n ? p->word[i][n - 1 - j] : j == n ? END : -100;
            p->so_far[i][j] = j == 0 ? START : j <= n ? p->next[i][j - 1] : PAD;
        }
    }
}

/* The letters before END or PAD. */
static const char *text_of(const int64_t *tokens, char *text) {
    int n = 0;
    for (; n < LONGEST && tokens[n] >= LETTERS; n++) {
        text[n] = (char)('a' + tokens[n] - LETTERS);
    }
    text[n] = 0;
    return text;
}

/* ---- Translating ----------------------------------------------------------------------------- */

/* Greedy decoding: writes what follows START, always the likeliest next token. */
static void translate_words(translator *m, tn_tensor *word, int64_t (*out)[LONGEST + 1]) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *memory = read_words(m, word);
    tn_tensor *so_far = tn_full(TN_DIMS(BATCH, 1), START, TN_I64);
    for (int i = 0; i <= LONGEST; i++) {
        tn_tensor *scores = write_next(m, memory, word, so_far);
        tn_tensor *next = tn_argmax(tn_select(scores, 1, -1), 1, true);
        so_far = TN_CAT(1, so_far, next);
    }
    tn_copy_out(tn_narrow(so_far, 1, 1, LONGEST + 1), out);
}

int main(void) {
    tn_on_error(tn_error_exit);
    tn_seed(6);
    translator net;
    translator_init(&net);
    tn_optim *opt = tn_adam(&net, TN_WITH(tn_adam, .lr = 2e-3));
    static pairs p;
    for (int step = 0; step <= STEPS; step++) {
        TN_SCOPE;
        make_pairs(&p);
        tn_tensor *word = TN_FROM(p.word, TN_DIMS(BATCH, LONGEST), TN_I64);
        tn_tensor *so_far = TN_FROM(p.so_far, TN_DIMS(BATCH, LONGEST + 1), TN_I64);
        tn_tensor *next = TN_FROM(p.next, TN_DIMS(BATCH, LONGEST + 1), TN_I64);
        tn_tensor *loss = tn_cross_entropy(TN_CALL(&net, word, so_far), next, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 100 == 0) { printf("step %3d  loss %.4f\n", step, tn_item(loss)); }
    }
    TN_SCOPE;
    int64_t found[BATCH][LONGEST + 1], right = 0;
    make_pairs(&p);
    translate_words(&net, TN_FROM(p.word, TN_DIMS(BATCH, LONGEST), TN_I64), found);
    for (int i = 0; i < BATCH; i++) {
        char word[LONGEST + 1], want[LONGEST + 1], got[LONGEST + 1];
        bool same = strcmp(text_of(p.next[i], want), text_of(found[i], got)) == 0;
        right += same;
        if (i < 10) {
            printf("%7s -> %s%s\n", text_of(p.word[i], word), got, same ? "" : "  wrong");
        }
    }
    printf("%d of %d words are right\n", (int)right, BATCH);
    tn_optim_free(opt);
    tn_module_finish(&net);
    return fflush(stdout) || ferror(stdout);
}
