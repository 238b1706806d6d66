/* What the log says to programs that have not asked for one. */
#ifndef TERN_CORE_LOG_H
#define TERN_CORE_LOG_H

#include "tern/core.h"

/* A warning of TN_LOG_WARN that goes to stderr if the log goes nowhere: for dangers to the user
 * that show in nothing else (docs/errors.md has the list). TERN_LOG=error keeps it silent. */
void tn__log_loud(const char *format, ...) TN_PRINTF(1, 2);

/* Whether messages of this level go anywhere. */
bool tn__log_heard(tn_log_level level);

#endif
