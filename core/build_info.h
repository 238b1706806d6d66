/* What backends report to tn_build_info: one phrase, such as "cpu-v3". The string must stay
 * valid. And which version this is. */
#ifndef TERN_CORE_BUILD_INFO_H
#define TERN_CORE_BUILD_INFO_H

#include "tern/core.h"

extern const char *tn__build_info_backend;

/* "0.1.0", or with the revision that git knows of the sources: "0.1.0+3fd87356ab12". */
extern const char tn__version[];
TN_API const char *tn__version_text(void);

/* Whether two such texts may be of the same sources: if one of them has no revision, the numbers
 * count. */
TN_API bool tn__version_agrees(const char *a, const char *b);

#endif
