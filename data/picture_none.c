/* A build without libpng and libjpeg (-Dimages=disabled): pictures are found but cannot be read. */
#include "core/error.h"
#include "data/picture.h"

static bool raise_absent(const tn__picture_file *f) {
    return tn__fail(TN_EUNSUPPORTED, f->operation,
                    "%s: this build has no libpng and libjpeg (-Dimages=enabled)", f->path);
}

bool tn__png_decode(const tn__picture_file *f, tn__picture *p) {
    return raise_absent(f);
}

bool tn__jpeg_decode(const tn__picture_file *f, tn__picture *p) {
    return raise_absent(f);
}
