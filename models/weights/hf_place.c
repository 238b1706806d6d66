/* Gives the files of a whole model their final names (hf.h).
 *
 *     weights.tmp/    all of the new model is written here, its config.json last
 *     config.json     of the old model is removed: from now on the folder's model is weights.tmp
 *     model…          weights of the old model go, and those of the new one come, as second names;
 *                     so does its tokenizer
 *     config.json     is added: from now on the folder's model is the folder itself
 *
 * So no matter what fails or when the process is killed, the folder has one whole model, and the
 * next save first finishes the last one. Where one file of weights replaces another of the same
 * config and tokenizer, that is one rename, and the config stays.
 */
#include "models/weights/hf.h"

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char config_file[] = "config.json", staged_config[] = TN__HF_STAGING "/config.json";

typedef struct placing {
    const char *folder, *staging, *operation;
    int fresh; /* files in staging: of weights, and of a tokenizer that differ from the folder's */
    int stale; /* files of weights in the folder with names that are not in staging */
    bool at_once;
} placing;

bool tn__hf_is_staged(const char *folder) {
    return !tn__folder_has(folder, config_file) && tn__folder_has(folder, staged_config);
}

bool tn__hf_has_model(const char *folder) {
    return tn__folder_has(folder, config_file) || tn__folder_has(folder, staged_config);
}

char *tn__hf_model_folder(const char *folder, const char *operation) {
    bool staged = folder && tn__hf_is_staged(folder);
    char *path = tn__folder_path(folder, staged ? TN__HF_STAGING : "", operation);
    if (path && !staged) { path[strlen(path) - 1] = 0; /* the slash */ }
    return path;
}

/* ---- One file -------------------------------------------------------------------------------- */

static bool raise_errno(const placing *p, const char *name) {
    return tn__fail(TN_EIO, p->operation, "%s/%s: %s", p->folder, name, strerror(errno));
}

static bool remove_file(const placing *p, const char *name) {
    char *path = tn__folder_path(p->folder, name, p->operation);
    bool gone = path && (unlink(path) == 0 || errno == ENOENT || raise_errno(p, name));
    free(path);
    return gone;
}

bool tn__hf_copy_file(const char *from, const char *to, const char *operation) {
    tn__reader r;
    tn__file f;
    char chunk[1 << 14];
    bool read = tn__reader_open(&r, from, operation);
    if (!read || !tn__file_begin(&f, to, operation)) {
        tn__reader_close(&r);
        return false;
    }
    for (size_t at = 0, n; read && at < r.bytes; at += n) {
        n = r.bytes - at < sizeof(chunk) ? r.bytes - at : sizeof(chunk);
        read = tn__reader_get(&r, at, chunk, n);
        tn__file_put(&f, chunk, read ? n : 0);
    }
    tn__reader_close(&r);
    if (!read) { tn__file_abandon(&f); }
    return read && tn__file_commit(&f) == TN_OK;
}

/* From staging: by one rename, or so that staging keeps it, under a second name or, where the file
 * system has no such thing, as a copy. */
static bool place_file(const placing *p, const char *name, bool at_once) {
    char *from = tn__folder_path(p->staging, name, p->operation);
    char *to = from ? tn__folder_path(p->folder, name, p->operation) : NULL;
    bool placed = to != NULL;
    if (placed && at_once) {
        placed = rename(from, to) == 0 || raise_errno(p, name);
    } else if (placed) {
        placed = remove_file(p, name) &&
                 (link(from, to) == 0 || tn__hf_copy_file(from, to, p->operation));
    }
    free(from);
    free(to);
    return placed;
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* Whether a save may have written a file of this name, with weights or their index. */
static bool is_weights(const char *name) {
    int part, parts, end = 0;
    return strcmp(name, TN__HF_FILE) == 0 || strcmp(name, TN__HF_PLAIN) == 0 ||
           strcmp(name, TN__HF_INDEX) == 0 ||
           (sscanf(name, "model-%5d-of-%5d.safetensors%n", &part, &parts, &end) == 2 && end &&
            !name[end]);
}

bool tn__hf_replaces(const char *name) {
    return is_weights(name) || tn__hf_is_words(name) || strcmp(name, config_file) == 0;
}

/* Whether a file of the folder is replaced by one in staging, or removed. */
static bool is_placed(const placing *p, const char *name) {
    return is_weights(name) || (tn__hf_is_words(name) && tn__folder_has(p->staging, name));
}

static bool is_stale(const placing *p, const char *name) {
    return is_weights(name) && !tn__folder_has(p->staging, name);
}

/* Whether the folder already has the file in staging; false after raising TN_ENOMEM too. */
static bool same_file(const placing *p, const char *name) {
    tn_error_record why;
    size_t bytes = 0, staged_bytes = 0;
    char *path = tn__folder_path(p->folder, name, p->operation);
    char *staged_path = tn__folder_path(p->staging, name, p->operation);
    bool there = path && staged_path && access(path, F_OK) == 0;
    char *text = there ? tn__read_whole(path, &bytes, p->operation) : NULL;
    char *staged = text ? tn__read_whole(staged_path, &staged_bytes, p->operation) : NULL;
    bool same = staged && bytes == staged_bytes && memcmp(text, staged, bytes) == 0;
    if (tn_error() != TN_ENOMEM) {
        tn_error_take(&why); /* a file that cannot be read counts as different */
    }
    free(path);
    free(staged_path);
    free(text);
    free(staged);
    return same;
}

/* Finds what cannot be replaced before anything changes. */
static bool look_at_old(const char *name, void *user) {
    placing *p = user;
    struct stat about;
    char *path = is_placed(p, name) ? tn__folder_path(p->folder, name, p->operation) : NULL;
    if (path && lstat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        raise_errno(p, name);
    }
    p->stale += is_stale(p, name);
    free(path);
    return !tn__pending();
}

static bool look_at_new(const char *name, void *user) {
    placing *p = user;
    p->fresh += is_weights(name) || (tn__hf_is_words(name) && !same_file(p, name));
    return !tn__pending();
}

static bool remove_old(const char *name, void *user) {
    const placing *p = user;
    return !is_stale(p, name) || remove_file(p, name);
}

static bool place_new(const char *name, void *user) {
    const placing *p = user;
    return !is_placed(p, name) || place_file(p, name, p->at_once);
}

static bool place_weights(placing *p) {
    const char *doing;
    if (!tn__folder_each(p->folder, look_at_old, p, p->operation) || tn__pending() ||
        !tn__folder_each(p->staging, look_at_new, p, p->operation) || tn__pending()) {
        return false;
    }
    p->at_once = p->fresh == 1 && p->stale == 0 && same_file(p, config_file);
    if (tn__pending() || (!tn__folder_sync(p->folder, &doing) && !raise_errno(p, doing)) ||
        (!p->at_once && !remove_file(p, config_file))) {
        return false;
    }
    return tn__folder_each(p->folder, remove_old, p, p->operation) && !tn__pending() &&
           tn__folder_each(p->staging, place_new, p, p->operation) && !tn__pending();
}

bool tn__hf_place(const char *folder, const char *operation) {
    const char *doing;
    placing p = {.folder = folder, .operation = operation};
    char *staging = tn__folder_path(folder, TN__HF_STAGING, operation);
    p.staging = staging;
    bool placed = staging && place_weights(&p) && place_file(&p, config_file, true) &&
                  tn__folder_remove(staging, operation) &&
                  (tn__folder_sync(folder, &doing) || raise_errno(&p, doing));
    free(staging);
    return placed;
}

bool tn__hf_finish(const char *folder, const char *operation) {
    return !tn__hf_is_staged(folder) || tn__hf_place(folder, operation);
}
