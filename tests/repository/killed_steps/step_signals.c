/* Counts the calls of libc by which Brigade and git change files of one folder, and stops or kills the process at one of them.
 *
 * signals.rs builds this library and preloads it. Both sides share the file `STEPS_FILE`, with the fields below. A
 * call is counted while `armed` is set, if its path lies in `STEPS_FOLDER`. All hooks make system calls directly. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, SHARED_BYTES = 4096, TEXT_BYTES = 1024, WAIT_MILLISECONDS = 120000 };
enum action { COUNT, WAIT, KILL, TERMINATE, TERMINATE_PARENT };
enum state { RUNNING, REACHED, RELEASED };

struct shared {
    uint32_t armed;
    uint32_t count;
    uint32_t target;
    uint32_t is_after;
    uint32_t action;
    uint32_t state;
    uint32_t more;
    char step[TEXT_BYTES];
};

static volatile struct shared *shared;
static const char *folder;
static const char *trace;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("STEPS_FILE");
    folder = getenv("STEPS_FOLDER");
    trace = getenv("STEPS_TRACE");
    if (path == NULL || folder == NULL) {
        return;
    }
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (file >= 0) {
        void *memory = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        shared = memory == MAP_FAILED ? NULL : memory;
        close(file);
    }
}

/* The path, absolute. Returns 0 if it is outside of the folder. */
static int is_inside(int at, const char *path, char *full) {
    full[0] = 0;
    if (path[0] != '/') {
        if (at == AT_FDCWD) {
            if (getcwd(full, PATH_BYTES) == NULL) {
                return 0;
            }
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t length = readlink(link, full, PATH_BYTES - 1);
            full[length < 0 ? 0 : length] = 0;
        }
        strncat(full, "/", PATH_BYTES - 1 - strlen(full));
    }
    strncat(full, path, PATH_BYTES - 1 - strlen(full));
    size_t length = strlen(folder);
    return strncmp(full, folder, length) == 0 && full[length] == '/';
}

static void write_trace(const char *step) {
    int file = (int)syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        char line[TEXT_BYTES + 1];
        int length = snprintf(line, sizeof line, "%s\n", step);
        ssize_t written = write(file, line, (size_t)length);
        (void)written;
        close(file);
    }
}

/* Returns 1 if a git started this process. */
static int is_child_of_git(void) {
    char path[64], name[8] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)getppid());
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) {
        return 0;
    }
    ssize_t length = read(file, name, sizeof name - 1);
    close(file);
    return length == 4 && strcmp(name, "git\n") == 0;
}

/* Ends this process without any cleanup, also if it is the first of its process namespace, which no own signal can kill. */
static void end(void) {
    kill(getpid(), SIGKILL);
    syscall(SYS_exit_group, 128 + SIGKILL);
}

static void reach(void) {
    int error = errno;
    pid_t parent = getppid();
    shared->state = REACHED;
    switch (shared->action) {
    case KILL:
        end();
        break;
    case TERMINATE:
        raise(SIGTERM);
        break;
    case TERMINATE_PARENT:
        kill(parent, SIGTERM);
        for (long waited = 0; getppid() == parent && waited < WAIT_MILLISECONDS; waited++) {
            usleep(1000);
        }
        break;
    default:
        for (long waited = 0; shared->state != RELEASED && waited < WAIT_MILLISECONDS; waited++) {
            usleep(1000);
        }
    }
    errno = error;
}

/* Kills a git at the step `more` after the first signal. */
static void count_more(void) {
    int is_due = shared->state == REACHED && shared->more != 0 && strcmp(program_invocation_short_name, "git") == 0;
    if (is_due && __sync_sub_and_fetch(&shared->more, 1) == 0) {
        end();
    }
}

/* Returns 1 if the signal has to come after the call. */
static int before(const char *call, int at, const char *path) {
    char full[PATH_BYTES];
    int error = errno;
    int is_counted = shared != NULL && shared->armed && path != NULL && is_inside(at, path, full);
    errno = error;
    if (!is_counted) {
        return 0;
    }
    count_more();
    uint32_t number = __sync_add_and_fetch(&shared->count, 1);
    if (shared->target != 0 && number != shared->target) {
        return 0;
    }
    char step[TEXT_BYTES];
    const char *starter = is_child_of_git() ? "git " : "";
    snprintf(step, sizeof step, "%s%s %s %s", starter, program_invocation_short_name, call, full + strlen(folder) + 1);
    if (shared->target == 0) {
        if (trace != NULL) {
            write_trace(step);
        }
        errno = error;
        return 0;
    }
    memcpy((char *)shared->step, step, sizeof step);
    if (shared->is_after) {
        return 1;
    }
    reach();
    return 0;
}

#define STEP(name, at, path, call)                                                                                      \
    do {                                                                                                                \
        int is_last = before(name, at, path);                                                                           \
        int result = (int)(call);                                                                                       \
        if (is_last) {                                                                                                  \
            reach();                                                                                                    \
        }                                                                                                               \
        return result;                                                                                                  \
    } while (0)

static int open_at(int at, const char *path, int flags, mode_t mode) {
    if ((flags & O_ACCMODE) == O_RDONLY && (flags & O_CREAT) == 0) {
        return (int)syscall(SYS_openat, at, path, flags, mode);
    }
    STEP("open", at, path, syscall(SYS_openat, at, path, flags, mode));
}

#define MODE(last)                                                                                                      \
    mode_t mode = 0;                                                                                                    \
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {                                                                                \
        va_list arguments;                                                                                              \
        va_start(arguments, last);                                                                                      \
        mode = va_arg(arguments, mode_t);                                                                               \
        va_end(arguments);                                                                                              \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return open_at(at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    return open_at(at, path, flags, mode);
}

static FILE *open_stream(const char *name, const char *path, const char *mode) {
    FILE *(*original)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, name);
    int is_last = strpbrk(mode, "wa+") != NULL && before("fopen", AT_FDCWD, path);
    FILE *stream = original(path, mode);
    if (is_last) {
        reach();
    }
    return stream;
}

FILE *fopen(const char *path, const char *mode) { return open_stream("fopen", path, mode); }

FILE *fopen64(const char *path, const char *mode) { return open_stream("fopen64", path, mode); }

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned int flags) {
    STEP("rename", to_at, to, syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}

int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int at, const char *path, mode_t mode) { STEP("mkdir", at, path, syscall(SYS_mkdirat, at, path, mode)); }

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int at, const char *path, int flags) { STEP("unlink", at, path, syscall(SYS_unlinkat, at, path, flags)); }

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int symlinkat(const char *target, int at, const char *path) {
    STEP("symlink", at, path, syscall(SYS_symlinkat, target, at, path));
}

int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    STEP("link", to_at, to, syscall(SYS_linkat, from_at, from, to_at, to, flags));
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
