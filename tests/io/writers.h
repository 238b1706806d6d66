/* Every call that writes a file, and a run for it to write about. */
#ifndef TERN_TESTS_IO_WRITERS_H
#define TERN_TESTS_IO_WRITERS_H

#include "tern/tern.h"

#include "tests/io/small_run.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

static small_run run;

static tn_status write_bytes(const char *path) {
    return tn_write_file("some bytes", 10, path);
}

static tn_status write_tensors(const char *path) {
    TN_SCOPE;
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "x", tn_ones(TN_DIMS(2, 3), TN_F32));
    tn_safetensors_writer_add_metadata(w, "key", "value");
    return tn_safetensors_writer_save(w, path);
}

static tn_status write_module(const char *path) {
    return tn_save(&run.model, path);
}

static tn_status write_checkpoint(const char *path) {
    tn_checkpoint c = small_run_checkpoint(&run);
    return tn_checkpoint_save(&c, path);
}

static tn_status write_picture(const char *path) {
    double x[] = {0, 1}, y[] = {1, 2};
    tn_curve curve = {.name = "loss", .x = x, .y = y, .count = 2};
    tn_plot plot = {.title = "title", .curves = &curve, .count = 1};
    return tn_plot_svg(&plot, path);
}

static tn_status write_graph(const char *path) {
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
    return tn_graph_dot(tn_exp(x), path, NULL, NULL);
}

static tn_status write_trace(const char *path) {
    return tn_flight_trace(path);
}

static tn_values add_bias(void *user, tn_values in) {
    tn_tensor *sum = tn_add(tn_exp(in.v[0]), run.model.bias);
    return TN_VALUES(tn_reshape(sum, TN_DIMS(2 * tn_size(sum, 0))));
}

static tn_status write_onnx(const char *path) {
    TN_SCOPE;
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(2, 2), TN_F32));
    tn_onnx_options options = TN_WITH(tn_onnx, .batch_inputs = 1);
    return tn_onnx_export_function(add_bias, NULL, &run.model, in, path, options);
}

static const struct {
    const char *name;
    tn_status (*write)(const char *path);
} writers[] = {
    {"tn_write_file", write_bytes},   {"tn_safetensors_writer_save", write_tensors},
    {"tn_save", write_module},        {"tn_checkpoint_save", write_checkpoint},
    {"tn_plot_svg", write_picture},   {"tn_graph_dot", write_graph},
    {"tn_flight_trace", write_trace}, {"tn_onnx_export", write_onnx},
};
enum { WRITERS = sizeof(writers) / sizeof(writers[0]) };

/* Writes a file that must survive a failure. */
static inline const char *old_file(void) {
    const char *path = temp_path("file");
    temp_write(path, "old", 3);
    return path;
}

/* The old file is there, and nothing else. */
static inline void expect_old(const char *path, const char *name) {
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    if (bytes != 3 || memcmp(data, "old", 3) != 0 || temp_count() != 1) {
        fail_msg("%s: %zu bytes, %d files", name, bytes, temp_count());
    }
    free(data);
}

/* Around the tests of a group. The seed gives a loader without threads: a worker would make its
 * next batch while a test counts tensors. */
static inline int run_begin(void **state) {
    small_run_open(&run, 3);
    small_run_step(&run);
    return 0;
}

static inline int run_end(void **state) {
    small_run_close(&run);
    return 0;
}

#endif
