/* Convolutions for f32, and for bf16 and f16 operands that become f32 as they are copied. */
#define T float
#define PLAIN TN_F32
#define LOAD_T load_f32
#define STORE_T store_f32
#define CONV TN_CPU(conv_f32)
#define CONV_WEIGHT TN_CPU(conv_weight_f32)
#define WINOGRAD TN_CPU(conv_winograd)
#define WINOGRAD_WEIGHT TN_CPU(conv_winograd_weight)
#define WINOGRAD_FITS TN_CPU(conv_winograd_fits)

#include "backends/cpu/conv_kernel.h"
#include "backends/cpu/conv_weight.h"
#include "backends/cpu/conv_winograd.h"
#include "backends/cpu/conv_winograd_weight.h"
