/* A preloaded library of the fault tests: chosen system calls fail, or the n-th one kills the
 * process.
 *
 * SHIM_RULES  "call:errno:skip:count:text;..."  The call fails with errno if its path contains
 *             text (after a '=': is text), after `skip` such calls, `count` times (-1: always).
 *             Calls without a path match only the empty text. `write` rules apply to files (the
 *             path comes from /proc), not to messages. `half` is a write that stops half way.
 * SHIM_KILL   n: SIGKILL just before the n-th counted call. Counting starts when a path that
 *             contains "shim-start" is opened. When one that contains "shim-stop" is opened,
 *             "CALLS n" goes to stderr.
 * SHIM_CLOCK  seconds added to the real-time clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES 8
static struct { char call[16]; int err; long skip; long count; char text[80]; } rules[MAX_RULES];
static int rule_count, counting;
static long calls, kill_at = -1, clock_offset;

__attribute__((constructor)) static void setup(void) {
    const char *text = getenv("SHIM_RULES");
    while (text && *text && rule_count < MAX_RULES) {
        int n = sscanf(text, "%15[^:]:%d:%ld:%ld:%79[^;]", rules[rule_count].call, &rules[rule_count].err,
                       &rules[rule_count].skip, &rules[rule_count].count, rules[rule_count].text);
        if (n >= 4) rule_count++;
        text = strchr(text, ';');
        if (text) text++;
    }
    if ((text = getenv("SHIM_KILL"))) kill_at = atol(text);
    if ((text = getenv("SHIM_CLOCK"))) clock_offset = atol(text);
}

/* Returns -1 with errno set if a rule makes the call fail. */
static int ruled(const char *call, const char *path) {
    for (int i = 0; i < rule_count; i++) {
        if (strcmp(rules[i].call, call)) continue;
        const char *text = rules[i].text;
        if (text[0] == '=' ? !path || strcmp(path, text + 1) : text[0] && !(path && strstr(path, text))) continue;
        if (__atomic_fetch_sub(&rules[i].skip, 1, __ATOMIC_SEQ_CST) > 0) continue;
        if (rules[i].count == 0) continue;
        if (rules[i].count > 0) __atomic_fetch_sub(&rules[i].count, 1, __ATOMIC_SEQ_CST);
        errno = rules[i].err;
        return -1;
    }
    return 0;
}

/* Counts the call. Returns -1 if it must fail. */
static int meet(const char *call, const char *path) {
    if (path && strstr(path, "shim-start")) counting = 1;
    if (path && strstr(path, "shim-stop")) counting = 0, dprintf(2, "CALLS %ld\n", calls);
    if (counting && ++calls == kill_at) raise(SIGKILL);
    return ruled(call, path);
}

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list args; va_start(args, flags); mode_t mode = va_arg(args, mode_t); va_end(args); \
        return meet("open", path) ? -1 : NEXT(name)(path, flags, mode); }
#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) { \
        va_list args; va_start(args, flags); mode_t mode = va_arg(args, mode_t); va_end(args); \
        return meet("open", path) ? -1 : NEXT(name)(dir, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

int mkdirat(int dir, const char *path, mode_t mode) { return meet("mkdir", path) ? -1 : NEXT(mkdirat)(dir, path, mode); }
int renameat(int a, const char *from, int b, const char *to) {
    return meet("rename", to) ? -1 : NEXT(renameat)(a, from, b, to);
}
int unlinkat(int dir, const char *path, int flags) { return meet("unlink", path) ? -1 : NEXT(unlinkat)(dir, path, flags); }
ssize_t write(int fd, const void *bytes, size_t len) {
    struct stat found;
    if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) {
        char name[32], path[4096];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t end = rule_count ? readlink(name, path, sizeof path - 1) : 0;
        path[end < 0 ? 0 : end] = 0;
        if (meet("write", path)) return -1;
        if (ruled("half", path)) len = (len + 1) / 2;
    } else if (meet("say", 0)) return -1;
    return NEXT(write)(fd, bytes, len);
}
ssize_t read(int fd, void *bytes, size_t len) { return meet("read", 0) ? -1 : NEXT(read)(fd, bytes, len); }
int fsync(int fd) { return meet("fsync", 0) ? -1 : NEXT(fsync)(fd); }
int flock(int fd, int how) { return meet("flock", 0) ? -1 : syscall(SYS_flock, fd, how); }
int clock_gettime(clockid_t id, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, id, time);
    if (id == CLOCK_REALTIME) time->tv_sec += clock_offset;
    return result;
}
