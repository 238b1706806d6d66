/* Reading DeepSpeed's file: its keys as a table of fields, by their whole path.
 *
 * Names and defaults are those of DeepSpeed 0.19 (deepspeed.ai/docs/config-json). Other keys are
 * listed for a warning. One that is on (true or an object) might change the training, and is
 * refused unless it is known not to.
 */
#include "train/deepspeed/file.h"

#include "core/plain_text.h"
#include "tensor/fields.h"
#include "text/json.h"
#include "text/plain_numbers.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define KEY(path, member, ...) TN_FIELD_AS(path, tn__ds_file, member, __VA_ARGS__)
#define FROM_0 .least = 0, .most = DBL_MAX
#define BELOW_1 .least = 0, .most = 1 - DBL_EPSILON / 2
/* Small enough that products of batch sizes fit into 64 bits. */
#define UP_TO(number) .least = 1, .most = (number)
#define WHOLE_MOST 1e15
#define SCALE_MOST 0x1p127 /* it multiplies f32 numbers */

static const char *const devices[] = {"none", "cpu", NULL};
static const char *const reductions[] = {"mean", "sum", NULL};
static const char *const warmups[] = {"log", "linear", NULL};
static const char *const optimizers[] = {"Adam", "AdamW", "SGD", NULL};
static const char *const schedulers[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", NULL};

static const tn_field fields[] = {
    KEY("train_batch_size", batch, UP_TO(WHOLE_MOST)),
    KEY("train_micro_batch_size_per_gpu", micro_batch, UP_TO(1e9)),
    KEY("gradient_accumulation_steps", accumulation, UP_TO(1e6)),
    KEY("gradient_clipping", clipping, FROM_0),
    KEY("gradient_allreduce_op", sum, .names = reductions),
    KEY("optimizer.type", optimizer.kind, .names = optimizers),
    KEY("optimizer.params.lr", optimizer.lr, FROM_0),
    KEY("optimizer.params.weight_decay", optimizer.weight_decay, FROM_0),
    KEY("optimizer.params.betas.0", optimizer.betas[0], BELOW_1),
    KEY("optimizer.params.betas.1", optimizer.betas[1], BELOW_1),
    KEY("optimizer.params.eps", optimizer.eps, FROM_0),
    KEY("optimizer.params.adam_w_mode", optimizer.adam_w_mode),
    KEY("optimizer.params.momentum", optimizer.momentum, FROM_0),
    KEY("optimizer.params.dampening", optimizer.dampening, FROM_0),
    KEY("optimizer.params.nesterov", optimizer.nesterov),
    KEY("scheduler.type", schedule.kind, .names = schedulers),
    KEY("scheduler.params.warmup_num_steps", schedule.warmup, .most = WHOLE_MOST),
    KEY("scheduler.params.warmup_type", schedule.linear, .names = warmups),
    KEY("scheduler.params.warmup_min_lr", schedule.low, FROM_0),
    KEY("scheduler.params.warmup_max_lr", schedule.high, FROM_0),
    KEY("scheduler.params.warmup_min_ratio", schedule.low_ratio, FROM_0),
    KEY("scheduler.params.cos_min_ratio", schedule.end_ratio, FROM_0),
    KEY("scheduler.params.total_num_steps", schedule.total, UP_TO(WHOLE_MOST)),
    KEY("fp16.enabled", fp16.enabled),
    KEY("fp16.loss_scale", fp16.scale, .most = SCALE_MOST),
    KEY("fp16.initial_scale_power", fp16.power, .most = 127),
    KEY("fp16.loss_scale_window", fp16.window, UP_TO(WHOLE_MOST)),
    KEY("fp16.min_loss_scale", fp16.least, .most = SCALE_MOST),
    KEY("bf16.enabled", bf16.enabled),
    KEY("zero_optimization.stage", stage, .most = 3),
    KEY("zero_optimization.ignore_unused_parameters", find_unused),
    KEY("zero_optimization.offload_optimizer.device", offload_optimizer, .names = devices),
    KEY("zero_optimization.offload_param.device", offload_param, .names = devices),
    {0},
};

/* Keys, anywhere in the file, that may be on: they do not change what is trained. */
static const char harmless[] =
    " activation_checkpointing aio allgather_partitions auto_cast check_grad_overflow checkpoint "
    "comms_logger compile consecutive_hysteresis contiguous_gradients csv_monitor data_types "
    "dataloader_drop_last dump_state elastic_checkpoint fast_init flops_profiler foreach fused "
    "load_from_fp32_weights memory_breakdown monitor_config "
    "overlap_comm pin_memory pipeline_read pipeline_write prescale_gradients reduce_scatter "
    "round_robin_gradients stage3_gather_16bit_weights_on_model_save tensorboard "
    "wall_clock_breakdown wandb zero_allow_untested_optimizer zero_force_ds_cpu_optimizer ";

/* ---- Values ---------------------------------------------------------------------------------- */

typedef struct reader {
    tn__ds_file *f;
    const char *operation, *file;
    char path[256]; /* of the value being read */
} reader;

/* The field of the path, or, with `within`, the first one below it; NULL: there is none. */
static const tn_field *find_field(const char *path, bool within) {
    size_t length = strlen(path);
    for (const tn_field *f = fields; f->name; f++) {
        if (strncmp(f->name, path, length) == 0 && f->name[length] == (within ? '.' : 0)) {
            return f;
        }
    }
    return NULL;
}

/* False after raising. `wrong`: "(should be true or false)" */
static bool refuse_value(const reader *r, tn_status status, const tn__json *value,
                         const char *wrong) {
    const char *mark = value->kind == TN__JSON_TEXT ? "\"" : "";
    const char *text = value->kind == TN__JSON_OBJECT ? "an object"
                       : value->kind == TN__JSON_LIST ? "a list"
                                                      : value->text;
    return tn__fail(status, r->operation, "%s: %s is %s%.80s%s (%s)", r->file,
                    *r->path ? r->path : "the top level", mark, text, mark, wrong);
}

static bool read_field(const reader *r, const tn_field *field, const tn__json *value) {
    bool one = value->kind != TN__JSON_OBJECT && value->kind != TN__JSON_LIST;
    const char *said = value->text;
    for (int i = 0; one && field->names && field->names[i]; i++) {
        said = strcasecmp(said, field->names[i]) == 0 ? field->names[i] : said;
    }
    if (one && tn__field_read(field, r->f, said)) { return true; }
    char range[128], wrong[160];
    tn__field_range(field, range, sizeof(range));
    snprintf(wrong, sizeof(wrong), "should be %s%s",
             field->kind == TN_FIELD_INT64 ? "a whole number, " : "", range);
    return refuse_value(r, TN_EVALUE, value, wrong);
}

static bool is_word(const tn__json *value, const char *word) {
    return value->kind == TN__JSON_WORD && strcmp(value->text, word) == 0;
}

/* A key that does nothing here: listed, and refused if it might change the training. */
static bool pass_over(const reader *r, const tn__json *value, const char *key) {
    const tn__json *enabled = tn__json_get(value, "enabled"), *on = enabled ? enabled : value;
    char word[100], *unread = r->f->unread;
    size_t used = strlen(unread);
    snprintf(unread + used, sizeof(r->f->unread) - used, "%s%s", used ? ", " : "", r->path);
    snprintf(word, sizeof(word), " %s ", key);
    bool off = on->kind != TN__JSON_OBJECT && !is_word(on, "true");
    return off || strstr(harmless, word) ||
           refuse_value(r, TN_EUNSUPPORTED, value, "Tern has no such key: docs/deepspeed.md");
}

static bool read_members(reader *r, const tn__json *object);

static bool read_value(reader *r, const tn__json *value, const char *key) {
    const tn_field *field = find_field(r->path, false), *below = find_field(r->path, true);
    bool pair = below && strcmp(below->name + strlen(r->path), ".0") == 0;
    if (is_word(value, "null")) { return true; }
    if (strchr(key, '.') || (!field && !below)) { return pass_over(r, value, key); }
    if (field) { return read_field(r, field, value); }
    if (value->kind != (pair ? TN__JSON_LIST : TN__JSON_OBJECT) || (pair && value->count != 2)) {
        return refuse_value(r, TN_EVALUE, value,
                            pair ? "should be a list of two numbers" : "should be an object");
    }
    if (strstr(below->name, ".type") && !tn__json_get(value, "type")) {
        return tn__fail(TN_EVALUE, r->operation, "%s: %s is missing", r->file, below->name);
    }
    return read_members(r, value);
}

/* The members of an object, or the elements of a list, whose keys are their numbers. */
static bool read_members(reader *r, const tn__json *object) {
    size_t length = strlen(r->path);
    bool list = object->kind == TN__JSON_LIST, done = true;
    const tn__json *member = tn__json_first(object);
    for (uint32_t i = 0; done && i < object->count; i++, member = tn__json_next(member)) {
        char number[16], *end = r->path + length;
        snprintf(number, sizeof(number), "%u", i);
        const char *key = list ? number : member->key;
        snprintf(end, sizeof(r->path) - length, "%s%.80s", length ? "." : "", key);
        if (!list && tn__json_get(object, key) != member) {
            tn__raise(TN_EVALUE, r->operation, "%s: %s occurs twice", r->file, r->path);
        }
        done = !tn__pending() && read_value(r, member, key);
    }
    r->path[length] = 0;
    return done;
}

/* ---- How the keys combine -------------------------------------------------------------------- */

/* NaN, 0 and -1 mean not given. */
static const tn__ds_file defaults = {
    .clipping = 1,
    .optimizer = {.kind = -1, .lr = 1e-3, .betas = {0.9, 0.999}, .eps = 1e-8, .adam_w_mode = true},
    .schedule = {.kind = -1, .high = NAN, .end_ratio = 1e-4, .warmup = 1000},
    .fp16 = {.power = 16, .window = 1000, .least = 1},
};

/* Derives what is not given from the rest. */
static void settle_batch(const reader *r, int ranks) {
    tn__ds_file *f = r->f;
    if (!f->batch && !f->micro_batch) {
        tn__raise(TN_EVALUE, r->operation,
                  "%s: train_batch_size and train_micro_batch_size_per_gpu are missing; one of "
                  "them should be there",
                  r->file);
        return;
    }
    if (!f->accumulation) {
        f->accumulation = f->batch && f->micro_batch ? f->batch / f->micro_batch / ranks : 1;
    }
    if (!f->micro_batch) { f->micro_batch = f->batch / f->accumulation / ranks; }
    int64_t product = f->micro_batch * f->accumulation * ranks;
    f->batch = f->batch ? f->batch : product;
    if (f->batch != product) {
        tn__raise(TN_EVALUE, r->operation,
                  "%s: train_batch_size %lld is not train_micro_batch_size_per_gpu %lld x "
                  "gradient_accumulation_steps %lld x %d rank%s",
                  r->file, (long long)f->batch, (long long)f->micro_batch,
                  (long long)f->accumulation, ranks, ranks == 1 ? "" : "s");
    }
}

static void settle_optimizer(const reader *r) {
    tn__ds_file *f = r->f;
    bool momentum = f->optimizer.momentum > 0 || f->optimizer.dampening > 0;
    if (f->optimizer.kind != TN__DS_SGD && (momentum || f->optimizer.nesterov)) {
        tn__raise(TN_EVALUE, r->operation,
                  "%s: momentum, dampening and nesterov in optimizer.params are SGD's", r->file);
    }
    if (f->optimizer.kind == TN__DS_ADAM && f->optimizer.adam_w_mode) {
        f->optimizer.kind = TN__DS_ADAMW;
    }
}

static void settle_schedule(const reader *r) {
    tn__ds_schedule *s = &r->f->schedule;
    bool cosine = s->kind == TN__DS_WARMUP_COSINE_LR, decay = s->kind == TN__DS_WARMUP_DECAY_LR;
    bool rates = s->low > 0 || !isnan(s->high);
    bool ratios = s->low_ratio > 0 || s->end_ratio != defaults.schedule.end_ratio;
    if ((cosine ? rates : ratios) || (!cosine && !decay && s->total)) {
        tn__raise(TN_EVALUE, r->operation,
                  "%s: scheduler.params has a key that %s does not have (docs/deepspeed.md)",
                  r->file, s->kind < 0 ? "no scheduler" : schedulers[s->kind]);
    } else if ((cosine || decay) && !s->total) {
        tn__raise(TN_EVALUE, r->operation, "%s: scheduler.params.total_num_steps is missing",
                  r->file);
    }
    s->high = isnan(s->high) && decay ? 1e-3 : s->high;
    s->warmup = s->warmup < 2 ? 2 : s->warmup; /* with 1 the logarithm would be 0 */
}

static void settle_zero(const reader *r) {
    const tn__ds_file *f = r->f;
    if (f->fp16.enabled && f->bf16.enabled) {
        tn__raise(TN_EVALUE, r->operation, "%s: fp16.enabled and bf16.enabled are both true",
                  r->file);
    } else if ((f->offload_optimizer && f->stage < 1) || (f->offload_param && f->stage < 3)) {
        tn__raise(TN_EVALUE, r->operation,
                  "%s: zero_optimization.offload_%s with stage %lld (should be stage %s)", r->file,
                  f->offload_param ? "param" : "optimizer", (long long)f->stage,
                  f->offload_param ? "3" : "1, 2 or 3");
    }
}

bool tn__ds_read(tn__ds_file *f, const char *operation, const char *path, const char *text,
                 size_t bytes, int ranks) {
    reader r = {.f = f, .operation = operation, .file = path};
    tn__json_file json;
    *f = defaults;
    if (!tn__json_read_any(&json, text, bytes)) {
        return tn__fail(json.wrong ? TN_EFORMAT : TN_ENOMEM, operation, "%s: %s (byte %zu)", path,
                        json.wrong ? json.wrong : "no memory to read it", json.at);
    }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    if (json.values->kind != TN__JSON_OBJECT) {
        refuse_value(&r, TN_EVALUE, json.values, "should be an object");
    } else if (read_members(&r, json.values)) {
        settle_batch(&r, ranks);
        settle_optimizer(&r);
        settle_schedule(&r);
        settle_zero(&r);
    }
    tn__plain_numbers_end(numbers);
    tn__json_free(&json);
    tn__plain_lines(f->unread); /* for a log */
    return !tn__pending();
}

/* ---- Learning rates -------------------------------------------------------------------------- */

/* DeepSpeed's schedules count iterations from the end of the first step: that step has the initial
 * rate, and the second is iteration 0. */
double tn__ds_lr(const tn__ds_schedule *s, double rate, int64_t steps) {
    const double pi = 3.14159265358979323846;
    double at = (double)steps - 1, warmup = (double)s->warmup, total = (double)s->total;
    double length = total > warmup + 1 ? total - warmup : 1;
    bool cosine = s->kind == TN__DS_WARMUP_COSINE_LR;
    double low = cosine ? s->low_ratio * rate : s->low, high = isnan(s->high) ? rate : s->high;
    if (at < 0) { return cosine ? 0 : low; }
    if (at < warmup) {
        double part = s->linear ? at / warmup : log(at + 1) / log(warmup);
        return low + (high - low) * part;
    }
    if (s->kind == TN__DS_WARMUP_DECAY_LR) {
        return low + (high - low) * fmax(0, (total - at) / length);
    }
    if (cosine) {
        double part = fmin(1, (at - warmup + 1) / length), end = s->end_ratio * rate;
        return end + (high - end) * (1 + cos(pi * part)) / 2;
    }
    return high;
}
