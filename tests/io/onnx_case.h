/* What the programs dump_onnx*.c share: a case is FOLDER/NAME.onnx and FOLDER/NAME.npz, whose
 * arrays are named as the file's inputs and outputs; FOLDER/unsupported has a line for each case
 * that ONNX cannot express: its name and the error.
 */
#ifndef TERN_TESTS_IO_ONNX_CASE_H
#define TERN_TESTS_IO_ONNX_CASE_H

#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>

static const char *folder;
static FILE *unsupported;

/* Saves inputs and outputs under their names in the file. */
static inline tn_status save_arrays(const char *path, tn_values in, tn_values out) {
    const char *names[2 * TN_MAX_VALUES];
    char text[2 * TN_MAX_VALUES][32];
    tn_tensor *tensors[2 * TN_MAX_VALUES];
    int n = 0;
    for (int i = 0; i < in.n + out.n; i++) {
        bool input = i < in.n;
        int k = input ? i : i - in.n, of = input ? in.n : out.n;
        if (input && !in.v[k]) { continue; }
        snprintf(text[n], sizeof(text[n]), of > 1 ? "%s_%d" : "%s", input ? "input" : "output", k);
        tensors[n] = tn_detach(input ? in.v[k] : out.v[k]);
        names[n] = text[n];
        n++;
    }
    return tn_npz_save(names, tensors, n, path, false);
}

/* m may be NULL. in: inputs to run the file with; example: those to export it with. */
static inline void dump_case_as(const char *name, tn_forward f, void *user, void *m, tn_values in,
                                tn_values example, uint32_t batch_inputs) {
    TN_SCOPE;
    TN_NO_GRAD;
    char path[4096];
    tn_onnx_options options = TN_WITH(tn_onnx, .batch_inputs = batch_inputs);
    tn_values out = f(user, in);
    snprintf(path, sizeof(path), "%s/%s.onnx", folder, name);
    tn_status status = tn_error();
    if (status == TN_OK) { status = tn_onnx_export_function(f, user, m, example, path, options); }
    if (status == TN_EUNSUPPORTED) {
        fprintf(unsupported, "%s %s\n", name, tn_error_message());
        tn_error_clear();
        return;
    }
    snprintf(path, sizeof(path), "%s/%s.npz", folder, name);
    if (status != TN_OK || save_arrays(path, in, out) != TN_OK) {
        fprintf(stderr, "%s: %s\n", name, tn_error_message());
        exit(1);
    }
}

/* The folder of all cases; false after printing why. cases_end: whether everything was written. */
static inline bool cases_begin(const char *path) {
    char list[4096];
    folder = path;
    snprintf(list, sizeof(list), "%s/unsupported", folder);
    unsupported = fopen(list, "a");
    if (!unsupported) { perror(list); }
    return unsupported != NULL;
}

static inline bool cases_end(void) {
    return fclose(unsupported) == 0;
}

#endif
