/* A search whose trials do what may go wrong, for test_search.py.
 *
 *     search_program FOLDER PROCESSES
 *
 * Trial i is worth i. Each prints whether the processes that it starts would inherit TERN_TRIAL;
 * that of the first text fails after its value.
 *
 *     search_program FOLDER PROCESSES late
 *
 * Nine trials in three rungs. With processes, trial 0 reports late: it waits for one that begins
 * after it.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void wait_for(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    while (access(path, F_OK) != 0) {
        usleep(1000);
    }
}

static int search_late(const char *folder, int processes) {
    static const int64_t worth[] = {0, 5, 6, 7, 8, 1, 2, 3, 4};
    tn_search_options options = tn_search_defaults();
    options.out = folder;
    options.processes = processes;
    options.grid = true;
    options.first_steps = 10;
    options.steps = 90;
    int64_t value;
    tn_search *search = tn_search_new(options);
    tn_search_choose_whole(search, "value", &value, worth, sizeof(worth) / sizeof(*worth));
    while (tn_search_next(search)) {
        if (processes > 0 && tn_search_trial(search) == 0 && tn_search_steps(search) == 10) {
            wait_for(folder, "trial-0005/value-000010");
        }
        tn_search_report(search, (double)value);
    }
    return tn_search_end(search);
}

int main(int argc, char **argv) {
    static const char *const texts[] = {"plain", "a, \"b\"", TEXT_64 TEXT_64 TEXT_64, TEXT_64};
    enum { TEXTS = sizeof(texts) / sizeof(*texts) };
    tn_on_error(tn_error_exit);
    if (argc == 4 && strcmp(argv[3], "late") == 0) {
        return search_late(argv[1], atoi(argv[2]));
    }
    if (argc != 3) {
        return 2;
    }
    tn_search_options options = tn_search_defaults();
    options.out = argv[1];
    options.processes = atoi(argv[2]);
    options.grid = true;
    const char *text;
    int64_t trial = -1;
    tn_search *search = tn_search_new(options);
    tn_search_choose_text(search, "text", &text, texts, TEXTS);
    while (tn_search_next(search)) {
        trial = tn_search_trial(search);
        const char *told = getenv("TERN_TRIAL");
        fprintf(stderr, "TERN_TRIAL is %s\n", told ? told : "not there");
        tn_square(tn_ones(TN_DIMS(4), TN_F32)); /* something to profile */
        tn_search_report(search, (double)trial);
    }
    int status = tn_search_end(search);
    return trial == 0 && options.processes > 0 ? 3 : status;
}
