/* `tern tokens` on several ranks: how their bytes travel. */
#ifndef TERN_TOOLS_TOKENS_RANKS_H
#define TERN_TOOLS_TOKENS_RANKS_H

#include "data/corpus/exchange.h"

/* Joins all ranks. */
tn_status tokens_ranks(tn__token_ranks *r);

#endif
