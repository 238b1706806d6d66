/* Pictures of any format (picture.h): from files, to planes and to tensors. */
#include "data/picture.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "tern/data.h"
#include "tern/sys/tensor.h"

#include <string.h>

/* PIL's limit; 512 MiB. */
enum { MOST_PIXELS = 178956970 };

bool tn__picture_begin(const tn__picture_file *f, tn__picture *p, int64_t height, int64_t width,
                       size_t density) {
    enum { HEAD = 1 << 16 /* pixels that any file may have: a small one is mostly tables */ };
    size_t pixels = (size_t)height * (size_t)width;
    if (pixels > MOST_PIXELS || pixels > HEAD + density * f->count) {
        return tn__fail(TN_EFORMAT, f->operation, "%s: it says %lld x %lld pixels, more than %s",
                        f->path, (long long)width, (long long)height,
                        pixels > MOST_PIXELS ? "this reader takes" : "its bytes can hold");
    }
    *p = (tn__picture){height, width, tn__malloc(3 * pixels)};
    return p->pixels || tn__fail(TN_ENOMEM, f->operation, "%s: no memory for the picture", f->path);
}

static bool decode_file(const tn__picture_file *f, tn__picture *p) {
    static const unsigned char png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (f->count >= sizeof(png) && memcmp(f->bytes, png, sizeof(png)) == 0) {
        return tn__png_decode(f, p);
    }
    if (f->count >= 3 && memcmp(f->bytes, "\xff\xd8\xff", 3) == 0) { return tn__jpeg_decode(f, p); }
    return tn__fail(TN_EFORMAT, f->operation, "%s: it is neither a PNG nor a JPEG file", f->path);
}

bool tn__picture_read(tn__picture *p, const char *path, const char *operation) {
    tn__picture_file f = {.path = path, .operation = operation};
    *p = (tn__picture){0};
    char *bytes = tn__read_whole(path, &f.count, operation);
    f.bytes = (const unsigned char *)bytes;
    bool done = bytes && decode_file(&f, p);
    free(bytes);
    if (!done) { tn__picture_free(p); }
    return done;
}

void tn__picture_free(tn__picture *p) {
    free(p->pixels);
    *p = (tn__picture){0};
}

void tn__picture_planes(const tn__picture *p, tn_dtype dtype, void *x) {
    size_t pixels = (size_t)(p->height * p->width);
    for (size_t c = 0; c < 3; c++) {
        const uint8_t *from = p->pixels + c;
        if (dtype == TN_U8) {
            for (size_t i = 0; i < pixels; i++) {
                ((uint8_t *)x)[c * pixels + i] = from[3 * i];
            }
        } else {
            for (size_t i = 0; i < pixels; i++) {
                ((float *)x)[c * pixels + i] = (float)from[3 * i] / 255.0f;
            }
        }
    }
}

tn_tensor *tn_image_read(const char *path, tn_dtype dtype) {
    if (tn__pending()) { return tn_inert(); }
    if (dtype != TN_U8 && dtype != TN_F32) {
        tn__raise(TN_EDTYPE, "image_read", "%s, but a picture is u8 or f32", tn_dtype_name(dtype));
        return tn_inert();
    }
    tn__picture p;
    if (!tn__picture_read(&p, path, "image_read")) { return tn_inert(); }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *t = tn_to(tn_empty(TN_DIMS(3, p.height, p.width), dtype), tn_cpu());
    if (!tn_is_inert(t)) { tn__picture_planes(&p, dtype, tn_data_mut(t)); }
    tn__picture_free(&p);
    return tn_return(t);
}
