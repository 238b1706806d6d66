/* A folder of pictures as a dataset: each folder in it is a class, as in torchvision's ImageFolder.
 * Pictures are read on demand.
 */
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "data/corpus/sources.h"
#include "data/identity.h"
#include "data/picture.h"
#include "tern/transforms.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

enum { MOST_SIDE = 16384 };

typedef struct image {
    char *path;
    int64_t bytes, label;
} image;

typedef struct image_folder {
    tn_dataset base;
    const char *folder; /* while it is made: the caller's */
    bool resize;
    size_t root; /* bytes of the folder's path, which are not part of the images' names */
    image *images;
    int64_t count, capacity;
    char **classes; /* NULL after the last */
    int64_t class_count, class_capacity;
    tn_digest digest;
} image_folder;

/* ---- Finding images -------------------------------------------------------------------------- */

static bool is_image(const char *path) {
    static const char *const endings[] = {".png", ".jpg", ".jpeg"};
    bool found = false;
    for (size_t i = 0; i < sizeof(endings) / sizeof(*endings); i++) {
        size_t all = strlen(path), bytes = strlen(endings[i]);
        found |= all > bytes && strcasecmp(path + all - bytes, endings[i]) == 0;
    }
    return found;
}

/* By class, by folder, then by image name: torchvision's order. */
static int compare_images(const void *a, const void *b) {
    const image *x = a, *y = b;
    const char *one = x->path, *two = y->path;
    if (x->label != y->label) { return x->label < y->label ? -1 : 1; }
    size_t n = (size_t)(strrchr(one, '/') - one), m = (size_t)(strrchr(two, '/') - two);
    int order = memcmp(one, two, n < m ? n : m);
    order = order ? order : (n > m) - (n < m);
    return order ? order : strcmp(one + n, two + m);
}

static bool add_image(image_folder *d, const tn__folder_entry *w) {
    if (!tn__grow(&d->images, d->count + 1, &d->capacity, sizeof(*d->images), "image_folder")) {
        return false;
    }
    char *path = tn__strdup_for(w->path, "image_folder");
    if (path) { d->images[d->count++] = (image){path, w->bytes, d->class_count - 1}; }
    return path != NULL;
}

/* Whether the class that was found last has an image. */
static bool check_class(const image_folder *d) {
    if (d->class_count == 0 || (d->count && d->images[d->count - 1].label == d->class_count - 1)) {
        return true;
    }
    return tn__fail(TN_EVALUE, "image_folder",
                    "%s/%s: there is no .png, .jpg or .jpeg in this folder", d->folder,
                    d->classes[d->class_count - 1]);
}

static bool add_class(image_folder *d, const char *path) {
    if (!tn__grow(&d->classes, d->class_count + 2, &d->class_capacity, sizeof(*d->classes),
                  "image_folder")) {
        return false;
    }
    const char *name = strrchr(path, '/');
    d->root = (size_t)(name - path);
    d->classes[d->class_count] = tn__strdup_for(name + 1, "image_folder");
    if (!d->classes[d->class_count]) { return false; }
    d->classes[++d->class_count] = NULL;
    return true;
}

/* A class for each folder in it; what else is beside them does not matter. */
static bool find_image(const tn__folder_entry *w, void *user) {
    image_folder *d = user;
    if (w->missing) { return w->level == 1; }
    if (w->level == 0 && !w->folder) {
        return tn__fail(TN_EIO, "image_folder", "%s: %s", w->path, strerror(ENOTDIR));
    }
    if (w->folder) { return w->level != 1 || (check_class(d) && add_class(d, w->path)); }
    return w->level < 2 || !is_image(w->path) || add_image(d, w);
}

static bool find_images(image_folder *d) {
    if (!tn__folder_walk(d->folder, find_image, d, "image_folder") || !check_class(d)) {
        return false;
    }
    if (d->class_count == 0) {
        return tn__fail(TN_EVALUE, "image_folder",
                        "%s: there is no folder in it that could be a class", d->folder);
    }
    qsort(d->images, (size_t)d->count, sizeof(*d->images), compare_images);
    return true;
}

/* ---- The dataset ----------------------------------------------------------------------------- */

/* Writes the picture to x, at the size that all have. */
static tn_status resize_picture(const tn_dataset *self, const tn__picture *p, float *x) {
    tn_transform resize = tn_image_resize(self->x_dims.size[1], self->x_dims.size[2]);
    size_t values = (size_t)(3 * p->height * p->width);
    float *planes = tn__malloc_for(values * sizeof(*planes), "image_folder");
    if (!planes) { return TN_ENOMEM; }
    tn__picture_planes(p, TN_F32, planes);
    tn_status status = resize.apply(&resize, TN_DIMS(3, p->height, p->width), planes, x, NULL);
    free(planes);
    return status;
}

static tn_status image_folder_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const image_folder *d = (const image_folder *)self;
    const char *path = d->images[e.index].path;
    int64_t height = self->x_dims.size[1], width = self->x_dims.size[2];
    tn__picture p;
    if (!tn__picture_read(&p, path, "image_folder")) { return tn_error(); }
    tn_status status = TN_OK;
    if (p.height == height && p.width == width) {
        tn__picture_planes(&p, TN_F32, x);
    } else if (d->resize) {
        status = resize_picture(self, &p, x);
    } else {
        status = tn__raise(TN_EVALUE, "image_folder",
                           "%s has %lld x %lld pixels, the first image has %lld x %lld (the "
                           "options' height and width make them equal)",
                           path, (long long)p.width, (long long)p.height, (long long)width,
                           (long long)height);
    }
    tn__picture_free(&p);
    *(int64_t *)y = d->images[e.index].label;
    return status;
}

/* Over names and sizes: reading all images would take as long as an epoch. */
static tn_status image_folder_digest(tn_dataset *self, char text[33]) {
    const image_folder *d = (const image_folder *)self;
    tn__digest *digest = tn__digest_new("image_folder");
    if (!digest) { return TN_ENOMEM; }
    for (int64_t i = 0; i < d->count; i++) {
        const char *name = d->images[i].path + d->root;
        tn__digest_add(digest, name, strlen(name) + 1);
        tn__digest_add(digest, &d->images[i].bytes, sizeof(d->images[i].bytes));
    }
    tn__digest_text(digest, text);
    tn__digest_free(digest);
    return TN_OK;
}

static const tn_field image_folder_fields[] = {
    TN_FIELD_AS("digest of names and sizes", image_folder, digest),
    TN_FIELD_AS("height", image_folder, base.x_dims.size[1]),
    TN_FIELD_AS("width", image_folder, base.x_dims.size[2]),
    {0},
};

static void image_folder_free(tn_dataset *self) {
    image_folder *d = (image_folder *)self;
    for (int64_t i = 0; i < d->count; i++) {
        free(d->images[i].path);
    }
    for (int64_t i = 0; i < d->class_count; i++) {
        free(d->classes[i]);
    }
    free(d->images);
    free(d->classes);
    free(d);
}

/* Without a size in the options, all images must have that of the first. */
static bool find_size(image_folder *d, tn_image_folder_options *o) {
    d->resize = o->height != 0;
    if (d->resize) { return true; }
    tn__picture p;
    if (!tn__picture_read(&p, d->images[0].path, "image_folder")) { return false; }
    o->height = p.height;
    o->width = p.width;
    tn__picture_free(&p);
    return true;
}

static bool check_options(const char *folder, tn_image_folder_options o) {
    bool none = o.height == 0 && o.width == 0;
    bool both = o.height > 0 && o.height <= MOST_SIDE && o.width > 0 && o.width <= MOST_SIDE;
    if (!folder) { return tn__fail(TN_EVALUE, "image_folder", "the folder is NULL"); }
    return none || both ||
           tn__fail(TN_EVALUE, "image_folder",
                    "height is %lld but width is %lld (both must be 0, or 1 to %d)",
                    (long long)o.height, (long long)o.width, MOST_SIDE);
}

tn_image_folder_options tn_image_folder_defaults(void) {
    return (tn_image_folder_options){.from_defaults = true};
}

tn_dataset *tn_image_folder(const char *folder, tn_image_folder_options options) {
    if (!tn__options_made(options.from_defaults, "image_folder", "tn_image_folder") ||
        !check_options(folder, options)) {
        return NULL;
    }
    image_folder *d = tn__calloc_for(1, sizeof(*d), "image_folder");
    if (!d) { return NULL; }
    d->folder = folder;
    if (!find_images(d) || !find_size(d, &options)) {
        image_folder_free(&d->base);
        return NULL;
    }
    d->base = (tn_dataset){.kind = "image_folder",
                           .size = d->count,
                           .x_dims = TN_DIMS(3, options.height, options.width),
                           .y_dims = TN_DIMS(),
                           .x_dtype = TN_F32,
                           .y_dtype = TN_I64,
                           .classes = (const char *const *)d->classes,
                           .get = image_folder_get,
                           .fields = image_folder_fields,
                           .digest = image_folder_digest,
                           .free = image_folder_free};
    return &d->base;
}
