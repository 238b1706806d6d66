#include "tools/inputs.h"

#include "core/folder.h"
#include "core/memory.h"
#include "data/corpus/sources.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Existing files that would be replaced. */
typedef struct outputs {
    struct stat *files; /* [count] */
    int64_t count, capacity;
    const char *folder; /* or file: where the command writes */
    names_test *replaced, *read;
} outputs;

static void add_output(outputs *o, const char *path) {
    struct stat about;
    if (stat(path, &about) != 0) { return; }
    if (!tn__grow(&o->files, o->count + 1, &o->capacity, sizeof(*o->files), "outputs")) { return; }
    o->files[o->count++] = about;
}

static bool add_name(const char *name, void *user) {
    outputs *o = user;
    char *path = o->replaced(name) ? tn__folder_path(o->folder, name, "outputs") : NULL;
    if (path) { add_output(o, path); }
    free(path);
    return tn_error() == TN_OK;
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

typedef struct level {
    const outputs *outputs;
    const char *folder;
    int deep;
} level;

static void look_at(const outputs *o, const char *path, int deep);

static bool look_at_name(const char *name, void *user) {
    const level *l = user;
    bool read = !l->outputs->read || l->outputs->read(name);
    char *path = read ? tn__folder_path(l->folder, name, "outputs") : NULL;
    if (path) { look_at(l->outputs, path, l->deep + 1); }
    free(path);
    return tn_error() == TN_OK;
}

static void look_at(const outputs *o, const char *path, int deep) {
    struct stat about;
    if (stat(path, &about) != 0) { return; }
    for (int i = 0; i < o->count; i++) {
        if (about.st_dev == o->files[i].st_dev && about.st_ino == o->files[i].st_ino) {
            tn_raise(
                TN_EVALUE,
                "the output %s would replace %s, which is also an input; choose another output",
                o->folder, path);
            return;
        }
    }
    if (S_ISDIR(about.st_mode) && deep <= TN__FOLDERS_MOST) {
        tn__folder_each(path, look_at_name, &(level){o, path, deep}, "outputs");
    }
}

tn_status check_outputs(const char *const *inputs, int count, names_test *read, const char *output,
                        names_test *replaced) {
    outputs o = {.folder = output, .replaced = replaced, .read = read};
    if (!replaced) {
        add_output(&o, output);
    } else if (access(output, F_OK) == 0) {
        tn__folder_each(output, add_name, &o, "outputs");
    }
    for (int i = 0; i < count && o.count && tn_error() == TN_OK; i++) {
        look_at(&o, inputs[i], 0);
    }
    free(o.files);
    return tn_error();
}
