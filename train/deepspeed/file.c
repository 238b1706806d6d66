/* The keys of DeepSpeed's file, as tables (json_keys.h), and how they combine.
 *
 * Names and defaults are those of DeepSpeed 0.19 (deepspeed.ai/docs/config-json). A key is read, or
 * has no effect here (TN__KEY_IDLE), or is refused: one that would change the run but that Tern
 * lacks must be off (TN__KEY_OFF) or at Tern's only value (TN__KEY_FIXED).
 */
#include "train/deepspeed/file.h"

#include <math.h>
#include <stddef.h>

#define TO(member) .at = offsetof(tn__ds_file, member)
#define SWITCH(key, member) \
    { .name = (key), .kind = TN__KEY_SWITCH, TO(member) }
#define COUNT(key, member, from, to) \
    { .name = (key), .kind = TN__KEY_COUNT, TO(member), .least = (from), .most = (to) }
#define NUMBER(key, member, to) \
    { .name = (key), .kind = TN__KEY_NUMBER, TO(member), .most = (to) }
#define PAIR(key, member, to) \
    { .name = (key), .kind = TN__KEY_PAIR, TO(member), .most = (to) }
#define CHOICE(key, member, of) \
    { .name = (key), .kind = TN__KEY_CHOICE, TO(member), .words = (of) }
#define SECTION(key, table) \
    { .name = (key), .kind = TN__KEY_SECTION, .keys = (table) }
#define VARIANT(key, member, of, tables) \
    { .name = (key), .kind = TN__KEY_VARIANT, TO(member), .words = (of), .variants = (tables) }
#define FIXED(key, value) \
    { .name = (key), .kind = TN__KEY_FIXED, .fixed = (value) }
#define OFF(key) \
    { .name = (key), .kind = TN__KEY_OFF }
#define IDLE(key) \
    { .name = (key), .kind = TN__KEY_IDLE }
#define END \
    { .name = NULL }

/* Small enough that products of batch sizes fit into 64 bits. */
#define WHOLE_MOST 1e15
enum { MICRO_BATCH_MOST = 1000000000, ACCUMULATION_MOST = 1000000 };
#define SCALE_MOST 0x1p127 /* it multiplies f32 numbers */

static const char *const devices[] = {"none", "cpu", NULL};
static const char *const reductions[] = {"mean", "sum", NULL};
static const char *const warmups[] = {"log", "linear", NULL};

/* ---- Optimisers and schedulers --------------------------------------------------------------- */

static const tn__key adam_keys[] = {
    NUMBER("lr", optimizer.lr, INFINITY),
    PAIR("betas", optimizer.betas, 1),
    NUMBER("eps", optimizer.eps, INFINITY),
    NUMBER("weight_decay", optimizer.weight_decay, INFINITY),
    SWITCH("adam_w_mode", optimizer.adam_w_mode),
    SWITCH("torch_adam", optimizer.torch_adam),
    FIXED("bias_correction", "true"),
    FIXED("fp32_optimizer_states", "true"),
    OFF("amsgrad"),
    OFF("maximize"),
    IDLE("set_grad_none"),
    IDLE("foreach"),
    IDLE("fused"),
    END,
};
static const tn__key sgd_keys[] = {
    NUMBER("lr", optimizer.lr, INFINITY),
    NUMBER("momentum", optimizer.momentum, INFINITY),
    NUMBER("dampening", optimizer.dampening, INFINITY),
    NUMBER("weight_decay", optimizer.weight_decay, INFINITY),
    SWITCH("nesterov", optimizer.nesterov),
    OFF("maximize"),
    IDLE("foreach"),
    IDLE("fused"),
    END,
};
static const char *const optimizers[] = {"Adam", "AdamW", "SGD", NULL};
static const tn__key *const optimizer_keys[] = {adam_keys, adam_keys, sgd_keys};

static const tn__key warmup_keys[] = {
    NUMBER("warmup_min_lr", schedule.low, INFINITY),
    NUMBER("warmup_max_lr", schedule.high, INFINITY),
    COUNT("warmup_num_steps", schedule.warmup, 0, WHOLE_MOST),
    CHOICE("warmup_type", schedule.linear, warmups),
    FIXED("last_batch_iteration", "-1"),
    END,
};
static const tn__key decay_keys[] = {
    NUMBER("warmup_min_lr", schedule.low, INFINITY),
    NUMBER("warmup_max_lr", schedule.high, INFINITY),
    COUNT("warmup_num_steps", schedule.warmup, 0, WHOLE_MOST),
    CHOICE("warmup_type", schedule.linear, warmups),
    COUNT("total_num_steps", schedule.total, 1, WHOLE_MOST),
    FIXED("last_batch_iteration", "-1"),
    END,
};
/* Ratios are of the optimiser's rate. */
static const tn__key cosine_keys[] = {
    NUMBER("warmup_min_ratio", schedule.low, INFINITY),
    NUMBER("cos_min_ratio", schedule.end, INFINITY),
    COUNT("warmup_num_steps", schedule.warmup, 0, WHOLE_MOST),
    CHOICE("warmup_type", schedule.linear, warmups),
    COUNT("total_num_steps", schedule.total, 1, WHOLE_MOST),
    FIXED("last_batch_iteration", "-1"),
    END,
};
static const char *const schedulers[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", NULL};
static const tn__key *const scheduler_keys[] = {warmup_keys, decay_keys, cosine_keys};

/* ---- Precision and ZeRO ---------------------------------------------------------------------- */

static const tn__key fp16_keys[] = {
    SWITCH("enabled", fp16.enabled),
    NUMBER("loss_scale", fp16.scale, SCALE_MOST),
    COUNT("initial_scale_power", fp16.power, 0, 127),
    COUNT("loss_scale_window", fp16.window, 1, WHOLE_MOST),
    COUNT("hysteresis", fp16.hysteresis, 1, WHOLE_MOST),
    SWITCH("consecutive_hysteresis", fp16.refill),
    NUMBER("min_loss_scale", fp16.least, SCALE_MOST),
    OFF("fp16_master_weights_and_grads"),
    IDLE("auto_cast"),
    END,
};
static const tn__key bf16_keys[] = {
    SWITCH("enabled", bf16.enabled),      SWITCH("check_grad_overflow", bf16.check_overflow),
    OFF("bf16_master_weights_and_grads"), OFF("bf16_optimizer_states"),
    IDLE("immediate_grad_update"),        END,
};
static const tn__key offload_optimizer_keys[] = {
    CHOICE("device", offload_optimizer, devices),
    FIXED("ratio", "1"),
    OFF("super_offload"),
    IDLE("nvme_path"),
    IDLE("buffer_count"),
    IDLE("pin_memory"),
    IDLE("pipeline"),
    IDLE("pipeline_read"),
    IDLE("pipeline_write"),
    IDLE("fast_init"),
    IDLE("cpuadam_cores_perc"),
    END,
};
static const tn__key offload_param_keys[] = {
    CHOICE("device", offload_param, devices),
    IDLE("nvme_path"),
    IDLE("buffer_count"),
    IDLE("buffer_size"),
    IDLE("max_in_cpu"),
    IDLE("pin_memory"),
    END,
};
static const tn__key zero_keys[] = {
    COUNT("stage", stage, 0, 3),
    SECTION("offload_optimizer", offload_optimizer_keys),
    SECTION("offload_param", offload_param_keys),
    SWITCH("ignore_unused_parameters", find_unused),
    FIXED("zero_hpz_partition_size", "1"),
    FIXED("mics_shard_size", "-1"),
    OFF("mics_hierarchical_params_gather"),
    OFF("zero_quantized_weights"),
    OFF("zero_quantized_nontrainable_weights"),
    OFF("zero_quantized_gradients"),
    OFF("zeropp_loco_param"),
    OFF("zenflow"),
    OFF("cpu_offload"),
    OFF("cpu_offload_params"),
    IDLE("cpu_offload_use_pin_memory"),
    IDLE("contiguous_gradients"),
    IDLE("reduce_scatter"),
    IDLE("reduce_bucket_size"),
    IDLE("use_multi_rank_bucket_allreduce"),
    IDLE("allgather_partitions"),
    IDLE("allgather_bucket_size"),
    IDLE("overlap_comm"),
    IDLE("load_from_fp32_weights"),
    IDLE("elastic_checkpoint"),
    IDLE("sub_group_size"),
    IDLE("prefetch_bucket_size"),
    IDLE("param_persistence_threshold"),
    IDLE("model_persistence_threshold"),
    IDLE("max_live_parameters"),
    IDLE("max_reuse_distance"),
    IDLE("gather_16bit_weights_on_model_save"),
    IDLE("module_granularity_threshold"),
    IDLE("stage3_prefetch_bucket_size"),
    IDLE("stage3_param_persistence_threshold"),
    IDLE("stage3_model_persistence_threshold"),
    IDLE("stage3_max_live_parameters"),
    IDLE("stage3_max_reuse_distance"),
    IDLE("stage3_gather_16bit_weights_on_model_save"),
    IDLE("stage3_gather_fp16_weights_on_model_save"),
    IDLE("stage3_module_granularity_threshold"),
    IDLE("stage3_use_all_reduce_for_fetch_params"),
    IDLE("stage3_allgather_sequential"),
    IDLE("legacy_stage1"),
    IDLE("round_robin_gradients"),
    IDLE("memory_efficient_linear"),
    IDLE("pipeline_loading_checkpoint"),
    IDLE("override_module_apply"),
    IDLE("log_trace_cache_warnings"),
    IDLE("enable_sanity_checks"),
    IDLE("leaf_module"),
    END,
};
static const tn__key data_types_keys[] = {
    FIXED("grad_accum_dtype", "fp32"),
    FIXED("param_dtype", "fp32"),
    FIXED("buffer_dtype", "fp32"),
    END,
};

/* ---- The file -------------------------------------------------------------------------------- */

static const tn__key file_keys[] = {
    COUNT("train_batch_size", batch, 1, WHOLE_MOST),
    COUNT("train_micro_batch_size_per_gpu", micro_batch, 1, MICRO_BATCH_MOST),
    COUNT("gradient_accumulation_steps", accumulation, 1, ACCUMULATION_MOST),
    NUMBER("gradient_clipping", clipping, INFINITY),
    CHOICE("gradient_allreduce_op", sum, reductions),
    VARIANT("optimizer", optimizer.kind, optimizers, optimizer_keys),
    VARIANT("scheduler", schedule.kind, schedulers, scheduler_keys),
    SECTION("fp16", fp16_keys),
    {.name = "bf16", .other = "bfloat16", .kind = TN__KEY_SECTION, .keys = bf16_keys},
    SECTION("zero_optimization", zero_keys),
    SECTION("data_types", data_types_keys),
    FIXED("managed_gradient_accumulation", "true"),
    OFF("amp"),
    OFF("autotuning"),
    OFF("compression_training"),
    OFF("curriculum_learning"),
    OFF("data_efficiency"),
    OFF("eigenvalue"),
    OFF("elasticity"),
    OFF("expert_parallel"),
    OFF("hybrid_engine"),
    OFF("pipeline"),
    OFF("progressive_layer_drop"),
    OFF("quantize_training"),
    OFF("sparse_attention"),
    OFF("sparse_gradients"),
    OFF("tensor_parallel"),
    OFF("torch_autocast"),
    OFF("weight_quantization"),
    IDLE("activation_checkpointing"),
    IDLE("aio"),
    IDLE("checkpoint"),
    IDLE("comet"),
    IDLE("comms_logger"),
    IDLE("communication_data_type"),
    IDLE("compile"),
    IDLE("csv_monitor"),
    IDLE("dataloader_drop_last"),
    IDLE("disable_allgather"),
    IDLE("dump_state"),
    IDLE("flops_profiler"),
    IDLE("gradient_predivide_factor"),
    IDLE("graph_harvesting"),
    IDLE("log_level"),
    IDLE("memory_breakdown"),
    IDLE("monitor_config"),
    IDLE("nebula"),
    IDLE("prescale_gradients"),
    IDLE("seq_parallel_communication_data_type"),
    IDLE("steps_per_print"),
    IDLE("tensorboard"),
    IDLE("timers"),
    IDLE("use_data_before_expert_parallelism"),
    IDLE("vocabulary_size"),
    IDLE("wall_clock_breakdown"),
    IDLE("wandb"),
    IDLE("zero_allow_untested_optimizer"),
    IDLE("zero_force_ds_cpu_optimizer"),
    END,
};

/* NaN, 0 and -1 mean not given. */
static const tn__ds_file defaults = {
    .clipping = 1,
    .optimizer = {.kind = -1,
                  .lr = 1e-3,
                  .betas = {0.9, 0.999},
                  .eps = 1e-8,
                  .weight_decay = NAN,
                  .adam_w_mode = true},
    .schedule = {.kind = TN__DS_NO_SCHEDULER, .low = 0, .high = NAN, .end = 1e-4, .warmup = 1000},
    .fp16 = {.power = 16, .window = 1000, .hysteresis = 2, .least = 1},
    .bf16 = {.check_overflow = true},
};

/* ---- How the keys combine -------------------------------------------------------------------- */

/* Derives what is not given from the rest; false after raising. */
static bool settle_batch(tn__ds_file *f, const tn__keys *k, int ranks) {
    if (!f->batch && !f->micro_batch) {
        tn__raise(TN_EVALUE, k->operation,
                  "%s: train_batch_size and train_micro_batch_size_per_gpu are missing; one of "
                  "them should be there",
                  k->file);
        return false;
    }
    if (!f->accumulation) {
        f->accumulation = f->batch && f->micro_batch ? f->batch / f->micro_batch / ranks : 1;
    }
    if (!f->micro_batch) {
        f->micro_batch = f->batch / f->accumulation / ranks;
    }
    int64_t product = f->micro_batch * f->accumulation * ranks;
    f->batch = f->batch ? f->batch : product;
    if (f->batch != product) {
        tn__raise(TN_EVALUE, k->operation,
                  "%s: train_batch_size %lld is not train_micro_batch_size_per_gpu %lld x "
                  "gradient_accumulation_steps %lld x %d rank%s",
                  k->file, (long long)f->batch, (long long)f->micro_batch,
                  (long long)f->accumulation, ranks, ranks == 1 ? "" : "s");
        return false;
    }
    return true;
}

/* torch's AdamW has weight decay by default, DeepSpeed's own does not. */
static bool settle_optimizer(tn__ds_file *f, const tn__keys *k) {
    bool adamw = f->optimizer.kind == TN__DS_ADAMW ||
                 (f->optimizer.kind == TN__DS_ADAM && f->optimizer.adam_w_mode);
    if (f->optimizer.kind < 0) {
        tn__raise(TN_EVALUE, k->operation, "%s: optimizer is missing", k->file);
        return false;
    }
    if (f->optimizer.nesterov && (f->optimizer.momentum == 0 || f->optimizer.dampening != 0)) {
        tn__raise(TN_EVALUE, k->operation,
                  "%s: optimizer.params.nesterov is true with momentum %g and dampening %g (should "
                  "have momentum and no dampening)",
                  k->file, f->optimizer.momentum, f->optimizer.dampening);
        return false;
    }
    f->optimizer.kind = adamw ? TN__DS_ADAMW : f->optimizer.kind;
    if (isnan(f->optimizer.weight_decay)) {
        f->optimizer.weight_decay = adamw && f->optimizer.torch_adam ? 1e-2 : 0;
    }
    return true;
}

static bool settle_schedule(tn__ds_file *f, const tn__keys *k) {
    tn__ds_schedule *s = &f->schedule;
    bool ends = s->kind == TN__DS_WARMUP_DECAY_LR || s->kind == TN__DS_WARMUP_COSINE_LR;
    if (ends && !s->total) {
        tn__raise(TN_EVALUE, k->operation, "%s: scheduler.params.total_num_steps is missing",
                  k->file);
        return false;
    }
    if (isnan(s->high)) {
        s->high = s->kind == TN__DS_WARMUP_DECAY_LR ? 1e-3 : f->optimizer.lr;
    }
    s->warmup = s->warmup < 2 ? 2 : s->warmup; /* with 1 the logarithm would be 0 */
    double unit = s->kind == TN__DS_WARMUP_COSINE_LR ? f->optimizer.lr : 1;
    s->low *= unit;
    s->end *= unit;
    return true;
}

static bool settle_zero(const tn__ds_file *f, const tn__keys *k) {
    bool early = (f->offload_optimizer && f->stage < 1) || (f->offload_param && f->stage < 3);
    if (f->fp16.enabled && f->bf16.enabled) {
        tn__raise(TN_EVALUE, k->operation, "%s: fp16.enabled and bf16.enabled are both true",
                  k->file);
    } else if (early) {
        tn__raise(TN_EVALUE, k->operation,
                  "%s: zero_optimization.offload_%s with stage %lld (should be stage %s)", k->file,
                  f->offload_param ? "param" : "optimizer", (long long)f->stage,
                  f->offload_param ? "3" : "1, 2 or 3");
    } else {
        return true;
    }
    return false;
}

bool tn__ds_read(tn__ds_file *f, tn__keys *k, const char *text, size_t bytes, int ranks) {
    *f = defaults;
    return tn__keys_read(k, text, bytes, file_keys, f) && settle_batch(f, k, ranks) &&
           settle_optimizer(f, k) && settle_schedule(f, k) && settle_zero(f, k);
}

/* ---- Learning rates -------------------------------------------------------------------------- */

/* DeepSpeed's schedules count iterations from the end of the first step: that step has the initial
 * rate, and the second is iteration 0. */
double tn__ds_lr(const tn__ds_schedule *s, int64_t steps) {
    const double pi = 3.14159265358979323846;
    double at = (double)steps - 1, warmup = (double)s->warmup, total = (double)s->total;
    double length = total > warmup + 1 ? total - warmup : 1;
    if (at < 0) {
        return s->kind == TN__DS_WARMUP_COSINE_LR ? 0 : s->low;
    }
    if (at < warmup) {
        double part = s->linear ? at / warmup : log(at + 1) / log(warmup);
        return s->low + (s->high - s->low) * part;
    }
    if (s->kind == TN__DS_WARMUP_DECAY_LR) {
        return s->low + (s->high - s->low) * fmax(0, (total - at) / length);
    }
    if (s->kind == TN__DS_WARMUP_COSINE_LR) {
        double part = fmin(1, (at - warmup + 1) / length);
        return s->end + (s->high - s->end) * (1 + cos(pi * part)) / 2;
    }
    return s->high;
}
