/* Something that can't be captured, chosen by ZOO_KIND. */
#include "zoo.h"
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static void setup(void) {
    const char *kind = getenv("ZOO_KIND");
    int pair[2];
    if (!strcmp(kind, "socket")) CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    if (!strcmp(kind, "inotify")) CHECK(inotify_init1(0) >= 0);
    if (!strcmp(kind, "deleted")) {
        int fd = open("/tmp/zoo-refused", O_RDWR | O_CREAT, 0600);
        CHECK(fd >= 0 && unlink("/tmp/zoo-refused") == 0);
    }
    if (!strcmp(kind, "locked")) CHECK(flock(open("/tmp", O_RDONLY), LOCK_SH) == 0);
    if (!strcmp(kind, "proc")) CHECK(open("/proc/self/status", O_RDONLY) >= 0);
    if (!strcmp(kind, "namespace")) {
        char byte;
        CHECK(pipe(pair) == 0);
        if (fork() == 0) {
            CHECK(syscall(SYS_unshare, 0x04000000) == 0 && write(pair[1], "x", 1) == 1);
            for (;;) pause();
        }
        CHECK(read(pair[0], &byte, 1) == 1);
    }
}
static void verify(void) {}
static void mutate(void) {}
