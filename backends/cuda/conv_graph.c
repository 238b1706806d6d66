/* Convolutions as cuDNN graphs: one operation, followed by the bias if there is one, so that the
 * result is rounded once. */
#include "backends/cuda/conv_graph.h"

#if TN_HAVE_CUDNN

typedef tn__dnn_descriptor descriptor;

enum { X = 1, W, Y, BIAS, BARE };

static descriptor conv_tensor(tn__dnn_graph *g, int64_t name, int64_t type, int64_t ndim,
                              const tn__conv_extent *extent, tn__dnn_memory where) {
    return tn__dnn_tensor(g, name, (cudnnDataType_t)type, (int)ndim, extent->size, extent->stride,
                          where);
}

static descriptor sliding_descriptor(tn__dnn_graph *g, const tn__conv_shape *s) {
    descriptor d = tn__dnn_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t spatial = s->ndim - 2;
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial);
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, s->stride);
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, s->dilation);
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, s->before);
    tn__dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, s->after);
    tn__dnn_finish(g, d, "a convolution");
    return d;
}

/* The type of an operation and the names of its attributes. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t sliding, alpha, beta, y, x, w;
} operation_names;

static const operation_names names_of[] = {
    [TN__CONV_Y] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W},
    [TN__CONV_X] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W},
    [TN__CONV_W] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
};

static void sliding_operation(tn__dnn_graph *g, const tn__conv_shape *s, descriptor y, descriptor x,
                              descriptor w) {
    const operation_names *names = &names_of[s->result];
    float one = 1, zero = 0;
    descriptor operation = tn__dnn_make(g, names->type);
    tn__dnn_link(g, operation, names->sliding, sliding_descriptor(g, s));
    tn__dnn_link(g, operation, names->y, y);
    tn__dnn_link(g, operation, names->x, x);
    tn__dnn_link(g, operation, names->w, w);
    tn__dnn_set(g, operation, names->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    tn__dnn_set(g, operation, names->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    tn__dnn_add(g, operation, "a convolution");
}

/* One number for each channel of (N, C, …). */
static tn__conv_extent bias_extent(int64_t channels) {
    tn__conv_extent bias;
    for (int i = 0; i < TN__CONV_NDIM; i++) {
        bias.size[i] = i == 1 ? channels : 1;
        bias.stride[i] = i == 0 ? channels : 1;
    }
    return bias;
}

static void conv_graph(tn__dnn_graph *g, const tn__conv_shape *s) {
    const tn__conv_extent *extent[] = {&s->y, &s->x, &s->w};
    static const int64_t names[] = {Y, X, W};
    descriptor tensor[3];
    for (int i = 0; i < 3; i++) {
        tensor[i] = conv_tensor(g, names[i], s->type, s->ndim, extent[i], TN__DNN_REAL);
    }
    if (!s->with_bias) {
        sliding_operation(g, s, tensor[0], tensor[1], tensor[2]);
        return;
    }
    tn__conv_extent bias = bias_extent(extent[s->result]->size[1]);
    descriptor b = conv_tensor(g, BIAS, s->type, s->ndim, &bias, TN__DNN_REAL);
    descriptor result = tensor[s->result];
    tensor[s->result] =
        conv_tensor(g, BARE, CUDNN_DATA_FLOAT, s->ndim, extent[s->result], TN__DNN_VIRTUAL);
    sliding_operation(g, s, tensor[0], tensor[1], tensor[2]);
    tn__dnn_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, tensor[s->result], b, NULL,
                      result);
}

/* What an engine must not do: round f32 before it multiplies (PyTorch's Conv_v8.cpp checks the same
 * notes), or, if the call is deterministic, add in order of arrival. */
static unsigned refused_notes(const tn__conv_shape *s) {
    unsigned refused = s->deterministic ? TN__DNN_NOTE(NONDETERMINISTIC) : 0;
    if (s->type == CUDNN_DATA_FLOAT) {
        refused |= TN__DNN_NOTE(DOWN_CONVERT_INPUTS) | (s->tf32 ? 0 : TN__DNN_NOTE(TENSOR_CORE));
    }
    return refused;
}

int tn__conv_plans(const tn__cudnn_table *dnn, tn__dnn_target target, const void *shape, int most,
                   tn__dnn_plan *plans, char why[TN__DNN_WHY]) {
    tn__dnn_graph g = {.dnn = dnn, .name = "this convolution", .why = why};
    conv_graph(&g, shape);
    int count = tn__dnn_plans(&g, target, refused_notes(shape), most, plans);
    tn__dnn_clear(&g);
    return count;
}

cudnnStatus_t tn__conv_run(const tn__cudnn_table *dnn, cudnnHandle_t handle,
                           const tn__dnn_plan *plan, const tn__conv_data *data, void *workspace) {
    static const int64_t names[] = {X, W, Y, BIAS};
    void *address[] = {data->x, data->w, data->y, data->b};
    return tn__dnn_run(dnn, handle, plan, data->b ? 4 : 3, names, address, workspace);
}

#endif
