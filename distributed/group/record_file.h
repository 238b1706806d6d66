/* The file of a flight record. Temporary folders are shared: another user may have put a link or a
 * FIFO where a record is going to be. So a record is always a new file that no one else can read,
 * in a folder of this user's unless another was named. */
#ifndef TERN_DISTRIBUTED_GROUP_RECORD_FILE_H
#define TERN_DISTRIBUTED_GROUP_RECORD_FILE_H

#include <stdio.h>

/* tern-flight-RANK.txt in $TERN_FLIGHT_DIR, replacing an older one of this user; else
 * tern-flight-RANK-PID.txt in $XDG_RUNTIME_DIR/tern or, failing that, in tern-UID in $TMPDIR or
 * /tmp: folders that are made when missing, and used only if private to this user. Never waits.
 * NULL after a warning in the log; nothing was written. The path is for messages.
 */
FILE *tn__record_open(int rank, char *path, size_t size);

#endif
