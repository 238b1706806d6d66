/* Decimal digits by trial: the C library prints x correctly rounded to 1, 2, 3 … digits, and the
 * first text that reads back as x has the fewest. Slower than the published algorithms, and short;
 * printing formats at most a thousand elements. */
#include "tensor/decimal.h"

#include "tensor/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* x to `digits` digits. The decimal point is whatever the locale says; only digits are read. */
static tn__decimal rounded_decimal(double x, int digits, char *text, size_t size) {
    tn__decimal d = {.negative = signbit(x)};
    snprintf(text, size, "%.*e", digits - 1, fabs(x));
    const char *c = text;
    for (; *c && *c != 'e'; c++) {
        if (*c >= '0' && *c <= '9' && d.digits < TN__MOST_DIGITS) { d.digit[d.digits++] = *c; }
    }
    d.exponent = *c ? atoi(c + 1) : 0;
    while (d.digits > 1 && d.digit[d.digits - 1] == '0') {
        d.digits--;
    }
    d.digit[d.digits] = 0;
    return d;
}

/* Whether `text`, read as `dtype`, is |x|. */
static bool reads_back(const char *text, double x, tn_dtype dtype) {
    switch (dtype) {
    case TN_F32:
        return strtof(text, NULL) == (float)fabs(x);
    case TN_BF16:
        return tn__bf16_to_float(tn__bf16_from_float(strtof(text, NULL))) == (float)fabs(x);
    case TN_F16:
        return tn__f16_to_float(tn__f16_from_float(strtof(text, NULL))) == (float)fabs(x);
    default:
        return strtod(text, NULL) == fabs(x);
    }
}

tn__decimal tn__decimal_of(double x, tn_dtype dtype, int fraction, bool scientific) {
    char text[TN__MOST_DIGITS + 16];
    if (x == 0) { return (tn__decimal){.negative = signbit(x), .digits = 1, .digit = "0"}; }
    int exponent = rounded_decimal(x, TN__MOST_DIGITS - 1, text, sizeof(text)).exponent;
    int most = fraction + 1 + (scientific ? 0 : exponent);
    most = most < 1 ? 1 : most > TN__MOST_DIGITS - 1 ? TN__MOST_DIGITS - 1 : most;
    int least = scientific || exponent < 0 ? 1 : exponent + 1;
    for (int digits = least; digits < most; digits++) {
        tn__decimal d = rounded_decimal(x, digits, text, sizeof(text));
        if (reads_back(text, x, dtype)) { return d; }
    }
    return rounded_decimal(x, most, text, sizeof(text));
}

tn__decimal tn__decimal_rounded(double x, int digits) {
    char text[TN__MOST_DIGITS + 16];
    return rounded_decimal(x, digits, text, sizeof(text));
}
