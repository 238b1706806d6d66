/* Devices that are not present, for which cuDNN makes plans: tests/emulator/driver/NAME.json. */
#ifndef TERN_TESTS_CUDA_DESCRIBED_H
#define TERN_TESTS_CUDA_DESCRIBED_H

#include "backends/cuda/dnn_graph.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>

#if TN_HAVE_CUDNN && TN__DNN_DESCRIBED

static const tn__cudnn_table *dnn;

static inline cudnnBackendDescriptor_t described_device(const char *name) {
    char path[512], text[4096];
    const char *root = getenv("TERN_ROOT");
    snprintf(path, sizeof(path), "%s/tests/emulator/driver/%s.json", root ? root : ".", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof(text), file);
    fclose(file);
    cudnnBackendDescriptor_t d = NULL;
    assert_int_equal(dnn->BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d), 0);
    assert_int_equal(dnn->BackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                              CUDNN_TYPE_CHAR, (int64_t)size, text),
                     0);
    assert_int_equal(dnn->BackendFinalize(d), 0);
    return d;
}

#endif

/* Runs the tests, or says why not. */
static inline int described_run(const char *what) {
#if TN_HAVE_CUDNN && TN__DNN_DESCRIBED
    dnn = tn__cudnn();
    if (dnn) { return tests_run(NULL, NULL); }
#endif
    const char *why = tn__cudnn_why();
    printf("1..1\nok 1 - %s # SKIP %s\n", what, *why ? why : "cudnn.h is older than 9.8");
    return 0;
}

#endif
