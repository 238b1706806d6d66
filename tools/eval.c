/* `tern eval`: how well a language model knows a text (--data), or which ending it would choose
 * (--choices), in one process or under `tern run`. */
#include "core/clock.h"
#include "core/folder.h"
#include "text/json_write.h"
#include "tools/model.h"
#include "tools/verbs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/evaluate.h>
#include <tern/models.h>
#include <tern/train.h>

/* Defaults of --context and --batch. */
enum { CONTEXT_MOST = 4096, TOKENS_AT_ONCE = 1024, ENDINGS_AT_ONCE = 8 };

enum { AS_STORED = -1 }; /* --dtype is not given */

typedef struct evaluation {
    const char *model, *data, *choices, *tokenizer, *device, *mesh;
    int dtype;                               /* an index of model_dtypes, or AS_STORED */
    int64_t context, stride, batch, threads; /* 0: not given */
    bool json;
    /* made from the options */
    tn_group *world;
    bool first_rank; /* prints */
    tn_module *net;
    tn_spread *spread; /* NULL: each rank has the whole model */
    tn_lm_shape shape;
    tn_tokenizer *words; /* NULL: none */
    double began;
} evaluation;

/* ---- Options --------------------------------------------------------------------------------- */

static void check_options(const evaluation *e) {
    if (!e->model) { tn_options_refuse("no model: --model DIR"); }
    if (!e->data == !e->choices) { tn_options_refuse("either --data PATTERN or --choices FILE"); }
    if (e->choices && e->stride) { tn_options_refuse("--stride is for --data"); }
}

static void refuse_argument(const char *text, void *unused) {
    tn_options_refuse("unexpected \"%s\": a pattern must be in quotes", text);
}

static const char about[] =
    "Measures a language model.\n\n"
    "--data: loss and perplexity over every token of the files, each file's first left out, and "
    "bits per byte of text where there is a tokenizer.\n"
    "--choices: the share of questions whose right ending the model finds most likely: acc by "
    "total likelihood, acc_norm per character, as in lm-evaluation-harness, acc_norm_per_token per "
    "token, as in llm.c.\v"
    "`tern run -n N tern eval ...` shares the work among N ranks; the result is the same. With "
    "--mesh they share the model, too, and each reads only its part of it. The exit status is 1 "
    "when it fails, 64 when the command line is wrong.";

static tn_status parse_options(evaluation *e, int argc, char **argv) {
    const tn_option table[] = {
        {.value = "--model DIR (--data PATTERN | --choices FILE)", .read = refuse_argument},
        {"model", 'm', "DIR", "The model: a folder with Hugging Face's files", .text = &e->model},
        {"data", 'd', "PATTERN", "Files of tokens ('val_*.bin'): measures the perplexity",
         .text = &e->data},
        {"choices", 'c', "FILE",
         "Questions with endings to choose from, JSON lines like HellaSwag's: measures the "
         "accuracy",
         .text = &e->choices},
        {"stride", 0, "N",
         "Tokens from one window to the next: each token still sees the rest of the context "
         "(default: the context)",
         .whole = &e->stride, .most = INT32_MAX},
        {"context", 0, "N", "Tokens that the model sees at once (default: its own, at most 4096)",
         .whole = &e->context, .most = INT32_MAX},
        {"batch", 'b', "N",
         "Windows or endings per call of the model (default: as many as fit 1024 tokens; 8 "
         "endings)",
         .whole = &e->batch, .most = INT32_MAX},
        {"dtype", 0, "f32|bf16|int8",
         "Of the weights in memory (default: as in the file); int8: linears and embeddings as "
         "bytes",
         .choice = &e->dtype, .choices = model_dtypes},
        {"tokenizer", 0, "PATH", "Default: the model's folder, if it has one",
         .text = &e->tokenizer},
        {"mesh", 0, "DIMS", "The model's layout on the ranks: pp=N,tp=N,shard=N,dp=N,…",
         .text = &e->mesh},
        {"device", 0, "NAME", "cpu, cuda, cuda:1", .text = &e->device},
        {"threads", 0, "N", "Default: the cores, shared among the ranks of a host",
         .whole = &e->threads, .most = INT32_MAX},
        {"json", 0, NULL, "The result as one line of JSON", .flag = &e->json},
        {0},
    };
    if (tn_options_parse(argc, argv, about, table) == TN_OK) { check_options(e); }
    return tn_error();
}

/* ---- The objects ----------------------------------------------------------------------------- */

static tn_status join_world(evaluation *e) {
    tn_setup setup = tn_setup_defaults();
    setup.device = e->device;
    setup.threads = e->threads;
    e->world = tn_setup_world(&setup);
    e->first_rank = tn_group_rank(e->world) == 0;
    return tn_error();
}

static tn_status load_model(evaluation *e) {
    e->net = model_load(e->model, e->dtype, e->mesh, e->world, &e->spread);
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

static tn_status load_tokenizer(evaluation *e) {
    bool has = tn__folder_has(e->model, "tokenizer.json") || tn__folder_has(e->model, "vocab.json");
    const char *path = e->tokenizer ? e->tokenizer : has ? e->model : NULL;
    if (!path && e->choices) {
        return tn_raise(TN_EVALUE, "%s has no tokenizer: --tokenizer PATH", e->model);
    }
    e->words = path ? tn_tokenizer_load(path) : NULL;
    if (e->words && tn_tokenizer_size(e->words) > e->shape.vocab) {
        return tn_raise(TN_EVALUE, "the tokenizer %s has %lld tokens, the model %s has %lld", path,
                        (long long)tn_tokenizer_size(e->words), e->model,
                        (long long)e->shape.vocab);
    }
    return tn_error();
}

static tn_evaluate_options options_of(const evaluation *e, int64_t batch) {
    tn_evaluate_options o = tn_evaluate_defaults();
    o.group = e->spread ? tn_spread_data(e->spread) : e->world;
    o.batch = e->batch ? e->batch : batch;
    o.progress = e->first_rank ? stderr : NULL;
    return o;
}

/* ---- Results --------------------------------------------------------------------------------- */

/* Writes a number; null for NaN and infinity, which JSON lacks. */
static void put_number(tn__buffer *j, const char *name, double value) {
    tn__buffer_format(j, isfinite(value) ? ",\"%s\":%.17g" : ",\"%s\":null", name, value);
}

static void put_whole(tn__buffer *j, const char *name, int64_t value) {
    tn__buffer_format(j, ",\"%s\":%lld", name, (long long)value);
}

/* Frees `rest`. */
static void print_json(const evaluation *e, tn__buffer *rest) {
    tn__buffer j = {.operation = "eval"};
    tn__buffer_text(&j, "{\"model\":");
    tn__json_put_string(&j, e->model);
    tn__buffer_text(&j, e->data ? ",\"data\":" : ",\"choices\":");
    tn__json_put_string(&j, e->data ? e->data : e->choices);
    if (e->dtype != AS_STORED) {
        tn__buffer_format(&j, ",\"dtype\":\"%s\"", model_dtypes[e->dtype]);
    }
    put_whole(&j, "context", e->context);
    tn__buffer_add(&j, rest->at, rest->bytes);
    put_number(&j, "seconds", tn__now() - e->began);
    tn__buffer_text(&j, "}\n");
    if (!j.failed && !rest->failed) { fwrite(j.at, 1, j.bytes, stdout); }
    tn__buffer_free(&j);
    tn__buffer_free(rest);
}

static void say_perplexity(const evaluation *e, const tn_perplexity *p) {
    if (e->json) {
        tn__buffer j = {.operation = "eval"};
        put_whole(&j, "stride", e->stride);
        put_whole(&j, "windows", p->windows);
        put_whole(&j, "tokens", p->tokens);
        put_number(&j, "loss", p->loss);
        put_number(&j, "perplexity", p->perplexity);
        put_number(&j, "bits_per_byte", p->bits_per_byte);
        print_json(e, &j);
        return;
    }
    printf("%lld tokens, %lld windows of %lld, stride %lld\n", (long long)p->tokens,
           (long long)p->windows, (long long)e->context, (long long)e->stride);
    printf("loss %.4f\nperplexity %.4f\n", p->loss, p->perplexity);
    if (p->bytes) { printf("bits per byte %.4f\n", p->bits_per_byte); }
}

static void say_scores(const evaluation *e, const tn_choice_scores *c) {
    if (e->json) {
        tn__buffer j = {.operation = "eval"};
        put_whole(&j, "questions", c->questions);
        put_number(&j, "acc", c->acc);
        put_number(&j, "acc_norm", c->acc_norm);
        put_number(&j, "acc_norm_per_token", c->acc_norm_per_token);
        print_json(e, &j);
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
    if (e->words && tn_token_shards_check(e->data, e->words) != TN_OK) { return tn_error(); }
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
    evaluation e = {.device = "cpu", .dtype = AS_STORED, .began = tn__now()};
    bool done = parse_options(&e, argc, argv) == TN_OK && join_world(&e) == TN_OK &&
                load_model(&e) == TN_OK && load_tokenizer(&e) == TN_OK &&
                (e.data ? evaluate_data(&e) : evaluate_choices(&e)) == TN_OK;
    tn_tokenizer_free(e.words);
    tn_module_free(e.net);
    tn_spread_free(e.spread);
    if (done) { tn_dist_finish(); }
    return 0;
}
