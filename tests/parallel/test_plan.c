/* Plans of times against cases computed by hand (they are a model, and no clock is read here);
 * searching. test_plan_bytes.c has those of memory, docs/plan.py those of published runs. */
#include "distributed/parallel/plan/plan.h"
#include "tern/tern.h"

#include <math.h>

#include "tests/support/test.h"

/* ---- Seconds: by hand ------------------------------------------------------------------------ */

/* GPT-2's shape in small. */
enum { LAYERS = 4, WIDTH = 64, VOCAB = 128, LENGTH = 32, BATCH = 2 };

static const double always = 1e40;            /* a rate */
static const double delay = 1e-5, far = 3e-5; /* seconds of a message in a host, and between two */

static void small_model(tn_gpt *m) {
    TN_DEFER_INIT;
    tn_gpt_init(m, TN_WITH(tn_gpt, .layers = LAYERS, .heads = 4, .width = WIDTH, .vocab = VOCAB,
                           .context = LENGTH));
}

/* Nothing but what a test sets takes time. */
static tn__plan_options free_machine(int ranks, const char *mesh) {
    tn__plan_options o = TN_WITH(tn__plan, .ranks = ranks, .batch = BATCH);
    o.machine.flops = o.machine.memory_speed = o.machine.host_link = o.machine.network_link =
        always;
    o.machine.reached = 1;
    tn_spread_read(&o.mesh, mesh);
    o.tokens = (int64_t)BATCH * LENGTH * ranks / o.mesh.pp / o.mesh.cp / o.mesh.tp; /* one each */
    return o;
}

static tn__plan_result plan_small(tn__plan_options o) {
    tn_gpt m;
    tn__plan_result plan;
    small_model(&m);
    assert_int_equal(tn__plan_of(&m, o, &plan), TN_OK);
    tn_module_finish(&m);
    return plan;
}

static void close_to(double is, double want) {
    if (fabs(is - want) > 1e-9 * fabs(want)) { fail_msg("%.12g instead of %.12g", is, want); }
}

/* Multiplications for each position. */
static const double block_products = 12.0 * WIDTH * WIDTH, attention = 1.0 * LENGTH * WIDTH,
                    top_products = 1.0 * VOCAB * WIDTH;

TEST(test_operations) {
    double tokens = BATCH * LENGTH, forward = 2 * LAYERS * (block_products + attention);
    tn__plan_options o = free_machine(1, "dp=1");
    o.machine.flops = 1e9;
    tn__plan_result plan = plan_small(o);
    close_to(plan.compute, 3 * tokens * (forward + 2 * top_products) / 1e9);
    close_to(plan.seconds, plan.compute);
    close_to(plan.utilisation, 1);
    o.recompute = true;
    close_to(plan_small(o).compute, tokens * (4 * forward + 6 * top_products) / 1e9);
    o.recompute = false;
    o.machine.reached = 0.5;
    close_to(plan_small(o).compute, 2 * plan.compute);
    o.machine.reached = 1;
    o.machine.flops_f32 = 1e8;
    o.compute = TN_F32;
    close_to(plan_small(o).compute, 10 * plan.compute);
    o = free_machine(4, "tp=4");
    o.machine.flops = 1e9;
    close_to(plan_small(o).compute, plan.compute / 4);
    o = free_machine(2, "cp=2");
    o.machine.flops = 1e9;
    close_to(plan_small(o).compute, plan.compute / 2);
    o = free_machine(1, "dp=1");
    o.machine.flops = 1e9;
    o.tokens = 3 * BATCH * LENGTH; /* three micro-batches */
    close_to(plan_small(o).compute, 3 * plan.compute);
}

TEST(test_optimiser) {
    tn__plan_options o = free_machine(2, "shard=2");
    o.machine.memory_speed = 1e6;
    tn__plan_result plan = plan_small(o);
    close_to(plan.optimiser, 28 * (double)plan.parameters / 2 / 1e6);
}

/* Elements of a block, and of the rest. */
static const double block_elements = 12.0 * WIDTH * WIDTH + 13 * WIDTH,
                    rest_elements = (VOCAB + LENGTH + 2.0) * WIDTH;

TEST(test_messages_of_data) {
    double all = LAYERS * block_elements + rest_elements;
    tn__plan_options o = free_machine(4, "dp=4");
    o.machine.host_link = 1;
    close_to(plan_small(o).data, 2 * 3 / 4.0 * 4 * all); /* f32, scattered and gathered */
    o = free_machine(4, "shard=4,stage=2");
    o.machine.host_link = 1;
    close_to(plan_small(o).data, 3 / 4.0 * (2 + 4) * all); /* bf16 comes, f32 goes */
    o.tokens = 4 * 3 * BATCH * LENGTH;                     /* gradients go three times */
    close_to(plan_small(o).data, 3 / 4.0 * (2 + 3 * 4) * all);
    o = free_machine(4, "shard=4,stage=3"); /* forward's last block stays for backward */
    o.machine.host_link = 1;
    close_to(plan_small(o).data, 3 / 4.0 * ((2 + 4) * all + 2 * (LAYERS - 1) * block_elements));
    o = free_machine(4, "dp=2,shard=2,stage=2"); /* then halves of the sums over the copies */
    o.machine.host_link = 1;
    close_to(plan_small(o).data, (1 / 2.0 * (2 + 4) + 2 * 1 / 2.0 * 2) * all);
    o = free_machine(2, "dp=2");
    close_to(plan_small(o).data, 2 * (LAYERS + 1) * delay); /* two for each block and the rest */
}

/* Messages go beside the blocks' computing, but for those of the rest and of one block. */
TEST(test_overlap) {
    tn__plan_options o = free_machine(2, "dp=2");
    o.machine.host_link = 1;
    o.machine.flops = 1; /* slow */
    close_to(plan_small(o).data, 4 * (block_elements + rest_elements));
}

TEST(test_messages_of_tensors) {
    double x = 2.0 * BATCH * LENGTH * WIDTH; /* bytes, of which half travels in each message */
    tn__plan_options o = free_machine(2, "tp=2");
    o.machine.host_link = 1;
    double top = 3; /* forward one, backward as two */
    close_to(plan_small(o).exchange, (8 * LAYERS + top) * (x / 2 + delay));
    o.recompute = true;
    close_to(plan_small(o).exchange, (12 * LAYERS + top) * (x / 2 + delay));
    o = free_machine(2, "cp=2"); /* q, k, v and y, of half the positions, forward and back */
    o.machine.host_link = 1;
    close_to(plan_small(o).exchange, LAYERS * 2 * 4 * (x / 2 / 2 + delay));
}

/* Ranks that are in one host use its link; those that are not, the network, of which each of
 * several in a host has a part. */
TEST(test_hosts) {
    double all = LAYERS * block_elements + rest_elements;
    tn__plan_options o = free_machine(8, "dp=8");
    o.machine.per_host = 4;
    o.machine.network_link = 1;
    close_to(plan_small(o).data, 2 * (7 / 8.0 * 4 * all / 4 + (LAYERS + 1) * far));
    o = free_machine(8, "dp=2,shard=4,stage=1"); /* neighbours share; copies are far apart */
    o.machine.per_host = 4;
    o.machine.network_link = 1;
    close_to(plan_small(o).data, 2 * (1 / 2.0 * 4 * all / 4 + (LAYERS + 1) * (far + delay)));
    o.machine.per_host = 8;
    assert_true(plan_small(o).data < 1);
}

TEST(test_bubble) {
    int64_t kept[2];
    for (int kind = 0; kind < 2; kind++) {
        tn__plan_options o = free_machine(3, kind ? "pp=3,gpipe" : "pp=3");
        o.machine.flops = 1;
        o.rank = 0;
        o.tokens = 6 * BATCH * LENGTH;
        tn__plan_result plan = plan_small(o);
        assert_int_equal(plan.micros, 6);
        close_to(plan.bubble, plan.compute * 2 / 6);
        kept[kind] = plan.activations;
    }
    assert_int_equal(kept[1], 2 * kept[0]);       /* six graphs at once, or three */
    tn__plan_options o = free_machine(2, "pp=2"); /* alone: a message forward, and one back */
    o.tokens = BATCH * LENGTH;
    close_to(plan_small(o).bubble, 2 * delay);
    o = free_machine(2, "pp=2,zb_h1"); /* of F, B and W only one, where F is as long as W */
    o.machine.flops = 1;
    o.tokens = 6 * BATCH * LENGTH;
    tn__plan_result plan = plan_small(o);
    close_to(plan.bubble, plan.compute / 6 / 3);
}

/* ---- Searching, and what is refused ---------------------------------------------------------- */

TEST(test_search) {
    tn_gpt m;
    small_model(&m);
    tn__plan_options o = TN_WITH(tn__plan, .ranks = 8, .tokens = 8 * LENGTH, .machine.per_host = 4);
    tn__plan_result best[500];
    int count = tn__plan_search(&m, o, best, 500);
    assert_true(count > 20);
    bool tensor = false, stages = false, shards = false;
    for (int i = 0; i < count; i++) {
        const tn__plan_result *p = &best[i];
        assert_true(p->fits && p->pp * p->dp * p->shard * p->cp * p->tp == 8 && p->tp <= 4);
        assert_true(i == 0 || p->seconds >= best[i - 1].seconds);
        tn__plan_options again = o;
        again.mesh.pp = p->pp;
        again.mesh.dp = p->dp;
        again.mesh.shard = p->shard;
        again.mesh.tp = p->tp;
        again.mesh.sharding.stage = p->stage ? p->stage : 3;
        again.recompute = p->recompute;
        tn__plan_result same;
        assert_int_equal(tn__plan_of(&m, again, &same), TN_OK);
        assert_memory_equal(&same, p, sizeof(same));
        tensor |= p->tp > 1;
        stages |= p->pp > 1;
        shards |= p->shard > 1;
        assert_true(p->pp == 1 || p->stage != 1); /* 2 needs no more there */
    }
    assert_true(tensor && stages && shards);
    tn__plan_result few[3];
    assert_int_equal(tn__plan_search(&m, o, few, 3), 3);
    assert_memory_equal(few, best, sizeof(few));
    o.machine.memory = (double)best[0].peak / 2; /* others may fit */
    count = tn__plan_search(&m, o, best, 500);
    for (int i = 0; i < count; i++) {
        assert_true((double)best[i].peak <= o.machine.memory);
    }
    o.machine.memory = 1000;
    assert_int_equal(tn__plan_search(&m, o, best, 500), 0);
    assert_int_equal(tn_error(), TN_OK);
    tn_module_finish(&m);
}

TEST(test_mistakes) {
    static const struct {
        int ranks;
        const char *mesh;
        int64_t tokens;
        tn_status status;
        const char *message;
    } cases[] = {
        {8, "tp=3", 0, TN_EVALUE, "and there are 8"},
        {6, "tp=3", 0, TN_ESHAPE, "tp=3 does not divide 4 heads"},
        {8, "dp=2,tp=2", 0, TN_EVALUE, "a mesh of 4 ranks, and there are 8"},
        {2, "dp=2", 100, TN_EVALUE, "100 tokens are no multiple of 128"},
        {2, "dp=2", 128 * ((1 << 20) + 1), TN_EVALUE, "above 1048576 times"},
        {16, "pp=16", 0, TN_EVALUE, "6 parts has not enough for 16 stages"},
        {3, "cp=3", 0, TN_ESHAPE, "cp=3 does not divide 32 positions"},
        {2, "pp=2,chunks=2", 3 * BATCH * LENGTH, TN_EVALUE, "multiple"},
    };
    tn_gpt m;
    small_model(&m);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tn__plan_options o =
            TN_WITH(tn__plan, .ranks = cases[i].ranks, .batch = BATCH, .tokens = cases[i].tokens);
        assert_int_equal(tn_spread_read(&o.mesh, cases[i].mesh), TN_OK);
        tn__plan_result plan;
        tn__plan_of(&m, o, &plan);
        assert_error(cases[i].status, cases[i].message);
        assert_int_equal(plan.peak, 0);
    }
    tn_module_finish(&m);
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
