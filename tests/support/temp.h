/* Files for tests: their own folder; reads and writes whole files. */
#ifndef TERN_TESTS_SUPPORT_TEMP_H
#define TERN_TESTS_SUPPORT_TEMP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

/* The program's own folder under /tmp, which tests_run makes and removes. The flight recorder
 * writes to it (TERN_FLIGHT_DIR). */
extern char temp_folder[64];

/* A path in it; makes it where no tests run. Up to 64 paths are valid at a time. */
const char *temp_path(const char *name);

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

/* Two folders have the same files, except those whose names begin with a dot. Returns how many. */
static inline int temp_same_folders(const char *a, const char *b) {
    const char *const paths[] = {a, b};
    int files[2] = {0};
    for (int i = 0; i < 2; i++) {
        DIR *folder = opendir(paths[i]);
        assert_non_null(folder);
        for (struct dirent *entry; (entry = readdir(folder));) {
            char one[600], two[600];
            if (entry->d_name[0] == '.') { continue; }
            files[i]++;
            snprintf(one, sizeof(one), "%s/%s", a, entry->d_name);
            snprintf(two, sizeof(two), "%s/%s", b, entry->d_name);
            if (i == 0) { temp_same(one, two); }
        }
        closedir(folder);
    }
    assert_int_equal(files[0], files[1]);
    return files[0];
}

/* Removes a file, or a folder with all that is in it. */
void temp_remove(const char *path);

/* Removes the folder; the next path makes another. A test's teardown. */
int temp_clean(void **state);

#endif
