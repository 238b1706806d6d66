/* What calls a module again in backward: its names in errors, whether it is still there, what it
 * reads. */
#include "nn/again.h"

#include "core/memory.h"
#include "nn/misuse.h"

void tn__again_begin(tn__again_frames *f, const tn_module_lists *lists) {
    const tn_module_lists *named[TN__AGAIN_MAX];
    int n = 0;
    for (; lists && n < TN__AGAIN_MAX; lists = lists->up) {
        named[n++] = lists;
    }
    for (f->count = 0; n > 0; f->count++) {
        const tn_module_lists *next = named[--n];
        f->frames[f->count] = (tn__frame){.name = next->up ? next->name : next->kind};
        tn__frame_push(&f->frames[f->count]);
    }
}

void tn__again_end(tn__again_frames *f) {
    while (f->count > 0) {
        tn__frame_pop(&f->frames[--f->count]);
    }
}

tn_module *tn__again_module(tn_module_lists *lists, bool training, const char *operation) {
    if (!lists->module) {
        tn__raise(TN_ESTATE, operation,
                  "the module was finished before backward could call it again");
        return NULL;
    }
    tn_module *m = tn__module_in_place(lists, operation);
    if (m && m->training != training) {
        tn__raise(TN_ESTATE, operation,
                  "the forward was in %s mode, but the module is no longer, so that backward would "
                  "compute something else (tn_module_train)",
                  training ? "training" : "evaluation");
        return NULL;
    }
    return m;
}

bool tn__collect(tn__collection *c, tn_tensor *t) {
    c->failed = c->failed || !tn__grow(&c->tensors, c->count + 1, &c->capacity, sizeof(*c->tensors),
                                       c->operation);
    if (!c->failed) { c->tensors[c->count++] = t; }
    return !c->failed;
}

static bool collect_parameter(const tn_entry *entry, void *user) {
    tn_tensor *param = tn__entry_tensor(entry);
    return !tn_requires_grad(param) || tn__collect(user, param);
}

bool tn__collect_parameters(tn__collection *c, tn_module *m) {
    tn_module_each(m, (tn_walk){0}, collect_parameter, c);
    return !c->failed;
}
