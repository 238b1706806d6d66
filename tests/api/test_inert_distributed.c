/* The functions of distributed.h, store.h, parallel.h, rpc.h and deepspeed.h, called as no one
 * should; see test_inert.c. A NULL group is one rank, so the other arguments are wrong here.
 */
#include "core/clock.h"
#include "inert.h"

#include <stdlib.h>

#include <tern/sys/group.h>
#include <tern/sys/store.h>

static void on_rank(tn_group *g, void *user) {}

static void starting_ranks(tn_tensor *t) {
    tn_dist_options o = tn_dist_defaults();
    o.init = "carrier-pigeon://somewhere";
    QUIET(tn_dist_init(o), NULL);
    o.init = "tcp://127.0.0.1:1";
    o.rank = 7;
    o.ranks = 3;
    QUIET(tn_dist_init(o), NULL);
    o.init = "file://";
    QUIET(tn_dist_init(o), NULL);
    QUIET(tn_world(), NULL);
    QUIET(tn_dist_store(), NULL);
    QUIET(tn_local_rank() >= 0, true);
    QUIET(tn_restart_count() >= 0, true);
    TAKES(tn_dist_finish());
    for (int i = 0; i < 2; i++) {
        QUIET(tn_local_run(i - 1, on_rank, NULL) != TN_OK, true);
        QUIET(tn_local_run(2, NULL, NULL) != TN_OK, true);
        QUIET(tn_local_run_on(NULL, i, on_rank, NULL) != TN_OK, true);
    }
}

static void group_calls(tn_tensor *t) {
    QUIET(tn_group_rank(NULL), 0);
    QUIET(tn_group_size(NULL), 1);
    QUIET(tn_group_name(NULL) != NULL, true);
    QUIET(tn_group_engine(NULL) != NULL, true);
    for (int i = 0; i < INTS; i++) {
        QUIET(ints[i] == 0 || tn_group_world_rank(NULL, ints[i]) == -1, true);
        QUIET(tn_group_new(NULL, NULL, ints[i]), NULL);
        QUIET(tn_group_split(NULL, ints[i]), NULL);
    }
    for (int i = 0; i < REALS; i++) {
        TAKES(tn_group_set_timeout(NULL, reals[i]));
    }
    TAKES(tn_group_free(NULL));
    TAKES(tn_group_abort(NULL, NULL));
    for (int i = 0; i < STRANGE; i++) {
        QUIET(tn_is_inert(tn_group_empty(NULL, strange[i], TN_F32)), true);
        QUIET(tn_is_inert(tn_group_empty_on(NULL, tn_cpu(), strange[i], TN_F32)), true);
    }
    QUIET(tn_is_inert(tn_group_empty(NULL, TN_DIMS(2), no_dtype)), true);
    QUIET(tn_is_inert(tn_group_empty_on(NULL, tn_cuda(1 << 20), TN_DIMS(2), TN_F32)), true);
}

static void group_operations(tn_tensor *t) {
    tn_tensor *out = pending ? tn_inert() : tn_zeros(TN_DIMS(1, 2), TN_F32);
    NOTHING(tn_all_reduce(NULL, t, TN_SUM));
    NOTHING(tn_all_gather(NULL, out, t));
    NOTHING(tn_all_gather(NULL, t, t));
    NOTHING(tn_reduce_scatter(NULL, t, out, TN_SUM));
    NOTHING(tn_broadcast(NULL, t, 0));
    NOTHING(tn_reduce_to(NULL, t, 0, TN_MAX));
    NOTHING(tn_gather_to(NULL, t, t, 0));
    NOTHING(tn_scatter_from(NULL, t, t, 0));
    NOTHING(tn_all_to_all(NULL, out, t));
    NOTHING(tn_send(NULL, t, 0));
    NOTHING(tn_recv(NULL, t, 0));
    for (int i = 0; i < INTS; i++) {
        QUIET(tn_all_reduce(NULL, out, (tn_reduction)ints[i]), NULL);
        QUIET(tn_broadcast(NULL, out, ints[i]), NULL);
        QUIET(tn_send(NULL, out, ints[i]), NULL);
        QUIET(tn_recv(NULL, out, ints[i]), NULL);
        QUIET(tn_scatter_from(NULL, out, out, ints[i]), NULL);
    }
    QUIET(tn_work_wait(NULL, -1) == TN_OK || pending, true);
    QUIET(tn_work_done(NULL), true);
    QUIET(tn_barrier(NULL) == TN_OK || pending, true);
    QUIET(tn_monitored_barrier(NULL, NAN) == TN_OK || pending, true);
    QUIET(isnan(tn_group_mean(NULL, 0, 0)), true);
}

static void byte_operations(tn_tensor *t) {
    void *data = NULL;
    size_t n = 0;
    QUIET(tn_broadcast_bytes(NULL, NULL, NULL, 0) != TN_OK, true);
    QUIET(tn_broadcast_bytes(NULL, &data, &n, 5) != TN_OK, true);
    QUIET(tn_all_gather_bytes(NULL, NULL, 3, &data, &n) != TN_OK, true);
    QUIET(tn_all_gather_bytes(NULL, NULL, 0, NULL, NULL) != TN_OK, true);
    TAKES(tn_bytes_free(NULL));
}

static void differentiable_operations(tn_tensor *t) {
    INERT(tn_dist_all_reduce(NULL, t));
    INERT(tn_dist_copy(NULL, t));
    INERT(tn_dist_sum_parts(NULL, t));
    INERT(tn_dist_all_gather(NULL, t));
    INERT(tn_dist_reduce_scatter(NULL, t));
    INERT(tn_dist_all_to_all(NULL, t));
    INERT(tn_dist_gather_dim(NULL, t, 0));
    INERT(tn_dist_scatter_dim(NULL, t, 0));
    INERT(tn_dist_slice(NULL, t, 0));
    INERT(tn_dist_join(NULL, t, 0));
}

static void mesh_calls(tn_tensor *t) {
    const char *const names[] = {"dp", "dp"};
    const int sizes[] = {1, 1};
    for (int i = 0; i < INTS; i++) {
        QUIET(tn_mesh_new(NULL, ints[i], NULL, NULL), NULL);
        QUIET(tn_mesh_new(NULL, 1, &ints[i], names), NULL);
    }
    QUIET(tn_mesh_new(NULL, 2, sizes, names), NULL); /* the same name twice */
    QUIET(tn_mesh_group(NULL, "dp"), NULL);
    QUIET(tn_mesh_rank(NULL, NULL) <= 0, true);
    TAKES(tn_mesh_free(NULL));
}

static void data_parallel(tn_tensor *t) {
    tn_linear zero = {0};
    QUIET(tn_ddp(NULL, NULL, tn_ddp_defaults()), NULL);
    QUIET(tn_ddp(&zero, NULL, tn_ddp_defaults()), NULL);
    QUIET(tn_ddp(&zero, NULL, (tn_ddp_options){0}), NULL);
    QUIET(tn_ddp_naive(NULL, NULL) != TN_OK, true);
    QUIET(tn_sync_batch_norm(NULL, NULL) != TN_OK, true);
    QUIET(tn_ddp_naive(&zero, NULL) != TN_OK, true);
    QUIET(tn_fsdp(NULL, NULL, NULL, tn_fsdp_defaults()), NULL);
    QUIET(tn_fsdp(&zero, NULL, NULL, tn_fsdp_defaults()), NULL);
    QUIET(tn_fsdp(&zero, NULL, NULL, (tn_fsdp_options){0}), NULL);
    QUIET(tn_fsdp_naive(NULL, NULL) != TN_OK, true);
    QUIET(tn_fsdp_naive(&zero, NULL) != TN_OK, true);
    QUIET(tn_fsdp_statistics(NULL).units, 0);
    QUIET(tn_no_sync_begin(NULL), NULL);
    QUIET(tn_no_sync_begin(&zero), NULL);
    void *none = NULL;
    TAKES(tn_no_sync_end(NULL));
    TAKES(tn_no_sync_end(&none));
    QUIET(tn_whole_begin(NULL), NULL);
    QUIET(tn_whole_begin(&zero), NULL);
    TAKES(tn_whole_end(NULL));
    TAKES(tn_whole_end(&none));
    QUIET(tn_ddp_join(NULL, NULL) != TN_OK, true);
    QUIET(tn_ddp_bf16(NULL, NULL, 0, NULL), NULL);
    QUIET(tn_ddp_f16(NULL, NULL, 0, NULL), NULL);
    QUIET(tn_ddp_powersgd(NULL, tn_powersgd_defaults()), NULL);
    QUIET(tn_ddp_powersgd(NULL, (tn_powersgd_options){0}), NULL);
    QUIET(tn_local_sgd_new(NULL, NULL, tn_local_sgd_defaults()), NULL);
    QUIET(tn_local_sgd_new(&zero, NULL, tn_diloco_defaults()), NULL);
    QUIET(tn_local_sgd_new(&zero, NULL, (tn_local_sgd_options){0}), NULL);
    QUIET(tn_local_sgd_step(NULL) != TN_OK, true);
    QUIET(tn_local_sgd_sync(NULL) != TN_OK, true);
    QUIET(tn_local_sgd_statistics(NULL).rounds, 0);
    QUIET(tn_sync_gradients(NULL) != TN_OK, true);
    QUIET(tn_sync_gradients(&zero) != TN_OK, true);
    QUIET(tn_ddp_statistics(NULL).buckets, 0);
}

static void model_splitting(tn_tensor *t) {
    tn_linear zero = {0};
    tn_spread_options o = tn_spread_defaults();
    INERT(tn_dist_cross_entropy(NULL, t, t, 3, tn_cross_entropy_defaults()));
    INERT(tn_context_slice(NULL, TN_CP_HEADS, t, 0));
    QUIET(tn_tensor_parallel(NULL, NULL, tn_tp_defaults()) != TN_OK, true);
    QUIET(tn_tensor_parallel(&zero, NULL, tn_tp_defaults()) != TN_OK, true);
    QUIET(tn_context_parallel(NULL, NULL, TN_CP_HEADS) != TN_OK, true);
    QUIET(tn_context_parallel(&zero, NULL, (tn_cp_kind)7) != TN_OK, true);
    QUIET(tn_spread_read(NULL, NULL) != TN_OK, true);
    QUIET(tn_spread_read(&o, NULL) != TN_OK, true);
    QUIET(tn_spread_new(NULL, NULL, o), NULL);
    QUIET(tn_spread_new(&zero, NULL, o), NULL);
    QUIET(tn_spread_data(NULL), NULL);
    QUIET(tn_spread_group(NULL, NULL), NULL);
    QUIET(tn_spread_step(NULL, NULL, 1, NULL) > 0, false);
    QUIET(tn_spread_loss(NULL, NULL, 1) > 0, false);
    TAKES(tn_spread_print(NULL, NULL));
    TAKES(tn_spread_free(NULL));
}

static void layer_pipelines(tn_tensor *t) {
    tn_linear zero = {0};
    tn_batch b = {.x = t, .y = t};
    int cut;
    tn_pipe_cost cost = {1, 1, 1, 0};
    QUIET(tn_pipe_schedule_new((tn_pipe_kind)9, 0, 0, 0), NULL);
    QUIET(tn_pipe_schedule_read(NULL), NULL);
    TAKES(tn_pipe_schedule_free(NULL));
    QUIET(tn_pipe_simulate(NULL, cost, NULL, NULL) != TN_OK, true);
    QUIET(tn_pipeline_new(NULL, NULL, tn_pipeline_defaults()), NULL);
    QUIET(tn_pipeline_new(&zero, NULL, tn_pipeline_defaults()), NULL);
    QUIET(tn_pipeline_cuts(NULL, NULL, b, tn_pipeline_defaults(), 1, &cut) != TN_OK, true);
    QUIET(tn_pipeline_cuts(&zero, NULL, b, tn_pipeline_defaults(), 1, &cut) != TN_OK, true);
    QUIET(tn_pipeline_step(NULL, &b, 1, NULL) > 0, false);
    QUIET(tn_pipeline_loss(NULL, &b, 1) > 0, false);
    QUIET(tn_pipeline_parts(NULL), 0);
    QUIET(tn_pipeline_stage(NULL, 0), 0);
    QUIET(tn_pipeline_alive(NULL), 0);
}

static void plan_calls(tn_tensor *t) {
    tn_linear zero = {0};
    tn_plan plan;
    tn_plan_machine machine = tn_plan_machine_defaults();
    tn_plan_options o = tn_plan_defaults();
    QUIET(tn_plan_of(NULL, o, &plan) != TN_OK, true);
    QUIET(tn_plan_of(&zero, o, &plan) != TN_OK, true);
    QUIET(tn_plan_of(&zero, o, NULL) != TN_OK, true);
    QUIET(tn_plan_search(NULL, o, &plan, 1), 0);
    QUIET(tn_plan_search(&zero, o, NULL, 1), 0);
    QUIET(tn_plan_measure(NULL, o, NULL, &machine) != TN_OK, true);
    QUIET(tn_plan_measure(&zero, o, NULL, NULL) != TN_OK, true);
}

static void data_and_files(tn_tensor *t) {
    tn_checkpoint c = {0};
    tn_sampler s = tn_distributed_sampler(NULL, tn_sequential_sampler(), true);
    QUIET(s.parts, 1);
    TAKES(tn_distributed_sampler(NULL, (tn_sampler){0}, false));
    FAILS(tn_dist_save(NULL, NULL, NULL));
    FAILS(tn_dist_save(NULL, &c, NULL));
    FAILS(tn_dist_load(NULL, NULL, NULL));
    FAILS(tn_dist_load(NULL, &c, "/nowhere/at/all"));
    FAILS(tn_dist_export(NULL, NULL, NULL));
    FAILS(tn_dist_export(NULL, NULL, "/nowhere/at/all"));
    FAILS(tn_dist_save_lm(NULL, NULL, "/nowhere/at/all", tn_lm_save_defaults()));
    FAILS(tn_dist_load_lm(NULL, NULL, "/nowhere/at/all"));
    for (int i = 0; i < INTS; i++) {
        TAKES(tn_lr_linear(1e-3, ints[i]));
        TAKES(tn_lr_sqrt(NAN, ints[i]));
    }
}

static void saver_calls(tn_tensor *t) {
    tn_checkpoint c = {0};
    bool found = true;
    tn_saver_options o = tn_saver_defaults();
    QUIET(tn_saver_new(NULL, NULL, o), NULL);
    QUIET(tn_saver_new(NULL, "", o), NULL);
    QUIET(tn_saver_new(NULL, "/nowhere/at/all", (tn_saver_options){0}), NULL);
    o.timeout = NAN;
    QUIET(tn_saver_new(NULL, "/nowhere/at/all", o), NULL);
    FAILS(tn_saver_save(NULL, NULL));
    FAILS(tn_saver_remember(NULL, NULL));
    FAILS(tn_saver_wait(NULL));
    FAILS(tn_saver_load(NULL, &c, &found));
    FAILS(tn_saver_clear(NULL));
    TAKES(tn_saver_free(NULL));
    tn_saver *s = tn_saver_new(NULL, "/nowhere/at/all", tn_saver_defaults());
    FAILS(tn_saver_save(s, NULL));
    FAILS(tn_saver_save(s, &c));
    FAILS(tn_saver_remember(s, NULL));
    FAILS(tn_saver_load(s, &c, NULL));
    QUIET(tn_saver_load(s, &c, &found) == TN_OK && found, false);
    QUIET(tn_saver_wait(s) == tn_error(), true);
    TAKES(tn_saver_free(s));
}

static void store_calls(tn_tensor *t) {
    void *data = NULL;
    size_t n = 0;
    int64_t number = 0;
    bool yes = false;
    const char *const keys[] = {"a", NULL, "with space", ""};
    QUIET(tn_file_store(NULL), NULL);
    QUIET(tn_file_store("/nowhere/at/all"), NULL);
    QUIET(tn_tcp_store(NULL, 1, "t", 0.1), NULL);
    QUIET(tn_tcp_store("127.0.0.1", -5, NULL, 0.1), NULL);
    QUIET(tn_tcp_store("127.0.0.1", 1, "t", 0.05), NULL);
    QUIET(tn_prefix_store(NULL, "p"), NULL);
    QUIET(tn_store_serve("not an address!", 0, "t"), NULL);
    QUIET(tn_store_serve(NULL, 1 << 20, NULL), NULL);
    QUIET(tn_store_server_port(NULL) <= 0, true);
    TAKES(tn_store_server_free(NULL));
    TAKES(tn_store_free(NULL));
    for (int i = 0; i < 2; i++) {
        tn_store *s = i && !pending ? tn_memory_store() : NULL;
        for (int k = s ? 1 : 0; k < 4; k++) {
            QUIET(tn_store_set(s, keys[k], NULL, 5) != TN_OK, true);
            QUIET(tn_store_get(s, keys[k], &data, &n, 0.01) != TN_OK, true);
            QUIET(tn_store_get(s, keys[k], NULL, NULL, 0.01) != TN_OK, true);
            QUIET(tn_store_add(s, keys[k], 1, &number) != TN_OK, true);
            QUIET(tn_store_compare_set(s, keys[k], NULL, NULL, &yes) != TN_OK, true);
            QUIET(tn_store_check(s, keys[k], &yes) != TN_OK, true);
            QUIET(tn_store_delete(s, keys[k], &yes) != TN_OK, true);
        }
        QUIET(tn_store_wait(s, keys, 4, 0.01) != TN_OK, true);
        QUIET(tn_store_wait(s, NULL, 2, 0.01) != TN_OK, true);
        QUIET(tn_prefix_store(s, NULL), NULL);
        TAKES(tn_store_free(s));
    }
}

static void by_deepspeeds_file(tn_tensor *t) {
    tn_linear m;
    NOTHING(tn_deepspeed_new(NULL, NULL, "x.json"));
    NOTHING(tn_deepspeed_new(&m, NULL, NULL));
    QUIET(tn_deepspeed_new(&m, NULL, "/nowhere/x.json"), NULL);
    FAILS(tn_deepspeed_backward(NULL, t));
    FAILS(tn_deepspeed_step(NULL));
    QUIET(tn_deepspeed_batch(NULL).all, 0);
    QUIET(tn_deepspeed_due(NULL), false);
    QUIET(tn_deepspeed_lr(NULL), 0);
    QUIET(isnan(tn_deepspeed_norm(NULL)), true);
    QUIET(tn_deepspeed_optim(NULL), NULL);
    QUIET(tn_deepspeed_checkpoint(NULL).model, NULL);
    TAKES(tn_deepspeed_free(NULL));
}

static void flight_recorder(tn_tensor *t) {
    TAKES(tn_flight_dump(NULL));
    FAILS(tn_flight_trace(NULL));
    FAILS(tn_flight_trace("/nowhere/at/all"));
    TAKES(tn_flight_mark(NULL, NAN));
    QUIET(tn_flight_now() > 0, true);
    QUIET(tn__now() > 0, true);
}

static void no_function(const tn_message *in, tn_message *out, void *user) {}

static void message_calls(tn_tensor *t) {
    tn_message *m = tn_message_new();
    QUIET(m == NULL, pending);
    QUIET(tn_message_of((tn_values){.n = -1}), NULL);
    QUIET(tn_message_of((tn_values){.n = TN_MAX_VALUES + 1}), NULL);
    tn_message *of = tn_message_of((tn_values){.n = 1, .v = {t}});
    TAKES(tn_message_free(of));
    TAKES(tn_message_add(m, t));
    FAILS(tn_message_add(NULL, t));
    FAILS(tn_message_add_bytes(m, NULL, 3));
    FAILS(tn_message_add_text(m, NULL));
    QUIET(tn_message_add_int(NULL, 3) != TN_OK, true);
    FAILS(tn_message_add_remote(m, NULL));
    QUIET(tn_message_count(NULL), 0);
    for (int i = 0; i < INTS; i++) {
        QUIET(tn_is_inert(tn_message_tensor(i % 2 ? m : NULL, ints[i])), true);
        QUIET(tn_message_bytes(m, ints[i], NULL), NULL);
        QUIET(*tn_message_text(NULL, ints[i]), 0);
        QUIET(tn_message_int(m, ints[i]), 0);
        QUIET(tn_message_remote(m, ints[i]), NULL);
    }
    TAKES(tn_message_free(m));
    TAKES(tn_message_free(NULL));
}

static void rpc_calls(tn_tensor *t) {
    tn_rpc_options o = tn_rpc_defaults();
    for (int i = 0; i < REALS; i++) {
        o.timeout = reals[i];
        TAKES(tn_rpc_free(tn_rpc_new(NULL, o)));
        QUIET(tn_rpc_call(NULL, 0, "f", NULL, reals[i]), NULL);
        QUIET(tn_rpc_shutdown(NULL, reals[i]) != TN_OK, true);
        QUIET(tn_is_inert(tn_remote_get(NULL, reals[i])), true);
    }
    for (int i = 0; i < INTS; i++) {
        tn_rpc_options other = tn_rpc_defaults();
        other.threads_most = ints[i];
        other.message_limit = ints[i];
        QUIET(tn_rpc_new(NULL, other), NULL);
        QUIET(tn_rpc_call(NULL, ints[i], NULL, NULL, 0), NULL);
    }
    FAILS(tn_rpc_register(NULL, "f", no_function, NULL));
    FAILS(tn_rpc_start(NULL));
    QUIET(tn_rpc_rank(NULL), 0);
    QUIET(tn_rpc_size(NULL), 1);
    QUIET(tn_rpc_caller(), -1);
    QUIET(tn_rpc_wait(NULL), NULL);
    QUIET(tn_rpc_done(NULL), true);
    TAKES(tn_rpc_free(NULL));
    NOTHING(tn_remote_of(NULL, t));
    NOTHING(tn_remote_of_object(NULL, NULL, NULL));
    QUIET(tn_remote_owner(NULL), -1);
    NOTHING(tn_remote_object(NULL));
    TAKES(tn_remote_free(NULL));
    QUIET(tn_rpc_kept(NULL), 0);
    NOTHING(tn_rpc_context_new(NULL));
    TAKES(tn_rpc_context_free(NULL));
    QUIET(tn_rpc_context_current(), NULL);
    EMPTY(tn_rpc_forward(NULL, 0, "f", (tn_values){1, {t}}, 0));
    FAILS(tn_rpc_register_optim(NULL, NULL));
    FAILS(tn_rpc_step(NULL));
}

/* With an rpc of one rank, everything else is wrong. */
static void rpc_arguments(tn_tensor *t) {
    tn_rpc *r = tn_rpc_new(NULL, tn_rpc_defaults());
    FAILS(tn_rpc_register(r, NULL, no_function, NULL));
    FAILS(tn_rpc_register(r, "f", NULL, NULL));
    FAILS(tn_rpc_register_optim(r, NULL));
    NOTHING(tn_remote_of(r, null ? NULL : t));
    NOTHING(tn_remote_of_object(r, NULL, NULL));
    if (!pending) {
        tn_rpc_start(r);
    }
    tn_rpc_context *c = tn_rpc_context_new(r);
    QUIET(c == NULL, pending);
    for (int i = 0; i < INTS; i++) {
        QUIET(tn_rpc_call(r, ints[i], NULL, NULL, 0), NULL);
        QUIET(tn_rpc_wait(tn_rpc_call(r, ints[i], "nothing", NULL, 0)), NULL);
        EMPTY(tn_rpc_forward(c, ints[i], "nothing", (tn_values){1, {t}}, 0));
    }
    TAKES(tn_rpc_context_free(c));
    TAKES(tn_rpc_free(r));
}

static void system_calls(tn_tensor *t) {
    char why[TN_ENGINE_WHY];
    QUIET(tn_engine_new(NULL, NULL, why), NULL);
    QUIET(tn_engine_new("pigeon", NULL, why), NULL);
    for (int i = 0; i < INTS; i++) {
        QUIET(tn_collective_name((tn_collective)ints[i]) != NULL, true);
    }
    TAKES(tn__reduce_all(TN_SUM, TN_F32, NULL, NULL, 1, 0));
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(starting_ranks)
PART(group_calls)
PART(group_operations)
PART(byte_operations)
PART(differentiable_operations)
PART(mesh_calls)
PART(data_parallel)
PART(model_splitting)
PART(layer_pipelines)
PART(plan_calls)
PART(data_and_files)
PART(saver_calls)
PART(store_calls)
PART(by_deepspeeds_file)
PART(flight_recorder)
PART(message_calls)
PART(rpc_calls)
PART(rpc_arguments)
PART(system_calls)

int main(int argc, char **argv) {
    setenv("TERN_FLIGHT_DIR", "/nowhere", 1); /* no flight recorder files */
    return RUN_PARTS(argc, argv);
}
