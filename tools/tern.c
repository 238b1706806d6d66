/* The command `tern`: makes tokens from texts, trains and measures language models, generates text,
 * starts programs as ranks, converts checkpoints, plans training on many ranks, and describes this
 * build. */
#include "core/error.h"
#include "core/plain_text.h"
#include "tools/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "tern tokenizer IN... --out DIR                  a vocabulary of your own\n"
    "tern tokens IN... --tokenizer PATH --out DIR    texts as shards of tokens\n"
    "tern train --data PATTERN                       a GPT-2, or another model, on such shards\n"
    "tern run [OPTIONS] PROGRAM [ARGUMENTS...]       starts PROGRAM as several ranks\n"
    "tern eval --model DIR --data PATTERN            a model's perplexity or accuracy\n"
    "tern generate --model DIR --prompt TEXT         what a model writes\n"
    "tern convert SOURCE TARGET                      a model, or a run's checkpoint, in another "
    "form\n"
    "tern plan --model NAME --ranks N                memory, time and cost before renting\n"
    "tern info                                       version, kernels, cores, ways between ranks\n"
    "tern --version\n"
    "Options of each: tern run --help and so on\n";

/* Runs at exit, even argp's after --help: output that could not be written is a failure. */
static void close_output(void) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "tern: stdout: %s\n", errno ? strerror(errno) : "a write has failed");
        _exit(EXIT_FAILURE);
    }
}

static const struct verb {
    const char *name;
    int (*main)(int argc, char **argv);
} verbs[] = {
    {"run", run_main},         {"tokenizer", tokenizer_main}, {"tokens", tokens_main},
    {"train", train_main},     {"eval", eval_main},           {"generate", generate_main},
    {"convert", convert_main}, {"plan", plan_main},           {"info", info_main},
};

void train_error_exit(tn_status status, const char *message) {
    char text[sizeof("tern train: ") + sizeof(((tn_error_record *)0)->message)];
    snprintf(text, sizeof(text), "tern train: %s", tn__error_why());
    tn_error_exit(TN_OK, text); /* the status' name is for programmers */
}

/* The exit status. An error that is pending when the verb returns is shown. */
static int run_verb(const struct verb *v, int argc, char **argv) {
    static char name[32]; /* argp's messages begin with the first argument */
    snprintf(name, sizeof(name), "tern %s", v->name);
    argv[0] = name;
    int status = v->main(argc, argv);
    if (tn_error() == TN_OK) { return status; }
    fprintf(stderr, "%s: %s\n", name, tn__error_why());
    return EXIT_FAILURE; /* and with an error pending, which tells other ranks why */
}

int main(int argc, char **argv) {
    atexit(close_output);
    const char *verb = argc > 1 ? argv[1] : "help";
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verb, verbs[i].name) == 0) { return run_verb(&verbs[i], argc - 1, argv + 1); }
    }
    if (strcmp(verb, "_guard") == 0) { return guard_main(argc, argv); }
    if (strcmp(verb, "--version") == 0) {
        printf("tern %d.%d.%d\n", TN_VERSION_MAJOR, TN_VERSION_MINOR, TN_VERSION_PATCH);
        return 0;
    }
    bool asked = strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0;
    if (!asked) {
        tn__plain_lines(argv[1]);
        fprintf(stderr, "tern: there is no command \"%s\"\n", verb);
    }
    fputs(help, asked ? stdout : stderr);
    return asked ? 0 : 64;
}
