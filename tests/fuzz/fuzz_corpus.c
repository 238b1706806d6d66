/* The input is a file of texts; its first byte says how it is read: as plain text, as plain text
 * with separators, as JSON lines, or as JSON of which the input's first line is a path. It may be
 * compressed. Either an error is raised, or every document is one; of plain text no byte is
 * lost. */
#include "tests/fuzz/bytes.h"

#include "tern/data.h"

#include <string.h>

/* What comes out of a plain text: what is in the file, without the mark of UTF-8. */
static void check_bytes(const tn_document *d, const uint8_t *data, size_t bytes, size_t *at) {
    size_t mark = bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    *at += *at == 0 ? mark : 0;
    must_hold(*at + d->bytes <= bytes, "more bytes than there are");
    must_hold(memcmp(data + *at, d->text, d->bytes) == 0, "other bytes");
    *at += d->bytes;
}

static void check_document(const tn_document *d, const tn_document *before, bool pairs) {
    must_hold(d->piece == before->piece + 1, "a piece's number");
    must_hold(d->number == before->number + d->begins, "a document's number");
    must_hold(d->path && (d->line > 0) == pairs && d->line >= before->line, "a place");
    must_hold((d->completion != NULL) == pairs, "a completion");
    must_hold(d->bytes < (64 << 20) && d->completion_bytes < (64 << 20), "a text's length");
}

/* Its characters up to a newline, or as many as fit. Returns how many bytes it took. */
static size_t take_line(char *line, size_t size, const uint8_t *data, size_t bytes) {
    size_t at = 0;
    for (; at < bytes && at + 1 < size && data[at] != '\n'; at++) {
        line[at] = (char)data[at];
    }
    line[at] = 0;
    return at + (at < bytes);
}

FUZZ(corpus, NULL) {
    if (bytes == 0) { return; }
    tn_corpus_options o = tn_corpus_defaults();
    char key[256] = "";
    int how = data[0] % 4;
    o.pairs = how >= 2;
    o.split = how == 1 ? "--" : NULL;
    data++;
    bytes--;
    if (how == 3) {
        size_t line = take_line(key, sizeof(key), data, bytes);
        o.prompt = key;
        data += line;
        bytes -= line;
    }
    bool packed = bytes > 1 && (data[0] == 0x1f || data[0] == 0x28);
    bytes_file f = bytes_file_open(data, bytes);
    const char *path = f.path;
    tn_corpus *c = tn_corpus_open(&path, 1, o);
    if (!c && how == 3 && tn_error() == TN_EVALUE) {
        tn_error_clear();
        bytes_file_close(&f);
        return;
    }
    must_hold(c != NULL, "a file that cannot be opened");
    tn_document d, before = {.number = -1, .piece = -1};
    size_t at = 0;
    bool plain = !o.pairs && !o.split && !packed;
    for (; tn_corpus_next(c, &d); before = d) {
        check_document(&d, &before, o.pairs);
        if (plain) { check_bytes(&d, data, bytes, &at); }
    }
    tn_status status = tn_error();
    must_hold(status == TN_OK || status == TN_EFORMAT || status == TN_ENOMEM, "another error");
    must_hold(status == TN_OK || strstr(tn_error_message(), path),
              "an error without the file's name");
    must_hold(status != TN_OK || !plain || at == bytes || (bytes == 3 && at == 0), "lost bytes");
    tn_error_clear();
    tn_corpus_free(c);
    bytes_file_close(&f);
}
