/* Whole files in memory. */
#include "core/error.h"
#include "core/memory.h"
#include "tern/data.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads `fd` to its end; the file's size is only a first guess, so pipes work too.
 * NULL with errno set. */
static char *read_all(int fd, size_t guess, size_t *bytes) {
    size_t room = guess + 1, length = 0;
    char *text = tn__malloc(room);
    while (text) {
        ssize_t got = read(fd, text + length, room - length);
        if (got == 0) {
            text[length] = 0;
            *bytes = length;
            return text;
        }
        if (got < 0 && errno != EINTR) {
            break;
        }
        length += got > 0 ? (size_t)got : 0;
        if (length == room) {
            char *larger = room <= SIZE_MAX / 2 ? tn__realloc(text, room * 2) : NULL;
            if (!larger) {
                errno = ENOMEM;
                break;
            }
            text = larger;
            room *= 2;
        }
    }
    int why = text ? errno : ENOMEM;
    free(text);
    errno = why;
    return NULL;
}

char *tn_text_read(const char *path, size_t *bytes) {
    size_t ignored = 0;
    bytes = bytes ? bytes : &ignored;
    *bytes = 0;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat about;
    char *text = NULL;
    if (!path) {
        errno = EINVAL;
    } else if (fd >= 0 && fstat(fd, &about) == 0) {
        text = read_all(fd, about.st_size > 0 ? (size_t)about.st_size : 4096, bytes);
    }
    if (!text) {
        tn__raise(errno == ENOMEM ? TN_ENOMEM : TN_EIO, "text_read", "%s: %s", path ? path : "NULL",
                  strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
    return text;
}

void tn_text_free(char *text) {
    free(text);
}
