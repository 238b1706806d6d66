#!/usr/bin/env python3
"""Breaks rules one at a time and checks whether the tests notice.

Each mutation below flips a sign, drops a term or skips a check in one file of a copy of the tree (build/mutate/tree). The copy is
built again and the tests run until the first failure. A mutation that no test notices survived: something is not tested. Exit
status 1 when more than one survives.

mutate.py [--list] [--from N] [PATTERN...]     all mutations, or those from the Nth on, or whose file or description contains a
                                               PATTERN

If the source has changed (the old text is no longer there exactly once) or a mutation does not compile, that is an error in this
list and not a catch: exit status 2.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "build", "mutate")
TREE = os.path.join(WORK, "tree")
BUILD = os.path.join(WORK, "build")
LEAVES_OUT = {"build", ".git", "__pycache__"}
MAY_SURVIVE = 1
LIMIT = 300  # seconds for one test; one that hangs has noticed

# (file, old text, new text, what it breaks). If a line is dropped, what it used is kept in a (void).
MUTATIONS = [
    # ---- ops: backward rules ----------------------------------------------------------------------------------------
    ("ops/elementwise/div.c", "tn_neg(tn_mul(dy, tn_div(tn_div(a, b), b)))", "tn_mul(dy, tn_div(tn_div(a, b), b))",
     "the sign of b's gradient"),
    ("ops/elementwise/rsqrt.c", "tn_mul(y, tn_square(y)), -0.5)", "tn_square(y), -0.5)", "one factor y of the gradient"),
    ("ops/elementwise/gelu_tanh.c", "tn_add(tn_where(positive, rest, e), bend)", "tn_where(positive, rest, e)",
     "a term of the gradient that is differentiated again"),
    ("ops/elementwise/gelu_tanh.c", "tn_where(positive, tn_neg(u), u)), *rest", "tn_neg(u)), *rest",
     "which of s and 1 - s is the smaller, for negative x"),
    ("ops/elementwise/div.c", ".flags = TN_OP_WIDE", ".flags = 0", "a / b / b overflows f16 on the way to a gradient that does not"),
    ("ops/elementwise/hardsigmoid.c", ".flags = TN_OP_WIDE", ".flags = 0", "x + 3 is rounded to bf16"),
    ("ops/conv/conv.c", ".saves_for = {TN_SAVES_INPUT(W), TN_SAVES_INPUT(X)}", ".saves_for = {TN_SAVES_INPUT(X), TN_SAVES_INPUT(W)}",
     "what the gradient of one input alone reads is not kept"),
    ("ops/elementwise/maximum.c", "tn_mul_scalar(dy, 0.5)", "dy", "the halves at equal values"),
    ("ops/elementwise/pow.c", "tn_log(tn_where(flat, one, a))", "tn_log(a)", "b's gradient where a is 0"),
    ("ops/elementwise/clamp.c", "tn_where(tn_eq(x, tn_clamp(", "tn_where(tn_ge(x, tn_clamp(", "the gradient above the upper bound"),
    ("ops/reduce/var.c", "double k = n ? 2.0 /", "double k = n ? 1.0 /", "the factor 2 of the gradient"),
    ("ops/reduce/logsumexp.c", "tn_exp(tn_sub(x, tn__spread(g, m)))", "tn_exp(tn_sub(tn__spread(g, m), x))", "the sign in the exponent"),
    ("ops/reduce/max.c", "tn__spread(g, tn_div(g->dout[0], n))", "tn__spread(g, g->dout[0])", "equal largest elements share no more"),
    ("ops/shape/permute.c", "tn_permute(g->dout[0], back)", "tn_permute(g->dout[0], order)", "the inverse of the order"),
    ("ops/shape/slice.c", "tn_add_(tn_apply1(&tn__op_slice, &part, sum), dy)", "tn_copy_(tn_apply1(&tn__op_slice, &part, sum), dy)",
     "slices that share a gradient overwrite each other"),
    ("ops/shape/cat.c", "        start += length;\n", "", "each input gets the first one's gradient"),
    ("ops/linalg/matmul.c", "tn_matmul(dy, tn_t(column ? tn_unsqueeze(b, 1) : b))", "tn_neg(tn_matmul(dy, tn_t(column ? tn_unsqueeze(b, 1) : b)))",
     "the sign of a's gradient"),
    ("ops/linalg/linear.c", "tn_op_give(g, 2, tn_sum(rows, TN_DIMS(0), false));", "(void)rows;", "the bias has no gradient"),
    ("ops/index/scatter_rows.c", "c->kernels->fill(c->ctx, c->y[0], 0.0)", "c->kernels->fill(c->ctx, &c->y[0], 1.0)",
     "gradients of rows start at 1"),
    ("ops/nn/embedding.c", "b->adds ? TN_OK : b->kernels->fill(b->ctx, b->dx[0], 0.0)", "b->kernels->fill(b->ctx, b->dx[0], 0.0)",
     "a tied weight loses the classifier's part"),
    ("ops/nn/softmax.c", "tn_mul(y, tn_sub(dy, inner))", "tn_mul(y, dy)", "the sum in the gradient that is differentiated again"),
    ("ops/nn/log_softmax.c", "tn_sub(dy, tn_mul(tn_exp(y), total))", "tn_add(dy, tn_mul(tn_exp(y), total))",
     "a sign in the gradient that is differentiated again"),
    ("ops/nn/layer_norm.c", "tn_rsqrt(tn_add_scalar(var, args->eps))", "tn_rsqrt(var)", "eps in the composition"),
    ("ops/nn/attention.c", "q = tn_mul_scalar(q, scale);", "(void)scale;", "the scale in the composition"),
    ("ops/loss/ctc.c", " && state_class(q, s) != state_class(q, s - 2)", "", "equal labels need no blank between them"),
    ("ops/loss/ctc.c", "-share * dloss, true", "share * dloss, true", "a sign in the gradient"),
    ("ops/rnn/lstm.c", "tn_add(tn_mul(f, before.c), tn_mul(i, g))", "tn_mul(i, g)", "the cell forgets all, made of operations"),
    ("ops/rnn/recurrent.c", "first_columns(two ? &da : &dp", "first_columns(&dp", "the reset gate in the gradient of GRU's weights"),
    ("ops/rnn/recurrent.c", "next.h = tn_where(lives, next.h, s.h);", "", "a state continues past its row's length, made of operations"),
    ("ops/loss/mse.c", "tn_op_give(g, 1, tn_neg(dx));", "tn_op_give(g, 1, dx);", "the sign of the target's gradient"),
    ("ops/loss/cross_entropy.c", "b->kernels->binary(b->ctx, TN_DIV, &share, b->dy[0], b->y[3])",
     "b->kernels->copy(b->ctx, &share, b->dy[0])", "the mean's gradient is the sum's"),
    ("ops/linalg/linear.c", "b->kernels->reduce(b->ctx, TN_SUM, &row, dy)", "b->kernels->fill(b->ctx, &row, 0.0)",
     "the bias's gradient by kernels"),
    ("ops/elementwise/gelu.c", "tn_exp(tn_mul_scalar(tn_square(x), -0.5))", "tn_exp(tn_mul_scalar(tn_square(x), 0.5))",
     "a sign in the rule of gelu's kernel"),
    ("ops/elementwise/silu.c", "b->x[0]", "b->dy[0]", "what silu's kernel of backward reads"),
    ("ops/elementwise/fmod.c", "tn_round(tn_div(tn_sub(a, tn_fmod(a, b)), b))", "tn_round(tn_div(a, b))", "a rounded quotient"),
    ("ops/elementwise/remainder.c", "tn_where(more, tn_add_scalar(times, -1.0), times)", "times", "the remainder's slope is fmod's"),
    # ---- ops: shape rules -------------------------------------------------------------------------------------------
    ("ops/elementwise/where.c", "!tn_dims_broadcast(dims, condition->dims, &dims)", "false", "the condition's shape is unchecked"),
    ("ops/reduce/reduce.c", "if (seen & 1u << dim) {", "if (0) {", "a dimension may be named twice"),
    ("ops/reduce/sum_to.c", "!tn_dims_equal(all, x->dims)", "false", "a sum larger than its input"),
    ("ops/shape/select.c", "index < 0 || index >= size", "index < 0 || index > size", "one position too many"),
    ("ops/shape/reshape.c", "if (left % dims.size[i] != 0) {", "if (0) {", "views that strides do not allow"),
    ("ops/linalg/linear.c", "b->dims.ndim != 1 || b->dims.size[0] != w.size[0]", "b->dims.ndim != 1", "a bias of the wrong length"),
    ("ops/index/gather.c", "i != dim && index.size[i] > x.size[i]", "0", "an index that is larger than x"),
    ("ops/nn/attention.c", "if (q.size[0] != k.size[0] || q.size[3] != k.size[3]) {", "if (q.size[3] != k.size[3]) {",
     "queries and keys of different batches"),
    ("ops/common.c", "return tn_op_same_dtype(c) && is_number(c)", "return is_number(c)", "mixed dtypes"),
    # ---- backends ---------------------------------------------------------------------------------------------------
    ("backends/formulas.h", "(T)0.134145 * z * z", "(T)0.044715 * z * z", "gelu's slope"),
    ("backends/formulas.h", "a >= 3 ? b : (a <= -3 ? 0", "a > 3 ? b : (a < -3 ? 0", "hardswish's slope at its bounds"),
    ("backends/formulas.h", "s * (1 + x * (1 - s))", "s * (1 - x * (1 - s))", "silu's slope"),
    ("backends/formulas.h", "X(TN_MAXIMUM, maximum, ((a > b) | (a != a)) ? a : b)", "X(TN_MAXIMUM, maximum, (a > b) ? a : b)",
     "maximum of a NaN and a number"),
    ("ops/nn/layer_norm.c", "r * (g - mean_g - h * mean_gh)", "r * (g - h * mean_gh)", "a term of layer norm's gradient"),
    ("ops/nn/attention.c", "j > i + p->k->size[2] - p->q->size[2]", "j > i", "causal with more keys than queries"),
    ("ops/loss/cross_entropy.c", "(j == target ? 1 - s : 0) + s / (double)c", "(j == target ? 1 - s : 0)", "label smoothing's gradient"),
    ("backends/ref/reduce.c", "return isnan(a) || (smallest", "return (smallest", "the largest of numbers and NaN"),
    ("backends/ref/optim.c", "(1 - step->beta2) * g * g", "(1 - step->beta2) * g", "Adam's second moment"),
    ("backends/cpu/conv_kernel.h", "tap[t] == tap[0] + t", "tap[taps - 1] == tap[0] + taps - 1", "rows and columns of a kernel exchanged"),
    ("backends/cpu/conv.c", "(dw && x->dtype != dy->dtype)", "x->dtype != dy->dtype", "the bias's gradient alone reads x"),
    ("backends/cpu/norm.c", "r * (dy[i] * w[i] - mean_g - (x[i] - m) * r * mean_gh)", "r * (dy[i] * w[i] - mean_g + (x[i] - m) * r * mean_gh)",
     "a sign of layer norm's gradient"),
    ("backends/cpu/attention_backward.c", "ds[j] = e * (ds[j] - delta);", "ds[j] = e * ds[j];", "delta in attention's gradient"),
    ("backends/cpu/recurrent_backward.c", "straight[j] = dh[j] * z;", "straight[j] = 0;", "what GRU passes on past its gates"),
    ("backends/cpu/recurrent.c", "h_to[i] = h[i];", "h_to[i] = 0;", "a state continues past its row's length"),
    ("backends/cpu/softmax.c", "dx[i] = y[i] * (dy[i] - sum);", "dx[i] = y[i] * dy[i];", "the sum in softmax's gradient"),
    ("backends/cpu/index.c", "sum[j] += add[j];", "sum[j] = add[j];", "equal indices do not add up"),
    ("backends/cpu/reduce.c", "return (better || b != b) ? b : a;", "return better ? b : a;", "the largest of partial results and NaN"),
    ("backends/cpu/optim.c", ".add = s->decoupled ? 0 : (float)s->weight_decay,", ".add = 0,", "Adam's weight decay"),
    ("backends/cpu/optim.c", "now * g + ahead * m1", "ahead * m1", "Nesterov's term"),
    # ---- autograd, optim --------------------------------------------------------------------------------------------
    ("autograd/engine.c", "if (--slot->waiting > 0) {", "if (--slot->waiting > 1) {", "a node runs before its last gradient is in"),
    ("autograd/engine.c", "    tn_status status =\n        slot->continued ?",
     "    tn__leaf_accumulate(leaf, &slot->grad[0]);\n    tn_status status =\n        slot->continued ?", "leaves accumulate twice"),
    ("autograd/continue.c", "leaf && leaf->waiting == 1 && !leaf->grad[0] ?", "leaf ?", "a gradient goes on in place beside other parts of the run's"),
    ("autograd/continue.c", "!is_watched(t->leaf) &&", "", "a hook sees the sum of all micro-batches"),
    ("autograd/engine.c", "if (!grad && !allow_unused) {", "if (0) {", "an input that no root depends on is taken"),
    ("autograd/rule.c", "gradient = tn__ops.sum_to(gradient, edge->dims);", "(void)edge;", "broadcasts are not undone"),
    ("autograd/rule.c", "g->widened = op->flags & TN_OP_WIDE;", "g->widened = false;", "rules for bf16 round at every step"),
    ("autograd/run.c", "slot && slot->wanted && slot->early != run->second;", "slot && slot->wanted;",
     "both halves of a backward compute everything"),
    ("autograd/engine.c", "(again || run_hooks(node, slot))", "run_hooks(node, slot)", "hooks see a gradient in both halves"),
    ("autograd/rule.c", "if (!run->retain_graph && !tn__leaves_some(run, slot)) {", "if (!run->retain_graph) {",
     "what the second half reads is freed in the first"),
    ("autograd/engine.c", "            slot->early |= far && far->early;\n", "", "the first half does not find its way to the input"),
    ("autograd/engine.c", "return run->second && slot->early ? tn__any_edge(run, slot, tn__slot_due)", "return false ? false",
     "nodes of the first half have nothing left to do"),
    ("autograd/recompute.c", "if (rest && *rest) {", "if (false) {", "what is recomputed is repeated in both halves"),
    ("autograd/recompute.c", "!g->wants[i] && !(rest && tn__rule_later(g, i))", "!g->wants[i]",
     "inputs that are needed in the second half are detached"),
    ("autograd/run.c", "        tn__rest_free(run->slots[i].rest);\n", "", "graphs that a half has left undone are never freed"),
    ("autograd/kernel.c", "return is_narrow(own) && wider ? TN_F32 : own;", "(void)wider;\n    return own;",
     "gradients of lent copies are rounded to the copy's dtype"),
    ("autograd/kernel.c", "            tn__ops.copy_(c->out[i], h.out[i]);\n", "", "what an operation's own loops write for bf16 is lost"),
    ("autograd/node.c", "if (now != saved->version) {", "if (now + 1 < saved->version) {", "changes in place are not noticed"),
    ("autograd/run.c", "if (!run->create_graph && (tn__exclusive(sum) || tn__leaf_lent(slot->leaf, sum))) {", "if (!run->create_graph) {", "sums are made in tensors that others see"),
    ("autograd/run.c", "age_at(run, at) > age_at(run, (at - 1) / 2)", "age_at(run, at) < age_at(run, (at - 1) / 2)", "the oldest node runs first"),
    ("autograd/again.h", "    *tn_default_generator() = m->generator;\n", "", "a recompute draws other random numbers"),
    ("autograd/leaf.c", "        if (leaf->stale) {\n            tn__ops.copy_(leaf->grad, grad);", "        if (0) {\n            tn__ops.copy_(leaf->grad, grad);",
     "a given buffer is added to after zero_grad"),
    ("autograd/leaf.c", "        if (grad != leaf->lent) {\n            end_loan(leaf);\n        }\n", "", "a sum in the leaf's place is overwritten"),
    ("autograd/leaf.c", "all = all && (!h->before || h->observes);", "all = true || h;", "a hook keeps a gradient that the next backward overwrites"),
    ("optim/sgd.c", ".first = c->step == 1,", ".first = false,", "SGD's first step reads an empty buffer"),
    ("optim/step.c", "    tn__optim_scale(opt, 1.0);\n    opt->steps++;", "    opt->steps++;", "a clip lasts for the next step as well"),
    ("optim/clip.c", "return done ? sqrt(total) : NAN;", "return done ? total : NAN;", "the norm is not a norm"),
    ("optim/clip.c", "!p->counts && i < n", "false && i < n", "what several ranks have is counted on each"),
    ("optim/clip.c", "return !p->sum || p->sum(p, values, n) == TN_OK;", "return true;", "a norm of only the local part"),
    ("optim/clip.c", "if (at->depth == depth) {", "if (at->depth == l.deepest - 1 - depth) {", "groups sum before all that leads to them has"),
    ("optim/optim.h", "return p && !p->others ? p : NULL;", "return p;", "what concerns one parameter is summed over stages that lack it"),
    ("optim/optim.h", "tn_dims_count(whole) == tn_dims_count(stored) ? whole : stored", "tn_dims_count(whole) == tn_dims_count(stored) ? whole : TN_DIMS(tn_dims_count(stored))",
     "a reference step sees a block as a row"),
    ("optim/optim.c", "tn_module_each(m, (tn_walk){.absent = true}, item_add, opt);", "tn_module_each(m, (tn_walk){0}, item_add, opt);",
     "groups have other members on stages"),
    ("models/weights/hf_load.c", "(tn__state_has(&p->state, path) || is_absent(p, path))", "tn__state_has(&p->state, path)",
     "what other stages have is surplus in a folder"),
    ("nn/walk.c", "tn_module_each(m, (tn_walk){.absent = true}, count_entry, &count);", "tn_module_each(m, (tn_walk){0}, count_entry, &count);",
     "absent parameters are not counted"),
    ("nn/precision.c", "record->lent || record->absent || ", "record->lent || ", "what has no elements is lent"),
    ("models/gpt.c", "    m->lm_head.base.fields = tn__no_fields; /* older files do not have it as a module */\n", "",
     "checkpoints from before are of another model"),
    ("nn/self_attention.c", "(int)(m->heads * tn_size(qkv, 2) / (3 * width))", "m->heads", "all heads are taken to be here"),
    ("nn/self_attention.c", " || self->lists->attend.f;", ";", "nothing attends in a fused attention's place"),
    ("nn/walk.c", "!tn_is_inert(tn_set_requires_grad(entry->stored, on))", "true", "freezing does not reach a part"),
    ("nn/freeze.c", "if (*path == 0 || *path == '.') {", "if (*path == 0) {", "* passes dots"),
    ("nn/freeze.c", "        tn_zero_grad(*entry->field);\n        tn_zero_grad(entry->stored);\n", "", "what is frozen is stepped once more"),
    ("nn/precision.c", "(!lists->children[i]->unit && !cast_below(region, child, policy))", "!cast_below(region, child, policy)",
     "a call lends for units that have not gathered"),
    ("nn/precision.c", "record->tied ? copy_lent(region, *record->field, dtype) : NULL", "NULL",
     "each name of a tied parameter gets a copy of its own"),
    ("ops/nn/rotary.c", "args.inverse = !args.inverse;", "", "the gradient of rotary turns the same way"),
    ("ops/nn/rotary.c", "(args->inverse ? -1.0 : 1.0)", "1.0", "the composition of rotary never turns back"),
    ("backends/rotary.h", "(1.0 - fast) / ", "(1.0 - fast) * ", "slow pairs turn faster"),
    ("backends/cpu/rotary.c", "position != position_of(positions, b - 1, t)", "position < 0",
     "all sequences get the first one's positions"),
    ("nn/cache.c", "cache->filled += T;", "cache->filled += 1;", "a cache counts one position per call"),
    ("nn/grouped_attention.c", "start = tn__cache_start(&m->cache);", "start = 0;", "positions start again after a cache"),
    ("models/language.c", "tn__cache_restore(m, start);", "(void)start;", "caches stay uneven after a failure between layers"),
    ("models/language.c", "family->turns ? 3 :", "", "positions never reach the blocks"),
    ("nn/register.c", "return !clash || raise_taken(space, clash, \"module_add\");", "return true;",
     "a transparent child brings names that are taken"),
    ("nn/describe.c", "if ((m->parent && !m->name[0]) ||", "if (false ||", "transparent modules are described"),
    ("distributed/parallel/fsdp/attach.c", "*path && m->name[0] &&", "*path &&", "a transparent module is a unit"),
    ("distributed/parallel/fsdp/attach.c", " || tn__ends_with(m->kind, \"_block\")", "", "a llama_block is not a unit"),
    ("autograd/low_precision.c", "if (leaf->copy_given && ", "if (false && ", "a copy that others fill is not lent"),
    ("ops/deferred.c", "tn_narrow(aside, 0, before, head)", "tn_narrow(aside, 0, 0, head)", "the first elements of a part of a draw"),
    ("ops/deferred.c", "        recipe->dtype = x->dtype;\n", "", "what is drawn again is drawn in the old dtype"),
    ("nn/defer.c", "entry->stored != t || ", "", "a sharded parameter is made whole"),
    ("optim/across.c", "run.whole * size", "run.here * size", "a part's elements lie elsewhere in the whole"),
    ("optim/optim.c", "item->whole_state[i] ? NULL : like", "like", "a state of another shape is saved as parts"),
    ("optim/schedule.c", "(1.0 + cos(pi * (at", "(1.0 - cos(pi * (at", "the cosine goes up"),
    # ---- convolution, pooling, recurrent nets, losses, products ------------------------------------------------------
    ("ops/reduce/linear_scan.c", "tn__shift(a, args->dim, !args->reverse, 0.0)", "tn__shift(a, args->dim, args->reverse, 0.0)",
     "what comes before takes the place of what comes after"),
    ("ops/reduce/cumprod.c", "tn__shift(wide, args->dim, args->reverse, 1.0)", "tn__shift(wide, args->dim, args->reverse, 0.0)",
     "the first factor of a product has no gradient"),
    ("ops/pool/shared.c", "places -= ceil_mode && ", "places -= false && ", "a window that is only in the padding"),
    ("ops/conv/conv.c", "call->kernel.dilation[first + i] * (kernel - 1) / 2", "(kernel - 1) / 2",
     "padding that keeps sizes ignores dilation"),
    ("ops/rnn/recurrent.c", "int64_t t = reverse ? times - 1 - i : i;", "int64_t t = i;",
     "the other direction begins at the same end"),
    ("ops/loss/ctc.c", "isnan(loss) ? loss : ", "", "the gradient of NaN is a number"),
    ("ops/loss/huber.c", "args->k / 2.0), args->k)", "args->k / 2.0), 1.0)", "the slope of huber far away"),
    ("ops/loss/triplet_margin.c", "tn_relu(tn_add_scalar(lead, o->margin))", "tn_relu(lead)", "the margin of triplets"),
    ("ops/loss/cosine_embedding.c", "tn_relu(tn_sub_scalar(cosine, args->margin))", "tn_relu(cosine)", "the margin of cosines"),
    ("nn/register.c", "while (lists && name_taken(", "while (false && name_taken(", "what is appended takes a name that is there"),
    ("nn/dropout.c", "        dims.size[i] = 1;\n", "", "channels are not left out whole"),
    # ---- optimisers, files, trainings, searches ----------------------------------------------------------------------
    ("optim/schedule.c", "s->milestones[i] <= t", "s->milestones[i] < t", "milestones come a step late"),
    ("optim/schedule.c", "bend_between(s->start, s->peak,", "bend_between(s->peak, s->start,", "one cycle begins at its peak"),
    ("optim/lion.c", "tn_sign(tn__moving(state[0], g, o->beta1))", "tn_sign(tn__moving(state[0], g, o->beta2))",
     "lion's step has the momentum's factor"),
    ("optim/average.c", "1.0 - kept)", "kept)", "an average keeps what it should lose"),
    ("io/npy/array.c", "? tn_contiguous(tn_permute(t, back)) : t", "? tn_contiguous(t) : t", "columns are read as rows"),
    ("io/onnx/graph.c", "if (t->version->value != g->values[value - 1].version) {", "if (0) {", "a trace of what changes in place"),
    ("io/onnx/batch.c", "if (!tn_equal(tn_sub(c, b), each)) {", "if (0) {", "sizes that are not a multiple of the batch"),
    ("io/onnx/file.c", "> INT32_MAX", "> INT64_MAX", "an ONNX file that cannot be read"),
    ("autograd/apply.c", "    tn__tracer_begin(NULL);\n", "", "what an operation is made of, written next to it"),
    ("ops/inplace/inplace.c", " || !tn__tracer_change(y, operation)", "", "a constant that depends on the inputs"),
    ("train/metrics.c", "scores[c] == scores[label] && c < label", "scores[c] == scores[label] && false",
     "of equal scores all are among the best"),
    ("profile/profiler.c", "before == loop)) {", "true)) {", "all loops say what a step is"),
    ("train/search/search.c", "known ? &value : NULL)", "known && well ? &value : NULL)",
     "a value does not count if its process fails after it"),
    ("train/search/process.c", "while (s->held >= 0 && fcntl(", "while (false && fcntl(",
     "a trial begins while a process of an earlier search has it"),
    ("train/search/hosts.c", "if (t->holder == number) {", "if (false) {", "the trials of a host that has died stay its own"),
    # ---- distributed/group ------------------------------------------------------------------------------------------------
    ("distributed/group/work.c", "tn__launch_is_first(w) : ", "true : ", "groups launch in whatever order their threads run"),
    ("distributed/group/work.c", "(w->launches ? tn__launch_is_first(w) : !g->launched.first)", "(w->launches ? tn__launch_is_first(w) : true)",
     "what is run begins while something is under way"),
    ("distributed/group/work.c", "        start_clock(g, g->running);\n", "", "a deadline counts while others are at work"),
    ("distributed/group/mesh.c", "first -= set >> i & 1 ? ", "first -= set >> i & 1 && i ? ", "lines of the outermost dimension are ranks alone"),
    # ---- nn, distributed/parallel: strategies -----------------------------------------------------------------------
    ("nn/strategy.c", "while (search.root && search.root->up) {", "while (search.root && search.root->up && 0) {",
     "what an optimiser holds under another name is not found"),
    ("distributed/parallel/scopes.c", "    if (above) {", "    if (above && 0) {", "TN_NO_SYNC of a part is silent"),
    ("distributed/parallel/attach.c", "    if (!p && !differ) {", "    if (!p && 0) {", "a rank that cannot attach stays silent"),
    ("distributed/parallel/attach.c", "bool frozen = tn__leaf_thaw(param->leaf);", "bool frozen = false;", "frozen parameters get no hooks"),
    ("distributed/parallel/lifecycle.c", "p->sync = p->no_sync == 0;", "p->sync = true;", "TN_NO_SYNC synchronises"),
    ("distributed/parallel/lifecycle.c", "p->no_sync + change < 0 ? 0 : change", "change", "a scope that is older than what is attached"),
    ("distributed/parallel/lifecycle.c", "    p->buffers_due |= p->sync;\n", "", "buffers come once"),
    ("distributed/parallel/round.c", "tn_group_rank(outer) * size + tn_group_rank(inner)",
     "tn_group_rank(inner) * tn_group_size(outer) + tn_group_rank(outer)", "the order of micro-batches over two groups"),
    ("distributed/parallel/flat.c", "*total += whole_lines(count, line);", "*total += count;", "tensors begin anywhere"),
    ("nn/layout.c", "slice.first * inner + at % band", "slice.first * inner", "elements of a run are where it begins"),
    ("nn/layout.c", "piece / l->slices + (piece % l->slices != 0)", "piece / l->slices", "rows that no slice has"),
    ("io/checkpoint/parts.c", "cover = sorted[i].common.b == at;", "cover = true;", "pieces may overlap and leave a gap"),
    ("io/checkpoint/parts.c", "if (read && strcmp(digits, piece->digest) != 0) {", "if (false) {",
     "the digests of pieces are not compared"),
    ("io/checkpoint/parts.c", "                break; /* the rest is in the next chunk */\n", "", "runs that continue in the next chunk"),
    ("distributed/parallel/save/manifest.c", "at[0]->dealt && i < n", "i < n", "buffers are any rank's"),
    ("distributed/parallel/save/manifest.c", "if (found != whole) {", "if (false) {", "a checkpoint with gaps is saved"),
    ("distributed/parallel/save/write.c", "bool done = receive_all(s) && ", "(void)receive_all;\n    bool done = ",
     "a step is committed before all ranks have written"),
    ("distributed/parallel/save/write.c", "    tn_error_give(&s->failed);\n", "", "what failed before the thread began is forgotten"),
    ("distributed/parallel/save/folder.c", "step >= 0 && step <= all->most", "step >= 0", "steps of another run are removed"),
    ("distributed/parallel/save/load.c", "if (status == TN_OK && !c->partial) {", "if (false) {", "names that the program does not have are accepted"),
    ("distributed/parallel/save/protocol.c", "if (sender >= 0) {", "if (false) {",
     "whose error it is, is not said"),
    ("distributed/parallel/save/write.c", "if (path && here != l->bytes) {", "if (false) {", "rank 0 need not see what the others wrote"),
    ("distributed/parallel/save/vault.c", "heads[older].save == v->whole", "false", "the last whole save in memory is overwritten"),
    ("distributed/parallel/save/vault.c", "flock(v->own[0], LOCK_UN);", "", "a child of fork keeps the memory from other savers"),
    ("distributed/parallel/save/vault.c", "&& h.save != v->whole", "", "the only copies of the last whole save are freed"),
    ("distributed/parallel/save/recall.c", "find_held(r, p->head, i, r->teller) ?", "true ?", "a damaged part is read again instead of its copy"),
    ("distributed/parallel/save/recall.c", "why->status == TN_EFORMAT || why->status == TN_EIO;", "true;", "no memory passes over a good save"),
    ("distributed/parallel/save/saver.c", "if (kind != own)", "if (false)", "ranks that disagree about copies wait"),
    ("distributed/parallel/save/copies.c", "#define COPIES_SHARE 0.5", "#define COPIES_SHARE 1", "a rank that waits for another's copy is taken for dead"),
    ("distributed/parallel/save/recall.c", " && a->save == b->save", "", "parts of two saves in memory are taken for one"),
    ("distributed/parallel/save/recall.c", "h->step >= least && newer", "newer", "memory that is older than the files is loaded"),
    ("distributed/parallel/save/load.c", "tn__vault_forget(&s->vault, step); /*", "/*", "a save of a future that will be another is loaded"),
    ("distributed/parallel/save/saver.c", "*said == '+' && head <= bytes", "false", "what is saved stays what it was at first"),
    ("distributed/parallel/attach.c", "} else if (!c->rules->deferred) {", "} else if (false) {", "a model without elements is under data parallelism"),
    ("distributed/parallel/ddp/buckets.c", "            p->base.leaf->leaf->stale = false;", "", "gradients that are carried over are forgotten"),
    # ---- distributed/parallel: pipelines and meshes -------------------------------------------------------------------
    ("distributed/parallel/pipeline/step.c", "generator->call = before.draws;", "generator->call = 0;",
     "a stage draws what the first one has drawn"),
    ("distributed/parallel/pipeline/step.c", "(uint64_t)a.micro * s->each;", "(uint64_t)a.micro;",
     "micro-batches of two ranks draw the same numbers"),
    ("distributed/parallel/pipeline/step.c", "    generator->stream = s->stream", "    generator->stream += 0 * s->stream",
     "micro-batches draw where the one before has ended"),
    ("distributed/parallel/pipeline/step.c", "TN_NO_SYNC(whole && makes_last(s) ? NULL : s->p->module);", "(void)(whole && makes_last(s));",
     "gradients travel with every micro-batch"),
    ("distributed/parallel/pipeline/step.c", "TN_NO_SYNC(makes_last(s) ? NULL : s->p->module);", "(void)makes_last(s);",
     "gradients travel with every second half"),
    ("distributed/parallel/pipeline/step.c", "what == 'B' || what == 'W';", "what == 'B';",
     "gradients of halves never travel"),
    ("distributed/parallel/pipeline/step.c", "    s->alive -= whole;\n", "    s->alive--;\n",
     "a graph counts as gone after half of its backward"),
    ("distributed/parallel/pipeline/step.c", "        tn__rest_free(s->graphs[i].rest);\n", "",
     "halves that an error leaves undone are never freed"),
    ("distributed/parallel/fsdp/units.c", "s->whole > 0 || s->held > 0", "s->whole > 0", "parameters are freed between the halves of a backward"),
    ("distributed/parallel/pipeline/step.c", "--s->left == 0 && s->p->stages == tn_group_size(s->p->group)", "--s->left == 0",
     "of several stages here only the last one's gradients travel"),
    ("distributed/parallel/pipeline/step.c", "(several || tn__pending())", "tn__pending()",
     "of several stages here no gradients travel"),
    ("distributed/parallel/pipeline/step.c", "(several || tn__pending())", "several",
     "an error before the last backward leaves the other copies waiting"),
    ("distributed/parallel/pipeline/step.c", "tn_work_wait(tn_all_reduce(tie->group, tn_grad_of(stored), TN_SUM), 0);", "(void)tie->group;",
     "each stage has its own part of a tied gradient"),
    ("distributed/parallel/pipeline/step.c", "        put_aside(p);\n", "        (void)put_aside;\n",
     "a tied gradient of an earlier step is summed again"),
    ("distributed/parallel/pipeline/step.c", "            tn_add_(tn_grad_of(stored), tie->aside);\n", "",
     "a tied gradient of an earlier step is forgotten"),
    ("distributed/parallel/pipeline/step.c", "tn_mul_scalar(loss, 1.0 / s->micros)", "loss",
     "gradients are of the sum of micro-batches"),
    ("distributed/parallel/pipeline/step.c", "s->scaler ? tn_scaler_scale(s->scaler, share) : share", "share",
     "a scaler does not scale"),
    ("distributed/parallel/pipeline/step.c", "        share_buffers(p);\n", "        (void)share_buffers;\n",
     "what later stages count is not in a checkpoint"),
    ("distributed/parallel/pipeline/step.c", "tn_item(all) / s->micros", "tn_item(all)", "the loss is a sum"),
    ("distributed/parallel/pipeline/step.c", "s->stream + (uint64_t)s->micros * s->each;\n        tn_default_generator()->call = 0;", "s->stream;\n        tn_default_generator()->call = 0;",
     "each step draws the same numbers"),
    ("distributed/parallel/pipeline/step.c", "        tn_default_generator()->call = 0;\n", "",
     "after a step the generator is where this rank's stage has ended"),
    ("distributed/parallel/pipeline/step.c", "    *tn_default_generator() = before;\n", "    (void)before;\n",
     "a validation draws numbers of the training"),
    ("distributed/parallel/pipeline/step.c", "    p->module->lists->loss.calling = true;\n", "",
     "whole logits are gathered for the loss"),
    ("distributed/parallel/pipeline/step.c", "int64_t T = before.positions;", "int64_t T = tokens;",
     "a later stage does not know its positions"),
    ("distributed/parallel/pipeline/step.c", "return grows ? tn_set_requires_grad(x, true) : x;", "(void)grows;\n    return x;",
     "no gradient goes back"),
    ("distributed/init/init.c", "    tn__host_compute_at(members[e->rank].kinds, word);\n", "", "ranks compute at different levels"),
    ("distributed/init/init.c", "tn__log_loud(\"dist_init: one rank:", "tn_log_write(TN_LOG_INFO, \"dist_init: one rank:",
     "a batch script trains one rank in silence"),
    ("core/alive.c", "while (a && a != object) {", "while (false) {", "what was freed counts as alive"),
    ("tools/run_screen.c", "    s->lost = true;\n", "", "output that no one got is a success"),
    ("distributed/parallel/pipeline/step.c", "p->schedule->micros == n", "p->schedule->micros > 0",
     "a schedule is used for other numbers of micro-batches"),
    ("distributed/parallel/pipeline/pipeline.c", "p->again = (tn_parts){.next = &p->chain, .others", "p->again = (tn_parts){.next = &p->chain, .counts = true, .others",
     "a norm counts a tied parameter on each of its stages"),
    ("distributed/parallel/pipeline/pipeline.c", ".counts = true, .others = true};\n        p->tied", ".counts = true};\n        p->tied",
     "what concerns one parameter is summed over its pipeline"),
    ("distributed/parallel/pipeline/pipeline.c", ".others = true, .copied = true};\n        p->again", ".others = true};\n        p->again",
     "FSDP cuts a tied parameter elsewhere on each stage"),
    ("distributed/parallel/pipeline/pipeline.c", "if (!here && tn__module_set_absent(p->module, of->path) != TN_OK) {", "if (false) {",
     "each stage keeps the others' parameters"),
    ("distributed/parallel/pipeline/pipeline.c", "(tn_walk){.with_shared = true, .absent = true}, set_chain", "(tn_walk){.with_shared = true}, set_chain",
     "a stage with nothing to train leaves the norm to the others"),
    ("optim/clip.c", "tn_module_each(m, (tn_walk){.absent = true}, collect_gradient, &c);", "tn_module_each(m, (tn_walk){0}, collect_gradient, &c);",
     "a stage that is frozen leaves the norm of a module to the others"),
    ("distributed/parallel/pipeline/pipeline.c", "free_lookup ? 0 :", "free_lookup < 0 ? 0 :",
     "a lookup costs as much as a matrix"),
    ("distributed/parallel/pipeline/pipeline.c", "s < p->stages; s++) {\n        tn__buffer", "s < 0; s++) {\n        tn__buffer", "other stages on each rank"),
    ("distributed/parallel/pipeline/forward.c", "if (tn__will_record()) {", "if (false) {",
     "a call of all stages records"),
    ("distributed/parallel/pipeline/forward.c", "        tn__cache_skip(m, T);\n", "        (void)T;\n",
     "caches of other stages' blocks stay empty"),
    ("distributed/parallel/pipeline/forward.c", "generator->call = (uint64_t)numbers[2];", "(void)generator;",
     "stages draw the same numbers"),
    ("distributed/parallel/pipeline/forward.c", "    p->compared.any &= !is_generating(p);\n", "",
     "generated tokens are not compared"),
    ("distributed/parallel/pipeline/forward.c", "        tn__pipe_abort(p);\n", "", "an error stays on one stage"),
    ("distributed/parallel/pipeline/forward.c", "x.n = p->family ? x.n : 1;", "x.n = 1;", "later stages get no positions"),
    ("models/language.c", "if (!stages->share || tn_is_inert(logits)) {", "if (true) {", "each stage computes a loss"),
    ("distributed/parallel/pipeline/links.c", "p->stages > ranks ? ranks : ranks - 1", "ranks - 1",
     "with several stages a rank nothing goes from the last to the first"),
    ("distributed/parallel/pipeline/links.c", "        send_header(p, sends, b);", "        if (boundary == 0) {\n            send_header(p, sends, b);\n        }",
     "only the first boundary has a header"),
    ("distributed/parallel/pipeline/links.c", "b->dtype,   (int64_t)b->draws, b->positions,", "b->dtype,   0, b->positions,",
     "the draws of earlier stages do not travel"),
    ("distributed/parallel/pipeline/links.c", "(int64_t)b->draws, b->positions,", "(int64_t)b->draws, 0,",
     "the length of the sequence does not travel"),
    ("distributed/parallel/pipeline/links.c", "        p->boundaries[i].known = false;\n", "        (void)i;\n",
     "a header is of the first step"),
    ("distributed/parallel/pipeline/links.c", "if (!next->known && b->posted > at) {", "if (false) {",
     "a header is waited for before it is needed"),
    ("distributed/parallel/pipeline/links.c", "!tn_dims_equal(b->dims, tn_shape(y)) || ", "",
     "a micro-batch of another shape is sent"),
    ("distributed/parallel/pipeline/links.c", "i < (int)(sizeof(groups) / sizeof(*groups))", "i < 1",
     "neighbours wait for messages that do not come"),
    ("distributed/parallel/pipeline/links.c", "        tn_group_abort(p->ties[i].group, tn_error_message());\n", "        (void)i;\n",
     "who shares a tied gradient waits for it"),
    ("distributed/parallel/spread.c", '    if (o->pp > 1) {\n        s->pipeline = tn_pipeline_new(m, tn_mesh_group(s->mesh, "pp"), o->pipeline);\n    }\n    if (o->tp > 1 && !tn__pending()) {\n        tn_tensor_parallel(m, tn_mesh_group(s->mesh, "tp"), o->tensor);\n    }\n', '    if (o->tp > 1 && !tn__pending()) {\n        tn_tensor_parallel(m, tn_mesh_group(s->mesh, "tp"), o->tensor);\n    }\n    if (o->pp > 1 && !tn__pending()) {\n        s->pipeline = tn_pipeline_new(m, tn_mesh_group(s->mesh, "pp"), o->pipeline);\n    }\n',
     "tensor parallelism is attached before the pipeline"),
    ("distributed/parallel/spread.c", 'o->cp > 1 ? "shard cp" : "shard"', '"shard"', "ranks of cp do not share their copy"),
    ("distributed/parallel/spread.c", 'o->cp > 1 ? "dp cp" : "dp"', '"dp"', "gradients are not summed over positions"),
    ("distributed/parallel/spread_step.c", "1.0 / (double)n, ahead", "1.0, ahead",
     "gradients are of the sum of micro-batches, without a pipeline"),
    ("distributed/parallel/spread_step.c", "    tn__modes_set(s->module, false,", "    tn__modes_set(s->module, true,", "dropout in a validation"),
    ("distributed/parallel/spread_step.c", "if (batches || tn__pending()) {", "if (batches) {",
     "an error of a loader leaves the other stages waiting"),
    ("distributed/parallel/pipeline/schedule.c", "chunks == 1 ? behind :", "",
     "1F1B begins with as many forwards as interleaved stages"),
    ("distributed/parallel/pipeline/schedule.c", "s->stages - s->ranks + 2 * rank - a.stage", "a.stage",
     "the first chunk goes back first"),
    # ---- models: generating ---------------------------------------------------------------------------------------------
    ("models/generate/sample.c", "*x = *x < 0 ? *x * p : *x / p;", "*x = *x / p;", "negative logits are rewarded for repetition"),
    ("models/generate/sample.c", "if (k <= blocks) {", "if (k < 2 * blocks) {", "a bound of top_k that is too high"),
    ("models/generate/sequence.c", "from = from > length - 1 ? from - (length - 1) : 0;", "", "stop texts that begin in an earlier token"),
    ("models/generate/sequence.c", "made->bytes - (s->ended ? 0 : held_back(made, o))", "made->bytes", "the beginning of a stop text is output"),
    ("models/generate/generate.c", "b->places[r] = (int32_t)(last - s->begin);", "b->places[r] = (int32_t)b->used;", "positions count the padding"),
    ("models/generate/generate.c", "            tn_copy_(tn_narrow(b->mask, 0, r, 1), tn_narrow(b->mask, 0, last, 1));\n", "",
     "the mask of a row that takes another's place"),
    ("models/generate/generate.c", "o->first + (uint64_t)s->index", "o->first", "all sequences draw the same numbers"),
    ("nn/cache.c", "        tn_copy_(tn_select(held, 0, row), tn_select(held, 0, last));\n", "", "the cache of a row that takes another's place"),
    # ---- distributed/parallel: sharding; what each trap needs -----------------------------------------------------------
    ("distributed/parallel/fsdp/fsdp.c", "} else if (tn_in_backward()) {\n        return out;", "} else if (0) {\n        return out;",
     "a unit that runs again goes before its backward"),
    ("distributed/parallel/fsdp/fsdp.c", "if (!backward) { /*", "if (1) { /*", "what forward used last goes when another runs again"),
    ("distributed/parallel/fsdp/attach.c", "while (!is_inside(u, p->unit)) {", "while (false && !is_inside(u, p->unit)) {", "a tied weight is of the first of its units"),
    ("distributed/parallel/fsdp/grads.c", "        if (p->base.ready && in_place) {", "        if (p->length == 0) {\n        } else if (p->base.ready && in_place) {",
     "parts of no elements are not stepped"),
    ("distributed/parallel/fsdp/attach.c", "tn__same_device(a->device, b->device) && a->frozen == b->frozen",
     "tn__same_device(a->device, b->device)", "what is frozen has gradients and buffers"),
    ("distributed/parallel/fsdp/attach.c", ".grad = t->leaf->grad_dtype,", ".grad = tn_module_compute_dtype(entry->owner, t->dtype),",
     "gradients of a policy are summed in its compute dtype"),
    ("distributed/parallel/fsdp/fsdp.c", "tn__fsdp_scatter_used(s) : tn__parallel_all_ready(p)", "tn__fsdp_scatter_used(s) : true",
     "gradients that are missing are not noticed"),
    ("distributed/parallel/fsdp/fsdp.c", "s->base.sync && !s->options.find_unused", "s->base.sync", "ranks with gaps scatter in their own order"),
    ("distributed/parallel/fsdp/grads.c", "param->ready = users[i] > 0 && param->wanted;", "param->ready = param->wanted;",
     "what no rank uses is stepped"),
    ("distributed/parallel/fsdp/grads.c", "            tn_zero_(tn_alias(set->buffer->flat, p->offset, p->base.leaf->dims));\n", "",
     "a missing gradient sends the last one again"),
    ("distributed/parallel/fsdp/grads.c", "    if (!alike) {", "    if (0) {", "ranks that gather different units are not noticed"),
    ("distributed/parallel/fsdp/units.c", "if (s->options.stage < 3 ||", "if (s->options.stage < 4 ||", "units stay whole"),
    ("distributed/parallel/share.c", "tn_work_wait(tn_all_reduce(parts->group, t, TN_SUM), 0)", "TN_OK",
     "norms and overflows are those of one rank's part"),
    ("distributed/parallel/fsdp/units.c", "s->base.group, p->beyond", "s->base.outer ? s->base.outer : s->base.group, p->beyond",
     "norms count replicas, and not shards"),
    ("distributed/parallel/fsdp/units.c", "tn_layout layout = p->block;", "tn_layout layout = p->block;\n    layout.whole = p->base.leaf->dims;\n    layout.dim = -1;",
     "a block is taken for the whole"),
    ("distributed/parallel/share.c", "links[i].next != beyond", "false", "who has the other blocks is forgotten"),
    ("distributed/parallel/fsdp/attach.c", "alone || p->kind.tied || ", "alone || ", "what different stages share is in one set"),
    ("distributed/parallel/fsdp/attach.c", " && a->tied == b->tied;", ";", "what stages share is cut elsewhere on each"),
    ("distributed/parallel/lifecycle.c", "(param->ready || !has_grad(p, param))", "true", "what has travelled is missed"),
    ("distributed/parallel/fsdp/fsdp.c", "!s->options.find_unused && tn_grad_of(p->set", "tn_grad_of(p->set", "ranks expect other gradients"),
    ("distributed/parallel/ddp/communicate.c", "call_hook(d, b, stage);", "call_hook(d, b, 1);", "a hook is not told its stage"),
    ("distributed/parallel/ddp/communicate.c", "    b->shown.arrived = b->result;\n", "", "a hook does not see what has arrived"),
    ("distributed/parallel/fsdp/units.c", "(u->presence != TN__SPLIT && u->seen == now)", "u->presence != TN__SPLIT",
     "an evaluation before the step is what the next forward reads"),
    ("distributed/parallel/fsdp/units.c", "    if (set->low) { /*", "    if (0) { /*", "the root lends copies of what is not gathered yet"),
    ("distributed/parallel/fsdp/units.c", "        if (changed) {\n            touch_wholes(set);", "        if (0) {\n            touch_wholes(set);",
     "a graph from before the step continues with new weights"),
    ("distributed/parallel/fsdp/fsdp.c", "        tn__parallel_give_up(&s->base, tn_error_message());\n    } else if (tn_in_backward", "    } else if (tn_in_backward",
     "an error in a forward is not reported"),
    ("distributed/parallel/fsdp/grads.c", "    sum_replicas(set);\n    tn__fsdp_wait", "    tn__fsdp_wait", "the last set's replicas stay apart"),
    ("distributed/parallel/fsdp/ignored.c", "            p->summed = true;\n", "", "sums are summed again"),
    ("distributed/parallel/fsdp/fsdp.c", "= s->backward.at = 0;\n    split_all(s);", "= s->backward.at = 0;", "units stay after a backward"),
    ("distributed/parallel/fsdp/fsdp.c", "!p->set->grad && tn_requires_grad(p->base.leaf)", "false", "thawed parts get no gradients"),
    ("distributed/parallel/fsdp/units.c", "            tn__touch(whole->leaf->copy);", "", "a graph from before the step uses new copies"),
    ("distributed/parallel/fsdp/units.c", "s->held > 0 || u->running > 0", "s->held > 0", "a unit goes while it runs"),
    ("distributed/parallel/fsdp/units.c", "s->options.stage < 3 || s->whole > 0 ||", "s->options.stage < 3 ||",
     "TN_WHOLE lasts until the next forward"),
    ("distributed/parallel/fsdp/attach.c", "return a->dtype == b->dtype && ", "return ", "two dtypes in one message"),
    ("distributed/parallel/fsdp/attach.c", "leaf->hooks->id != p->base.coming || ", "", "hooks of others are no obstacle"),
    ("distributed/parallel/fsdp/attach.c", "    return same_sets(s) && ", "    (void)same_sets;\n    return ", "policies that differ"),
    ("distributed/parallel/fsdp/attach.c", "    tn__deferring = NULL;\n", "", "what is made under TN_DEFER_INIT has no elements"),
    ("distributed/parallel/fsdp/units.c", "    largest.slice = 0;\n", "", "what all tp ranks hold is cut at different places"),
    ("distributed/parallel/compare.c", "if (entry->layout.dim >= 0) {", "if (false) {", "DDP over ranks with different blocks"),
    ("distributed/parallel/tensor/styles.c", "    tn__parallel_same_input(tp->group, x, m, &tp->compared, \"tensor_parallel\");\n", "", "ranks of tp with different batches"),
    ("distributed/parallel/context.c", "        tn__parallel_same_input(s->group, whole, m, &s->compared, context_rules.operation);\n", "        (void)whole;\n",
     "ranks of cp with different batches"),
    ("distributed/parallel/save/load.c", "        remove_files(s);\n", "        (void)remove_files;\n", "a checkpoint of one file stays where a run starts over"),
    # ---- train ------------------------------------------------------------------------------------------------------
    ("train/deepspeed/deepspeed.c", "1.0 / (double)d->file.accumulation", "1.0", "micro-batches are summed, not averaged"),
    ("train/deepspeed/deepspeed.c", "(now.streak - 1) % f->fp16.window", "now.streak % f->fp16.window", "the loss scale grows a step too early"),
    ("train/deepspeed/deepspeed.c", " || d->file.stage >= 2", "", "whole gradients add up where they should be in parts"),
    ("train/deepspeed/deepspeed.c", "o.offload = f->offload_optimizer || f->offload_param;", "o.offload = f->offload_param;", "the optimiser's offload is not one"),
    ("train/deepspeed/file.c", "double at = (double)steps - 1", "double at = (double)steps", "learning rates a step too early"),
    ("train/run.c", "any_rank(r, rows) || load_checkpoint", "load_checkpoint", "steps before the first checkpoint are overwritten"),
    ("train/run.c", "        tn_saver_clear(r->saver);\n", "", "a run that starts over finds another one's checkpoints"),
    ("train/run.c", "tn_group_mean(r->world, mine, 1) * r->ranks", "mine", "ranks stop at different steps"),
    ("train/run_watch.c", "before += i != at && !isnan(c.y[i])", "before += i < at && !isnan(c.y[i])", "worse weights stay"),
    ("train/run_watch.c", "bad = better ? 0 : bad + 1;", "bad += !better;", "values that were no better need not be in a row"),
    ("train/search/rungs.c", "i < rung->ranked / s->options.factor", "i < rung->ranked", "all continue to the next rung"),
    ("train/search/space.c", "left /= v->count;", "", "a grid that is only its diagonal"),
    ("train/metrics.c", "if (!real || real[i])", "if (true)", "rows that only fill up are counted"),
    ("optim/plateau.c", "s->bad > p->patience", "s->bad >= p->patience", "the rate falls too early"),
    ("train/run.c", "o->resume || o->resume_anyway || tn_restart_count() > 0", "o->resume || o->resume_anyway", "what the launcher restarts starts over"),
    ("train/history.c", "h->wider |= c != NULL;", "(void)c;", "a new column without a name in the head"),
    ("io/checkpoint/metadata.c", "before.s.steps < c->schedule->steps && ", "", "a schedule may become shorter"),
    ("train/options.c", "if (!starts_over(line_words[i])) {", "{", "the command to continue starts over"),
    ("train/evaluate/evaluate.c", "mine < last ? mine : last", "mine", "ranks without a batch do not call the model"),
    ("train/evaluate/evaluate.c", "all[r * e->batch + i]", "all[i]", "every rank's rows cost what rank 0's did"),
    ("train/evaluate/evaluate.c", "tn__modes_set(m, false,", "tn__modes_set(m, true,", "dropout while a model is measured"),
    ("train/evaluate/perplexity.c", "text && !special ?", "text ?", "special tokens have bytes"),
    ("train/evaluate/choices.c", "c->context + 1 - e->ids.count", "c->context - e->ids.count", "a prompt loses a token that fits"),
    ("train/evaluate/choices.c", "t + 1 < kept ?", "t < kept ?", "the ending's first token does not count"),
    ("train/evaluate/choices.c", "whole->at + whole->count - kept", "whole->at", "a long prompt loses its end"),
    ("train/evaluate/choices.c", "costs[s] < c->best[s]", "costs[s] <= c->best[s]", "of equal endings the last is chosen"),
    ("train/evaluate/questions.c", "if (*value->text == ' ') {", "if (0) {", "two spaces before an ending"),
    ("train/deepspeed/json_keys.c", "!is_first(object, member, keys, key)", "0", "a key may occur twice"),
    # ---- data: texts to shards -----------------------------------------------------------------------------------------
    ("data/tokenizer/bpe.c", "(a->rank == b->rank && a->at < b->at)", "(a->rank == b->rank && a->at > b->at)", "of equal pairs the leftmost"),
    ("data/tokenizer/bpe.c", "s->id != o->left || after < 0 ||", "after < 0 ||", "offers that are void"),
    ("data/tokenizer/pattern.c", "WAY_A_BYTE = 16", "WAY_A_BYTE = 0", "long runs of spaces are too many steps"),
    ("data/tokenizer/tokenizer.c", "(special || shortest->kind == TN__TOKEN_ADDED)", "(special || true)", "strangers write special tokens"),
    ("data/tokenizer/cut.c", "c->piece(c->user, text + at, stray)", "c->piece(c->user, text + at, 1)", "bytes that are not UTF-8"),
    ("data/tokenizer/build.c", "t->whole || joins_to_itself", "true || joins_to_itself", "tokens that pairs do not make"),
    ("data/tokenizer/tiktoken.c", "    b->t->whole = true;\n", "", "pieces that have a rank"),
    ("data/tokenizer/train.c", "if (w.count != count) {", "if (false) {", "counts that are out of date"),
    ("data/tokenizer/save.c", "if (done && merges_say_all(&s)) {", "if (done) {", "merges that do not say all are written"),
    ("data/corpus/cut.c", "return text[at] == ' ' && is_word_before(text, at);", "return text[at] == ' ';", "texts are cut within spaces"),
    ("data/corpus/cut.c", "text[at] != '/' && is_word_before(text, at - 1)", "is_word_before(text, at - 1)",
     "texts are cut where some patterns do not"),
    ("data/corpus/stream.c", "if (!more && !u->inside) {", "if (!more) {", "compressed data that break off"),
    ("data/corpus/tokens.c", "bool goes_on = !p->begins && s->last == p->piece - 1;", "bool goes_on = !p->begins;",
     "a text does not continue where a passage is for validation"),
    ("data/corpus/tokens.c", "bool remove = is_ours(name) && !is_kept(m, name);", "bool remove = false;", "shards of an interrupted run stay"),
    ("data/corpus/tokens.c", "return batch >= m->kept[split_of(m, p)].batch;", "return batch >= m->kept[0].batch;",
     "both splits go on at the same batch"),
    ("data/corpus/so_far.c", "strcmp(digest, m->digest) == 0;", "true;", "a shard that has changed is kept"),
    ("data/corpus/tokens_json.c", 'if (strcmp(finished->text, "true") != 0) {', "if (!finished->text) {", "unfinished sets are read"),
    ("data/corpus/encoders.c", "(ids->count > first || append_id(ids, e->how.eot));", "true;", "a completion without a prompt"),
    ("data/cifar.c", "if (label >= d->from->classes) {", "if (label > d->from->classes) {", "a label one beyond the classes"),
    ("data/cifar.c", "records[i * d->record + d->from->labels - 1]", "records[i * d->record]", "which of CIFAR-100's labels is looked at"),
    ("data/csv.c", "return whole[0] && value[0] != value[1] ?", "return false && value[0] != value[1] ?", "whole numbers as classes are in the order of texts"),
    ("data/csv.c", "if (found >= 0) {", "if (false) {", "two columns of one name"),
    ("data/csv_record.c", "} else if (byte == '\"' && **at == '\"') {", "} else if (false) {", "quotes within quotes"),
    ("data/lines.c", "        if (found || l->all_read) {", "        if (found || l->end > l->begin) {", "lines end where a read did"),
    ("data/libsvm.c", "index <= r->d->places[r->count - 1] + 1", "index < r->d->places[r->count - 1] + 1", "an index twice"),
    ("data/image_folder.c", "    order = order ? order : (n > m) - (n < m);\n", "", "pictures in folders within a class come in another order"),
    ("data/picture.c", "pixels > MOST_PIXELS || pixels > HEAD + density * f->count", "pixels > MOST_PIXELS", "a header claims more than its file can hold"),
    ("data/picture_jpeg.c", "JWRN_MUST_RESYNC, JWRN_JPEG_EOF}", "JWRN_MUST_RESYNC}", "a JPEG that was cut short is filled up with grey"),
    ("data/picture_png.c", "    png_read_end(r->png, NULL);\n", "", "a PNG's end is missing"),
    ("data/picture_png.c", "png_set_strip_16(png);", "png_set_scale_16(png);", "16 bits are rounded"),
    ("io/npy/dataset.c", "(about->big || about->dtype == TN_BOOL)", "about->dtype == TN_BOOL", "rows in the other order of bytes"),
    ("data/shards.c", "from > 0 && t < d->length - d->stride", "from > 0 && t + 1 < d->length - d->stride", "a target counts in two windows"),
    ("data/shards.c", "1 + (rest - 1) / d->stride + 1", "1 + rest / d->stride", "the last targets are in no window"),
    ("data/shards.c", "return token & s->mark ? NO_TARGET : token;", "return token;", "prompts are learned"),
    ("data/shards.c", "from = to - from > d->length + 1 ? to - (d->length + 1) : from;", "", "a pair that is longer than the window"),
    ("data/collate.c", "at < r.bytes; at += r.element", "at + r.element < r.bytes; at += r.element", "the last element of a row is not padded"),
    ("data/collate.c", "                        .epoch = epoch,\n", "", "what is random in an example is the same in all epochs"),
    ("data/collate.c", ".place = tn__sampler_place(&c->sampler, d->size, first + i)", ".place = first + i",
     "what is random in an example depends on the number of ranks"),
    ("data/compose.c", "e.index = index_in_whole(d, e.index);", "e = (tn_example){.index = index_in_whole(d, e.index)};",
     "a subset hides the epoch from what is random"),
    ("data/sampler.c", "int64_t step = product_below(s->batch, s->parts, size)", "int64_t step = product_below(s->batch, 1, size)",
     "lines of a step are as long on all ranks"),
    ("data/sampler.c", "first + shuffled_index(key, count, epoch, place - first)", "place", "the same lines are always together"),
    ("data/transforms.c", "random.stream = FIRST_STREAM + (uint64_t)k;", "random.stream = FIRST_STREAM;", "transforms draw the same numbers"),
    ("data/augment.c", "{SATURATION, BRIGHTNESS, CONTRAST}", "{SATURATION, CONTRAST, BRIGHTNESS}", "an order of changes of colour"),
    ("data/mixup.c", "lift = log(1 - tn_random_uniform(g)) / shape;", "lift = 0;", "mixup with a small alpha"),
]

# Which folders' tests run for a file, in this order.
TESTS = {
    "ops": ("ops", "autograd", "nn"),
    "backends": ("backends", "ops", "optim"),
    "autograd": ("autograd", "ops", "nn"),
    "profile": ("profile",),
    "optim": ("optim", "nn"),
    "nn": ("nn", "parallel"),
    "distributed": ("parallel",),
    "train": ("train",),
}
LAST = ("ops/composed", "ops/torch", "ops/registry", "backends/cpu")  # seconds to minutes; the others take less
LEFT_OUT = ("no_memory",)  # about memory


def fail(text):
    print(text)
    sys.exit(2)


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def copy_tree():
    """Brings the copy up to date. Only what differs is written, so that builds stay incremental."""
    seen = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in LEAVES_OUT and not name.startswith(".")]
        inside = os.path.relpath(folder, ROOT)
        os.makedirs(os.path.join(TREE, inside), exist_ok=True)
        for name in files:
            source, target = os.path.join(folder, name), os.path.normpath(os.path.join(TREE, inside, name))
            seen.add(target)
            with open(source, "rb") as file:
                data = file.read()
            if inside == "backends" and name == "meson.build":  # one instruction level is enough here
                data = data.replace(b"['2', '3', '4']", b"['3']") if "avx2" in read("/proc/cpuinfo") else data
            if not os.path.exists(target) or open(target, "rb").read() != data:
                with open(target, "wb") as file:
                    file.write(data)
                shutil.copymode(source, target)
    for folder, _, files in os.walk(TREE):
        for name in files:
            if os.path.join(folder, name) not in seen:
                os.remove(os.path.join(folder, name))


def run(command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          errors="replace")


def build():
    """The compiler's output when it failed, else None."""
    if not os.path.exists(os.path.join(BUILD, "build.ninja")):
        done = run(["meson", "setup", BUILD, TREE, "-Dbuildtype=debugoptimized", "-Dtests=true", "-Dexamples=false", "-Dbench=false"])
        if done.returncode != 0:
            return done.stdout
    done = run(["ninja", "-C", BUILD, "-j", os.environ.get("JOBS", "1")])
    return done.stdout if done.returncode != 0 else None


def tests_of(folder):
    """(name, command) of the folder's tests."""
    found = []
    for source, name in re.findall(r"'(test_(\w+)\.(?:c|py))'", read(os.path.join(TREE, "tests", folder, "meson.build"))):
        path = os.path.join(TREE, "tests", folder, source)
        if name in LEFT_OUT or "TERN_EXAMPLE_BIN" in read(path):  # the examples are not built here
            continue
        if source.endswith(".c"):
            command = [os.path.join(BUILD, "tests", "test_%s_%s" % (folder, name))]
        else:
            command = ["/usr/bin/python3", path]
        found.append((name, command))
    return [("%s/%s" % (folder, name), command) for name, command in found]


def run_test(command):
    """What noticed: the first test that failed, or how the program ended; None when all passed."""
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", OMP_WAIT_POLICY="passive", CI="1", TERN_ROOT=TREE,
                       TERN_TEST_BIN=os.path.join(BUILD, "tests"), TERN_EXAMPLE_BIN=os.path.join(BUILD, "examples"))
    process = subprocess.Popen(["timeout", str(LIMIT)] + command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, env=environment)
    noticed = None
    for raw in process.stdout:
        line = raw.decode("utf-8", "replace").strip()
        if line.startswith("not ok") and "# SKIP" not in line:
            noticed = re.sub(r"^not ok\s*\d*\s*-?\s*", "", line)
            process.terminate()
            break
    process.stdout.close()
    status = process.wait()
    if noticed is None and status != 0:
        noticed = "does not end" if status == 124 else "exit status %d" % status
    return noticed


def first_failure(folders, path=""):
    """The first test that fails. For an operation's own file, the registry's test of that operation comes first."""
    tests = [test for folder in folders for test in tests_of(folder)]
    tests.sort(key=lambda test: LAST.index(test[0]) if test[0] in LAST else -1)
    operation = os.path.basename(path)[:-2]
    if path.startswith("ops/") and re.search(r"^TN_OP\(\w+, %s[,)]" % operation, read(os.path.join(TREE, "ops", "list.h")), re.M):
        registry = dict(tests)["ops/registry"]
        tests.insert(0, ("ops/registry", registry + [operation]))
    for name, command in tests:
        noticed = run_test(command)
        if noticed:
            return "%s: %s" % (name, noticed)
    return None


def chosen(patterns):
    found = [m for m in MUTATIONS if not patterns or any(p in m[0] or p in m[3] for p in patterns)]
    if not found:
        fail("no mutation's file or description contains " + " or ".join(patterns))
    return found


def must_fit(mutations, root):
    """Each old text is exactly once in its file."""
    counts = [(m[0], m[3], read(os.path.join(root, m[0])).count(m[1])) for m in mutations]
    wrong = ["%s (%s): the old text is there %d times" % c for c in counts if c[2] != 1]
    if wrong:
        fail("the sources have moved on, mend the list:\n  " + "\n  ".join(wrong))


def main(arguments):
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", action="store_true")
    options.add_argument("--from", type=int, default=1, dest="first", metavar="N")
    options.add_argument("patterns", nargs="*", metavar="PATTERN")
    options = options.parse_args(arguments)
    mutations = chosen(options.patterns)[options.first - 1:]
    if options.list:
        must_fit(mutations, ROOT)
        for number, (path, _, _, what) in enumerate(mutations, options.first):
            print("%3d  %-36s %s" % (number, path, what))
        return 0
    os.nice(max(0, 10 - os.nice(0)))
    copy_tree()
    must_fit(mutations, TREE)
    broken = build()
    if broken:
        fail("the tree does not build unchanged:\n" + broken[-3000:])
    folders = sorted({folder for m in mutations for folder in TESTS[m[0].split("/")[0]]})
    already = first_failure(folders)
    if already:
        fail("a test fails without any mutation: " + already)
    print("%d mutations; unchanged, the tests of %s pass" % (len(mutations), ", ".join(folders)), flush=True)
    survived, errors = [], []
    for number, (path, old, new, what) in enumerate(mutations, options.first):
        start, target = time.time(), os.path.join(TREE, path)
        text = read(target)
        try:
            write(target, text.replace(old, new))
            broken = build()
            noticed = None if broken else first_failure(TESTS[path.split("/")[0]], path)
        finally:
            write(target, text)
        if broken:
            errors.append("%s (%s) does not compile:\n%s" % (path, what, broken[-1500:]))
        elif not noticed:
            survived.append((path, what))
        verdict = "DOES NOT COMPILE" if broken else noticed or "SURVIVED"
        print("%3d  %-36s %-58s %s  (%.0f s)" % (number, path, what, verdict, time.time() - start), flush=True)
    print("\n%d of %d caught" % (len(mutations) - len(survived) - len(errors), len(mutations)))
    for path, what in survived:
        print("survived: %s: %s" % (path, what))
    if errors:
        fail("\n".join(errors))
    return 1 if len(survived) > MAY_SURVIVE else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
