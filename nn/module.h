/* The internals of a module: what it registered, and its hooks. The public side is tern/module.h.
 *
 * The lists live on the heap and are counted: graphs that will call the module again in backward
 * hold them, and see by `module` whether it is still there. Parents and children refer to each
 * other by their lists: modules belong to the program, which may move or free them. A module that
 * has moved is noticed by its own address (tn__module_of) when it is used, and from then on by all
 * holders of its lists (tn__module_in_place): nn/misuse.h.
 */
#ifndef TERN_NN_MODULE_H
#define TERN_NN_MODULE_H

#include "core/alive.h"
#include "core/error.h"
#include "nn/strategy.h"
#include "tern/sys/tensor.h"

#define TN__MODULE_ALIVE 0x6d6f6475u
#define TN__MODULE_BROKEN 0x6d6f6462u /* building it failed */
#define TN__MODULE_FINISHED 0x6d6f6466u

/* A parameter or buffer as it was registered. */
typedef struct tn__record {
    tn_tensor **field; /* holds one reference of the module; NULL in it: an empty buffer */
    bool buffer, scratch;
    bool tied;       /* shares the tensor of another record */
    bool cut;        /* layout was set */
    bool absent;     /* a parameter that only other ranks have: tn__module_set_absent */
    tn_tensor *lent; /* while the field holds a copy of it in another dtype: the parameter itself */
    tn_tensor *part; /* this rank's part of the parameter, one reference; NULL: the whole */
    tn_layout layout;
    const tn_parts *parts;
    char name[TN_MODULE_NAME];
} tn__record;

typedef struct tn__module_hook {
    tn_hook id;
    bool removed; /* goes when no hook of the module is running */
    tn_module_hooks hooks;
} tn__module_hook;

struct tn_module_lists {
    tn__alive alive;
    int32_t refs;        /* atomic */
    tn_module *module;   /* where it is; NULL once it is finished */
    tn_module_lists *up; /* of the parent; NULL for a root */
    int height;          /* the greatest depth of the tree below it so far */
    const char *kind;
    char name[TN_MODULE_NAME]; /* as in the module */
    tn__record **records;
    tn_module_lists **children;
    tn__module_hook **hooks;
    int record_count, child_count, hook_count;
    int64_t record_capacity, child_capacity, hook_capacity;
    int hooks_running;
    int stepped; /* atomic: how many parameters of the module itself optimisers hold */
    tn_hook last_hook;
    tn__strategy *strategy; /* of a hook of the module, whose free_user frees it; NULL: none */
    tn__attend_rule attend;
    tn__loss_rule loss;
    tn__stages_rule stages;
    const void *split;       /* of tensor parallelism, whose forward the module has then */
    tn_precision *precision; /* the policy that was set here, or NULL */
    tn_kv_cache *cache;      /* of an attention: tn_cache_begin begins it; or NULL */
    bool apart;              /* others' forwards may call it: tn_module_set_apart */
    bool left;               /* atomic: it was seen elsewhere, and not used here since */
    bool lending;            /* the fields hold the policy's copies: a call is in progress */
    bool unit; /* its parameters exist only while it is called (sharding): it lends its own, after
                  its `before` hooks, not the modules around it */
};

/* m as a module, or NULL after raising: not a module, finished, or moved. */
tn_module *tn__module_of(void *m, const char *operation);

/* Finishes a module without a parent, and frees it if its owner would. */
void tn__module_end(tn_module *m);

/* The lists of m, made on first use; NULL after TN_ENOMEM. */
tn_module_lists *tn__module_lists(tn_module *m, const char *operation);
/* One more reference: whatever may outlive the module holds its lists and checks lists->module. */
static inline tn_module_lists *tn__module_lists_keep(tn_module_lists *lists) {
    __atomic_fetch_add(&lists->refs, 1, __ATOMIC_RELAXED);
    return lists;
}
void tn__module_lists_release(tn_module_lists *lists);

/* The record at a path below m; NULL when there is none (nothing is raised), or after raising that
 * a child has moved. */
tn__record *tn__module_find(tn_module *m, const char *path);
/* That of a parameter that is not NULL; NULL after raising that there is none. */
tn__record *tn__module_find_parameter(tn_module *m, const char *path, const char *operation);

/* Puts `new` in place of a parameter, under all its names in the tree around m. False after raising
 * that a module has moved. */
bool tn__module_exchange(tn_module *m, tn_tensor *old, tn_tensor *new, const char *operation);

/* Which modules of a tree were in training mode. */
typedef struct tn__modes {
    bool *training; /* [count] in the order of tn_module_each_module */
    int64_t count, capacity, restored;
    const char *operation;
} tn__modes;
/* As tn_module_train, until each module gets its own mode back; that is due after an error too.
 * False after raising. */
bool tn__modes_set(void *m, bool training, const char *operation, tn__modes *modes);
void tn__modes_restore(void *m, tn__modes *modes);

/* Removes every hook (the module is finished). */
void tn__module_drop_hooks(tn_module_lists *lists);

/* Puts a tensor, or NULL, into a field of a module instead of what it holds. */
static inline void tn__field_set(tn_tensor **field, tn_tensor *tensor) {
    tn_tensor *old = *field;
    *field = tn_keep(tensor);
    tn_release(old);
}

/* The parameter of a record, whatever its field holds now. */
static inline tn_tensor *tn__record_tensor(const tn__record *record) {
    return record->lent ? record->lent : *record->field;
}
/* What is here between calls: the part or the parameter. */
static inline tn_tensor *tn__record_stored(const tn__record *record) {
    return record->part ? record->part : tn__record_tensor(record);
}

/* Sets what is stored under the record's name. layout NULL: all of the field's tensor. */
void tn__record_set_part(tn__record *record, tn_tensor *part, const tn_layout *layout,
                         const tn_parts *parts);

/* Parameter `path` of m, under all its names, loses its elements, or the recipe it had for them:
 * other ranks have it (stages of a pipeline). Names, shapes, options, tn_module_count and the
 * comparison with weight folders stay; walks skip it unless they ask for tn_walk.absent, so that
 * nothing steps, saves, sends or makes it. TN_ESTATE: an optimiser holds it, a part of it is here,
 * or its module is being called. */
TN_API tn_status tn__module_set_absent(tn_module *m, const char *path);

/* The record of an entry, whose module must still exist. */
tn__record *tn__entry_record(const tn_entry *entry);
static inline tn_tensor *tn__entry_tensor(const tn_entry *entry) {
    return tn__record_tensor(tn__entry_record(entry));
}
static inline tn_tensor *tn__entry_stored(const tn_entry *entry) {
    return tn__record_stored(tn__entry_record(entry));
}

#endif
