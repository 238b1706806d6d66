/* A run's table of slots, where edges lead in it, its queue of ready nodes, and the sums in
 * between. */
#include "autograd/run.h"

#include "autograd/halves.h"
#include "autograd/links.h"
#include "core/memory.h"

#include <string.h>

/* ---- Table ----------------------------------------------------------------------------------- */

static size_t key_hash(const void *key) {
    uint64_t x = (uint64_t)(uintptr_t)key;
    return (size_t)((x >> 4) * 0x9e3779b97f4a7c15u >> 20);
}

int tn__run_find(const tn__run *run, const void *key) {
    if (run->table_size == 0) { return -1; }
    for (size_t at = key_hash(key) & (run->table_size - 1);;
         at = (at + 1) & (run->table_size - 1)) {
        int index = run->table[at];
        if (index == 0) { return -1; }
        if (run->slots[index - 1].key == key) { return index - 1; }
    }
}

static void table_insert(int *table, size_t size, const tn__slot *slots, int index) {
    size_t at = key_hash(slots[index].key) & (size - 1);
    while (table[at]) {
        at = (at + 1) & (size - 1);
    }
    table[at] = index + 1;
}

static bool table_grow(tn__run *run) {
    int64_t capacity = run->capacity;
    bool fits = tn__grow(&run->slots, run->capacity ? run->count + 1 : 64, &capacity,
                         sizeof(*run->slots), "backward");
    size_t size = (size_t)capacity * 2; /* a power of two */
    int *table = fits ? tn__calloc_for(size, sizeof(*table), "backward") : NULL;
    if (!table) { return false; }
    for (int i = 0; i < run->count; i++) {
        table_insert(table, size, run->slots, i);
    }
    free(run->table);
    run->table = table;
    run->table_size = size;
    run->capacity = capacity;
    return true;
}

int tn__run_slot(tn__run *run, tn_node *node, tn_tensor *leaf) {
    const void *key = node ? (const void *)node : (const void *)leaf;
    int found = tn__run_find(run, key);
    if (found >= 0) { return found; }
    if (run->count == run->capacity && !table_grow(run)) { return -1; }
    tn__slot *slot = &run->slots[run->count];
    *slot = (tn__slot){
        .key = key, .node = node, .leaf = leaf, .wanted = run->accumulate, .early = !run->halved};
    table_insert(run->table, run->table_size, run->slots, run->count);
    return run->count++;
}

void tn__run_hold(tn__slot *slot) {
    if (slot->root) { return; }
    slot->root = true;
    if (slot->node) {
        tn__node_keep(slot->node);
    } else {
        tn_keep(slot->leaf);
    }
}

/* ---- Along edges ----------------------------------------------------------------------------- */

tn__slot *tn__far_slot(const tn__run *run, const tn__edge *edge) {
    const void *key = tn__far_end(edge);
    int index = key ? tn__run_find(run, key) : -1;
    return index < 0 ? NULL : &run->slots[index];
}

bool tn__slot_due(const tn__run *run, const tn__slot *slot) {
    return slot && slot->wanted && slot->early != run->second;
}

bool tn__slot_left(const tn__run *run, const tn__slot *slot) {
    return run->halved && !run->second && slot && slot->wanted && !slot->early;
}

bool tn__any_edge(const tn__run *run, const tn__slot *slot,
                  bool (*such)(const tn__run *run, const tn__slot *slot)) {
    bool any = false;
    for (int i = 0; slot->node && i < slot->node->inputs && !any; i++) {
        any = such(run, tn__far_slot(run, &slot->node->edges[i]));
    }
    return any;
}

bool tn__leaves_some(const tn__run *run, const tn__slot *slot) {
    return run->halved && tn__any_edge(run, slot, tn__slot_left);
}

/* ---- Queue: a binary heap, the youngest node on top ------------------------------------------ */

bool tn__run_reserve_heap(tn__run *run) {
    run->heap = tn__malloc_for((size_t)(run->count + 1) * sizeof *run->heap, "backward");
    return run->heap != NULL;
}

/* Low-precision copies come first: only a leaf waits for them, and what they hold is large. */
static uint64_t age_at(const tn__run *run, int place) {
    const tn_node *node = run->slots[run->heap[place]].node;
    return node->op->flags & TN_OP_LOW_PRECISION_COPY ? node->age | (uint64_t)1 << 63 : node->age;
}

static void heap_swap(tn__run *run, int a, int b) {
    int slot = run->heap[a];
    run->heap[a] = run->heap[b];
    run->heap[b] = slot;
}

void tn__run_push(tn__run *run, int slot) {
    int at = run->heap_count++;
    run->heap[at] = slot;
    while (at > 0 && age_at(run, at) > age_at(run, (at - 1) / 2)) {
        heap_swap(run, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
}

int tn__run_pop(tn__run *run) {
    if (run->heap_count == 0) { return -1; }
    int top = run->heap[0];
    run->heap[0] = run->heap[--run->heap_count];
    for (int at = 0;;) {
        int child = 2 * at + 1;
        if (child >= run->heap_count) { return top; }
        if (child + 1 < run->heap_count && age_at(run, child + 1) > age_at(run, child)) { child++; }
        if (age_at(run, at) >= age_at(run, child)) { return top; }
        heap_swap(run, at, child);
        at = child;
    }
}

/* ---- Sums ------------------------------------------------------------------------------------ */

void tn__run_add(tn__run *run, tn__slot *slot, int output, tn_tensor *grad) {
    tn_tensor *sum = slot->grad[output];
    if (!sum) {
        slot->grad[output] = tn_keep(grad);
        return;
    }
    TN_SCOPE;
    if (!run->create_graph && (tn__exclusive(sum) || tn__leaf_lent(slot->leaf, sum))) {
        tn__ops.add_(sum, grad);
        return;
    }
    tn_tensor *both = tn__ops.add(sum, grad);
    if (!both->inert) {
        slot->grad[output] = tn_keep(both);
        tn_release(sum);
    }
}

void tn__run_finish(tn__run *run) {
    for (int i = 0; i < run->count; i++) {
        for (int k = 0; k < TN_OP_OUTPUTS; k++) {
            tn_release(run->slots[i].grad[k]);
        }
        if (run->slots[i].rest) { tn__rest_free(run->slots[i].rest); }
        if (run->slots[i].root && run->slots[i].node) {
            tn__node_release(run->slots[i].node);
        } else if (run->slots[i].root) {
            tn_release(run->slots[i].leaf);
        }
    }
    free(run->slots);
    free(run->table);
    free(run->heap);
    for (int i = 0; i < run->later_n; i++) {
        tn_release(run->later[i]);
    }
    free(run->later);
    *run = (tn__run){0};
}
