/* Plain and compressed files as a stream of bytes (stream.h). */
#include "data/corpus/stream.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/text.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { PACKED_SIZE = 1 << 16 };

/* A decompressor: zlib's or zstd's state, and bytes of the file that it has not consumed yet. */
typedef struct tn__unpacker {
    bool is_zstd;
    bool inside; /* a member or frame has begun but not ended */
    z_stream gzip;
    ZSTD_DStream *zstd;
    size_t from, to; /* of `packed` */
    unsigned char packed[PACKED_SIZE];
} tn__unpacker;

static bool raise_damage(const tn__stream *s, const char *why) {
    return tn__fail(TN_EFORMAT, s->file.operation, "%s is damaged: %s, before byte %zu of it",
                    s->file.path, why, s->at);
}

/* At byte `at` of the file, where a member or frame has ended. */
static bool raise_rest(const tn__stream *s, size_t at) {
    return tn__fail(TN_EFORMAT, s->file.operation,
                    "%s: its %s data end at byte %zu, but something else follows them",
                    s->file.path, s->unpacker->is_zstd ? "zstd" : "gzip", at);
}

static bool raise_memory(const tn__stream *s) {
    return tn__fail(TN_ENOMEM, s->file.operation, "%s: no memory", s->file.path);
}

/* ---- One step of each ------------------------------------------------------------------------ */

/* Both take from u->packed and fill [*to, end). False after raising. */

static bool step_gzip(tn__stream *s, unsigned char **to, unsigned char *end) {
    tn__unpacker *u = s->unpacker;
    z_stream *z = &u->gzip;
    if (!u->inside && u->from < u->to && u->packed[u->from] != 0x1f) {
        return raise_rest(s, s->at - (u->to - u->from));
    }
    if (!u->inside && inflateReset(z) != Z_OK) { return raise_damage(s, "it cannot be begun"); }
    u->inside = true;
    z->next_in = u->packed + u->from;
    z->avail_in = (unsigned)(u->to - u->from);
    z->next_out = *to;
    z->avail_out = (unsigned)(end - *to);
    int status = inflate(z, Z_NO_FLUSH);
    u->from = u->to - z->avail_in;
    *to = z->next_out;
    u->inside = status != Z_STREAM_END;
    if (status == Z_MEM_ERROR) { return raise_memory(s); }
    return status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR ||
           raise_damage(s, z->msg ? z->msg : "its checksum is wrong");
}

static bool step_zstd(tn__stream *s, unsigned char **to, unsigned char *end) {
    tn__unpacker *u = s->unpacker;
    ZSTD_inBuffer in = {.src = u->packed + u->from, .size = u->to - u->from};
    ZSTD_outBuffer out = {.dst = *to, .size = (size_t)(end - *to)};
    size_t left = ZSTD_decompressStream(u->zstd, &out, &in);
    u->from += in.pos;
    *to += out.pos;
    if (ZSTD_isError(left)) {
        if (ZSTD_getErrorCode(left) == ZSTD_error_prefix_unknown) {
            return raise_rest(s, s->at - (u->to - u->from));
        }
        bool memory = ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation;
        return memory ? raise_memory(s) : raise_damage(s, ZSTD_getErrorName(left));
    }
    u->inside = left != 0;
    return true;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Reads more of the file when the unpacker has consumed everything. False at the file's end, and
 * after raising. */
static bool fill_packed(tn__stream *s) {
    tn__unpacker *u = s->unpacker;
    size_t left = s->file.bytes - s->at, bytes = left < PACKED_SIZE ? left : PACKED_SIZE;
    if (u->from < u->to) { return true; }
    if (bytes == 0 || !tn__reader_get(&s->file, s->at, u->packed, bytes)) { return false; }
    s->at += bytes;
    u->from = 0;
    u->to = bytes;
    return true;
}

/* Skips zeros between members and behind the last, as Python and gzip do: archives are padded with
 * them. */
static void skip_padding(tn__unpacker *u) {
    while (!u->inside && !u->is_zstd && u->from < u->to && u->packed[u->from] == 0) {
        u->from++;
    }
}

static int64_t read_packed(tn__stream *s, unsigned char *to, size_t size) {
    enum { MOST_AT_ONCE = 1 << 30 /* zlib counts in int */ };
    tn__unpacker *u = s->unpacker;
    unsigned char *begin = to, *end = to + (size < MOST_AT_ONCE ? size : MOST_AT_ONCE);
    while (to < end) {
        /* Unpacked bytes that did not fit come before those read next. */
        unsigned char *before = to;
        bool more = fill_packed(s);
        if (tn__pending()) { return -1; }
        skip_padding(u);
        if (more && u->from == u->to) { continue; }
        if (!more && !u->inside) { break; }
        if (!(u->is_zstd ? step_zstd : step_gzip)(s, &to, end)) { return -1; }
        if (!more && to == before && u->inside) {
            tn__raise(TN_EFORMAT, s->file.operation, "%s was cut short: its %s data do not end",
                      s->file.path, u->is_zstd ? "zstd" : "gzip");
            return -1;
        }
    }
    return to - begin;
}

int64_t tn__stream_read(tn__stream *s, void *to, size_t size) {
    if (s->unpacker) { return read_packed(s, to, size); }
    size_t left = s->file.bytes - s->at, bytes = left < size ? left : size;
    if (!tn__reader_get(&s->file, s->at, to, bytes)) { return -1; }
    s->at += bytes;
    return (int64_t)bytes;
}

/* ---- Beginning ------------------------------------------------------------------------------- */

static void unpacker_free(tn__unpacker *u) {
    if (u && u->is_zstd) {
        ZSTD_freeDStream(u->zstd);
    } else if (u) {
        inflateEnd(&u->gzip);
    }
    free(u);
}

static bool unpacker_begin(tn__stream *s, bool zstd) {
    enum { GZIP_ONLY = 16 };
    tn__unpacker *u = tn__calloc(1, sizeof(*u));
    bool begun = false;
    if (u && zstd) {
        u->is_zstd = true;
        u->zstd = ZSTD_createDStream();
        begun = u->zstd && !ZSTD_isError(ZSTD_initDStream(u->zstd));
    } else if (u) {
        begun = inflateInit2(&u->gzip, MAX_WBITS + GZIP_ONLY) == Z_OK;
    }
    s->unpacker = u;
    return begun || raise_memory(s);
}

/* A file whose name says that it is compressed, but is not, was cut short or is something else. */
static bool check_name(const tn__stream *s) {
    const char *path = s->file.path;
    bool gzip = tn__ends_with(path, ".gz") && s->kind.form != TN__FORM_GZIP;
    bool zstd = tn__ends_with(path, ".zst") && s->kind.form != TN__FORM_ZSTD;
    return (!gzip && !zstd) ||
           tn__fail(TN_EFORMAT, s->file.operation,
                    "%s is not a %s file, despite its name: it is %s", path, gzip ? "gzip" : "zstd",
                    s->file.bytes ? s->kind.is : "empty");
}

/* Finds out the kind of the decompressed bytes from the first ones; then rewinds the stream. */
static bool look_inside(tn__stream *s) {
    unsigned char inside[TN__KIND_BYTES];
    int64_t bytes = tn__stream_read(s, inside, sizeof(inside));
    if (bytes < 0) { return false; }
    s->kind = tn__kind_of(inside, (size_t)bytes, UINT64_MAX);
    if (s->kind.form == TN__FORM_GZIP || s->kind.form == TN__FORM_ZSTD) {
        return tn__fail(TN_EFORMAT, s->file.operation, "%s is compressed twice", s->file.path);
    }
    bool zstd = s->unpacker->is_zstd;
    unpacker_free(s->unpacker);
    s->unpacker = NULL;
    s->at = 0;
    return unpacker_begin(s, zstd);
}

static bool stream_begin(tn__stream *s) {
    unsigned char head[TN__KIND_BYTES];
    size_t bytes = s->file.bytes < sizeof(head) ? s->file.bytes : sizeof(head);
    if (!tn__reader_get(&s->file, 0, head, bytes)) { return false; }
    s->kind = tn__kind_of(head, bytes, s->file.bytes);
    bool zstd = s->kind.form == TN__FORM_ZSTD, packed = zstd || s->kind.form == TN__FORM_GZIP;
    return check_name(s) && (!packed || (unpacker_begin(s, zstd) && look_inside(s)));
}

bool tn__stream_open(tn__stream *s, const char *path, const char *operation) {
    *s = (tn__stream){.file.fd = -1};
    if (!tn__reader_open(&s->file, path, operation)) { return false; }
    if (!stream_begin(s)) {
        tn__stream_close(s);
        return false;
    }
    return true;
}

void tn__stream_close(tn__stream *s) {
    unpacker_free(s->unpacker);
    s->unpacker = NULL;
    tn__reader_close(&s->file);
}
