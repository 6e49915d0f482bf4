/* A zoo program sets up one kind of state, says that it is ready, and then does as it is told
 * by single bytes on descriptor 0: 'v' verifies the state, 'm' changes it, 'q' ends. Answers go
 * to descriptor 1, a line each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void setup(void);
static void verify(void);
static void mutate(void);

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    dprintf(1, "FAIL %.*s (errno %d)\n", n, line, errno);
    _exit(1);
}

#define CHECK(condition) do { if (!(condition)) fail("line %d: %s", __LINE__, #condition); } while (0)

static char next_command(void) {
    char byte;
    ssize_t n;
    do n = read(0, &byte, 1); while (n < 0 && errno == EINTR);
    if (n != 1) _exit(0);
    return byte;
}

int main(void) {
    setup();
    dprintf(1, "ready\n");
    for (;;) {
        char command = next_command();
        if (command == 'q') _exit(0);
        if (command == 'm') mutate(); else verify();
        dprintf(1, "ok\n");
    }
}
