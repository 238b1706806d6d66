/* Data parallelism: parameters that a backward does not reach, and frozen ones. Ranks are
 * threads. */

#include "ddp_net.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- Unused ---------------------------------------------------------------------------------- */

static void leaves_out(tn_group *g, void *user) {
    net m;
    net_init(&m, 1);
    m.use_extra = tn_group_rank(g) != 1;
    tn_ddp(&m, g, small_buckets());
    net_backward(&m, 0);
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_ESTATE : TN_EPEER));
    CHECK(strstr(tn_error_message(), "extra.weight, extra.bias"));
    CHECK(strstr(tn_error_message(), "find_unused"));
    tn_module_finish(&m);
}

TEST(test_unused_parameters_are_named) {
    double begin = tn_flight_now();
    const char *text = run_failing(3, leaves_out, NULL, TN_ESTATE);
    assert_contains(text, "backward did not reach 2 of 6 parameters: extra.weight, extra.bias");
    assert_true(tn_flight_now() - begin < 30); /* at once, not after the timeout of 600 s */
}

static void finds_unused(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, *o);
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, false, 1),
            none = grads_alone(1, false, 0);
    for (int i = 0; i < b.count; i++) {
        b.at[i] = b.at[i] == -77 ? 0 : b.at[i];
    }
    for (int step = 0; step < 2; step++) {
        tn_module_zero_grad(&m);
        m.use_extra = rank == 0;
        net_backward(&m, rank);
        numbers want = numbers_sum(&a, &b, 2), is = grads_of(&m);
        CHECK(same_numbers(&is, &want));

        tn_module_zero_grad(&m);
        m.use_extra = false; /* on no rank */
        net_backward(&m, rank);
        numbers want_none = numbers_sum(&none, &b, 2);
        is = grads_of(&m);
        CHECK(tn_grad_of(m.extra.weight) == NULL && tn_grad_of(m.extra.bias) == NULL);
        CHECK(memcmp(is.at, want_none.at, (33 + 70) * sizeof(float)) == 0);
    }
    CHECK(tn_error() == TN_OK);
    tn_module_finish(&m);
}

/* A sum to which no rank adds is not reduced again. */
static void keeps_unused_sums(tn_group *g, void *user) {
    tn_ddp_options o = TN_WITH(tn_ddp, .find_unused = true, .sum = true);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, o);
    net_backward(&m, tn_group_rank(g));
    numbers first = grads_of(&m);
    tn_module_zero_grad(&m.in);
    tn_module_zero_grad(&m.out);
    m.use_extra = false;
    net_backward(&m, tn_group_rank(g));
    numbers second = grads_of(&m);
    CHECK(memcmp(first.at + 33 + 70, second.at + 33 + 70, 110 * sizeof(float)) == 0);
    CHECK(first.at[0] != second.at[0]);
    CHECK(tn_error() == TN_OK);
    tn_module_finish(&m);
}

typedef struct skipping {
    tn_module base;
    tn_linear linear;
    bool skip;
} skipping;

static tn_tensor *skipping_forward(tn_module *self, tn_tensor *x) {
    skipping *m = (skipping *)self;
    return m->skip ? tn_square(x) : tn_call(&m->linear, x);
}

/* Rank 1 uses the module's output, but none of its parameters. */
static void skips_all(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    TN_SCOPE;
    skipping m = {.skip = tn_group_rank(g) == 1};
    tn_module_init(&m, "skipping", skipping_forward);
    tn_linear_init(&m.linear, 4, 4, tn_linear_defaults());
    tn_module_add(&m, "linear", &m.linear);
    tn_ddp_state *ddp = tn_ddp(&m, g, *o);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 4), TN_F32), true), *grad;
    tn_tensor *y = tn_sum_all(tn_call(&m, x));
    CHECK(tn_grad(&y, NULL, 1, &x, 1, &grad, TN_WITH(tn_grad, .retain_graph = true)) == TN_OK);
    CHECK(tn_ddp_statistics(ddp).steps == 0); /* no parameter's gradient was needed */
    tn_backward(y);
    if (o->find_unused) {
        CHECK(tn_error() == TN_OK && tn_ddp_statistics(ddp).steps == 1);
        CHECK(tn_at(tn_grad_of(m.linear.bias), TN_DIMS(1)) == 1); /* the mean of 2 and none */
    } else {
        CHECK(tn_error() == (m.skip ? TN_ESTATE : TN_EPEER));
        CHECK(strstr(tn_error_message(), "did not reach 2 of 2 parameters"));
        stay_until_told(g);
    }
    tn_module_finish(&m);
}

TEST(test_a_rank_that_uses_no_parameter) {
    tn_ddp_options o = tn_ddp_defaults();
    run_failing(2, skips_all, &o, TN_ESTATE);
    o.find_unused = true;
    run_ok(2, skips_all, &o);
}

TEST(test_unused_parameters_are_found) {
    for (int i = 0; i < 2; i++) {
        tn_ddp_options o = i ? small_buckets() : tn_ddp_defaults();
        o.find_unused = true;
        run_ok(2, finds_unused, &o);
    }
    run_ok(2, keeps_unused_sums, NULL);
}

/* ---- Frozen ---------------------------------------------------------------------------------- */

static void checks_frozen(net *m, int rank, const numbers *before, float divide) {
    tn_zero_grad(m->in.weight);
    tn_zero_grad(m->in.bias);
    tn_module_requires_grad(&m->out, false);
    tn_module_requires_grad(&m->extra, false);
    net_backward(m, rank);
    tn_module_requires_grad(m, true);
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, true, 1);
    numbers want = numbers_sum(&a, &b, divide);
    memcpy(want.at, before->at, 33 * sizeof(float)); /* out, then in, then extra */
    memcpy(want.at + 33 + 70, before->at + 33 + 70, 110 * sizeof(float));
    numbers is = grads_of(m);
    CHECK(same_numbers(&is, &want));
}

/* Parameters that are frozen in a step keep their gradients, also with sum. */
static void freezes_parameters(tn_group *g, void *user) {
    const tn_ddp_options *o = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, *o);
    for (int step = 0; step < 2; step++) {
        tn_module_requires_grad(&m, true);
        tn_module_zero_grad(&m);
        net_backward(&m, 5 + rank);
        numbers all = grads_of(&m);
        checks_frozen(&m, rank, &all, 1);
    }
    tn_module_requires_grad(&m, false);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, NET_IN), TN_F32), true);
    if (rank == 0) { /* a backward without parameters is local to this rank */
        CHECK(tn_backward(tn_sum_all(tn_call(&m, x))) == TN_OK);
    } else {
        tn_call(&m, x);
    }
    CHECK(tn_grad_of(x) || rank != 0);
    tn_module_finish(&m);
}

/* What a rank accumulated locally before it froze a module stays local. */
static void freezes_own(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    tn_ddp(&m, g, tn_ddp_defaults());
    {
        TN_NO_SYNC(&m);
        net_backward(&m, rank);
    }
    numbers own = grads_of(&m);
    checks_frozen(&m, rank, &own, 2);
    net_backward(&m, rank); /* now it is reduced */
    numbers a = grads_alone(1, true, 0), b = grads_alone(1, true, 1), is = grads_of(&m);
    CHECK(is.at[0] == (2 * a.at[0] + 2 * b.at[0]) / 2);
    tn_module_finish(&m);
}

/* Frozen at attachment, trained later. */
static void thaws_parameters(tn_group *g, void *user) {
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 1);
    CHECK(tn_freeze(&m, "extra") == 2);
    tn_ddp_options o = small_buckets();
    tn_ddp_state *ddp = tn_ddp(&m, g, o);
    net_backward(&m, rank);
    CHECK(tn_ddp_statistics(ddp).buckets == 4);
    CHECK(tn_unfreeze(&m, "extra") == 2);
    {
        TN_NO_SYNC(&m);
        net_backward(&m, 4 + rank); /* added to averages; extra is not in a bucket yet */
    }
    net_backward(&m, 8 + rank);
    CHECK(tn_ddp_statistics(ddp).buckets == 6);
    numbers ranks[2];
    for (int r = 0; r < 2; r++) {
        numbers first = grads_alone(1, true, 0), other = grads_alone(1, true, 1);
        numbers sum = numbers_sum(&first, &other, 2), next = grads_alone(1, true, 4 + r);
        memset(sum.at + 33 + 70, 0, 110 * sizeof(float));
        numbers last = grads_alone(1, true, 8 + r), two = numbers_sum(&sum, &next, 1);
        ranks[r] = numbers_sum(&two, &last, 1);
    }
    numbers want = numbers_sum(&ranks[0], &ranks[1], 2), is = grads_of(&m);
    CHECK(same_numbers(&is, &want));
    tn_module_finish(&m);
}

/* Thawed, with no synchronised forward since: its gradient would not be reduced. */
static void thaws_too_late(tn_group *g, void *user) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    tn_module_requires_grad(&m.extra, false);
    tn_ddp(&m, g, TN_WITH(tn_ddp, .join = user != NULL));
    tn_module_requires_grad(&m.extra, true);
    tn_tensor *loss;
    {
        TN_NO_SYNC(&m);
        loss = net_loss(&m, 0);
    }
    tn_backward(loss);
    CHECK(tn_error() == TN_ESTATE || tn_error() == TN_EPEER);
    CHECK(strstr(tn_error_message(), "extra.weight has a gradient but no bucket"));
    tn_module_finish(&m);
}

TEST(test_thawed_too_late) {
    run_failing(2, thaws_too_late, NULL, TN_ESTATE);
    run_failing(2, thaws_too_late, "join", TN_ESTATE);
}

TEST(test_frozen_parameters) {
    for (int i = 0; i < 4; i++) {
        tn_ddp_options o = i & 1 ? small_buckets() : tn_ddp_defaults();
        o.sum = true;
        o.find_unused = i & 2;
        run_ok(2, freezes_parameters, &o);
    }
    run_ok(2, freezes_own, NULL);
    run_ok(2, thaws_parameters, NULL);
    run_ok(2, thaws_parameters, "");
}
