/* Files for tests: their own folder; reads and writes whole files. */
#ifndef TERN_TESTS_SUPPORT_TEMP_H
#define TERN_TESTS_SUPPORT_TEMP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

static char temp_folder[64];

/* A path in a new folder under /tmp, which temp_clean removes.
 * Up to 8 paths are valid at a time. */
static inline const char *temp_path(const char *name) {
    static char paths[8][512];
    static unsigned next;
    if (!*temp_folder) {
        strcpy(temp_folder, "/tmp/tern_test_XXXXXX");
        assert_non_null(mkdtemp(temp_folder));
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", temp_folder, name);
    return path;
}

/* How many files are in the folder. */
static inline int temp_count(void) {
    DIR *folder = opendir(temp_folder);
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static inline void temp_write(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* The caller frees. */
static inline unsigned char *temp_read(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    data[*bytes] = 0;
    fclose(file);
    return data;
}

static inline void temp_same(const char *a, const char *b) {
    size_t x, y;
    unsigned char *one = temp_read(a, &x), *two = temp_read(b, &y);
    assert_int_equal(x, y);
    assert_memory_equal(one, two, x);
    free(one);
    free(two);
}

/* A group's setup: the flight recorder writes about failures to the folder. */
static inline int temp_flights(void **state) {
    temp_path("");
    return setenv("TERN_FLIGHT_DIR", temp_folder, 1);
}

/* Removes a file, or a folder with all that is in it. */
static inline void temp_remove(const char *path) {
    DIR *folder = unlink(path) == 0 ? NULL : opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char below[1024];
        int length = snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            length < (int)sizeof(below)) {
            temp_remove(below);
        }
    }
    if (folder) {
        closedir(folder);
        rmdir(path);
    }
}

static inline int temp_clean(void **state) {
    if (*temp_folder) {
        temp_remove(temp_folder);
        *temp_folder = 0;
    }
    return 0;
}

#endif
