/* The options of `tern generate`. */
#include "tools/generate.h"
#include "tools/numbers.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEMPERATURE = 256,
    TOP_K,
    TOP_P,
    PENALTY,
    SEED,
    STOP,
    DTYPE,
    THREADS,
    SAMPLES,
    STATS,
    TOKENIZER,
    DEVICE,
    ECHO_PROMPT,
    IGNORE_END
};

static const struct argp_option option_list[] = {
    {"model", 'm', "DIR", 0, "The model: a folder with Hugging Face's files", 0},
    {"prompt", 'p', "TEXT", 0,
     "What to continue; without it each line of standard input, one after the other", 0},
    {"tokens", 'n', "N", 0, "Most tokens of an answer (200)", 0},
    {"temperature", TEMPERATURE, "X", 0, "0: always the most likely token (0.8)", 0},
    {"top-k", TOP_K, "K", 0, "Draw among the K most likely tokens; 0: all (200)", 0},
    {"top-p", TOP_P, "P", 0, "Draw among the fewest tokens that are this likely together (1)", 0},
    {"repetition-penalty", PENALTY, "X", 0,
     "Above 1: what has been said becomes less likely, 1.2 for example (1)", 0},
    {"seed", SEED, "N", 0, "Another number, another text (1337)", 0},
    {"stop", STOP, "TEXT", 0, "End before this text; may be given several times", 0},
    {"ignore-eos", IGNORE_END, NULL, 0, "Do not end where the model ends its text", 0},
    {"samples", SAMPLES, "N", 0, "So many answers to each prompt, at the same time (1)", 0},
    {"echo", ECHO_PROMPT, NULL, 0, "Write the prompt before the answer", 0},
    {"stats", STATS, NULL, 0, "Say on standard error how fast it was", 0},
    {"dtype", DTYPE, "f32|bf16|int8", 0,
     "Of the weights in memory; int8: bytes, each row with a scale (as in the files)", 1},
    {"tokenizer", TOKENIZER, "PATH", 0, "Its folder or file (the model's folder)", 1},
    {"device", DEVICE, "NAME", 0, "cpu, cuda, cuda:1 (cpu)", 1},
    {"threads", THREADS, "N", 0, "(the cores)", 1},
    {0},
};

static void add_stop(struct argp_state *state, generate_options *g, const char *text) {
    if (!*text || g->sampling.stop_text_count == GENERATE_STOPS) {
        argp_error(state, *text ? "--stop %s: %d are the most" : "--stop %s: an empty text", text,
                   GENERATE_STOPS);
    }
    g->stops[g->sampling.stop_text_count++] = text;
}

static error_t parse_sampling(int key, char *text, struct argp_state *state) {
    generate_options *g = state->input;
    switch (key) {
    case TEMPERATURE:
        g->sampling.temperature = argument_real(state, "temperature", text, 0.0, 1e6);
        return 0;
    case TOP_K:
        g->sampling.top_k = argument_whole(state, "top-k", text, 0, INT32_MAX);
        return 0;
    case TOP_P:
        g->sampling.top_p = argument_real(state, "top-p", text, 0.0, 1.0);
        return 0;
    case PENALTY:
        g->sampling.repetition_penalty =
            argument_real(state, "repetition-penalty", text, 1e-3, 1e3);
        return 0;
    case SEED:
        g->sampling.seed = (uint64_t)argument_whole(state, "seed", text, 0, INT64_MAX);
        return 0;
    case STOP:
        add_stop(state, g, text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    generate_options *g = state->input;
    switch (key) {
    case 'm':
        g->model = text;
        return 0;
    case 'p':
        g->prompt = text;
        return 0;
    case 'n':
        g->sampling.max_new = argument_whole(state, "tokens", text, 1, INT32_MAX);
        return 0;
    case SAMPLES:
        g->samples = argument_whole(state, "samples", text, 1, GENERATE_SAMPLES);
        return 0;
    case THREADS:
        g->threads = argument_whole(state, "threads", text, 1, 4096);
        return 0;
    case DTYPE:
        g->dtype = text;
        if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0 && strcmp(text, "int8") != 0) {
            argp_error(state, "--dtype %s: there are f32, bf16 and int8", text);
        }
        return 0;
    case TOKENIZER:
        g->tokenizer = text;
        return 0;
    case DEVICE:
        g->device = text;
        return 0;
    case ECHO_PROMPT:
        g->echo = true;
        return 0;
    case STATS:
        g->stats = true;
        return 0;
    case IGNORE_END:
        g->ignore_end = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is \"%s\"? A prompt is --prompt TEXT, in quotes", text);
        return 0;
    case ARGP_KEY_END:
        if (!g->model) {
            argp_error(state, "no model: --model DIR");
        }
        return 0;
    default:
        return parse_sampling(key, text, state);
    }
}

static const struct argp description = {
    .options = option_list,
    .parser = parse_option,
    .args_doc = "--model DIR [--prompt TEXT]",
    .doc = "Continues texts with a language model, and writes them as they come.\n\n"
           "Without --prompt each line of standard input is a prompt. The answers come in their "
           "order, each with a newline behind it; with --stop $'\\n' each is one line.\v"
           "The same command writes the same text. Several samples are written when all of them "
           "are there, with lines of --- between them. Ctrl-C ends it with the status 130; the "
           "status is 1 when it fails, 64 when the command line is wrong."};

generate_options generate_parse(int argc, char **argv) {
    generate_options g = {.samples = 1, .device = "cpu", .sampling = tn_generate_defaults()};
    g.sampling.max_new = 200;
    g.sampling.temperature = 0.8;
    g.sampling.top_k = 200;
    g.sampling.seed = 1337;
    argp_parse(&description, argc, argv, 0, NULL, &g);
    return g;
}
