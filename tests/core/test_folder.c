/* Folders: made, listed, removed. */
#include "tests/support/test.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/folder.h"
#include "tests/support/temp.h"

static bool count_name(const char *name, void *user) {
    assert_true(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
    return ++*(int *)user < 3;
}

TEST(made_and_removed) {
    const char *folder = temp_path("folder");
    assert_true(tn__folder_make(folder, "test") && tn__folder_make(folder, "test"));
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof(name), "folder/%d", i);
        temp_write(temp_path(name), "x", 1);
    }
    int names = 0;
    assert_true(tn__folder_each(folder, count_name, &names, "test"));
    assert_int_equal(names, 3); /* until f stops it */
    const char *doing;
    assert_true(tn__folder_sync(folder, &doing));
    assert_true(tn__folder_remove(folder, "test"));
    assert_int_equal(access(folder, F_OK), -1);
    assert_true(tn__folder_remove(folder, "test")); /* one that does not exist */
}

TEST(what_is_no_folder) {
    const char *file = temp_path("file"), *doing;
    temp_write(file, "x", 1);
    assert_false(tn__folder_make(file, "test"));
    assert_error(TN_EIO, "Not a directory");
    assert_false(tn__folder_make(temp_path("none/at/all"), "test"));
    assert_error(TN_EIO, "none/at/all");
    assert_false(tn__folder_remove(file, "test"));
    assert_error(TN_EIO, "file: Not a directory");
    assert_false(tn__folder_each(file, count_name, NULL, "test"));
    assert_error(TN_EIO, "file");
    assert_false(tn__folder_sync(temp_path("none"), &doing));
    assert_string_equal(doing, "opening its folder");
}

/* Subfolders, and what a link points to, are not removed. */
TEST(folders_within_and_links_stay) {
    const char *outer = temp_path("outer"), *inner = temp_path("outer/inner");
    const char *link = temp_path("link");
    assert_true(tn__folder_make(outer, "test") && tn__folder_make(inner, "test"));
    assert_int_equal(symlink(inner, link), 0);
    assert_false(tn__folder_remove(outer, "test"));
    assert_error(TN_EIO, "outer");
    assert_false(tn__folder_remove(link, "test"));
    assert_error(TN_EIO, "link");
    assert_int_equal(access(inner, F_OK), 0);
    assert_true(tn__folder_remove(inner, "test") && tn__folder_remove(outer, "test"));
}
