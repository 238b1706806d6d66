/* What a kernel table (tern/sys/backend.h) consists of: its entries, listed here, and the kernels
 * of operations, listed in ops/list.h. The tables, the declarations of their kernels and the tests'
 * loops over them are generated from these two lists.
 *
 * X(entry, cpu). Every table has a kernel for each entry. cpu: whether the CPU has its OWN or uses
 * REF's.
 */
#ifndef TERN_BACKENDS_ENTRIES_H
#define TERN_BACKENDS_ENTRIES_H

#include "tern/sys/backend.h"

/* clang-format off */
#define TN_ENTRIES(X) \
    X(fill,                 OWN) \
    X(arange,               REF) \
    X(copy,                 OWN) \
    X(unary,                OWN) \
    X(binary,               OWN) \
    X(compare,              OWN) \
    X(where,                OWN) \
    X(reduce,               OWN) \
    X(argmax,               OWN) \
    X(matmul,               OWN) \
    X(gather_rows,          OWN) \
    X(scatter_add_rows,     OWN) \
    X(gather,               REF) \
    X(scatter_add,          REF) \
    X(random,               OWN) \
    X(dropout,              OWN) \
    X(step,                 OWN) \
    X(sum_squares,          OWN) \
    X(clip,                 REF) \
    X(conv,                 OWN) \
    X(conv_backward_input,  OWN) \
    X(conv_backward_weight, OWN) \
    X(linear,               OWN) \
    X(recurrent,            OWN) \
    X(recurrent_backward,   OWN)
/* clang-format on */

/* The type of the functions of an entry. */
#define TN_ENTRY_TYPE(entry) __typeof__(*((tn_backend *)0)->entry)

/* An operation's index in tables of kernels: tn_op.kernel. */
#define TN_FUSED(name) TN__FUSED_##name
enum {
    TN__FUSED_NONE,
#define TN_OP(folder, ...) TN__FUSED_ROW(__VA_ARGS__, )
#define TN__FUSED_ROW(name, ...) TN_FUSED(name),
#include "ops/list.h"
#undef TN_OP
#undef TN__FUSED_ROW
    TN_FUSED_COUNT
};

/* In a file that includes ops/list.h with TN_OP(folder, ...) as TN__DEVICES(__VA_ARGS__, , , ):
 * each row becomes TN__ON_CPU(name) and TN__ON_CUDA(name), for the devices that it names, and
 * TN__ON_(name), which expands to nothing. */
#define TN__DEVICES(name, first, second, ...) TN__ON_##first(name) TN__ON_##second(name)
#define TN__ON_(name)

#endif
