/* PNG files, read with libpng.
 *
 * Its errors longjmp to guard_read. Chunks that no pixel depends on are skipped: profiles and
 * gamma, which PIL does not apply either, and texts, which may be decompression bombs.
 */
#include "core/error.h"
#include "core/memory.h"
#include "data/picture.h"

#include <png.h>
#include <string.h>

typedef struct reading {
    const tn__picture_file *file;
    size_t at; /* in the file */
    png_structp png;
    png_infop info;
    tn__picture *picture;
} reading;

/* ---- What libpng calls ----------------------------------------------------------------------- */

static void give_bytes(png_structp png, png_bytep to, size_t bytes) {
    reading *r = png_get_io_ptr(png);
    if (bytes > r->file->count - r->at) { png_error(png, "it ends too early"); }
    memcpy(to, r->file->bytes + r->at, bytes);
    r->at += bytes;
}

static void raise_png(png_structp png, png_const_charp text) {
    const reading *r = png_get_error_ptr(png);
    tn__raise(TN_EFORMAT, r->file->operation, "%s: PNG, at byte %zu: %s", r->file->path, r->at,
              text);
    png_longjmp(png, 1);
}

static void pass_warning(png_structp png, png_const_charp text) {}

static void raise_memory(const tn__picture_file *f) {
    tn__raise(TN_ENOMEM, f->operation, "%s: no memory for the picture", f->path);
}

static void *give_memory(png_structp png, png_alloc_size_t bytes) {
    const reading *r = png_get_mem_ptr(png);
    void *block = tn__malloc(bytes);
    if (!block) { raise_memory(r->file); }
    return block;
}

static void take_memory(png_structp png, void *block) {
    free(block);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Any format becomes 8 bits of red, green and blue: the upper 8 of 16 bits, grey three times,
 * transparency ignored. */
static void set_conversions(png_structp png, int depth, int colour) {
    if (depth == 16) { png_set_strip_16(png); }
    if (colour == PNG_COLOR_TYPE_PALETTE) {
        png_set_palette_to_rgb(png);
    } else if (!(colour & PNG_COLOR_MASK_COLOR)) {
        png_set_expand_gray_1_2_4_to_8(png);
        png_set_gray_to_rgb(png);
    }
    png_set_strip_alpha(png);
}

static void read_pixels(reading *r) {
    enum { DENSITY = 8 * 1032 /* a pixel may be a bit; deflate expands a byte to up to 1032 */ };
    png_set_read_fn(r->png, r, give_bytes);
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(r->png, r->info);
    png_uint_32 width, height;
    int depth, colour;
    png_get_IHDR(r->png, r->info, &width, &height, &depth, &colour, NULL, NULL, NULL);
    if (!tn__picture_begin(r->file, r->picture, height, width, DENSITY)) { png_longjmp(r->png, 1); }
    set_conversions(r->png, depth, colour);
    int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    size_t row = 3 * (size_t)width;
    if (png_get_rowbytes(r->png, r->info) != row) {
        png_error(r->png, "its pixel format is unknown");
    }
    for (int pass = 0; pass < passes; pass++) {
        for (size_t y = 0; y < height; y++) {
            png_read_row(r->png, r->picture->pixels + y * row, NULL);
        }
    }
    png_read_end(r->png, NULL);
}

/* Separate from read_pixels, so that no local variable is live across the longjmp. */
static bool guard_read(reading *r) {
    if (setjmp(png_jmpbuf(r->png))) { return false; }
    read_pixels(r);
    return true;
}

bool tn__png_decode(const tn__picture_file *f, tn__picture *p) {
    reading r = {.file = f, .picture = p};
    r.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, raise_png, pass_warning, &r,
                                     give_memory, take_memory);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    bool done = r.info && guard_read(&r) && !tn__pending();
    if (!r.info) { raise_memory(f); }
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return done;
}
