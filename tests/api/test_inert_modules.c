/* The functions of module.h and models.h, called as no one should; see test_inert.c. */
#include "inert.h"

#include <limits.h>

/* ---- Modules --------------------------------------------------------------------------------- */

static tn_tensor *module_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static bool see_entry(const tn_entry *entry, void *user) {
    return entry != NULL;
}

static bool see_module(tn_module *m, const char *path, void *user) {
    return m && path;
}

static void misuse_module(void *m, tn_tensor *t) {
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    FAILS(tn_module_add(m, "child", m));
    FAILS(tn_module_param(m, "weight", &field, x));
    FAILS(tn_module_buffer(m, "state", &field, x));
    FAILS(tn_module_scratch(m, "state", &field, x));
    FAILS(tn_module_tie(m, "a", "b"));
    FAILS(tn_module_set_buffer(m, "state", x));
    FAILS(tn_module_set_part(m, "weight", x, (tn_layout){.whole = TN_DIMS(2, 3)}, NULL));
    INERT(tn_call(m, x));
    INERT(tn_call(m, t));
    EMPTY(tn_call_values(m, (tn_values){1, {x}}, NULL));
    INERT(tn_rnn_call(m, x, &(tn_rnn_state){t, t}, t));
    INERT(tn_rnn_call(m, x, NULL, NULL));
    INERT(tn_call_list(m, TN_VALUES(x, x)));
    NOTHING(tn_module_hook(m, (tn_module_hooks){0}));
    TAKES(tn_module_unhook(m, 5));
    DOES(tn_module_each(m, (tn_walk){0}, see_entry, NULL));
    DOES(tn_module_each_module(m, see_module, NULL));
    TAKES(tn_module_count(m));
    INERT(tn_module_get(m, "weight"));
    NOTHING(tn_module_child(m, "fc"));
    TAKES(tn_module_print(m, stdout));
    FAILS(tn_module_graph_dot(m, t, "/nowhere/graph.dot"));
    DOES(tn_module_train(m, true));
    DOES(tn_module_requires_grad(m, true));
    DOES(tn_freeze(m, "h"));
    DOES(tn_unfreeze(m, NULL));
    DOES(tn_module_zero_grad(m));
    DOES(tn_module_set_recompute(m, true));
    DOES(tn_module_set_apart(m, true));
    DOES(tn_module_to(m, tn_cpu()));
    DOES(tn_module_materialize(m));
    DOES(tn_quantize(m));
    FAILS(tn_sequential_add(m, m));
    FAILS(tn_module_append(m, m));
    NOTHING(tn_module_own(m, "child", m));
    NOTHING(tn_module_children(m));
    NOTHING(tn_module_at(m, 0));
}

static void misuse_model(void *m) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    FAILS(tn_cache_begin(m, (tn_attention_cache_options){1, 4}));
    TAKES(tn_cache_rewind(m, 0));
    TAKES(tn_cache_end(m));
    tn_lm_shape shape;
    FAILS(tn_lm_shape_of(m, &shape));
    NOTHING(tn_lm_parts(m, NULL, 0));
    INERT(tn_lm_loss(m, x, x));
    INERT(tn_lm_targets(NULL, x));
    TAKES(tn_lm_targets(x, x));
    int32_t token = 0;
    tn_prompt prompt = {&token, 1};
    tn_generated generated;
    FAILS(tn_generate(m, &prompt, 1, tn_generate_defaults(), &generated));
    tn_lm_specials specials;
    FAILS(tn_lm_specials_of(m, NULL, temp_path(""), &specials));
}

static void misuse_parameters(void *m) {
    NOTHING(tn_sgd(m, tn_sgd_defaults()));
    NOTHING(tn_adam(m, tn_adam_defaults()));
    NOTHING(tn_adamw(m, tn_adamw_defaults()));
    NOTHING(tn_rmsprop(m, tn_rmsprop_defaults()));
    NOTHING(tn_adagrad(m, tn_adagrad_defaults()));
    NOTHING(tn_adadelta(m, tn_adadelta_defaults()));
    NOTHING(tn_adamax(m, tn_adamax_defaults()));
    NOTHING(tn_nadam(m, tn_nadam_defaults()));
    NOTHING(tn_radam(m, tn_radam_defaults()));
    NOTHING(tn_asgd(m, tn_asgd_defaults()));
    NOTHING(tn_lion(m, tn_lion_defaults()));
    NOTHING(tn_lamb(m, tn_lamb_defaults()));
    NOTHING(tn_adafactor(m, tn_adafactor_defaults()));
    NOTHING(tn_muon(m, tn_muon_defaults()));
    TAKES(tn_clip_grad_norm(m, 1.0));
    FAILS(tn_clip_grad_value(m, 1.0));
    FAILS(tn_update_bn(NULL, m));
    TAKES(tn_average_free(tn_ema(m, 0.5)));
    TAKES(tn_average_free(tn_swa(m)));
    NOTHING(tn_lr_finder_new(m, NULL, tn_lr_finder_defaults()));
}

static void misuse_files(void *m) {
    FAILS(tn_save(m, temp_path("module")));
    FAILS(tn_load(m, temp_path("module")));
    FAILS(tn_lm_save(m, temp_path("folder")));
    FAILS(tn_lm_save_with(m, temp_path("folder"), tn_lm_save_defaults()));
    FAILS(tn_lm_load_weights(m, temp_path("folder")));
    tn_checkpoint c = {.model = m, .step = 1};
    if (m) {
        FAILS(tn_checkpoint_save(&c, temp_path("checkpoint")));
        FAILS(tn_checkpoint_load(&c, temp_path("checkpoint")));
    }
}

/* m: NULL, a struct of zeros, or a module that is finished. */
static void bad_module(void *m, tn_tensor *t) {
    bool was = null;
    null = true; /* a bad module is always an error */
    misuse_module(m, t);
    misuse_model(m);
    misuse_parameters(m);
    misuse_files(m);
    tn_module_finish(m);
    null = was;
}

static void zeroed_modules(tn_tensor *t) {
    static const tn_gpt zero; /* the largest: zeros for every kind */
    tn_gpt m = zero;
    bad_module(NULL, t);
    bad_module(&m, t);
    tn_linear gone;
    tn_linear_init(&gone, 2, 2, tn_linear_defaults());
    tn_module_finish(&gone);
    check_call(__LINE__, "tn_linear_init", true, false);
    bad_module(&gone, t);
}

static void odd_name(tn_linear *m, const char *name, tn_tensor *t) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    tn_tensor *field = NULL;
    tn_linear c = {0};
    FAILS(tn_module_param(m, name, &field, x));
    FAILS(tn_module_buffer(m, name, &field, x));
    FAILS(tn_module_scratch(m, name, &field, x));
    FAILS(tn_module_tie(m, name, "nothing"));
    FAILS(tn_module_tie(m, "weight", name));
    FAILS(tn_module_set_buffer(m, name, x));
    TAKES(tn_module_get(m, name));
    TAKES(tn_module_child(m, name)); /* "" is m itself */
    TAKES(tn_module_init(&c, name, module_forward));
    if (!name || *name) { /* "" is a transparent child */
        FAILS(tn_module_add(m, name, &c));
    }
    tn_module_finish(&c);
    for (int j = 0; j < STRANGE; j++) {
        tn_layout layout = {strange[j], 0, 1, INT_MAX, INT_MAX, INT64_MAX, INT64_MAX};
        TAKES(tn_module_set_part(m, name, t, layout, NULL));
        layout.slice = INT_MIN;
        TAKES(tn_module_set_part(m, name, NULL, layout, NULL));
    }
}

/* A valid module and bad arguments. */
static void module_arguments(tn_tensor *t) {
    tn_linear m = {0}, child = {0};
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    TAKES(tn_linear_init(&m, 3, 2, tn_linear_defaults()));
    TAKES(tn_linear_init(&child, 3, 2, tn_linear_defaults()));
    char endless[300];
    memset(endless, 'n', sizeof endless);
    endless[sizeof endless - 1] = 0;
    const char *const names[] = {NULL, "", ".", "a.", "weight", endless};
    bool before = tn_defer_init_begin();
    TAKES(tn_defer_init_end(&before));
    TAKES(tn_defer_init_end(NULL));
    FAILS(tn_module_add(&m, "child", NULL));
    NOTHING(tn_module_own(&m, "child", NULL));
    FAILS(tn_module_append(&m, NULL));
    DOES(tn_module_free(&m)); /* not made by a tn_…_new */
    for (int i = 0; i < INTS; i++) {
        NOTHING(tn_module_at(&m, ints[i]));
    }
    FAILS(tn_module_add(&m, "child", &m));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        odd_name(&m, names[i], t);
    }
    FAILS(tn_module_param(&m, "p", NULL, x));
    FAILS(tn_module_buffer(&m, "p", NULL, x));
    FAILS(tn_module_scratch(&m, "p", NULL, x));
    if (t) {
        FAILS(tn_module_param(&m, "p", &field, t));
        FAILS(tn_module_buffer(&m, "p", &field, t));
        FAILS(tn_module_set_buffer(&m, "p", t));
    }
    TAKES(tn_call(&child, t));
    EMPTY(tn_call_values(&child, (tn_values){-1, {t}}, NULL));
    EMPTY(tn_call_values(&child, (tn_values){99, {t}}, NULL));
    EMPTY(tn_call_values(&child, (tn_values){2, {t, t}}, NULL));
    TAKES(tn_values_of(t, t));
    TAKES(tn_values_of(NULL, t));
    TAKES(tn_module_unhook(&m, -1));
    TAKES(tn_module_unhook(&m, tn_module_hook(&m, (tn_module_hooks){0})));
    TAKES(tn_module_each(&m, (tn_walk){0}, NULL, NULL));
    TAKES(tn_module_each_module(&m, NULL, NULL));
    TAKES(tn_module_print(&m, NULL));
    FAILS(tn_module_graph_dot(&m, t, NULL));
    tn_module_finish(&m);
    tn_module_finish(&child);
    tn_module_finish(NULL);
}

/* ---- Generating ------------------------------------------------------------------------------ */

static void odd_generation(tn_tensor *t) {
    if (pending) {
        return; /* the model could not be made */
    }
    tn_gpt m;
    tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = 1, .heads = 2, .width = 4));
    int32_t token = 0;
    tn_generated out;
    INERT(tn_lm_loss(&m, t, t));
    INERT(tn_call(&m, t));
    tn_generate_options o = tn_generate_defaults();
    tn_prompt prompt = {&token, 1}, empty = {&token, 0};
    FAILS(tn_generate(&m, NULL, 1, o, &out));
    FAILS(tn_generate(&m, &prompt, 1, o, NULL));
    FAILS(tn_generate(&m, &prompt, -1, o, &out));
    FAILS(tn_generate(&m, &empty, 1, o, &out));
    o.temperature = NAN;
    FAILS(tn_generate(&m, &prompt, 1, o, &out));
    o = tn_generate_defaults();
    o.max_new = 2;
    o.temperature = 1e-300;
    o.top_k = INT64_MAX;
    TAKES(tn_generate(&m, &prompt, 1, o, &out));
    tn_generated_free(&out, 1);
    tn_generated_free(NULL, 1);
    tn_lm_specials specials;
    FAILS(tn_lm_specials_of(&m, NULL, NULL, &specials));
    FAILS(tn_lm_specials_of(&m, NULL, temp_path(""), NULL));
    TAKES(tn_lm_specials_of(&m, NULL, temp_path("nowhere"), &specials));
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_cache_begin(&m, (tn_attention_cache_options){longs[i], longs[j]}));
        }
    }
    tn_module_finish(&m);
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(zeroed_modules)
PART(module_arguments)
PART(odd_generation)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
