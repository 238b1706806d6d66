/* Attention of few queries over many keys, bound by reading keys and values. */
#ifndef TERN_BACKENDS_CPU_ATTENTION_FEW_H
#define TERN_BACKENDS_CPU_ATTENTION_FEW_H

#include "backends/attention.h"
#include "backends/cpu/cpu.h"

/* Whether attention_few takes these: the queries that share a head of keys are few. */
bool TN_CPU(attention_is_few)(const tn_desc *q, const tn_desc *k);

/* Like attention, with dtypes already checked. An output's bits depend only on its own query, keys,
 * values and mask. */
tn_status TN_CPU(attention_few)(tn_context *ctx, const tn__attention *a);

#endif
