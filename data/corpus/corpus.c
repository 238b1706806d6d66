/* A corpus: documents from text files, one at a time, in bounded memory.
 *
 * The buffer of lines.h holds what has been read of the current file. A file of JSON
 * lines is taken from it line by line, and a .json file of which paths are wanted value by value;
 * each may have many documents (records.h). A plain text is one document or, with a separator,
 * several; a long one comes in pieces, so that several threads can work on it and it need not be in
 * memory whole. Pieces are cut where a word begins, at a place where the patterns of GPT-2's
 * tokenizer and of later ones always cut too: the tokens of the pieces are those of the whole.
 */
#define _GNU_SOURCE /* memmem */
#include "core/alive.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/corpus/cut.h"
#include "data/corpus/records.h"
#include "data/corpus/sources.h"
#include "data/lines.h"
#include "tern/data.h"
#include "text/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = TN__LONGEST_LINE /* of plain text without a place to cut */ };
enum { LONGEST_VALUE = 1 << 30 /* bytes of a value that is not on a line of its own */ };
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
    bool is_values; /* not JSON lines: values of any form, one after the other */
    tn__text_lines file;
    int64_t line;  /* of JSON: the one where what was taken last begins, from 1 */
    int64_t lines; /* of values: their ends, so far */
    size_t piece;  /* of plain text: approximate bytes of a piece */
    bool within;   /* a document has begun but not ended */

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
    static const char *const packed[] = {".gz", ".zst"};
    size_t bytes = strlen(path), more;
    for (int i = 0; i < 2; i++) {
        more = strlen(packed[i]);
        bytes -= bytes >= more && memcmp(path + bytes - more, packed[i], more) == 0 ? more : 0;
    }
    more = strlen(ending);
    return bytes >= more && memcmp(path + bytes - more, ending, more) == 0;
}

/* The name decides, since the first line of a text may be anything. */
static bool is_json_name(const char *path) {
    return is_named(path, ".jsonl") || is_named(path, ".json") || is_named(path, ".ndjson");
}

static void close_file(tn_corpus *c) {
    tn__lines_close(&c->file);
    tn__records_begin(&c->records, NULL);
    tn__json_free(&c->json);
    c->open = false;
    c->done += c->sources.list[c->source++].bytes;
}

static bool open_file(tn_corpus *c) {
    const char *path = c->sources.list[c->source].path;
    if (!tn__lines_open(&c->file, path, "corpus")) { return false; }
    c->open = true;
    c->within = false;
    c->line = c->lines = 0;
    c->is_json = c->options.pairs || is_json_name(path);
    c->is_values = c->records.has_path && !is_named(path, ".jsonl") && !is_named(path, ".ndjson");
    size_t piece = c->file.stream.file.bytes / PIECES;
    c->piece = piece < PIECE_LEAST ? PIECE_LEAST : piece > PIECE_MOST ? PIECE_MOST : piece;
    return true;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Raises TN_EFORMAT about the line that was taken last: "FILE: line 7: …". */
static bool raise_line(const tn_corpus *c, const char *what) {
    tn__raise(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %s", c->file.stream.file.path, c->line,
              what);
    return false;
}

/* The next line that is not blank. False at the file's end, and after raising. */
static bool take_line(tn_corpus *c, const char **line, size_t *bytes) {
    do {
        *line = tn__lines_next(&c->file, bytes);
    } while (*line && strspn(*line, " \t") == *bytes);
    c->line = c->file.number;
    return *line != NULL;
}

/* A value's end, as far as brackets and quotes tell: the parser finds all else. */
typedef struct ending {
    size_t looked; /* bytes */
    int64_t depth;
    bool quoted, escaped, ended;
} ending;

static void look_for_end(ending *e, const char *value, size_t there) {
    bool compound = there > 0 && (*value == '{' || *value == '[');
    for (; e->looked < there && !e->ended; e->looked++) {
        char byte = value[e->looked];
        if (e->quoted) {
            e->quoted = e->escaped || byte != '"';
            e->escaped = !e->escaped && byte == '\\';
        } else {
            e->quoted = byte == '"';
            e->depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
            e->ended = compound ? e->depth == 0 : byte == '\n';
        }
    }
}

static int64_t count_lines(const char *text, size_t bytes) {
    int64_t lines = 0;
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    return lines;
}

static bool is_json_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The next value. False at the file's end, and after raising. */
static bool take_value(tn_corpus *c, const char **value, size_t *bytes) {
    for (;;) {
        if (!tn__lines_hold(&c->file, 1) || c->file.begin == c->file.end) { return false; }
        if (!is_json_space(c->file.buffer[c->file.begin])) { break; }
        c->lines += c->file.buffer[c->file.begin++] == '\n';
    }
    c->line = c->lines + 1;
    ending e = {0};
    for (;;) {
        look_for_end(&e, c->file.buffer + c->file.begin, c->file.end - c->file.begin);
        if (e.looked > LONGEST_VALUE) {
            return raise_line(c, "the value that begins here is longer than 1 GiB (as JSON lines "
                                 "each part would be read by itself)");
        }
        if (e.ended || c->file.all_read) { break; }
        if (!tn__lines_more(&c->file)) { return false; }
    }
    *value = c->file.buffer + c->file.begin;
    *bytes = e.looked;
    c->file.begin += e.looked;
    c->lines += count_lines(*value, *bytes);
    return true;
}

static bool raise_json(tn_corpus *c, const char *text, size_t bytes) {
    char why[200];
    const char *wrong = c->json.wrong;
    if (!wrong) {
        tn__raise(TN_ENOMEM, "corpus", "%s: no memory for line %" PRId64, c->file.stream.file.path,
                  c->line);
        return false;
    }
    bool first = c->line == 1 && !c->is_values;
    if (first && bytes > 0 && text[strspn(text, " \t\r")] == '[') {
        return raise_line(c, c->options.pairs
                                 ? "this is a JSON list, not JSON lines, of which each is an object"
                                 : "this is a JSON list, not JSON lines, of which each is an "
                                   "object (--key '.[].text' reads a list in a .json file)");
    }
    size_t line = c->json.at; /* where the line begins that is wrong */
    while (line > 0 && text[line - 1] != '\n') {
        line--;
    }
    c->line += count_lines(text, line);
    snprintf(why, sizeof(why), "%s, at byte %zu%s", wrong, c->json.at - line + 1,
             first && c->options.pairs
                 ? " (pairs are JSON lines: {\"prompt\": \"…\", \"completion\": \"…\"})"
             : first && bytes < 3 ? " (expected JSON lines, each an object)"
                                  : "");
    return raise_line(c, why);
}

/* Reads the next line or value. False at the file's end, and after raising. */
static bool read_json(tn_corpus *c) {
    const char *text = NULL;
    size_t bytes = 0;
    tn__json_free(&c->json);
    if (!(c->is_values ? take_value : take_line)(c, &text, &bytes)) { return false; }
    if (!tn__json_read_any(&c->json, text, bytes)) { return raise_json(c, text, bytes); }
    tn__records_begin(&c->records, c->json.values);
    return true;
}

/* False at the file's end, and after raising. */
static bool next_record(tn_corpus *c, tn_document *d) {
    tn__record_text texts[2];
    while (!tn__records_next(&c->records, texts)) {
        if (c->records.wrong[0]) { return raise_line(c, c->records.wrong); }
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
        p->bytes = found ? (size_t)(found - at) : p->ends ? there : tn__last_cut(at, there, most);
        if (p->ends || p->bytes > 0) { return true; }
    }
    tn__raise(TN_EFORMAT, "corpus",
              "%s: 64 MiB without a space or the beginning of a line: this is not natural text",
              c->file.stream.file.path);
    return false;
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
        tn__raise(TN_EVALUE, "corpus", "the %s is NULL", c ? "document" : "corpus");
        return false;
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
    if (!paths || count < 1) {
        tn__raise(TN_EVALUE, "corpus", "no file or folder to read");
        return false;
    }
    bool keys = o->key && o->prompt && o->completion;
    if (!keys || (o->split && (!*o->split || strlen(o->split) > PIECE_LEAST))) {
        tn__raise(TN_EVALUE, "corpus", "%s",
                  keys ? "the text between documents has 1 to 1024 bytes" : "a key is NULL");
        return false;
    }
    return true;
}

tn_corpus *tn_corpus_open(const char *const *paths, int count, tn_corpus_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "corpus", "tn_corpus") ||
        !check_options(paths, count, &options)) {
        return NULL;
    }
    tn_corpus *c = tn__calloc(1, sizeof(*c));
    if (c) {
        tn__alive_begin(&corpora, c);
        c->file.stream.file.fd = -1;
        c->options = options;
        c->split = options.split ? tn__strdup(options.split) : NULL;
    }
    if (!c || (options.split && !c->split)) { tn__raise(TN_ENOMEM, "corpus", "no memory"); }
    bool found = c && !tn__pending() && tn__records_open(&c->records, &options);
    for (int i = 0; found && i < count; i++) {
        int64_t before = c->sources.count;
        found = tn__sources_add(&c->sources, paths[i], "corpus");
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
