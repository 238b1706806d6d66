/* Where a job's token comes from when none is given: secrets in files.
 *
 * Anyone who has a job's token may join it. So a token file is trusted only when no one else can
 * have read or written it: a regular file of this user, without access for group and others. The
 * last part of its path is not a symbolic link. Opening anything else (a FIFO, say) never waits. */
#ifndef TERN_DISTRIBUTED_INIT_TOKEN_H
#define TERN_DISTRIBUTED_INIT_TOKEN_H

#include "tern/core.h"

enum { TN__TOKEN = 256 }; /* bytes of a token and its 0 */

/* The token in this file: its first and only line, printable, up to TN__TOKEN - 1 bytes. Raises
 * TN_EIO or TN_EFORMAT with a reason that names the file and what to do. */
TN_API tn_status tn__token_read(const char *path, char token[TN__TOKEN]);

/* This user's own token, in $XDG_CONFIG_HOME/tern/token, else $HOME/.config/tern/token. The first
 * process that asks makes it, at random; several that ask at once all get the same. Failures as
 * above. */
TN_API tn_status tn__token_user(char token[TN__TOKEN]);

/* 2 * bytes hex digits of random bytes and a 0: below TN__TOKEN. False: the system gives none. */
bool tn__token_random(char digits[TN__TOKEN], size_t bytes);

/* A token for one job from a secret that several share: neither the secret nor another job's token
 * can be found from it. */
TN_API void tn__token_derive(const char *secret, const char *job, char token[TN__TOKEN]);

#endif
