/* Errors of the library as a command's user reads them. */
#ifndef TERN_TOOLS_ERROR_WORDS_H
#define TERN_TOOLS_ERROR_WORDS_H

/* What is wrong, without the place in the command and the operation, which mean nothing to its
 * user.
 */
const char *error_why(void);

#endif
