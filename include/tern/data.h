/* Data: datasets, samplers and the loader between them and a training loop.
 *
 *     tn_dataset *windows = tn_token_dataset(tokens, n, 64);
 *     tn_loader *loader =
 *         tn_loader_new(windows, tn_random_sampler(1337), TN_WITH(tn_loader, .batch = 12));
 *     tn_batch b;
 *     while (tn_loader_next(loader, &b)) { ... b.x, b.y ... }
 *     tn_loader_free(loader);
 *
 * A sampler is a rule, not a list: the example at any place of any epoch is computed from the seed
 * alone. So the batches are the same for any number of prefetch threads, and the place in the
 * sequence, two integers, can be saved in mid-epoch.
 *
 * Read next: data/loader.c, data/sampler.c.
 */
#ifndef TERN_DATA_H
#define TERN_DATA_H

#include "field.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Datasets -------------------------------------------------------------------------------- */

typedef struct tn_dataset tn_dataset;

/* Which example is read, and when: the same example in two epochs, or twice in one, may look
 * different (a random crop, noise). */
typedef struct tn_example {
    int64_t index; /* of the example in the dataset, 0 … size-1 */
    int64_t epoch;
    int64_t place; /* in the epoch's order, all parts of it counted: for any number of ranks */
} tn_example;

/* A generator for what is random in this reading of an example: the same numbers for any number of
 * threads and ranks, and others in the next epoch. Its seed is the first two words of
 * tn_philox(seed, e.epoch, 0xfffffffd00000000, e.place), stream and call are 0. */
TN_API tn_generator tn_example_generator(tn_example e, uint64_t seed);

/* Your own dataset: embed this first and fill it. */
struct tn_dataset {
    const char *kind; /* static text, for messages and checkpoints */
    int64_t size;     /* examples */

    /* What one example looks like: x and y (y_dims.ndim -1: there is no y). At most 7 dimensions: a
     * batch adds one. The first size may be -1: it differs from example to example, and `length`
     * tells it. */
    tn_dims x_dims, y_dims;
    tn_dtype x_dtype, y_dtype;

    /* What the classes that y counts are called, and NULL after the last; NULL: y is not a class,
     * or the names are unknown. */
    const char *const *classes;

    /* Writes example e.index, row-major, to x and y (NULL without y). TN_OK, or the status of an
     * error raised with tn_raise. Called from several threads at once, in any order: what is random
     * in an example is drawn from tn_example_generator. */
    tn_status (*get)(tn_dataset *self, tn_example e, void *x, void *y);

    /* The first size of example i's x, or y, where that is -1 (else not called); NULL without such.
     * At least 0; negative after raising. It is asked before the example is read, by several
     * threads at once, and for all examples by tn_dataset_lengths: it is known without reading. */
    int64_t (*length)(tn_dataset *self, int64_t i, bool of_y);

    void (*free)(tn_dataset *self); /* may be NULL */

    /* What tells these data from others, for checkpoints: members of the dataset's struct
     * (field.h); NULL: nothing. A tn_digest of all examples is best, a version or a number of rows
     * better than nothing. */
    const tn_field *fields;
    /* Writes the text of a tn_digest that has no data. Called at the first save or load, by the
     * thread that does it, and by several at once where their loaders share the dataset. TN_OK, or
     * the status of an error raised. May be NULL. */
    tn_status (*digest)(tn_dataset *self, char text[33]);
    tn_dataset *below; /* the one whose examples these are, whose fields count too; may be NULL */

    /* 0; atomic. How often tn_dataset_keep was called beyond tn_dataset_free, and how many of the
     * references, which are one more, belong to what took the dataset. */
    int64_t keepers, takers;
};

/* NULL is fine. What takes a dataset (a loader, tn_subset, tn_transformed, …) frees it with itself,
 * and also when it fails. A dataset that several take is kept once for each but the first, and once
 * more where the program frees it as well:
 *
 *     tn_dataset *one = tn_subset(tn_dataset_keep(all), first, n);
 *     tn_dataset *two = tn_subset(all, second, m);
 *
 * Without that keep the second one, and a tn_dataset_free beside them, are TN_ESTATE and leave the
 * dataset alone. What is used after it was freed is TN_ESTATE too, but only as long as its memory
 * has not become something else. Where `free` is NULL nothing is freed, and any number may take it.
 */
TN_API void tn_dataset_free(tn_dataset *d);
TN_API tn_dataset *tn_dataset_keep(tn_dataset *d); /* d; NULL after an error */

/* Example i as the first epoch in the dataset's own order has it. TN_EINDEX, and what reading it
 * raises. */
TN_API tn_status tn_dataset_get(tn_dataset *d, int64_t i, void *x, void *y);

/* The first size of each example's x: (size) i64, on the CPU. Inert after an error. */
TN_API tn_tensor *tn_dataset_lengths(tn_dataset *d);

/* All datasets below know themselves again by a digest over all of their data (XXH3, several GB a
 * second), which is made at the first save or load. */

/* Rows of x (n, …) and y (n, …; may be NULL): kept, and copied only when they are not contiguous or
 * not on the CPU, where examples are read. NumPy's files: tern/npy.h.
 * Like every maker below: NULL after an error. */
TN_API tn_dataset *tn_tensor_dataset(tn_tensor *x, tn_tensor *y);

/* Sequences of different lengths: example i is x[i] (T, …) and y[i], n of each. All x are of one
 * dtype and alike but for T; so are all y, a tensor each, () for a class; y may be NULL. A loader
 * pads them to the longest of a batch. Kept as above. TN_ESHAPE, TN_EDTYPE. */
TN_API tn_dataset *tn_sequence_dataset(tn_tensor *const *x, tn_tensor *const *y, int64_t n);

/* ---- Datasets made of datasets: each takes what it is made of (tn_dataset_free) -------------- */

/* One dataset after the other: all have x and y of the same dtypes and shapes; the first sizes of
 * sequences (datasets with a `length`) may differ. `classes` are those of all, or NULL where they
 * are not the same. TN_ESHAPE, TN_EDTYPE. */
TN_API tn_dataset *tn_concat_dataset(tn_dataset *const *datasets, int count);

/* Example i is example indices[i] of the other, n of them; they are copied and may repeat.
 * TN_EINDEX. */
TN_API tn_dataset *tn_subset(tn_dataset *d, const int64_t *indices, int64_t n);

/* Pieces drawn by chance, pieces[count], each freed on its own: no example is in two of them, and
 * together they have all. lengths are counts whose sum is the dataset's, or fractions whose sum is
 * 1: then a piece has floor(size * fraction), and what is left goes to the first pieces, one each.
 * The draw is a rule: nothing is stored. On failure the pieces are NULL. TN_EVALUE. */
TN_API tn_status tn_random_split(tn_dataset *d, const double *lengths, int count, uint64_t seed,
                                 tn_dataset **pieces);

/* ---- Datasets from memory and files ---------------------------------------------------------- */

/* Windows of a token sequence: example i is x = tokens[i … i+length), y the same one further; both
 * (length), i64. There are n - length of them. The tokens are copied. */
TN_API tn_dataset *tn_token_dataset(const int32_t *tokens, int64_t n, int64_t length);

/* The same windows from files of tokens: llm.c's, of 16 or 32 bits, nanoGPT's (16 bits, without a
 * head), and what tn_shards_writer writes: the files that match `pattern` ("fineweb/train_*.bin"),
 * in the order of their names. A window is read when it is asked for. The windows follow one the
 * other and do not cross from file to file. A token outside [0, vocab) is TN_EFORMAT, which names
 * file and place, when it is read, and a file that was cut short TN_EIO; anything else instead of
 * tokens is TN_EFORMAT at once, and says what it is; so are tokens of a larger vocabulary, where a
 * tokens.json beside them tells theirs, and what an interrupted `tern tokens` left. TN_EIO,
 * TN_EFORMAT.
 *
 * Of pairs an example is one prompt with its completion, from the window's beginning, so that it is
 * learned as it will be used: nothing comes before it, and no completion lost its prompt. y is
 * -100, which losses leave out, where the prompt is to be predicted and after the end, where x is
 * 0. Of a pair that is too long the beginning is cut off.
 *
 * A corpus that is larger than memory is not read through to know it again: its digest is over the
 * size of each file and some of its pages, its first and its last among them (data/shards.c). Other
 * names or folders make no difference; a few tokens that were changed in place may not be seen. */
TN_API tn_dataset *tn_token_shards(const char *pattern, int64_t length, int64_t vocab);

/* The vocabulary that a tokens.json beside these files tells, the largest where there are several;
 * 0: nothing tells it, or after an error. TN_EVALUE, TN_EIO, TN_EFORMAT. */
TN_API int64_t tn_token_shards_vocab(const char *pattern);

/* The windows of an evaluation: from the same files, each of their tokens but a file's first is a
 * target once. Windows begin `stride` tokens apart, 1 … length; y is -100, which losses leave out,
 * where an earlier window has the target, so that a target has at least length - stride + 1 tokens
 * before it, but at a file's beginning. The last window of a file may be short: after its end x is
 * 0 and y -100. stride = length: one window after the other. Pairs are as above, and know no
 * stride. TN_EVALUE, TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_sliding_shards(const char *pattern, int64_t length, int64_t stride,
                                     int64_t vocab);

/* Handwritten digits (LeCun et al. 1998): `folder` has the files of the MNIST distribution,
 * train-images-idx3-ubyte and so on, plain or .gz. x (1, 28, 28) f32 in [0, 1],
 * y () i64. TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_mnist(const char *folder, bool train);

/* Small photographs of ten classes (Krizhevsky 2009): `folder` has the files of the binary
 * distribution, data_batch_1.bin to data_batch_5.bin and test_batch.bin, or of CIFAR-100's,
 * train.bin and test.bin. x (3, 32, 32) f32 in [0, 1], y () i64. A file that is not whole pictures,
 * or has a label that is not a class, is TN_EFORMAT, which names it. TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_cifar10(const char *folder, bool train);
TN_API tn_dataset *tn_cifar100(const char *folder, bool train);

/* What becomes of a row in which a number is not known: an empty field, NA, NaN, null, ? and the
 * like; of a target that is a class, only an empty field. */
typedef enum tn_csv_missing {
    TN_MISSING_ERROR,
    TN_MISSING_NAN, /* in x; without a target it is an error */
    TN_MISSING_DROP /* the row is left out */
} tn_csv_missing;

/* What a target's column has: names of classes, which become 0, 1, …; or numbers. */
typedef enum tn_csv_target { TN_CSV_CLASSES, TN_CSV_NUMBERS } tn_csv_target;

/* Columns go by their names in the header, or by their numbers: from 0, or from -1, the last. */
typedef struct tn_csv_options {
    char delimiter;              /* ',' */
    bool header;                 /* true: the first line has the names of the columns */
    const char *const *features; /* NULL: all but the target; else columns, NULL after the last */
    const char *target;          /* "-1"; NULL: there is none, and no y */
    tn_csv_target target_kind;   /* classes */
    const char *const *classes;  /* NULL: those that are there; else these, NULL after the last */
    tn_csv_missing missing;      /* an error */
    bool from_defaults;
} tn_csv_options;
TN_API tn_csv_options tn_csv_defaults(void);

/* The rows of a CSV file (RFC 4180: quotes, and line ends within them, which become "\n"), plain or
 * compressed (.gz, .zst), in memory. x (features) f32, in the order of `features`; y () i64, the
 * number of the class, or f32. Classes have their numbers in the order of their texts' bytes, whole
 * numbers by value and first; `classes` of the dataset has them, for the options of the next file.
 * Blanks around what is not in quotes go, as do lines of nothing else. Numbers are decimal, or inf.
 *
 * What is wrong is TN_EFORMAT, which names line (from 1) and column (from 0); TN_EVALUE, TN_EIO. */
TN_API tn_dataset *tn_csv_dataset(const char *path, tn_csv_options options);

/* The rows of a libsvm file, `label index:value index:value …`, plain or compressed: indices from 1
 * to `features`, ascending; what follows a '#' is skipped. x (features) f32, with zeros where the
 * row has nothing, which take no memory here; y () f32, the label as written there. TN_EFORMAT
 * names the line; TN_EVALUE, TN_EIO. */
TN_API tn_dataset *tn_libsvm_dataset(const char *path, int64_t features);

/* One picture, PNG or JPEG whatever its name: (3, height, width) on the CPU, u8, or f32 in [0, 1].
 * The pixels are those of PIL's Image.open(path).convert("RGB"): grey three times, palettes looked
 * up, CMYK as Adobe writes it; what is transparent as if it were not; gamma, profiles and EXIF's
 * orientation make no difference. Of 16 bits the upper ones count, of grey too, where PIL clips.
 *
 * Inert after an error. TN_EFORMAT names file and byte: a damaged file, also where libjpeg would go
 * on with grey pixels; a header that says more pixels than its file can hold, or more than
 * 178956970; what is neither. TN_EUNSUPPORTED: a build without libpng and libjpeg. TN_EIO. */
TN_API tn_tensor *tn_image_read(const char *path, tn_dtype dtype);

typedef struct tn_image_folder_options {
    int64_t height, width; /* 0, 0: of the first picture; otherwise pictures are resized to these */
    bool from_defaults;
} tn_image_folder_options;
TN_API tn_image_folder_options tn_image_folder_defaults(void);

/* A folder whose folders are classes, in the order of their names (by bytes; `classes` has them):
 * all .png, .jpg and .jpeg in a class's folder and below, in torchvision's order. Names that begin
 * with '.' are passed over. x (3, height, width) f32 in [0, 1], as tn_image_read has it, and at
 * another size as tn_image_resize (transforms.h) makes it; y () i64. A
 * picture is read when it is asked for: what is wrong with it, another size too where none was
 * asked for (TN_EVALUE), is said then, with its name. The digest is over names and sizes of files.
 *
 * TN_EVALUE: no class, a class without a picture; TN_EIO, TN_EFORMAT, TN_EUNSUPPORTED. */
TN_API tn_dataset *tn_image_folder(const char *folder, tn_image_folder_options options);

/* ---- Text ------------------------------------------------------------------------------------ */

/* The distinct characters of a UTF-8 text, numbered from 0 in code-point order. */
typedef struct tn_charset tn_charset;
/* TN_EFORMAT names the first byte that is not UTF-8 */
TN_API tn_charset *tn_charset_from_text(const char *text, size_t bytes);
TN_API void tn_charset_free(tn_charset *c);
TN_API int tn_charset_size(const tn_charset *c);

/* The tokens of `text` into out, an array of at least `bytes`. Returns how many; -1 and
 * TN_EVALUE for a character that is not in the set, TN_EFORMAT for text that is not UTF-8. */
TN_API int64_t tn_charset_encode(const tn_charset *c, const char *text, size_t bytes, int32_t *out);

/* One token's UTF-8 text; "" and TN_EINDEX outside [0, size). */
TN_API const char *tn_charset_text(const tn_charset *c, int64_t token);

/* A whole file, as long as it is when it is opened; *bytes is its length; a 0 follows it. NULL
 * after TN_EIO (also for what is no file: a FIFO, a device) or TN_ENOMEM. tn_text_free frees it. */
TN_API char *tn_text_read(const char *path, size_t *bytes);
TN_API void tn_text_free(char *text);

/* ---- Corpora: documents from files ----------------------------------------------------------- */

typedef struct tn_corpus tn_corpus;

typedef struct tn_corpus_options {
    const char *key; /* "text": of JSON lines, whose text is the document */
    bool pairs;      /* false; true: all files are JSON lines {"prompt": …, "completion": …} */
    /* NULL: a plain text is one document. Otherwise what separates documents in it
     * ("<|endoftext|>", "\n\n"), 1024 bytes at most; it and white space around it is no part of
     * them. */
    const char *split;
    bool from_defaults;
} tn_corpus_options;
TN_API tn_corpus_options tn_corpus_defaults(void);

/* Lent until the next call; text and completion may have any bytes and have no 0 after them. */
typedef struct tn_document {
    const char *text; /* of a pair the prompt */
    size_t bytes;
    const char *completion; /* NULL without pairs */
    size_t completion_bytes;
    int64_t number; /* of the document, from 0, through all files */
    int64_t piece;  /* of this text, too: a long plain text comes in pieces, */
    bool begins;    /* of which this is the first */
    const char *path;
    int64_t line; /* in JSON lines, from 1; otherwise 0 */
} tn_document;

/* Reads files and folders: in a folder all files but hidden ones, in the order of their names, and
 * so on in folders within it. A file whose name ends with .jsonl, .ndjson or .json is JSON lines,
 * each an object; blank lines are passed over. Any other is plain text, whose bytes are not looked
 * at; a mark of UTF-8 at its beginning goes. Both may be compressed (.gz, .zst). Only a part of a
 * file is in memory. A line has 64 MiB at most; a plain text is cut into pieces of 1 to 256 KiB at
 * places where the tokens of the pieces are those of the whole (data/corpus/cut.c), which it must
 * have every 64 MiB.
 *
 * NULL after TN_EVALUE, TN_EIO. Used by one thread at a time. */
TN_API tn_corpus *tn_corpus_open(const char *const *paths, int count, tn_corpus_options options);
TN_API void tn_corpus_free(tn_corpus *c);

/* False at the end, and after an error, which names file and line: TN_EFORMAT for a line that is no
 * JSON (RFC 8259), is not UTF-8 or has no such text, for compressed data that are damaged or break
 * off, and for a file that is something else: it says what. TN_EIO, TN_ENOMEM. */
TN_API bool tn_corpus_next(tn_corpus *c, tn_document *d);

/* How far it is, in bytes of the files. */
typedef struct tn_corpus_place {
    int64_t files, bytes; /* of all */
    int64_t read;
} tn_corpus_place;
TN_API tn_corpus_place tn_corpus_where(const tn_corpus *c);

/* ---- Shards: tokens as files ----------------------------------------------------------------- */

typedef struct tn_shards_writer tn_shards_writer;

typedef struct tn_shards_options {
    int64_t vocab;        /* 50257: tokens are 0 … vocab-1; beyond 65536 they take 32 bits */
    int64_t shard_tokens; /* 100000000: of a file, at most 2^31 - 1 */
    bool pairs;           /* false: a sequence; true: prompts and their completions */
    bool from_defaults;
} tn_shards_options;
TN_API tn_shards_options tn_shards_defaults(void);

/* Writes PREFIX_000000.bin, PREFIX_000001.bin and so on, as llm.c does: 256 int32 (20240520, 1, the
 * number of tokens) and uint16 tokens, or for larger vocabularies (20240801, 7) uint32. Pairs are a
 * kind of their own (data/shards.h). A file has its name when it is whole; one that is there is
 * replaced. NULL after an error. */
TN_API tn_shards_writer *tn_shards_writer_new(const char *prefix, tn_shards_options options);

/* The next tokens; each file but the last gets shard_tokens. TN_EINDEX, TN_EIO, TN_ENOMEM. */
TN_API tn_status tn_shards_writer_add(tn_shards_writer *w, const int32_t *tokens, int64_t count);

/* A pair, of which the first `prompt` tokens are the prompt: they are no targets. It lies in one
 * file, which has more than shard_tokens only when the pair has. */
TN_API tn_status tn_shards_writer_add_pair(tn_shards_writer *w, const int32_t *tokens,
                                           int64_t count, int64_t prompt);

/* The last file gets its name. Without this it does not. */
TN_API tn_status tn_shards_writer_finish(tn_shards_writer *w);
TN_API int64_t tn_shards_writer_shards(const tn_shards_writer *w); /* that have their name */
TN_API int64_t tn_shards_writer_tokens(const tn_shards_writer *w); /* that were added */
TN_API void tn_shards_writer_free(tn_shards_writer *w);

/* ---- Samplers: an order of the examples ------------------------------------------------------ */

typedef enum tn_sampler_kind {
    TN_SAMPLE_SEQUENTIAL,
    TN_SAMPLE_SHUFFLED,
    TN_SAMPLE_REPLACEMENT,
    TN_SAMPLE_WEIGHTED,
    TN_SAMPLE_BUCKETED
} tn_sampler_kind;

/* How an epoch's examples are shared among parts when their number L does not divide by the number
 * of parts N. */
typedef enum tn_part_rule {
    TN_PARTS_UNEVEN, /* each example once: parts differ by at most one */
    TN_PARTS_PAD,    /* ceil(L / N) each: the order's head is repeated to fill up */
    TN_PARTS_DROP    /* floor(L / N) each: the order's tail is left out */
} tn_part_rule;

/* By value. */
typedef struct tn_sampler {
    tn_sampler_kind kind;
    uint64_t seed;
    /* Which share of each epoch's order this process takes: places part, part + parts, …;
     * 0 of 1 unless distributed. */
    int64_t part, parts;
    tn_part_rule rule;

    /* Of weighted and bucketed ones: in the maker's scope; a loader keeps it. */
    tn_tensor *table;
    int64_t draws;         /* weighted: places of an epoch */
    int64_t batch, bucket; /* bucketed */
} tn_sampler;
TN_API tn_sampler tn_sequential_sampler(void);
TN_API tn_sampler tn_random_sampler(uint64_t seed); /* a fresh permutation every epoch */
/* independent draws: an epoch has as many as the dataset */
TN_API tn_sampler tn_replacement_sampler(uint64_t seed);

/* Independent draws, `draws` an epoch, as WeightedRandomSampler with replacement: example i comes
 * with probability weights[i] / their sum. weights (size) f32 or f64, at least 0 and not all 0.
 * After an error an epoch has nothing. TN_ESHAPE, TN_EDTYPE, TN_EVALUE. */
TN_API tn_sampler tn_weighted_sampler(tn_tensor *weights, int64_t draws, uint64_t seed);

/* Batches of similar lengths, so that little is padding; each example once. The examples are put in
 * order by lengths (size) i64, of tn_dataset_lengths or any other size, and cut into buckets of
 * `bucket` batches. Every epoch the examples of a bucket are shuffled, and then all batches: bucket
 * 1 pads least and always puts the same examples together; 10 pads little more and mixes well.
 * `batch` is the loader's, which may not differ. Only an epoch's last batch is short. With several
 * parts those of one step are similar to each other. TN_ESHAPE, TN_EDTYPE, TN_EVALUE. */
TN_API tn_sampler tn_bucket_sampler(tn_tensor *lengths, int64_t batch, int64_t bucket,
                                    uint64_t seed);

/* How many examples of a dataset of `size` one epoch gives to this part. */
TN_API int64_t tn_sampler_count(const tn_sampler *s, int64_t size);

/* The example at `position`, 0 … count-1, of this part in `epoch`. No order is stored: a
 * permutation is a keyed bijection. -1 and TN_EINDEX outside. */
TN_API int64_t tn_sampler_at(const tn_sampler *s, int64_t size, int64_t epoch, int64_t position);

/* Whether `position` of this part is a real example, not one added as padding. */
TN_API bool tn_sampler_is_real(const tn_sampler *s, int64_t size, int64_t position);

/* ---- Loader ---------------------------------------------------------------------------------- */

typedef struct tn_loader tn_loader;

/* x (B, …), y (B, …) or NULL. Examples of different lengths are padded to the longest of the batch,
 * x (B, T, …), as pad_sequence does with batch_first. Lent until the next call of tn_loader_next:
 * tn_keep what should live longer. */
typedef struct tn_batch {
    tn_tensor *x, *y;
    tn_tensor *valid; /* (B) bool: false for examples that only fill up; NULL when all are real */
    /* (B) i64: how much of each row of x, and of y, is no padding, as tn_lstm's and tn_ctc's
     * lengths; NULL where all examples are alike */
    tn_tensor *lengths, *y_lengths;
    int64_t epoch, index; /* index: of the batch in its epoch */
} tn_batch;

typedef struct tn_loader_options {
    int64_t batch;  /* 1 */
    int64_t epochs; /* 1: of a pass; 0: without end */
    bool drop_last; /* false: the last batch of an epoch may be short */
    int threads;    /* 0: batches are made in the calling thread */
    int prefetch;   /* 2: with threads, batches ready in advance */
    double x_pad;   /* 0: what comes after the end of a short x, */
    double y_pad;   /* 0: and of a short y; -100 is what losses leave out */
    bool from_defaults;
} tn_loader_options;
TN_API tn_loader_options tn_loader_defaults(void);

/* Takes the dataset: it is freed with the loader, and also when this fails. NULL after an error; an
 * epoch without a batch is one. A loader is used by one thread at a time, and one may follow
 * another; a call during another one, also from the dataset itself, is TN_ESTATE. Batches come on
 * the default device of the thread that makes the loader. With threads it is TN_ESTATE in a child
 * of fork, where they are not. */
TN_API tn_loader *tn_loader_new(tn_dataset *dataset, tn_sampler sampler, tn_loader_options options);
TN_API void tn_loader_free(tn_loader *l); /* also in mid-epoch: waits for the examples being read */

/* False once at the end of a pass, `epochs` epochs: the call after that begins another, whose
 * epochs and orders count on. So two loops after each other over a loader of one epoch see epoch 0
 * and epoch 1, the batches of one loop over a loader of two. A loop that counts its batches itself,
 * and never meets that false, wants epochs 0.
 *
 * False too, which is no end, while an error is pending. An error of a worker thread is raised
 * here, when its batch is due; once it is cleared, the next call gives the batch after that one. */
TN_API bool tn_loader_next(tn_loader *l, tn_batch *batch);

/* The place of the next batch to come. When that is the end of a pass, index is tn_loader_batches
 * and epoch the pass's last; after the false that tells it, (the next epoch, 0). Setting it drops
 * what was prefetched; the pass that has this epoch (0 … epochs-1, epochs … 2 epochs-1, …)
 * continues. TN_EINDEX outside. */
typedef struct tn_loader_place {
    int64_t epoch, index;
} tn_loader_place;
TN_API tn_loader_place tn_loader_where(const tn_loader *l);
TN_API tn_status tn_loader_seek(tn_loader *l, tn_loader_place place);
/* whether seek would accept it; raises nothing */
TN_API bool tn_loader_has(const tn_loader *l, tn_loader_place place);

TN_API int64_t tn_loader_batches(const tn_loader *l); /* of one epoch: PyTorch's len(loader) */
/* What it was made with. */
TN_API tn_loader_options tn_loader_options_of(const tn_loader *l);
TN_API tn_sampler tn_loader_sampler(const tn_loader *l);
TN_API const tn_dataset *tn_loader_dataset(const tn_loader *l);

#ifdef __cplusplus
}
#endif
#endif
