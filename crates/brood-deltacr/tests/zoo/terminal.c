/* A session on a pseudo-terminal whose other side is the test's: settings, size, job control
 * with a child in the foreground. ZOO_TERMINAL names it. */
#include "zoo.h"
#include <sys/ioctl.h>
#include <termios.h>

static int terminal;
static pid_t child;
static void setup(void) {
    terminal = open(getenv("ZOO_TERMINAL"), O_RDWR);
    CHECK(terminal >= 0 && tcgetsid(terminal) == getsid(0));
    struct termios settings;
    CHECK(tcgetattr(terminal, &settings) == 0);
    settings.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
    settings.c_cc[VMIN] = 3;
    settings.c_cc[VINTR] = 7;
    CHECK(tcsetattr(terminal, TCSANOW, &settings) == 0);
    struct winsize size = { .ws_row = 33, .ws_col = 77 };
    CHECK(ioctl(terminal, TIOCSWINSZ, &size) == 0);
    signal(SIGTTOU, SIG_IGN);
    if (!(child = fork())) {
        setpgid(0, 0);
        for (;;) pause();
    }
    setpgid(child, child);
    CHECK(tcsetpgrp(terminal, child) == 0);
}
static void verify(void) {
    struct termios settings;
    struct winsize size;
    CHECK(tcgetattr(terminal, &settings) == 0 && !(settings.c_lflag & (ECHO | ICANON)));
    CHECK(settings.c_cc[VMIN] == 3 && settings.c_cc[VINTR] == 7);
    CHECK(ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_row == 33 && size.ws_col == 77);
    CHECK(tcgetsid(terminal) == getsid(0) && tcgetpgrp(terminal) == child);
    int controlling = open("/dev/tty", O_RDWR);
    CHECK(controlling >= 0 && tcgetpgrp(controlling) == child);
    close(controlling);
    CHECK(write(terminal, "shown", 5) == 5);
}
static void mutate(void) {
    struct termios settings;
    struct winsize size = { .ws_row = 1, .ws_col = 2 };
    CHECK(tcgetattr(terminal, &settings) == 0);
    settings.c_lflag |= ECHO | ICANON;
    tcsetattr(terminal, TCSANOW, &settings);
    ioctl(terminal, TIOCSWINSZ, &size);
    CHECK(tcsetpgrp(terminal, getpgrp()) == 0);
}
