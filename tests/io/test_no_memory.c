/* Every allocation of data, io and train fails once, and so does every one of the libraries that
 * they use, alone and with the next one or two: an error, nothing leaked, nothing half done. Files
 * of weights and checkpoints: test_every_allocation.c. */
#include "core/allocator.h"
#include "tern/tern.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/dataset_text.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

typedef void (*scenario)(void);

/* No temporary file is left. */
static void assert_nothing_unfinished(void) {
    DIR *folder = opendir(temp_folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        if (length > 4 && strcmp(entry->d_name + length - 4, ".tmp") == 0) {
            fail_msg("%s is left", entry->d_name);
        }
    }
    if (folder) { closedir(folder); }
}

static void fail_each(scenario run) {
    every_allocation_then(run, assert_nothing_unfinished);
}

static void fail_both(scenario run) {
    fail_each(run);
    every_malloc(run, 3, assert_nothing_unfinished);
}

/* ---- Scenarios: each cleans up after itself, whatever has failed ----------------------------- */

/* An archive of one array that is stored and one that is compressed, and an array alone. */
static void use_numpy_files(void) {
    TN_SCOPE;
    static const char *const names[] = {"a", "größe"};
    tn_tensor *tensors[] = {tn_t(tn_ones(TN_DIMS(2, 3), TN_F32)), tn_ones(TN_DIMS(9), TN_I64)};
    for (int compressed = 0; compressed < 2; compressed++) {
        const char *path = temp_path("a.npz");
        if (tn_npz_save(names, tensors, 2, path, compressed) == TN_OK) {
            tn_npz *f = tn_npz_open(path);
            tn_npz_get(f, "a");
            tn_npz_get(f, "größe");
            tn_npz_close(f);
            tn_dataset_free(tn_npz_dataset(path, "größe", NULL));
        }
    }
    const char *path = temp_path("a.npy"), *rows = temp_path("x.npy"), *labels = temp_path("y.npy");
    if (tn_npy_save(tensors[0], path) == TN_OK &&
        tn_npy_save(tn_ones(TN_DIMS(6, 2, 3), TN_BOOL), rows) == TN_OK &&
        tn_npy_save(tn_ones(TN_DIMS(6), TN_I64), labels) == TN_OK) {
        char x[6];
        int64_t y;
        char text[DATASET_TEXT];
        tn_npy_load(path);
        tn_dataset *d = tn_npy_dataset(rows, labels);
        if (d && tn_dataset_get(d, 0, x, &y) == TN_OK) { dataset_text(d, text); }
        tn_dataset_free(d);
    }
}

static void use_pictures(void) {
    TN_SCOPE;
    const char *path = temp_path("a.png");
    tn_status status = tn_save_image(tn_ones(TN_DIMS(3, 3, 4, 5), TN_BF16), path, 2);
    assert_int_equal(status, tn_error());
    if (status == TN_OK) { tn_image_read(path, TN_U8); }
}

static void use_events(void) {
    TN_SCOPE;
    temp_remove(temp_path("events"));
    tn_summary_writer *w = tn_summary_writer_new(temp_path("events"), 0);
    tn_tensor *x = tn_ones(TN_DIMS(3, 4, 5), TN_F32);
    if (w) {
        tn_summary_add_scalar(w, "loss", 1.0, 1);
        tn_summary_add_histogram(w, "weights", x, 1);
        tn_summary_add_text(w, "note", "text", 1);
        tn_summary_add_image(w, "picture", x, 1);
    }
    tn_summary_writer_free(w);
}

static void use_shards(void) {
    tn_shards_options o = TN_WITH(tn_shards, .shard_tokens = 4);
    tn_shards_writer *w = tn_shards_writer_new(temp_path("shard"), o);
    if (w && tn_shards_writer_add(w, (int32_t[]){1, 2, 3, 4, 5}, 5) == TN_OK) {
        assert_int_equal(tn_shards_writer_finish(w), tn_error());
    }
    tn_shards_writer_free(w);
}

static void shards_read(void) {
    int64_t x[2], y[2];
    tn_dataset *d = tn_token_shards(temp_path("shard_*.bin"), 2, 50257);
    if (d) { tn_dataset_get(d, 0, x, y); }
    tn_dataset_free(d);
}

static tn_values pool_and_softmax(void *user, tn_values in) {
    return TN_VALUES(tn_softmax(tn_max_pool2d_op(in.v[0], TN_DIMS(2), tn_pool_defaults()), -1));
}

static void use_onnx(void) {
    TN_SCOPE;
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(1, 1, 4, 4), TN_F32));
    tn_onnx_options o = TN_WITH(tn_onnx, .batch_inputs = 1);
    const char *path = temp_path("a.onnx");
    tn_status status = tn_onnx_export_function(pool_and_softmax, NULL, NULL, in, path, o);
    assert_int_equal(status, tn_error());
}

static void use_text(void) {
    static const char words[] = "some text with a few characters";
    const char *path = temp_path("text");
    size_t bytes;
    if (tn_write_file(words, sizeof(words) - 1, path) != TN_OK) { return; }
    char *read = tn_text_read(path, &bytes);
    tn_charset *c = tn_charset_from_text(read, bytes);
    int32_t tokens[sizeof(words)];
    int64_t count = c ? tn_charset_encode(c, read, bytes, tokens) : 0;
    tn_dataset_free(tn_token_dataset(tokens, count, 4));
    tn_charset_free(c);
    tn_text_free(read);
}

static void write_gz(const char *name, const unsigned char *data, unsigned bytes) {
    gzFile file = gzopen(temp_path(name), "wb");
    assert_int_equal(gzwrite(file, data, bytes), bytes);
    assert_int_equal(gzclose(file), Z_OK);
}

static void use_digits(void) {
    tn_dataset_free(tn_mnist(temp_folder, false));
}

static void use_loader(int threads) {
    TN_SCOPE;
    tn_loader_options o = TN_WITH(tn_loader, .batch = 2, .threads = threads);
    tn_loader *l = tn_loader_new(tn_tensor_dataset(tn_t(tn_ones(TN_DIMS(3, 5), TN_F32)), NULL),
                                 tn_random_sampler(1), o);
    tn_batch b;
    while (tn_loader_next(l, &b)) {}
    tn_loader_free(l);
}

static void loader_alone(void) {
    use_loader(0);
}

static void loader_threads(void) {
    use_loader(2);
}

/* Sequences, some of them twice, split; one piece is read. */
static void use_composed(void) {
    TN_SCOPE;
    tn_tensor *x[] = {tn_ones(TN_DIMS(3), TN_F32), tn_ones(TN_DIMS(1), TN_F32)};
    tn_dataset *all = tn_sequence_dataset(x, NULL, 2), *pieces[2] = {NULL, NULL};
    tn_dataset *some = all ? tn_subset(tn_dataset_keep(all), (int64_t[]){1, 0}, 2) : NULL;
    tn_dataset *both = tn_concat_dataset((tn_dataset *[]){some, all}, 2);
    tn_random_split(both, (double[]){2, 2}, 2, 1, pieces);
    tn_dataset_free(pieces[1]);
    char text[DATASET_TEXT];
    if (pieces[0] && dataset_text(pieces[0], text)) {
        tn_loader_options o = TN_WITH(tn_loader, .batch = 2);
        tn_loader *l = tn_loader_new(pieces[0], tn_random_sampler(1), o);
        tn_batch b;
        tn_loader_next(l, &b);
        tn_loader_free(l);
        return;
    }
    tn_dataset_free(pieces[0]);
}

/* Resized images, drawn by weights, then in buckets by length. */
static void use_augmented(void) {
    TN_SCOPE;
    tn_tensor *x = tn_ones(TN_DIMS(3, 1, 4, 4), TN_F32), *weights = tn_ones(TN_DIMS(3), TN_F32);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 2);
    for (int i = 0; i < 2; i++) {
        tn_dataset *d = TN_TRANSFORMED(tn_tensor_dataset(x, NULL), 1, tn_image_resize(3, 3),
                                       tn_random_crop(3, 3, 1));
        tn_sampler s = i ? tn_bucket_sampler(tn_cast(weights, TN_I64), 2, 1, 1)
                         : tn_weighted_sampler(weights, 4, 1);
        tn_loader *l = tn_loader_new(d, s, o);
        tn_batch b;
        while (tn_loader_next(l, &b)) {}
        tn_loader_free(l);
    }
}

static void use_history(void) {
    tn_history *h = tn_history_open(temp_path("loss.csv"), 0);
    tn_history_add(h, 1);
    tn_history_free(h);
    h = tn_error() ? NULL : tn_history_open(temp_path("loss.csv"), 1);
    if (h) {
        tn_curve c = tn_history_curve(h, "loss");
        tn_plot p = {.title = "t", .curves = &c, .count = 1};
        FILE *file = fopen("/dev/null", "w");
        if (file) {
            tn_plot_text(&p, file, 60, 10);
            fclose(file);
        }
    }
    tn_history_free(h);
}

/* An optimiser over plain tensors, whose state has different shapes, and an average of its
 * weights. */
static void use_optimisers(void) {
    TN_SCOPE;
    tn_linear net;
    tn_linear_init(&net, 3, 2, tn_linear_defaults());
    tn_tensor *list[] = {net.weight, net.bias};
    tn_optim *opt = tn_adafactor(tn_parameters(list, 2), tn_adafactor_defaults());
    tn_average *ema = tn_ema(&net, 0.5);
    tn_set_grad(net.weight, tn_ones(TN_DIMS(2, 3), TN_F32));
    tn_optim_step(opt);
    tn_average_update(ema);
    {
        TN_AVERAGED(ema);
        tn_clip_grad_value(&net, 0.5);
    }
    tn_average_free(ema);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

static void use_metrics(void) {
    TN_SCOPE;
    tn_metrics *m = tn_metrics_new(3, 1);
    tn_metrics_add(m, tn_ones(TN_DIMS(4, 3), TN_F32), tn_zeros(TN_DIMS(4), TN_I32), NULL);
    tn_metrics_free(m);
}

/* What it has done stays, so each call uses a folder of its own. */
static void use_search(void) {
    static int number;
    char name[32];
    double x;
    const char *word;
    snprintf(name, sizeof(name), "search%d", number++);
    tn_search_options o = TN_WITH(tn_search, .out = temp_path(name), .trials = 2);
    tn_search *s = tn_search_new(o);
    tn_search_real(s, "x", &x, 0, 1);
    tn_search_choose_text(s, "word", &word, (const char *[]){"a", "b"}, 2);
    while (tn_search_next(s)) {
        tn_search_report(s, x);
    }
    tn_search_best(s);
    tn_search_end(s);
}

PLAIN_TEST(test_files) {
    fail_both(use_numpy_files);
    fail_both(use_pictures);
    fail_both(use_events);
    fail_both(use_shards);
    fail_each(shards_read); /* glob of glibc 2.36 frees twice without memory */
    fail_each(use_onnx);    /* kernels have threads, and libgomp ends the process without memory */
}

PLAIN_TEST(test_data) {
    unsigned char images[16 + 784] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28};
    unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 1, 7};
    write_gz("t10k-images-idx3-ubyte.gz", images, sizeof(images));
    write_gz("t10k-labels-idx1-ubyte.gz", labels, sizeof(labels));
    fail_both(use_digits);
    fail_both(use_text);
    fail_both(loader_alone);
    fail_both(use_composed);
    fail_both(use_augmented);
    fail_both(loader_threads);
}

PLAIN_TEST(test_train) {
    fail_both(use_history);
    fail_each(use_optimisers); /* kernels have threads, and libgomp ends the process without memory
                                */
    fail_each(use_metrics);
    fflush(stdout);
    int before = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO); /* a search prints what it does */
    fail_both(use_search);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    close(nowhere);
}
