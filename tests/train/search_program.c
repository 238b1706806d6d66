/* A search whose trials do what may go wrong, for test_search.py and test_search_hosts.py.
 *
 *     search_program FOLDER PROCESSES
 *
 * Trial i is worth i. Each prints whether the processes that it starts would inherit TERN_TRIAL,
 * and whether it has TERN_MEMORY_DIR; that of the first text fails after its value.
 *
 *     search_program FOLDER PROCESSES late
 *
 * Nine trials in three rungs. With processes, trial 0 reports late: it waits for one that begins
 * after it.
 *
 *     search_program FOLDER PROCESSES hosts
 *
 * The same trials for several ranks. Each trial waits until SEARCH_HOSTS files are in the folder
 * SEARCH_MEET, where it makes one with the name of its host, and adds "TRIAL STEPS" to the file
 * SEARCH_RAN when it has a value. The first trial that can make the file SEARCH_HANG never ends,
 * and adds "saved" to the file when it is asked to stop, once.
 *
 *     search_program FOLDER PROCESSES ranks
 *     search_program FOLDER PROCESSES gpus
 *
 * Trials of two ranks, each worth its number + 3. Trials with a GPU each, which they write to
 * gpu.txt, and then wait for each other.
 */
#include <tern/tern.h>

#include <dirent.h>
#include <fcntl.h>
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

static const int64_t worth[] = {0, 5, 6, 7, 8, 1, 2, 3, 4};

static tn_search *late_search(const char *folder, int processes, int64_t *value) {
    tn_search_options options =
        TN_WITH(tn_search, .out = folder, .processes = processes, .grid = true, .first_steps = 10,
                .steps = 90, .seed = getenv("SEARCH_SEED") != NULL);
    tn_search *search = tn_search_new(options);
    tn_search_choose_whole(search, "value", value, worth, sizeof(worth) / sizeof(*worth));
    return search;
}

static int search_late(const char *folder, int processes) {
    int64_t value;
    tn_search *search = late_search(folder, processes, &value);
    while (tn_search_next(search)) {
        if (processes > 0 && tn_search_trial(search) == 0 && tn_search_steps(search) == 10) {
            wait_for(folder, "trial-0005/value-000010");
        }
        tn_search_report(search, (double)value);
    }
    return tn_search_end(search);
}

/* ---- Several ranks --------------------------------------------------------------------------- */

static const char *need_setting(const char *name) {
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "%s is not set\n", name);
        exit(2);
    }
    return value;
}

static int count_files(const char *folder) {
    DIR *files = opendir(folder);
    int count = 0;
    for (struct dirent *entry; files && (entry = readdir(files));) {
        count += entry->d_name[0] != '.';
    }
    if (files) { closedir(files); }
    return count;
}

static void meet_hosts(void) {
    const char *folder = need_setting("SEARCH_MEET"), *host = need_setting("TERN_HOST");
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, host);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    while (count_files(folder) < atoi(need_setting("SEARCH_HOSTS"))) {
        usleep(1000);
    }
}

static void hang_once(void) {
    const char *path = getenv("SEARCH_HANG");
    int file = path ? open(path, O_CREAT | O_EXCL | O_WRONLY, 0666) : -1;
    if (file >= 0) {
        tn_stop_on_signals();
        dprintf(file, "hangs%s\n", getpgrp() == getpid() ? "" : " in the search's process group");
        while (!tn_stop_asked()) {
            usleep(1000);
        }
        usleep(300000); /* a checkpoint takes a while, in which a second signal would end it */
        dprintf(file, "saved\n");
        _exit(1);
    }
}

static void note_end(const tn_search *search) {
    int file = open(need_setting("SEARCH_RAN"), O_CREAT | O_APPEND | O_WRONLY, 0666);
    dprintf(file, "%d %d\n", (int)tn_search_trial(search), (int)tn_search_steps(search));
    close(file);
}

static int search_hosts(const char *folder, int processes) {
    int64_t value;
    tn_search *search = late_search(folder, processes, &value);
    while (tn_search_next(search)) {
        if (getenv("SEARCH_MEET")) {
            tn_dist_init(tn_dist_defaults());
            if (tn_group_size(tn_world()) > 1) { return 3; /* each trial is a world of its own */ }
            tn_dist_finish();
            meet_hosts();
            hang_once();
            note_end(search);
        }
        tn_search_report(search, (double)value);
    }
    return tn_search_end(search);
}

static int search_ranks(const char *folder, int processes) {
    tn_search *search = tn_search_new(
        TN_WITH(tn_search, .out = folder, .processes = processes, .ranks = 2, .trials = 2));
    while (tn_search_next(search)) {
        tn_group *world = tn_dist_init(tn_dist_defaults());
        int rank = tn_group_rank(world);
        tn_tensor *t = tn_full(TN_DIMS(1), rank + 1, TN_F32);
        tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
        tn_search_report(search, (double)tn_search_trial(search) + tn_item(t) + 1000 * rank);
        tn_dist_finish();
    }
    return tn_search_end(search);
}

static int search_gpus(const char *folder, int processes) {
    tn_search *search = tn_search_new(
        TN_WITH(tn_search, .out = folder, .processes = processes, .gpus = 1, .trials = processes));
    while (tn_search_next(search)) {
        char path[512], name[64];
        snprintf(path, sizeof(path), "%s/gpu.txt", tn_search_folder(search));
        const char *gpu = need_setting("CUDA_VISIBLE_DEVICES");
        tn_write_file(gpu, strlen(gpu), path);
        for (int i = 0; i < processes; i++) {
            snprintf(name, sizeof(name), "trial-%04d/gpu.txt", i);
            wait_for(folder, name);
        }
        tn_search_report(search, 1);
    }
    return tn_search_end(search);
}

int main(int argc, char **argv) {
    static const char *const texts[] = {"plain", "a, \"b\"", TEXT_64 TEXT_64 TEXT_64, TEXT_64};
    enum { TEXTS = sizeof(texts) / sizeof(*texts) };
    tn_on_error(tn_error_exit);
    if (argc == 4 && strcmp(argv[3], "late") == 0) { return search_late(argv[1], atoi(argv[2])); }
    if (argc == 4 && strcmp(argv[3], "hosts") == 0) { return search_hosts(argv[1], atoi(argv[2])); }
    if (argc == 4 && strcmp(argv[3], "ranks") == 0) { return search_ranks(argv[1], atoi(argv[2])); }
    if (argc == 4 && strcmp(argv[3], "gpus") == 0) { return search_gpus(argv[1], atoi(argv[2])); }
    if (argc != 3) { return 2; }
    tn_search_options options =
        TN_WITH(tn_search, .out = argv[1], .processes = atoi(argv[2]), .grid = true);
    const char *text;
    int64_t trial = -1;
    tn_search *search = tn_search_new(options);
    tn_search_choose_text(search, "text", &text, texts, TEXTS);
    while (tn_search_next(search)) {
        trial = tn_search_trial(search);
        const char *told = getenv("TERN_TRIAL");
        fprintf(stderr, "TERN_TRIAL is %s\n", told ? told : "not there");
        fprintf(stderr, "TERN_MEMORY_DIR is %s\n",
                getenv("TERN_MEMORY_DIR") ? "there" : "not there");
        tn_square(tn_ones(TN_DIMS(4), TN_F32)); /* something to profile */
        tn_search_report(search, (double)trial);
    }
    int status = tn_search_end(search);
    return trial == 0 && options.processes > 0 ? 3 : status;
}
