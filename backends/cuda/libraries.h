/* cuDNN and NCCL, loaded at their first use: a machine without them still runs the rest.
 *
 *     const tn__cudnn_table *dnn = tn__cudnn();
 *     if (!dnn) { … tn__cudnn_why() … }
 *     status = dnn->Create(&handle);            the function cudnnCreate
 *
 * A library is looked up by its soname: in the plugin's run path, LD_LIBRARY_PATH and the system's
 * folders. TERN_CUDNN and TERN_NCCL name another file; "off" means none. The emulator
 * has no device for the real libraries: it loads only what these two variables name.
 *
 * The types are those of the libraries' headers. If a header was missing at build time (meson sets
 * TN_HAVE_CUDNN and TN_HAVE_NCCL), so is the library.
 */
#ifndef TERN_BACKENDS_CUDA_LIBRARIES_H
#define TERN_BACKENDS_CUDA_LIBRARIES_H

#if TN_HAVE_CUDNN
#include <cudnn.h>
#endif
#if TN_HAVE_NCCL
/* before 2.24 nccl.h declares bf16 only if this is defined */
#ifndef __CUDA_BF16_TYPES_EXIST__
#define __CUDA_BF16_TYPES_EXIST__ 1
#endif
#include <nccl.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
#define TN__CUDNN_FUNCTIONS(X)                                                                     \
    X(GetVersion) X(GetCudartVersion) X(GetErrorString) X(GetLastErrorString) X(Create) X(Destroy) \
    X(SetStream) X(BackendCreateDescriptor) X(BackendDestroyDescriptor) X(BackendSetAttribute)     \
    X(BackendGetAttribute) X(BackendFinalize) X(BackendExecute)

#define TN__NCCL_FUNCTIONS(X)                                                                  \
    X(GetVersion) X(GetErrorString) X(GetLastError) X(GetUniqueId) X(CommInitRankConfig)       \
    X(CommGetAsyncError) X(CommFinalize) X(CommDestroy) X(CommAbort) X(AllReduce) X(AllGather) \
    X(ReduceScatter) X(Broadcast) X(Reduce) X(Send) X(Recv) X(GroupStart) X(GroupEnd)
/* NULL if the library lacks them: registering buffers, and memory that can be registered (2.19). */
#define TN__NCCL_OPTIONAL(X) X(CommRegister) X(CommDeregister) X(MemAlloc) X(MemFree)
/* clang-format on */

#define TN__FIELD(name) __typeof__(cudnn##name) *name;
typedef struct tn__cudnn_table {
    char version[16]; /* "9.19.0" */
    int number;       /* as cudnnGetVersion: 91900 */
#if TN_HAVE_CUDNN
    TN__CUDNN_FUNCTIONS(TN__FIELD)
#endif
} tn__cudnn_table;
#undef TN__FIELD

#if TN_HAVE_NCCL
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 1) /* the library may be newer than the header */
ncclResult_t ncclMemAlloc(void **memory, size_t bytes);
ncclResult_t ncclMemFree(void *memory);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *data, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
#endif
#endif

#define TN__FIELD(name) __typeof__(nccl##name) *name;
typedef struct tn__nccl_table {
    char version[16]; /* "2.28.9" */
    int number;       /* as ncclGetVersion: 22809 */
#if TN_HAVE_NCCL
    TN__NCCL_FUNCTIONS(TN__FIELD)
    TN__NCCL_OPTIONAL(TN__FIELD)
#endif
} tn__nccl_table;
#undef TN__FIELD

/* The library, or NULL: then `why` has the reason. Any thread; loaded once. */
const tn__cudnn_table *tn__cudnn(void);
const char *tn__cudnn_why(void);
const tn__nccl_table *tn__nccl(void);
const char *tn__nccl_why(void);

#ifdef __cplusplus
}
#endif
#endif
