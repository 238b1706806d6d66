/* What a file in DeepSpeed's format says, and how a wrong one is refused: file, path and value. */
#include "tests/fuzz/fuzz_deepspeed.c"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator.h"
#include "train/deepspeed/file.h"

#include "tests/support/replay.h"
#include "tests/support/test.h"

static bool read_text(const char *text, int ranks, tn__ds_file *f) {
    return tn__ds_read(f, "deepspeed", "ds.json", text, strlen(text), ranks);
}

static tn__ds_file file_of(const char *text, int ranks) {
    tn__ds_file f;
    if (!read_text(text, ranks, &f)) { fail_msg("%s: %s", text, tn_error_message()); }
    return f;
}

/* A file with what every file needs, and one more member. */
static const char *with_member(const char *member) {
    static char text[4096];
    snprintf(text, sizeof(text),
             "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\"}%s%s}",
             *member ? ", " : "", member);
    return text;
}

/* ---- What it says ---------------------------------------------------------------------------- */

TEST(test_defaults) {
    tn__ds_file f = file_of(with_member(""), 2);
    assert_true(f.batch == 8 && f.micro_batch == 4 && f.accumulation == 1);
    assert_true(f.clipping == 1 && f.sum == 0 && f.stage == 0 && !f.find_unused);
    assert_true(!f.offload_optimizer && !f.offload_param && !f.fp16.enabled && !f.bf16.enabled);
    assert_int_equal(f.optimizer.kind, TN__DS_ADAMW); /* adam_w_mode is true */
    assert_true(f.optimizer.lr == 1e-3 && f.optimizer.eps == 1e-8 && f.optimizer.weight_decay == 0);
    assert_true(f.optimizer.betas[0] == 0.9 && f.optimizer.betas[1] == 0.999);
    assert_int_equal(f.schedule.kind, -1);
    assert_string_equal(f.unread, "");
    assert_int_equal(file_of("{\"train_batch_size\": 8, \"optimizer\": null}", 1).optimizer.kind,
                     -1);
}

TEST(test_everything) {
    tn__ds_file f = file_of(
        "{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 2,\n"
        " \"gradient_accumulation_steps\": 3, \"gradient_clipping\": 0.5,\n"
        " \"gradient_allreduce_op\": \"sum\", \"steps_per_print\": 10,\n"
        " \"optimizer\": {\"type\": \"adamw\", \"params\": {\"lr\": 3e-4, \"betas\": [0.8, 0.95],\n"
        "    \"eps\": 1e-7, \"weight_decay\": 0.1, \"amsgrad\": false}},\n"
        " \"scheduler\": {\"params\": {\"warmup_min_ratio\": 0.5, \"cos_min_ratio\": 0.25,\n"
        "    \"warmup_num_steps\": 7, \"total_num_steps\": 70, \"warmup_type\": \"linear\"},\n"
        "    \"type\": \"WarmupCosineLR\"},\n"
        " \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 12,\n"
        "    \"loss_scale_window\": \"50\", \"hysteresis\": 3, \"consecutive_hysteresis\": true,\n"
        "    \"min_loss_scale\": 4, \"auto_cast\": false},\n"
        " \"bf16\": {\"enabled\": false}, \"amp\": {\"enabled\": false}, \"elasticity\": null,\n"
        " \"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true,\n"
        "    \"reduce_bucket_size\": \"auto\", \"ignore_unused_parameters\": true,\n"
        "    \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true, \"ratio\": 1.0},\n"
        "    \"offload_param\": {\"device\": \"none\"}}}\n",
        4);
    assert_true(f.batch == 24 && f.micro_batch == 2 && f.accumulation == 3);
    assert_true(f.clipping == 0.5 && f.sum == 1);
    assert_true(f.optimizer.kind == TN__DS_ADAMW && f.optimizer.lr == 3e-4);
    assert_true(f.optimizer.betas[0] == 0.8 && f.optimizer.betas[1] == 0.95);
    assert_true(f.optimizer.eps == 1e-7 && f.optimizer.weight_decay == 0.1);
    assert_true(f.schedule.kind == TN__DS_WARMUP_COSINE_LR && f.schedule.linear == 1);
    assert_true(f.schedule.low_ratio == 0.5 && f.schedule.end_ratio == 0.25);
    assert_true(f.schedule.warmup == 7 && f.schedule.total == 70);
    assert_true(f.fp16.enabled && f.fp16.scale == 0 && f.fp16.power == 12);
    assert_true(f.fp16.window == 50 && f.fp16.least == 4);
    assert_true(f.stage == 3 && f.offload_optimizer == 1 && f.offload_param == 0 && f.find_unused);
    assert_string_equal(f.unread,
                        "steps_per_print, optimizer.params.amsgrad, fp16.hysteresis, "
                        "fp16.consecutive_hysteresis, fp16.auto_cast, amp, "
                        "zero_optimization.overlap_comm, zero_optimization.reduce_bucket_size, "
                        "zero_optimization.offload_optimizer.pin_memory, "
                        "zero_optimization.offload_optimizer.ratio");
}

/* A path is no key. */
TEST(test_points_in_keys) {
    tn__ds_file f = file_of(with_member("\"zero_optimization.stage\": 3"), 1);
    assert_int_equal(f.stage, 0);
    assert_string_equal(f.unread, "zero_optimization.stage");
}

TEST(test_optimizers) {
    static const struct {
        const char *optimizer;
        int kind;
        double decay;
    } cases[] = {
        {"{\"type\": \"AdamW\"}", TN__DS_ADAMW, 0},
        {"{\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}", TN__DS_ADAMW, 0},
        {"{\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}", TN__DS_ADAM, 0},
        {"{\"params\": {\"weight_decay\": 0.01}, \"type\": \"AdamW\"}", TN__DS_ADAMW, 0.01},
        {"{\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true}}", TN__DS_SGD, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];
        snprintf(text, sizeof(text), "{\"train_batch_size\": 1, \"optimizer\": %s}",
                 cases[i].optimizer);
        tn__ds_file f = file_of(text, 1);
        assert_int_equal(f.optimizer.kind, cases[i].kind);
        assert_true(f.optimizer.weight_decay == cases[i].decay);
    }
}

/* Two of the three sizes give the third, and one of the first two is enough. */
TEST(test_batch_sizes) {
    static const struct {
        int said[3]; /* 0: not */
        int ranks, is[3];
        const char *wrong;
    } cases[] = {
        {{24, 2, 3}, 4, {24, 2, 3}, NULL},
        {{24, 2, 0}, 4, {24, 2, 3}, NULL},
        {{24, 0, 3}, 4, {24, 2, 3}, NULL},
        {{0, 2, 3}, 4, {24, 2, 3}, NULL},
        {{24, 0, 0}, 4, {24, 6, 1}, NULL},
        {{0, 2, 0}, 4, {8, 2, 1}, NULL},
        {{0, 1000000000, 1000000}, 1, {0}, NULL},
        {{24, 2, 4},
         4,
         {0},
         "train_batch_size 24 is not train_micro_batch_size_per_gpu 2 x "
         "gradient_accumulation_steps 4 x 4 ranks"},
        {{7, 2, 0}, 1, {0}, "size_per_gpu 2 x gradient_accumulation_steps 3 x 1 rank"},
        {{7, 8, 0}, 1, {0}, "size_per_gpu 8 x gradient_accumulation_steps 0 x 1 rank"},
        {{7, 0, 0}, 2, {0}, "size_per_gpu 3 x gradient_accumulation_steps 1 x 2 ranks"},
        {{7, 0, 9}, 2, {0}, "size_per_gpu 0 x gradient_accumulation_steps 9 x 2 ranks"},
        {{0, 0, 3}, 1, {0}, "one of them should be there"},
        {{0, 0, 0}, 1, {0}, "one of them should be there"},
    };
    static const char *const names[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256] = "{\"optimizer\": {\"type\": \"Adam\"}";
        for (int k = 0; k < 3; k++) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof(text) - used, ", \"%s\": ", names[k]);
            used = strlen(text);
            snprintf(text + used, sizeof(text) - used, cases[i].said[k] ? "%d" : "null",
                     cases[i].said[k]);
        }
        strcat(text, "}");
        tn__ds_file f;
        bool done = read_text(text, cases[i].ranks, &f);
        if (cases[i].wrong) {
            assert_false(done);
            assert_error(TN_EVALUE, cases[i].wrong);
        } else if (cases[i].is[0]) {
            assert_int_equal(f.batch, cases[i].is[0]);
            assert_int_equal(f.micro_batch, cases[i].is[1]);
            assert_int_equal(f.accumulation, cases[i].is[2]);
        }
        tn_error_clear();
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

TEST(test_refused) {
    static const struct {
        const char *member;
        tn_status status;
        const char *message;
    } cases[] = {
        /* wrong types */
        {"\"gradient_clipping\": \"one\"", TN_EVALUE,
         "ds.json: gradient_clipping is \"one\" (should be at least 0)"},
        {"\"gradient_accumulation_steps\": 2.5", TN_EVALUE,
         "gradient_accumulation_steps is 2.5 (should be a whole number, 1 to 1000000)"},
        {"\"gradient_accumulation_steps\": true", TN_EVALUE, "is true (should be a whole number"},
        {"\"fp16\": {\"enabled\": 2}", TN_EVALUE, "fp16.enabled is 2 (should be true or false)"},
        {"\"fp16\": true", TN_EVALUE, "fp16 is true (should be an object)"},
        {"\"fp16\": []", TN_EVALUE, "fp16 is a list (should be an object)"},
        {"\"bf16\": {\"enabled\": {}}", TN_EVALUE, "bf16.enabled is an object (should be true"},
        {"\"scheduler\": {\"type\": 3}", TN_EVALUE,
         "scheduler.type is 3 (should be one of WarmupLR, WarmupDecayLR, WarmupCosineLR)"},
        {"\"scheduler\": {\"type\": \"OneCycle\"}", TN_EVALUE, "scheduler.type is \"OneCycle\""},
        {"\"scheduler\": {\"params\": {}}", TN_EVALUE, "scheduler.type is missing"},
        /* out of range */
        {"\"gradient_clipping\": -1", TN_EVALUE, "gradient_clipping is -1"},
        {"\"gradient_clipping\": 1e999", TN_EVALUE, "gradient_clipping is 1e999"},
        {"\"gradient_accumulation_steps\": 0", TN_EVALUE, "gradient_accumulation_steps is 0"},
        {"\"gradient_accumulation_steps\": 99999999999999999999", TN_EVALUE, "99999 (should be"},
        {"\"zero_optimization\": {\"stage\": 4}", TN_EVALUE,
         "zero_optimization.stage is 4 (should be a whole number, 0 to 3)"},
        {"\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}", TN_EVALUE,
         "zero_optimization.offload_param.device is \"nvme\" (should be one of none, cpu)"},
        /* "auto" is for other programs to fill in */
        {"\"gradient_clipping\": \"auto\"", TN_EVALUE, "gradient_clipping is \"auto\""},
        {"\"bf16\": {\"enabled\": \"auto\"}", TN_EVALUE,
         "bf16.enabled is \"auto\" (should be true or false)"},
        {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": \"auto\"}}",
         TN_EVALUE, "scheduler.params.warmup_max_lr is \"auto\""},
        /* twice */
        {"\"train_batch_size\": 8", TN_EVALUE, "train_batch_size occurs twice"},
        {"\"fp16\": {\"enabled\": false, \"enabled\": false}", TN_EVALUE,
         "fp16.enabled occurs twice"},
        /* what might make another run of it */
        {"\"amp\": {\"enabled\": true}", TN_EUNSUPPORTED,
         "ds.json: amp is an object (Tern has no such key: docs/deepspeed.md)"},
        {"\"zero_optimisation\": {\"stage\": 3}", TN_EUNSUPPORTED,
         "zero_optimisation is an object"},
        {"\"zero_optimization\": {\"zenflow\": {}}", TN_EUNSUPPORTED,
         "zero_optimization.zenflow is an"},
        {"\"sparse_gradients\": true", TN_EUNSUPPORTED, "sparse_gradients is true"},
        {"\"a\\u001b[31mb\": true", TN_EUNSUPPORTED, "ds.json: ab is true"},
        {"\"aio compile\": true", TN_EUNSUPPORTED, "aio compile is true"},
        /* of another scheduler */
        {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 3}}", TN_EVALUE,
         "scheduler.params has a key that WarmupLR does not have"},
        {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cos_min_ratio\": 0.1}}", TN_EVALUE,
         "scheduler.params has a key that WarmupLR does not have"},
        {"\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 3, "
         "\"warmup_max_lr\": 0.1}}",
         TN_EVALUE, "scheduler.params has a key that WarmupCosineLR does not have"},
        /* together */
        {"\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}", TN_EVALUE,
         "fp16.enabled and bf16.enabled are both true"},
        {"\"scheduler\": {\"type\": \"WarmupDecayLR\"}", TN_EVALUE,
         "scheduler.params.total_num_steps is missing"},
        {"\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}", TN_EVALUE,
         "offload_optimizer with stage 0 (should be stage 1, 2 or 3)"},
        {"\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}",
         TN_EVALUE, "offload_param with stage 2 (should be stage 3)"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tn__ds_file f;
        assert_false(read_text(with_member(cases[i].member), 1, &f));
        assert_error(cases[i].status, cases[i].message);
    }
}

TEST(test_refused_optimizers) {
    static const struct {
        const char *optimizer;
        tn_status status;
        const char *message;
    } cases[] = {
        {"{}", TN_EVALUE, "optimizer.type is missing"},
        {"{\"type\": \"Lamb\"}", TN_EVALUE,
         "optimizer.type is \"Lamb\" (should be one of Adam, AdamW, SGD)"},
        {"{\"type\": \"Adam\", \"parms\": {}}", TN_EUNSUPPORTED, "optimizer.parms is an object"},
        {"{\"type\": \"Adam\", \"params\": {\"momentum\": 0.9}}", TN_EVALUE,
         "momentum, dampening and nesterov in optimizer.params are SGD's"},
        {"{\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}", TN_EVALUE,
         "optimizer.params.betas is a list (should be a list of two numbers)"},
        {"{\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1]}}", TN_EVALUE,
         "betas.1 is 1 (should be 0 to below 1)"},
        {"{\"type\": \"Adam\", \"params\": {\"betas\": [\"x\", 0]}}", TN_EVALUE,
         "betas.0 is \"x\""},
        {"{\"type\": \"Adam\", \"params\": {\"betas\": 0.9}}", TN_EVALUE, "betas is 0.9 (should"},
        {"{\"type\": \"Adam\", \"params\": {\"amsgrad\": true}}", TN_EUNSUPPORTED,
         "optimizer.params.amsgrad is true"},
        {"{\"type\": \"SGD\", \"params\": {\"lr\": -1e-3}}", TN_EVALUE,
         "optimizer.params.lr is -1e-3"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];
        tn__ds_file f;
        snprintf(text, sizeof(text), "{\"train_batch_size\": 8, \"optimizer\": %s}",
                 cases[i].optimizer);
        assert_false(read_text(text, 1, &f));
        assert_error(cases[i].status, cases[i].message);
    }
}

TEST(test_no_json) {
    static const char *const texts[] = {"",      "{",      "{\"train_batch_size\": 8,}",
                                        "{} {}", "{a: 1}", "{\"fp16\": // no\n {}}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        tn__ds_file f;
        assert_false(read_text(texts[i], 1, &f));
        assert_error(TN_EFORMAT, "ds.json: ");
    }
    tn__ds_file f;
    assert_false(read_text("12", 1, &f)); /* a number with nothing after it */
    assert_error(TN_EVALUE, "ds.json: the top level is 12 (should be an object)");
}

/* The seeds of the fuzz target, and what it has found so far. */
TEST(test_corpus) {
    assert_true(replay_corpus("fuzz_deepspeed", fuzz_deepspeed) >= 8);
}

/* Each allocation that it makes may be the one that fails. */
TEST(test_no_memory) {
    tn__ds_file f;
    bool done = false;
    for (int64_t n = 0; !done; n++) {
        tn__alloc_fail_at(n);
        done = read_text(with_member("\"fp16\": {\"enabled\": true}"), 1, &f);
        tn__alloc_fail_at(-1);
        if (!done) { assert_error(TN_ENOMEM, "ds.json"); }
        assert_true(n < 100);
    }
}

/* ---- Learning rates -------------------------------------------------------------------------- */

/* The values of DeepSpeed's definitions, in 40 digits and then rounded. With i = steps - 1, and the
 * rate of the beginning (the cosine's is 0) for i < 0:
 *
 *     warm-up   low + (high - low) part, part = ln(i + 1) / ln(warmup) or i / warmup   i < warmup
 *     decay     low + (high - low) max(0, (total - i) / max(1, total - warmup))
 *     cosine    end + (high - end) (1 + cos(pi min(1, (i - warmup + 1) / max(1, total - warmup))))
 *               / 2
 */
TEST(test_schedules) {
    enum { POINTS = 14 };
    static const int64_t steps[POINTS] = {0, 1, 2, 5, 10, 11, 12, 26, 40, 41, 60, 1000, 1001, 1500};
    static const struct {
        const char *scheduler;
        double lr[POINTS];
    } cases[] = {
        {"{\"type\": \"WarmupLR\"}",
         {0, 0, 3.010299956639812e-05, 6.989700043360188e-05, 0.0001, 0.0001041392685158225,
          0.0001079181246047625, 0.0001414973347970818, 0.0001602059991327962,
          0.0001612783856719735, 0.0001778151250383644, 0.0003, 0.0003, 0.0003}},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"linear\", "
         "\"warmup_num_steps\": 10, \"warmup_min_lr\": 1e-5, \"warmup_max_lr\": 0.002}}",
         {1e-05, 1e-05, 0.000209, 0.000806, 0.001801, 0.002, 0.002, 0.002, 0.002, 0.002, 0.002,
          0.002, 0.002, 0.002}},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 1}}",
         {0, 0, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003,
          0.0003, 0.0003}},
        {"{\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 0}}",
         {0, 0, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.0003,
          0.0003, 0.0003}},
        {"{\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_num_steps\": 10, "
         "\"total_num_steps\": 40}}",
         {0, 0, 0.0003010299956639812, 0.0006989700043360188, 0.001, 0.001, 0.0009666666666666667,
          0.0005, 3.333333333333333e-05, 0, 0, 0, 0, 0}},
        {"{\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_type\": \"linear\", "
         "\"warmup_num_steps\": 10, \"total_num_steps\": 5, \"warmup_max_lr\": 0.5, "
         "\"warmup_min_lr\": 0.1}}",
         {0.1, 0.1, 0.14, 0.26, 0.46, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}},
        {"{\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_num_steps\": 10, "
         "\"total_num_steps\": 40}}",
         {0, 0, 9.030899869919436e-05, 0.0002096910013008056, 0.0003, 0.0002991783664768105,
          0.0002967224678960599, 0.000134337298436801, 3e-08, 3e-08, 3e-08, 3e-08, 3e-08, 3e-08}},
        {"{\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_type\": \"linear\", "
         "\"warmup_num_steps\": 10, \"total_num_steps\": 40, \"warmup_min_ratio\": 0.1, "
         "\"cos_min_ratio\": 0.2}}",
         {0, 3e-05, 5.7e-05, 0.000138, 0.000273, 0.0002993426274441928, 0.0002973777120880567,
          0.0001674565844078816, 6e-05, 6e-05, 6e-05, 6e-05, 6e-05, 6e-05}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": "
                 "{\"lr\": 3e-4}}, \"scheduler\": %s}",
                 cases[i].scheduler);
        tn__ds_file f = file_of(text, 1);
        for (int k = 0; k < POINTS; k++) {
            double lr = tn__ds_lr(&f.schedule, f.optimizer.lr, steps[k]), want = cases[i].lr[k];
            if (!is_near(lr, want, 1e-14 * want)) { /* 50 roundings of doubles */
                fail_msg("%s after %d steps: %.17g, not %.17g", cases[i].scheduler, (int)steps[k],
                         lr, want);
            }
        }
    }
}
