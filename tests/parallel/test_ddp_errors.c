/* Data parallelism: errors in the middle of a step. Ranks are threads. */

#include "ddp_net.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

static tn_tensor *fail_here(tn_tensor *grad, void *user) {
    tn_raise(TN_EVALUE, "a hook does not like this gradient");
    return NULL;
}

/* Rank 1 fails before its first bucket, between buckets, or at the module's output. */
static void fails_in_backward(tn_group *g, void *user) {
    const char *where = user;
    bool naive = !strcmp(where, "naive");
    net m;
    net_init(&m, 1);
    if (naive) {
        tn_ddp_naive(&m, g);
    } else {
        tn_ddp(&m, g, small_buckets());
    }
    net_backward(&m, 0);
    CHECK(tn_error() == TN_OK);
    tn_module_zero_grad(&m);
    if (tn_group_rank(g) == 1 && strcmp(where, "output")) {
        tn_on_grad(!strcmp(where, "first") ? m.out.weight : m.in.weight, fail_here, NULL);
    }
    {
        TN_SCOPE;
        tn_tensor *y = tn_call(&m, tn_ones(TN_DIMS(2, NET_IN), TN_F32));
        if (tn_group_rank(g) == 1 && !strcmp(where, "output")) {
            tn_on_grad(m.in.weight, fail_here, NULL);
            tn_on_grad(m.out.weight, fail_here, NULL);
        }
        tn_backward(tn_sum_all(y));
    }
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_EVALUE : TN_EPEER));
    CHECK(strstr(tn_error_message(), "does not like"));
    CHECK(tn_group_rank(g) == 1 || strstr(tn_error_message(), "rank 1 gave up"));
    CHECK(!strstr(tn_error_message(), "tn_ddp_join")); /* the cause is known */
    stay_until_told(g);
    tn_module_finish(&m);
}

TEST(test_an_error_in_backward_reaches_all) {
    static const char *const where[] = {"first", "middle", "output", "naive"};
    for (int i = 0; i < 4; i++) {
        char text[16];
        snprintf(text, sizeof(text), "%s", where[i]);
        run_failing(3, fails_in_backward, text, TN_EVALUE);
    }
}

/* Rank 1's error comes at the module's output, before any parameter, and is cleared: its next step
 * must not be paired with the others' last one. */
static tn_values output_fails(tn_module *m, tn_values in, tn_values out, void *user) {
    tn_on_grad(out.v[0], fail_here, user);
    return out;
}

RANKS_TEST_FAILS(test_a_cleared_error_does_not_shift_steps, 2, TN_EPEER, "") {
    net m;
    net_init(&m, 1);
    bool mine = tn_group_rank(world) == 1;
    if (mine) { tn_module_hook(&m, (tn_module_hooks){.after = output_fails}); }
    tn_ddp(&m, world, tn_ddp_defaults());
    net_backward(&m, 0);
    if (mine) {
        CHECK(failed_with(TN_EVALUE, ""));
        net_backward(&m, 1);
    }
    CHECK(tn_error() == TN_EPEER);
    tn_module_finish(&m);
}

TEST(test_a_buffer_that_was_exchanged) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_ddp(&m, NULL, tn_ddp_defaults());
    tn_set_grad_buffer(m.in.bias, tn_zeros(TN_DIMS(NET_HIDDEN), TN_F32));
    net_backward(&m, 0);
    assert_error(TN_ESTATE, "the gradient buffer of in.bias was replaced");
    tn_module_finish(&m);
}
