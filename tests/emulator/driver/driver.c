/* libcuda.so.1 for a machine without a driver: as much of it as cuDNN needs to build a plan for a
 * device that is only described. Modules load and kernels are found; nothing can run.
 *
 * Types are reduced to their layout in memory: the driver's header is not needed to build this.
 */
#include <stddef.h>

enum { SUCCESS = 0, STUB = 34 }; /* CUDA_ERROR_STUB_LIBRARY */

#define EXPORT __attribute__((visibility("default")))

static char library, kernel, function; /* their addresses are the handles */

#define FAILS(name)         \
    EXPORT int name(void);  \
    EXPORT int name(void) { \
        return STUB;        \
    }
FAILS(cuInit)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuDriverGetVersion)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuStreamGetCtx)
FAILS(cuLinkCreate)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkDestroy)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLibraryLoadFromFile)
FAILS(cuKernelGetAttribute)
FAILS(cuOccupancyMaxPotentialClusterSize)

#define SUCCEEDS(name, ...)        \
    EXPORT int name(__VA_ARGS__);  \
    EXPORT int name(__VA_ARGS__) { \
        return SUCCESS;            \
    }
SUCCEEDS(cuLibraryUnload, void)
SUCCEEDS(cuFuncSetAttribute, void)
SUCCEEDS(cuKernelSetAttribute, void)

EXPORT int cuLibraryLoadData(void **result);
EXPORT int cuLibraryLoadData(void **result) {
    *result = &library;
    return SUCCESS;
}

EXPORT int cuLibraryGetKernel(void **result);
EXPORT int cuLibraryGetKernel(void **result) {
    *result = &kernel;
    return SUCCESS;
}

EXPORT int cuKernelGetFunction(void **result);
EXPORT int cuKernelGetFunction(void **result) {
    *result = &function;
    return SUCCESS;
}
