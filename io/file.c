/* Any file. */
#include "core/file.h"
#include "tern/io.h"

tn_status tn_write_file(const void *data, size_t bytes, const char *path) {
    tn__file f;
    if (!data && bytes) { return tn__raise(TN_EVALUE, "write_file", "the data are NULL"); }
    if (!tn__file_begin(&f, path, "write_file")) { return tn_error(); }
    tn__file_put(&f, data, bytes);
    return tn__file_commit(&f);
}
