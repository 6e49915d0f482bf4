/* Timers: interval timers and POSIX timers keep their ids, intervals and time left. */
#include "zoo.h"
#include <sys/time.h>

static timer_t slow, fast;
static volatile sig_atomic_t ticks;
static void tick(int signal, siginfo_t *information, void *context) {
    (void)signal; (void)context;
    if (information->si_value.sival_int == 99) ticks++;
}
static void setup(void) {
    struct sigaction action = { .sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGRTMIN + 1, &action, NULL);
    signal(SIGALRM, SIG_IGN);
    struct itimerval interval = { .it_value = { .tv_sec = 5000 }, .it_interval = { .tv_sec = 77 } };
    setitimer(ITIMER_REAL, &interval, NULL);
    timer_t unused;
    struct sigevent none = { .sigev_notify = SIGEV_NONE };
    timer_create(CLOCK_MONOTONIC, &none, &unused);
    timer_create(CLOCK_MONOTONIC, &none, &slow);
    timer_delete(unused);
    struct itimerspec far = { .it_value = { .tv_sec = 1000 } };
    timer_settime(slow, 0, &far, NULL);
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1, .sigev_value.sival_int = 99 };
    timer_create(CLOCK_MONOTONIC, &event, &fast);
    struct itimerspec often = { .it_value = { .tv_nsec = 2000000 }, .it_interval = { .tv_nsec = 2000000 } };
    timer_settime(fast, 0, &often, NULL);
}
static void verify(void) {
    struct itimerval interval;
    getitimer(ITIMER_REAL, &interval);
    CHECK(interval.it_interval.tv_sec == 77 && interval.it_value.tv_sec > 4900 && interval.it_value.tv_sec < 5001);
    struct itimerspec left;
    CHECK(timer_gettime(slow, &left) == 0 && left.it_value.tv_sec > 900 && left.it_value.tv_sec < 1001);
    int before = ticks;
    for (int i = 0; i < 2000 && ticks < before + 3; i++) usleep(1000);
    CHECK(ticks >= before + 3);
}
static void mutate(void) {
    struct itimerval off = { 0 };
    struct itimerspec off2 = { 0 };
    setitimer(ITIMER_REAL, &off, NULL);
    timer_settime(fast, 0, &off2, NULL);
    timer_settime(slow, 0, &off2, NULL);
}
