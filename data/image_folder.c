/* A folder of pictures as a dataset: each folder in it is a class, as in torchvision's ImageFolder.
 * Pictures are read on demand.
 */
#include "core/digest.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "data/corpus/sources.h"
#include "data/identity.h"
#include "data/picture.h"
#include "tern/transforms.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MOST_SIDE = 16384 };

typedef struct image {
    char *path;
    int64_t bytes, label;
} image;

typedef struct image_folder {
    tn_dataset base;
    bool resize;
    size_t root; /* bytes of the folder's name, which are not part of the images' names */
    image *images;
    int64_t count, capacity;
    char **classes; /* NULL after the last */
    int64_t class_count;
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

/* By folder name, then by image name: torchvision's order. */
static int compare_images(const void *a, const void *b) {
    const char *one = ((const image *)a)->path, *two = ((const image *)b)->path;
    size_t n = (size_t)(strrchr(one, '/') - one), m = (size_t)(strrchr(two, '/') - two);
    int order = memcmp(one, two, n < m ? n : m);
    order = order ? order : (n > m) - (n < m);
    return order ? order : strcmp(one + n, two + m);
}

/* Takes ownership of the path. */
static bool add_image(image_folder *d, char *path, int64_t bytes, int64_t label) {
    if (!tn__grow(&d->images, d->count + 1, &d->capacity, sizeof(*d->images), "image_folder")) {
        free(path);
        return false;
    }
    d->images[d->count++] = (image){path, bytes, label};
    return true;
}

static bool add_class(image_folder *d, const char *folder, int64_t label) {
    char *path = tn__folder_path(folder, d->classes[label], "image_folder");
    tn__sources files = {0};
    int64_t before = d->count;
    bool done = path && tn__sources_add(&files, path, "image_folder");
    for (int64_t i = 0; done && i < files.count; i++) {
        tn__source_file *file = &files.list[i];
        if (is_image(file->path)) {
            done = add_image(d, file->path, file->bytes, label);
            file->path = NULL;
        }
    }
    if (done && d->count == before) {
        tn__raise(TN_EVALUE, "image_folder", "%s: there is no .png, .jpg or .jpeg in this folder",
                  path);
        done = false;
    }
    if (done) {
        qsort(d->images + before, (size_t)(d->count - before), sizeof(*d->images), compare_images);
    }
    tn__sources_free(&files);
    free(path);
    return done;
}

/* ---- Classes --------------------------------------------------------------------------------- */

static bool is_folder(const char *folder, const char *name) {
    struct stat about;
    char *path = tn__folder_path(folder, name, "image_folder");
    bool is = path && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    free(path);
    return is;
}

/* A class for each folder in it. */
static bool find_classes(image_folder *d, const char *folder) {
    tn__names names = {.count = 0};
    bool done = tn__names_in(&names, folder, "image_folder");
    if (done) {
        d->classes = tn__calloc_for((size_t)names.count + 1, sizeof(char *), "image_folder");
    }
    for (int64_t i = 0; d->classes && i < names.count; i++) {
        if (is_folder(folder, names.list[i])) {
            d->classes[d->class_count++] = names.list[i];
            names.list[i] = NULL;
        }
    }
    tn__names_free(&names);
    if (d->classes && !tn__pending() && d->class_count == 0) {
        tn__raise(TN_EVALUE, "image_folder", "%s: there is no folder in it that could be a class",
                  folder);
    }
    return d->classes && !tn__pending();
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

static bool find_images(image_folder *d, const char *folder) {
    d->root = strlen(folder);
    if (!find_classes(d, folder)) { return false; }
    for (int64_t i = 0; i < d->class_count; i++) {
        if (!add_class(d, folder, i)) { return false; }
    }
    return true;
}

static bool check_options(const char *folder, tn_image_folder_options o) {
    bool none = o.height == 0 && o.width == 0;
    bool both = o.height > 0 && o.height <= MOST_SIDE && o.width > 0 && o.width <= MOST_SIDE;
    if (!folder) {
        tn__raise(TN_EVALUE, "image_folder", "the folder is NULL");
    } else if (!none && !both) {
        tn__raise(TN_EVALUE, "image_folder",
                  "height is %lld but width is %lld (both must be 0, or 1 to %d)",
                  (long long)o.height, (long long)o.width, MOST_SIDE);
    }
    return folder && (none || both);
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
    if (!find_images(d, folder) || !find_size(d, &options)) {
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
