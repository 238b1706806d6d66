/* Lists of paths separated by spaces, in which * matches anything but a dot: "h.* wte". */
#ifndef TERN_NN_PATHS_H
#define TERN_NN_PATHS_H

#include <stdbool.h>

/* The next pattern of a list, which ends at *end; NULL: there is none. */
const char *tn__path_next(const char *list, const char **end);

/* Whether the pattern, which ends at `end`, is this path. */
bool tn__path_fits(const char *pattern, const char *end, const char *path);

/* Whether one of the list is this path. */
bool tn__paths_fit(const char *list, const char *path);

#endif
