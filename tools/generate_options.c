/* The options of `tern generate`. */
#include "tools/generate.h"

#include "tools/model.h"

#include <math.h>

static void add_stop(const char *text, void *to) {
    generate_options *g = to;
    if (!*text || g->sampling.stop_text_count == GENERATE_STOPS) {
        tn_options_refuse(*text ? "--stop %s: at most %d can be given" : "--stop %s: an empty text",
                          text, GENERATE_STOPS);
    }
    g->stops[g->sampling.stop_text_count++] = text;
}

static void refuse_argument(const char *text, void *unused) {
    tn_options_refuse("unexpected \"%s\": a prompt is --prompt TEXT, in quotes", text);
}

static const char about[] =
    "Continues texts with a language model, and writes them as they are generated.\n\n"
    "Without --prompt each line of standard input is a prompt. The answers come in the same order, "
    "each followed by a newline; with --stop $'\\n' each is one line.\v"
    "The same command writes the same text. Several samples are written when all are complete, "
    "with --- lines between them. `tern run -n N tern generate --mesh ...` has the model on N "
    "ranks, each of which reads only its part; the first writes the text. Ctrl-C ends it with the "
    "status 130; the status is 1 when it fails, 64 when the command line is wrong.";

tn_status generate_parse(generate_options *g, int argc, char **argv) {
    int64_t seed = 1337;
    *g = (generate_options){
        .samples = 1, .device = "cpu", .dtype = -1, .sampling = tn_generate_defaults()};
    tn_generate_options *s = &g->sampling;
    s->max_new = 200;
    s->temperature = 0.8;
    s->top_k = 200;
    const tn_option table[] = {
        {.value = "--model DIR [--prompt TEXT]", .read = refuse_argument},
        {"model", 'm', "DIR", "The model: a folder with Hugging Face's files", .text = &g->model},
        {"prompt", 'p', "TEXT", "What to continue; without it each line of standard input in turn",
         .text = &g->prompt},
        {"tokens", 'n', "N", "Maximum tokens of an answer", .whole = &s->max_new,
         .most = INT32_MAX},
        {"temperature", 0, "X", "0: always the most likely token", .real = &s->temperature,
         .zero = true, .most = 1e6},
        {"top-k", 0, "K", "Draw among the K most likely tokens; 0: all", .whole = &s->top_k,
         .zero = true, .most = INT32_MAX},
        {"top-p", 0, "P", "Draw among the most likely tokens that have this probability together",
         .real = &s->top_p, .zero = true, .most = 1},
        {"repetition-penalty", 0, "X",
         "Above 1: tokens already used become less likely; for example 1.2",
         .real = &s->repetition_penalty, .least = 1e-3, .most = 1e3},
        {"seed", 0, "N", "A different number gives a different text", .whole = &seed, .zero = true,
         .most = INFINITY},
        {"stop", 0, "TEXT", "End before this text; may be given several times", .read = add_stop,
         .to = g},
        {"ignore-eos", 0, NULL, "Do not end where the model ends its text", .flag = &g->ignore_end},
        {"samples", 0, "N", "Answers to each prompt, generated together", .whole = &g->samples,
         .most = GENERATE_SAMPLES},
        {"echo", 0, NULL, "Write the prompt before the answer", .flag = &g->echo},
        {"stats", 0, NULL, "Report the speed on standard error", .flag = &g->stats},
        {.help = ""},
        {"dtype", 0, "f32|bf16|int8",
         "Of the weights in memory; int8: bytes, each row with a scale (as in the files)",
         .choice = &g->dtype, .choices = model_dtypes},
        {"tokenizer", 0, "PATH", "Its folder or file (the model's folder)", .text = &g->tokenizer},
        {"mesh", 0, "DIMS", "The model's layout on the ranks: pp=N,tp=N,shard=N,…; with --prompt",
         .text = &g->mesh},
        {"device", 0, "NAME", "cpu, cuda, cuda:1", .text = &g->device},
        {"threads", 0, "N", "(the cores)", .whole = &g->threads, .most = 4096},
        {0},
    };
    tn_status status = tn_options_parse(argc, argv, about, table);
    if (status == TN_OK && !g->model) {
        tn_options_refuse("no model: --model DIR");
    } else if (status == TN_OK && g->mesh && !g->prompt) {
        tn_options_refuse("--mesh needs --prompt TEXT: ranks have no standard input");
    }
    s->seed = (uint64_t)seed;
    return status;
}
