/* Tern: deep learning in C. This header includes everything; each part can also be included
 * alone. */
#ifndef TERN_H
#define TERN_H

#include "core.h"
#include "tensor.h"
#include "field.h"
#include "autograd.h"
#include "profiler.h"
#include "ops.h"
#include "nn.h"
#include "optim.h"
#include "data.h"
#include "transforms.h"
#include "tokenizer.h"
#include "io.h"
#include "tensorboard.h"
#include "npy.h"
#include "onnx.h"
#include "models.h"
#include "store.h"
#include "distributed.h"
#include "parallel.h"
#include "pipeline.h"
#include "split.h"
#include "rpc.h"
#include "train.h"
#include "deepspeed.h"
#include "evaluate.h"

#endif
