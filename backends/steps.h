/* The formulas of tn_step_rule, one line each, that ref, cpu and cuda instantiate, as those of
 * formulas.h are.
 *
 * X(RULE, name, states, formula…) is expanded for each line. In a formula x is the parameter, which
 * it changes; g the gradient; a, b and c the first, second and third state, of which the rule has
 * `states` (the others are 0, and so is what a span lacks); k a tn__step_factors_T. M selects the
 * mathematics library. What is the same for all comes before: g = g scale + add x, then x *=
 * shrink.
 */
#ifndef TERN_BACKENDS_STEPS_H
#define TERN_BACKENDS_STEPS_H

#include "core/inline.h"

#include <tern/sys/steps.h>

/* The factors of a step, each rounded once. */
#define TN__STEP_FACTORS(T)                                                            \
    typedef struct tn__step_factors_##T {                                              \
        T lr, beta1, beta2, rest1, rest2, eps, extra, add, shrink;                     \
    } tn__step_factors_##T;                                                            \
    TN__INLINE tn__step_factors_##T tn__step_factors_of_##T(const tn_step *s) {        \
        tn__step_factors_##T k = {(T)s->lr,          (T)s->beta1,       (T)s->beta2,   \
                                  (T)(1 - s->beta1), (T)(1 - s->beta2), (T)s->eps,     \
                                  (T)s->extra,       (T)s->add,         (T)s->shrink}; \
        return k;                                                                      \
    }
TN__STEP_FACTORS(float)
TN__STEP_FACTORS(double)

/* clang-format off */
#define TN__MEAN(m) (k.beta1 * (m) + k.rest1 * g)
#define TN__SQUARE(v, g) (k.beta2 * (v) + k.rest2 * ((g) * (g)))
#define TN_STEP_FORMULAS(X, M)                                                                     \
    X(TN_STEP_SGD, sgd, 0, x -= k.lr * g)                                                          \
    X(TN_STEP_MOMENTUM, momentum, 1,                                                               \
      a = k.beta1 * a + k.rest2 * g, x -= k.lr * (k.extra > 0 ? g + k.extra * a : a))              \
    X(TN_STEP_ADAM, adam, 2,                                                                       \
      a = TN__MEAN(a), b = TN__SQUARE(b, g), x -= k.lr * a / (M(sqrt)(b) * k.extra + k.eps))       \
    X(TN_STEP_AMSGRAD, amsgrad, 3,                                                                 \
      a = TN__MEAN(a), b = TN__SQUARE(b, g), c = c > b ? c : b,                                    \
      x -= k.lr * a / (M(sqrt)(c) * k.extra + k.eps))                                              \
    X(TN_STEP_RMSPROP, rmsprop, 3,                                                                 \
      a = TN__SQUARE(a, g), c = TN__MEAN(c),                                                       \
      b = k.extra * b + g / (M(sqrt)(a - c * c) + k.eps), x -= k.lr * b)                           \
    X(TN_STEP_ADAGRAD, adagrad, 1,                                                                 \
      a = a + g * g + k.extra, x -= k.lr * g / (M(sqrt)(a) + k.eps))                               \
    X(TN_STEP_ADADELTA, adadelta, 2,                                                               \
      a = TN__SQUARE(a, g), g *= M(sqrt)(b + k.eps) / M(sqrt)(a + k.eps),                          \
      b = TN__SQUARE(b, g), x -= k.lr * g)                                                         \
    X(TN_STEP_ADAMAX, adamax, 2,                                                                   \
      a = TN__MEAN(a), b *= k.beta2, g = (g < 0 ? -g : g) + k.eps, b = b > g ? b : g,              \
      x -= k.lr * a / b)                                                                           \
    X(TN_STEP_RADAM, radam, 2,                                                                     \
      a = TN__MEAN(a), b = TN__SQUARE(b, g),                                                       \
      x -= k.lr * (k.extra > 0 ? k.extra * a / (M(sqrt)(b) + k.eps) : a))                          \
    X(TN_STEP_LION, lion, 1,                                                                       \
      x -= k.lr * (float)((TN__MEAN(a) > 0) - (TN__MEAN(a) < 0)), a = k.beta2 * a + k.rest2 * g)
/* clang-format on */

#endif
