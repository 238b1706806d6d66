/* A folder in memory (tmpfs) in which the ranks of this host save what must outlive them. The
 * launcher makes it; the guard, which outlives the launcher, removes it when all ranks have ended.
 * Both know its name from the launcher's marker. */
#include "tools/run.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* marker: TERN_LAUNCHER=PID-UNIQUE. A launcher that is a rank makes its folder in the outer one's,
 * whose guard ends its guard. */
static void folder_path(const char *marker, char *path, size_t size) {
    const char *outer = getenv("TERN_MEMORY_DIR");
    snprintf(path, size, "%s/tern-%s", outer ? outer : "/dev/shm", strchr(marker, '=') + 1);
}

char *memory_folder(const char *marker, output *out) {
    char path[4096];
    folder_path(marker, path, sizeof(path));
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        output_say(out, "%s: %s: ranks cannot save in memory", path, strerror(errno));
        return NULL;
    }
    return text_new("%s", path);
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *at) {
    remove(path); /* what stays is not worth more than a try: nobody could be told */
    return 0;
}

void memory_remove(const char *marker) {
    char path[4096];
    folder_path(marker, path, sizeof(path));
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
