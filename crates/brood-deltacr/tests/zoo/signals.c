/* Signals: handlers, masks, queued and pending ones, an alternate stack, ignored ones. */
#include "zoo.h"
#include <ucontext.h>

static volatile sig_atomic_t last_value, count, on_stack;
static char stack[65536];
static void handler(int signal, siginfo_t *information, void *context) {
    (void)context;
    int here;
    last_value = information->si_value.sival_int;
    on_stack = (char *)&here >= stack && (char *)&here < stack + sizeof stack;
    count += signal == SIGUSR1 ? 1 : 100;
}
static void setup(void) {
    stack_t alternate = { .ss_sp = stack, .ss_size = sizeof stack };
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART };
    sigset_t blocked;
    union sigval value = { .sival_int = 4711 };
    sigaltstack(&alternate, NULL);
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGRTMIN, &action, NULL);
    signal(SIGHUP, SIG_IGN);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    sigqueue(getpid(), SIGUSR1, value);
    sigqueue(getpid(), SIGRTMIN, value);
    sigqueue(getpid(), SIGRTMIN, value);
}
static void verify(void) {
    sigset_t set, empty;
    struct sigaction action;
    stack_t alternate;
    CHECK(count == 0);
    sigpending(&set);
    CHECK(sigismember(&set, SIGUSR1) && sigismember(&set, SIGRTMIN) && !sigismember(&set, SIGUSR2));
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, &set);
    CHECK(sigismember(&set, SIGUSR1) && !sigismember(&set, SIGTERM));
    CHECK(count == 201 && last_value == 4711 && on_stack);
    sigaction(SIGUSR1, NULL, &action);
    CHECK(action.sa_sigaction == handler && (action.sa_flags & SA_RESTART) && sigismember(&action.sa_mask, SIGUSR2));
    sigaction(SIGHUP, NULL, &action);
    CHECK(action.sa_handler == SIG_IGN);
    sigaction(SIGTERM, NULL, &action);
    CHECK(action.sa_handler == SIG_DFL);
    sigaltstack(NULL, &alternate);
    CHECK(alternate.ss_sp == stack && alternate.ss_size == sizeof stack && alternate.ss_flags == 0);
    count = 0;
    union sigval value = { .sival_int = 4711 };
    sigprocmask(SIG_SETMASK, &set, NULL);
    sigqueue(getpid(), SIGUSR1, value);
    sigqueue(getpid(), SIGRTMIN, value);
    sigqueue(getpid(), SIGRTMIN, value);
}
static void mutate(void) {
    struct sigaction action;
    sigset_t set;
    sigprocmask(SIG_SETMASK, NULL, &set);
    sigdelset(&set, SIGUSR1);
    sigprocmask(SIG_SETMASK, &set, NULL);
    sigaction(SIGHUP, NULL, &action);
    action.sa_handler = SIG_DFL;
    sigaction(SIGHUP, &action, NULL);
    signal(SIGTERM, SIG_IGN);
    stack_t off = { .ss_flags = SS_DISABLE };
    sigaltstack(&off, NULL);
}
