/* For the code of modules: how their inits begin, refuse and end, and what their forwards share. */
#ifndef TERN_NN_LAYER_H
#define TERN_NN_LAYER_H

#include "nn/module.h"

/* Begins the init of a layer: `bytes` zeros, then tn_module_init or tn_module_init_values. False
 * after raising (m is NULL). */
bool tn__layer_begin(void *m, size_t bytes, const char *kind, tn_module_forward forward,
                     tn_module_forward_values forward_values);

/* For a layer's tn_…_new, around its init: zeros on the heap, NULL after TN_ENOMEM; and from then
 * on their owner frees them (NULL stays NULL). */
void *tn__layer_alloc(size_t bytes);
/* Whether it made this memory, which was not freed; and frees it. m may be any address. */
bool tn__layer_here(const void *m);
void tn__layer_free(void *m);
void *tn__layer_on_heap(void *m);

/* Defines a function that makes a layer on the heap: `function` is its head, and `init` fills m.
 *
 *     TN__LAYER_HEAP(tn_dropout, tn_dropout_new(double p), tn_dropout_init(m, p))
 */
#define TN__LAYER_HEAP(type, function, init)   \
    type *function {                           \
        type *m = tn__layer_alloc(sizeof(*m)); \
        init;                                  \
        return tn__layer_on_heap(m);           \
    }

/* Defines tn_LAYER_new_with and tn_LAYER_new from tn_LAYER_init, whose last parameter is
 * KIND_options; KIND_defaults are those of tn_LAYER_new. "with" is: with options.
 *
 *     TN__LAYER_NEW(linear, tn_linear, (int64_t in, int64_t out), (in, out))
 */
#define TN__LAYER_NEW(layer, kind, parameters, arguments)                                          \
    TN__LAYER_HEAP(tn_##layer, tn_##layer##_new_with(TN__LIST parameters, kind##_options options), \
                   tn_##layer##_init(m, TN__LIST arguments, options))                              \
    tn_##layer *tn_##layer##_new parameters {                                                      \
        return tn_##layer##_new_with(TN__LIST arguments, kind##_defaults());                       \
    }
#define TN__LIST(...) __VA_ARGS__

/* A linear without a bias whose weight is this tensor, another module's: for a head that is tied to
 * an embedding (tn_module_tie, once both are in one tree). */
void tn__linear_share(tn_linear *m, tn_tensor *weight);

/* Raises "kind: text" about a layer's options, marks it broken (calling it is an error), and
 * returns false. */
bool tn__layer_refuse(void *m, tn_status status, const char *format, ...) TN_PRINTF(3, 4);

/* tn__options_made for a layer, and TN__BEYOND: false after raising, with m broken. */
bool tn__layer_options(void *m, bool made, const char *what);
#define TN__LAYER_FITS(m, ...) tn__layer_fits(m, TN__BEYOND(__VA_ARGS__))
bool tn__layer_fits(void *m, const char *wrong);
bool tn__layer_eps(void *m, double eps); /* of a norm: at least 0 */
bool tn__layer_probability(void *m, const char *what, double p);
/* Whether `size`, an option of this name, is a multiple of another. */
bool tn__layer_multiple(void *m, const char *what, int64_t size, const char *of, int64_t divisor);

/* The layers of a model at most: more are a mistake, found before memory is taken for them. */
enum { TN__MOST_LAYERS = 10000 };

/* The forward of what is a module for its tensors alone: it has none. */
TN_API tn_tensor *tn__no_forward(tn_module *self, tn_tensor *x);
/* That of a list of modules. */
tn_values tn__list_forward(tn_module *self, tn_values in, void *context);

/* Which parts of a model of parts a call runs: [first, end); end 0: all. A context of
 * tn_call_values begins with it where the module is a tn_sequential or a language model. Its input
 * is then the output of the part before `first`. */
typedef struct tn__range {
    int first, end;
} tn__range;

/* The range for a call of m, which has `parts` parts, from its context (NULL: all). Empty after
 * raising if it is out of range. */
tn__range tn__range_of(const tn_module *m, const void *context, int parts);

#endif
