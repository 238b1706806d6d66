/* What the programs dump_*.c share: tensors in one file, under names that a script knows. */
#ifndef TERN_TESTS_SUPPORT_DUMP_H
#define TERN_TESTS_SUPPORT_DUMP_H

#include <stdio.h>

#include <tern/tern.h>

static tn_safetensors_writer *writer;

static inline int64_t draw_whole(int64_t low, int64_t high) { /* low … high */
    return (int64_t)tn_item(tn_randint(low, high + 1, TN_DIMS(), TN_I64));
}

/* A copy, as CASE/WHATPATH. */
static inline void add_tensor(const char *name, const char *what, const char *path, tn_tensor *t) {
    char text[512];
    snprintf(text, sizeof(text), "%s/%s%s", name, what, path);
    tn_safetensors_writer_add(writer, text, tn_copy(tn_detach(t)));
}

static inline bool add_parameter(const tn_entry *entry, void *user) {
    add_tensor(user, "p.", entry->path, *entry->field);
    return true;
}

static inline bool add_gradient(const tn_entry *entry, void *user) {
    add_tensor(user, "g.", entry->path, tn_grad_of(*entry->field));
    return true;
}

/* The parameters of m, as CASE/p.NAME, and their gradients, as CASE/g.NAME. */
static inline void add_module(const char *name, void *m) {
    tn_module_each(m, (tn_walk){0}, add_parameter, (void *)name);
    tn_module_each(m, (tn_walk){0}, add_gradient, (void *)name);
}

static inline bool stir_entry(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    tn_tensor *noise = tn_mul_scalar(tn_randn(tn_shape(*entry->field), TN_F64), 0.3);
    tn_add_(*entry->field, tn_cast(noise, tn_dtype_of(*entry->field)));
    return true;
}

/* Moves parameters away from their initial ones and zeros, so that every term counts. */
static inline void stir_module(void *m) {
    tn_module_each(m, (tn_walk){0}, stir_entry, NULL);
}

/* Begins the file that argv names; false when it names none. */
static inline bool dump_begin(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 2) {
        fprintf(stderr, "%s FILE\n", argc ? argv[0] : "dump");
        return false;
    }
    tn_seed(3);
    writer = tn_safetensors_writer_new();
    return true;
}

#endif
