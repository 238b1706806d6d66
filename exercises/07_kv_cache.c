/* Exercise 7: generation with a cache of keys and values. The page is 07_kv_cache.md. */
#include "../tiny/tiny.c"
#include "judge.h"

enum { CONTEXT = 24, LAYERS = 3, HEADS = 2, WIDTH = 16 };
gpt m = {.vocab = 11, .context = CONTEXT, .layers = LAYERS, .heads = HEADS, .width = WIDTH};

/* What attention remembers of the tokens so far. Row t is of token t. */
typedef struct {
    int length; /* tokens */
    float k[CONTEXT * WIDTH], v[CONTEXT * WIDTH];
} cache;

/* attention() of tiny.c for one new token x (1, 1, C). */
tensor *attention_step(const char *path, tensor *x, int H, cache *c) {
    int C = x->s.d[3], D = C / H;
    tensor *all = linear(under(path, "c_attn"), x, 3 * C, false); /* q, k, v: C numbers each */
    tensor *y = narrow(all, 0, 2 * C, C);
    /* ---- yours ---- */
    (void)c, (void)D;
    /* ---- end ---- */
    return linear(under(path, "c_proj"), y, C, false);
}

tensor *block_step(const char *path, tensor *x, int heads, cache *c) {
    tensor *h = layer_norm(under(path, "ln_1"), x);
    x = add(x, attention_step(under(path, "attn"), h, heads, c));
    h = gelu(linear(under(path, "mlp.c_fc"), layer_norm(under(path, "ln_2"), x), 4 * WIDTH, false));
    return add(x, linear(under(path, "mlp.c_proj"), h, WIDTH, false));
}

/* gpt_call() for the token at a position, when those before it are in the caches. */
tensor *gpt_step(int token, int position, cache *caches) {
    tensor *wte = param("wte", "weight", S(m.vocab, WIDTH), 0, 0);
    tensor *wpe = param("wpe", "weight", S(CONTEXT, WIDTH), 0, 0);
    tensor *x = add(embedding(wte, &token, S(1, 1)), embedding(wpe, &position, S(1, 1)));
    for (int i = 0; i < LAYERS; i++) {
        char path[16];
        snprintf(path, sizeof(path), "h.%d", i);
        x = block_step(path, x, HEADS, &caches[i]);
    }
    return matmul(layer_norm("ln_f", x), transpose(wte, 0, 1));
}

/* ---- The judge ---- */

int largest(const float *x) {
    int best = 0;
    for (int i = 1; i < m.vocab; i++) { best = x[i] > x[best] ? i : best; }
    return best;
}

/* The caches of layer 0 and the scores, after the token at position t. */
int judge_step(const int *text, int t, const cache *caches, const float *scores) {
    for (int i = 0; i < LAYERS; i++) {
        if (caches[i].length != t + 1) {
            return differs("layer %d: tokens in the cache after position %d, expected %d, got %d",
                           i, t, t + 1, caches[i].length);
        }
    }
    tensor *wte = param("wte", "weight", S(m.vocab, WIDTH), 0, 0);
    tensor *wpe = param("wpe", "weight", S(CONTEXT, WIDTH), 0, 0);
    tensor *x = add(embedding(wte, text + t, S(1, 1)), embedding(wpe, &t, S(1, 1)));
    const tensor *all = linear("h.0.attn.c_attn", layer_norm("h.0.ln_1", x), 3 * WIDTH, false);
    for (int i = 0; i < 2 * WIDTH; i++) {
        const float *rows = i < WIDTH ? caches[0].k : caches[0].v;
        double expected = (double)all->mem[WIDTH + i], got = (double)rows[t * WIDTH + i % WIDTH];
        if (!near(expected, got, 1e-4)) {
            return differs("layer 0: row %d, column %d of the cache's %s, expected %.4f, got %.4f: "
                           "row t begins at t * C",
                           t, i % WIDTH, i < WIDTH ? "keys" : "values", expected, got);
        }
    }
    const float *expected = gpt_call(m, text, 1, t + 1)->mem + t * m.vocab;
    for (int i = 0; i < m.vocab; i++) {
        if (!near((double)expected[i], (double)scores[i], 1e-4)) {
            return differs(
                "position %d, score %d, expected %.4f, got %.4f: layer 0's cache is right; the "
                "query sees all %d tokens, by heads, divided by sqrt(D)",
                t, i, (double)expected[i], (double)scores[i], t + 1);
        }
    }
    return 0;
}

int main(void) {
    recording = false;
    for (int round = 0; round < 4; round++) {
        int text[CONTEXT] = {(int)(m.vocab * uniform())};
        static cache caches[LAYERS], others[LAYERS]; /* of another text */
        memset(caches, 0, sizeof(caches)), memset(others, 0, sizeof(others));
        gpt_call(m, text, 1, 1); /* makes the parameters */
        for (int p = 0; p < param_count; p++) {
            for (long i = 0; i < count_of(params[p].t->s); i++) {
                params[p].t->mem[i] += (float)(0.3 * normal());
            }
        }
        for (int t = 0; t < CONTEXT; t++, tape_clear()) {
            gpt_step((text[t] + 1) % m.vocab, t, others);
            const float *scores = gpt_step(text[t], t, caches)->mem;
            if (judge_step(text, t, caches, scores)) { return 1; }
            if (t + 1 < CONTEXT) { text[t + 1] = largest(scores); }
        }
    }
    return pass();
}
