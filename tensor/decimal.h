/* Floating-point numbers as decimal digits, for printing. */
#ifndef TERN_TENSOR_DECIMAL_H
#define TERN_TENSOR_DECIMAL_H

#include "tern/tensor.h"

enum { TN__MOST_DIGITS = 18 };

/* ±d.ddd × 10^exponent, without trailing zeros; zero is the digit 0 with exponent 0. */
typedef struct tn__decimal {
    bool negative;
    int digits;
    int exponent;
    char digit[TN__MOST_DIGITS + 1];
} tn__decimal;

/* The fewest digits that read back as x in `dtype`, but no more than `fraction` after the point (of
 * d.ddd with `scientific`, of the number itself otherwise), where it is rounded. Without
 * `scientific` all digits before the point are exact. x is finite. */
tn__decimal tn__decimal_of(double x, tn_dtype dtype, int fraction, bool scientific);

/* x rounded to `digits` digits, 1 … TN__MOST_DIGITS. */
tn__decimal tn__decimal_rounded(double x, int digits);

#endif
