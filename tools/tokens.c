/* `tern tokens IN… --tokenizer PATH --out DIR`: turns texts into shards of tokens, in one process
 * or under `tern run`. */
#include "core/clock.h"
#include "core/memory.h"
#include "data/corpus/tokens.h"
#include "data/corpus/tokens_json.h"
#include "text/number.h"
#include "tools/inputs.h"
#include "tools/verbs.h"
#include "train/show/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tern/distributed.h>
#include <tern/tokenizer.h>
#include <tern/train.h>
#include <unistd.h>

typedef struct command {
    const char *tokenizer, *out;
    const char **paths; /* [count] */
    int count;
    char *split;                     /* --split, its escapes replaced */
    const char *prompt, *completion; /* NULL: not given */
    tn_tokens_options options;
} command;

/* ---- Options --------------------------------------------------------------------------------- */

static void read_share(const char *text, void *to) {
    double *value = to;
    if (!tn__real_from(text, value) || !(*value >= 0 && *value < 1)) {
        tn_options_refuse("--val: \"%s\" should be a fraction, at least 0 and below 1", text);
    }
}

/* Expands "\n", "\t" and "\\", which shells do not. */
static void read_split(const char *text, void *to) {
    static const char letters[] = "nt\\", meant[] = "\n\t\\";
    char **split = to;
    free(*split);
    char *copy = *split = strdup(text);
    if (!copy) {
        fprintf(stderr, "tern tokens: no memory for --split\n");
        exit(1);
    }
    for (const char *c = text; *c; c++) {
        const char *found = *c == '\\' && c[1] ? strchr(letters, c[1]) : NULL;
        *copy++ = found ? meant[found - letters] : *c;
        c += found != NULL;
    }
    *copy = 0;
}

static void add_path(const char *text, void *to) {
    command *c = to;
    c->paths[c->count++] = text;
}

static void check_command(const command *c) {
    if (c->count == 0) {
        tn_options_refuse("no text to read: name files or folders");
    } else if (!c->tokenizer) {
        tn_options_refuse("--tokenizer PATH is missing");
    } else if (!c->out) {
        tn_options_refuse("--out DIR is missing");
    } else if (c->options.val > 0 && c->options.val_documents > 0) {
        tn_options_refuse("--val and --val-docs are alternatives: give one");
    } else if (!c->options.corpus.pairs && (c->prompt || c->completion)) {
        tn_options_refuse("--prompt and --completion are for --pairs");
    } else if (c->options.corpus.pairs && c->split) {
        tn_options_refuse("--split is for plain text, and --pairs reads JSON lines");
    }
}

static const char about[] =
    "Turns texts into shards of tokens, as llm.c writes them, which `tern train` and `tern eval` "
    "read.\n\n"
    "IN are files, and folders whose files are read in order of name, except hidden ones. A "
    ".jsonl, .ndjson or .json file is JSON lines, each with a document's text; any other file is "
    "plain text, one document. Both may be compressed (.gz, .zst).\v"
    "A KEY is a member's name; or a path, in jq's notation: .name, [] for all "
    "elements of a list, [0] for one; or text with these in braces: '{title}\\n{.parts[].text}'. "
    "With a path a .json file is one value, read whole. Each element of a list is a document, or "
    "a pair; the paths of a pair go through the same lists, one perhaps further than the "
    "other.\n\n"
    "The special token <|endoftext|> precedes every document, as in llm.c; the same characters "
    "inside a document are ordinary text. If a plain text is one document, --val chooses passages "
    "of it. The same texts "
    "and options give the same tokens, for any number of threads and ranks: under `tern run -n N` "
    "all ranks read the texts, and each makes its share of the shards, all in the same folder. An "
    "interrupted run leaves whole shards and a tokens.json that says that some are missing: the "
    "same command keeps them and goes on, if texts, options and tokenizer have not changed.\n\n"
    "The exit status is 1 when it fails, 64 when the command line is wrong.";

static tn_status parse_options(command *c, int argc, char **argv) {
    tn_tokens_options *o = &c->options;
    int64_t seed = (int64_t)o->seed, threads = 0;
    const tn_option table[] = {
        {.value = "IN... --tokenizer PATH --out DIR", .read = add_path, .to = c},
        {"tokenizer", 't', "PATH",
         "A folder with tokenizer.json, or vocab.json and merges.txt, or one of these files",
         .text = &c->tokenizer},
        {"out", 'o', "DIR", "The folder for the shards: train_000000.bin, val_000000.bin and so on",
         .text = &c->out},
        {.help = ""},
        {"val", 0, "SHARE",
         "This share of the documents is for validation, 0.01 for example (none)",
         .read = read_share, .to = &o->val},
        {"val-docs", 0, "N", "The first N documents are for validation (none)",
         .whole = &o->val_documents, .zero = true, .most = INFINITY},
        {"seed", 0, "N", "Which documents --val chooses", .whole = &seed, .zero = true,
         .most = INFINITY},
        {"shard-bytes", 0, "N", "Bytes of text of a shard", .whole = &o->shard_bytes,
         .most = 1000000000},
        {.help = ""},
        {"key", 0, "KEY",
         "In JSON: the document's text, a name or a path such as '.articles[].text' (text)",
         .text = &o->corpus.key},
        {"pairs", 0, NULL,
         "Fine-tuning: IN are JSON lines {\"prompt\": …, \"completion\": …}, and only the "
         "completions are learned",
         .flag = &o->corpus.pairs},
        {"prompt", 0, "KEY", "Of pairs: the prompt, a name or a path (prompt)", .text = &c->prompt},
        {"completion", 0, "KEY", "Of pairs: the completion, a name or a path (completion)",
         .text = &c->completion},
        {"split", 0, "TEXT",
         "What separates the documents of a plain text, such as '<|endoftext|>' or '\\n\\n'",
         .read = read_split, .to = &c->split},
        {"eot", 0, "TEXT",
         "The special token between documents (<|endoftext|>, <|end_of_text|> or </s>)",
         .text = &o->eot},
        {.help = ""},
        {"threads", 0, "N", "Encoding threads of each rank (one per core)", .whole = &threads,
         .most = 1 << 20},
        {"overwrite", 0, NULL, "Replace the shards in DIR", .flag = &o->overwrite},
        {0},
    };
    tn_status status = tn_options_parse(argc, argv, about, table);
    if (status == TN_OK) { check_command(c); }
    o->seed = (uint64_t)seed;
    o->threads = threads ? (int)threads : o->threads;
    o->corpus.split = c->split;
    o->corpus.prompt = c->prompt ? c->prompt : o->corpus.prompt;
    o->corpus.completion = c->completion ? c->completion : o->corpus.completion;
    return status;
}

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

/* ---- Ranks ----------------------------------------------------------------------------------- */

static bool tell_all(void *user, void *data, size_t bytes) {
    TN_SCOPE;
    tn_tensor *t = tn_from_memory(data, TN_DIMS((int64_t)bytes), TN_U8, NULL, NULL);
    return tn_work_wait(tn_broadcast(user, t, 0), 0) == TN_OK;
}

/* A rank may still have many shards to make. One that ends without them is noticed at once. */
static bool meet_all(void *user) {
    enum { A_WEEK = 7 * 24 * 3600 };
    tn_group_set_timeout(user, A_WEEK);
    return tn_barrier(user) == TN_OK;
}

static tn_status join_ranks(tn__token_ranks *r) {
    tn_setup setup = tn_setup_defaults();
    tn_group *world = tn_setup_world(&setup);
    *r = (tn__token_ranks){.rank = tn_group_rank(world),
                           .ranks = tn_group_size(world),
                           .tell = tell_all,
                           .meet = meet_all,
                           .user = world};
    return tn_error();
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
    if (made->kept > 0) {
        printf("%lld shard%s of an interrupted run kept\n", (long long)made->kept,
               made->kept == 1 ? "" : "s");
    }
    printf("%lld %s%s, %lld bytes of text\n", (long long)made->documents, what,
           made->documents == 1 ? "" : "s", (long long)made->text);
    if (c->options.corpus.pairs) {
        printf("the longest pair has %lld tokens\n", (long long)made->longest);
    }
    if (made->with_end > 0) {
        fprintf(stderr,
                "tern tokens: %lld %s the special token's text, which is encoded as ordinary text "
                "(--split '<|endoftext|>' cuts plain texts there)\n",
                (long long)made->with_end, made->with_end == 1 ? "text contains" : "texts contain");
    }
    say_split("train", c->out, made->train, made->train_shards);
    say_split("val", c->out, made->val, made->val_shards);
    bool wanted = c->options.val > 0 || c->options.val_documents > 0;
    if (wanted && made->val == 0) {
        fprintf(stderr, "tern tokens: nothing is left for validation: there is too little text for "
                        "this share (--val-docs N takes the first N documents)\n");
    }
    if (made->train == 0) {
        fprintf(stderr,
                "tern tokens: everything is for validation: nothing is left to learn from\n");
    }
}

static bool is_tokenizer(const char *name) {
    return strcmp(name, "tokenizer.json") == 0;
}

static bool is_replaced(const char *name) {
    return tn__is_token_shard(name, ".bin") || strcmp(name, TN__TOKENS_JSON) == 0;
}

static bool are_apart(const command *c) {
    return check_outputs(c->paths, c->count, NULL, c->out, is_replaced) == TN_OK &&
           check_outputs(&c->tokenizer, 1, is_tokenizer, c->out, is_replaced) == TN_OK;
}

static tn_status make_tokens(const command *c) {
    progress p = {.terminal = tn__is_terminal(stderr)};
    p.begun = p.shown = tn__now();
    tn_tokens_options o = c->options;
    o.user = &p;
    tn_tokens_made made;
    tn__token_ranks ranks;
    bool joined = join_ranks(&ranks) == TN_OK;
    if (joined && ranks.rank == 0) { o.progress = show_progress; /* of this rank's share */ }
    tn_tokenizer *t =
        joined && (ranks.rank > 0 || are_apart(c)) ? tn_tokenizer_load(c->tokenizer) : NULL;
    if (!t) { return tn_error(); }
    tn_status status = tn__tokens_make(t, c->paths, c->count, c->out, o, &ranks, &made);
    tn_tokenizer_free(t);
    if (p.terminal && p.shown > p.begun) { fputs("\r\033[K", stderr); }
    if (status != TN_OK) { return status; }
    if (ranks.rank == 0) { say_result(c, &made); }
    tn_dist_finish();
    return TN_OK;
}

int tokens_main(int argc, char **argv) {
    command c = {.options = tn_tokens_defaults(),
                 .paths = tn__calloc_for((size_t)argc, sizeof(char *), "tokens")};
    if (c.paths && parse_options(&c, argc, argv) == TN_OK) { make_tokens(&c); }
    free(c.split);
    free(c.paths);
    return 0;
}
