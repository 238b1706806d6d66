/* A corpus: documents from text files, one at a time, in bounded memory.
 *
 * The buffer of lines.h holds what has been read of the current file. A file of JSON
 * lines is taken from it line by line, and a .json file of which paths are wanted is one value;
 * each may have many documents (records.h). A plain text is one document or, with a separator,
 * several; a long one comes in pieces, so that several threads can work on it and it need not be in
 * memory whole. Pieces are cut where a word begins, at a place where the patterns of GPT-2's
 * tokenizer and of later ones always cut too: the tokens of the pieces are those of the whole.
 */
#define _GNU_SOURCE /* memmem */
#include "core/alive.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/corpus/records.h"
#include "data/corpus/sources.h"
#include "data/lines.h"
#include "tern/data.h"
#include "text/json.h"
#include "text/text.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = TN__LONGEST_LINE /* of plain text without a place to cut */ };
enum { LONGEST_VALUE = 1 << 30 /* bytes of a file that is one value */ };
enum { PIECE_LEAST = 1 << 10, PIECE_MOST = 1 << 18 };
enum { PIECES = 64 /* at least, of a plain text that is long enough */ };

struct tn_corpus {
    tn__alive alive;
    tn_corpus_options options;
    char *split; /* a copy */
    tn__sources sources;
    int64_t source; /* number of the open one, or of the next to open */
    int64_t done;   /* bytes of those that are closed */

    bool open;
    bool is_json;
    bool is_value; /* not JSON lines: one value */
    tn__text_lines file;
    int64_t line; /* of JSON: the one where what was taken last begins, from 1 */
    size_t piece; /* of plain text: approximate bytes of a piece */
    bool within;  /* a document has begun but not ended */

    int64_t documents, pieces; /* numbers of the next ones */
    tn__json_file json;        /* of the line or value that is lent */
    tn__records records;       /* its documents */
};

tn_corpus_options tn_corpus_defaults(void) {
    return (tn_corpus_options){
        .key = "text", .prompt = "prompt", .completion = "completion", .from_defaults = true};
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* Whether it ends so before .gz or .zst. */
static bool is_named(const char *path, const char *ending) {
    size_t packed = tn__ends_with(path, ".gz") ? 3 : tn__ends_with(path, ".zst") ? 4 : 0;
    size_t bytes = strlen(path) - packed, more = strlen(ending);
    return bytes >= more && memcmp(path + bytes - more, ending, more) == 0;
}

static void close_file(tn_corpus *c) {
    tn__lines_close(&c->file);
    tn__records_begin(&c->records, NULL, NULL, 0);
    tn__json_free(&c->json);
    c->open = false;
    c->done += c->sources.list[c->source++].bytes;
}

static bool open_file(tn_corpus *c) {
    const char *path = c->sources.list[c->source].path;
    if (!tn__lines_open(&c->file, path, "corpus")) { return false; }
    c->open = true;
    c->within = false;
    c->line = 0;
    /* The name decides, since the first line of a text may be anything. */
    bool lines = is_named(path, ".jsonl") || is_named(path, ".ndjson");
    c->is_json = c->options.pairs || lines || is_named(path, ".json");
    c->is_value = c->records.has_path && !lines;
    size_t piece = c->file.stream.file.bytes / PIECES;
    c->piece = piece < PIECE_LEAST ? PIECE_LEAST : piece > PIECE_MOST ? PIECE_MOST : piece;
    return true;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Raises TN_EFORMAT about the line that was taken last: "FILE: line 7: …". */
static bool raise_line(const tn_corpus *c, const char *what) {
    return tn__fail(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %s", c->file.stream.file.path,
                    c->line, what);
}

/* The next line that is not blank. False at the file's end, and after raising. */
static bool take_line(tn_corpus *c, const char **line, size_t *bytes) {
    do {
        *line = tn__lines_next(&c->file, bytes);
    } while (*line && strspn(*line, " \t") == *bytes);
    c->line = c->file.number;
    return *line != NULL;
}

/* All of the file. False if there is nothing in it, and after raising. */
static bool take_value(tn_corpus *c, const char **value, size_t *bytes) {
    tn__text_lines *f = &c->file;
    c->line = 1;
    if (!tn__lines_hold(f, LONGEST_VALUE + (size_t)1)) { return false; }
    *value = f->buffer + f->begin;
    *bytes = f->end - f->begin;
    if (*bytes > LONGEST_VALUE) {
        return raise_line(c, "the value that begins here is longer than 1 GiB (as JSON lines each "
                             "part would be read by itself)");
    }
    f->buffer[f->end] = 0;
    f->begin = f->end;
    return strspn(*value, " \t\r\n") < *bytes;
}

static bool raise_json(tn_corpus *c, const char *text) {
    char why[300];
    const char *hint = "";
    if (!c->json.wrong) {
        return tn__fail(TN_ENOMEM, "corpus", "%s: no memory for line %" PRId64,
                        c->file.stream.file.path, c->line);
    }
    size_t line = 0; /* where the line begins that is wrong */
    for (size_t i = 0; i < c->json.at; i++) {
        if (text[i] == '\n') {
            line = i + 1;
            c->line++;
        }
    }
    if (c->is_value && line > 0) {
        hint = " (with a path a .json file is one value: JSON lines should be in a .jsonl file)";
    } else if (!c->is_value && c->line == 1) {
        hint = c->options.pairs
                   ? " (expected JSON lines: {\"prompt\": \"…\", \"completion\": \"…\"})"
                   : " (expected JSON lines, each an object; --key '.[].text' reads a list in a "
                     ".json file)";
    }
    snprintf(why, sizeof(why), "%s, at byte %zu%s", c->json.wrong, c->json.at - line + 1, hint);
    return raise_line(c, why);
}

/* Reads the next line or value. False at the file's end, and after raising. */
static bool read_json(tn_corpus *c) {
    const char *text = NULL;
    size_t bytes = 0;
    tn__json_free(&c->json);
    if (!(c->is_value ? take_value : take_line)(c, &text, &bytes)) { return false; }
    if (!tn__json_read_any(&c->json, text, bytes)) { return raise_json(c, text); }
    tn__records_begin(&c->records, c->json.values, c->file.stream.file.path, c->line);
    return true;
}

/* False at the file's end, and after raising. */
static bool next_record(tn_corpus *c, tn_document *d) {
    tn__record_text texts[2];
    while (!tn__records_next(&c->records, texts)) {
        if (tn__pending() || !read_json(c)) { return false; }
    }
    *d = (tn_document){.text = texts[0].at,
                       .bytes = texts[0].bytes,
                       .completion = texts[1].at,
                       .completion_bytes = texts[1].bytes,
                       .begins = true,
                       .line = c->line};
    return true;
}

/* ---- Where to cut -----------------------------------------------------------------------------
 */

/* Unicode's White_Space, which is \s in patterns. */
static bool is_space(int32_t code) {
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* Whether the character that ends before `at` is not white space. */
static bool is_word_before(const char *text, size_t at) {
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        int32_t code = 0;
        if (((unsigned char)text[at - back] & 0xc0) != 0x80) {
            return tn__utf8_decode(text + at - back, back, &code) == (int)back && !is_space(code);
        }
    }
    return false;
}

static bool is_word_after(const char *text, size_t bytes, size_t at) {
    int32_t code = 0;
    return tn__utf8_decode(text + at, bytes - at, &code) > 0 && !is_space(code);
}

/* Whether a word ends before at, 0 < at < bytes, and a space follows: it begins the next token in
 * all patterns, whatever follows it. */
static bool ends_word(const char *text, size_t at) {
    return text[at] == ' ' && is_word_before(text, at);
}

/* Whether a line begins at `at`, after a single newline between two words: a token ends there,
 * unless a '/' follows. (With two newlines, some patterns join the second to what follows and
 * others do not.) */
static bool begins_line(const char *text, size_t bytes, size_t at) {
    return text[at - 1] == '\n' && text[at] != '/' && is_word_before(text, at - 1) &&
           is_word_after(text, bytes, at);
}

/* The last such place in text[0 … bytes), at most `most` bytes in; 0: there is none. Some
 * tokenizers put a space in front of a text that has none, so a line's beginning is the second
 * choice. */
static size_t last_cut(const char *text, size_t bytes, size_t most) {
    size_t last = most < bytes ? most : bytes - 1, at = last;
    while (at > 0 && !ends_word(text, at)) {
        at--;
    }
    if (at == 0) {
        at = last;
        while (at > 0 && !begins_line(text, bytes, at)) {
            at--;
        }
    }
    return at;
}

/* ---- Plain text ------------------------------------------------------------------------------ */

/* As C's isspace in the C locale. */
static bool is_blank(char c) {
    return c == ' ' || (c >= 9 && c <= 13);
}

/* Skips what is between documents: white space and separators. False after raising. */
static bool skip_between(tn_corpus *c) {
    size_t split = strlen(c->split);
    for (;;) {
        if (!tn__lines_hold(&c->file, split)) { return false; }
        const char *at = c->file.buffer + c->file.begin;
        size_t there = c->file.end - c->file.begin;
        bool separator = there >= split && memcmp(at, c->split, split) == 0;
        if (!separator && (there == 0 || !is_blank(*at))) { return true; }
        c->file.begin += separator ? split : 1;
    }
}

/* A piece of a document, at c->file.begin. */
typedef struct piece {
    size_t bytes;
    bool ends; /* the document */
} piece;

/* Finds the next piece. False after raising. */
static bool find_piece(tn_corpus *c, piece *p) {
    size_t split = c->split ? strlen(c->split) : 0;
    for (size_t most = c->piece; most <= LONGEST; most *= 2) {
        if (!tn__lines_hold(&c->file, most + split + 1)) { return false; }
        const char *at = c->file.buffer + c->file.begin;
        size_t there = c->file.end - c->file.begin;
        size_t looked = there < most + split ? there : most + split;
        const char *found = split ? memmem(at, looked, c->split, split) : NULL;
        p->ends = found || (c->file.all_read && there <= most);
        p->bytes = found ? (size_t)(found - at) : p->ends ? there : last_cut(at, there, most);
        if (p->ends || p->bytes > 0) { return true; }
    }
    return tn__fail(
        TN_EFORMAT, "corpus",
        "%s: 64 MiB without a space or the beginning of a line: this is not natural text",
        c->file.stream.file.path);
}

/* False at the file's end, and after raising. */
static bool next_piece(tn_corpus *c, tn_document *d) {
    piece p;
    bool begins = !c->within;
    if (begins && c->split && !skip_between(c)) { return false; }
    if (begins && (!tn__lines_hold(&c->file, 1) || c->file.begin == c->file.end)) { return false; }
    if (!find_piece(c, &p)) { return false; }
    c->within = !p.ends;
    *d = (tn_document){.text = c->file.buffer + c->file.begin, .bytes = p.bytes, .begins = begins};
    c->file.begin += p.bytes;
    while (p.ends && c->split && d->bytes > 0 && is_blank(d->text[d->bytes - 1])) {
        d->bytes--;
    }
    return true;
}

/* ---- Public ---------------------------------------------------------------------------------- */

TN__ALIVE_LIST(corpora, "corpus");

bool tn_corpus_next(tn_corpus *c, tn_document *d) {
    if (!c || !d) {
        return tn__fail(TN_EVALUE, "corpus", "the %s is NULL", c ? "document" : "corpus");
    }
    if (!tn__alive_is(&corpora, c, "corpus")) { return false; }
    *d = (tn_document){.text = NULL};
    while (!tn__pending() && (c->open || c->source < c->sources.count)) {
        if (!c->open && !open_file(c)) { return false; }
        if (c->is_json ? next_record(c, d) : next_piece(c, d)) {
            c->documents += d->begins;
            d->number = c->documents - 1;
            d->piece = c->pieces++;
            d->path = c->file.stream.file.path;
            return true;
        }
        if (!tn__pending()) { close_file(c); }
    }
    return false;
}

tn_corpus_place tn_corpus_where(const tn_corpus *c) {
    return (tn_corpus_place){.files = c ? c->sources.count : 0,
                             .bytes = c ? c->sources.bytes : 0,
                             .read = c ? c->done + (c->open ? (int64_t)c->file.stream.at : 0) : 0};
}

const tn__sources *tn__corpus_sources(const tn_corpus *c) {
    return &c->sources;
}

void tn_corpus_free(tn_corpus *c) {
    if (!c || !tn__alive_end(&corpora, c, "corpus_free")) { return; }
    tn__lines_close(&c->file);
    tn__json_free(&c->json);
    tn__records_close(&c->records);
    tn__sources_free(&c->sources);
    free(c->split);
    free(c);
}

static bool check_options(const char *const *paths, int count, const tn_corpus_options *o) {
    if (!paths || count < 1) { return tn__fail(TN_EVALUE, "corpus", "no file or folder to read"); }
    bool keys = o->key && o->prompt && o->completion;
    if (!keys || (o->split && (!*o->split || strlen(o->split) > PIECE_LEAST))) {
        return tn__fail(TN_EVALUE, "corpus", "%s",
                        keys ? "the text between documents has 1 to 1024 bytes" : "a key is NULL");
    }
    return true;
}

tn_corpus *tn_corpus_open(const char *const *paths, int count, tn_corpus_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "corpus", "tn_corpus") ||
        !check_options(paths, count, &options)) {
        return NULL;
    }
    tn_corpus *c = tn__calloc_for(1, sizeof(*c), "corpus");
    if (!c) { return NULL; }
    tn__alive_begin(&corpora, c);
    c->file.stream.file.fd = -1;
    c->options = options;
    c->split = options.split ? tn__strdup_for(options.split, "corpus") : NULL;
    bool found = !tn__pending() && tn__records_open(&c->records, &options);
    for (int i = 0; found && i < count; i++) {
        int64_t before = c->sources.count;
        found = tn__sources_add(&c->sources, paths[i]);
        if (found && c->sources.count == before) {
            tn__raise(TN_EIO, "corpus", "%s: there is no file in this folder", paths[i]);
            found = false;
        }
    }
    if (!found) {
        tn_corpus_free(c);
        return NULL;
    }
    return c;
}
