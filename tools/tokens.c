/* `tern tokens IN… --tokenizer PATH --out DIR`: texts as shards of tokens. */
#include "tools/tokens.h"

#include "core/clock.h"
#include "core/number.h"
#include "data/corpus/tokens_json.h"
#include "tools/inputs.h"
#include "tools/numbers.h"
#include "tools/why.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tern/tokenizer.h>
#include <unistd.h>

typedef struct command {
    const char *tokenizer, *out;
    char **paths; /* [count] */
    int count;
    char *split; /* --split, its escapes replaced */
    tn_tokens_options options;
} command;

/* ---- Options --------------------------------------------------------------------------------- */

enum { VAL = 256, VAL_DOCS, SEED, SHARD_TOKENS, KEY, PAIRS, SPLIT, EOT, THREADS, OVERWRITE };

static const struct argp_option option_list[] = {
    {"tokenizer", 't', "PATH", 0,
     "A folder with tokenizer.json, or vocab.json and merges.txt, or one of these files", 0},
    {"out", 'o', "DIR", 0, "The folder of the shards: train_000000.bin, val_000000.bin and so on",
     0},
    {"val", VAL, "SHARE", 0,
     "This share of the documents is for validation, 0.01 for example (none)", 1},
    {"val-docs", VAL_DOCS, "N", 0, "The first N documents are for validation (none)", 1},
    {"seed", SEED, "N", 0, "Which documents --val chooses (1337)", 1},
    {"shard-tokens", SHARD_TOKENS, "N", 0, "Tokens of a shard (100000000)", 1},
    {"key", KEY, "NAME", 0, "Of JSON lines: whose text the document is (text)", 2},
    {"pairs", PAIRS, NULL, 0,
     "Fine-tuning: IN are JSON lines {\"prompt\": …, \"completion\": …}, of which only the "
     "completions are learned",
     2},
    {"split", SPLIT, "TEXT", 0,
     "What stands between the documents of a plain text, as '<|endoftext|>' or '\\n\\n'", 2},
    {"eot", EOT, "TEXT", 0,
     "The special token that keeps documents apart (<|endoftext|>, <|end_of_text|> or </s>)", 2},
    {"threads", THREADS, "N", 0, "Threads that encode (as many as there are cores)", 3},
    {"overwrite", OVERWRITE, NULL, 0, "Replace the shards that DIR has", 3},
    {0},
};

static double parse_share(const char *text, struct argp_state *state) {
    double value;
    if (!tn__real_from(text, &value) || !(value >= 0 && value < 1)) {
        argp_error(state, "\"%s\" should be a share, at least 0 and below 1", text);
    }
    return value;
}

/* "\n", "\t" and "\\", which shells leave as they are. */
static char *without_escapes(const char *text, struct argp_state *state) {
    static const char letters[] = "nt\\", meant[] = "\n\t\\";
    char *copy = strdup(text), *to = copy;
    if (!copy) {
        argp_failure(state, 1, ENOMEM, "--split");
        return NULL;
    }
    for (const char *c = copy; *c; c++) {
        const char *found = *c == '\\' && c[1] ? strchr(letters, c[1]) : NULL;
        *to++ = found ? meant[found - letters] : *c;
        c += found != NULL;
    }
    *to = 0;
    return copy;
}

static error_t check_command(const command *c, struct argp_state *state) {
    if (c->count == 0) {
        argp_error(state, "no text to read: files or folders");
    } else if (!c->tokenizer) {
        argp_error(state, "--tokenizer PATH is missing");
    } else if (!c->out) {
        argp_error(state, "--out DIR is missing");
    } else if (c->options.val > 0 && c->options.val_documents > 0) {
        argp_error(state, "--val and --val-docs are two ways to choose: one of them");
    } else if (c->options.corpus.pairs && c->options.corpus.split) {
        argp_error(state, "--split is for plain text, and --pairs reads JSON lines");
    }
    return 0;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    command *c = state->input;
    tn_tokens_options *o = &c->options;
    switch (key) {
    case 't':
        c->tokenizer = text;
        return 0;
    case 'o':
        c->out = text;
        return 0;
    case VAL:
        o->val = parse_share(text, state);
        return 0;
    case VAL_DOCS:
        o->val_documents = argument_whole(state, "val-docs", text, 0, INT64_MAX);
        return 0;
    case SEED:
        o->seed = (uint64_t)argument_whole(state, "seed", text, 0, INT64_MAX);
        return 0;
    case SHARD_TOKENS:
        o->shard_tokens = argument_whole(state, "shard-tokens", text, 1, INT64_MAX);
        return 0;
    case KEY:
        o->corpus.key = text;
        return 0;
    case PAIRS:
        o->corpus.pairs = true;
        return 0;
    case SPLIT:
        free(c->split);
        o->corpus.split = c->split = without_escapes(text, state);
        return 0;
    case EOT:
        o->eot = text;
        return 0;
    case THREADS:
        o->threads = (int)argument_whole(state, "threads", text, 1, 1 << 20);
        return 0;
    case OVERWRITE:
        o->overwrite = true;
        return 0;
    case ARGP_KEY_ARG:
        c->paths[c->count++] = text;
        return 0;
    case ARGP_KEY_END:
        return check_command(c, state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp description = {
    .options = option_list,
    .parser = parse_option,
    .args_doc = "IN... --tokenizer PATH --out DIR",
    .doc =
        "Turns texts into shards of tokens, as llm.c writes them, which 11_gpt2 and `tern eval` "
        "read.\n\n"
        "IN are files, and folders whose files are read in the order of their names, hidden ones "
        "not. A .jsonl, .ndjson or .json file is JSON lines, of which each has a document's text; "
        "any other file is plain text, one document. Both may be compressed (.gz, .zst)."
        "\vThe special token <|endoftext|> stands in front of every document, as llm.c has it; its "
        "text inside of a document is text like any other. Of a plain text that is one document, "
        "--val chooses passages. With the same texts and options the shards are the same bytes, "
        "whatever the number of threads. An interrupted run leaves whole shards and a tokens.json "
        "that says that they are not all: the same command begins again.\n\nThe exit status is 1 "
        "when it fails, 64 when the command line is wrong."};

/* ---- Progress -------------------------------------------------------------------------------- */

typedef struct progress {
    bool terminal;
    double begun, shown;
} progress;

static void format_number(char text[32], double value) {
    static const char *const units[] = {"", " k", " M", " G", " T"};
    int unit = 0;
    for (; value >= 1000 && unit < 4; unit++) {
        value /= 1000;
    }
    snprintf(text, 32, "%.*f%s",
             unit == 0     ? 0
             : value < 10  ? 2
             : value < 100 ? 1
                           : 0,
             value, units[unit]);
}

static void show_line(const progress *p, const tn_tokens_made *made, double now) {
    char text[32], tokens[32];
    double seconds = now - p->begun,
           share = made->bytes ? (double)made->read / (double)made->bytes : 1;
    format_number(text, (double)made->text);
    format_number(tokens, (double)(made->train + made->val));
    fprintf(stderr, "%s%3.0f %%   %s%s of text   %s tokens   %.1f MB/s%s", p->terminal ? "\r" : "",
            100 * share, text, made->text < 1000 ? " B" : "B", tokens,
            seconds > 0 ? (double)made->text / seconds / 1e6 : 0, p->terminal ? "\033[K" : "\n");
    fflush(stderr);
}

static void show_progress(const tn_tokens_made *made, void *user) {
    progress *p = user;
    double now = tn__now();
    if (now - p->shown >= (p->terminal ? 0.1 : 5)) {
        p->shown = now;
        show_line(p, made, now);
    }
}

/* ---- The command ----------------------------------------------------------------------------- */

static void say_split(const char *name, const char *out, int64_t tokens, int64_t shards) {
    if (shards > 0) {
        printf("%-5s  %12lld tokens in %lld file%s  %s/%s_*.bin\n", name, (long long)tokens,
               (long long)shards, shards == 1 ? "" : "s", out, name);
    }
}

static void say_result(const command *c, const tn_tokens_made *made) {
    const char *what = c->options.corpus.pairs ? "pair" : "document";
    printf("%lld %s%s, %lld bytes of text\n", (long long)made->documents, what,
           made->documents == 1 ? "" : "s", (long long)made->text);
    if (c->options.corpus.pairs) {
        printf("the longest pair has %lld tokens\n", (long long)made->longest);
    }
    if (made->with_end > 0) {
        fprintf(stderr,
                "tern tokens: %lld %s the text of the special token in it, which is text like any "
                "other (--split '<|endoftext|>' cuts plain texts there)\n",
                (long long)made->with_end, made->with_end == 1 ? "text has" : "texts have");
    }
    say_split("train", c->out, made->train, made->train_shards);
    say_split("val", c->out, made->val, made->val_shards);
    bool wanted = c->options.val > 0 || c->options.val_documents > 0;
    if (wanted && made->val == 0) {
        fprintf(stderr, "tern tokens: nothing is for validation: there is too little text for this "
                        "share (--val-docs N takes the first N documents)\n");
    }
    if (made->train == 0) {
        fprintf(stderr, "tern tokens: everything is for validation, and nothing to learn from\n");
    }
}

static int say_why(void) {
    fprintf(stderr, "tern tokens: %s\n", error_why());
    return 1;
}

static bool is_tokenizer(const char *name) {
    return strcmp(name, "tokenizer.json") == 0;
}

static bool is_replaced(const char *name) {
    return tn__is_token_shard(name) || strcmp(name, TN__TOKENS_JSON) == 0;
}

static int make_tokens(const command *c) {
    const char *kind = getenv("TERM");
    progress p = {.terminal = isatty(STDERR_FILENO) && !(kind && strcmp(kind, "dumb") == 0)};
    p.begun = p.shown = tn__now();
    tn_tokens_options o = c->options;
    o.progress = show_progress;
    o.user = &p;
    tn_tokens_made made;
    const char *const *paths = (const char *const *)c->paths;
    bool apart = check_outputs(paths, c->count, NULL, c->out, is_replaced) == TN_OK &&
                 check_outputs(&c->tokenizer, 1, is_tokenizer, c->out, is_replaced) == TN_OK;
    tn_tokenizer *t = apart ? tn_tokenizer_load(c->tokenizer) : NULL;
    if (!t) {
        return say_why();
    }
    tn_status status = tn_tokens_make(t, paths, c->count, c->out, o, &made);
    tn_tokenizer_free(t);
    if (p.terminal && p.shown > p.begun) {
        fputs("\r\033[K", stderr);
    }
    if (status != TN_OK) {
        return say_why();
    }
    say_result(c, &made);
    return 0;
}

int tokens_main(int argc, char **argv) {
    command c = {.options = tn_tokens_defaults(), .paths = calloc((size_t)argc, sizeof(char *))};
    if (!c.paths) {
        fprintf(stderr, "tern tokens: no memory\n");
        return 1;
    }
    argp_parse(&description, argc, argv, 0, NULL, &c);
    int status = make_tokens(&c);
    free(c.split);
    free(c.paths);
    return status;
}
