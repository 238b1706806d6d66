/* Small colour photographs from the files of CIFAR's binary distributions.
 *
 * A file is a sequence of records and nothing else. A record is the label (CIFAR-100: the coarse
 * label, then the fine one) and 3 planes of 32 x 32 pixels: red, green, blue.
 */
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "data/rows.h"

#include <stdio.h>

enum { SIDE = 32, VALUES = 3 * SIDE * SIDE, MOST_EXAMPLES = 1000000 };

/* How the two distributions differ. */
typedef struct distribution {
    const char *kind;
    const char *const *train, *const *test; /* names of files; NULL after the last */
    size_t labels;                          /* bytes before the pixels; the last is the label */
    int classes;
    const char *const *names; /* of the classes; NULL after the last */
} distribution;

static const char *const names10[] = {"airplane", "automobile", "bird", "cat",   "deer", "dog",
                                      "frog",     "horse",      "ship", "truck", NULL};
static const char *const names100[] = {
    "apple",    "aquarium_fish", "baby",       "bear",         "beaver",
    "bed",      "bee",           "beetle",     "bicycle",      "bottle",
    "bowl",     "boy",           "bridge",     "bus",          "butterfly",
    "camel",    "can",           "castle",     "caterpillar",  "cattle",
    "chair",    "chimpanzee",    "clock",      "cloud",        "cockroach",
    "couch",    "crab",          "crocodile",  "cup",          "dinosaur",
    "dolphin",  "elephant",      "flatfish",   "forest",       "fox",
    "girl",     "hamster",       "house",      "kangaroo",     "keyboard",
    "lamp",     "lawn_mower",    "leopard",    "lion",         "lizard",
    "lobster",  "man",           "maple_tree", "motorcycle",   "mountain",
    "mouse",    "mushroom",      "oak_tree",   "orange",       "orchid",
    "otter",    "palm_tree",     "pear",       "pickup_truck", "pine_tree",
    "plain",    "plate",         "poppy",      "porcupine",    "possum",
    "rabbit",   "raccoon",       "ray",        "road",         "rocket",
    "rose",     "sea",           "seal",       "shark",        "shrew",
    "skunk",    "skyscraper",    "snail",      "snake",        "spider",
    "squirrel", "streetcar",     "sunflower",  "sweet_pepper", "table",
    "tank",     "telephone",     "television", "tiger",        "tractor",
    "train",    "trout",         "tulip",      "turtle",       "wardrobe",
    "whale",    "willow_tree",   "wolf",       "woman",        "worm",
    NULL};

static const distribution cifar10 = {
    .kind = "cifar10",
    .train = (const char *const[]){"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                   "data_batch_4.bin", "data_batch_5.bin", NULL},
    .test = (const char *const[]){"test_batch.bin", NULL},
    .labels = 1,
    .classes = 10,
    .names = names10,
};
static const distribution cifar100 = {
    .kind = "cifar100",
    .train = (const char *const[]){"train.bin", NULL},
    .test = (const char *const[]){"test.bin", NULL},
    .labels = 2,
    .classes = 100,
    .names = names100,
};
_Static_assert(sizeof(names10) / sizeof(*names10) == 11, "a name for each of 10 classes");
_Static_assert(sizeof(names100) / sizeof(*names100) == 101, "a name for each of 100 classes");

/* What is being read. */
typedef struct cifar {
    const distribution *from;
    size_t record, count; /* bytes of a record, and how many there are */
    uint8_t *records;
} cifar;

/* ---- One file -------------------------------------------------------------------------------- */

static bool check_labels(const cifar *d, const tn__reader *r, const uint8_t *records,
                         size_t count) {
    for (size_t i = 0; i < count; i++) {
        int label = records[i * d->record + d->from->labels - 1];
        if (label >= d->from->classes) {
            return tn__fail(TN_EFORMAT, d->from->kind, "%s: label %zu is %d; there are %d classes",
                            r->path, i, label, d->from->classes);
        }
    }
    return true;
}

/* Appends the records of an open file. False after raising. */
static bool add_records(cifar *d, const tn__reader *r) {
    size_t count = r->bytes / d->record, before = d->count;
    if (count == 0 || r->bytes % d->record != 0) {
        return tn__fail(
            TN_EFORMAT, d->from->kind,
            "%s has %zu bytes, which are not pictures of %zu bytes, a label and 3 x 32 x 32 "
            "pixels (this reads the binary distribution)",
            r->path, r->bytes, d->record);
    }
    if (count > MOST_EXAMPLES - before) {
        return tn__fail(
            TN_EFORMAT, d->from->kind,
            "%s has %zu pictures and the files before it %zu; this reader takes at most %d in all",
            r->path, count, before, MOST_EXAMPLES);
    }
    uint8_t *larger = tn__realloc(d->records, (before + count) * d->record);
    if (!larger) {
        return tn__fail(TN_ENOMEM, d->from->kind, "no memory for the %zu bytes of %s", r->bytes,
                        r->path);
    }
    d->records = larger;
    uint8_t *to = larger + before * d->record;
    if (!tn__reader_get(r, 0, to, r->bytes) || !check_labels(d, r, to, count)) { return false; }
    d->count += count;
    return true;
}

static bool read_file(cifar *d, const char *folder, const char *name) {
    tn__reader r;
    char *path = tn__folder_path(folder, name, d->from->kind);
    bool done = path && tn__reader_open(&r, path, d->from->kind);
    if (done) {
        done = add_records(d, &r);
        tn__reader_close(&r);
    }
    free(path);
    return done;
}

/* ---- The dataset ----------------------------------------------------------------------------- */

static tn_dataset *make_dataset(cifar *d) {
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t n = (int64_t)d->count, labels = (int64_t)d->from->labels;
    tn_tensor *all = tn__rows_adopt(&d->records, TN_DIMS(n, (int64_t)d->record), TN_U8);
    tn_tensor *x = tn_reshape(tn_narrow(all, 1, labels, VALUES), TN_DIMS(n, 3, SIDE, SIDE));
    return tn__rows_dataset(d->from->kind, x, tn_select(all, 1, labels - 1), d->from->names);
}

static tn_dataset *read_distribution(const distribution *from, const char *folder, bool train) {
    cifar d = {.from = from, .record = from->labels + VALUES};
    const char *const *name = train ? from->train : from->test;
    while (*name && read_file(&d, folder, *name)) {
        name++;
    }
    tn_dataset *made = *name ? NULL : make_dataset(&d);
    free(d.records);
    return made;
}

tn_dataset *tn_cifar10(const char *folder, bool train) {
    return read_distribution(&cifar10, folder, train);
}

tn_dataset *tn_cifar100(const char *folder, bool train) {
    return read_distribution(&cifar100, folder, train);
}
