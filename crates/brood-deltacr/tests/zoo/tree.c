/* A tree: a job-control group, a stopped child, a zombie, an orphan in a session whose leader
 * has ended, pipes with content between them, shared offsets, shared memory. */
#include "zoo.h"
#include <sys/prctl.h>

static pid_t job, member, stopped, zombie, killed, orphan, new_session;
static int to_job[2], from_job[2], filled[2], file;
static volatile int *shared;
static int is_child;

static void serve(void) {
    char byte;
    while (read(to_job[0], &byte, 1) == 1) {
        pid_t parent = getppid();
        long answer[4] = { getpgrp(), getsid(0), parent, shared[0] };
        shared[1]++;
        lseek(file, 1, SEEK_CUR);
        if (write(from_job[1], answer, sizeof answer) != sizeof answer) break;
    }
    _exit(0);
}
static pid_t spawn(void) {
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    is_child = pid == 0;
    return pid;
}
static void setup(void) {
    char byte;
    int report[2];
    CHECK(pipe(to_job) == 0 && pipe(from_job) == 0 && pipe(filled) == 0 && pipe(report) == 0);
    CHECK(write(filled[1], "waiting in a pipe", 17) == 17);
    shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared[0] = 4711;
    file = open("/etc/passwd", O_RDONLY);
    if (!(job = spawn())) { setpgid(0, 0); serve(); }
    setpgid(job, job);
    if (!(member = spawn())) { setpgid(0, job); for (;;) pause(); }
    setpgid(member, job);
    if (!(stopped = spawn())) { for (;;) pause(); }
    kill(stopped, SIGSTOP);
    if (!(zombie = spawn())) _exit(42);
    if (!(killed = spawn())) { signal(SIGTERM, SIG_DFL); for (;;) pause(); }
    kill(killed, SIGTERM);
    if (!(new_session = spawn())) { setsid(); for (;;) pause(); }
    pid_t middle = spawn();
    if (!middle) {
        setsid();
        if (!(orphan = spawn())) {
            pid_t me = getpid();
            while (getppid() != 1) usleep(1000);
            CHECK(write(report[1], &me, sizeof me) == sizeof me);
            for (;;) pause();
        }
        _exit(0);
    }
    waitpid(middle, NULL, 0);
    CHECK(read(report[0], &orphan, sizeof orphan) == sizeof orphan);
    close(report[0]);
    close(report[1]);
    int status;
    CHECK(waitpid(stopped, &status, WUNTRACED) == stopped && WIFSTOPPED(status));
    siginfo_t information;
    CHECK(waitid(P_PID, zombie, &information, WEXITED | WNOWAIT) == 0);
    CHECK(waitid(P_PID, killed, &information, WEXITED | WNOWAIT) == 0);
    while (getsid(new_session) != new_session) usleep(1000);
    (void)byte;
}
static void verify(void) {
    char text[32];
    long answer[4];
    off_t offset = lseek(file, 0, SEEK_CUR);
    CHECK(write(to_job[1], "x", 1) == 1);
    CHECK(read(from_job[0], answer, sizeof answer) == sizeof answer);
    CHECK(answer[0] == job && answer[1] == getsid(0) && answer[2] == getpid() && answer[3] == 4711);
    CHECK(shared[1] == 1);
    CHECK(lseek(file, 0, SEEK_CUR) == offset + 1);
    CHECK(getpgid(job) == job && getpgid(member) == job && getpgid(stopped) == getpgrp());
    CHECK(getsid(orphan) != orphan && getsid(orphan) != getsid(0) && kill(orphan, 0) == 0);
    CHECK(getsid(new_session) == new_session);
    CHECK(read(filled[0], text, sizeof text) == 17 && !memcmp(text, "waiting in a pipe", 17));
    int status;
    CHECK(waitpid(zombie, &status, 0) == zombie && WIFEXITED(status) && WEXITSTATUS(status) == 42);
    CHECK(waitpid(killed, &status, 0) == killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    CHECK(waitpid(-1, &status, WNOHANG) == 0);
    snprintf(text, sizeof text, "/proc/%d/stat", stopped);
    /* It stops again as soon as it gets a processor. */
    char state = 0;
    for (int i = 0; i < 5000 && state != 'T'; i++) {
        FILE *stat = fopen(text, "r");
        CHECK(stat && fscanf(stat, "%*d %*s %c", &state) == 1);
        fclose(stat);
        if (state != 'T') usleep(1000);
    }
    CHECK(state == 'T');
    kill(stopped, SIGCONT);
    kill(stopped, SIGKILL);
    CHECK(waitpid(stopped, &status, 0) == stopped && WTERMSIG(status) == SIGKILL);
    kill(orphan, SIGKILL);
    kill(-job, SIGKILL);
    CHECK(waitpid(job, &status, 0) == job && waitpid(member, &status, 0) == member);
    kill(new_session, SIGKILL);
    CHECK(waitpid(new_session, &status, 0) == new_session);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}
static void mutate(void) {
    kill(member, SIGKILL);
    waitpid(member, NULL, 0);
    kill(orphan, SIGKILL);
    waitpid(zombie, NULL, 0);
    kill(stopped, SIGCONT);
    char text[32];
    CHECK(read(filled[0], text, 7) == 7);
    shared[0] = 1;
    if (!spawn()) for (;;) pause();
}
