/* Calls as no one should make them, for which make_inert.py is not enough: those that would really
 * do something, those that need a state, and several wrong arguments at once. See test_inert.c. */
#include "inert.h"

#include <limits.h>

/* `value` is what an error gives. */
#define GIVES(value, call) check_call(__LINE__, #call, INERT, (call) == (value) ? FAILED : DONE)

/* ---- core.h, tensor.h ------------------------------------------------------------------------ */

PART(errors_and_scopes) {
    tn_error_record record;
    OTHER(ANY, tn_raise((tn_status)-3, "a text of some length"));
    OTHER(ANY, tn_on_error(NULL));
    OTHER(ANY, tn_on_error_thread(NULL));
    OTHER(ANY, tn_error_give(NULL));
    OTHER(ANY, tn_error_give(&(tn_error_record){0}));
    if (tn_error_take(NULL)) { tn_raise(TN_EPEER, "the first"); }
    if (tn_error_take(&record)) { tn_error_give(&record); }
    OTHER(ANY, tn_scope_end(NULL));
    tn_scope scope = tn_scope_begin(NULL, -1);
    OTHER(ANY, tn_scope_end(&scope));
    OTHER(ANY, tn_log_write((tn_log_level)99, "%s", ""));
    OTHER(ANY, tn_log_to(NULL, (tn_log_level)-9, NULL));
    TENSOR(INERT, tn_inert());
}

/* What is set is set back. */
PART(settings) {
    int threads = tn_threads();
    OTHER(ANY, tn_set_threads(-5));
    OTHER(ANY, tn_set_threads(0));
    OTHER(ANY, tn_set_threads(threads));
    OTHER(ANY, tn_memory_set_limit(-1));
    OTHER(ANY, tn_memory_set_limit(256LL << 20)); /* as main sets it */
    OTHER(ANY, tn_set_deterministic(tn_deterministic()));
    OTHER(ANY, tn_set_matmul_tf32(tn_matmul_tf32()));
    OTHER(ANY, tn_set_conv_tf32(tn_conv_tf32()));
    OTHER(ANY, tn_set_anomaly(false));
    OTHER(ANY, tn_backend_use(NULL));
    bool before = tn_grad_mode_begin(true);
    OTHER(ANY, tn_grad_mode_end(&before));
    before = tn_defer_init_begin();
    OTHER(ANY, tn_defer_init_end(&before));
    OTHER(ANY, tn_module_finish(NULL));
    OTHER(ALLOWED, tn_module_free(NULL));
}

PART(sizes) {
    int64_t stride[TN_MAX_DIMS];
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32);
    EACH(strange) {
        tn_dims d = strange[turn];
        OTHER(ANY, tn_dims_from(d.ndim, d.size));
        OTHER(ANY, tn_dims_from(d.ndim, NULL));
        OTHER(ANY, tn__contiguous_strides(d, stride));
        OTHER(ANY, tn__view(x, d, (int64_t[TN_MAX_DIMS]){INT64_MAX}, 0));
        if (d.size[0] != 0) { /* next to a 0 any size is allowed */
            TENSOR(MUST, tn_empty(d, TN_F32));
            TENSOR(MUST, tn_zeros(d, TN_F64));
        }
        for (int j = 0; j < 8; j++) {
            OTHER(ANY, tn_dims_broadcast(d, strange[j], NULL));
        }
    }
    TENSOR(MUST, tn__view(NULL, TN_DIMS(2), (int64_t[]){1}, 0));
    TENSOR(MUST, tn_linspace(0.0, 1.0, INT64_MAX, TN_F32));
    TENSOR(MUST, tn_randperm(INT64_MAX));
    TENSOR(MUST, tn_arange(0.0, 1e300, 1e-300, TN_F32));
    TENSOR(MUST, tn_arange(0.0, 1.0, 0.0, TN_F32));
}

/* A valid tensor and several numbers out of range. */
PART(odd_numbers) {
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32), *out[4];
    EACH(ints) {
        int n = ints[turn];
        for (int j = 0; j < 7; j++) {
            OTHER(ANY, tn_flatten(x, n, ints[j]));
            OTHER(ANY, tn_transpose(x, n, ints[j]));
            OTHER(ANY, tn_var(x, TN_DIMS(n), ints[j], false));
            OTHER(ANY, tn_select(x, n, longs[j]));
            OTHER(ANY, tn_split(x, longs[j], n, out, 4));
            OTHER(ANY, tn_at(x, TN_DIMS(longs[j], n)));
            for (int k = 0; k < 7; k++) {
                OTHER(ANY, tn_narrow(x, n, longs[j], longs[k]));
                OTHER(ANY, tn_slice(x, n, longs[j], longs[k], n));
                OTHER(ANY, tn_slice(x, 1, longs[j], longs[k], longs[j]));
            }
        }
    }
    EACH(reals) {
        double r = reals[turn];
        OTHER(ANY, tn_cast(tn_full(TN_DIMS(2), r, TN_F64), TN_I64));
        OTHER(ANY, tn_cast(tn_full(TN_DIMS(2), r, TN_F64), TN_U8));
        OTHER(ANY, tn_init_trunc_normal(x, 0.0, r, -1.0, r));
    }
}

PART(equations) {
    static const char *const odd[] = {
        "",   ",",    "ij,jk",  "i",       "...",          "......",
        "->", "->->", "ij->jj", "ij->i,j", "ij->k",        "ij.",
        "-",  "i-j",  ">",      "i\xffj",  "ijkijkijkijk", "ij->ijijijijijij"};
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32), *none = NULL;
    EACH(odd) {
        TENSOR(MUST, tn_einsum(odd[turn], &none, 1));
        TENSOR(MAY, tn_einsum(odd[turn], &x, 1));
        TENSOR(MUST, tn_einsum(odd[turn], &x, -1));
    }
}

/* Windows so large that the product of their sizes would overflow. */
PART(odd_windows) {
    tn_tensor *none = tn_empty(TN_DIMS(1, 1, 0, 1, 1), TN_F32);
    tn_tensor *one = tn_ones(TN_DIMS(1, 1, 1, 1), TN_F32),
              *q = tn_ones(TN_DIMS(1, 1, 2, 2), TN_F32);
    const tn_dims sizes[] = {TN_DIMS(INT32_MAX), TN_DIMS(INT32_MAX + INT64_C(1)),
                             TN_DIMS(INT64_MAX), TN_DIMS(INT64_MIN)};
    EACH(sizes) {
        tn_dims d = sizes[turn];
        TENSOR(MUST, tn_adaptive_avg_pool3d_op(none, d));
        TENSOR(MUST, tn_adaptive_max_pool3d_op(none, d));
        TENSOR(MUST, tn_avg_pool3d_op(none, TN_DIMS(1), TN_WITH(tn_pool, .dilation = d)));
        TENSOR(MUST, tn_max_pool3d_op(none, TN_DIMS(2), TN_WITH(tn_pool, .dilation = d)));
        TENSOR(MUST, tn_unfold(one, TN_DIMS(2), TN_WITH(tn_unfold, .padding = d)));
        TENSOR(MUST, tn_fold(one, d, TN_DIMS(2), TN_WITH(tn_unfold, .padding = d)));
    }
    TENSOR(MUST, tn_conv2d_op(q, q, NULL, tn_conv_strided(INT64_MIN, INT64_MAX)));
    TENSOR(MUST, tn_conv_transpose2d_op(q, q, NULL, tn_conv_strided(INT64_MIN, INT64_MAX)));
}

static tn_values pass_on(void *user, tn_values in) {
    return in;
}

/* Of a leaf that has a gradient. */
PART(gradients) {
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true), *none = NULL;
    tn_tensor *loss = tn_sum_all(x), *results[2] = {0};
    tn_grad_options o = tn_grad_defaults();
    STATUS(MUST, tn_backward_from(&loss, &none, -1, false));
    STATUS(MUST, tn_grad(&loss, NULL, 1, &none, 1, results, o));
    STATUS(MUST, tn_grad(&loss, NULL, 1, NULL, 1, results, o));
    STATUS(MUST, tn_grad(&loss, NULL, 1, &x, 1, NULL, o));
    STATUS(MUST, tn_grad(&loss, NULL, -1, &x, -1, results, o));
    STATUS(MUST, tn_set_grad_dtype(x, (tn_dtype)77));
    OTHER(MUST, tn_on_grad(x, NULL, NULL));
    OTHER(MUST, tn_on_accumulated(x, NULL, NULL));
    OTHER(ANY, tn_remove_hook(x, -1));
    STATUS(MUST, tn_graph_dot(loss, NULL, NULL, NULL));
    VALUES(MUST, tn_recompute(pass_on, NULL, NULL, (tn_values){1, {x}}, NULL, 3));
    VALUES(MUST, tn_recompute(pass_on, NULL, NULL, (tn_values){1, {x}}, &x, -3));
    STATUS(MUST, tn_gradcheck(pass_on, NULL, (tn_values){-1, {x}}, tn_gradcheck_defaults()));
    STATUS(MUST, tn_gradcheck(pass_on, NULL, (tn_values){99, {x}}, tn_gradcheck_defaults()));
}

/* ---- sys/ ------------------------------------------------------------------------------------ */

/* An operation whose rules ask for inputs that it does not have. */
static bool careless_shape(tn_op_call *c) {
    static const int nowhere[] = {-1, 1, 7, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int n = nowhere[i];
        if (tn_op_out_like(c, n) || tn_op_out_broadcast(c, 0, n, TN_F32) || tn_op_float(c, n) ||
            tn_op_index(c, n)) {
            add_complaint(__LINE__, "shape", "an input that does not exist");
        }
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        (void)tn_op_shapes(c, texts[i]);
    }
    if (tn_op_shapes(c, NULL)) { add_complaint(__LINE__, "tn_op_shapes", "no text"); }
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        if (tn_op_view(c, strange[i], NULL, -1) || tn_op_out(c, strange[i], (tn_dtype)77) ||
            tn_op_out_on(c, tn_cuda(-1), strange[i], TN_F32)) {
            add_complaint(__LINE__, "shape", "an impossible output");
        }
    }
    tn_error_clear();
    while (tn_op_out(c, TN_DIMS(2), TN_F32)) {
        if (c->outputs > TN_OP_OUTPUTS) {
            add_complaint(__LINE__, "tn_op_out", "more outputs than an operation can have");
            break;
        }
    }
    tn_error_clear();
    return tn_op_same_dtype(c) && (c->outputs = 1);
}

static tn_status careless_forward(const tn_op_call *c) {
    memset(c->y[0]->data, 0, 8);
    return TN_OK;
}

static void careless_backward(tn_op_grad *g) {
    static const int nowhere[] = {-1, 1, 7, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int n = nowhere[i];
        if (!tn_is_inert(tn_op_saved_input(g, n)) || !tn_is_inert(tn_op_saved_output(g, n))) {
            add_complaint(__LINE__, "backward", "a saved tensor that does not exist");
        }
        (void)tn_op_gradient_dtype(g, n);
        (void)tn_op_input_dims(g, n);
        (void)tn_op_input_dtype(g, n);
        (void)tn_op_input_device(g, n);
        tn_op_give(g, n, tn_ones(TN_DIMS(2), TN_F32));
        if (tn_op_pending(g, n)) {
            add_complaint(__LINE__, "backward", "a gradient that does not exist");
        }
    }
    tn_op_give(g, 0, NULL);
    tn_op_give(g, 0, tn_inert());
}

static bool failing_shape(tn_op_call *c) {
    return tn_op_fail(c, TN_EVALUE, "%s", "a reason that is long enough");
}

PART(careless_operations) {
    static const tn_op careless = {.name = "careless",
                                   .saves = TN_SAVES_INPUTS,
                                   .shape = careless_shape,
                                   .forward = careless_forward,
                                   .backward = careless_backward};
    static const tn_op empty = {.name = "empty"}, nameless = {0},
                       failing = {.name = "failing", .shape = failing_shape};
    tn_tensor *none[] = {NULL, NULL, NULL}, *results[TN_OP_OUTPUTS];
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
    const tn_op *const bad[] = {&empty, &nameless, &failing};
    EACH(bad) {
        TENSOR(MUST, tn_apply(bad[turn], NULL, &x, 1));
        STATUS(MUST, tn_op_check(bad[turn]));
    }
    TENSOR(MUST, tn_apply(&careless, NULL, NULL, 1));
    TENSOR(MUST, tn_apply(&careless, NULL, none, -1));
    TENSOR(MUST, tn_apply(&careless, NULL, none, 1));
    OTHER(ANY, tn_apply_many(NULL, NULL, none, 1, results));
    OTHER(ANY, tn_apply_many(&careless, NULL, none, 1, NULL));
    for (turn = 0; turn < tn_op_count(); turn++) { /* inputs are checked before arguments */
        TENSOR(MUST, tn_apply(tn_op_at(turn), NULL, none, 3));
        TENSOR(MUST, tn_apply(tn_op_at(turn), NULL, NULL, 2));
    }
    if (!pending) {
        x = tn_apply(&careless, NULL, &x, 1);
        check_call(__LINE__, "careless", ALLOWED, tn_is_inert(x) ? FAILED : DONE);
        STATUS(ANY, tn_backward(tn_sum_all(x)));
    }
}

PART(devices_and_engines) {
    char x[4] = "";
    static const char *const names[] = {
        "", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999999999999", "CPU"};
    EACH(names) {
        OTHER(MUST, tn_device_named(names[turn]));
    }
    EACH(devices) {
        TENSOR(MUST, tn_empty_on(devices[turn], TN_DIMS(2), TN_F32));
    }
    OTHER(ANY, tn__nccl_is_there());
    OTHER(ANY, tn__copy_bytes(tn_cpu(), x, tn_cpu(), NULL, 0, "op"));
    GIVES(NULL, tn_engine_new(NULL, NULL));
    GIVES(NULL, tn_engine_new("pigeon", NULL));
    OTHER(ANY, tn__reduce_all(TN_SUM, TN_F32, NULL, NULL, 1, 0));
}

/* ---- Modules --------------------------------------------------------------------------------- */

static tn_tensor *same_tensor(tn_module *self, tn_tensor *x) {
    return x;
}

/* A valid module, and children and names that it cannot have. */
PART(module_arguments) {
    tn_linear m = {0}, child;
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    static const char *const names[] = {NULL, ".", "a.", endless};
    memset(endless, 'n', sizeof endless - 1);
    OTHER(MAY, tn_linear_init(&m, 3, 2, tn_linear_defaults()));
    STATUS(MUST, tn_module_add(&m, "child", &m));
    OTHER(MUST, tn_module_free(&m)); /* not made by a tn_…_new */
    EACH(names) {
        memset(&child, 0, sizeof child);
        OTHER(ANY, tn_module_init(&child, names[turn], same_tensor));
        STATUS(MUST, tn_module_add(&m, names[turn], &child));
        STATUS(MUST, tn_module_param(&m, names[turn], &field, x));
        STATUS(MUST, tn_module_tie(&m, names[turn], "nothing"));
        STATUS(MUST, tn_module_tie(&m, "weight", names[turn]));
        tn_module_finish(&child);
    }
    EACH(strange) {
        tn_layout layout = {strange[turn], 0, 1, INT_MAX, INT_MAX, INT64_MAX, INT64_MAX};
        STATUS(ANY, tn_module_set_part(&m, "weight", x, layout, NULL));
        layout.slice = INT_MIN;
        STATUS(ANY, tn_module_set_part(&m, "weight", NULL, layout, NULL));
    }
    tn_module_finish(&m);
}

PART(generation) {
    if (pending) { return; /* the model could not be made */ }
    tn_gpt m;
    tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = 1, .heads = 2, .width = 4));
    int32_t token = 0;
    tn_generated out;
    tn_prompt prompt = {&token, 1}, none = {&token, 0};
    tn_generate_options o = TN_WITH(tn_generate, .max_new = 2, .temperature = NAN);
    STATUS(MUST, tn_generate(&m, &none, 1, tn_generate_defaults(), &out));
    STATUS(MUST, tn_generate(&m, &prompt, 1, o, &out));
    o.temperature = 1e-300;
    o.top_k = INT64_MAX;
    STATUS(ALLOWED, tn_generate(&m, &prompt, 1, o, &out));
    tn_generated_free(&out, 1);
    EACH(longs) {
        for (int j = 0; j < 7; j++) {
            STATUS(ANY, tn_cache_begin(&m, (tn_attention_cache_options){longs[turn], longs[j]}));
        }
    }
    tn_module_finish(&m);
}

/* ---- Data and training ----------------------------------------------------------------------- */

PART(odd_samplers) {
    EACH(longs) {
        for (int j = 0; j < 7; j++) {
            for (int k = 0; k < 7; k++) {
                tn_sampler odd = {.kind = (tn_sampler_kind)(turn % 6),
                                  .seed = UINT64_MAX,
                                  .part = longs[j],
                                  .parts = longs[k],
                                  .rule = (tn_part_rule)(j % 4),
                                  .draws = longs[k],
                                  .batch = longs[j],
                                  .bucket = longs[j]};
                OTHER(ANY, tn_sampler_count(&odd, longs[turn]));
                OTHER(ANY, tn_sampler_is_real(&odd, longs[turn], longs[k]));
                OTHER(ANY, tn_sampler_at(&odd, longs[turn], longs[j], longs[k]));
            }
        }
    }
}

static tn_status get_nothing(tn_dataset *self, tn_example e, void *x, void *y) {
    return TN_OK;
}

PART(odd_loaders) {
    static tn_dataset zero, no_get = {.kind = "odd", .size = 4, .y_dims = {-1, {0}}};
    static tn_dataset endless_one = {
        .kind = "odd", .size = INT64_MAX, .y_dims = {-1, {0}}, .get = get_nothing};
    static tn_dataset huge = {
        .kind = "odd", .size = 4, .x_dims = {2, {INT64_MAX, INT64_MAX}}, .get = get_nothing};
    static tn_dataset deep = {
        .kind = "odd", .size = 4, .x_dims = {99, {0}}, .y_dims = {99, {0}}, .get = get_nothing};
    tn_dataset *const odd[] = {&zero, &no_get, &deep, &endless_one, &huge};
    EACH(odd) {
        for (int j = 0; j < 7; j++) {
            tn_loader_options o =
                TN_WITH(tn_loader, .batch = longs[j], .epochs = longs[j],
                        .threads = ints[j] > 9 ? 9 : ints[j], .prefetch = ints[j]);
            tn_loader *l = tn_loader_new(odd[turn], tn_random_sampler(1), o);
            check_call(__LINE__, "tn_loader_new", FIRST(3), l ? DONE : FAILED);
            for (int k = 0; k < 7; k++) {
                STATUS(ANY, tn_loader_seek(l, (tn_loader_place){longs[k], longs[6 - k]}));
                OTHER(ANY, tn_loader_has(l, (tn_loader_place){longs[k], longs[k]}));
            }
            OTHER(ANY, tn_loader_next(l, NULL));
            OTHER(ANY, tn_loader_free(l));
        }
    }
}

PART(odd_schedules) {
    EACH(longs) {
        for (int j = 0; j < 7; j++) {
            tn_schedule all[] = {tn_schedule_linear(1.0, 0.0, longs[turn], longs[j]),
                                 tn_schedule_cosine(1.0, NAN, longs[turn], longs[j]),
                                 tn_schedule_step(1.0, longs[turn], NAN),
                                 tn_schedule_warm_restarts(1.0, 0.0, longs[turn], longs[j]),
                                 tn_schedule_one_cycle(1.0, longs[turn]),
                                 {.kind = TN_MULTI_STEP, .milestone_count = 99},
                                 {.kind = (tn_schedule_kind)99}};
            for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
                OTHER(ANY, tn_schedule_at(all[k], longs[j]));
            }
        }
    }
}

PART(odd_plots) {
    FILE *nowhere = fopen("/dev/null", "w");
    static const double xs[2] = {NAN, INFINITY};
    static const tn_curve odd[] = {
        {0}, {.count = 5}, {.count = INT64_MIN}, {"a", xs, xs, 2, true}, {"a", NULL, xs, 2, false}};
    EACH(odd) {
        tn_plot plot = {.curves = &odd[turn], .count = 1};
        for (int j = 0; j < 7; j++) {
            OTHER(ANY, tn_plot_text(&plot, nowhere, ints[j], ints[6 - j]));
        }
        STATUS(MAY, tn_plot_svg(&plot, temp_path("plot.svg")));
    }
    OTHER(ANY, tn_plot_text(&(tn_plot){.count = 3}, nowhere, 40, 10));
    fclose(nowhere);
}

/* ---- Starting something ---------------------------------------------------------------------- */

static void on_rank(tn_group *g, void *user) {}

PART(starting_ranks) {
    static const char *const inits[] = {"carrier-pigeon://somewhere", "file:///x"};
    const char *const names[] = {"dp", "dp"};
    const int sizes[] = {1, 1};
    FOUND(ZEROS, tn_dist_init((tn_dist_options){0}));
    EACH(inits) {
        GIVES(NULL, tn_dist_init(TN_WITH(tn_dist, .init = inits[turn])));
    }
    GIVES(NULL, tn_dist_init(TN_WITH(tn_dist, .init = "tcp://127.0.0.1:1", .rank = 7, .ranks = 3)));
    STATUS(MUST, tn_local_run(-1, on_rank, NULL));
    STATUS(MUST, tn_local_run(0, on_rank, NULL));
    STATUS(MUST, tn_local_run(2, NULL, NULL));
    STATUS(MUST, tn_local_run_on(NULL, 0, on_rank, NULL));
    STATUS(MUST, tn_local_run_on(NULL, 1, on_rank, NULL));
    EACH(ints) {
        GIVES(NULL, tn_mesh_new(NULL, ints[turn], NULL, NULL));
        GIVES(NULL, tn_mesh_new(NULL, 1, &ints[turn], names));
    }
    GIVES(NULL, tn_mesh_new(NULL, 2, sizes, names)); /* the same name twice */
}

PART(stores) {
    GIVES(NULL, tn_tcp_store(NULL, 1, "t", 0.1));
    GIVES(NULL, tn_tcp_store("127.0.0.1", -5, NULL, 0.1));
    GIVES(NULL, tn_tcp_store("127.0.0.1", 1, "t", 0.05));
    GIVES(NULL, tn_store_serve("not an address!", 0, "t"));
    GIVES(NULL, tn_store_serve(NULL, 1 << 20, NULL));
    tn_store *s = tn_memory_store();
    STATUS(MUST, tn_store_set(s, "with space", "a", 1));
    STATUS(MUST, tn_store_set(s, "", "a", 1));
    OTHER(ANY, tn_store_free(s));
}

static tn_values no_function(tn_values in, void *user) {
    return in;
}

/* A rank that can call itself: no function of that name, or no such rank. */
PART(remote_calls) {
    tn_rpc *r = tn_rpc_new(NULL, tn_rpc_defaults());
    STATUS(MUST, tn_rpc_register(r, NULL, no_function, NULL));
    if (!pending) { tn_rpc_start(r); }
    EACH(ints) {
        GIVES(NULL, tn_rpc_call(r, ints[turn], NULL, (tn_values){0}, 0));
        VALUES(MUST, tn_rpc_wait(tn_rpc_call(r, ints[turn], "nothing", (tn_values){0}, 0)));
        VALUES(MUST, tn_rpc_forward(r, ints[turn], "nothing", (tn_values){0}, 0));
    }
    OTHER(ANY, tn_rpc_free(r));
    EACH(ints) {
        GIVES(NULL,
              tn_rpc_new(NULL, TN_WITH(tn_rpc, .threads_most = ints[turn], .message_limit = 0)));
    }
}

PART(savers) {
    tn_checkpoint c = {0};
    bool found = true;
    tn_saver *s = tn_saver_new(NULL, "/dev/null/a", tn_saver_defaults());
    STATUS(MUST, tn_saver_save(s, NULL));
    STATUS(MUST, tn_saver_save(s, &c));
    STATUS(MUST, tn_saver_load(s, &c, NULL));
    GIVES(false, tn_saver_load(s, &c, &found) == TN_OK && found);
    OTHER(ANY, tn_saver_free(s));
}

PART(programs) {
    char name[] = "program", *words[] = {name, NULL}, text[TN_UTF8_BOUND(1)];
    tn_utf8_stream stream = {.count = 0};
    tn_run_options o = TN_WITH(tn_run, .out = "/dev/null/run");
    STATUS(MUST, tn_options_parse(1, words, NULL, NULL));
    STATUS(MUST, tn_options_parse(0, NULL, NULL, &(tn_option){0}));
    STATUS(MUST, tn_profiler_start(TN_WITH(tn_profiler, .wait = -1)));
    STATUS(MUST, tn_profiler_start(TN_WITH(tn_profiler, .events = 0)));
    FOUND(ZEROS, tn_run_new(NULL, (tn_run_options){0}, (tn_checkpoint){0}));
    STATUS(ZEROS, tn_profiler_start((tn_profiler_options){0}));
    GIVES(NULL, tn_run_new(NULL, o, (tn_checkpoint){0}));
    GIVES(0, tn_utf8_put(&stream, NULL, 0, text));
    GIVES(0, tn_utf8_end(&stream, text));
}

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
