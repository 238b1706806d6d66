/* The functions of io.h, and those of models.h with files, called as no one should; see
 * test_inert.c. */
#include "inert.h"

static void null_safetensors(tn_tensor *t) {
    NOTHING(tn_safetensors_open(NULL));
    NOTHING(tn_safetensors_open("/"));
    NOTHING(tn_safetensors_map(NULL));
    NOTHING(tn_safetensors_map("/"));
    TAKES(tn_safetensors_close(NULL));
    QUIET(tn_safetensors_count(NULL), 0);
    QUIET(tn_safetensors_name(NULL, 0), NULL);
    QUIET(tn_safetensors_has(NULL, "a"), false);
    QUIET(tn_safetensors_metadata(NULL, "a"), NULL);
    INERT(tn_safetensors_get(NULL, "a"));
    DOES(tn_safetensors_shape(NULL, "a"));
    NOTHING(tn_safetensors_dtype(NULL, "a"));
    TAKES(tn_safetensors_writer_add(NULL, "a", t));
    TAKES(tn_safetensors_writer_add_metadata(NULL, "a", "b"));
    TAKES(tn_safetensors_writer_free(NULL));
    FAILS(tn_safetensors_writer_save(NULL, temp_path("none")));
}

static void odd_paths(tn_tensor *t) {
    static const char *const paths[] = {NULL, "", "/", "/nowhere/file"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        FAILS(tn_safetensors_writer_add(w, NULL, t));
        FAILS(tn_safetensors_writer_add(w, "a", t));
        FAILS(tn_safetensors_writer_add_metadata(w, NULL, NULL));
        FAILS(tn_safetensors_writer_add_metadata(w, "a", NULL));
        FAILS(tn_safetensors_writer_save(w, paths[i]));
        tn_linear m = {0};
        tn_linear_init(&m, 2, 2, tn_linear_defaults());
        tn_checkpoint c = {.model = pending ? NULL : &m};
        FAILS(tn_save(&m, paths[i]));
        FAILS(tn_load(&m, paths[i]));
        FAILS(tn_checkpoint_save(&c, paths[i]));
        FAILS(tn_checkpoint_load(&c, paths[i]));
        FAILS(tn_write_file("x", 1, paths[i]));
        NOTHING(tn_history_open(paths[i], 0));
        FAILS(tn_plot_svg(&(tn_plot){0}, paths[i]));
        tn_module_finish(&m);
    }
    FAILS(tn_write_file(NULL, 1, temp_path("file")));
    FAILS(tn_checkpoint_save(NULL, temp_path("none")));
    FAILS(tn_checkpoint_load(NULL, temp_path("none")));
}

static void odd_images(tn_tensor *t) {
    FAILS(tn_save_image(t, temp_path("file"), 1));
    null = true; /* these are wrong whatever t is */
    FAILS(tn_save_image(tn_ones(TN_DIMS(2, 3), TN_F32), temp_path("file"), 1));
    FAILS(tn_save_image(tn_ones(TN_DIMS(1, 1, 2, 3), TN_F32), NULL, 1));
    FAILS(tn_save_image(tn_ones(TN_DIMS(1, 1, 2, 3), TN_F32), temp_path("file"), -1));
    null = !t;
}

static void files_of_models(tn_tensor *t) {
    tn_gpt gpt;
    FAILS(tn_gpt_load_hf(NULL, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_load_hf(&gpt, NULL, tn_lm_load_defaults()));
    FAILS(tn_gpt_load_hf(&gpt, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_save_hf(NULL, temp_path("none")));
    FAILS(tn_llama_load_hf(NULL, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_llama_save_hf(NULL, temp_path("none")));
    FAILS(tn_gpt_load_llmc(NULL, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_load_llmc(&gpt, NULL, tn_lm_load_defaults()));
    FAILS(tn_gpt_load_llmc(&gpt, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_save_llmc(NULL, temp_path("none")));
    NOTHING(tn_lm_load(NULL, tn_lm_load_defaults()));
    NOTHING(tn_lm_load(temp_path("none"), tn_lm_load_defaults()));
    NOTHING(tn_lm_new(NULL, 0));
    NOTHING(tn_lm_new(temp_path("none"), 0));
    TAKES(tn_lm_free(NULL));
}

/* A good file, asked for what it does not have. */
static void missing_entries(tn_tensor *t) {
    if (pending) {
        return; /* the file could not be written */
    }
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    assert_int_equal(tn_safetensors_writer_add(w, "a", tn_scalar(1.0, TN_F32)), TN_OK);
    assert_int_equal(tn_safetensors_writer_save(w, temp_path("a")), TN_OK);
    tn_safetensors *f = tn_safetensors_open(temp_path("a"));
    for (int i = 0; i < INTS; i++) {
        TAKES(tn_safetensors_name(f, ints[i]));
    }
    QUIET(tn_safetensors_has(f, NULL), false);
    QUIET(tn_safetensors_metadata(f, NULL), NULL);
    INERT(tn_safetensors_get(f, NULL));
    DOES(tn_safetensors_shape(f, NULL));
    NOTHING(tn_safetensors_dtype(f, NULL));
    INERT(tn_safetensors_get(f, ""));
    tn_safetensors_close(f);
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(null_safetensors)
PART(odd_paths)
PART(odd_images)
PART(files_of_models)
PART(missing_entries)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
