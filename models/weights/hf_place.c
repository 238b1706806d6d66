/* Gives the files of a whole model their final names (hf.h).
 *
 *     weights.tmp/    all of the new model is written here, its config.json last
 *     config.json     of the old model is removed: from now on the folder's model is weights.tmp
 *     model…          and a tokenizer: the old files go, and the new ones come, as second names
 *     config.json     is added: from now on the folder's model is the folder itself
 *
 * So no matter what fails or when the process is killed, the folder has one whole model, and the
 * next save first finishes the last one.
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
#include <unistd.h>

static const char config_file[] = "config.json", staged_config[] = TN__HF_STAGING "/config.json";

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

/* What says how texts become tokens. */
static const char *const words[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "added_tokens.json",
                                    "special_tokens_map.json",
                                    "generation_config.json"};

static bool is_words(const char *name) {
    bool found = false;
    for (size_t i = 0; !found && i < sizeof(words) / sizeof(words[0]); i++) {
        found = strcmp(name, words[i]) == 0;
    }
    return found;
}

/* Whether a save may have written a file of this name, with weights or their index. */
static bool is_weights(const char *name) {
    int part, parts, end = 0;
    return strcmp(name, TN__HF_FILE) == 0 || strcmp(name, TN__HF_PLAIN) == 0 ||
           strcmp(name, TN__HF_INDEX) == 0 ||
           (sscanf(name, "model-%5d-of-%5d.safetensors%n", &part, &parts, &end) == 2 && end &&
            !name[end]);
}

bool tn__hf_replaces(const char *name) {
    return is_weights(name) || is_words(name) || strcmp(name, config_file) == 0;
}

static bool copy_file(const char *from, const char *to, const char *operation) {
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

bool tn__hf_copy_words(const char *from, const char *to, const char *operation) {
    bool copied = true;
    for (size_t i = 0; copied && i < sizeof(words) / sizeof(words[0]); i++) {
        char *source = tn__folder_path(from, words[i], operation);
        char *target = source ? tn__folder_path(to, words[i], operation) : NULL;
        copied = target && (access(source, F_OK) != 0 || copy_file(source, target, operation));
        free(source);
        free(target);
    }
    return copied;
}

/* ---- All of them ----------------------------------------------------------------------------- */

typedef struct placing {
    const char *folder, *staging, *operation;
} placing;

static bool raise_errno(const placing *p, const char *name) {
    return tn__fail(TN_EIO, p->operation, "%s/%s: %s", p->folder, name, strerror(errno));
}

static bool remove_file(const placing *p, const char *name) {
    char *path = tn__folder_path(p->folder, name, p->operation);
    bool gone = path && (unlink(path) == 0 || errno == ENOENT || raise_errno(p, name));
    free(path);
    return gone;
}

/* Removes what the new model has, or would be read with it. */
static bool remove_old(const char *name, void *user) {
    const placing *p = user;
    bool old = is_weights(name) || (is_words(name) && tn__folder_has(p->staging, name));
    return !old || remove_file(p, name);
}

/* Gives a file of staging a second name in the folder or, where the file system has no such thing,
 * copies it; the config moves. */
static bool place_as(const placing *p, const char *name, bool moves) {
    char *from = tn__folder_path(p->staging, name, p->operation);
    char *to = from ? tn__folder_path(p->folder, name, p->operation) : NULL;
    bool placed = to && (moves ? rename(from, to) == 0 || raise_errno(p, name)
                               : link(from, to) == 0 || copy_file(from, to, p->operation));
    free(from);
    free(to);
    return placed;
}

static bool place_new(const char *name, void *user) {
    return strcmp(name, config_file) == 0 || place_as(user, name, false);
}

static bool sync_folder(const placing *p) {
    const char *doing;
    return tn__folder_sync(p->folder, &doing) || raise_errno(p, doing);
}

bool tn__hf_place(const char *folder, const char *operation) {
    placing p = {.folder = folder, .operation = operation};
    char *staging = tn__folder_path(folder, TN__HF_STAGING, operation);
    p.staging = staging;
    bool placed = staging && sync_folder(&p) && remove_file(&p, config_file) &&
                  tn__folder_each(folder, remove_old, &p, operation) && !tn__pending() &&
                  tn__folder_each(staging, place_new, &p, operation) && !tn__pending() &&
                  place_as(&p, config_file, true) && tn__folder_remove(staging, operation) &&
                  sync_folder(&p);
    free(staging);
    return placed;
}

bool tn__hf_finish(const char *folder, const char *operation) {
    return !tn__hf_is_staged(folder) || tn__hf_place(folder, operation);
}
