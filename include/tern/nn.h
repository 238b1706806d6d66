/* Neural nets: all the headers below. */
#ifndef TERN_NN_H
#define TERN_NN_H

#include "module.h"
#include "init.h"
#include "layers.h"
#include "transformer.h"

#endif
