/* PID 1 of a test sandbox: makes fresh namespaces, starts one program in a session of its own,
 * then only collects children. Prints its pid as the host sees it on descriptor 2. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <sys/personality.h>
#include <linux/sched.h>

static void die(const char *what) { perror(what); exit(1); }

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}

static int inside(int go, char **program) {
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(go, &byte, 1) != 1) return 1;
    close(go);
    if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0)) die("become root");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("make mounts private");
    if (mount("proc", "/proc", "proc", 0, NULL)) die("mount proc");
    if (*program) {
        pid_t child = fork();
        if (child == 0) {
            personality(ADDR_NO_RANDOMIZE);
            setsid();
            int null = open("/dev/null", O_RDWR);
            dup2(null, 2);
            close(null);
            execvp(program[0], program);
            _exit(127);
        }
    }
    sigprocmask(SIG_BLOCK, &children, NULL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        sigwaitinfo(&children, NULL);
    }
}

int main(int argc, char **argv) {
    int go[2];
    syscall(SYS_close_range, 3, ~0U, 0);
    if (argc < 2 || pipe2(go, O_CLOEXEC)) die("pipe");
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET,
        .exit_signal = SIGCHLD,
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    long init = syscall(SYS_clone3, &args, sizeof args);
    if (init < 0) die("clone3");
    if (init == 0) {
        close(go[1]);
        exit(inside(go[0], argv + 2));
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/uid_map", init);
    write_file(path, "0 100000000 65536");
    snprintf(path, sizeof path, "/proc/%ld/gid_map", init);
    write_file(path, "0 100000000 65536");
    dprintf(2, "%ld\n", init);
    if (write(go[1], "g", 1) != 1) die("go");
    close(0);
    close(1);
    waitpid(init, NULL, 0);
    return 0;
}
