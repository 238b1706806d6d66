#include "data/corpus/kind.h"

#include "data/shards.h"

#include <endian.h>
#include <string.h>

typedef struct beginning {
    const unsigned char *at;
    size_t bytes;
    uint64_t size; /* of the file */
} beginning;

/* ---- Kinds with a mark ----------------------------------------------------------------------- */

typedef struct mark {
    size_t at, bytes;
    const char *is; /* the mark itself */
    tn__kind kind;
} mark;

#define MARK(at, text) at, sizeof(text) - 1, text
#define WORD(value)                                                                      \
    0, 4, (const char[]) {                                                               \
        (char)((value)&0xff), (char)((value) >> 8 & 0xff), (char)((value) >> 16 & 0xff), \
            (char)((value) >> 24)                                                        \
    }

static const mark marks[] = {
    {MARK(0, "\x1f\x8b\x08"), {TN__FORM_GZIP, "compressed (gzip)"}},
    {MARK(0, "\x28\xb5\x2f\xfd"), {TN__FORM_ZSTD, "compressed (zstd)"}},
    {WORD(TN__MAGIC_NARROW), {TN__FORM_TOKENS, "a shard of 16-bit tokens"}},
    {WORD(TN__MAGIC_WIDE), {TN__FORM_TOKENS, "a shard of 32-bit tokens"}},
    {WORD(TN__MAGIC_PAIRS), {TN__FORM_TOKENS, "a shard of prompts and completions"}},
    {WORD(20240326), {TN__FORM_OTHER, "an llm.c checkpoint"}},
    {WORD(20240803), {TN__FORM_OTHER, "an llm.c checkpoint (Llama 3)"}},
    {WORD(20240327), {TN__FORM_OTHER, "an llm.c training state"}},
    {WORD(20240328), {TN__FORM_OTHER, "an llm.c tokenizer"}},
    {WORD(20240522), {TN__FORM_OTHER, "an llm.c file of evaluation questions"}},
    {MARK(0, "\x93NUMPY"), {TN__FORM_OTHER, "a NumPy array"}},
    {MARK(0, "PK\x03\x04"), {TN__FORM_OTHER, "a zip archive (PyTorch and NumPy write them)"}},
    {MARK(0, "PAR1"), {TN__FORM_OTHER, "a Parquet file"}},
    {MARK(0, "ARROW1"), {TN__FORM_OTHER, "an Arrow file"}},
    {MARK(0, "\x80\x02\x8a\x0al\xfc\x9c\x46"), {TN__FORM_OTHER, "an old PyTorch file (a pickle)"}},
    {MARK(0, "\x80\x02}q"), {TN__FORM_OTHER, "a Python pickle"}},
    {MARK(0, "GGUF"), {TN__FORM_OTHER, "a GGUF file (a model's weights)"}},
    {MARK(0, "version https://git-lfs."),
     {TN__FORM_OTHER, "a git-lfs pointer (`git lfs pull` fetches the file itself)"}},
    {MARK(0, "<!DOCTYPE html"), {TN__FORM_TEXT, "an HTML page"}},
    {MARK(0, "<!doctype html"), {TN__FORM_TEXT, "an HTML page"}},
    {MARK(0, "<html"), {TN__FORM_TEXT, "an HTML page"}},
    {MARK(0, "\x89HDF\r\n"), {TN__FORM_OTHER, "an HDF5 file"}},
    {MARK(0, "SQLite format 3"), {TN__FORM_OTHER, "an SQLite database"}},
    {MARK(0, "%PDF-"), {TN__FORM_OTHER, "a PDF document"}},
    {MARK(0, "\x89PNG\r\n"), {TN__FORM_OTHER, "a PNG picture"}},
    {MARK(0, "\xff\xd8\xff"), {TN__FORM_OTHER, "a JPEG picture"}},
    {MARK(0, "\x7f"
             "ELF"),
     {TN__FORM_OTHER, "a program or an object file (ELF)"}},
    {MARK(0, "\xfd"
             "7zXZ"),
     {TN__FORM_OTHER, "compressed (xz)"}},
    {MARK(0, "BZh"), {TN__FORM_OTHER, "compressed (bzip2)"}},
    {MARK(0, "7z\xbc\xaf\x27\x1c"), {TN__FORM_OTHER, "a 7z archive"}},
    {MARK(0, "\x04\x22\x4d\x18"), {TN__FORM_OTHER, "compressed (lz4)"}},
    {MARK(257, "ustar"), {TN__FORM_OTHER, "a tar archive"}},
    {MARK(0, "\xff\xfe"), {TN__FORM_OTHER, "text in UTF-16, not UTF-8 (iconv converts it)"}},
    {MARK(0, "\xfe\xff"), {TN__FORM_OTHER, "text in UTF-16, not UTF-8 (iconv converts it)"}},
};
enum { MARKS = sizeof(marks) / sizeof(marks[0]) };

static const mark *mark_of(const beginning *b) {
    for (int i = 0; i < MARKS; i++) {
        const mark *m = &marks[i];
        if (b->bytes >= m->at + m->bytes && memcmp(b->at + m->at, m->is, m->bytes) == 0) {
            return m;
        }
    }
    return NULL;
}

/* ---- Kinds without one ----------------------------------------------------------------------- */

/* The length of a header that is a JSON object, then the header. */
static bool is_safetensors(const beginning *b) {
    if (b->bytes < 10 || b->at[8] != '{' || !memchr("\"} \n", b->at[9], 4)) { return false; }
    uint64_t header;
    memcpy(&header, b->at, sizeof(header));
    header = le64toh(header);
    return header >= 2 && header <= b->size - 8;
}

/* Bytes in one to four dimensions, which are exactly the rest of the file. */
static bool is_idx(const beginning *b) {
    if (b->bytes < 8 || memcmp(b->at, "\0\0\x08", 3) != 0 || b->at[3] < 1 || b->at[3] > 4) {
        return false;
    }
    size_t head = 4 + 4 * (size_t)b->at[3];
    uint64_t elements = 1;
    for (size_t at = 4; at < head && head <= b->bytes; at += 4) {
        uint32_t size;
        memcpy(&size, b->at + at, sizeof(size));
        if (__builtin_mul_overflow(elements, be32toh(size), &elements)) { return false; }
    }
    return head <= b->bytes && elements == b->size - head;
}

bool tn__looks_like_text(const void *start, size_t bytes) {
    const unsigned char *at = start;
    bool text = true;
    for (size_t i = 0; text && i < bytes; i++) {
        text = at[i] >= ' ' ? at[i] != 0x7f : at[i] && strchr("\t\n\r\f", at[i]);
    }
    return text;
}

tn__kind tn__kind_of(const void *start, size_t bytes, uint64_t size) {
    beginning b = {
        .at = start, .bytes = bytes < TN__KIND_BYTES ? bytes : TN__KIND_BYTES, .size = size};
    const mark *m = mark_of(&b);
    if (m) { return m->kind; }
    if (is_safetensors(&b)) {
        return (tn__kind){TN__FORM_OTHER, "a safetensors file (a model's weights)"};
    }
    if (is_idx(&b)) { return (tn__kind){TN__FORM_OTHER, "an idx file, as MNIST's are"}; }
    bool binary = b.bytes && memchr(b.at, 0, b.bytes);
    return binary ? (tn__kind){TN__FORM_BINARY, "binary"} : (tn__kind){TN__FORM_TEXT, "text"};
}
