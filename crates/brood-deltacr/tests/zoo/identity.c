/* Who the process is: user and groups, dropped capabilities, limits, names, niceness, a seccomp
 * filter, parent-death signal, no new privileges. */
#include "zoo.h"
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/personality.h>
#include <sys/sysinfo.h>

static void setup(void) {
    gid_t groups[] = { 7, 1000, 4242 };
    struct rlimit files = { 200, 300 }, core = { 0, 0 };
    CHECK(setgroups(3, groups) == 0 && setresgid(1000, 1000, 1000) == 0);
    for (int capability = 10; capability < 20; capability++) CHECK(prctl(PR_CAPBSET_DROP, capability) == 0);
    CHECK(setresuid(1000, 1000, 1000) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_CORE, &core) == 0);
    prctl(PR_SET_NAME, "new name");
    CHECK(setpriority(PRIO_PROCESS, 0, 5) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_PDEATHSIG, SIGUSR1) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
    prctl(PR_SET_TIMERSLACK, 12345);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setns, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = sizeof code / sizeof *code, .filter = code };
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}
static void verify(void) {
    uid_t r, e, s;
    gid_t groups[8];
    char name[16];
    int signal = 0;
    struct rlimit limit;
    CHECK(getresuid(&r, &e, &s) == 0 && r == 1000 && e == 1000 && s == 1000);
    CHECK(getresgid(&r, &e, &s) == 0 && r == 1000 && e == 1000 && s == 1000);
    CHECK(getgroups(8, groups) == 3 && groups[2] == 4242);
    for (int capability = 0; capability < 30; capability++)
        CHECK(prctl(PR_CAPBSET_READ, capability) == !(capability >= 10 && capability < 20));
    CHECK(setresuid(0, 0, 0) < 0 && errno == EPERM);
    getrlimit(RLIMIT_NOFILE, &limit);
    CHECK(limit.rlim_cur == 200 && limit.rlim_max == 300);
    prctl(PR_GET_NAME, name);
    CHECK(!strcmp(name, "new name"));
    CHECK(getpriority(PRIO_PROCESS, 0) == 5);
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    CHECK(prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGUSR1);
    CHECK(prctl(PR_GET_DUMPABLE) == 1);
    CHECK(prctl(PR_GET_TIMERSLACK) == 12345);
    CHECK(personality(0xffffffff) & ADDR_NO_RANDOMIZE);
    CHECK(syscall(SYS_setns, -1, 0) < 0 && errno == 77);
    CHECK(access("/proc/self/exe", R_OK) == 0);
    char link[256];
    ssize_t n = readlink("/proc/self/exe", link, sizeof link - 1);
    CHECK(n > 0 && strstr((link[n] = 0, link), "identity"));
    FILE *line = fopen("/proc/self/cmdline", "r");
    CHECK(line && fgets(link, sizeof link, line) && strstr(link, "identity"));
    fclose(line);
}
static void mutate(void) {
    prctl(PR_SET_NAME, "other");
    setpriority(PRIO_PROCESS, 0, 10);
    prctl(PR_SET_PDEATHSIG, 0);
    prctl(PR_SET_TIMERSLACK, 777);
}
