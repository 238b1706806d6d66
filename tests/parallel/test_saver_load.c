/* Checkpoints in parts converted to other files, and loading from others: one file, damaged files,
 * another model. An error on one rank is an error on all, and changes nothing. Ranks are
 * threads. */
#define _GNU_SOURCE
#include "tests/support/test.h"

#include "core/folder.h"
#include "distributed/parallel/save/convert.h"
#include "tests/parallel/parts_run.h"
#include "tests/support/temp.h"

/* ---- Other files ----------------------------------------------------------------------------- */

typedef struct paths {
    const char *folder, *other;
} paths;

static void save_once(tn_group *world, void *user) {
    const paths *p = user;
    parts_run r;
    parts_run_begin(&r, world, LIES_ODD, p->folder);
    r.c.step = 8;
    parts_run_values(&r, 8, false);
    must(tn_saver_save(r.saver, &r.c) == TN_OK && tn_saver_wait(r.saver) == TN_OK);
    must(tn_dist_export(world, &r.net, p->other) == TN_OK);
    parts_run_close(&r);
}

/* The saved run, on one rank. */
static void open_whole(parts_run *r, uint64_t seed) {
    parts_run_open(r, NULL, LIES_WHOLE);
    parts_run_values(r, seed, false);
}

TEST(converted_and_exported) {
    paths p = {temp_path("converted"), temp_path("exported")};
    const char *one = temp_path("one"), *weights = temp_path("weights"),
               *saved = temp_path("saved");
    run_ok(3, save_once, &p);
    assert_fails(tn__saver_convert(temp_path("nothing"), one, false), TN_EIO,
                 "nothing: No such file");
    assert_int_equal(tn__saver_convert(p.folder, one, false), TN_OK);
    assert_int_equal(tn__saver_convert(temp_path("converted/step-000008"), weights, true), TN_OK);
    parts_run r;
    open_whole(&r, 8);
    assert_int_equal(tn_save(&r.net, saved), TN_OK);
    temp_same(saved, p.other);
    temp_same(saved, weights);
    parts_run_values(&r, 9, false);
    assert_int_equal(tn_checkpoint_load(&r.c, one), TN_OK);
    assert_int_equal(r.c.step, 8);
    parts_run_values(&r, 8, true);
    parts_run_close(&r);
}

typedef struct single {
    const char *path;
    lie how;
} single;

static void load_single(tn_group *world, void *user) {
    const single *one = user;
    parts_run r;
    parts_run_open(&r, world, one->how);
    must(tn_dist_load(world, &r.c, one->path) == TN_OK && r.c.step == 20);
    parts_run_values(&r, 20, true);
    parts_run_close(&r);
}

TEST(checkpoints_of_one_file) {
    const char *path = temp_path("single");
    parts_run r;
    open_whole(&r, 20);
    r.c.step = 20;
    assert_int_equal(tn_checkpoint_save(&r.c, path), TN_OK);
    parts_run_close(&r);
    for (int i = 0; i < WAYS; i++) {
        run_ok(4, load_single, &(single){path, (lie)i});
    }
}

static void refuse_export(tn_group *world, void *user) {
    parts_run r;
    parts_run_open(&r, world, LIES_FLAT);
    must(tn_dist_save(world, &r.c, user) == TN_EUNSUPPORTED);
    must(strstr(tn_error_message(), "tn_saver") != NULL);
    tn_error_clear();
    must(tn_dist_load(world, &r.c, user) == TN_EIO);
    tn_error_clear();
    must(tn_dist_export(world, &r.net, "/nowhere/at/all") == TN_EIO);
    must(strstr(tn_error_message(), "/nowhere/at/all") != NULL);
    tn_error_clear();
    must(tn_barrier(world) == TN_OK);
    parts_run_close(&r);
}

TEST(one_file_is_for_whole_models) {
    const char *path = temp_path("refused");
    run_ok(2, refuse_export, path);
    assert_int_equal(access(path, F_OK), -1);
}

/* ---- Damaged files --------------------------------------------------------------------------- */

typedef struct damage {
    const char *file;      /* in the step's folder */
    const char *from, *to; /* texts of the same length; NULL: the file is cut short or gone */
    const char *part;      /* part of the error message */
    tn_status status;
} damage;

static char damaged_folder[512];

static void load_damaged(tn_group *world, void *user) {
    const damage *d = user;
    parts_run r;
    parts_run_open(&r, world, LIES_CUT);
    parts_run_values(&r, 5, false);
    parts_run_saver(&r, damaged_folder, patient_options(true));
    r.c.step = 77;
    bool found = true;
    tn_status status = tn_saver_load(r.saver, &r.c, &found);
    if (status != d->status || !strstr(tn_error_message(), d->part)) {
        fprintf(stderr, "%s: \"%s\" should say \"%s\"\n", d->file, tn_error_message(), d->part);
        abort();
    }
    tn_error_clear();
    must(!found && r.c.step == 77);
    visiting v = {&r, 5, true}; /* nothing has changed (buffers differ between ranks) */
    tn_optim_each(r.optim, visit_state, &v);
    must(r.generator.seed == 5 && tn_optim_steps(r.optim) == 10);
    must(tn_barrier(world) == TN_OK);
    parts_run_close(&r);
}

static void spoil_bytes(unsigned char *data, size_t *bytes, const damage *d) {
    size_t length = d->from ? strlen(d->from) : 0;
    if (!d->from) {
        *bytes /= 2;
        return;
    }
    assert_int_equal(length, strlen(d->to));
    unsigned char *at = memmem(data, *bytes, d->from, length);
    assert_non_null(at);
    memcpy(at, d->to, length);
}

TEST(damaged_files) {
    static const damage damages[] = {
        {"index.json", NULL, NULL, "index.json: is damaged: its digest is", TN_EFORMAT},
        {"index.json", "\"length\":", "\"lenght\":", "is damaged: its digest", TN_EFORMAT},
        {"index.json", "{\"digest\"", "{\"digets\"", "is not an index of a checkpoint", TN_EFORMAT},
        {"rank-00001.safetensors", NULL, NULL, "rank-00001.safetensors", TN_EFORMAT},
        {"rank-00000.safetensors", "\"shape\":[5]", "\"shape\":[6]", "rank-00000.safetensors",
         TN_EFORMAT},
    };
    snprintf(damaged_folder, sizeof(damaged_folder), "%s", temp_path("damaged"));
    paths p = {damaged_folder, temp_path("unused")};
    run_ok(3, save_once, &p);
    for (size_t i = 0; i < sizeof(damages) / sizeof(*damages); i++) {
        char name[128];
        snprintf(name, sizeof(name), "damaged/step-000008/%s", damages[i].file);
        const char *path = temp_path(name);
        size_t bytes, whole;
        unsigned char *data = temp_read(path, &whole), *spoilt = temp_read(path, &bytes);
        spoil_bytes(spoilt, &bytes, &damages[i]);
        temp_write(path, spoilt, bytes);
        run_ok(4, load_damaged, &damages[i]);
        temp_write(path, data, whole);
        free(data);
        free(spoilt);
    }
    /* a byte of the data */
    damage last = {"rank-00001.safetensors", "", "", "is damaged: its digest is", TN_EFORMAT};
    const char *path = temp_path("damaged/step-000008/rank-00001.safetensors");
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    data[bytes - 1] ^= 1;
    temp_write(path, data, bytes);
    run_ok(4, load_damaged, &last);
    data[bytes - 1] ^= 1;
    temp_write(path, data, bytes);
    free(data);
    /* a missing file; a step without an index */
    assert_int_equal(unlink(path), 0);
    last = (damage){"a file", NULL, NULL, "rank-00001.safetensors: No such file", TN_EIO};
    run_ok(4, load_damaged, &last);
    assert_int_equal(unlink(temp_path("damaged/step-000008/index.json")), 0);
    last = (damage){"the index", NULL, NULL, "index.json: No such file", TN_EIO};
    run_ok(4, load_damaged, &last);
}

/* ---- Another model --------------------------------------------------------------------------- */

typedef struct other_net {
    tn_module base;
    tn_linear in;
} other_net;

static void load_other(tn_group *world, void *user) {
    other_net n;
    tn_module_init(&n, "other_net", parts_forward);
    tn_linear_init(&n.in, 6, tn_group_rank(world) == 1 ? 13 : 12, tn_linear_defaults());
    tn_module_add(&n, "in", &n.in);
    tn_saver *saver = tn_saver_new(world, user, patient_options(true));
    tn_checkpoint c = {.model = &n, .partial = true};
    bool found;
    tn_status status = tn_saver_load(saver, &c, &found);
    must(status == TN_ESHAPE && !found); /* rank 1's error, on all */
    must(strstr(tn_error_message(), "model.in."));
    must(tn_group_rank(world) == 1 || strstr(tn_error_message(), "rank 1: "));
    tn_error_clear();
    tn_saver_free(saver);
    tn_module_finish(&n);
}

static void load_surplus(tn_group *world, void *user) {
    other_net n;
    tn_module_init(&n, "parts_net", parts_forward);
    tn_linear_init(&n.in, 6, 12, tn_linear_defaults());
    tn_module_add(&n, "in", &n.in);
    tn_saver *saver = tn_saver_new(world, user, patient_options(true));
    tn_checkpoint c = {.model = &n};
    bool found;
    must(tn_saver_load(saver, &c, &found) == TN_EMISMATCH && !found);
    tn_error_clear();
    tn_generator generator;
    c.optim = tn_adamw(&n, tn_adamw_defaults());
    c.generator = &generator;
    c.other_run = true; /* everything else matches */
    must(tn_saver_load(saver, &c, &found) == TN_EMISMATCH && !found);
    must(strstr(tn_error_message(), "which the program does not have"));
    tn_error_clear();
    c.partial = true;
    must(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 8);
    tn_optim_free(c.optim);
    must(((float *)tn_data_mut(n.in.weight))[3] == value_of("in.weight", 3, 8));
    tn_saver_free(saver);
    tn_module_finish(&n);
}

TEST(another_model) {
    paths p = {temp_path("other"), temp_path("unused")};
    run_ok(3, save_once, &p);
    run_ok(2, load_other, p.folder);
    run_ok(2, load_surplus, p.folder);
}

/* A model that was built without elements receives those of the checkpoint. */
static void load_without_elements(tn_group *world, void *user) {
    tn_saver *saver = tn_saver_new(world, user, patient_options(false));
    tn_linear saved, loaded;
    tn_linear_init(&saved, 5, 3, tn_linear_defaults());
    {
        TN_DEFER_INIT;
        tn_linear_init(&loaded, 5, 3, tn_linear_defaults());
    }
    bool found;
    must(tn_saver_save(saver, &(tn_checkpoint){.model = &loaded}) == TN_ESTATE);
    tn_error_clear();
    must(tn_saver_save(saver, &(tn_checkpoint){.model = &saved, .step = 1}) == TN_OK);
    must(tn_saver_load(saver, &(tn_checkpoint){.model = &loaded}, &found) == TN_OK && found);
    must(tn_equal(saved.weight, loaded.weight) && tn_equal(saved.bias, loaded.bias));
    tn_module_finish(&saved);
    tn_module_finish(&loaded);
    tn_saver_free(saver);
}

TEST(into_a_model_without_elements) {
    const char *folder = temp_path("deferred");
    run_ok(2, load_without_elements, folder);
}
