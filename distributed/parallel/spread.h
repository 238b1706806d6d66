/* A model on a mesh: what spread.c and spread_step.c share. The public side is tern/split.h. */
#ifndef TERN_DISTRIBUTED_PARALLEL_SPREAD_H
#define TERN_DISTRIBUTED_PARALLEL_SPREAD_H

#include "core/alive.h"
#include "distributed/parallel/base.h"
#include "tern/split.h"

struct tn_spread {
    tn__alive alive;
    tn_spread_options options; /* sizes are known */
    tn_module *module;
    tn_group *world;
    tn_mesh *mesh;
    tn_pipeline *pipeline; /* NULL: every rank has all layers */
};

#endif
