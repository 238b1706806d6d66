#include "tests/support/run.h"

#include "tests/support/temp.h"

static struct CMUnitTest *tests;
static int *places;
static size_t count, room;

void test_add(const char *name, CMUnitTestFunction f, CMFixtureFunction setup,
              CMFixtureFunction teardown, void *initial_state, int place) {
    if (count == room) {
        room += 256;
        tests = realloc(tests, room * sizeof *tests);
        places = realloc(places, room * sizeof *places);
        if (!tests || !places) {
            fprintf(stderr, "no memory for %zu tests\n", room);
            exit(1);
        }
    }
    /* Compilers promise no order of constructors. */
    size_t at = count++;
    for (; at > 0 && places[at - 1] > place; at--) {
        places[at] = places[at - 1];
        tests[at] = tests[at - 1];
    }
    places[at] = place;
    tests[at] = (struct CMUnitTest){name, f, setup, teardown, initial_state};
}

char temp_folder[64];

const char *temp_path(const char *name) {
    static char paths[64][512];
    static unsigned next;
    if (!*temp_folder) {
        strcpy(temp_folder, "/tmp/tern_test_XXXXXX");
        if (!mkdtemp(temp_folder)) {
            perror(temp_folder);
            exit(1);
        }
        setenv("TERN_FLIGHT_DIR", temp_folder, 1);
    }
    char *path = paths[next++ % 64];
    snprintf(path, sizeof(paths[0]), "%s/%s", temp_folder, name);
    return path;
}

void temp_remove(const char *path) {
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

int temp_clean(void **state) {
    temp_remove(temp_folder);
    *temp_folder = 0;
    return 0;
}

int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
    if (count == 0) {
        fprintf(stderr, "no tests\n");
        return 1;
    }
    temp_path("");
    int failed = _cmocka_run_group_tests("tests", tests, count, setup, teardown);
    temp_clean(NULL);
    free(tests);
    free(places);
    return failed;
}

/* Of ranks.c, where the program has ranks. */
void ranks_main(int argc, char **argv) __attribute__((weak));

/* The main of a program that has no other. */
int __attribute__((weak)) main(int argc, char **argv) {
    if (ranks_main) { ranks_main(argc, argv); }
    return tests_run(NULL, NULL);
}
