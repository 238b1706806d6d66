/* An ONNX graph under construction: values, nodes and their attributes. elementwise.c and its
 * neighbours translate operations, one small function for each kind:
 *
 *     static void put_softmax(tn__onnx *g, const tn_op_call *c, const char *type) {
 *         int y = TN__NODE(g, type, tn__onnx_in(g, c, 0));
 *         tn__onnx_int(g, "axis", tn__onnx_dim(c));
 *         tn__onnx_give(g, c, 0, y);
 *     }
 *
 * A value is a number from 1 on; 0 is an absent one. After a failure an error is pending, and
 * further calls are harmless: the writer of the file checks.
 */
#ifndef TERN_IO_ONNX_GRAPH_H
#define TERN_IO_ONNX_GRAPH_H

#include "autograd/tracer.h"
#include "io/protobuf.h"
#include "tern/onnx.h"

#define TN__ONNX_OPSET 18
#define TN__ONNX_IR 8 /* of the same release, 1.13 */

typedef enum tn__onnx_kind {
    TN__ONNX_INPUT, /* of the graph */
    TN__ONNX_PARAM, /* a parameter or buffer of the module: written where it is used */
    TN__ONNX_CONSTANT /* a tensor that depends on no input */,
    TN__ONNX_RESULT /* of a node */
} tn__onnx_kind;

typedef struct tn__onnx_value {
    tn__onnx_kind kind;
    bool used;
    char *name;
    tn_tensor *tensor; /* one reference; NULL: intermediate, between several nodes */
    uint32_t version;  /* of its elements when it was added */
    /* Of inputs and outputs, bit i: dimension i is the batch, or another unknown size. */
    uint32_t batch, any_size;
} tn__onnx_value;

typedef struct tn__onnx {
    tn__tracer tracer; /* first */
    tn__onnx_value *values;
    int count;
    int64_t capacity;
    tn__buffer nodes; /* as fields of a graph; the last one is still open: */
    tn__buffer node;
    bool open;
    const char *operation; /* which is being written */
    int outputs[TN_MAX_VALUES], output_count;
} tn__onnx;

/* How an operation is translated. */
typedef struct tn__onnx_rule {
    const char *operation; /* as in ops/list.h */
    void (*put)(tn__onnx *g, const tn_op_call *c, const char *type);
    const char *type; /* ONNX's name, where the function serves several */
    /* Whether it can express this call; NULL: any. If not, the operation's composition is
     * written. */
    bool (*fits)(const tn_op_call *c);
} tn__onnx_rule;

/* One table per file; each ends with a row without a name. */
extern const tn__onnx_rule tn__onnx_elementwise[], tn__onnx_reduce[], tn__onnx_shape[],
    tn__onnx_nn[], tn__onnx_windows[], tn__onnx_recurrent[];

/* ---- Values ---------------------------------------------------------------------------------- */

/* Adds one; takes no reference. name: copied, or NULL: it gets one. 0 after raising. */
int tn__onnx_value_add(tn__onnx *g, tn__onnx_kind kind, tn_tensor *tensor, const char *name);
/* The value of a tensor; 0: none. */
int tn__onnx_known(const tn__onnx *g, const tn_tensor *t);
/* Whether it is part of an input or a result, but no operation made it: it cannot be expressed.
 */
bool tn__onnx_hidden(const tn__onnx *g, const tn_tensor *t);

int tn__onnx_in(tn__onnx *g, const tn_op_call *c, int i); /* input i; 0 where it is absent */
/* Result i of the call is this value. */
void tn__onnx_give(tn__onnx *g, const tn_op_call *c, int i, int value);

int tn__onnx_constant(tn__onnx *g, tn_tensor *t);
int tn__onnx_number(tn__onnx *g, double number, tn_dtype dtype); /* 0-dimensional */
int tn__onnx_wholes(tn__onnx *g, const int64_t *numbers, int n); /* (n), i64 */
int tn__onnx_dims(tn__onnx *g, tn_dims dims);                    /* the same */

/* ---- Nodes ----------------------------------------------------------------------------------- */

/* Adds a node and returns its first output. Attributes and further outputs go to the newest
 * node. */
int tn__onnx_node(tn__onnx *g, const char *type, const int *inputs, int n);
#define TN__NODE(g, type, ...)                       \
    tn__onnx_node((g), (type), (int[]){__VA_ARGS__}, \
                  (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)))
int tn__onnx_output(tn__onnx *g);
void tn__onnx_int(tn__onnx *g, const char *name, int64_t value);
void tn__onnx_float(tn__onnx *g, const char *name, double value);
void tn__onnx_text(tn__onnx *g, const char *name, const char *value, bool list); /* of one */
void tn__onnx_ints(tn__onnx *g, const char *name, const int64_t *values, int n);
/* An output of the graph, with this name: a node that copies the value. */
int tn__onnx_named(tn__onnx *g, int value, const char *name);

/* What many operations need. */
int tn__onnx_type(tn_dtype dtype); /* its number in ONNX's files */
int tn__onnx_cast(tn__onnx *g, int x, tn_dtype dtype);
int tn__onnx_reshape(tn__onnx *g, int x, tn_dims dims);
/* The field "dim", counted from the start, of a call's input 0; whether that has dimensions. */
int64_t tn__onnx_dim(const tn_op_call *c);
bool tn__onnx_has_dims(const tn_op_call *c);
bool tn__onnx_has_elements(const tn_op_call *c); /* input 0 */

/* Rules for operations that are one node of `type`: of input 0, of both; of input 0 along `dim`. */
void tn__onnx_unary(tn__onnx *g, const tn_op_call *c, const char *type);
void tn__onnx_binary(tn__onnx *g, const tn_op_call *c, const char *type);
void tn__onnx_along(tn__onnx *g, const tn_op_call *c, const char *type);

/* Closes the newest node. */
void tn__onnx_close(tn__onnx *g);
void tn__onnx_finish(tn__onnx *g);

/* batch.c: makes g, traced with a batch of `batch` rows, a graph for any number, by the traces with
 * one and two rows more. False after raising. */
bool tn__onnx_vary(tn__onnx *g, tn__onnx *larger, tn__onnx *largest, int64_t batch);

/* Writes the file. */
tn_status tn__onnx_save(tn__onnx *g, const char *path);

#endif
