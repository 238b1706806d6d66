/* `tern tokenizer IN… --out DIR`: makes your own vocabulary from texts. */
#include "tools/verbs.h"

#include "core/folder.h"
#include "core/memory.h"
#include "tools/inputs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/tokenizer.h>
#include <tern/train.h>
#include <unistd.h>

typedef struct command {
    const char *out;
    const char **paths; /* [count] */
    int count;
    bool overwrite;
    tn_corpus_options corpus;
    tn_tokenizer_train_options options;
} command;

/* ---- Options --------------------------------------------------------------------------------- */

static void add_path(const char *text, void *to) {
    command *c = to;
    c->paths[c->count++] = text;
}

static const char about[] =
    "Makes a tokenizer from texts: byte-level BPE, GPT-2's kind, which `tern tokens` and "
    "transformers can read.\n\n"
    "IN are files and folders, as `tern tokens` reads them.\v"
    "All of the text is held in memory: a few hundred megabytes of a larger corpus are enough. The "
    "exit status is 1 when it fails, 64 when the command line is wrong.";

static tn_status parse_options(command *c, int argc, char **argv) {
    const tn_option table[] = {
        {.value = "IN... --out DIR", .read = add_path, .to = c},
        {"out", 'o', "DIR", "The folder for tokenizer.json and tokenizer_config.json",
         .text = &c->out},
        {"overwrite", 0, NULL, "Replace the tokenizer in DIR", .flag = &c->overwrite},
        {"vocab", 0, "N", "Tokens, including the 256 bytes and <|endoftext|>",
         .whole = &c->options.vocab, .least = 257, .most = INT32_MAX},
        {"min-count", 0, "N", "Pairs that occur less often do not become tokens",
         .whole = &c->options.min_count, .zero = true, .most = INFINITY},
        {"pattern", 0, "NAME",
         "How a text is cut before pairs are joined: gpt2, cl100k, llama3, o200k, or a regular "
         "expression (gpt2)",
         .text = &c->options.pattern},
        {"key", 0, "KEY", "In JSON: the document's text, as for `tern tokens` (text)",
         .text = &c->corpus.key},
        {0},
    };
    tn_status status = tn_options_parse(argc, argv, about, table);
    if (status == TN_OK && c->count == 0) {
        tn_options_refuse("no text to read: name files or folders");
    } else if (status == TN_OK && !c->out) {
        tn_options_refuse("--out DIR is missing");
    }
    return status;
}

/* ---- Texts in memory ------------------------------------------------------------------------- */

typedef struct texts {
    char **text; /* [count] */
    size_t *bytes;
    int64_t count, capacity;
    int64_t sum;
} texts;

static void texts_free(texts *t) {
    for (int64_t i = 0; i < t->count; i++) {
        free(t->text[i]);
    }
    free(t->text);
    free(t->bytes);
}

static tn_status texts_add(texts *t, const tn_document *d) {
    int64_t capacity = t->capacity; /* of both */
    bool fits = tn__grow(&t->text, t->count + 1, &capacity, sizeof(*t->text), "tokenizer") &&
                tn__grow(&t->bytes, t->count + 1, &t->capacity, sizeof(*t->bytes), "tokenizer");
    char *copy = fits ? tn__malloc_for(d->bytes + 1, "tokenizer") : NULL;
    if (!copy) { return TN_ENOMEM; }
    memcpy(copy, d->text, d->bytes);
    t->text[t->count] = copy;
    t->bytes[t->count++] = d->bytes;
    t->sum += (int64_t)d->bytes;
    return TN_OK;
}

static tn_status texts_read(texts *t, const command *c) {
    tn_corpus *corpus = tn_corpus_open(c->paths, c->count, c->corpus);
    tn_document d;
    while (corpus && tn_corpus_next(corpus, &d) && texts_add(t, &d) == TN_OK) {}
    tn_corpus_free(corpus);
    return tn_error();
}

/* ---- The command ----------------------------------------------------------------------------- */

/* Refuses to replace a tokenizer: a model's weights fit only the vocabulary they were trained
 * with. */
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
    return strcmp(name, "tokenizer.json") == 0 || strcmp(name, "tokenizer_config.json") == 0;
}

/* The vocabulary of the tokenizer that was there, in files of its own. */
static void remove_beside(const command *c) {
    static const char *const names[] = {"vocab.json", "merges.txt"};
    for (int i = 0; i < 2; i++) {
        char *path = tn__folder_path(c->out, names[i], "tokenizer");
        if (path && unlink(path) != 0 && errno != ENOENT) {
            tn_raise(TN_EIO, "%s: %s", path, strerror(errno));
        }
        free(path);
    }
}

static tn_status make_tokenizer(const command *c) {
    texts t = {0};
    tn_tokenizer *made = NULL;
    if (check_folder(c) == TN_OK &&
        check_outputs(c->paths, c->count, NULL, c->out, is_replaced) == TN_OK &&
        texts_read(&t, c) == TN_OK && t.sum == 0) {
        tn_raise(TN_EFORMAT, "no text in %s%s", c->paths[0], c->count > 1 ? " and so on" : "");
    } else if (tn_error() == TN_OK) {
        made = tn_tokenizer_train((const char *const *)t.text, t.bytes, t.count, c->options);
    }
    if (made && tn_tokenizer_save(made, c->out) == TN_OK) {
        remove_beside(c);
        printf("%lld tokens from %lld bytes of text: %s\n", (long long)tn_tokenizer_size(made),
               (long long)t.sum, c->out);
    }
    tn_tokenizer_free(made);
    texts_free(&t);
    return tn_error();
}

int tokenizer_main(int argc, char **argv) {
    command c = {.paths = tn__calloc_for((size_t)argc, sizeof(char *), "tokenizer"),
                 .corpus = tn_corpus_defaults(),
                 .options = tn_tokenizer_train_defaults()};
    if (c.paths && parse_options(&c, argc, argv) == TN_OK) { make_tokenizer(&c); }
    free(c.paths);
    return 0;
}
