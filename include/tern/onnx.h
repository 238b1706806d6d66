/* ONNX: a forward as a file that onnxruntime and others run.
 *
 *     tn_module_train(&net, false);
 *     tn_tensor *x = tn_zeros(TN_DIMS(1, 3, 32, 32), TN_F32);       // an example
 *     tn_onnx_export(&net, TN_VALUES(x), "net.onnx", tn_onnx_defaults());
 *
 *     session = onnxruntime.InferenceSession("net.onnx")             # Python
 *     y, = session.run(None, {"input": x})
 *
 * The forward runs once, and the operations that it calls are written down: shapes are the
 * example's, branches those that were taken, and a number that the program reads (tn_item) or draws
 * is the one that it was then. Parameters and buffers become initialisers under their paths.
 * docs/onnx.md has what maps to what.
 *
 * Read next: io/onnx/onnx.c, autograd/tracer.h.
 */
#ifndef TERN_ONNX_H
#define TERN_ONNX_H

#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names, one for each input and each output; they do not begin with '/', which the names of what
 * is between do. NULL: "input" and "output", or "input_0", "input_1", … of several. */
typedef struct tn_onnx_options {
    const char *const *inputs, *const *outputs;
    /* 0: all sizes are the example's. Bit i: the first dimension of input i is a batch, of any size
     * in the file. The forward then runs three times, with batches of different sizes, of which it
     * must do the same; where numbers in it depend on them in another way than sizes of tensors do,
     * that is TN_EUNSUPPORTED. */
    uint32_t batch_inputs;
    bool from_defaults;
} tn_onnx_options;
TN_API tn_onnx_options tn_onnx_defaults(void);

/* tn_call_values(m, in, NULL) as a file of opset 18. An input that is NULL is absent there too. The
 * file is there whole or not at all (io.h).
 *
 * TN_ESTATE: m trains (tn_module_train(m, false)). TN_EUNSUPPORTED, with its name: an operation
 * that ONNX has not, nor any of those of which it is made; a tensor that is changed in place and
 * depends on the inputs, or was used before; more than 2 GiB. TN_EVALUE: a name that is used twice.
 * TN_EIO, TN_ENOMEM. */
TN_API tn_status tn_onnx_export(void *m, tn_values in, const char *path, tn_onnx_options options);

/* The same of a function. m: whose parameters and buffers it reads, for their names, or NULL: a
 * tensor that is no input is then a constant without a name. */
TN_API tn_status tn_onnx_export_function(tn_forward f, void *user, void *m, tn_values in,
                                         const char *path, tn_onnx_options options);

#ifdef __cplusplus
}
#endif
#endif
