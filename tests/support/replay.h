/* The corpus of a fuzz target as an ordinary test. */
#ifndef TERN_TESTS_SUPPORT_REPLAY_H
#define TERN_TESTS_SUPPORT_REPLAY_H

#include "tests/support/temp.h"

/* Runs a target on every file of tests/fuzz/corpus/NAME; returns how many there were. A target that
 * finds something wrong aborts. */
static inline int replay_corpus(const char *name, int (*run)(const uint8_t *, size_t)) {
    char folder[3000], path[4000];
    const char *root = getenv("TERN_ROOT");
    snprintf(folder, sizeof(folder), "%s/tests/fuzz/corpus/%s", root ? root : ".", name);
    DIR *list = opendir(folder);
    assert_non_null(list);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%.900s", folder, entry->d_name);
            size_t bytes;
            unsigned char *data = temp_read(path, &bytes);
            assert_int_equal(run(data, bytes), 0);
            free(data);
            count++;
        }
    }
    closedir(list);
    return count;
}

#endif
