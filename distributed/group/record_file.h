/* The file of a flight record. Temporary folders are shared: a stranger may have put a link or a
 * FIFO where a record is going to be. So a record is always a new file that nobody else can read,
 * and where nobody has named a folder it lies in one of this user's own. */
#ifndef TERN_DISTRIBUTED_GROUP_RECORD_FILE_H
#define TERN_DISTRIBUTED_GROUP_RECORD_FILE_H

#include <stdio.h>

/* In $TERN_FLIGHT_DIR tern-flight-RANK.txt, in place of an older one of this user; else
 * tern-flight-RANK-PID.txt in $XDG_RUNTIME_DIR/tern or, where that cannot be had, in tern-UID in
 * $TMPDIR or /tmp: folders that are made when missing, and used when only this user can. Waits for
 * nobody. NULL after a warning in the log, and then nothing was written. The path is for messages.
 */
FILE *tn__record_open(int rank, char *path, size_t room);

#endif
