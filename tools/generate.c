/* `tern generate`: text from a language model, as it is generated.
 *
 * A prompt is an option, or each line of standard input. Standard output has only what the model
 * writes, in whole characters; everything else goes to standard error.
 */
#include "tools/generate.h"

#include "core/buffer.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "tools/model.h"
#include "tools/verbs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The options, and what is made from them. */
typedef struct generation {
    generate_options asked;
    tn_generate_options o;
    tn_group *world; /* of --mesh; NULL: this process alone */
    tn_spread *spread;
    bool first_rank; /* writes the text */
    tn_module *net;
    tn_tokenizer *words;
    tn_lm_specials specials;
    int64_t context;
    tn_utf8_stream stream;
    bool screen, failed; /* standard output is a terminal; a write has failed */
    bool stopping;       /* all ranks stop, as they agreed after … */
    int64_t agreed;      /* … so many tokens of an answer */
    double load_seconds, first_token, prompt_seconds, seconds;
    int64_t prompt_tokens, tokens, first_tokens; /* first_tokens: each answer's first */
} generation;

/* ---- Model and tokenizer --------------------------------------------------------------------- */

static tn_status join_world(generation *g) {
    tn_setup setup = tn_setup_defaults();
    setup.device = g->asked.device;
    setup.threads = g->asked.threads;
    g->world = g->asked.mesh ? tn_setup_world(&setup) : NULL;
    g->first_rank = tn_group_rank(g->world) == 0;
    if (!g->asked.mesh && g->asked.threads) { tn_set_threads((int)g->asked.threads); }
    return tn_error();
}

static void load_tokenizer(generation *g) {
    tn_error_record error;
    const char *path = g->asked.tokenizer;
    g->words = tn_tokenizer_load(path ? path : g->asked.model);
    if (!path && tn_error_take(&error)) {
        tn_raise(error.status, "%s (--tokenizer PATH: where it is)", error.message + error.why);
    }
}

static tn_status load_model(generation *g) {
    const generate_options *asked = &g->asked;
    tn_lm_shape shape;
    g->net = model_load(asked->model, asked->dtype, asked->mesh, g->world, &g->spread);
    if (g->net) { load_tokenizer(g); }
    if (!g->words || tn_lm_shape_of(g->net, &shape) != TN_OK ||
        tn_lm_specials_of(g->net, g->words, asked->model, &g->specials) != TN_OK) {
        return tn_error();
    }
    g->context = shape.context;
    g->o.tokenizer = g->words;
    g->o.stop_texts = asked->stops;
    g->o.stop_tokens = g->specials.ends;
    g->o.stop_token_count = asked->ignore_end ? 0 : g->specials.end_count;
    tn_module_train(g->net, false);
    tn_device device = tn_device_named(asked->device);
    if (device.kind != TN_CPU && !g->spread) { tn_module_to(g->net, device); }
    return tn_error();
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Writes text to standard output; on a terminal without control sequences. */
static void write_text(generation *g, char *text, size_t bytes) {
    char *line = text, *end = text + bytes;
    while (g->screen && line < end) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline ? newline : end) - line);
        fwrite(line, 1, tn__plain_text(line, line, length), stdout);
        if (newline) { putchar('\n'); }
        line = newline ? newline + 1 : end;
    }
    if (!g->screen) { fwrite(text, 1, bytes, stdout); }
    g->failed = fflush(stdout) != 0 || g->failed;
}

/* Writes the whole characters of further bytes; at the end of a text also an incomplete one. */
static void write_bytes(generation *g, const char *bytes, size_t count, bool last) {
    tn__buffer b = {.operation = "generate"};
    if (g->first_rank && tn__buffer_hold(&b, TN_UTF8_BOUND(count) + 3)) {
        size_t length = tn_utf8_put(&g->stream, bytes, count, b.at);
        if (last) { length += tn_utf8_end(&g->stream, b.at + length); }
        write_text(g, b.at, length);
    }
    tn__buffer_free(&b);
}

/* Whether a signal or a full disk ends the text: on all ranks of a mesh at the same token. */
static bool must_stop(generation *g, int64_t count) {
    bool stops = tn_stop_asked() || g->failed;
    if (g->world && count != g->agreed) { /* once for the tokens of all samples */
        g->agreed = count;
        g->stopping = tn_group_mean(g->world, stops, 1) > 0;
    }
    return g->world ? g->stopping : stops;
}

static bool take_token(const tn_generated_token *token, void *user) {
    generation *g = user;
    g->tokens++;
    g->first_tokens += token->count == 1; /* they come with the prompt */
    if (g->first_token == 0.0) { g->first_token = tn__now(); }
    if (g->asked.samples == 1) { write_bytes(g, token->text, token->bytes, token->last); }
    return !must_stop(g, token->count);
}

/* ---- Generating ------------------------------------------------------------------------------ */

/* The text's tokens, between those that the tokenizer puts around a text, if any. An empty text
 * becomes the model's token that begins texts, or else the one that ends them. */
static tn_status encode_prompt(const generation *g, const char *text, size_t bytes, tn_ids *ids) {
    const tn_lm_specials *s = &g->specials;
    int32_t first = s->begin >= 0 ? s->begin : s->end_count > 0 ? s->ends[0] : -1;
    if (tn_tokenizer_encode_framed(g->words, text, bytes, true, ids) != TN_OK || ids->count > 0) {
        return tn_error();
    }
    if (first < 0) {
        return tn_raise(TN_EVALUE, "the prompt is empty, and the model has no token to begin with");
    }
    ids->ids = tn__malloc_for(sizeof(*ids->ids), "generate");
    if (!ids->ids) { return TN_ENOMEM; }
    ids->capacity = ids->count = 1;
    ids->ids[0] = first;
    return TN_OK;
}

static void say_how_much_is_read(const generation *g, int64_t count) {
    if (count > g->context && g->first_rank) {
        fprintf(stderr,
                "tern generate: the prompt has %lld tokens, and the model sees the last %lld\n",
                (long long)count, (long long)g->context);
    }
}

static void write_answers(generation *g, const tn_generated *out) {
    if (!g->first_rank) { return; }
    for (int64_t i = 0; i < g->asked.samples && g->asked.samples > 1; i++) {
        if (i > 0) { fputs("---\n", stdout); }
        write_bytes(g, out[i].text, out[i].bytes, true);
        putchar('\n');
    }
    if (g->asked.samples == 1) { putchar('\n'); }
    g->failed = fflush(stdout) != 0 || g->failed;
}

static void answer_ids(generation *g, const tn_ids *ids) {
    tn_prompt *prompts = tn__calloc_for((size_t)g->asked.samples, sizeof(*prompts), "generate");
    tn_generated *out = tn__calloc_for((size_t)g->asked.samples, sizeof(*out), "generate");
    if (prompts && out) {
        for (int64_t i = 0; i < g->asked.samples; i++) {
            prompts[i] = (tn_prompt){ids->ids, ids->count};
        }
        double began = tn__now();
        g->first_token = 0.0;
        g->stream = (tn_utf8_stream){.count = 0};
        if (tn_generate(g->net, prompts, (int)g->asked.samples, g->o, out) == TN_OK) {
            write_answers(g, out);
        }
        tn_generated_free(out, (int)g->asked.samples);
        g->o.first += (uint64_t)g->asked.samples; /* different draws for the next prompt */
        g->prompt_tokens += ids->count * g->asked.samples;
        g->prompt_seconds += g->first_token - began;
        g->seconds += tn__now() - g->first_token;
    }
    free(prompts);
    free(out);
}

static tn_status answer_prompt(generation *g, const char *text, size_t bytes) {
    tn_ids ids = {0};
    if (encode_prompt(g, text, bytes, &ids) == TN_OK) {
        say_how_much_is_read(g, ids.count);
        if (g->asked.echo) {
            g->stream = (tn_utf8_stream){.count = 0};
            write_bytes(g, text, bytes, true);
        }
        tn_stop_on_signals(); /* a second Ctrl-C kills it at once */
        answer_ids(g, &ids);
    }
    tn_ids_free(&ids);
    return tn_error();
}

/* Each line is a prompt; a user at a terminal is asked for one. */
static tn_status answer_lines(generation *g) {
    bool asks = isatty(STDIN_FILENO) && g->screen;
    char *line = NULL;
    size_t capacity = 0;
    while (!g->failed) {
        signal(SIGINT, SIG_DFL); /* signals end it at once while it waits … */
        signal(SIGTERM, SIG_DFL);
        if (tn_stop_asked()) { /* … and it does not wait after one */
            break;
        }
        if (asks) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        ssize_t bytes = getline(&line, &capacity, stdin);
        if (bytes < 0) { break; }
        bytes -= bytes > 0 && line[bytes - 1] == '\n';
        if ((bytes > 0 || !asks) && answer_prompt(g, line, (size_t)bytes) != TN_OK) { break; }
    }
    if (asks && feof(stdin)) { putchar('\n'); }
    free(line);
    return tn_error();
}

static void say_stats(const generation *g) {
    double speed = g->seconds > 0.0 ? (double)(g->tokens - g->first_tokens) / g->seconds : 0.0;
    fprintf(
        stderr,
        "loaded in %.2f s; prompts: %lld tokens in %.2f s; answers: %lld tokens, %.1f tokens/s\n",
        g->load_seconds, (long long)g->prompt_tokens, g->prompt_seconds, (long long)g->tokens,
        speed);
}

int generate_main(int argc, char **argv) {
    static generation g;
    bool parsed = generate_parse(&g.asked, argc, argv) == TN_OK;
    g.o = g.asked.sampling;
    g.o.on_token = take_token;
    g.o.user = &g;
    g.screen = isatty(STDOUT_FILENO);
    double began = tn__now();
    if (parsed && join_world(&g) == TN_OK && load_model(&g) == TN_OK) {
        g.load_seconds = tn__now() - began;
        if (g.asked.prompt) {
            answer_prompt(&g, g.asked.prompt, strlen(g.asked.prompt));
        } else {
            answer_lines(&g);
        }
    }
    int status = tn_stop_asked() ? tn_stop_status() : g.failed ? EXIT_FAILURE : EXIT_SUCCESS;
    if (!tn_error() && g.asked.stats && g.first_rank) { say_stats(&g); }
    tn_tokenizer_free(g.words);
    tn_module_free(g.net);
    tn_spread_free(g.spread);
    if (g.world && !tn_error()) { tn_dist_finish(); }
    return status;
}
