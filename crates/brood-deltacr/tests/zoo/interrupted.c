/* Threads and children in the middle of system calls that wait: each call goes on as if it had
 * not been disturbed. */
#include "zoo.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>

enum { READ, POLL, SELECT, EPOLL, FUTEX, SLEEP, PAUSED, KINDS };
static int pipes[KINDS][2], word;
static volatile int entered, results[KINDS];
static void nothing(int signal) { (void)signal; }

static void *wait_in(void *argument) {
    int kind = (int)(intptr_t)argument, fd = pipes[kind][0];
    char byte;
    struct pollfd poll_one = { .fd = fd, .events = POLLIN };
    struct epoll_event event = { .events = EPOLLIN };
    struct timespec far;
    fd_set set;
    __sync_fetch_and_add(&entered, 1);
    switch (kind) {
    case READ: results[kind] = read(fd, &byte, 1) == 1 && byte == 'x'; break;
    case POLL: results[kind] = poll(&poll_one, 1, 100000) == 1; break;
    case SELECT: FD_ZERO(&set); FD_SET(fd, &set); results[kind] = select(fd + 1, &set, NULL, NULL, NULL) == 1; break;
    case EPOLL: {
        int set_of = epoll_create1(0);
        epoll_ctl(set_of, EPOLL_CTL_ADD, fd, &event);
        results[kind] = epoll_wait(set_of, &event, 1, -1) == 1;
        close(set_of);
        break;
    }
    case FUTEX:
        far = (struct timespec){ .tv_sec = 100000 };
        results[kind] = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &far, NULL, 0) == 0 || errno == EAGAIN;
        break;
    case SLEEP:
        clock_gettime(CLOCK_MONOTONIC, &far);
        far.tv_sec += 1;
        results[kind] = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &far, NULL) == 0;
        break;
    case PAUSED: results[kind] = pause() == -1 && errno == EINTR; break;
    }
    return NULL;
}
static pthread_t threads[KINDS];
static void setup(void) {
    struct sigaction action = { .sa_handler = nothing };
    sigaction(SIGUSR1, &action, NULL);
    for (intptr_t kind = 0; kind < KINDS; kind++) {
        CHECK(pipe(pipes[kind]) == 0);
        pthread_create(&threads[kind], NULL, wait_in, (void *)kind);
    }
    while (entered < KINDS) usleep(1000);
    usleep(50000);
}
static void verify(void) {
    for (int kind = 0; kind < KINDS; kind++) CHECK(results[kind] == 0 || kind == SLEEP);
    for (int kind = READ; kind <= EPOLL; kind++) CHECK(write(pipes[kind][1], "x", 1) == 1);
    word = 1;
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_kill(threads[PAUSED], SIGUSR1);
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_join(threads[kind], NULL);
        if (!results[kind]) fail("kind %d", kind);
    }
}
static void mutate(void) {
    CHECK(write(pipes[READ][1], "x", 1) == 1);
    pthread_join(threads[READ], NULL);
}
