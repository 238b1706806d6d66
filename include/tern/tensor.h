/* Tensors: an n-dimensional view of typed elements in a storage.
 *
 * A tensor is metadata (dtype, sizes, strides, offset) over a shared storage; views share storage
 * and cost no copy. Every function that makes a tensor gives it to the current scope (core.h). A
 * function that fails returns an inert tensor, never NULL: it has 0 dimensions, its item is NaN,
 * reading it gives zeros, and every operation on it returns an inert tensor.
 *
 *     tn_tensor *x = tn_randn(TN_DIMS(2, 3), TN_F32);
 *     tn_tensor *y = tn_transpose(x, 0, 1);                  // a view: (3, 2)
 *     tn_print(y);
 *
 * This header: making, inspecting, views. Functions that compute with elements are operations
 * (ops.h).
 */
#ifndef TERN_TENSOR_H
#define TERN_TENSOR_H

#include "core.h"

#include <stdio.h>

#ifdef __cplusplus
#include <initializer_list>
extern "C" {
#endif

#define TN_MAX_DIMS 8 /* of a tensor */

/* Element types: floats of 32, 64 and 16 bits (bf16: f32's exponent and 8 bits of precision),
 * integers, booleans. */
typedef enum tn_dtype {
    TN_F32,
    TN_F64,
    TN_BF16,
    TN_F16,
    TN_I64,
    TN_I32,
    TN_U8,
    TN_BOOL,
    TN_I8
} tn_dtype;
enum { TN_DTYPES = 9 };

/* Element types that C lacks. */
typedef struct tn_bf16 {
    uint16_t bits;
} tn_bf16;
typedef struct tn_f16 {
    uint16_t bits;
} tn_f16;

/* How many numbers become one: the terms of a loss, the tensors of all ranks, a dimension. Each
 * function says which of these it takes; any other is TN_EVALUE, in a kernel TN_EUNSUPPORTED. */
typedef enum tn_reduction {
    TN_SUM,
    TN_MEAN,
    TN_MAX,
    TN_MIN,
    TN_SUM_SQUARES,
    TN_ANY, /* bools: whether one is true; false if there are none */
    TN_ALL, /* bools: whether each is true */
    TN_PRODUCT,
    TN_NONE /* no reduction */
} tn_reduction;

/* Where a tensor is. */
typedef enum tn_device_kind { TN_CPU, TN_CUDA } tn_device_kind;
typedef struct tn_device {
    tn_device_kind kind;
    int index; /* 0 for the CPU */
} tn_device;

/* A shape by value: TN_DIMS(2, 3) is (2, 3), TN_DIMS() is 0-dimensional (a scalar).
 * Sizes may be 0. */
typedef struct tn_dims {
    int ndim;
    int64_t size[TN_MAX_DIMS];
} tn_dims;

/* More than 8 dimensions: ndim is -1. Negative numbers are kept: reshape's -1 and lists of
 * dimensions need them; making a tensor with one is TN_ESHAPE. */
TN_API tn_dims tn_dims_from(int ndim, const int64_t *sizes);
/* the product; 1 for 0 dimensions; -1: invalid; saturates at 2^63 - 1 */
TN_API int64_t tn_dims_count(tn_dims dims);
TN_API bool tn_dims_equal(tn_dims a, tn_dims b);

/* NumPy's broadcasting of two shapes; false if they do not broadcast. */
TN_API bool tn_dims_broadcast(tn_dims a, tn_dims b, tn_dims *result);

TN_API size_t tn_dtype_size(tn_dtype dtype);      /* bytes */
TN_API const char *tn_dtype_name(tn_dtype dtype); /* "f32" */
/* f32 f64 bf16 f16: the dtypes that can have a gradient */
TN_API bool tn_dtype_is_float(tn_dtype dtype);
TN_API float tn_bf16_to_float(tn_bf16 x);
TN_API tn_bf16 tn_bf16_from_float(float x); /* rounds to nearest even */
TN_API float tn_f16_to_float(tn_f16 x);
TN_API tn_f16 tn_f16_from_float(float x);

/* ---- Devices ---------------------------------------------------------------------------------- *
 *
 * A tensor lives on one device, and so do all tensors of one operation (TN_EDEVICE names both). The
 * CPU is always available. CUDA devices come from the plugin libtern_cuda.so, which is loaded when
 * a program first asks for one: docs/cuda.md. Work on a device is queued: functions that read
 * elements (tn_item, tn_copy_out, tn_print) wait for it, and an error there may be noticed only
 * then. */

TN_API tn_device tn_cpu(void);
TN_API tn_device tn_cuda(int index);

/* The number of devices, and the loader's or the driver's reason why there are none. Neither
 * raises. */
TN_API int tn_device_count(tn_device_kind kind);
TN_API const char *tn_device_why(tn_device_kind kind);

/* "cpu", "cuda" (device 0), "cuda:1". A name of no device, or of one not available, is TN_EDEVICE
 * with the reason, and returns the CPU. */
TN_API tn_device tn_device_named(const char *text);
TN_API const char *tn_device_text(tn_device device); /* in one of 8 buffers of this thread */

typedef struct tn_device_info {
    char name[256];   /* "NVIDIA H200" */
    int major, minor; /* compute capability; 0.0 for the CPU */
    int processors;   /* streaming multiprocessors, or cores */
    int64_t memory;   /* bytes */
} tn_device_info;
TN_API tn_status tn_device_describe(tn_device device, tn_device_info *info);

/* Where this thread makes tensors unless told otherwise: tn_empty and its kin, parameters of
 * layers, batches of a loader. Initially the CPU. */
TN_API tn_device tn_default_device(void);
TN_API tn_status tn_set_default_device(tn_device device);

/* Waits until everything queued on the device is done, and raises what went wrong. */
TN_API tn_status tn_device_synchronize(tn_device device);

/* How exactly devices other than the CPU compute: settings of the process, for calls from then on.
 *
 * Deterministic (initially true): the same program gives the same bits in each run. Otherwise the
 * fastest of several kernels of cuBLASLt and cuDNN is chosen by time when a shape is first met, and
 * attention's backward adds up in order of arrival. The CPU's results are always reproducible. */
TN_API bool tn_deterministic(void);
TN_API void tn_set_deterministic(bool deterministic);

/* Whether f32 products, and f32 convolutions, may run on the matrix units, with 10 bits of each
 * factor: several times faster. Initially false for products and true for convolutions, as in
 * PyTorch; TERN_TF32=1 or 0 in the environment sets both. */
TN_API bool tn_matmul_tf32(void);
TN_API void tn_set_matmul_tf32(bool allowed);
TN_API bool tn_conv_tf32(void);
TN_API void tn_set_conv_tf32(bool allowed);

/* Like tn_memory and its kin (core.h), for one device. */
TN_API tn_memory_stats tn_device_memory(tn_device device);
TN_API void tn_device_memory_reset_peak(tn_device device);
TN_API void tn_device_memory_trim(tn_device device);

/* ---- Making ---------------------------------------------------------------------------------- */

/* Uninitialised, on the default device or a given one. */
TN_API tn_tensor *tn_empty(tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_empty_on(tn_device device, tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_empty_like(const tn_tensor *t);

/* Filled with one value; *_like: with t's shape, dtype and device. */
TN_API tn_tensor *tn_zeros(tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_ones(tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_full(tn_dims dims, double value, tn_dtype dtype);
TN_API tn_tensor *tn_zeros_like(const tn_tensor *t);
TN_API tn_tensor *tn_ones_like(const tn_tensor *t);
TN_API tn_tensor *tn_scalar(double value, tn_dtype dtype); /* 0-dimensional */

/* start, start + step, … up to but not including `end`: ceil((end - start) / step) elements. */
TN_API tn_tensor *tn_arange(double start, double end, double step, tn_dtype dtype);

/* Drawn from this thread's default generator: uniform in [0, 1), never 1 in any dtype; standard
 * normal; integers in [low, high), both within 2^53 of 0 (TN_EVALUE). */
TN_API tn_tensor *tn_rand(tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_randn(tn_dims dims, tn_dtype dtype);
TN_API tn_tensor *tn_randint(int64_t low, int64_t high, tn_dims dims, tn_dtype dtype);
/* With t's shape, dtype (a float) and device. With your own generator: tn_uniform_,
 * tn_normal_ (ops.h). */
TN_API tn_tensor *tn_rand_like(const tn_tensor *t);
TN_API tn_tensor *tn_randn_like(const tn_tensor *t);

/* A copy of `data`, row-major elements of `dtype`.
 * TN_FROM(array, dims, dtype) also checks the array's size. */
TN_API tn_tensor *tn_from_data(const void *data, tn_dims dims, tn_dtype dtype);
#define TN_FROM(array, dims, dtype) tn__from_array(array, sizeof(array), dims, dtype)
TN_API tn_tensor *tn__from_array(const void *array, size_t bytes, tn_dims dims, tn_dtype dtype);

/* The caller's memory, not copied; `release(data, user)` (may be NULL) is called when the last
 * reference is gone. If the call fails, the memory stays the caller's and release is not called. */
TN_API tn_tensor *tn_from_memory(void *data, tn_dims dims, tn_dtype dtype,
                                 void (*release)(void *data, void *user), void *user);

/* ---- Inspecting ------------------------------------------------------------------------------ */

TN_API bool tn_is_inert(const tn_tensor *t); /* a failed call returned it */
/* None of these waits for a device. */
TN_API int tn_ndim(const tn_tensor *t);
TN_API tn_dims tn_shape(const tn_tensor *t);
TN_API int64_t tn_size(const tn_tensor *t, int dim);   /* dim may be negative: -1 is the last */
TN_API int64_t tn_stride(const tn_tensor *t, int dim); /* in elements */
TN_API int64_t tn_count(const tn_tensor *t);           /* number of elements */
TN_API tn_dtype tn_dtype_of(const tn_tensor *t);
TN_API tn_device tn_device_of(const tn_tensor *t);
TN_API bool tn_is_contiguous(const tn_tensor *t);
TN_API bool tn_shares_storage(const tn_tensor *a, const tn_tensor *b);

/* The address of the first element, on the tensor's device: the host may dereference it only on the
 * CPU (element (i, j) is at data + (i*stride0 + j*stride1) elements). Do not keep it: a storage can
 * move. The version check does not see writes through it. For an inert tensor: a read-only page of
 * zeros, and from tn_data_mut 64 KiB that are never read. */
TN_API const void *tn_data(const tn_tensor *t);
TN_API void *tn_data_mut(tn_tensor *t);

/* The only element, as a double; NaN and TN_ESHAPE unless there is exactly one. */
TN_API double tn_item(const tn_tensor *t);

/* The element at an index, one position for each dimension, as a double: tn_at(t, TN_DIMS(1, 0)).
 * NaN after TN_EINDEX (out of range) or TN_ESHAPE (another number of positions). Slow: for tests
 * and printing. */
TN_API double tn_at(const tn_tensor *t, tn_dims index);

/* All elements in row-major order into out[tn_count(t)]; the dtypes must be the same. */
TN_API tn_status tn_copy_out(const tn_tensor *t, void *out);

/* Prints like NumPy: brackets, columns of one width, "..." in the middle if there are more than
 * 1000 elements. Each is in the fewest digits that read back, at most 8. tn_format writes at most
 * `size` bytes, the 0 included, and returns the whole text's length (like snprintf). */
TN_API void tn_print(const tn_tensor *t);
TN_API void tn_fprint(FILE *file, const tn_tensor *t);
TN_API size_t tn_format(const tn_tensor *t, char *text, size_t size);

/* "[64, 20]", in one of a few static buffers of this thread. */
TN_API const char *tn_shape_text(const tn_tensor *t);

/* ---- Views: no copy, same storage; gradients flow through ------------------------------------ */

/* Same elements, new sizes; one size may be -1. A view if strides allow, else a copy. TN_ESHAPE if
 * the counts differ. */
TN_API tn_tensor *tn_reshape(tn_tensor *t, tn_dims dims);
TN_API tn_tensor *tn_flatten(tn_tensor *t, int first, int last);
/* TN_DIMS(0, 2, 1): dimension i of the result is order[i] of t */
TN_API tn_tensor *tn_permute(tn_tensor *t, tn_dims order);
TN_API tn_tensor *tn_transpose(tn_tensor *t, int a, int b);
TN_API tn_tensor *tn_t(tn_tensor *t); /* swaps the last two dimensions */
TN_API tn_tensor *tn_narrow(tn_tensor *t, int dim, int64_t start, int64_t length);
TN_API tn_tensor *tn_select(tn_tensor *t, int dim, int64_t index); /* removes dim */
/* step > 0; clamped as in Python */
TN_API tn_tensor *tn_slice(tn_tensor *t, int dim, int64_t start, int64_t end, int64_t step);
/* size-1 and new leading dimensions repeat (stride 0) */
TN_API tn_tensor *tn_expand(tn_tensor *t, tn_dims dims);
TN_API tn_tensor *tn_squeeze(tn_tensor *t, int dim); /* no change if that size is not 1 */
TN_API tn_tensor *tn_unsqueeze(tn_tensor *t, int dim);

/* Pieces of at most `size` along `dim`: writes up to `most` views to out and returns
 * how many there are. */
TN_API int tn_split(tn_tensor *t, int64_t size, int dim, tn_tensor **out, int most);

/* ---- Storage: for sharding, and for memory from elsewhere ------------------------------------ */

/* Empties the storage under `t` (its bytes go back to the allocator; sizes and strides stay) and
 * gives it uninitialised bytes again. Tensors and nodes may keep holding it. Neither counts as a
 * change. A kernel that meets an empty storage raises TN_ESTATE. */
TN_API tn_status tn_storage_empty(tn_tensor *t);
TN_API tn_status tn_storage_refill(tn_tensor *t);
TN_API bool tn_storage_is_empty(const tn_tensor *t);

/* Moves the elements to memory that this process shares with its children, for all tensors over
 * this storage. After a later fork, what one process writes all others see, at once and without a
 * lock. Versions, gradients and everything else of a tensor stay each process's own.
 * examples/09_hogwild.c. TN_EDEVICE: t is not in host memory. */
TN_API tn_status tn_storage_share(tn_tensor *t);

/* A view of `t`'s storage at `offset` elements with its own version counter and no history: how
 * several parameters share one flat buffer. */
TN_API tn_tensor *tn_alias(tn_tensor *t, int64_t offset, tn_dims dims);

#ifdef __cplusplus
}
static inline tn_dims tn__dims_cxx(std::initializer_list<int64_t> sizes) {
    return tn_dims_from((int)sizes.size(), sizes.begin());
}
#define TN_DIMS(...) tn__dims_cxx({__VA_ARGS__})
#else
#define TN_DIMS(...)                                                               \
    tn_dims_from((int)(sizeof((int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t)) - 1, \
                 (int64_t[]){0, __VA_ARGS__} + 1)
#endif

#endif
