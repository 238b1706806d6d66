/* Any file. */
#include "core/file.h"
#include "tern/io.h"

tn_status tn_write_file(const void *data, size_t bytes, const char *path) {
    if (!data && bytes) { return tn__raise(TN_EVALUE, "write_file", "the data are NULL"); }
    return tn__file_write_at(path, data, bytes, "write_file") ? TN_OK : tn_error();
}
