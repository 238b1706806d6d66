/* ONNX: exports a forward to a file that onnxruntime and others can run.
 *
 *     tn_module_train(&net, false);
 *     tn_tensor *x = tn_zeros(TN_DIMS(1, 3, 32, 32), TN_F32);       // an example
 *     tn_onnx_export(&net, TN_VALUES(x), "net.onnx", tn_onnx_defaults());
 *
 *     session = onnxruntime.InferenceSession("net.onnx")             # Python
 *     y, = session.run(None, {"input": x})
 *
 * The forward runs once, and the operations that it calls are recorded: shapes are the example's,
 * branches the ones taken, and numbers that the program reads (tn_item) or draws become constants.
 * Parameters and buffers become initialisers under their paths. docs/onnx.md has the mapping.
 *
 * Read next: io/onnx/onnx.c, autograd/tracer.h.
 */
#ifndef TERN_ONNX_H
#define TERN_ONNX_H

#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names, one for each input and each output; they must not begin with '/', which is for the names
 * of intermediate values. NULL: "input" and "output", or "input_0", "input_1", … if there are
 * several. */
typedef struct tn_onnx_options {
    const char *const *inputs, *const *outputs;
    /* 0: all sizes are the example's. Bit i: the first dimension of input i is a batch, of any size
     * in the file. The forward then runs three times, with batches of different sizes, and must do
     * the same each time; if numbers in it depend on the batch size other than as sizes of tensors,
     * that is TN_EUNSUPPORTED. */
    uint32_t batch_inputs;
    bool from_defaults;
} tn_onnx_options;
TN_API tn_onnx_options tn_onnx_defaults(void);

/* tn_call_values(m, in, NULL) as a file of opset 18. A NULL input is absent there too. The file is
 * written whole or not at all (io.h).
 *
 * TN_ESTATE: m is in training mode (tn_module_train(m, false)). TN_EUNSUPPORTED: an operation, by
 * name, that ONNX lacks and that is not composed of others it has; a tensor changed in place that
 * depends on the inputs or was used before; more than 2 GiB. TN_EVALUE: a name used twice. TN_EIO,
 * TN_ENOMEM. */
TN_API tn_status tn_onnx_export(void *m, tn_values in, const char *path, tn_onnx_options options);

/* The same for a function. m: the module whose parameters and buffers it reads, for their names;
 * NULL: tensors other than inputs become constants without a name. */
TN_API tn_status tn_onnx_export_function(tn_forward f, void *user, void *m, tn_values in,
                                         const char *path, tn_onnx_options options);

#ifdef __cplusplus
}
#endif
#endif
