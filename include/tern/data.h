/* Data: datasets, samplers and the loader between them and a training loop.
 *
 *     tn_dataset *windows = tn_token_dataset(tokens, n, 64);
 *     tn_loader *loader =
 *         tn_loader_new(windows, tn_random_sampler(1337), TN_WITH(tn_loader, .batch = 12));
 *     tn_batch b;
 *     while (tn_loader_next(loader, &b)) { ... b.x, b.y ... }
 *     tn_loader_free(loader);
 *
 * A sampler is a rule, not a list: the example at any position of any epoch is computed from the
 * seed alone. So the batches are the same for any number of prefetch threads, and the position in
 * the sequence, two integers, can be saved mid-epoch.
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
    int64_t place; /* position in the epoch's whole order, the same for any number of ranks */
} tn_example;

/* A generator for the randomness of this reading of an example: the same numbers for any number of
 * threads and ranks, different ones in the next epoch. Its seed is the first two words of
 * tn_philox(seed, e.epoch, 0xfffffffd00000000, e.place), stream and call are 0. */
TN_API tn_generator tn_example_generator(tn_example e, uint64_t seed);

/* Your own dataset: embed this first and fill it. */
struct tn_dataset {
    const char *kind; /* a static string, for messages and checkpoints */
    int64_t size;     /* examples */

    /* What one example looks like: x and y (y_dims.ndim -1: there is no y). At most 7 dimensions: a
     * batch adds one. The first size may be -1: it differs between examples, and `length` returns
     * it. */
    tn_dims x_dims, y_dims;
    tn_dtype x_dtype, y_dtype;

    /* The names of y's classes, with NULL after the last; NULL: y is not a class, or the names are
     * unknown. */
    const char *const *classes;

    /* Writes example e.index, row-major, to x and y (NULL without y). TN_OK, or the status of an
     * error raised with tn_raise. Called from several threads at once, in any order: any randomness
     * comes from tn_example_generator. */
    tn_status (*get)(tn_dataset *self, tn_example e, void *x, void *y);

    /* The first size of example i's x or y, if its dims say -1 (else not called; may be NULL). At
     * least 0; negative after raising. Called before the example is read, by several threads at
     * once, and for all examples by tn_dataset_lengths: it must not need to read the example. */
    int64_t (*length)(tn_dataset *self, int64_t i, bool of_y);

    void (*free)(tn_dataset *self); /* may be NULL */

    /* Identifies the data, for checkpoints: members of the dataset's struct (field.h); NULL:
     * nothing. A tn_digest of all examples is best; a version or a number of rows is better than
     * nothing. */
    const tn_field *fields;
    /* Writes the text of a tn_digest that has no data. Called at the first save or load, by the
     * saving thread, or by several at once if their loaders share the dataset. TN_OK, or the status
     * of an error raised. May be NULL. */
    tn_status (*digest)(tn_dataset *self, char text[33]);
    tn_dataset *below; /* the dataset it wraps, whose fields count too; may be NULL */

    /* 0; atomic. References beyond the first (tn_dataset_keep adds one), and how many of all
     * references belong to objects that took the dataset. */
    int64_t keepers, takers;
};

/* NULL is fine. An object that takes a dataset (a loader, tn_subset, tn_transformed, …) frees it
 * with itself, or at once if making the object fails. A dataset taken more than once must be kept
 * once for each taker but the first, and once more if the program frees it too:
 *
 *     tn_dataset *one = tn_subset(tn_dataset_keep(all), first, n);
 *     tn_dataset *two = tn_subset(all, second, m);
 *
 * Without that keep the second call, or an extra tn_dataset_free, is TN_ESTATE and leaves the
 * dataset alone. Use after free is TN_ESTATE too, but only until its memory is reused. If `free` is
 * NULL nothing is freed, and it can be taken any number of times.
 */
TN_API void tn_dataset_free(tn_dataset *d);
TN_API tn_dataset *tn_dataset_keep(tn_dataset *d); /* d; NULL after an error */

/* Reads example i as in the first epoch in the dataset's own order. TN_EINDEX, and what reading it
 * raises. */
TN_API tn_status tn_dataset_get(tn_dataset *d, int64_t i, void *x, void *y);

/* The first size of each example's x: (size) i64, on the CPU. Inert after an error. */
TN_API tn_tensor *tn_dataset_lengths(tn_dataset *d);

/* All datasets below are identified by a digest of all their data (XXH3, several GB per second),
 * computed at the first save or load. */

/* Rows of x (n, …) and y (n, …; may be NULL): kept, and copied only if they are not contiguous or
 * not on the CPU, where examples are read. NumPy files: tern/npy.h. Like every constructor below:
 * NULL after an error. */
TN_API tn_dataset *tn_tensor_dataset(tn_tensor *x, tn_tensor *y);

/* Sequences of different lengths: example i is x[i] (T, …) and y[i], n of each. All x have the same
 * dtype and shape except for T; so do all y, one tensor each, () for a class; y may be NULL. A
 * loader pads them to the longest in a batch. Kept as above. TN_ESHAPE, TN_EDTYPE. */
TN_API tn_dataset *tn_sequence_dataset(tn_tensor *const *x, tn_tensor *const *y, int64_t n);

/* ---- Datasets made of datasets, which they take (tn_dataset_free) ---------------------------- */

/* Concatenates datasets: all have x and y of the same dtypes and shapes; the first sizes of
 * sequences (datasets with a `length`) may differ. `classes` is theirs, or NULL if they differ.
 * TN_ESHAPE, TN_EDTYPE. */
TN_API tn_dataset *tn_concat_dataset(tn_dataset *const *datasets, int count);

/* Example i is example indices[i] of the other, n of them; they are copied and may repeat.
 * TN_EINDEX. */
TN_API tn_dataset *tn_subset(tn_dataset *d, const int64_t *indices, int64_t n);

/* Splits randomly into pieces[count], each freed separately: no example is in two of them, and
 * together they have all examples. lengths are counts whose sum is the dataset's size, or fractions
 * whose sum is 1: then a piece has floor(size * fraction), and the first pieces get one more each
 * until none is left. The split is a rule: nothing is stored. On failure the pieces are NULL.
 * TN_EVALUE. */
TN_API tn_status tn_random_split(tn_dataset *d, const double *lengths, int count, uint64_t seed,
                                 tn_dataset **pieces);

/* ---- Datasets from memory and files ---------------------------------------------------------- */

/* Windows of a token sequence: example i is x = tokens[i … i+length), y the same shifted by one;
 * both (length), i64. There are n - length of them. The tokens are copied. */
TN_API tn_dataset *tn_token_dataset(const int32_t *tokens, int64_t n, int64_t length);

/* Windows from token files: llm.c's, of 16 or 32 bits, nanoGPT's (16 bits, no header), and those of
 * tn_shards_writer: the files that match `pattern` ("fineweb/train_*.bin"), in the order of their
 * names. A window is read when asked for. Windows follow each other without overlap and do not
 * cross from file to file. A token outside [0, vocab) is TN_EFORMAT when it is read, with file and
 * place, and a truncated file TN_EIO; a file of anything but tokens is TN_EFORMAT at once, and the
 * error says what it is; so are tokens of a larger vocabulary, if a tokens.json beside them says
 * so, and files that an interrupted `tern tokens` left. TN_EIO, TN_EFORMAT.
 *
 * In files of pairs an example is one prompt with its completion, at the start of the window, so
 * that it is learned as it will be used: nothing precedes it, and no completion loses its prompt. y
 * is -100, which losses ignore, over the prompt and after the end, where x is 0. A pair that is too
 * long loses its beginning.
 *
 * A corpus may be larger than memory, so it is not read in full to identify it: its digest is over
 * the size of each file and some of its pages, including the first and last (data/shards.c). Names
 * and folders make no difference; a few tokens changed in place may go unnoticed. */
TN_API tn_dataset *tn_token_shards(const char *pattern, int64_t length, int64_t vocab);

/* The vocabulary size in the tokens.json beside these files, the largest if there are several; 0:
 * there is none, or after an error. TN_EVALUE, TN_EIO, TN_EFORMAT. */
TN_API int64_t tn_token_shards_vocab(const char *pattern);

/* Windows for evaluation, from the same files: each token except a file's first is a target once.
 * Windows begin `stride` tokens apart, 1 … length; y is -100, which losses ignore, where an earlier
 * window has the target, so that a target has at least length - stride + 1 tokens before it, except
 * at the start of a file. The last window of a file may be short: after its end x is 0 and y -100.
 * stride = length: windows without overlap. Pairs are as above, without a stride. TN_EVALUE,
 * TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_sliding_shards(const char *pattern, int64_t length, int64_t stride,
                                     int64_t vocab);

/* Handwritten digits (LeCun et al. 1998): `folder` has the files as distributed,
 * train-images-idx3-ubyte and so on, plain or .gz. x (1, 28, 28) f32 in [0, 1], y () i64. TN_EIO,
 * TN_EFORMAT. */
TN_API tn_dataset *tn_mnist(const char *folder, bool train);

/* Small photographs of ten classes (Krizhevsky 2009): `folder` has the files of the binary
 * distribution, data_batch_1.bin to data_batch_5.bin and test_batch.bin, or for CIFAR-100 train.bin
 * and test.bin. x (3, 32, 32) f32 in [0, 1], y () i64. A file with an incomplete image or an
 * invalid label is TN_EFORMAT, which names it. TN_EIO, TN_EFORMAT. */
TN_API tn_dataset *tn_cifar10(const char *folder, bool train);
TN_API tn_dataset *tn_cifar100(const char *folder, bool train);

/* What to do with a row in which a number is missing: an empty field, NA, NaN, null, ? and the
 * like; for a target that is a class, only an empty field. */
typedef enum tn_csv_missing {
    TN_MISSING_ERROR,
    TN_MISSING_NAN, /* in x; a missing target is an error */
    TN_MISSING_DROP /* the row is left out */
} tn_csv_missing;

/* What the target column has: names of classes, which become 0, 1, …; or numbers. */
typedef enum tn_csv_target { TN_CSV_CLASSES, TN_CSV_NUMBERS } tn_csv_target;

/* Columns are named as in the header, or numbered: from 0, or back from -1, the last. */
typedef struct tn_csv_options {
    char delimiter;              /* ',' */
    bool header;                 /* true: the first line names the columns */
    const char *const *features; /* columns, NULL after the last; NULL: all but the target */
    const char *target;          /* "-1"; NULL: none, and no y */
    tn_csv_target target_kind;   /* classes */
    const char *const *classes;  /* their names, NULL after the last; NULL: those in the file */
    tn_csv_missing missing;      /* an error */
    bool from_defaults;
} tn_csv_options;
TN_API tn_csv_options tn_csv_defaults(void);

/* The rows of a CSV file (RFC 4180: quotes, and line ends within them), plain or compressed (.gz,
 * .zst), in memory. Lines end with "\n", "\r\n" or "\r". x (features) f32, in the order of
 * `features`; y () i64, the number of the class, or f32. Classes are numbered in the byte order of
 * their names, integers first and by value; `classes` of the dataset has them, for the options of
 * the next file. Blanks around unquoted fields are removed, and blank lines skipped. Numbers are
 * decimal, or inf.
 *
 * Bad input is TN_EFORMAT, which names line (from 1) and column (from 0); TN_EVALUE, TN_EIO. */
TN_API tn_dataset *tn_csv_dataset(const char *path, tn_csv_options options);

/* Reads one image, PNG or JPEG whatever its name: (3, height, width) on the CPU, u8, or f32 in [0,
 * 1]. The pixels are those of PIL's Image.open(path).convert("RGB"): grey is replicated, palettes
 * are looked up, CMYK is Adobe's; transparency, gamma, profiles and EXIF orientation are ignored.
 * 16-bit values keep their upper 8 bits, even for grey, where PIL clips.
 *
 * Inert after an error. TN_EFORMAT names file and byte: a damaged file, even where libjpeg would
 * continue with grey pixels; a header with more pixels than its file can hold, or more than
 * 178956970; a file of another kind. TN_EUNSUPPORTED: a build without libpng and libjpeg.
 * TN_EIO. */
TN_API tn_tensor *tn_image_read(const char *path, tn_dtype dtype);

typedef struct tn_image_folder_options {
    int64_t height, width; /* 0, 0: the first image's; otherwise images are resized to these */
    bool from_defaults;
} tn_image_folder_options;
TN_API tn_image_folder_options tn_image_folder_defaults(void);

/* A folder whose subfolders are classes, in the order of their names (by bytes; `classes` has
 * them): all .png, .jpg and .jpeg in a class's folder and below, in torchvision's order. Names that
 * begin with '.' are skipped. x (3, height, width) f32 in [0, 1], as read by tn_image_read and, if
 * of another size, resized by tn_image_resize (transforms.h); y () i64. An image is read when asked
 * for: its errors are raised then, with its name, including a different size if the options give
 * none (TN_EVALUE). The digest is over names and sizes of files.
 *
 * TN_EVALUE: no class, a class without an image; TN_EIO, TN_EFORMAT, TN_EUNSUPPORTED. */
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

/* Reads a whole file, as long as it is when opened; *bytes is its length; a 0 follows it. NULL
 * after TN_EIO (also for anything but a regular file: a FIFO, a device) or TN_ENOMEM. tn_text_free
 * frees it. */
TN_API char *tn_text_read(const char *path, size_t *bytes);
TN_API void tn_text_free(char *text);

/* ---- Corpora: documents from files ----------------------------------------------------------- */

typedef struct tn_corpus tn_corpus;

/* A key is the name of a member; or a path in jq's notation, `.name`, `[]` for all elements of a
 * list, `[0]` for one; or text with such names and paths in braces,
 * "{title}\\n{.parts[].text}", in which \n is a newline, \t a tab, \\ a backslash, {{ and }}
 * braces. A path begins with '.' or has a '['; anything else is a name.
 *
 * `.data[].paragraphs[].context` makes a document of each paragraph. Of two paths, all [] of one
 * must be the first [] of the other: with the context as the prompt and
 * `.data[].paragraphs[].qas[].question` as the completion, each question comes with its own
 * paragraph. A list that is empty, or too short for [0], gives nothing; a member that is missing is
 * an error. */
typedef struct tn_corpus_options {
    const char *key;                 /* "text": the document in JSON */
    bool pairs;                      /* false; true: all files are JSON, of pairs */
    const char *prompt, *completion; /* "prompt", "completion": of a pair */
    /* NULL: a plain text is one document. Otherwise the separator between documents in it
     * ("<|endoftext|>", "\n\n"), at most 1024 bytes; it and white space around it belong to no
     * document. */
    const char *split;
    bool from_defaults;
} tn_corpus_options;
TN_API tn_corpus_options tn_corpus_defaults(void);

/* Lent until the next call; text and completion may contain any bytes, and no 0 follows them. */
typedef struct tn_document {
    const char *text; /* the prompt of a pair */
    size_t bytes;
    const char *completion; /* NULL without pairs */
    size_t completion_bytes;
    int64_t number; /* of the document, from 0, over all files */
    int64_t piece;  /* from 0: a long plain text comes in pieces */
    bool begins;    /* this is the first piece of its text */
    const char *path;
    int64_t line; /* in JSON lines, from 1; otherwise 0 */
} tn_document;

/* Reads files and folders: in a folder all files but hidden ones, in the order of their names, and
 * recursively in its subfolders. A file whose name ends with .jsonl, .ndjson or .json is JSON
 * lines, each an object; blank lines are skipped. With a path, a .json file is one JSON value
 * on any number of lines, in memory whole and at most 1 GiB. Any other file is
 * plain text, whose bytes are not checked; a UTF-8 byte order mark at the start is removed. All may
 * be compressed (.gz, .zst). Otherwise only a part of a file is in memory. A line has at most 64
 * MiB; a plain text is cut into pieces of 1 to 256 KiB where that does not change the tokens
 * (data/corpus/corpus.c); there must be such a place every 64 MiB.
 *
 * NULL after TN_EVALUE (a path says at which byte), TN_EIO. Used by one thread at a time. */
TN_API tn_corpus *tn_corpus_open(const char *const *paths, int count, tn_corpus_options options);
TN_API void tn_corpus_free(tn_corpus *c);

/* False at the end, and after an error, which names file and line: TN_EFORMAT for a line that is
 * not JSON (RFC 8259), is not UTF-8 or has no such string, for compressed data that are damaged or
 * truncated, and for a file of another kind: it says which. TN_EIO, TN_ENOMEM. */
TN_API bool tn_corpus_next(tn_corpus *c, tn_document *d);

/* Its progress, in bytes of the files. */
typedef struct tn_corpus_place {
    int64_t files, bytes; /* of all */
    int64_t read;
} tn_corpus_place;
TN_API tn_corpus_place tn_corpus_where(const tn_corpus *c);

/* ---- Shards: tokens as files ----------------------------------------------------------------- */

typedef struct tn_shards_writer tn_shards_writer;

typedef struct tn_shards_options {
    int64_t vocab;        /* 50257: tokens are 0 … vocab-1; above 65536 they take 32 bits */
    int64_t shard_tokens; /* 100000000: per file, at most 2^31 - 1 */
    bool pairs;           /* false: a sequence; true: prompts and their completions */
    bool from_defaults;
} tn_shards_options;
TN_API tn_shards_options tn_shards_defaults(void);

/* Writes PREFIX_000000.bin, PREFIX_000001.bin and so on, as llm.c does: 256 int32 (20240520, 1, the
 * number of tokens) and uint16 tokens, or for larger vocabularies (20240801, 7) uint32. Pairs have
 * their own format (data/shards.h). A file gets its name when it is complete; an existing one is
 * replaced. NULL after an error. */
TN_API tn_shards_writer *tn_shards_writer_new(const char *prefix, tn_shards_options options);

/* Appends tokens; each file but the last gets shard_tokens. TN_EINDEX, TN_EIO, TN_ENOMEM. */
TN_API tn_status tn_shards_writer_add(tn_shards_writer *w, const int32_t *tokens, int64_t count);

/* Appends a pair, whose first `prompt` tokens are the prompt: they are not targets. It is in one
 * file, which has more than shard_tokens only if the pair has. */
TN_API tn_status tn_shards_writer_add_pair(tn_shards_writer *w, const int32_t *tokens,
                                           int64_t count, int64_t prompt);

/* Gives the last file its name. Without this it has none. */
TN_API tn_status tn_shards_writer_finish(tn_shards_writer *w);
TN_API int64_t tn_shards_writer_shards(const tn_shards_writer *w); /* complete ones */
TN_API int64_t tn_shards_writer_tokens(const tn_shards_writer *w); /* added so far */
TN_API void tn_shards_writer_free(tn_shards_writer *w);

/* ---- Samplers: an order of the examples ------------------------------------------------------ */

typedef enum tn_sampler_kind {
    TN_SAMPLE_SEQUENTIAL,
    TN_SAMPLE_SHUFFLED,
    TN_SAMPLE_REPLACEMENT,
    TN_SAMPLE_WEIGHTED,
    TN_SAMPLE_BUCKETED
} tn_sampler_kind;

/* How an epoch's L examples are shared among N parts if N does not divide L. */
typedef enum tn_part_rule {
    TN_PARTS_UNEVEN, /* each example once: parts differ by at most one */
    TN_PARTS_PAD,    /* ceil(L / N) each: filled up by repeating the head of the order */
    TN_PARTS_DROP    /* floor(L / N) each: the tail of the order is left out */
} tn_part_rule;

/* Passed by value. */
typedef struct tn_sampler {
    tn_sampler_kind kind;
    uint64_t seed;
    /* This process's share of each epoch's order: positions part, part + parts, …; 0 of 1 unless
     * distributed. */
    int64_t part, parts;
    tn_part_rule rule;

    /* Weighted and bucketed: owned by the creator's scope; a loader keeps it. */
    tn_tensor *table;
    int64_t draws;         /* weighted: draws per epoch */
    int64_t batch, bucket; /* bucketed */
} tn_sampler;
TN_API tn_sampler tn_sequential_sampler(void);
TN_API tn_sampler tn_random_sampler(uint64_t seed); /* a fresh permutation every epoch */
/* independent draws: as many per epoch as the dataset has examples */
TN_API tn_sampler tn_replacement_sampler(uint64_t seed);

/* Independent draws, `draws` per epoch, like WeightedRandomSampler with replacement: example i is
 * drawn with probability weights[i] / their sum. weights (size) f32 or f64, at least 0 and not all
 * 0. After an error an epoch is empty. TN_ESHAPE, TN_EDTYPE, TN_EVALUE. */
TN_API tn_sampler tn_weighted_sampler(tn_tensor *weights, int64_t draws, uint64_t seed);

/* Batches of similar lengths, to reduce padding; each example once. The examples are sorted by
 * lengths (size) i64, from tn_dataset_lengths or of any other measure, and cut into buckets of
 * `bucket` batches. Every epoch the examples within each bucket are shuffled, and then all batches:
 * bucket 1 pads least and always puts the same examples together; 10 pads little more and mixes
 * well. `batch` must be the loader's. Only an epoch's last batch is short. With several parts,
 * those of one step have similar lengths. TN_ESHAPE, TN_EDTYPE, TN_EVALUE. */
TN_API tn_sampler tn_bucket_sampler(tn_tensor *lengths, int64_t batch, int64_t bucket,
                                    uint64_t seed);

/* How many examples of a dataset of `size` this part gets in one epoch. */
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
 * tn_keep what must live longer. */
typedef struct tn_batch {
    tn_tensor *x, *y;
    tn_tensor *valid; /* (B) bool: false for padding examples; NULL if all are real */
    /* (B) i64: the length of each row of x, and of y, without padding, as for tn_lstm and tn_ctc;
     * NULL if all examples have the same size */
    tn_tensor *lengths, *y_lengths;
    int64_t epoch, index; /* index: of this batch in its epoch */
} tn_batch;

typedef struct tn_loader_options {
    int64_t batch;  /* 1 */
    int64_t epochs; /* 1: per pass; 0: endless */
    bool drop_last; /* false: the last batch of an epoch may be short */
    int threads;    /* 0: batches are made in the calling thread */
    int prefetch;   /* 2: with threads, batches ready in advance */
    double x_pad;   /* 0: fills up a short x */
    double y_pad;   /* 0: fills up a short y; losses ignore -100 */
    bool from_defaults;
} tn_loader_options;
TN_API tn_loader_options tn_loader_defaults(void);

/* Takes the dataset: it is freed with the loader, or if this fails. NULL after an error; an epoch
 * without a batch is an error too. A loader is used by one thread at a time, not always the same; a
 * call during another one, even from the dataset itself, is TN_ESTATE. Batches are on the default
 * device of the thread that makes the loader. A loader with threads is TN_ESTATE in a child of
 * fork, which does not have them. */
TN_API tn_loader *tn_loader_new(tn_dataset *dataset, tn_sampler sampler, tn_loader_options options);
TN_API void tn_loader_free(tn_loader *l); /* even mid-epoch: waits for the examples being read */

/* False once at the end of a pass of `epochs` epochs: the next call begins another pass, whose
 * epochs and orders continue the count. So two loops over a loader of one epoch see epoch 0 and
 * then epoch 1, like one loop over a loader of two. A loop that counts batches itself, and never
 * gets that false, needs epochs 0.
 *
 * Also false, but not the end, while an error is pending. An error of a worker thread is raised
 * here when its batch is due; once it is cleared, the next call returns the batch after that
 * one. */
TN_API bool tn_loader_next(tn_loader *l, tn_batch *batch);

/* The place of the next batch. At the end of a pass, index is tn_loader_batches and epoch the
 * pass's last; after tn_loader_next has returned false, (the next epoch, 0). Seeking drops
 * prefetched batches, and continues in the pass that has this epoch (0 … epochs-1, epochs … 2
 * epochs-1, …). TN_EINDEX out of range. */
typedef struct tn_loader_place {
    int64_t epoch, index;
} tn_loader_place;
TN_API tn_loader_place tn_loader_where(const tn_loader *l);
TN_API tn_status tn_loader_seek(tn_loader *l, tn_loader_place place);
/* whether seek would accept it; raises nothing */
TN_API bool tn_loader_has(const tn_loader *l, tn_loader_place place);

TN_API int64_t tn_loader_batches(const tn_loader *l); /* per epoch: PyTorch's len(loader) */
/* What the loader was made with. */
TN_API tn_loader_options tn_loader_options_of(const tn_loader *l);
TN_API tn_sampler tn_loader_sampler(const tn_loader *l);
TN_API const tn_dataset *tn_loader_dataset(const tn_loader *l);

#ifdef __cplusplus
}
#endif
#endif
