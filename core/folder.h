/* Making, listing, removing and syncing folders. */
#ifndef TERN_CORE_FOLDER_H
#define TERN_CORE_FOLDER_H

#include "tern/core.h"

/* One that exists already is fine. False after raising. */
TN_API bool tn__folder_make(const char *path, const char *operation);

/* FOLDER/NAME; the caller frees. NULL after raising (the folder is NULL, no memory). */
TN_API char *tn__folder_path(const char *folder, const char *name, const char *operation);

/* Whether FOLDER/NAME exists, whatever it is. */
TN_API bool tn__folder_has(const char *folder, const char *name);

/* Calls f with each name in it but "." and "..", until f returns false. False after raising. */
TN_API bool tn__folder_each(const char *path, bool (*f)(const char *name, void *user), void *user,
                            const char *operation);

/* Removes a folder and the files in it; a missing one is fine. A folder inside it stays and is an
 * error. A link is not followed. False after raising. */
TN_API bool tn__folder_remove(const char *path, const char *operation);

/* Syncs the names in it to disk. File systems that cannot sync folders, and folders that may be
 * written but not read, are fine. False with errno; *doing is what failed, a static string. */
TN_API bool tn__folder_sync(const char *path, const char **doing);

#endif
