/* Calls between ranks whose tensors are on a device: they travel over the CPU, and what backward
 * and tn_rpc_forward give is where the inputs are. Ranks are threads, each with a device. */

#include "device_ranks.h"
#include "tests/distributed/rpc_check.h"

static bool is_on(tn_tensor *t, tn_device d) {
    return t && tn_device_of(t).kind == d.kind && tn_device_of(t).index == d.index;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static tn_values send_back(tn_values in, void *user) {
    return TN_VALUES(tn_to(in.v[0], *(tn_device *)user),
                     tn_scalar(is_on(in.v[0], tn_cpu()), TN_I64));
}

static void sends_tensors(tn_group *world, void *user) {
    TN_SCOPE;
    tn_device mine = tn_default_device();
    tn_rpc *r = start_with(world, tn_rpc_defaults(), FUNCTIONS({"send_back", send_back, &mine}));
    tn_tensor *x = tn_transpose(tn_randn(TN_DIMS(3, 5), TN_BF16), 0, 1), *host = tn_to(x, tn_cpu());
    CHECK(is_on(x, mine));
    tn_values out = ask_rank(r, 1 - tn_group_rank(world), "send_back",
                             TN_VALUES(x, tn_ones(TN_DIMS(0), TN_F32)), 0);
    CHECK(out.n == 2 && tn_item(out.v[1]) == 1);
    CHECK(is_on(out.v[0], tn_cpu()) && tn_equal(out.v[0], host));
    end_rank(world, r);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

static tn_values run_half(tn_values in, void *user) {
    const tn_linear *half = user;
    return TN_VALUES(tn_tanh(tn_call(user, tn_to(in.v[0], tn_device_of(half->weight)))));
}

/* Each rank calls the other's half: as on the CPU. */
static void calls_half(tn_group *world, void *user) {
    TN_SCOPE;
    tn_device mine = tn_default_device();
    tn_linear half, same;
    tn_seed(3);
    tn_linear_init(&half, 4, 4, tn_linear_defaults());
    tn_seed(3);
    tn_linear_init(&same, 4, 4, tn_linear_defaults());
    tn_rpc *r = start_with(world, tn_rpc_defaults(), FUNCTIONS({"half", run_half, &half}));
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 4), TN_F32), true);
    tn_tensor *z = tn_set_requires_grad(tn_ones(TN_DIMS(2, 4), TN_F32), true);
    tn_tensor *y = tn_rpc_forward(r, 1 - tn_group_rank(world), "half", TN_VALUES(x), 0).v[0];
    CHECK(is_on(y, mine));
    tn_backward(tn_sum_all(tn_square(y)));
    tn_backward(tn_sum_all(tn_square(tn_tanh(tn_call(&same, z)))));
    CHECK(is_on(tn_grad_of(x), mine) && tn_equal(tn_grad_of(x), tn_grad_of(z)));
    end_rank(world, r);
    CHECK(is_on(tn_grad_of(half.weight), mine));
    CHECK(tn_equal(tn_grad_of(half.weight), tn_grad_of(same.weight)));
    tn_module_finish(&half);
    tn_module_finish(&same);
}

/* ---- All ------------------------------------------------------------------------------------- */

static void run_on_devices(void (*f)(tn_group *, void *)) {
    const tn_device devices[] = {tn_cuda(0), tn_cuda(1)};
    failures = 0;
    if (tn_local_run_on(devices, 2, f, NULL) != TN_OK) { fail_msg("%s", tn_error_message()); }
    assert_int_equal(failures, 0);
}

TEST(tensors_travel_over_the_cpu) {
    run_on_devices(sends_tensors);
}

TEST(gradients_return_to_the_device) {
    run_on_devices(calls_half);
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(device_set_up, NULL);
}
