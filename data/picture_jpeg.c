/* JPEG files, read with libjpeg.
 *
 * Its errors longjmp to guard_read. So do its warnings that pixels are lost: it would fill in grey,
 * which would go unnoticed in a training set.
 */
#include "core/error.h"
#include "data/picture.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

enum { MOST_SCANS = 100 /* of a progressive file: each is a pass over all pixels */ };

typedef struct reading {
    struct jpeg_decompress_struct jpeg; /* its client_data is this struct */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    const tn__picture_file *file;
    tn__picture *picture;
} reading;

/* ---- What libjpeg calls ---------------------------------------------------------------------- */

static void leave_reading(j_common_ptr jpeg) {
    reading *r = jpeg->client_data;
    char text[JMSG_LENGTH_MAX];
    bool memory = jpeg->err->msg_code == JERR_OUT_OF_MEMORY;
    jpeg->err->format_message(jpeg, text);
    tn__raise(memory ? TN_ENOMEM : TN_EFORMAT, r->file->operation, "%s: JPEG, at byte %zu: %.150s",
              r->file->path, r->jpeg.src ? r->file->count - r->jpeg.src->bytes_in_buffer : 0, text);
    longjmp(r->back, 1);
}

/* level -1: a warning */
static void take_message(j_common_ptr jpeg, int level) {
    static const int losses[] = {JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE,
                                 JWRN_MUST_RESYNC, JWRN_JPEG_EOF};
    for (size_t i = 0; level < 0 && i < sizeof(losses) / sizeof(*losses); i++) {
        if (jpeg->err->msg_code == losses[i]) { leave_reading(jpeg); }
    }
}

static void pass_message(j_common_ptr jpeg) {}

static void look_at_scans(j_common_ptr jpeg) {
    reading *r = jpeg->client_data;
    if (r->jpeg.input_scan_number > MOST_SCANS) {
        tn__raise(TN_EFORMAT, r->file->operation, "%s: JPEG: it has more than %d scans",
                  r->file->path, MOST_SCANS);
        longjmp(r->back, 1);
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* A row of CMYK pixels, inverted as Adobe writes them and PIL reads them. */
static void convert_cmyk(const uint8_t *from, uint8_t *to, size_t pixels) {
    for (size_t i = 0; i < pixels; i++) {
        int light = from[4 * i + 3];
        for (size_t c = 0; c < 3; c++) {
            int ink = (255 - from[4 * i + c]) * light + 128;
            int left = light - (((ink >> 8) + ink) >> 8);
            to[3 * i + c] = (uint8_t)(left > 0 ? left : 0);
        }
    }
}

static void read_rows(reading *r) {
    struct jpeg_decompress_struct *j = &r->jpeg;
    size_t width = j->output_width;
    bool cmyk = j->out_color_space == JCS_CMYK;
    JSAMPARRAY inks =
        cmyk ? j->mem->alloc_sarray((j_common_ptr)j, JPOOL_IMAGE, (JDIMENSION)(4 * width), 1)
             : NULL;
    while (j->output_scanline < j->output_height) {
        JSAMPROW row = r->picture->pixels + 3 * width * j->output_scanline;
        jpeg_read_scanlines(j, cmyk ? inks : &row, 1);
        if (cmyk) { convert_cmyk(inks[0], row, width); }
    }
}

static void read_pixels(reading *r) {
    enum {
        DENSITY = 1024 /* pixels per byte: 64 take at least a bit, and planes may be subsampled */
    };
    struct jpeg_decompress_struct *j = &r->jpeg;
    jpeg_create_decompress(j);
    j->progress = &r->progress;
    jpeg_mem_src(j, r->file->bytes, r->file->count);
    jpeg_read_header(j, TRUE);
    bool cmyk = j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK;
    j->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    if (!tn__picture_begin(r->file, r->picture, j->image_height, j->image_width, DENSITY)) {
        longjmp(r->back, 1);
    }
    jpeg_start_decompress(j);
    read_rows(r);
    jpeg_finish_decompress(j);
}

/* Separate from read_pixels, so that no local variable is live across the longjmp. */
static bool guard_read(reading *r) {
    if (setjmp(r->back)) { return false; }
    read_pixels(r);
    return true;
}

bool tn__jpeg_decode(const tn__picture_file *f, tn__picture *p) {
    reading r = {.file = f, .picture = p};
    r.jpeg.client_data = &r;
    r.jpeg.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = leave_reading;
    r.errors.emit_message = take_message;
    r.errors.output_message = pass_message;
    r.progress.progress_monitor = look_at_scans;
    bool done = guard_read(&r);
    jpeg_destroy_decompress(&r.jpeg);
    return done;
}
