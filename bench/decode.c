/* GPT-2 124M writing text, or reading a prompt: decode [OPTIONS] WHAT N, driven through
 * bench_serve.
 *
 *     decode token N      a step gives each sequence one token; the caches hold N or more positions
 *     decode prompt N     a step reads N tokens into empty caches, for the next token's logits
 *     decode forward N    a step is the forward of training: all logits, recorded
 *     decode read N       a step reads as many bytes as the weights, the limit (N is ignored)
 *
 * "loss" is the largest logit of the last position. --share FOLDER writes the weights for a peer
 * (peers/torch_decode.py), which takes the same options.
 */
#include "bench/trainer.h"

#include "models/language.h"

#include <getopt.h>
#include <omp.h>

enum { FED = 64 }; /* tokens that are written before the caches go back to N positions */

typedef struct decoder {
    tn_gpt gpt;
    const char *what;
    int64_t batch, N;
    int64_t place, fed;
    float *logits, *weights; /* weights: bytes to read */
    int64_t bytes;
} decoder;

/* Tokens that any program can make: they do not depend on what came out. */
static tn_tensor *next_tokens(decoder *d, int64_t T) {
    tn_tensor *tokens = tn_empty(TN_DIMS(d->batch, T), TN_I64);
    int64_t *at = tn_data_mut(tokens);
    for (int64_t i = 0; i < d->batch * T; i++) {
        at[i] = (d->fed + i % T) * 7919 % 50257;
    }
    d->fed += T;
    return tokens;
}

static double largest_logit(decoder *d, tn_tensor *logits) {
    TN_NO_GRAD;
    int64_t vocab = tn_size(logits, 2);
    tn_copy_out(tn_cast(tn_narrow(logits, 1, tn_size(logits, 1) - 1, 1), TN_F32), d->logits);
    float most = d->logits[0];
    for (int64_t i = 1; i < vocab; i++) {
        most = d->logits[i] > most ? d->logits[i] : most;
    }
    return most;
}

static double call_cached(decoder *d, int64_t T) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn__lm_context last = {.last_only = true};
    tn_values out = tn_call_values(&d->gpt, tn_values_of(next_tokens(d, T), NULL), &last);
    d->place += T;
    return largest_logit(d, out.v[0]);
}

static void go_back(decoder *d, int64_t place) {
    tn_cache_rewind(&d->gpt, place);
    d->place = d->fed = place;
}

static double token_step(void *user) {
    decoder *d = user;
    if (d->place == d->N + FED) { go_back(d, d->N); }
    return call_cached(d, 1);
}

static double prompt_step(void *user) {
    decoder *d = user;
    go_back(d, 0);
    return call_cached(d, d->N);
}

static double forward_step(void *user) {
    decoder *d = user;
    TN_SCOPE;
    d->fed = 0;
    return largest_logit(d, tn_call(&d->gpt, next_tokens(d, d->N)));
}

/* ---- The limit: a sum of everything, on all threads ------------------------------------------ */

#if defined(__x86_64__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default"), noinline))
#else
#define CLONES __attribute__((noinline))
#endif

CLONES static float sum_part(const float *x, int64_t n) {
    enum { LANES = 128 };
    float lane[LANES] = {0};
    for (int64_t i = 0; i + LANES <= n; i += LANES) {
        __builtin_prefetch(x + i + 512);
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            lane[l] += x[i + l];
        }
    }
    float sum = 0;
    for (int l = 0; l < LANES; l++) {
        sum += lane[l];
    }
    return sum;
}

static double read_step(void *user) {
    decoder *d = user;
    int64_t pieces = 64 * tn_threads(), n = d->bytes / 4 / pieces;
    float sum = 0;
#pragma omp parallel for num_threads(tn_threads()) schedule(static) reduction(+ : sum)
    for (int64_t p = 0; p < pieces; p++) {
        sum += sum_part(d->weights + p * n, n);
    }
    return sum;
}

/* ---- The program ----------------------------------------------------------------------------- */

static void print_usage(void) {
    fprintf(stderr,
            "usage: decode [--size tiny|124M] [--batch N] [--precision f32|bf16|int8] [--share "
            "FOLDER]\n              token|prompt|forward|read N   (run bench/decode.py)\n");
    exit(2);
}

static bool add_bytes(const tn_entry *entry, void *user) {
    *(int64_t *)user +=
        tn_count(entry->stored) * (int64_t)tn_dtype_size(tn_dtype_of(entry->stored));
    return true;
}

static bool copy_entry(const tn_entry *entry, void *user) {
    tn_copy_(tn_module_get(user, entry->path), entry->stored);
    return true;
}

/* The weights as `precision` says, from the same f32 for all; a peer's copy; and their bytes. */
static void make_model(decoder *d, tn_gpt_options o, const char *precision, const char *folder) {
    static tn_gpt source;
    bool bf16 = strcmp(precision, "bf16") == 0;
    TN_NO_GRAD;
    tn_gpt_init(bf16 ? &source : &d->gpt, o);
    if (folder) {
        TN_SCOPE;
        tn_tensor *none = tn_zeros(TN_DIMS(1, 1, 1), TN_I64);
        bench_share(bf16 ? &source : &d->gpt, folder, none, none);
    }
    if (bf16) {
        o.dtype = TN_BF16;
        {
            TN_DEFER_INIT;
            tn_gpt_init(&d->gpt, o);
        }
        tn_module_each(&source, (tn_walk){0}, copy_entry, &d->gpt);
        tn_module_finish(&source);
    } else if (strcmp(precision, "int8") == 0) {
        tn_quantize(&d->gpt);
    }
    tn_module_each(&d->gpt, (tn_walk){.buffers = true}, add_bytes, &d->bytes);
}

int main(int argc, char **argv) {
    static const struct option list[] = {{"size", 1, NULL, 's'},
                                         {"batch", 1, NULL, 'b'},
                                         {"precision", 1, NULL, 'p'},
                                         {"share", 1, NULL, 'f'},
                                         {0}};
    static decoder d = {.batch = 1};
    tn_on_error(tn_error_exit);
    tn_gpt_options o = tn_gpt_defaults();
    const char *precision = "f32", *folder = NULL;
    for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        if (key == 'b') {
            d.batch = atoi(optarg);
        } else if (key == 'p') {
            precision = optarg;
        } else if (key == 'f') {
            folder = optarg;
        } else if (key != 's' || !trainer_size(optarg, &o)) {
            print_usage();
        }
    }
    if (optind + 2 != argc || d.batch < 1) { print_usage(); }
    d.what = argv[optind];
    d.N = atoi(argv[optind + 1]);
    if (d.N < 1 || d.N > o.context - FED) { print_usage(); }
    tn_seed(1337);
    make_model(&d, o, precision, folder);
    d.logits = malloc((size_t)(d.batch * o.vocab) * sizeof(*d.logits));
    double (*step)(void *) = token_step;
    if (strcmp(d.what, "read") == 0) {
        d.weights = tn_data_mut(tn_zeros(TN_DIMS(d.bytes / 4 + 1), TN_F32));
        tn_module_finish(&d.gpt);
        step = read_step;
    } else if (strcmp(d.what, "forward") == 0) {
        step = forward_step;
    } else {
        tn_cache_begin(&d.gpt, (tn_attention_cache_options){d.batch, d.N + FED});
        if (strcmp(d.what, "prompt") == 0) {
            step = prompt_step;
        } else {
            call_cached(&d, d.N);
        }
    }
    int status = bench_serve(step, &d);
    if (step != read_step) { tn_module_finish(&d.gpt); }
    free(d.logits);
    return status;
}
