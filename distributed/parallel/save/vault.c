/* A rank's vault (vault.h). */
#define _GNU_SOURCE 1 /* fallocate */
#include "distributed/parallel/save/vault.h"

#include "core/descriptor.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "core/reader.h"
#include "distributed/init/host.h"
#include "io/safetensors.h"
#include "tern/distributed.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char vault_magic[16] = "tern-vault-1";

/* ---- Opening --------------------------------------------------------------------------------- */

/* The n-th number of TERN_VAULT; -1: there is none. */
static long vault_number(int n) {
    const char *at = getenv("TERN_VAULT");
    long number = -1;
    for (int i = 0; at && i <= n; i++) {
        char *end;
        number = strtol(at, &end, 10);
        if (end == at || number < 0) {
            return -1;
        }
        at = end;
    }
    return number;
}

/* The n-th block of this host; -1: there is none. */
static int open_block(int n) {
    long pid = vault_number(0), number = vault_number(2 + n);
    if (pid <= 0 || number < 0) {
        return -1;
    }
    char path[64], target[64] = "";
    struct stat about;
    snprintf(path, sizeof(path), "/proc/%ld/fd/%ld", pid, number);
    /* the number may be another file's by now */
    static const char name[] = "/memfd:tern-vault";
    if (readlink(path, target, sizeof(target) - 1) < 0 ||
        strncmp(target, name, sizeof(name) - 1) != 0) {
        return -1;
    }
    int fd = tn__above_streams(open(path, O_RDWR | O_CLOEXEC));
    int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : 0;
    if (fd >= 0 && (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) ||
                    about.st_uid != geteuid() || seals < 0 || !(seals & F_SEAL_SHRINK))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void explain_lack(char *why, const char *format, ...) TN_PRINTF(2, 3);
static void explain_lack(char *why, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, TN__VAULT_WHY, format, arguments);
    va_end(arguments);
}

/* The same for processes that open the same blocks: those of one launcher, on one host. */
static void host_digest(const char *blocks, char *digits) {
    char text[TN__HOST_KEY + TN__DIGEST_DIGITS + 1];
    tn__host_key(text);
    tn__digest_of(blocks, strlen(blocks), text + strlen(text));
    tn__digest_of(text, strlen(text), digits);
}

void tn__vault_open(tn__vault *v, const char *folder) {
    if (v->opened) {
        return;
    }
    *v = (tn__vault){.opened = true, .process = tn__process(), .own = {-1, -1}};
    tn__digest_of(folder, strlen(folder), v->folder);
    const char *blocks = getenv("TERN_VAULT");
    if (!blocks) {
        explain_lack(v->why, "no launcher keeps memory for it (start the program with `tern run`)");
        return;
    }
    for (int i = 0; i < 2; i++) {
        v->own[i] = open_block(2 * tn_local_rank() + i);
    }
    host_digest(blocks, v->host);
    if (v->own[0] < 0 || v->own[1] < 0) {
        tn__vault_close(v);
        explain_lack(v->why, "the memory that its launcher keeps for it cannot be opened");
    } else if (flock(v->own[0], LOCK_EX | LOCK_NB) != 0) {
        tn__vault_close(v);
        explain_lack(v->why, "another saver or program of this rank has its memory");
    }
}

void tn__vault_close(tn__vault *v) {
    if (v->opened && v->own[0] >= 0 && !tn__inherited(v->process)) {
        flock(v->own[0], LOCK_UN); /* forked children have it too: closing would not be enough */
    }
    for (int i = 0; v->opened && i < 2; i++) {
        if (v->own[i] >= 0) {
            close(v->own[i]);
        }
        v->own[i] = -1;
    }
}

/* ---- Heads ----------------------------------------------------------------------------------- */

static void head_digest(const tn__vault_head *h, char *digits) {
    tn__digest_of(h, offsetof(tn__vault_head, digest), digits);
}

bool tn__vault_head_sound(const tn__vault_head *h) {
    char digits[TN__DIGEST_DIGITS + 1];
    head_digest(h, digits);
    return memcmp(h->magic, vault_magic, sizeof(vault_magic)) == 0 &&
           memcmp(digits, h->digest, sizeof(digits)) == 0 && h->image >= 0 && h->tail >= 0 &&
           h->image <= INT64_MAX / 16 && h->tail <= INT64_MAX / 16; /* sums of some fit */
}

bool tn__vault_head_of(int fd, tn__vault_head *h) {
    struct stat about;
    return fd >= 0 && pread(fd, h, sizeof(*h), 0) == sizeof(*h) && tn__vault_head_sound(h) &&
           fstat(fd, &about) == 0 && TN__VAULT_BEGIN + h->image + h->tail <= about.st_size;
}

static bool is_ours(const tn__vault *v, const tn__vault_head *h) {
    return memcmp(h->folder, v->folder, sizeof(v->folder)) == 0;
}

/* The block's head, if it is of this saver's folder; else zeros. */
static bool read_head(const tn__vault *v, int fd, tn__vault_head *h) {
    bool ours = tn__vault_head_of(fd, h) && is_ours(v, h);
    if (!ours) {
        memset(h, 0, sizeof(*h));
    }
    return ours;
}

void tn__vault_heads(const tn__vault *v, tn__buffer *heads) {
    for (int n = 0, fd; v->own[0] >= 0 && (fd = open_block(n)) >= 0; n++) {
        tn__vault_head h;
        if (read_head(v, fd, &h)) {
            tn__buffer_add(heads, &h, sizeof(h));
        }
        close(fd);
    }
}

static bool erase_head(int fd) {
    static const char nothing[sizeof(tn__vault_head)];
    return pwrite(fd, nothing, sizeof(nothing), 0) == sizeof(nothing);
}

void tn__vault_forget(const tn__vault *v, int64_t step) {
    for (int n = 0, fd; v->own[0] >= 0 && (fd = open_block(n)) >= 0; n++) {
        tn__vault_head h;
        if (read_head(v, fd, &h) && h.step > step) {
            erase_head(fd);
        }
        close(fd);
    }
}

int tn__vault_find(const tn__vault_head *head) {
    for (int n = 0;; n++) {
        tn__vault_head h;
        int fd = open_block(n);
        if (fd < 0) {
            return -1;
        }
        if (tn__vault_head_of(fd, &h) && memcmp(&h, head, sizeof(h)) == 0) {
            return fd;
        }
        close(fd);
    }
}

/* ---- Room ------------------------------------------------------------------------------------ */

/* The number after `key` in a file of the kernel's; INT64_MAX: there is none. */
static int64_t kernel_number(const char *path, const char *key) {
    size_t bytes;
    char *text = tn__read_whole(path, &bytes, "vault");
    const char *at = text ? strstr(text, key) : NULL;
    char *end = NULL;
    int64_t number = at ? strtoll(at + strlen(key), &end, 10) : 0;
    bool found = at && end != at + strlen(key);
    free(text);
    tn_error_clear();
    return found ? number : INT64_MAX;
}

static int64_t smaller_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What the control groups (version 2) around this process leave. Their page cache is free too. */
static int64_t room_in_groups(void) {
    size_t bytes;
    int64_t room = INT64_MAX;
    char *text = tn__read_whole("/proc/self/cgroup", &bytes, "vault");
    char *group = text ? strstr(text, "0::/") : NULL, path[PATH_MAX];
    if (group) {
        group += 3;
        group[strcspn(group, "\n")] = 0;
    }
    for (char *slash; group && (slash = strrchr(group, '/')) != NULL; *slash = 0) {
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
        int64_t most = kernel_number(path, "");
        if (most != INT64_MAX) {
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
            int64_t now = kernel_number(path, "");
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.stat", group);
            int64_t cache = kernel_number(path, "inactive_file ");
            now -= now == INT64_MAX || cache == INT64_MAX ? 0 : cache;
            room = smaller_of(room, now < most ? most - now : 0);
        }
    }
    free(text);
    tn_error_clear();
    return room;
}

/* What a block lacks of so many bytes. */
static int64_t bytes_lacked(int fd, int64_t bytes) {
    struct stat about;
    int64_t held = fstat(fd, &about) == 0 ? 512 * (int64_t)about.st_blocks : 0;
    return held < bytes ? bytes - held : 0;
}

/* Whether blocks may grow by `more`, one of them to `whole` bytes, on each rank of this host. The
 * kernel would kill a process of the job instead of refusing. */
static bool has_room(char *why, int64_t more, int64_t whole) {
    struct rlimit most;
    const double mega = 1024.0 * 1024;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
        (rlim_t)whole > most.rlim_cur) {
        explain_lack(why, "it needs %.0f MiB, but `ulimit -f` allows files of %.0f MiB",
                     (double)whole / mega, (double)most.rlim_cur / mega);
        return false;
    }
    const char *text = getenv("LOCAL_WORLD_SIZE");
    int64_t ranks = text && atoi(text) > 0 ? atoi(text) : 1;
    int64_t kilo = kernel_number("/proc/meminfo", "MemAvailable:");
    int64_t room = smaller_of(kilo > INT64_MAX / 1024 ? INT64_MAX : kilo * 1024, room_in_groups());
    if (more > 0 && more > (room - room / 16) / ranks) {
        explain_lack(why,
                     "it needs %.0f MiB more on each rank of this host, which has %.0f MiB for all",
                     (double)more / mega, (double)room / mega);
        return false;
    }
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Called when the tensor's turn in the image comes. */
static tn_tensor *give_item(const char *name, void *user) {
    tn__state_item *item = user;
    tn_tensor *t = tn_to(tn_reshape(item->tensor, TN_DIMS(tn_count(item->tensor))), tn_cpu());
    if (!tn_is_inert(t)) {
        tn__digest_of(tn_data(t), (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)),
                      item->digest);
    }
    return t;
}

static int64_t bytes_of(const tn_tensor *t) {
    return t ? tn_count(t) * (int64_t)tn_dtype_size(tn_dtype_of(t)) : 0;
}

/* The image's bytes, at least. */
static int64_t state_bytes(const tn__state *s) {
    int64_t bytes = 0;
    for (int i = 0; i < s->count; i++) {
        bytes += bytes_of(s->items[i].tensor);
    }
    return bytes;
}

static bool write_image(int fd, const tn__vault_save *s, int64_t *bytes) {
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    for (int i = 0; w && i < s->state->count; i++) {
        tn__state_item *item = &s->state->items[i];
        if (item->tensor) {
            tn__safetensors_writer_add_late(w, item->name, TN_DIMS(tn_count(item->tensor)),
                                            tn_dtype_of(item->tensor), give_item, item);
        }
    }
    return tn__safetensors_write_to(w, fd, TN__VAULT_BEGIN, "the launcher's memory", bytes,
                                    s->operation) == TN_OK;
}

/* Digests are known once the image is written. */
static void put_tail(const tn__vault_save *s, tn__buffer *tail) {
    int64_t list = (int64_t)s->list->bytes;
    tn__buffer_add(tail, &list, sizeof(list));
    tn__buffer_add(tail, s->list->at, s->list->bytes);
    for (int i = 0; i < s->state->count; i++) {
        tn__buffer_add(tail, s->state->items[i].digest, TN__DIGEST_DIGITS);
    }
    tn__buffer_text(tail, s->metadata ? s->metadata : "");
}

static bool write_all(int fd, const char *from, size_t bytes, int64_t at) {
    while (bytes > 0) {
        ssize_t put = pwrite(fd, from, bytes, at);
        if (put > 0) {
            from += put;
            at += put;
            bytes -= (size_t)put;
        } else if (put == 0 || errno != EINTR) {
            errno = put == 0 ? EIO : errno;
            return false;
        }
    }
    return true;
}

/* Which of two blocks a save goes to. */
static int choose_block(const tn__vault *v, const int block[2]) {
    tn__vault_head heads[2];
    for (int i = 0; i < 2; i++) {
        read_head(v, block[i], &heads[i]);
    }
    int older = heads[0].magic[0] && (!heads[1].magic[0] || heads[1].step < heads[0].step);
    if (heads[older].magic[0] && heads[older].save == v->whole) {
        older = !older; /* steps may also go down, and a save may fail on some ranks */
    }
    return older;
}

/* Gives the memory of a block back. */
static void free_block(int fd) {
    struct stat about = {0};
    erase_head(fd);
    if (fstat(fd, &about) == 0) { /* and the page that it ends in */
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  about.st_size + sysconf(_SC_PAGESIZE));
    }
}

/* False: an error is pending, or errno says why. */
static bool write_block(const tn__vault *v, int fd, const tn__vault_save *s) {
    tn__buffer tail = {.operation = s->operation};
    tn__vault_head h = {.step = s->step, .save = s->save, .ranks = s->ranks, .rank = s->rank};
    errno = 0;
    bool wrote = erase_head(fd) && write_image(fd, s, &h.image);
    if (wrote) {
        put_tail(s, &tail);
        h.tail = (int64_t)tail.bytes;
        memcpy(h.magic, vault_magic, sizeof(h.magic));
        memcpy(h.folder, v->folder, sizeof(h.folder));
        tn__digest_of(tail.at, tail.bytes, h.tail_digest);
        head_digest(&h, h.digest);
        wrote = !tail.failed && write_all(fd, tail.at, tail.bytes, TN__VAULT_BEGIN + h.image) &&
                tn__vault_keep(fd, &h);
    }
    tn__buffer_free(&tail);
    return wrote;
}

bool tn__vault_write(tn__vault *v, const tn__vault_save *s) {
    v->newest = choose_block(v, v->own);
    int fd = v->own[v->newest];
    int64_t whole = TN__VAULT_BEGIN + state_bytes(s->state) + 2 * (int64_t)s->list->bytes +
                    (int64_t)strlen(s->metadata ? s->metadata : "");
    bool wrote = has_room(v->why, bytes_lacked(fd, whole), whole);
    if (wrote && !write_block(v, fd, s)) {
        int why = errno;
        explain_lack(v->why, "%s", tn__pending() ? tn_error_message() : strerror(why));
        wrote = false;
    }
    if (!wrote) { /* keeps the other save */
        free_block(fd);
        tn__vault_close(v);
        tn_error_clear();
    }
    return wrote;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Opens the two blocks for copies of this place; false: there are none. */
static bool open_copies(int place, int block[2]) {
    int first = 2 * ((int)vault_number(1) + place);
    block[0] = open_block(first);
    block[1] = block[0] < 0 ? -1 : open_block(first + 1);
    if (block[0] >= 0 && block[1] < 0) {
        close(block[0]);
    }
    return block[1] >= 0;
}

/* Whether there is room for a copy of `whole` bytes, for the next one, and for this rank's next
 * save: copies must not leave saves without room. */
static bool copy_has_room(const tn__vault *v, const int block[2], int64_t whole, char *why) {
    struct stat newest = {0};
    fstat(v->own[v->newest], &newest);
    int64_t more = bytes_lacked(v->own[!v->newest], 512 * (int64_t)newest.st_blocks);
    return has_room(why, more + bytes_lacked(block[0], whole) + bytes_lacked(block[1], whole),
                    whole);
}

/* False with errno. The pages are there afterwards: writing to them cannot fail. */
static bool allocate_block(int fd, int64_t bytes) {
    int status;
    do {
        status = fallocate(fd, 0, 0, bytes);
    } while (status != 0 && errno == EINTR);
    return status == 0;
}

int tn__vault_take(const tn__vault *v, int place, const tn__vault_head *head, char *why) {
    int block[2];
    if (place >= TN__VAULT_PLACES || !open_copies(place, block)) {
        explain_lack(why, "its launcher keeps no memory for copies of local rank %d", place);
        return -1;
    }
    int taken = choose_block(v, block), fd = block[taken];
    int64_t whole = TN__VAULT_BEGIN + head->image + head->tail;
    bool room = copy_has_room(v, block, whole, why);
    if (room && !(erase_head(fd) && allocate_block(fd, whole))) {
        explain_lack(why, "%s", strerror(errno));
        room = false;
    }
    if (!room) {
        free_block(fd);
    }
    close(block[!taken]);
    if (!room) {
        close(fd);
    }
    return room ? fd : -1;
}

bool tn__vault_keep(int fd, const tn__vault_head *head) {
    return write_all(fd, (const char *)head, sizeof(*head), 0);
}

void tn__vault_drop_copies(const tn__vault *v) {
    for (int place = 0, block[2]; v->own[0] >= 0 && open_copies(place, block); place++) {
        for (int i = 0; i < 2; i++) {
            tn__vault_head h;
            bool holds = tn__vault_head_of(block[i], &h);
            /* nothing: also a copy that did not arrive */
            if (!holds || (is_ours(v, &h) && h.save != v->whole)) {
                free_block(block[i]);
            }
            close(block[i]);
        }
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

char *tn__vault_tail(int fd, const tn__vault_head *head, const char *operation) {
    char digits[TN__DIGEST_DIGITS + 1], *tail = NULL;
    if (fd >= 0) {
        tail = tn__malloc_for((size_t)head->tail + 1, operation);
    }
    if (tail && pread(fd, tail, (size_t)head->tail, TN__VAULT_BEGIN + head->image) == head->tail) {
        tail[head->tail] = 0;
        tn__digest_of(tail, (size_t)head->tail, digits);
        if (memcmp(digits, head->tail_digest, sizeof(digits)) == 0) {
            return tail;
        }
    }
    free(tail);
    if (!tn__pending()) {
        tn__raise(TN_EFORMAT, operation,
                  "step %" PRId64 " in memory: the list of rank %" PRId64 " is damaged", head->step,
                  head->rank);
    }
    return NULL;
}
