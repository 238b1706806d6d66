/* Memory in which the ranks of this host save what must outlive them: two blocks without a name for
 * each rank, which grow as the ranks write. They end with the launcher.
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

char *vault_new(int ranks, output *out) {
    char *text = text_new("TERN_VAULT=%d", (int)getpid());
    for (int i = 0; i < 2 * ranks; i++) {
        int fd = make_block();
        if (fd < 0) {
            output_say(out, "no memory to save in for ranks: %s", strerror(errno));
            free(text);
            return text_new("TERN_VAULT=");
        }
        char *longer = text_new("%s %d", text, fd);
        free(text);
        text = longer;
    }
    return text;
}
