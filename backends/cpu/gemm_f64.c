/* The matrix product for f64. */
#define T double
#define PLAIN TN_F64
#define GEMM TN_CPU(gemm_f64)
#define CONVERT_PANEL

#include "backends/cpu/gemm_kernel.h"
