/* Descriptors of open files. 0, 1 and 2 are the program's streams, even after it has closed them:
 * what it writes to a closed stderr must not end up in one of the library's files or connections.
 * So whatever the library opens passes through here:
 *
 *     int fd = tn__above_streams(open(path, O_RDONLY | O_CLOEXEC));
 */
#ifndef TERN_CORE_DESCRIPTOR_H
#define TERN_CORE_DESCRIPTOR_H

#include "tern/core.h"

#include <errno.h>

/* What to raise for a system call that failed with this errno. */
static inline tn_status tn__status_of(int why) {
    return why == ENOMEM ? TN_ENOMEM : TN_EIO;
}

/* fd, or, if that is a stream's number, another descriptor of the same file instead, closed at
 * exec. -1 stays -1. -1 with errno if there is no other. */
int tn__above_streams(int fd);

/* Around libraries that open files themselves: until each hold has been released, closed streams
 * are open on /dev/null. */
void tn__streams_hold(void);
void tn__streams_let_go(void);

#endif
