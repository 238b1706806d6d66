/* A language model from what a checkpoint says of it (described.h). The text is untrusted, as all
 * of a file is. */
#include "models/weights/described.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plain_numbers.h"
#include "io/shown.h"
#include "nn/describe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_ROOM = 64 };

/* The option of a module, and what is wrong with it: "is missing". */
static bool described_bad(const tn__described *d, const char *module, const char *name,
                          const char *what) {
    tn__raise(TN_EFORMAT, d->operation, "%s: in its description of the model, \"%s\" of \"%s\" %s",
              d->path, name, module, what);
    return false;
}

/* What stands behind "MODULE: " in its line; NULL: there is no such line. */
static const char *find_line(const tn__described *d, const char *module) {
    size_t n = strlen(module);
    for (const char *line = d->text; line && *line;) {
        if (strncmp(line, module, n) == 0 && strncmp(line + n, ": ", 2) == 0) {
            return line + n + 2;
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return NULL;
}

/* "KIND, NAME VALUE, …; NAME VALUE": the value, to value[VALUE_ROOM]. */
static bool find_option(const tn__described *d, const char *module, const char *name, char *value) {
    const char *at = find_line(d, module);
    size_t n = strlen(name);
    while (at && *at && *at != '\n') {
        if (strncmp(at, name, n) == 0 && at[n] == ' ') {
            size_t length = strcspn(at + n + 1, ",;\n");
            if (length < VALUE_ROOM) {
                memcpy(value, at + n + 1, length);
                value[length] = 0;
                return true;
            }
        }
        at += strcspn(at, ",;\n");
        at += strspn(at, ",; ");
    }
    return described_bad(d, module, name, "is missing");
}

bool tn__described_whole(const tn__described *d, const char *module, const char *name,
                         int64_t least, int64_t *number) {
    char value[VALUE_ROOM], *end;
    if (!find_option(d, module, name, value)) {
        return false;
    }
    errno = 0;
    *number = strtoll(value, &end, 10);
    return (!errno && end != value && !*end && *number >= least && *number <= INT32_MAX) ||
           described_bad(d, module, name, "is out of range");
}

bool tn__described_real(const tn__described *d, const char *module, const char *name,
                        double *number) {
    char value[VALUE_ROOM], *end;
    if (!find_option(d, module, name, value)) {
        return false;
    }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    *number = strtod(value, &end);
    tn__plain_numbers_end(numbers);
    return (end != value && !*end && isfinite(*number)) ||
           described_bad(d, module, name, "is not a number");
}

bool tn__described_activation(const tn__described *d, const char *module,
                              tn_activation *activation) {
    char value[VALUE_ROOM];
    if (!find_option(d, module, "activation", value)) {
        return false;
    }
    for (int i = TN_ACT_GELU; i <= TN_ACT_SILU; i++) {
        if (strcmp(tn__activation_name((tn_activation)i), value) == 0) {
            *activation = (tn_activation)i;
            return true;
        }
    }
    return described_bad(d, module, "activation", "is not an activation");
}

bool tn__described_layers(const tn__described *d, int64_t layers) {
    return layers <= d->tensors ||
           described_bad(d, ".", "layers", "is more than the number of its tensors");
}

bool tn__described_size(const tn__described *d, const char *parameter, int dim, int64_t *size) {
    tn_dims dims;
    if (!d->shape(parameter, &dims, d->user) || dims.ndim <= dim) {
        tn__raise(TN_EFORMAT, d->operation, "%s has no \"%s\" of %d dimensions", d->path, parameter,
                  dim + 1);
        return false;
    }
    *size = dims.size[dim];
    return true;
}

tn_module *tn__described_model(const tn__described *d, tn_dtype dtype) {
    const char *root = find_line(d, ".");
    tn__shown kind = tn__show(root ? root : "");
    kind.text[strcspn(kind.text, ",;\n?")] = 0;
    const tn__lm_family *family = tn__lm_family_kind(kind.text);
    if (!family) {
        tn__raise(TN_EUNSUPPORTED, d->operation, "%s is of a \"%s\", which is no language model",
                  d->path, kind.text);
        return NULL;
    }
    TN_DEFER_INIT;
    tn_module *m = tn__calloc(1, family->bytes);
    if (!m) {
        tn__raise(TN_ENOMEM, d->operation, "%s: no memory for a %s", d->path, family->kind);
        return NULL;
    }
    if (!family->described(m, d, dtype) || tn__pending()) {
        tn_lm_free(m);
        return NULL;
    }
    return m;
}
