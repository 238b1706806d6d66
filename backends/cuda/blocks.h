/* Blocks of the allocator, and trees of them: treaps whose nodes are the blocks themselves, so
 * nothing here allocates. A block is in one tree at a time.
 */
#ifndef TERN_BACKENDS_CUDA_BLOCKS_H
#define TERN_BACKENDS_CUDA_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct segment segment;
typedef struct block block;

struct block {
    char *address;
    size_t bytes;
    size_t asked; /* in use: what the caller asked for */
    int tag;
    bool used;
    segment *home;
    block *before, *after; /* neighbours in the segment */
    block *left, *right;   /* in a tree */
    uint64_t priority;
};

/* Ordered by size and then address, or by address alone.
 * A node's `priority` is a random number. */
typedef struct tree {
    block *root;
    bool by_size;
} tree;

static inline bool tree_precedes(const tree *t, const block *a, const block *b) {
    if (t->by_size && a->bytes != b->bytes) { return a->bytes < b->bytes; }
    return (uintptr_t)a->address < (uintptr_t)b->address;
}

/* Splits the tree at `root` into the blocks before `at` and the others. */
static inline void tree_cut(const tree *t, block *root, const block *at, block **low,
                            block **high) {
    while (root) {
        if (tree_precedes(t, root, at)) {
            *low = root;
            low = &root->right;
            root = root->right;
        } else {
            *high = root;
            high = &root->left;
            root = root->left;
        }
    }
    *low = NULL;
    *high = NULL;
}

static inline void tree_insert(tree *t, block *b, uint64_t priority) {
    block **link = &t->root;
    while (*link && (*link)->priority >= priority) {
        link = tree_precedes(t, *link, b) ? &(*link)->right : &(*link)->left;
    }
    b->priority = priority;
    tree_cut(t, *link, b, &b->left, &b->right);
    *link = b;
}

static inline void tree_remove(tree *t, block *b) {
    block **link = &t->root;
    while (*link != b) {
        link = tree_precedes(t, *link, b) ? &(*link)->right : &(*link)->left;
    }
    block *low = b->left, *high = b->right;
    while (low && high) {
        if (low->priority >= high->priority) {
            *link = low;
            link = &low->right;
            low = low->right;
        } else {
            *link = high;
            link = &high->left;
            high = high->left;
        }
    }
    *link = low ? low : high;
}

/* The smallest block of at least `bytes`, of equal ones that with the lowest address. */
static inline block *tree_best_fit(const tree *t, size_t bytes) {
    block *best = NULL;
    for (block *b = t->root; b;) {
        bool fits = b->bytes >= bytes;
        best = fits ? b : best;
        b = fits ? b->left : b->right;
    }
    return best;
}

static inline block *tree_at(const tree *t, const void *address) {
    block *b = t->root;
    while (b && b->address != address) {
        b = (uintptr_t)address < (uintptr_t)b->address ? b->left : b->right;
    }
    return b;
}

#endif
