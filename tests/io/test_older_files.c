/* Checkpoints and models of version 40cd7f8, whose options are prose: they load, and differences
 * are named as in today's files. The texts are that version's; the tensors are written now. */
#define _GNU_SOURCE
#include "tests/support/test.h"

#include "tests/io/older_runs.h"
#include "tests/io/older_texts.h"
#include "tests/support/digest.h"
#include "tests/support/temp.h"

#include "distributed/parallel/save/convert.h"

static const char *const keys[] = {
    "format",
    "step",
    "note",
    "model",
    "optim",
    "optim.options",
    "optim.group.0",
    "optim.group.1",
    "optim.group.0.parameters",
    "optim.group.1.parameters",
    "schedule",
    "loader",
    "loader.data",
    "loader.place",
    "loader.passes",
    "loader.share",
    "generator",
    "scaler",
    "scaler.options",
    "plateau",
    "plateau.options",
    "average",
    "average.options",
};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static const char *older_text(int i, const char *key) {
    for (size_t k = 0; k < sizeof(older_texts) / sizeof(older_texts[0]); k++) {
        if (older_texts[k].run == i && strcmp(older_texts[k].key, key) == 0) {
            return older_texts[k].text;
        }
    }
    return NULL;
}

/* The file with the older texts, one of which may get `more` after it. */
static void make_older(int number, const char *from, const char *to, const char *key,
                       const char *more) {
    TN_SCOPE;
    tn_safetensors *f = tn_safetensors_open(from);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    bool digest = tn_safetensors_metadata(f, "digest") != NULL;
    if (digest) {
        tn_safetensors_writer_add_metadata(w, "digest", "00000000000000000000000000000000");
    }
    for (int i = 0; i < KEYS; i++) {
        const char *now = tn_safetensors_metadata(f, keys[i]), *older = older_text(number, keys[i]);
        char text[8192];
        snprintf(text, sizeof(text), "%s%s",
                 older ? older
                 : now ? now
                       : "",
                 key && strcmp(key, keys[i]) == 0 ? more : "");
        if (now) {
            tn_safetensors_writer_add_metadata(w, keys[i], text);
        }
    }
    for (int i = 0; i < tn_safetensors_count(f); i++) {
        const char *name = tn_safetensors_name(f, i);
        tn_safetensors_writer_add(w, name, tn_safetensors_get(f, name));
    }
    tn_safetensors_close(f);
    assert_int_equal(tn_safetensors_writer_save(w, to), TN_OK);
    size_t bytes;
    unsigned char *file = temp_read(to, &bytes);
    put_digest(file, bytes);
    temp_write(to, file, bytes);
    free(file);
}

/* Makes all of the state differ from the checkpoint's. */
static void disturb_run(run *r) {
    tn_optim_set_steps(r->c.optim, 1);
    tn_optim_set_lr(r->c.optim, 5);
    tn_loader_seek(r->c.loader, (tn_loader_place){0});
    tn_scaler_seek(r->c.scaler, (tn_scaler_state){.scale = 1});
    tn_average_update(r->c.average);
    r->generator = (tn_generator){0};
    r->plateau.state = (tn_plateau_state){0};
    r->c.step = 0;
    r->c.note[0] = 0;
}

static void check_state(const run *r, const run *was) {
    assert_int_equal(r->c.step, was->c.step);
    assert_string_equal(r->c.note, was->c.note);
    assert_int_equal(tn_optim_steps(r->c.optim), tn_optim_steps(was->c.optim));
    assert_float_equal(tn_optim_lr(r->c.optim), tn_optim_lr(was->c.optim), 0);
    for (int i = 0; i < tn_optim_groups(r->c.optim); i++) {
        const tn_optim_group_options *a = tn_optim_group(r->c.optim, i);
        const tn_optim_group_options *b = tn_optim_group(was->c.optim, i);
        assert_float_equal(a->lr_scale, b->lr_scale, 0);
        assert_float_equal(a->weight_decay, b->weight_decay, 0);
    }
    tn_loader_place a = tn_loader_where(r->c.loader), b = tn_loader_where(was->c.loader);
    int64_t batches = tn_loader_batches(r->c.loader);
    assert_int_equal(a.epoch * batches + a.index, b.epoch * batches + b.index);
    tn_scaler_state x = tn_scaler_where(r->c.scaler), y = tn_scaler_where(was->c.scaler);
    assert_true(x.scale == y.scale && x.streak == y.streak);
    assert_int_equal(tn_average_updates(r->c.average), tn_average_updates(was->c.average));
    assert_memory_equal(&r->generator, &was->generator, sizeof(r->generator));
    assert_float_equal(r->plateau.state.lr, was->plateau.state.lr, 0);
    assert_float_equal(r->plateau.state.best, was->plateau.state.best, 0);
    assert_int_equal(r->plateau.state.bad, was->plateau.state.bad);
    assert_true(r->plateau.state.any);
}

static void test_older_checkpoints_load(void **state) {
    const char *now = temp_path("now"), *older = temp_path("older");
    for (int i = 0; i < RUNS; i++) {
        run saved, loaded;
        run_open(&saved, i);
        assert_int_equal(tn_checkpoint_save(&saved.c, now), TN_OK);
        make_older(i, now, older, NULL, NULL);
        run_open(&loaded, i);
        disturb_run(&loaded);
        if (tn_checkpoint_load(&loaded.c, older) != TN_OK) {
            fail_msg("run %d: %s", i, tn_error_message());
        }
        check_state(&loaded, &saved);
        run_close(&loaded);
        run_close(&saved);
    }
}

/* Each text is compared. */
static void test_older_checkpoints_of_another_run(void **state) {
    static const struct {
        const char *key, *more, *told;
    } changes[] = {
        {"model", "new: linear, width 3\n", "new: was there but no longer is (linear)"},
        {"optim.options", ", extra 1", ": extra was 1 but is not set"},
        {"schedule", ", extra 0x1.8p+1", "the schedule: extra was 3 but is not set"},
        {"loader", ", extra one", "the loader: extra was one but is not set"},
        {"loader.data", ", digest of z 12", "the data: digest of z was 12 but is not set"},
        {"scaler.options", ", extra 1", "the scaler: extra was 1 but is not set"},
        {"plateau.options", ", extra 1", "the plateau: extra was 1 but is not set"},
        {"average.options", ", extra 1", "the average: extra was 1 but is not set"},
    };
    const char *now = temp_path("now"), *older = temp_path("older");
    for (int i = 0; i < RUNS; i++) {
        run r;
        run_open(&r, i);
        assert_int_equal(tn_checkpoint_save(&r.c, now), TN_OK);
        for (size_t k = 0; k < sizeof(changes) / sizeof(changes[0]); k++) {
            if (!older_text(i, changes[k].key)) {
                continue;
            }
            make_older(i, now, older, changes[k].key, changes[k].more);
            assert_int_equal(tn_checkpoint_load(&r.c, older), TN_EMISMATCH);
            if (strstr(tn_error_message(), "was ") == NULL) {
                fail_msg("run %d: %s", i, tn_error_message());
            }
            assert_error(TN_EMISMATCH, changes[k].told);
        }
        run_close(&r);
    }
}

/* Differences have the same names and values as in today's files. */
static void test_older_values_are_named(void **state) {
    const char *now = temp_path("now"), *older = temp_path("older");
    run r;
    run_open(&r, 0);
    assert_int_equal(tn_checkpoint_save(&r.c, now), TN_OK);
    make_older(0, now, older, NULL, NULL);
    tn_gpt *m = (tn_gpt *)r.model;
    m->h[1].attn.causal = false;
    m->stem.drop.p = 0.25;
    r.schedule.peak = 0.2;
    r.schedule.steps = 99;
    r.plateau.absolute = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tn_checkpoint_load(&r.c, i ? now : older), TN_EMISMATCH);
        assert_error(TN_EMISMATCH, "drop: p was 0.1 but is 0.25; h.1.attn: causal was true but is "
                                   "false; the schedule: peak was 0.1 but is 0.2; the schedule: "
                                   "steps was 100 but is 99");
    }
    /* more steps are allowed */
    m->h[1].attn.causal = true;
    m->stem.drop.p = 0.1;
    r.schedule.peak = 0.1;
    r.schedule.steps = 101;
    r.plateau.absolute = false;
    for (int i = 0; i < 2; i++) {
        int64_t before = 0;
        r.c.longer_than = &before;
        assert_int_equal(tn_checkpoint_load(&r.c, i ? now : older), TN_OK);
        assert_int_equal(before, 100);
        r.schedule.end = 0.5;
        assert_int_equal(tn_checkpoint_load(&r.c, i ? now : older), TN_EMISMATCH);
        assert_error(TN_EMISMATCH, "the schedule: end was 0.333333 but is 0.5; the "
                                   "schedule: steps was 100 but is 101");
        r.schedule.end = 1.0 / 3;
    }
    run_close(&r);
}

/* Language models are rebuilt from what the file says about them. */
static void test_older_models(void **state) {
    const char *now = temp_path("now"), *older = temp_path("older");
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        run r;
        run_open(&r, i);
        assert_int_equal(tn_save(r.model, now), TN_OK);
        make_older(i, now, older, NULL, NULL);
        assert_int_equal(tn_load(r.model, older), TN_OK);
        tn_module *m = tn__saver_model(older, tn_lm_load_defaults());
        if (!m) {
            fail_msg("%s", tn_error_message());
        }
        tn_module_train(r.model, false);
        tn_module_train(m, false);
        tn_tensor *tokens = TN_FROM(((int64_t[]){1, 5, 9, 30}), TN_DIMS(1, 4), TN_I64);
        tn_values in = tn_values_of(tokens, NULL);
        tn_tensor *wanted = tn_call_values(r.model, in, NULL).v[0];
        assert_true(tn_equal(tn_call_values(m, in, NULL).v[0], wanted));
        assert_int_equal(tn_error(), TN_OK);
        if (i == 1) {
            const tn_llama_options *a = &((tn_llama *)m)->options;
            const tn_llama_options *b = &((tn_llama *)r.model)->options;
            assert_int_equal(a->context, b->context);
            assert_int_equal(a->rotary.original_context, 512);
            assert_float_equal(a->rotary.theta, 50000.5, 0);
        }
        tn_lm_free(m);
        run_close(&r);
    }
}

/* Names that occur again and again, which no version has written. */
static void test_endless_lists(void **state) {
    TN_SCOPE;
    enum { ITEMS = 200000 };
    static const char head[] = ".: linear", item[] = ", a 1";
    char *text = malloc(sizeof(head) + ITEMS * strlen(item));
    const char *path = temp_path("endless");
    char *end = stpcpy(text, head);
    for (int i = 0; i < ITEMS; i++) {
        end = stpcpy(end, item);
    }
    tn_linear *m = tn_linear_new(2, 2);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add_metadata(w, "model", text);
    tn_safetensors_writer_add(w, "weight", tn_zeros(TN_DIMS(2, 2), TN_F32));
    tn_safetensors_writer_add(w, "bias", tn_zeros(TN_DIMS(2), TN_F32));
    assert_int_equal(tn_safetensors_writer_save(w, path), TN_OK);
    assert_int_equal(tn_load(m, path), TN_OK);
    tn_module_free(m);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_older_checkpoints_load), TEST(test_older_checkpoints_of_another_run),
        TEST(test_older_values_are_named), TEST(test_older_models),
        TEST(test_endless_lists),
    };
    return cmocka_run_group_tests_name("older files", tests, NULL, temp_clean);
}
