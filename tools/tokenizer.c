/* `tern tokenizer IN… --out DIR`: a vocabulary of one's own, made from texts. */
#include "tools/tokenizer.h"

#include "core/folder.h"
#include "tools/numbers.h"
#include "tools/inputs.h"
#include "tools/why.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/tokenizer.h>
#include <unistd.h>

typedef struct command {
    const char *out;
    char **paths; /* [count] */
    int count;
    bool overwrite;
    tn_corpus_options corpus;
    tn_tokenizer_train_options options;
} command;

/* ---- Options --------------------------------------------------------------------------------- */

enum { VOCAB = 256, MIN_COUNT, KEY, PATTERN, OVERWRITE };

static const struct argp_option option_list[] = {
    {"out", 'o', "DIR", 0, "The folder of tokenizer.json, vocab.json and merges.txt", 0},
    {"overwrite", OVERWRITE, NULL, 0, "Replace the tokenizer that DIR has", 0},
    {"vocab", VOCAB, "N", 0, "Tokens, with the 256 bytes and <|endoftext|> (50257)", 0},
    {"min-count", MIN_COUNT, "N", 0, "Pairs that stand side by side less often become no token (0)",
     0},
    {"pattern", PATTERN, "NAME", 0,
     "How a text is cut before pairs are joined: gpt2, cl100k, llama3, o200k, or a regular "
     "expression (gpt2)",
     0},
    {"key", KEY, "NAME", 0, "Of JSON lines: whose text the document is (text)", 0},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state) {
    command *c = state->input;
    switch (key) {
    case 'o':
        c->out = text;
        return 0;
    case VOCAB:
        c->options.vocab = argument_whole(state, "vocab", text, 257, INT32_MAX);
        return 0;
    case MIN_COUNT:
        c->options.min_count = argument_whole(state, "min-count", text, 0, INT64_MAX);
        return 0;
    case PATTERN:
        c->options.pattern = text;
        return 0;
    case OVERWRITE:
        c->overwrite = true;
        return 0;
    case KEY:
        c->corpus.key = text;
        return 0;
    case ARGP_KEY_ARG:
        c->paths[c->count++] = text;
        return 0;
    case ARGP_KEY_END:
        if (c->count == 0) {
            argp_error(state, "no text to read: files or folders");
        } else if (!c->out) {
            argp_error(state, "--out DIR is missing");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp description = {
    .options = option_list,
    .parser = parse_option,
    .args_doc = "IN... --out DIR",
    .doc = "Makes a tokenizer from texts: GPT-2's kind, byte-level BPE, which `tern tokens` takes "
           "and transformers opens.\n\n"
           "IN are files and folders, as `tern tokens` reads them.\v"
           "All of the text is in memory meanwhile: some hundred megabytes of a larger corpus are "
           "enough. The exit status is 1 when it fails, 64 when the command line is wrong."};

/* ---- Texts in memory ------------------------------------------------------------------------- */

typedef struct texts {
    char **text; /* [count] */
    size_t *bytes;
    int64_t count, room;
    int64_t sum;
} texts;

static void texts_free(texts *t) {
    for (int64_t i = 0; i < t->count; i++) {
        free(t->text[i]);
    }
    free(t->text);
    free(t->bytes);
}

static bool texts_grow(texts *t) {
    if (t->count < t->room) {
        return true;
    }
    int64_t room = t->room ? 2 * t->room : 1024;
    char **text = realloc(t->text, (size_t)room * sizeof(*text));
    if (text) {
        t->text = text;
    }
    size_t *bytes = realloc(t->bytes, (size_t)room * sizeof(*bytes));
    if (bytes) {
        t->bytes = bytes;
    }
    t->room = text && bytes ? room : t->room;
    return text && bytes;
}

static tn_status texts_add(texts *t, const tn_document *d) {
    char *copy = texts_grow(t) ? malloc(d->bytes + 1) : NULL;
    if (!copy) {
        return tn_raise(TN_ENOMEM, "tokenizer: no memory for the texts");
    }
    memcpy(copy, d->text, d->bytes);
    t->text[t->count] = copy;
    t->bytes[t->count++] = d->bytes;
    t->sum += (int64_t)d->bytes;
    return TN_OK;
}

static tn_status texts_read(texts *t, const command *c) {
    tn_corpus *corpus = tn_corpus_open((const char *const *)c->paths, c->count, c->corpus);
    tn_document d;
    while (corpus && tn_corpus_next(corpus, &d) && texts_add(t, &d) == TN_OK) {
    }
    tn_corpus_free(corpus);
    return tn_error();
}

/* ---- The command ----------------------------------------------------------------------------- */

/* A model's weights are for the vocabulary that they were trained with. */
static tn_status check_folder(const command *c) {
    static const char *const names[] = {"tokenizer.json", "vocab.json"};
    for (int i = 0; i < 2 && !c->overwrite; i++) {
        char *path = tn__folder_path(c->out, names[i], "tokenizer");
        bool there = path && access(path, F_OK) == 0;
        free(path);
        if (there) {
            return tn_raise(TN_ESTATE, "%s has a tokenizer already (--overwrite replaces it)",
                            c->out);
        }
    }
    return tn_error();
}

static bool is_replaced(const char *name) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "vocab.json",
                                        "merges.txt"};
    bool found = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        found = found || strcmp(name, names[i]) == 0;
    }
    return found;
}

static tn_status make_tokenizer(const command *c) {
    texts t = {0};
    tn_tokenizer *made = NULL;
    if (check_folder(c) == TN_OK &&
        check_outputs((const char *const *)c->paths, c->count, NULL, c->out, is_replaced) ==
            TN_OK &&
        texts_read(&t, c) == TN_OK && t.sum == 0) {
        tn_raise(TN_EFORMAT, "there is no text in %s%s", c->paths[0],
                 c->count > 1 ? " and so on" : "");
    } else if (tn_error() == TN_OK) {
        made = tn_tokenizer_train((const char *const *)t.text, t.bytes, t.count, c->options);
    }
    if (made && tn_tokenizer_save(made, c->out) == TN_OK) {
        printf("%lld tokens from %lld bytes of text: %s\n", (long long)tn_tokenizer_size(made),
               (long long)t.sum, c->out);
    }
    tn_tokenizer_free(made);
    texts_free(&t);
    return tn_error();
}

int tokenizer_main(int argc, char **argv) {
    command c = {.paths = calloc((size_t)argc, sizeof(char *)),
                 .corpus = tn_corpus_defaults(),
                 .options = tn_tokenizer_train_defaults()};
    if (!c.paths) {
        fprintf(stderr, "tern tokenizer: no memory\n");
        return 1;
    }
    argp_parse(&description, argc, argv, 0, NULL, &c);
    tn_status status = make_tokenizer(&c);
    if (status != TN_OK) {
        fprintf(stderr, "tern tokenizer: %s\n", error_why());
    }
    free(c.paths);
    return status == TN_OK ? 0 : 1;
}
