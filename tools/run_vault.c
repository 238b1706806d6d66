/* Memory in which the ranks of this host save what must outlive them: blocks without a name, which
 * grow as the ranks write. They end with the launcher.
 * distributed/parallel/save/vault.h says what is in them. */
#include "tools/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* -1 with errno. A block never becomes smaller, so that readers can map it. */
static int make_block(void) {
    int fd = memfd_create("tern-vault", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        fd = -1;
    }
    return fd;
}

/* Whether the ranks' pipes will still find descriptors above this one. */
static bool leaves_descriptors(int fd, int ranks) {
    enum { OTHERS = 32 };
    struct rlimit most;
    return getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
           (rlim_t)fd + 2 * (rlim_t)ranks + OTHERS < most.rlim_cur;
}

/* False: there is no more. */
static bool add_block(vault *v, int ranks, bool copy) {
    int fd = make_block();
    if (fd >= 0 && copy && !leaves_descriptors(fd, ranks)) {
        close(fd);
        errno = EMFILE;
        fd = -1;
    }
    if (fd >= 0) {
        char *longer = text_new("%s %d", v->text, fd);
        free(v->text);
        v->text = longer;
        v->blocks++;
    }
    return fd >= 0;
}

void vault_grow(vault *v, int ranks, int places, output *out) {
    v->text = v->text ? v->text : text_new("TERN_VAULT=%d %d", (int)getpid(), ranks);
    bool more = !v->full;
    while (more && v->blocks < 2 * (ranks + places)) {
        more = add_block(v, ranks, v->blocks >= 2 * ranks);
    }
    if (!more && !v->full) {
        output_say(out, "no memory for %s: %s",
                   v->blocks < 2 * ranks ? "ranks to save in" : "copies of some ranks' saves",
                   strerror(errno));
        v->full = true;
    }
}
