/* A disk that forgets what was not synced.
 *
 * Preloaded into a node, this library stands between the node and its data directory. It remembers how to take back
 * every change that no sync has made durable, counts the changes, and at the one it was told to cuts the power: changes
 * that were not synced are taken back, all or some of them, and the process is killed. What the node finds at its next
 * start is what a machine would have kept:
 *
 *   - the bytes of a file are durable once fsync or fdatasync of that file has returned;
 *   - names (a file made, renamed or removed, a folder made) are durable once their folder was synced;
 *   - of what was not synced any part may be there: each sector of 512 bytes and each name decides by itself.
 *
 * Settings, from the environment:
 *   POWER_ROOT   the folder that is watched
 *   POWER_CUT    the change at which the power goes; 0 for never
 *   POWER_KEEP   how many of 100 changes that were not synced are kept all the same
 *   POWER_SEED   which of them
 *   POWER_LIES   part of a path: syncs of such files do nothing (to see that the judge notices)
 *   POWER_COUNT  a file that is written when the process ends by itself: how many changes there were
 *
 * Seen are the calls of the C library, as Rust's standard library makes them. A rename that a library makes by a bare
 * system call is not seen, and counts as durable at once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SECTOR 512

enum kind { WRITE, TRUNCATE, CREATE, RENAME, UNLINK, MKDIR, RMDIR };

/* One change that is not durable yet. */
struct change {
    enum kind kind;
    int alive;              /* 0 once it is durable */
    ino_t inode;            /* of the file written, or of the folder that holds the name */
    int fd;                 /* of the file written, our own; one for all changes of a file */
    off_t offset, size;     /* what was written where; for TRUNCATE the new length is `offset` */
    off_t length_before;
    char *before, *after;   /* the bytes that were there (as far as the file reached), and the new ones */
    size_t before_size;
    char *path, *target;
    char *saved;            /* a second name of what this change hides */
};

/* The files with changes that are not durable. */
struct file {
    ino_t inode;
    int fd;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file files[4096];
static size_t file_count;
static struct change **changes;
static size_t count, room;
static unsigned long done, cut_at, saved_names;
static unsigned keep;
static uint64_t random_state = 88172645463325252ull;
static char root[PATH_MAX], attic[PATH_MAX];
static const char *lies;
static __thread int inside;

#define REAL(name) ((__typeof__(&name))real_##name())
#define FIND(name) \
    static void *real_##name(void) { \
        static void *found; \
        if (!found) found = dlsym(RTLD_NEXT, #name); \
        return found; \
    }
FIND(open) FIND(openat) FIND(write) FIND(pwrite) FIND(writev) FIND(ftruncate) FIND(fsync) FIND(fdatasync)
FIND(rename) FIND(unlink) FIND(unlinkat) FIND(mkdir) FIND(rmdir) FIND(copy_file_range) FIND(sendfile) FIND(fallocate)

static void fail(const char *what) {
    dprintf(2, "power: %s: %s\n", what, strerror(errno));
    abort();
}

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int kept(void) { return next_random() % 100 < keep; }

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("POWER_ROOT");
    if (!folder || !realpath(folder, root)) {
        root[0] = 0;
        return;
    }
    snprintf(attic, sizeof attic, "%.4000s.attic", root);
    REAL(mkdir)(attic, 0700);
    cut_at = strtoul(getenv("POWER_CUT") ?: "0", NULL, 10);
    keep = strtoul(getenv("POWER_KEEP") ?: "0", NULL, 10);
    random_state ^= strtoul(getenv("POWER_SEED") ?: "1", NULL, 10) * 0x9E3779B97F4A7C15ull;
    for (int i = 0; i < 8; i++) next_random();
    lies = getenv("POWER_LIES");
}

__attribute__((destructor)) static void end(void) {
    const char *file = getenv("POWER_COUNT");
    if (!root[0] || !file) return;
    inside = 1;
    int fd = REAL(open)(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dprintf(fd, "%lu\n", done);
    close(fd);
}

/* The path that `path` means relative to `folder`; 0 if it lies outside of what is watched. */
static int watched(int folder, const char *path, char *full) {
    char link[64], base[PATH_MAX];
    if (!root[0] || inside || !path) return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
    } else if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
        snprintf(full, PATH_MAX, "%.2000s/%.2000s", base, path);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
        snprintf(full, PATH_MAX, "%.2000s/%.2000s", base, path);
    }
    size_t length = strlen(root);
    return strncmp(full, root, length) == 0 && (full[length] == '/' || full[length] == 0);
}

/* The same for an open file. */
static int watched_file(int fd, char *full, struct stat *facts) {
    char link[64];
    if (!root[0] || inside || fstat(fd, facts) || !(S_ISREG(facts->st_mode) || S_ISDIR(facts->st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, full, PATH_MAX - 1);
    if (length < 0) return 0;
    full[length] = 0;
    size_t prefix = strlen(root);
    return strncmp(full, root, prefix) == 0 && (full[prefix] == '/' || full[prefix] == 0);
}

static ino_t folder_of(const char *path) {
    char folder[PATH_MAX];
    struct stat facts;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    if (stat(folder, &facts)) fail(folder);
    return facts.st_ino;
}

static void restore_bytes(struct change *change) {
    if (change->before_size && pwrite(change->fd, change->before, change->before_size, change->offset) < 0) fail("undo");
    if (REAL(ftruncate)(change->fd, change->length_before)) fail("undo length");
}

static void repeat_bytes(struct change *change) {
    if (change->kind == TRUNCATE) {
        if (kept() && REAL(ftruncate)(change->fd, change->offset)) fail("redo length");
        return;
    }
    for (off_t at = 0; at < change->size;) {
        off_t end = ((change->offset + at) / SECTOR + 1) * SECTOR - change->offset;
        if (end > change->size) end = change->size;
        if (kept() && pwrite(change->fd, change->after + at, end - at, change->offset + at) < 0) fail("redo");
        at = end;
    }
}

static void restore_name(struct change *change) {
    switch (change->kind) {
    case CREATE: REAL(unlink)(change->path); break;
    case MKDIR: REAL(rmdir)(change->path); break;
    case RMDIR: REAL(mkdir)(change->path, 0700); break;
    case UNLINK: link(change->saved, change->path); break;
    case RENAME:
        REAL(rename)(change->target, change->path);
        if (change->saved) link(change->saved, change->target);
        break;
    default: break;
    }
}

/* The power goes. Called with the lock, which is never given back. */
static void cut(void) {
    inside = 1;
    for (size_t at = count; at-- > 0;) {
        struct change *change = changes[at];
        if (change->alive && change->kind <= TRUNCATE) restore_bytes(change);
    }
    for (size_t at = 0; at < count; at++)
        if (changes[at]->alive && changes[at]->kind <= TRUNCATE) repeat_bytes(changes[at]);
    /* A name that is kept keeps those before it: folders are written in order. */
    for (size_t at = count; at-- > 0;) {
        struct change *change = changes[at];
        if (!change->alive || change->kind <= TRUNCATE) continue;
        if (kept()) {
            for (size_t earlier = 0; earlier < at; earlier++)
                if (changes[earlier]->inode == change->inode && changes[earlier]->kind > TRUNCATE) changes[earlier]->alive = 0;
            continue;
        }
        restore_name(change);
    }
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Counts a change that is about to be made; here the power may go. */
static void step(void) {
    if (++done == cut_at) cut();
}

static struct change *remember(enum kind kind, ino_t inode) {
    /* StateDirs of changes that are durable by now are given to new ones. */
    if (count == room) {
        size_t left = 0;
        for (size_t at = 0; at < count; at++) {
            struct change *change = changes[at];
            if (change->alive) {
                changes[left++] = change;
                continue;
            }
            if (change->saved) REAL(unlink)(change->saved);
            free(change->before);
            free(change->after);
            free(change->path);
            free(change->target);
            free(change->saved);
            free(change);
        }
        count = left;
        if (count * 2 > room || !room) {
            room = room ? room * 2 : 256;
            changes = realloc(changes, room * sizeof *changes);
        }
    }
    struct change *change = calloc(1, sizeof *change);
    if (!changes || !change) fail("memory");
    change->kind = kind;
    change->alive = 1;
    change->inode = inode;
    changes[count++] = change;
    return change;
}

/* Our own way to a file, until what is written there is durable. */
static int way_to(int fd, const char *path, ino_t inode) {
    char link[64];
    for (size_t at = 0; at < file_count; at++)
        if (files[at].inode == inode) return files[at].fd;
    int own = REAL(open)(path, O_RDWR | O_CLOEXEC);
    if (own < 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        own = REAL(open)(link, O_RDWR | O_CLOEXEC);
    }
    if (own < 0 || file_count == sizeof files / sizeof *files) fail(path);
    files[file_count++] = (struct file){inode, own};
    return own;
}

static void leave(ino_t inode) {
    for (size_t at = 0; at < file_count; at++)
        if (files[at].inode == inode) {
            close(files[at].fd);
            files[at] = files[--file_count];
            return;
        }
}

static void remember_bytes(int fd, const char *path, struct stat *facts, enum kind kind, off_t offset, off_t size) {
    struct change *change = remember(kind, facts->st_ino);
    change->fd = way_to(fd, path, facts->st_ino);
    change->offset = offset;
    change->size = size;
    change->length_before = facts->st_size;
    off_t end = kind == TRUNCATE ? facts->st_size : offset + size;
    if (end > facts->st_size) end = facts->st_size;
    if (end > offset) {
        change->before_size = end - offset;
        change->before = malloc(change->before_size);
        if (!change->before || pread(change->fd, change->before, change->before_size, offset) != (ssize_t)change->before_size)
            fail("reading what is overwritten");
    }
}

static void remember_after(const void *bytes, off_t size) {
    struct change *change = changes[count - 1];
    change->after = malloc(size);
    if (!change->after) fail("memory");
    memcpy(change->after, bytes, size);
}

static void forget(struct change *change) { change->alive = 0; }

/* A second name for what `path` is about to hide. */
static void save(struct change *change, const char *path) {
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%.4000s/%lu", attic, saved_names++);
    REAL(unlink)(name);
    if (link(path, name) == 0) change->saved = strdup(name);
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    struct stat facts;
    int (*real)(int, const char *, int, ...) = REAL(openat);
    if (!watched(folder, path, full) || (flags & O_TMPFILE) == O_TMPFILE) return real(folder, path, flags, mode);
    pthread_mutex_lock(&lock);
    int exists = stat(full, &facts) == 0;
    int fd;
    if (exists && (flags & O_TRUNC) && S_ISREG(facts.st_mode) && facts.st_size > 0 && !(flags & O_EXCL)) {
        step();
        fd = real(folder, path, flags & ~O_TRUNC, mode);
        if (fd >= 0) {
            remember_bytes(fd, full, &facts, TRUNCATE, 0, 0);
            if (REAL(ftruncate)(fd, 0)) fail("truncate");
        }
    } else {
        if (!exists && (flags & O_CREAT)) step();
        fd = real(folder, path, flags, mode);
        if (fd >= 0 && !exists && (flags & O_CREAT)) {
            struct change *change = remember(CREATE, folder_of(full));
            change->path = strdup(full);
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

int openat(int folder, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return opened(folder, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *, int, ...) __attribute__((alias("open")));
int openat64(int, const char *, int, ...) __attribute__((alias("openat")));

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(fd, full, &facts) || !size) return REAL(pwrite)(fd, bytes, size, offset);
    pthread_mutex_lock(&lock);
    step();
    fstat(fd, &facts);
    remember_bytes(fd, full, &facts, WRITE, offset, size);
    remember_after(bytes, size);
    ssize_t wrote = REAL(pwrite)(fd, bytes, size, offset);
    if (wrote < (ssize_t)size) {
        if (wrote <= 0) forget(changes[count - 1]);
        else changes[count - 1]->size = wrote;
    }
    pthread_mutex_unlock(&lock);
    return wrote;
}
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));

ssize_t write(int fd, const void *bytes, size_t size) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(fd, full, &facts) || !size) return REAL(write)(fd, bytes, size);
    pthread_mutex_lock(&lock);
    step();
    fstat(fd, &facts);
    off_t offset = fcntl(fd, F_GETFL) & O_APPEND ? facts.st_size : lseek(fd, 0, SEEK_CUR);
    remember_bytes(fd, full, &facts, WRITE, offset, size);
    remember_after(bytes, size);
    ssize_t wrote = REAL(write)(fd, bytes, size);
    if (wrote < (ssize_t)size) {
        if (wrote <= 0) forget(changes[count - 1]);
        else changes[count - 1]->size = wrote;
    }
    pthread_mutex_unlock(&lock);
    return wrote;
}

/* One part at a time: a short write is what the caller is used to. */
ssize_t writev(int fd, const struct iovec *parts, int number) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(fd, full, &facts)) return REAL(writev)(fd, parts, number);
    for (int part = 0; part < number; part++)
        if (parts[part].iov_len) return write(fd, parts[part].iov_base, parts[part].iov_len);
    return 0;
}

/* Callers fall back to reading and writing. */
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t size, unsigned flags) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(to, full, &facts)) return REAL(copy_file_range)(from, from_at, to, to_at, size, flags);
    errno = ENOSYS;
    return -1;
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size) {
    char full[PATH_MAX];
    struct stat facts;
    ssize_t (*real)(int, int, off_t *, size_t) = real_sendfile();
    if (!watched_file(to, full, &facts)) return real(to, from, offset, size);
    errno = ENOSYS;
    return -1;
}
ssize_t sendfile64(int, int, off_t *, size_t) __attribute__((alias("sendfile")));

int fallocate(int fd, int mode, off_t offset, off_t size) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(fd, full, &facts)) return REAL(fallocate)(fd, mode, offset, size);
    errno = EOPNOTSUPP;
    return -1;
}
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));

int ftruncate(int fd, off_t length) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(fd, full, &facts)) return REAL(ftruncate)(fd, length);
    pthread_mutex_lock(&lock);
    step();
    fstat(fd, &facts);
    remember_bytes(fd, full, &facts, TRUNCATE, length, 0);
    int result = REAL(ftruncate)(fd, length);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));

static int synced(int fd, int (*real)(int)) {
    char full[PATH_MAX];
    struct stat facts;
    if (!watched_file(fd, full, &facts)) return real(fd);
    pthread_mutex_lock(&lock);
    step();
    int result = real(fd);
    if (result == 0 && !(lies && strstr(full, lies))) {
        for (size_t at = 0; at < count; at++) {
            int is_name = changes[at]->kind > TRUNCATE;
            if (changes[at]->inode == facts.st_ino && is_name == S_ISDIR(facts.st_mode)) forget(changes[at]);
        }
        leave(facts.st_ino);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

int rename(const char *from, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    struct stat facts;
    if (!watched(AT_FDCWD, from, old) || !watched(AT_FDCWD, to, new)) return REAL(rename)(from, to);
    pthread_mutex_lock(&lock);
    step();
    struct change *change = remember(RENAME, folder_of(new));
    change->path = strdup(old);
    change->target = strdup(new);
    if (stat(new, &facts) == 0 && S_ISREG(facts.st_mode)) save(change, new);
    int result = REAL(rename)(from, to);
    if (result) forget(change);
    pthread_mutex_unlock(&lock);
    return result;
}

static int removed(const char *full, enum kind kind, int (*real)(const char *)) {
    pthread_mutex_lock(&lock);
    step();
    struct change *change = remember(kind, folder_of(full));
    change->path = strdup(full);
    if (kind == UNLINK) save(change, full);
    int result = real(full);
    if (result || (kind == UNLINK && !change->saved)) forget(change);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path) {
    char full[PATH_MAX];
    return watched(AT_FDCWD, path, full) ? removed(full, UNLINK, REAL(unlink)) : REAL(unlink)(path);
}

int rmdir(const char *path) {
    char full[PATH_MAX];
    return watched(AT_FDCWD, path, full) ? removed(full, RMDIR, REAL(rmdir)) : REAL(rmdir)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    char full[PATH_MAX];
    if (!watched(folder, path, full)) return REAL(unlinkat)(folder, path, flags);
    return flags & AT_REMOVEDIR ? removed(full, RMDIR, REAL(rmdir)) : removed(full, UNLINK, REAL(unlink));
}

int mkdir(const char *path, mode_t mode) {
    char full[PATH_MAX];
    if (!watched(AT_FDCWD, path, full)) return REAL(mkdir)(path, mode);
    pthread_mutex_lock(&lock);
    step();
    int result = REAL(mkdir)(path, mode);
    if (result == 0) {
        struct change *change = remember(MKDIR, folder_of(full));
        change->path = strdup(full);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
