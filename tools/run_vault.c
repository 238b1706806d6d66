/* Memory in which the ranks of this host save what must outlive them: blocks without a name, which
 * grow as the ranks write. They end with the launcher.
 * distributed/parallel/save/vault.h says what is in them. */
#include "tools/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

void vault_grow(vault *v, int ranks, output *out) {
    v->text = v->text ? v->text : text_new("TERN_VAULT=%d", (int)getpid());
    for (; v->blocks < 4 * ranks; v->blocks++) {
        int fd = make_block();
        if (fd < 0) {
            output_say(out, "not enough memory to save in for ranks: %s", strerror(errno));
            return;
        }
        char *longer = text_new("%s %d", v->text, fd);
        free(v->text);
        v->text = longer;
    }
}
