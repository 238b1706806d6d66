/* Sharding of a model that is split over ranks in another way already: blocks of matrices in the
 * fields, chains of groups, a parameter that two stages have. The split is a toy: a layer whose
 * hidden units are on different ranks. */
#include "tests/distributed/rank_check.h"
#include "tests/support/temp.h"

#include "nn/layout.h"
#include "nn/module.h"

#include <math.h>
#include <stdlib.h>

/* The hidden units are divided unevenly: 3 and 2. */
enum { WIDTH = 6, HIDDEN = 5, ROWS = 3, STEPS = 3, NUMBERS = 256 };

/* ---- A layer that is split ------------------------------------------------------------------- */

typedef struct layer {
    tn_module base;
    tn_layer_norm norm;
    tn_linear in, out;
    tn_group *tp;
} layer;

typedef struct net {
    tn_module base;
    layer h[2];
    tn_linear head;
} net;

/* x + out(tanh(in(norm(x)))) */
static tn_tensor *layer_forward(tn_module *self, tn_tensor *x) {
    layer *m = (layer *)self;
    tn_tensor *h = tn_tanh(tn_call(&m->in, tn_dist_copy(m->tp, tn_call(&m->norm, x))));
    tn_tensor *y = tn_dist_sum_parts(m->tp, tn_matmul(h, tn_t(m->out.weight)));
    return tn_add(x, tn_add(y, m->out.bias));
}

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    return tn_call(&m->head, tn_call(&m->h[1], tn_call(&m->h[0], x)));
}

static void layer_init(layer *m) {
    tn_module_init(m, "block", layer_forward);
    tn_layer_norm_init(&m->norm, WIDTH, tn_norm_defaults());
    tn_linear_init(&m->in, WIDTH, HIDDEN, tn_linear_defaults());
    tn_linear_init(&m->out, HIDDEN, WIDTH, tn_linear_defaults());
    tn_module_add(m, "norm", &m->norm);
    tn_module_add(m, "in", &m->in);
    tn_module_add(m, "out", &m->out);
}

static void net_init(net *m) {
    *m = (net){.head = {.weight = NULL}};
    tn_seed(3);
    tn_module_init(m, "net", net_forward);
    layer_init(&m->h[0]);
    layer_init(&m->h[1]);
    tn_linear_init(&m->head, WIDTH, 2, tn_linear_defaults());
    tn_module_add(m, "h.0", &m->h[0]);
    tn_module_add(m, "h.1", &m->h[1]);
    tn_module_add(m, "head", &m->head);
    tn_seed(5);
}

static tn_status sum_group(const tn_parts *p, double *values, int n) {
    TN_SCOPE;
    tn_tensor *t = tn_from_data(values, TN_DIMS(n), TN_F64);
    tn_status status = tn_work_wait(tn_all_reduce(p->group, t, TN_SUM), 0);
    return status == TN_OK ? tn_copy_out(t, values) : status;
}

typedef struct search {
    const char *path;
    tn_tensor **field;
} search;

static bool match_path(const tn_entry *entry, void *user) {
    search *s = user;
    s->field = strcmp(entry->path, s->path) == 0 ? entry->field : s->field;
    return true;
}

static tn_tensor **field_of(void *m, const char *path) {
    search s = {.path = path};
    tn_module_each(m, (tn_walk){0}, match_path, &s);
    return s.field;
}

/* Puts this rank's block of the parameter along dim into its field. */
static void cut_parameter(net *m, const char *path, int dim, const tn_parts *tp) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor **field = field_of(m, path), *whole = *field;
    tn_layout l = tn__layout_whole(tn_shape(whole));
    l.dim = dim;
    l.slice = tn_group_rank(tp->group);
    l.slices = tn_group_size(tp->group);
    tn__slice slice = tn__layout_slice(&l);
    l.length = tn_dims_count(tn__layout_block(&l));
    tn_tensor *block = tn_copy(tn_narrow(tn_detach(whole), dim, slice.first, slice.count));
    CHECK(tn_dims_equal(tn_shape(block), tn__layout_block(&l)));
    *field = tn_keep(tn_set_requires_grad(block, true));
    tn_release(whole);
    CHECK(tn_module_set_part(m, path, NULL, l, tp) == TN_OK);
}

static void split_net(net *m, tn_parts *tp) {
    static const char *const rows[] = {"h.0.in.weight", "h.0.in.bias", "h.1.in.weight",
                                       "h.1.in.bias"};
    for (int i = 0; i < 4; i++) {
        cut_parameter(m, rows[i], 0, tp);
    }
    cut_parameter(m, "h.0.out.weight", 1, tp);
    cut_parameter(m, "h.1.out.weight", 1, tp);
    m->h[0].tp = m->h[1].tp = tp->group;
}

/* ---- Training it ----------------------------------------------------------------------------- */

static tn_tensor *draw_numbers(tn_dims dims, int64_t number) {
    tn_generator g = {.seed = 7, .stream = (uint64_t)number};
    return tn_normal_(tn_empty(dims, TN_F32), 0, 1, &g);
}

static void net_backward(net *m, int64_t number, double scale) {
    TN_SCOPE;
    tn_tensor *x = draw_numbers(TN_DIMS(ROWS, WIDTH), 2 * number);
    tn_tensor *y = draw_numbers(TN_DIMS(ROWS, 2), 2 * number + 1);
    tn_backward(tn_mul_scalar(tn_mse(tn_call(m, x), y, TN_MEAN), scale));
}

typedef tn_optim *make_optim(void *m);
static tn_optim *make_adamw(void *m) {
    return tn_adamw(m, TN_WITH(tn_adamw, .lr = 1e-2));
}
static tn_optim *make_lamb(void *m) {
    return tn_lamb(m, TN_WITH(tn_lamb, .lr = 1e-2));
}
static tn_optim *make_muon(void *m) {
    return tn_muon(m, TN_WITH(tn_muon, .lr = 1e-2));
}
static tn_optim *make_adafactor(void *m) {
    return tn_adafactor(m, TN_WITH(tn_adafactor, .lr = 1e-2));
}
static make_optim *const optims[] = {make_adamw, make_lamb, make_muon, make_adafactor};

typedef enum way { ALONE, DDP, NAIVE, FSDP } way;
typedef struct run {
    way way;
    int stage; /* with FSDP */
    int data;  /* ranks with different batches */
    make_optim *optim;
    double norms[STEPS];
    char file[300]; /* the weights of all ranks */
} run;

static void attach_way(net *m, tn_group *data, const run *r) {
    if (r->way == DDP) {
        CHECK(tn_ddp(m, data, tn_ddp_defaults()));
    } else if (r->way == NAIVE) {
        CHECK(tn_fsdp_naive(m, data) == TN_OK);
    } else if (r->way == FSDP) {
        CHECK(tn_fsdp(m, data, NULL, TN_WITH(tn_fsdp, .stage = r->stage)));
    }
}

/* Two micro-batches per step on one rank's data, or one on each of two. */
static void trains_net(tn_group *world, void *user) {
    run *r = user;
    int tp_ranks = tn_group_size(world) / r->data;
    tn_mesh *mesh =
        tn_mesh_new(world, 2, (int[]){r->data, tp_ranks}, (const char *const[]){"data", "tp"});
    tn_group *tp = tn_mesh_group(mesh, "tp"), *data = tn_mesh_group(mesh, "data");
    tn_parts parts = {.sum = sum_group, .group = tp, .counts = true};
    net m;
    net_init(&m);
    if (tp_ranks > 1) { split_net(&m, &parts); }
    attach_way(&m, data, r);
    tn_optim *opt = r->optim(&m);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i += r->data) {
            net_backward(&m, 2 * step + i + tn_group_rank(data), 1.0 / (2 / r->data));
        }
        double norm = tn_optim_clip(opt, 0.2);
        if (tn_group_rank(world) == 0) { r->norms[step] = norm; }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    CHECK(tn_dist_export(world, &m, r->file) == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

static run train_ranks(int ranks, way how, int stage, int data, make_optim *optim) {
    static int files;
    run r = {.way = how, .stage = stage, .data = data, .optim = optim};
    snprintf(r.file, sizeof(r.file), "%s", temp_path("split.safetensors"));
    snprintf(r.file + strlen(r.file), 24, "%d", files++);
    run_ok(ranks, trains_net, &r);
    return r;
}

typedef struct difference {
    net *other;
    double most;
} difference;

static bool compare_entry(const tn_entry *entry, void *user) {
    difference *d = user;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *off = tn_abs(tn_sub(*entry->field, tn_module_get(d->other, entry->path)));
    d->most = fmax(d->most, tn_item(tn_max(off, TN_DIMS(), false)));
    return true;
}

/* The largest difference of two runs' exported weights. */
static double largest_difference(const run *a, const run *b) {
    net one, other;
    net_init(&one);
    net_init(&other);
    difference d = {.other = &other};
    if (tn_load(&one, a->file) != TN_OK || tn_load(&other, b->file) != TN_OK) {
        fail_msg("%s", tn_error_message());
    }
    tn_module_each(&one, (tn_walk){0}, compare_entry, &d);
    tn_module_finish(&one);
    tn_module_finish(&other);
    return d.most;
}

/* On a split layer, sharding matches data parallelism bit for bit, and both match one rank. */
TEST(blocks_are_sharded) {
    for (size_t i = 0; i < sizeof(optims) / sizeof(*optims); i++) {
        run alone = train_ranks(1, ALONE, 0, 1, optims[i]);
        run ddp = train_ranks(4, DDP, 0, 2, optims[i]);
        /* Newton-Schulz and Adafactor's roots amplify the rounding of sums */
        assert_true(largest_difference(&alone, &ddp) < (i < 2 ? 1e-5 : 1e-4));
        for (int stage = 0; stage <= 3; stage++) {
            run fsdp = train_ranks(4, stage ? FSDP : NAIVE, stage, 2, optims[i]);
            assert_true(largest_difference(&ddp, &fsdp) == 0.0);
            for (int k = 0; k < STEPS; k++) {
                assert_true(fabs(fsdp.norms[k] - ddp.norms[k]) <= 1e-12 * ddp.norms[k]);
                assert_true(fabs(fsdp.norms[k] - alone.norms[k]) <= 1e-5 * alone.norms[k]);
            }
        }
    }
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

static char folder[300];

/* Saved on four ranks: two blocks, each in two parts. */
static void saves_blocks(tn_group *world, void *user) {
    tn_mesh *mesh = tn_mesh_new(world, 2, (int[]){2, 2}, (const char *const[]){"data", "tp"});
    tn_parts parts = {.sum = sum_group, .group = tn_mesh_group(mesh, "tp"), .counts = true};
    net m;
    net_init(&m);
    split_net(&m, &parts);
    CHECK(tn_fsdp(&m, tn_mesh_group(mesh, "data"), NULL, tn_fsdp_defaults()));
    tn_optim *opt = make_adamw(&m);
    net_backward(&m, 1, 1.0);
    tn_optim_step(opt);
    tn_saver *saver = tn_saver_new(world, folder, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt, .step = 1};
    CHECK(tn_saver_save(saver, &c) == TN_OK && tn_saver_wait(saver) == TN_OK);
    tn_saver_free(saver);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

/* Loaded on three ranks with blocks of uneven size, or on one that has everything. */
static void loads_blocks(tn_group *world, void *user) {
    tn_parts parts = {.sum = sum_group, .group = world, .counts = true};
    net m, want;
    net_init(&m);
    net_init(&want);
    if (tn_group_size(world) > 1) { split_net(&m, &parts); }
    tn_optim *opt = make_adamw(&m), *other = make_adamw(&want);
    tn_saver *saver = tn_saver_new(world, folder, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt, .other_run = true};
    bool found = false;
    CHECK(tn_saver_load(saver, &c, &found) == TN_OK && found);
    tn_saver_free(saver);
    net_backward(&want, 1, 1.0);
    tn_optim_step(other);
    tn_optim_zero_grad(other);
    net_backward(&want, 2, 1.0);
    tn_optim_step(other); /* with the loaded state */
    net_backward(&m, 2, 1.0);
    tn_optim_step(opt);
    run a = {.file = ""}, b = a;
    snprintf(a.file, sizeof(a.file), "%.200s-is", folder);
    snprintf(b.file, sizeof(b.file), "%.200s-want", folder);
    CHECK(tn_dist_export(world, &m, a.file) == TN_OK);
    CHECK(tn_dist_export(world, &want, b.file) == TN_OK);
    if (tn_group_rank(world) == 0) { CHECK(largest_difference(&a, &b) < 1e-5); }
    tn_optim_free(opt);
    tn_optim_free(other);
    tn_module_finish(&m);
    tn_module_finish(&want);
}

TEST(blocks_in_checkpoints) {
    snprintf(folder, sizeof(folder), "%s", temp_path("split-steps"));
    run_ok(4, saves_blocks, NULL);
    run_ok(1, loads_blocks, NULL);
    run_ok(3, loads_blocks, NULL);
}

/* ---- Chains ---------------------------------------------------------------------------------- */

/* Two stages of two ranks. The first has a matrix that is cut over its ranks and one parameter that
 * both have; the second has only the latter kind. */
static void measures_norm(tn_group *world, void *user) {
    TN_SCOPE;
    double *norm = user;
    tn_mesh *mesh = tn_mesh_new(world, 2, (int[]){2, 2}, (const char *const[]){"pp", "tp"});
    tn_group *pp = tn_mesh_group(mesh, "pp"), *tp = tn_mesh_group(mesh, "tp");
    const tn_parts stages = {.sum = sum_group, .group = pp, .counts = true, .others = true};
    const tn_parts copy = {.next = &stages, .counts = false, .others = true, .copied = true};
    const tn_parts block = {.next = &stages, .sum = sum_group, .group = tp, .counts = true};
    tn_linear m;
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    bool first = tn_group_rank(pp) == 0;
    tn_layout l = tn__layout_whole(TN_DIMS(2, 2)), bias = tn__layout_whole(TN_DIMS(2));
    if (first) { l = (tn_layout){TN_DIMS(4, 2), 0, 1, tn_group_rank(tp), 2, 0, 4}; }
    CHECK(tn_module_set_part(&m, "weight", NULL, l, first ? &block : &stages) == TN_OK);
    /* both stages have the same bias */
    CHECK(tn_module_set_part(&m, "bias", NULL, bias, first ? &stages : &copy) == TN_OK);
    tn_set_grad(m.weight, tn_full(TN_DIMS(2, 2), 1 + tn_group_rank(world), TN_F32));
    tn_set_grad(m.bias, tn_full(TN_DIMS(2), 5, TN_F32));
    tn_optim *opt = make_lamb(&m);
    norm[tn_group_rank(world)] = tn_optim_clip(opt, 1e9);
    CHECK(tn_clip_grad_norm(&m, 1e9) == norm[tn_group_rank(world)]);
    CHECK(tn_optim_step(opt) == TN_OK); /* norms of a parameter need no other stage */
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

TEST(stages_with_other_chains) {
    double norm[4];
    run_ok(4, measures_norm, norm);
    double first = 4 * 1 + 4 * 4, bias = 2 * 25;
    /* the ranks of the second stage differ here, to show which ranks are summed */
    assert_true(norm[0] == sqrt(first + bias + 4 * 9) && norm[2] == norm[0]);
    assert_true(norm[1] == sqrt(first + bias + 4 * 16) && norm[3] == norm[1]);
}

/* ---- Stages ---------------------------------------------------------------------------------- */

static tn_gpt_options small_options(void) {
    return TN_WITH(tn_gpt, .vocab = 11, .context = 8, .layers = 2, .heads = 2, .width = 8);
}

/* Two stages: the first has everything before h.1, the second h.1, ln_f, and wte again. */
static bool is_of(int stage, const char *path) {
    bool late = strncmp(path, "h.1.", 4) == 0 || strncmp(path, "ln_f.", 5) == 0;
    return strncmp(path, "wte.", 4) == 0 || late == (stage == 1);
}

typedef struct leaving {
    char paths[32][64];
    int count, stage;
} leaving;

static bool list_absent(const tn_entry *entry, void *user) {
    leaving *l = user;
    if (!is_of(l->stage, entry->path)) {
        snprintf(l->paths[l->count++], sizeof(l->paths[0]), "%s", entry->path);
    }
    return true;
}

static void leave_out(tn_gpt *m, int stage) {
    leaving l = {.stage = stage};
    tn_module_each(m, (tn_walk){0}, list_absent, &l);
    for (int i = 0; i < l.count; i++) {
        CHECK(tn__module_set_absent(&m->base, l.paths[i]) == TN_OK);
    }
}

static bool step_by_name(const tn_entry *entry, void *user) {
    TN_SCOPE;
    double sum = 0;
    for (const char *c = entry->path; *c; c++) {
        sum = sum * 1.3 + *c;
    }
    tn_set_grad(*entry->field, tn_full(tn_shape(*entry->field), sin(sum), TN_F32));
    return true;
}

/* A step that depends only on names. */
static void step_gpt(tn_gpt *m, tn_optim *opt) {
    tn_module_each(m, (tn_walk){0}, step_by_name, NULL);
    CHECK(tn_optim_step(opt) == TN_OK);
}

static void saves_stages(tn_group *world, void *user) {
    const char *to = user;
    tn_gpt m;
    tn_seed(3);
    tn_gpt_init(&m, small_options());
    leave_out(&m, tn_group_rank(world));
    tn_optim *opt = make_adamw(&m);
    step_gpt(&m, opt);
    tn_saver *saver = tn_saver_new(world, folder, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt, .step = 1};
    CHECK(tn_saver_save(saver, &c) == TN_OK && tn_saver_wait(saver) == TN_OK);
    tn_saver_free(saver);
    CHECK(tn_dist_save_lm(world, &m, to, tn_lm_save_defaults()) == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

static bool same_entry(const tn_entry *entry, void *user) {
    CHECK(tn_equal(*entry->field, tn_module_get(user, entry->path)));
    return true;
}

/* On one rank that has everything, and on stages again. */
static void loads_stages(tn_group *world, void *user) {
    const char *from = user;
    tn_gpt m, want;
    tn_seed(3);
    tn_gpt_init(&want, small_options());
    tn_gpt_init(&m, small_options());
    if (tn_group_size(world) > 1) { leave_out(&m, tn_group_rank(world)); }
    tn_optim *opt = make_adamw(&m), *other = make_adamw(&want);
    step_gpt(&want, other);
    CHECK(tn_dist_load_lm(world, &m, from) == TN_OK);
    tn_module_each(&m, (tn_walk){0}, same_entry, &want);
    tn_saver *saver = tn_saver_new(world, folder, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt};
    bool found = false;
    CHECK(tn_saver_load(saver, &c, &found) == TN_OK && found && c.step == 1);
    tn_saver_free(saver);
    tn_module_each(&m, (tn_walk){0}, same_entry, &want);
    step_gpt(&want, other); /* with the loaded state */
    step_gpt(&m, opt);
    tn_module_each(&m, (tn_walk){0}, same_entry, &want);
    tn_optim_free(opt);
    tn_optim_free(other);
    tn_module_finish(&m);
    tn_module_finish(&want);
}

TEST(stages_in_checkpoints) {
    char lm[300];
    snprintf(folder, sizeof(folder), "%s", temp_path("stage-steps"));
    snprintf(lm, sizeof(lm), "%s", temp_path("stage-lm"));
    run_ok(2, saves_stages, lm);
    run_ok(1, loads_stages, lm);
    run_ok(2, loads_stages, lm);
}

/* ---- A parameter of two stages --------------------------------------------------------------- */

typedef struct stage {
    tn_module base;
    tn_embedding wte;
    tn_linear own;
} stage;

static tn_tensor *stage_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static bool note_layout(const tn_entry *entry, void *user) {
    tn_layout *l = user;
    if (strcmp(entry->path, "wte.weight") == 0) {
        *l = entry->layout;
        CHECK(entry->parts && entry->parts->next);
    }
    return true;
}

/* Cut in the same way, whatever other parameters there are. */
static void cuts_copies(tn_group *world, void *user) {
    tn_parts stages = {.sum = sum_group, .group = world, .counts = true, .others = true};
    tn_parts tied = {.next = &stages, .counts = true, .others = true, .copied = true};
    tn_layout layouts[2];
    for (int i = 0; i < 2; i++) {
        stage m;
        tn_module_init(&m, "stage", stage_forward);
        tn_embedding_init(&m.wte, 11, 6, tn_embedding_defaults());
        tn_linear_init(&m.own, 6, 5 + 30 * i, tn_linear_defaults());
        tn_module_add(&m, "wte", &m.wte);
        tn_module_add(&m, "own", &m.own);
        tn_layout all = tn__layout_whole(TN_DIMS(11, 6));
        CHECK(tn_module_set_part(&m, "wte.weight", NULL, all, &tied) == TN_OK);
        if (i == 1) { /* also a parameter that other stages have */
            tn_layout own = tn__layout_whole(tn_shape(m.own.weight));
            CHECK(tn_module_set_part(&m, "own.weight", NULL, own, &tied) == TN_OK);
        }
        CHECK(tn_fsdp(&m, world, NULL, tn_fsdp_defaults()));
        tn_module_each(&m, (tn_walk){0}, note_layout, &layouts[i]);
        tn_module_finish(&m);
    }
    CHECK(layouts[0].length > 0 && tn__layout_equal(&layouts[0], &layouts[1]));
}

TEST(what_stages_share_is_cut_alike) {
    run_ok(2, cuts_copies, NULL);
}
