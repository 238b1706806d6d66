/* Descriptors of open files. 0, 1 and 2 are the program's streams, also where it has closed them:
 * what it writes to a stderr that is closed must not land in a file or a connection of the library.
 * So whatever the library opens passes through here:
 *
 *     int fd = tn__above_streams(open(path, O_RDONLY | O_CLOEXEC));
 */
#ifndef TERN_CORE_DESCRIPTOR_H
#define TERN_CORE_DESCRIPTOR_H

#include "tern/core.h"

#include <errno.h>

/* What to raise for a call of the system that failed with this errno. */
static inline tn_status tn__status_of(int why) {
    return why == ENOMEM ? TN_ENOMEM : TN_EIO;
}

/* fd; where that is a stream's number, another descriptor of the same file in its place, closed at
 * exec. -1 stays -1; -1 with errno also where there is no other. */
int tn__above_streams(int fd);

/* Around libraries that open files of their own: until as many calls have let go, the streams that
 * are closed are taken by /dev/null. */
void tn__streams_hold(void);
void tn__streams_let_go(void);

#endif
