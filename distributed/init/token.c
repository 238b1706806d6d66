/* The user's token works as the cookie of Erlang or the key of ssh: made once, found by every
 * program of this user on every host with this home. */
#define _GNU_SOURCE
#include "distributed/init/token.h"

#include "core/descriptor.h"
#include "core/error.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <nettle/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANDOM_BYTES = 32, PATH_SIZE = PATH_MAX };

static void write_hex(char *text, const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Whether the open file can be this user's secret. */
static tn_status check_secret(int fd, const char *path) {
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return tn__raise(TN_EIO, NULL, "%.150s: %s", path, strerror(errno));
    }
    if (!S_ISREG(about.st_mode)) {
        return tn__raise(TN_EIO, NULL, "%.150s is not a regular file: a token is not read from it",
                         path);
    }
    if (about.st_uid != geteuid()) {
        return tn__raise(TN_EIO, NULL,
                         "%.150s belongs to user %u, not to %u: the token file must be yours", path,
                         (unsigned)about.st_uid, (unsigned)geteuid());
    }
    if (about.st_mode & (S_IRWXG | S_IRWXO)) {
        return tn__raise(TN_EIO, NULL,
                         "others can access %.120s (mode %04o): make a new token, and chmod 600 it",
                         path, (unsigned)about.st_mode & 07777u);
    }
    return TN_OK;
}

/* Removes the end of the line. */
static tn_status check_text(char *text, const char *path) {
    size_t length = strlen(text);
    while (length && strchr("\r\n", text[length - 1])) {
        text[--length] = 0;
    }
    if (length == 0 || length >= TN__TOKEN) {
        return tn__raise(TN_EFORMAT, NULL, "the token in %.120s has %s%d characters (1 to %d)",
                         path, length ? "more than " : "", length ? TN__TOKEN - 1 : 0,
                         TN__TOKEN - 1);
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] < ' ' || text[i] > '~') {
            return tn__raise(TN_EFORMAT, NULL,
                             "the token in %.120s is not one line of printable ASCII", path);
        }
    }
    return TN_OK;
}

static tn_status read_secret(int fd, const char *path, char token[TN__TOKEN]) {
    char text[TN__TOKEN + 3];
    size_t bytes = 0;
    for (ssize_t got = 1; got > 0 && bytes < sizeof(text) - 1; bytes += (size_t)got) {
        got = read(fd, text + bytes, sizeof(text) - 1 - bytes);
        if (got < 0) { return tn__raise(TN_EIO, NULL, "%.150s: %s", path, strerror(errno)); }
    }
    text[bytes] = 0;
    if (strlen(text) != bytes) {
        return tn__raise(TN_EFORMAT, NULL, "the token in %.120s contains a zero byte", path);
    }
    tn_status status = check_text(text, path);
    if (status == TN_OK) { memcpy(token, text, strlen(text) + 1); }
    return status;
}

static int open_secret(const char *path) {
    return tn__above_streams(open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

/* Closes fd; below 0: open_secret has failed. */
static tn_status take_secret(int fd, const char *path, char token[TN__TOKEN]) {
    if (fd < 0) {
        return tn__raise(TN_EIO, NULL, "the token file %.150s: %s", path,
                         errno == ELOOP ? "a symbolic link is not followed" : strerror(errno));
    }
    tn_status status = check_secret(fd, path);
    status = status == TN_OK ? read_secret(fd, path, token) : status;
    close(fd);
    return status;
}

tn_status tn__token_read(const char *path, char token[TN__TOKEN]) {
    return take_secret(open_secret(path), path, token);
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* $XDG_CONFIG_HOME counts if it is an absolute path, as its specification says. False: there is no
 * such place. */
static bool user_path(char path[PATH_SIZE]) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool has_config = config && *config == '/';
    const char *base = has_config ? config : home;
    int length = base && *base == '/' ? snprintf(path, PATH_SIZE, "%s%s/tern/token", base,
                                                 has_config ? "" : "/.config")
                                      : -1;
    return length > 0 && length < PATH_SIZE - 16;
}

/* Makes the missing folders above the file, for this user only. */
static void make_folders(const char *path) {
    char folder[PATH_SIZE];
    snprintf(folder, sizeof(folder), "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(folder, 0700); /* a missing folder is an error when the file is made */
        *slash = '/';
    }
}

bool tn__token_random(char digits[TN__TOKEN], size_t bytes) {
    uint8_t random[TN__TOKEN / 2];
    bool fine = getrandom(random, bytes, 0) == (ssize_t)bytes;
    if (fine) { write_hex(digits, random, bytes); }
    return fine;
}

static bool write_secret(int fd) {
    char text[TN__TOKEN];
    if (!tn__token_random(text, RANDOM_BYTES)) { return false; }
    text[2 * RANDOM_BYTES] = '\n';
    ssize_t written = write(fd, text, 2 * RANDOM_BYTES + 1);
    if (written >= 0 && written != 2 * RANDOM_BYTES + 1) { errno = ENOSPC; }
    return written == 2 * RANDOM_BYTES + 1 && fsync(fd) == 0;
}

/* The file appears whole, under a name that is still free: a second process reads the first
 * one's. */
static tn_status make_secret(const char *path) {
    char new_path[PATH_SIZE];
    make_folders(path);
    snprintf(new_path, sizeof(new_path), "%.*s.XXXXXX", PATH_SIZE - 8, path);
    int fd = tn__above_streams(mkostemp(new_path, O_CLOEXEC));
    bool made = fd >= 0 && write_secret(fd) && (link(new_path, path) == 0 || errno == EEXIST);
    int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(new_path);
    }
    return made ? TN_OK
                : tn__raise(TN_EIO, NULL, "this user's token cannot be made in %.120s: %s", path,
                            strerror(error));
}

tn_status tn__token_user(char token[TN__TOKEN]) {
    char path[PATH_SIZE];
    if (!user_path(path)) {
        return tn__raise(
            TN_EIO, NULL,
            "no place for this user's token: neither XDG_CONFIG_HOME nor HOME is a usable path");
    }
    int fd = open_secret(path);
    if (fd < 0 && errno == ENOENT) {
        if (make_secret(path) != TN_OK) { return tn_error(); }
        fd = open_secret(path);
    }
    return take_secret(fd, path, token);
}

void tn__token_derive(const char *secret, const char *job, char token[TN__TOKEN]) {
    uint8_t digest[SHA256_DIGEST_SIZE];
    struct hmac_sha256_ctx hmac;
    hmac_sha256_set_key(&hmac, strlen(secret), (const uint8_t *)secret);
    hmac_sha256_update(&hmac, strlen(job), (const uint8_t *)job);
    hmac_sha256_digest(&hmac, sizeof(digest), digest);
    write_hex(token, digest, sizeof(digest));
}
