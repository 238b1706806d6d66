/* `tern eval`: how well a language model knows a text (--data), or which ending it would choose
 * (--choices), on one process or under `tern run`. */
#include "tools/eval.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/json_text.h"
#include "tools/numbers.h"
#include "tools/why.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/evaluate.h>
#include <tern/models.h>

/* Without --context and --batch. */
enum { CONTEXT_MOST = 4096, TOKENS_AT_ONCE = 1024, ENDINGS_AT_ONCE = 8 };

typedef enum eval_dtype { EVAL_F32, EVAL_BF16, EVAL_INT8, EVAL_AS_STORED } eval_dtype;
static const char *const dtypes[] = {"f32", "bf16", "int8"};

typedef struct evaluation {
    const char *model, *data, *choices, *tokenizer, *device;
    eval_dtype dtype;
    int64_t context, stride, batch, threads; /* 0: not given */
    bool json;
    /* what is made of them */
    tn_group *world;
    bool first_rank; /* prints */
    tn_module *net;
    tn_lm_shape shape;
    tn_tokenizer *words; /* NULL: there is none */
    double began;
} evaluation;

/* ---- Options --------------------------------------------------------------------------------- */

enum { STRIDE = 256, CONTEXT, BATCH, DTYPE, DEVICE, THREADS, JSON, TOKENIZER };

static const struct argp_option option_list[] = {
    {"model", 'm', "DIR", 0, "The model: a folder with Hugging Face's files", 0},
    {"data", 'd', "PATTERN", 0, "Files of tokens ('val_*.bin'): measures the perplexity", 0},
    {"choices", 'c', "FILE", 0,
     "Questions with endings to choose from, JSON lines as HellaSwag's: measures the accuracy", 0},
    {"stride", STRIDE, "N", 0,
     "Tokens from one window to the next: what is left of the context stands before each token "
     "(default: the context)",
     0},
    {"context", CONTEXT, "N", 0,
     "Tokens that the model sees at once (default: its own, 4096 at most)", 0},
    {"batch", 'b', "N", 0,
     "Windows, or endings, in a call of the model (default: what makes 1024 tokens; 8 endings)", 0},
    {"dtype", DTYPE, "f32|bf16|int8", 0,
     "Of the weights in memory (default: as in the file); int8: those of linears and embeddings "
     "are bytes",
     0},
    {"tokenizer", TOKENIZER, "PATH", 0, "Default: the model's folder, where it has one", 0},
    {"device", DEVICE, "NAME", 0, "cpu (the default), cuda, cuda:1", 0},
    {"threads", THREADS, "N", 0, "Default: the cores, shared among the ranks of a host", 0},
    {"json", JSON, NULL, 0, "The result as one line of JSON", 0},
    {0},
};

static void parse_dtype(struct argp_state *state, const char *text, eval_dtype *to) {
    for (int i = 0; i < EVAL_AS_STORED; i++) {
        if (strcmp(text, dtypes[i]) == 0) {
            *to = (eval_dtype)i;
            return;
        }
    }
    argp_error(state, "--dtype %s: there are f32, bf16 and int8", text);
}

static void check_options(struct argp_state *state, const evaluation *e) {
    if (!e->model) {
        argp_error(state, "no model: --model DIR");
    }
    if (!e->data == !e->choices) {
        argp_error(state, "either --data PATTERN or --choices FILE");
    }
    if (e->choices && e->stride) {
        argp_error(state, "--stride is for --data");
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    evaluation *e = state->input;
    switch (key) {
    case 'm':
        e->model = text;
        return 0;
    case 'd':
        e->data = text;
        return 0;
    case 'c':
        e->choices = text;
        return 0;
    case TOKENIZER:
        e->tokenizer = text;
        return 0;
    case DEVICE:
        e->device = text;
        return 0;
    case JSON:
        e->json = true;
        return 0;
    case DTYPE:
        parse_dtype(state, text, &e->dtype);
        return 0;
    case STRIDE:
        e->stride = argument_whole(state, "stride", text, 1, INT32_MAX);
        return 0;
    case CONTEXT:
        e->context = argument_whole(state, "context", text, 1, INT32_MAX);
        return 0;
    case 'b':
        e->batch = argument_whole(state, "batch", text, 1, INT32_MAX);
        return 0;
    case THREADS:
        e->threads = argument_whole(state, "threads", text, 1, INT32_MAX);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is \"%s\"? A pattern stands in quotes", text);
        return 0;
    case ARGP_KEY_END:
        check_options(state, e);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp description = {
    .options = option_list,
    .parser = parse_option,
    .args_doc = "--model DIR (--data PATTERN | --choices FILE)",
    .doc = "Measures a language model.\n\n"
           "--data: loss and perplexity over every token of the files, each file's first left out, "
           "and bits per byte of text where there is a tokenizer.\n"
           "--choices: the share of questions whose right ending the model expects most: acc by "
           "the likelihood, acc_norm by the likelihood of a character, as lm-evaluation-harness "
           "does, acc_norm_per_token of a token, as llm.c does.\v"
           "`tern run -n N tern eval ...` shares the work among N ranks; the result is that of "
           "one. The exit status is 1 when it fails, 64 when the command line is wrong."};

/* ---- The objects ----------------------------------------------------------------------------- */

static tn_status join_world(evaluation *e) {
    tn_device device = tn_device_named(e->device);
    tn_dist_options d = tn_dist_defaults();
    d.device = device.kind;
    e->world = tn_dist_init(d);
    e->first_rank = tn_group_rank(e->world) == 0;
    if (strchr(e->device, ':')) {
        tn_set_default_device(device);
    }
    if (e->threads) {
        tn_set_threads((int)e->threads);
    }
    return tn_error();
}

static tn_status load_model(evaluation *e) {
    tn_lm_load_options o = tn_lm_load_defaults();
    o.as_stored = e->dtype == EVAL_AS_STORED;
    o.dtype = e->dtype == EVAL_BF16 ? TN_BF16 : TN_F32;
    e->net = tn_lm_load(e->model, o);
    if (e->net && e->dtype == EVAL_INT8) {
        tn_quantize(e->net);
    }
    if (e->net && tn_lm_shape_of(e->net, &e->shape) == TN_OK) {
        int64_t most = e->shape.context < CONTEXT_MOST ? e->shape.context : CONTEXT_MOST;
        e->context = e->context ? e->context : most;
    }
    if (e->net && e->context > e->shape.context) {
        return tn_raise(TN_EVALUE, "--context %lld: the model %s sees %lld tokens at once",
                        (long long)e->context, e->model, (long long)e->shape.context);
    }
    return tn_error();
}

/* Whether the model's folder has one of the files that tn_tokenizer_load looks for. */
static bool has_tokenizer(const char *folder) {
    return tn__folder_has(folder, "tokenizer.json") || tn__folder_has(folder, "vocab.json");
}

static tn_status load_tokenizer(evaluation *e) {
    const char *path = e->tokenizer ? e->tokenizer : has_tokenizer(e->model) ? e->model : NULL;
    if (!path && e->choices) {
        return tn_raise(TN_EVALUE, "eval: %s has no tokenizer: --tokenizer PATH", e->model);
    }
    e->words = path ? tn_tokenizer_load(path) : NULL;
    if (e->words && tn_tokenizer_size(e->words) > e->shape.vocab) {
        return tn_raise(TN_EVALUE, "eval: the tokenizer %s has %lld tokens, the model %s has %lld",
                        path, (long long)tn_tokenizer_size(e->words), e->model,
                        (long long)e->shape.vocab);
    }
    return tn_error();
}

static tn_evaluate_options options_of(const evaluation *e, int64_t batch) {
    tn_evaluate_options o = tn_evaluate_defaults();
    o.group = e->world;
    o.batch = e->batch ? e->batch : batch;
    o.progress = stderr;
    return o;
}

/* ---- Results --------------------------------------------------------------------------------- */

/* A number that JSON has: not NaN, not infinite. */
static void put_number(tn__json_text *j, const char *name, double value) {
    tn__json_put(j, isfinite(value) ? ",\"%s\":%.17g" : ",\"%s\":null", name, value);
}

static void put_whole(tn__json_text *j, const char *name, int64_t value) {
    tn__json_put(j, ",\"%s\":%lld", name, (long long)value);
}

static void print_json(const evaluation *e, tn__json_text *rest) {
    tn__json_text j = {0};
    tn__json_put(&j, "{\"model\":");
    tn__json_put_string(&j, e->model);
    tn__json_put(&j, e->data ? ",\"data\":" : ",\"choices\":");
    tn__json_put_string(&j, e->data ? e->data : e->choices);
    if (e->dtype != EVAL_AS_STORED) {
        tn__json_put(&j, ",\"dtype\":\"%s\"", dtypes[e->dtype]);
    }
    put_whole(&j, "context", e->context);
    tn__json_put_bytes(&j, rest->at, rest->bytes);
    put_number(&j, "seconds", tn__now() - e->began);
    tn__json_put(&j, "}\n");
    if (j.failed || rest->failed) {
        tn_raise(TN_ENOMEM, "eval: no memory for the result");
    } else {
        fwrite(j.at, 1, j.bytes, stdout);
    }
    free(j.at);
}

static void say_perplexity(const evaluation *e, const tn_perplexity *p) {
    if (e->json) {
        tn__json_text j = {0};
        put_whole(&j, "stride", e->stride);
        put_whole(&j, "windows", p->windows);
        put_whole(&j, "tokens", p->tokens);
        put_number(&j, "loss", p->loss);
        put_number(&j, "perplexity", p->perplexity);
        put_number(&j, "bits_per_byte", p->bits_per_byte);
        print_json(e, &j);
        free(j.at);
        return;
    }
    printf("%lld tokens, %lld windows of %lld, stride %lld\n", (long long)p->tokens,
           (long long)p->windows, (long long)e->context, (long long)e->stride);
    printf("loss %.4f\nperplexity %.4f\n", p->loss, p->perplexity);
    if (p->bytes) {
        printf("bits per byte %.4f\n", p->bits_per_byte);
    }
}

static void say_scores(const evaluation *e, const tn_choice_scores *c) {
    if (e->json) {
        tn__json_text j = {0};
        put_whole(&j, "questions", c->questions);
        put_number(&j, "acc", c->acc);
        put_number(&j, "acc_norm", c->acc_norm);
        put_number(&j, "acc_norm_per_token", c->acc_norm_per_token);
        print_json(e, &j);
        free(j.at);
        return;
    }
    printf("%lld questions, %lld endings\n", (long long)c->questions, (long long)c->endings);
    printf("acc %.4f\nacc_norm %.4f\nacc_norm_per_token %.4f\n", c->acc, c->acc_norm,
           c->acc_norm_per_token);
}

/* ---- The two evaluations --------------------------------------------------------------------- */

static tn_status evaluate_data(evaluation *e) {
    tn_perplexity p;
    e->stride = e->stride ? e->stride : e->context;
    if (e->words && tn_token_shards_check(e->data, e->words) != TN_OK) {
        return tn_error();
    }
    tn_dataset *windows = tn_sliding_shards(e->data, e->context, e->stride, e->shape.vocab);
    int64_t batch = e->context < TOKENS_AT_ONCE ? TOKENS_AT_ONCE / e->context : 1;
    if (windows &&
        tn_evaluate_perplexity(e->net, windows, e->words, options_of(e, batch), &p) == TN_OK &&
        e->first_rank) {
        say_perplexity(e, &p);
    }
    tn_dataset_free(windows);
    return tn_error();
}

static tn_status evaluate_choices(evaluation *e) {
    tn_choice_scores c;
    if (tn_evaluate_choices(e->net, e->choices, e->words, e->context,
                            options_of(e, ENDINGS_AT_ONCE), &c) == TN_OK &&
        e->first_rank) {
        say_scores(e, &c);
    }
    return tn_error();
}

int eval_main(int argc, char **argv) {
    evaluation e = {.device = "cpu", .dtype = EVAL_AS_STORED, .began = tn__now()};
    argp_parse(&description, argc, argv, 0, NULL, &e);
    bool done = join_world(&e) == TN_OK && load_model(&e) == TN_OK && load_tokenizer(&e) == TN_OK &&
                (e.data ? evaluate_data(&e) : evaluate_choices(&e)) == TN_OK;
    if (!done) {
        fprintf(stderr, "tern eval: %s\n", error_why());
    }
    tn_tokenizer_free(e.words);
    tn_lm_free(e.net);
    if (!done) {
        return 1; /* what ends at an error tells the other ranks why */
    }
    tn_dist_finish();
    return 0;
}
