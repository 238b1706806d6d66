/* TN__INLINE: a function in a header that C, C++ and the kernels of a GPU share. */
#ifndef TERN_CORE_INLINE_H
#define TERN_CORE_INLINE_H

#ifdef __CUDACC__
#define TN__INLINE static __host__ __device__ __forceinline__
#else
#define TN__INLINE static inline
#endif

#endif
