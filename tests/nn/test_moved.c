/* Modules that have moved since they were registered. Their old memory is never read: it is in
 * pages that cannot be accessed. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- Memory that can be taken away ----------------------------------------------------------- */

enum { PAGES_SIZE = 1 << 16 };

/* Returns zeros. */
static void *pages_new(void) {
    void *pages =
        mmap(NULL, PAGES_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    return pages;
}

/* Copies the first `bytes`, as realloc does; the old pages cannot be accessed afterwards. */
static void *move_away(void *pages, size_t bytes) {
    void *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, pages, bytes);
    assert_int_equal(mprotect(pages, PAGES_SIZE, PROT_NONE), 0);
    return copy;
}

static void move_back(void *pages, void *copy) {
    assert_int_equal(mprotect(pages, PAGES_SIZE, PROT_READ | PROT_WRITE), 0);
    free(copy);
}

/* ---- A module and its children --------------------------------------------------------------- */

typedef struct net {
    tn_module base;
    tn_linear fc;
    tn_tensor *scale;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_mul(tn_call(&n->fc, x), n->scale);
}

static void net_init(net *n) {
    TN_SCOPE;
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->fc, 3, 3, tn_linear_defaults());
    tn_module_add(n, "fc", &n->fc);
    tn_module_param(n, "scale", &n->scale, tn_ones(TN_DIMS(), TN_F32));
}

static tn_tensor *make_input(void) {
    return tn_ones(TN_DIMS(2, 3), TN_F32);
}

/* ---- The module itself ----------------------------------------------------------------------- */

/* As after `return n;`, or in a struct that was copied. */
TEST(a_copy) {
    net *n = pages_new();
    net_init(n);
    net *moved = move_away(n, sizeof(*n));
    assert_inert(tn_call(moved, make_input()), TN_ESTATE, "call: the net has moved since");
    assert_int_equal(tn_module_count(moved), 0);
    assert_error(TN_ESTATE, "has moved");
    assert_inert(tn_module_get(moved, "scale"), TN_ESTATE, "has moved");
    assert_null(tn_adamw(moved, tn_adamw_defaults()));
    assert_error(TN_ESTATE, "has moved");
    assert_inert(tn_call(&moved->fc, make_input()), TN_ESTATE, "the linear fc has moved");
    tn_tensor *field, *t = tn_ones(TN_DIMS(2), TN_F32);
    assert_int_equal(tn_module_param(moved, "more", &field, t), TN_ESTATE);
    assert_inert(field, TN_ESTATE, "has moved");
    assert_int_equal(tn_module_buffer(moved, "more", &field, t), TN_ESTATE);
    assert_inert(field, TN_ESTATE, "has moved");
    tn_module_finish(moved);
    assert_error(TN_ESTATE, "module_finish: the net has moved");
    move_back(n, moved);
    tn_call(n, make_input()); /* the struct that was registered is unchanged */
    assert_int_equal(tn_module_count(n), 13);
    tn_module_finish(n);
    munmap(n, PAGES_SIZE);
}

TEST(a_copy_of_what_is_finished) {
    net n;
    net_init(&n);
    net copy = n;
    tn_module_finish(&n);
    tn_call(&copy, make_input()); /* its pointers are dangling */
    assert_error(TN_ESTATE, "has moved");
    tn_module_finish(&copy);
    assert_error(TN_ESTATE, "has moved");
}

TEST(nothing_registered) {
    tn_dropout first, second;
    tn_dropout_init(&first, 0.0);
    second = first;
    tn_call(&second, make_input());
    assert_int_equal(tn_error(), TN_OK);
    tn_module_finish(&second);
}

/* ---- In a vector that grew ------------------------------------------------------------------- */

static bool any_entry(const tn_entry *entry, void *user) {
    return true;
}

static bool any_module(tn_module *m, const char *path, void *user) {
    return true;
}

/* A net of two layers in `pages`, below a module that stays where it is. */
typedef struct tower {
    tn_sequential outer, layers;
    tn_linear *pages;
} tower;

static void tower_init(tower *t) {
    t->pages = pages_new();
    tn_sequential_init(&t->outer);
    tn_sequential_init(&t->layers);
    tn_module_add(&t->outer, "layers", &t->layers);
    for (int i = 0; i < 2; i++) {
        tn_linear_init(&t->pages[i], 3, 3, tn_linear_defaults());
        tn_sequential_add(&t->layers, &t->pages[i]);
    }
}

/* Once the module was used in its new place, every walk that would reach the old one is refused. */
TEST(walks_refuse) {
    tower t;
    tower_init(&t);
    tn_linear *moved = move_away(t.pages, 2 * sizeof(*moved));
    assert_inert(tn_call(&moved[0], make_input()), TN_ESTATE, "call: the linear 0 has moved");
    static const char path[] = "the linear layers.0 has moved";
    assert_int_equal(tn_module_count(&t.outer), 0);
    assert_error(TN_ESTATE, path);
    tn_module_each(&t.outer, (tn_walk){.buffers = true}, any_entry, NULL);
    assert_error(TN_ESTATE, path);
    tn_module_each_module(&t.outer, any_module, NULL);
    assert_error(TN_ESTATE, path);
    tn_module_train(&t.outer, false);
    assert_error(TN_ESTATE, path);
    assert_inert(tn_call(&t.outer, make_input()), TN_ESTATE, path);
    assert_inert(tn_module_get(&t.outer, "layers.0.weight"), TN_ESTATE, path);
    assert_null(tn_module_child(&t.outer, "layers.0"));
    assert_error(TN_ESTATE, path);
    assert_null(tn_adamw(&t.outer, tn_adamw_defaults()));
    assert_error(TN_ESTATE, path);
    assert_int_equal(tn_module_to(&t.outer, tn_default_device()), TN_ESTATE);
    assert_error(TN_ESTATE, path);
    assert_int_equal(tn_module_tie(&t.outer, "layers.0.weight", "layers.1.weight"), TN_ESTATE);
    assert_error(TN_ESTATE, path);
    FILE *nowhere = fopen("/dev/null", "w");
    tn_call(&moved[1], make_input());
    assert_error(TN_ESTATE, "the linear 1 has moved");
    tn_module_print(&t.outer, nowhere);
    assert_error(TN_ESTATE, path);
    fclose(nowhere);
    move_back(t.pages, moved);
    for (int i = 0; i < 2; i++) { /* used in its old place, it is found there */
        tn_call(&t.pages[i], make_input());
    }
    assert_int_equal(tn_module_count(&t.outer), 24);
    tn_module_finish(&t.outer);
    munmap(t.pages, PAGES_SIZE);
}

/* Finishing the parent leaves moved children to the code that moved them. */
TEST(the_end_of_the_parent) {
    tower t;
    tower_init(&t);
    tn_linear *moved = move_away(t.pages, 2 * sizeof(*moved));
    for (int i = 0; i < 2; i++) {
        tn_call(&moved[i], make_input());
        tn_error_clear();
    }
    tn_module_finish(&t.outer);
    assert_error(TN_ESTATE, "module_finish: the linear");
    move_back(t.pages, moved);
    for (int i = 0; i < 2; i++) {
        tn_module_finish(&t.pages[i]);
    }
    munmap(t.pages, PAGES_SIZE);
}

/* The move was not noticed, and the old memory was overwritten. */
TEST(overwritten_modules) {
    tower t;
    tower_init(&t);
    tn_linear *moved = malloc(2 * sizeof(*moved));
    memcpy(moved, t.pages, 2 * sizeof(*moved));
    memset(t.pages, 0xdd, 2 * sizeof(*moved));
    assert_int_equal(tn_module_count(&t.outer), 0);
    assert_error(TN_ESTATE, "the linear layers.0 has moved");
    assert_inert(tn_call(&t.outer, make_input()), TN_ESTATE, "the linear layers.0 has moved");
    memcpy(t.pages, moved, 2 * sizeof(*moved));
    free(moved);
    tn_module_finish(&t.outer);
    munmap(t.pages, PAGES_SIZE);
}

/* ---- What refers to a module ----------------------------------------------------------------- */

TEST(a_parent_that_moved) {
    tn_linear child;
    tn_sequential *parent = pages_new();
    tn_sequential_init(parent);
    tn_linear_init(&child, 3, 3, tn_linear_defaults());
    tn_sequential_add(parent, &child);
    tn_precision precision = tn_precision_defaults();
    tn_module_set_precision(parent, precision);
    void *moved = move_away(parent, sizeof(*parent));
    assert_int_equal(tn_dtype_of(tn_call(&child, make_input())), TN_BF16); /* asks the parent */
    tn_call(moved, make_input());
    assert_error(TN_ESTATE, "the sequential has moved");
    tn_module_finish(&child); /* leaves its parent */
    move_back(parent, moved);
    assert_int_equal(tn_module_count(parent), 0);
    tn_module_finish(parent);
    munmap(parent, PAGES_SIZE);
}

TEST(an_optimiser) {
    net *n = pages_new();
    net_init(n);
    tn_optim *opt = tn_sgd(n, tn_sgd_defaults());
    tn_backward(tn_sum_all(tn_call(n, make_input())));
    net *moved = move_away(n, sizeof(*n));
    tn_call(moved, make_input());
    assert_error(TN_ESTATE, "the net has moved");
    assert_int_equal(tn_optim_step(opt), TN_ESTATE);
    assert_error(TN_ESTATE, "its module has moved");
    tn_optim_zero_grad(opt);
    tn_error_clear();
    tn_optim_free(opt);
    move_back(n, moved);
    tn_module_finish(n);
    munmap(n, PAGES_SIZE);
}

/* A graph that will call the module again. */
TEST(a_graph) {
    net *n = pages_new();
    net_init(n);
    tn_module_set_recompute(n, true);
    tn_tensor *y = tn_sum_all(tn_call(n, make_input()));
    net *moved = move_away(n, sizeof(*n));
    tn_call(moved, make_input());
    assert_error(TN_ESTATE, "the net has moved");
    assert_int_equal(tn_backward(y), TN_ESTATE);
    assert_error(TN_ESTATE, "the net has moved");
    move_back(n, moved);
    tn_module_finish(n);
    munmap(n, PAGES_SIZE);
}

/* ---- Trees ----------------------------------------------------------------------------------- */

/* Built from the top or from the bottom, a tree is walked to a depth of at most 1000 modules. */
TEST(too_deep) {
    enum { MOST = 1000 };
    for (int upwards = 0; upwards < 2; upwards++) {
        tn_sequential *chain = calloc(MOST + 1, sizeof(*chain));
        for (int i = 0; i <= MOST; i++) {
            tn_sequential_init(&chain[i]);
        }
        for (int i = 1; i < MOST; i++) {
            int child = upwards ? MOST - i : i;
            assert_int_equal(tn_sequential_add(&chain[child - 1], &chain[child]), TN_OK);
        }
        tn_call(chain, make_input());
        assert_int_equal(tn_module_count(chain), 0);
        assert_int_equal(tn_error(), TN_OK);
        tn_sequential_add(&chain[upwards ? MOST : MOST - 1], &chain[upwards ? 0 : MOST]);
        assert_error(TN_EVALUE, "the tree of modules would be 1001 deep (at most 1000)");
        tn_module_finish(chain);
        tn_module_finish(&chain[MOST]);
        free(chain);
    }
}
