/* Event sources: eventfd, timerfd, signalfd, epoll over them, memfd, inherited by a child. */
#include "zoo.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static int counter, semaphore, timer, periodic, signals, set, memory, pipe_ends[2];
static char *view;
static void setup(void) {
    counter = eventfd(7, EFD_NONBLOCK);
    semaphore = eventfd(3, EFD_SEMAPHORE | EFD_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec far = { .it_value = { .tv_sec = 4000 } };
    timerfd_settime(timer, 0, &far, NULL);
    periodic = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec often = { .it_value = { .tv_nsec = 3000000 }, .it_interval = { .tv_nsec = 3000000 } };
    timerfd_settime(periodic, 0, &often, NULL);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signals = signalfd(-1, &mask, SFD_NONBLOCK);
    memory = memfd_create("zoo", MFD_ALLOW_SEALING);
    CHECK(ftruncate(memory, 3 * 4096) == 0);
    view = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    strcpy(view + 4096, "in a memfd");
    CHECK(pipe2(pipe_ends, O_NONBLOCK) == 0);
    set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0x1122334455667788ULL };
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipe_ends[0], &event) == 0);
    event.data.u64 = 5;
    event.events = EPOLLIN | EPOLLET;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, signals, &event) == 0);
}
static void verify(void) {
    uint64_t value;
    CHECK(read(counter, &value, 8) == 8 && value == 7 && read(counter, &value, 8) < 0 && errno == EAGAIN);
    value = 7;
    CHECK(write(counter, &value, 8) == 8);
    CHECK(read(semaphore, &value, 8) == 8 && value == 1);
    CHECK(write(semaphore, &value, 8) == 8 && fcntl(semaphore, F_GETFD) == FD_CLOEXEC);
    struct itimerspec left;
    timerfd_gettime(timer, &left);
    CHECK(left.it_value.tv_sec > 3900 && left.it_value.tv_sec < 4001);
    CHECK(read(periodic, &value, 8) == 8 && value >= 1);
    CHECK(read(periodic, &value, 8) == 8 && value >= 1);
    struct epoll_event event;
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    CHECK(write(pipe_ends[1], "x", 1) == 1);
    CHECK(epoll_wait(set, &event, 1, 1000) == 1 && event.data.u64 == 0x1122334455667788ULL);
    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 1 && read(pipe_ends[0], &byte, 1) < 0 && errno == EAGAIN);
    kill(getpid(), SIGUSR2);
    CHECK(epoll_wait(set, &event, 1, 1000) == 1 && event.data.u64 == 5);
    struct signalfd_siginfo information;
    CHECK(read(signals, &information, sizeof information) == sizeof information && information.ssi_signo == SIGUSR2);
    char text[16] = "";
    CHECK(pread(memory, text, 11, 4096) == 11 && !strcmp(text, "in a memfd") && !strcmp(view + 4096, text));
    view[0] = 'z';
    CHECK(pread(memory, text, 1, 0) == 1 && text[0] == 'z');
    struct epoll_event changed = { .events = EPOLLIN, .data.u64 = 0x1122334455667788ULL };
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pipe_ends[0], &changed) == 0);
}
static void mutate(void) {
    uint64_t value = 100;
    CHECK(write(counter, &value, 8) == 8);
    close(semaphore);
    strcpy(view + 4096, "changed!");
    struct itimerspec off = { 0 };
    timerfd_settime(periodic, 0, &off, NULL);
    CHECK(write(pipe_ends[1], "y", 1) == 1);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, signals, NULL) == 0);
}
