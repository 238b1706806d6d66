/* The file store: a log on a file system that all ranks see. A change appends a record; every
 * process reads the new ones and keeps a table of them.
 *
 * Two things are locked with fcntl, both beyond the end of the log; such locks also work between
 * hosts:
 *
 *     LOG       shared to read, exclusive to append; held for one call
 *     PRESENCE  shared, as long as a store is open
 *
 * A log that is not empty while no one is present was left by a job that died: it is refused, since
 * its keys would be taken for this job's. The last process to leave removes the file.
 *
 *     log      "TERNLOG1", records
 *     record   u8 kind, u8 key length, u16 0, u32 value length;
 *              key; value (little-endian)
 */
#define _GNU_SOURCE
#include "distributed/store/store.h"

#include "core/descriptor.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 8, HEAD = 8, RECORD_SET = 1, RECORD_REMOVE = 2 };

static const char magic[MAGIC + 1] = "TERNLOG1";

#define LOG ((off_t)1 << 62)
#define PRESENCE (LOG + 1)
#define FIRST_PAUSE 0.001
#define LONGEST_PAUSE 0.05
#define TABLE_BYTES ((size_t)1 << 30)

typedef struct file_store {
    tn_store base;
    pthread_mutex_t mutex; /* for the threads of this process */
    char *path;
    int fd;
    off_t known; /* offset in the log up to which the table is current */
    tn__table table;
} file_store;

/* ---- Locks ----------------------------------------------------------------------------------- */

static bool set_lock(int fd, short type, off_t at) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* Whether another process holds the lock. */
static bool is_locked(int fd, off_t at) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static tn_status fail_file(const file_store *f, char *why, const char *doing) {
    return tn__why(why, errno == ENOMEM ? TN_ENOMEM : TN_EIO, "%.150s: %s: %s", f->path, doing,
                   strerror(errno));
}

static tn_status lock_log(const file_store *f, short type, double deadline, char *why) {
    double pause = FIRST_PAUSE, begin = tn__now();
    while (!set_lock(f->fd, type, LOG)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            return fail_file(f, why, "locking");
        }
        if (!tn__rest_until(&pause, LONGEST_PAUSE, deadline)) {
            return tn__why(why, TN_EPEER, "%.150s: another rank has held its lock for %.1f seconds",
                           f->path, tn__now() - begin);
        }
    }
    return TN_OK;
}

/* ---- The log --------------------------------------------------------------------------------- */

/* 0, or an errno; EPIPE if the file ends first. */
static int read_at(int fd, void *data, size_t bytes, off_t at) {
    char *to = data;
    while (bytes) {
        ssize_t got = pread(fd, to, bytes, at);
        if (got > 0) {
            to += got;
            at += got;
            bytes -= (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            return got == 0 ? EPIPE : errno;
        }
    }
    return 0;
}

static int write_at(int fd, const void *data, size_t bytes, off_t at) {
    const char *from = data;
    while (bytes) {
        ssize_t put = pwrite(fd, from, bytes, at);
        if (put > 0) {
            from += put;
            at += put;
            bytes -= (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            return put == 0 ? EIO : errno;
        }
    }
    return 0;
}

typedef struct record {
    int kind;
    size_t key_bytes, value_bytes;
} record;

static void write_head(uint8_t head[HEAD], record r) {
    for (int i = 0; i < HEAD; i++) {
        head[i] = i == 0   ? (uint8_t)r.kind
                  : i == 1 ? (uint8_t)r.key_bytes
                  : i < 4  ? 0
                           : (uint8_t)(r.value_bytes >> 8 * (i - 4));
    }
}

static bool read_head(const uint8_t head[HEAD], record *r) {
    *r = (record){.kind = head[0],
                  .key_bytes = head[1],
                  .value_bytes = (size_t)head[4] | (size_t)head[5] << 8 | (size_t)head[6] << 16 |
                                 (size_t)head[7] << 24};
    return (r->kind == RECORD_SET || r->kind == RECORD_REMOVE) && r->key_bytes > 0 &&
           r->value_bytes <= (r->kind == RECORD_SET ? TN_STORE_VALUE : 0) && !head[2] && !head[3];
}

static tn_status apply_record(file_store *f, record r, char *body, char *why) {
    char key[TN_STORE_KEY + 1];
    memcpy(key, body, r.key_bytes);
    key[r.key_bytes] = 0;
    if (strlen(key) != r.key_bytes || !tn__store_key(key)) {
        return tn__why(why, TN_EFORMAT, "%.150s: byte %lld: the key is malformed", f->path,
                       (long long)f->known);
    }
    if (r.kind == RECORD_REMOVE) {
        tn__table_remove(&f->table, key);
        return TN_OK;
    }
    return tn__table_set(&f->table, key, body + r.key_bytes, r.value_bytes, why);
}

/* Reads one record at f->known. EPIPE in *error: it is incomplete. */
static tn_status read_record(file_store *f, int *error, char *why) {
    uint8_t head[HEAD];
    record r;
    *error = read_at(f->fd, head, sizeof(head), f->known);
    if (*error) {
        return TN_EIO;
    }
    if (!read_head(head, &r)) {
        return tn__why(why, TN_EFORMAT, "%.150s: byte %lld: not a store record", f->path,
                       (long long)f->known);
    }
    char *body = tn__malloc(r.key_bytes + r.value_bytes);
    if (!body) {
        return tn__why(why, TN_ENOMEM, "%.150s: no memory for a value of %zu bytes", f->path,
                       r.value_bytes);
    }
    *error = read_at(f->fd, body, r.key_bytes + r.value_bytes, f->known + HEAD);
    tn_status status = *error ? TN_EIO : apply_record(f, r, body, why);
    free(body);
    if (status == TN_OK) {
        f->known += (off_t)(HEAD + r.key_bytes + r.value_bytes);
    }
    return status;
}

/* Brings the table up to date. The log is locked. An incomplete record was left by a rank that was
 * killed while it wrote: the next append overwrites it. */
static tn_status read_log(file_store *f, char *why) {
    for (;;) {
        int error = 0;
        tn_status status = read_record(f, &error, why);
        if (error == EPIPE) {
            return TN_OK;
        }
        if (error) {
            errno = error;
            return fail_file(f, why, "reading");
        }
        if (status != TN_OK) {
            return status;
        }
    }
}

/* Appends a record whole or not at all: part of one is ignored, and overwritten by the next. The
 * log is locked, and read to its end. */
static tn_status append_record(file_store *f, int kind, const char *key, const void *data,
                               size_t bytes, char *why) {
    record r = {.kind = kind, .key_bytes = strlen(key), .value_bytes = bytes};
    uint8_t head[HEAD + TN_STORE_KEY];
    size_t before = HEAD + r.key_bytes;
    write_head(head, r);
    memcpy(head + HEAD, key, r.key_bytes);
    int error = ftruncate(f->fd, f->known) == 0 ? 0 : errno;
    error = error ? error : write_at(f->fd, head, before, f->known);
    error = error ? error : write_at(f->fd, data, bytes, f->known + (off_t)before);
    if (error) {
        errno = error;
        return fail_file(f, why, "writing");
    }
    f->known += (off_t)(before + bytes);
    return TN_OK;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static void leave_file(file_store *f) {
    set_lock(f->fd, F_UNLCK, LOG);
    pthread_mutex_unlock(&f->mutex);
}

/* Locks, and reads new records. Unless it fails, leave_file must follow. */
static tn_status enter_file(file_store *f, bool writes, double deadline, char *why) {
    pthread_mutex_lock(&f->mutex);
    tn_status status = lock_log(f, writes ? F_WRLCK : F_RDLCK, deadline, why);
    if (status == TN_OK) {
        status = read_log(f, why);
    }
    if (status != TN_OK) {
        leave_file(f);
    }
    return status;
}

/* The table no longer matches the log: it is read again. */
static void forget_file(file_store *f) {
    tn__table_clear(&f->table);
    f->known = MAGIC;
}

/* Appends the table's new value to the log. */
static tn_status log_value(file_store *f, const char *key, char *why) {
    const tn_store_value *value = tn__table_find(&f->table, key);
    tn_status status = value ? append_record(f, RECORD_SET, key, value->data, value->bytes, why)
                             : append_record(f, RECORD_REMOVE, key, NULL, 0, why);
    if (status != TN_OK) {
        forget_file(f);
    }
    return status;
}

static tn_status file_set(tn_store *s, const char *key, const void *data, size_t bytes,
                          double deadline, char *why) {
    file_store *f = (file_store *)s;
    tn_status status = enter_file(f, true, deadline, why);
    if (status != TN_OK) {
        return status;
    }
    status = tn__table_set(&f->table, key, data, bytes, why);
    if (status == TN_OK) {
        status = log_value(f, key, why);
    }
    leave_file(f);
    return status;
}

static tn_status file_get(tn_store *s, const char *key, tn_store_value *value, double deadline,
                          char *why) {
    file_store *f = (file_store *)s;
    double pause = FIRST_PAUSE, begin = tn__now();
    do {
        tn_status status = enter_file(f, false, fmax(deadline, tn__now() + LONGEST_PAUSE), why);
        if (status != TN_OK) {
            return status;
        }
        const tn_store_value *found = tn__table_find(&f->table, key);
        status = found ? tn__value_copy(found, value, why) : TN_OK;
        leave_file(f);
        if (found) {
            return status;
        }
    } while (tn__rest_until(&pause, LONGEST_PAUSE, deadline));
    return tn__why(why, TN_EPEER, "\"%.100s\" was not set within %.1f seconds (in %.80s)", key,
                   tn__now() - begin, f->path);
}

static tn_status file_add(tn_store *s, const char *key, int64_t amount, int64_t *result,
                          double deadline, char *why) {
    file_store *f = (file_store *)s;
    tn_status status = enter_file(f, true, deadline, why);
    if (status != TN_OK) {
        return status;
    }
    status = tn__table_add(&f->table, key, amount, result, why);
    if (status == TN_OK) {
        status = log_value(f, key, why);
    }
    leave_file(f);
    return status;
}

static tn_status file_compare_set(tn_store *s, const char *key, const tn_store_value *expected,
                                  const tn_store_value *desired, tn_store_value *now,
                                  double deadline, char *why) {
    file_store *f = (file_store *)s;
    tn_status status = enter_file(f, true, deadline, why);
    if (status != TN_OK) {
        return status;
    }
    tn_store_value found = {0};
    status = tn__table_compare_set(&f->table, key, expected, desired, &found, why);
    if (status == TN_OK) {
        status = tn__value_copy(&found, now, why);
    }
    if (status != TN_OK) {
        forget_file(f);
    } else if (found.bytes) { /* even if nothing has changed: a redundant record does no harm */
        status = log_value(f, key, why);
    }
    leave_file(f);
    return status;
}

static tn_status file_check(tn_store *s, const char *key, bool *exists, double deadline,
                            char *why) {
    file_store *f = (file_store *)s;
    tn_status status = enter_file(f, false, deadline, why);
    if (status == TN_OK) {
        *exists = tn__table_find(&f->table, key) != NULL;
        leave_file(f);
    }
    return status;
}

static tn_status file_remove(tn_store *s, const char *key, bool *existed, double deadline,
                             char *why) {
    file_store *f = (file_store *)s;
    tn_status status = enter_file(f, true, deadline, why);
    if (status != TN_OK) {
        return status;
    }
    *existed = tn__table_remove(&f->table, key);
    if (*existed) {
        status = log_value(f, key, why);
    }
    leave_file(f);
    return status;
}

/* ---- Coming and going ------------------------------------------------------------------------ */

/* Whether the path still names the open file: the last of other ranks may have removed it. */
static bool is_at_path(const file_store *f) {
    struct stat by_name, by_fd;
    return stat(f->path, &by_name) == 0 && fstat(f->fd, &by_fd) == 0 &&
           by_name.st_dev == by_fd.st_dev && by_name.st_ino == by_fd.st_ino;
}

/* With the log locked: writes the header of a new one, or checks that of an old one. */
static tn_status check_beginning(const file_store *f, char *why) {
    char found[MAGIC];
    int error = read_at(f->fd, found, sizeof(found), 0);
    struct stat about;
    if (fstat(f->fd, &about) != 0) {
        return fail_file(f, why, "fstat");
    }
    if (about.st_size == 0) {
        error = write_at(f->fd, magic, MAGIC, 0);
        errno = error;
        return error ? fail_file(f, why, "writing") : TN_OK;
    }
    if (error || memcmp(found, magic, MAGIC) != 0) {
        return tn__why(why, TN_EFORMAT, "%.150s: it is not a store's file", f->path);
    }
    if (!is_locked(f->fd, PRESENCE)) {
        return tn__why(why, TN_ESTATE,
                       "%.150s: an earlier job has used this file and was not ended properly "
                       "(remove it, or choose another)",
                       f->path);
    }
    return TN_OK;
}

/* Anyone who may write the file is in the job. Another user may have made it first, in a shared
 * folder, writable for all. Some file systems show every file as another user's, but a store's file
 * is not writable for all there. */
static tn_status check_owner(const file_store *f, char *why) {
    struct stat about;
    if (fstat(f->fd, &about) != 0) {
        return fail_file(f, why, "fstat");
    }
    if (about.st_uid != geteuid() && (about.st_mode & (S_IWGRP | S_IWOTH))) {
        return tn__why(why, TN_EIO,
                       "%.150s belongs to user %u, who lets others write it (mode %04o): choose a "
                       "file in a folder of your own",
                       f->path, (unsigned)about.st_uid, (unsigned)about.st_mode & 07777u);
    }
    return TN_OK;
}

/* Sets *again if the file was removed in between. */
static tn_status open_once(file_store *f, double deadline, bool *again, char *why) {
    *again = false;
    f->fd = tn__above_streams(open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (f->fd < 0) {
        return fail_file(f, why, "opening");
    }
    tn_status status = check_owner(f, why);
    status = status == TN_OK ? lock_log(f, F_WRLCK, deadline, why) : status;
    if (status != TN_OK) {
        return status;
    }
    *again = !is_at_path(f);
    status = *again ? TN_EIO : check_beginning(f, why);
    if (status == TN_OK && !set_lock(f->fd, F_RDLCK, PRESENCE)) {
        status = fail_file(f, why, "locking");
    }
    set_lock(f->fd, F_UNLCK, LOG);
    return status;
}

static tn_status open_file(file_store *f, double deadline, char *why) {
    for (;;) {
        bool again;
        tn_status status = open_once(f, deadline, &again, why);
        if (!again) {
            return status;
        }
        close(f->fd);
        f->fd = -1;
        if (tn__now() > deadline) {
            return tn__why(why, TN_EIO, "%.150s: it keeps being removed", f->path);
        }
    }
}

static void file_free(file_store *f) {
    if (f->fd >= 0) {
        close(f->fd);
    }
    tn__table_clear(&f->table);
    pthread_mutex_destroy(&f->mutex);
    free(f->path);
    free(f);
}

static void file_destroy(tn_store *s) {
    file_store *f = (file_store *)s;
    char why[TN_STORE_WHY];
    if (lock_log(f, F_WRLCK, tn__now() + 1, why) == TN_OK) {
        set_lock(f->fd, F_UNLCK, PRESENCE);
        if (!is_locked(f->fd, PRESENCE) && is_at_path(f)) {
            unlink(f->path);
        }
    }
    file_free(f);
}

tn_store *tn_file_store(const char *path) {
    char why[TN_STORE_WHY] = "";
    if (tn__pending()) {
        return NULL;
    }
    if (!path || !*path) {
        tn__raise(TN_EVALUE, "file_store", "the path is %s", path ? "empty" : "NULL");
        return NULL;
    }
    file_store *f = tn__calloc_for(1, sizeof(*f), "file_store");
    char *copy = tn__strdup_for(path, "file_store");
    if (!f || !copy) {
        free(f);
        free(copy);
        return NULL;
    }
    *f = (file_store){.base = {.kind = "file",
                               .refs = 1,
                               .process = tn__process(),
                               .set = file_set,
                               .get = file_get,
                               .add = file_add,
                               .compare_set = file_compare_set,
                               .check = file_check,
                               .remove = file_remove,
                               .destroy = file_destroy},
                      .path = copy,
                      .fd = -1,
                      .known = MAGIC,
                      .table.limit = TABLE_BYTES};
    pthread_mutex_init(&f->mutex, NULL);
    tn_status status = open_file(f, tn__now() + TN_STORE_TIMEOUT, why);
    if (status != TN_OK) {
        tn__raise(status, "file_store", "%s", why);
        file_free(f);
        return NULL;
    }
    return &f->base;
}
