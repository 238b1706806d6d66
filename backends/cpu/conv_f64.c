/* Convolutions for f64. */
#define T double
#define PLAIN TN_F64
#define LOAD_T load_f64
#define STORE_T store_f64
#define CONV TN_CPU(conv_f64)
#define CONV_WEIGHT TN_CPU(conv_weight_f64)

#include "backends/cpu/conv_kernel.h"
#include "backends/cpu/conv_weight.h"
