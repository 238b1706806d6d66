/* The library's errors, as shown to a command's user. */
#ifndef TERN_TOOLS_ERROR_WORDS_H
#define TERN_TOOLS_ERROR_WORDS_H

/* What is wrong, without the place in the command and the operation, which mean nothing to its
 * user.
 */
const char *error_why(void);
/* The same for an error that was taken, and may have been raised again with a place more. */
const char *error_why_of(const char *message);

#endif
