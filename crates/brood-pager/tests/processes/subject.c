/* A process whose memory is owed. It makes a userfaultfd and a range of memory, names both, and
 * then does what its first argument says, checking every page. Page `n` of the range holds
 * pattern(n), every fifth page zeros. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
static unsigned long pages;
static char *base;

static void fail(const char *what, unsigned long page) {
    printf("FAILED %s page %lu errno %d\n", what, page, errno);
    fflush(stdout);
    _exit(1);
}

static uint64_t word(unsigned long page, unsigned at) {
    if (page % 5 == 0) return 0;
    return (page + 1) * 0x9e3779b97f4a7c15UL + at;
}

/* Checks that a page holds what page `number` of the range is to hold. */
static void expect(const char *what, const char *page, unsigned long number) {
    const uint64_t *words = (const uint64_t *)page;
    for (unsigned at = 0; at < PAGE / 8; at += 37)
        if (words[at] != word(number, at)) fail(what, number);
}

static void expect_zeros(const char *what, const char *page, unsigned long number) {
    for (unsigned at = 0; at < PAGE; at += 64)
        if (page[at] != 0) fail(what, number);
}

static uint64_t state = 88172645463325252UL;
static unsigned long next_random(unsigned long limit) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % limit;
}

/* All pages in an order that jumps about (17 and the number of pages have no common factor). */
static void touch_all(const char *what) {
    for (unsigned long at = 0; at < pages; at++) {
        unsigned long page = at * 17 % pages;
        expect(what, base + page * PAGE, page);
    }
}

static void do_touch(void) { touch_all("touch"); }

static void do_write(void) {
    for (unsigned long page = 0; page < pages; page++) {
        base[page * PAGE + 8] = 1;
        if (((uint64_t *)(base + page * PAGE))[0] != word(page, 0)) fail("around a write", page);
    }
}

static void do_syscalls(void) {
    int ends[2];
    if (pipe(ends)) fail("pipe", 0);
    for (unsigned long page = 1; page + 1 < pages; page += 2) {
        char *place = base + page * PAGE;
        if (write(ends[1], "brood", 5) != 5) fail("write", page);
        if (read(ends[0], place + 4000, 5) != 5) fail("read into a missing page", page);
        if (memcmp(place + 4000, "brood", 5)) fail("what was read", page);
        if (((uint64_t *)place)[3] != word(page, 3)) fail("beside what was read", page);
        place = base + (page + 1) * PAGE;
        uint64_t copy[8];
        if (write(ends[1], place, sizeof copy) != sizeof copy) fail("write from a missing page", page);
        if (read(ends[0], copy, sizeof copy) != sizeof copy) fail("read", page);
        for (unsigned at = 0; at < 8; at++)
            if (copy[at] != word(page + 1, at)) fail("what was written", page + 1);
    }
}

static void wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) fail("the child's end", (unsigned long)status);
}

static pid_t forked(void) {
    pid_t child = fork();
    if (child < 0) fail("fork", 0);
    return child;
}

static void do_fork(void) {
    for (unsigned long page = 0; page < pages; page += 3) expect("before", base + page * PAGE, page);
    base[1 * PAGE] = 77;
    for (int round = 0; round < 3; round++) {
        pid_t child = forked();
        if (child == 0) {
            if (base[1 * PAGE] != 77) fail("the parent's write in the child", 1);
            pid_t grandchild = forked();
            if (grandchild == 0) {
                for (unsigned long page = 2; page < pages; page++) expect("grandchild", base + page * PAGE, page);
                _exit(0);
            }
            for (unsigned long page = 2; page < pages; page += 1 + next_random(3)) {
                expect("child", base + page * PAGE, page);
                memset(base + page * PAGE, 3, PAGE);
            }
            wait_for(grandchild);
            _exit(0);
        }
        wait_for(child);
    }
    for (unsigned long page = 2; page < pages; page++) expect("parent afterwards", base + page * PAGE, page);
    pid_t child = forked();
    if (child == 0) {
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    wait_for(child);
}

static void do_mremap(void) {
    unsigned long half = pages / 2, quarter = pages / 4;
    for (unsigned long page = 0; page < half; page += 2) expect("before", base + page * PAGE, page);
    char *reserved = mmap(0, pages * PAGE * 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    munmap(reserved, pages * PAGE * 2);
    char *moved = mremap(base, half * PAGE, half * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, reserved);
    if (moved != reserved) fail("mremap", 0);
    for (unsigned long page = 0; page < quarter; page++) expect("moved", moved + page * PAGE, page);
    char *grown = mremap(moved, half * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (grown == MAP_FAILED) fail("mremap that grows", 0);
    for (unsigned long page = 0; page < half; page++) expect("grown", grown + page * PAGE, page);
    for (unsigned long page = half; page < pages; page++) expect_zeros("behind what grew", grown + page * PAGE, page);
    char *rest = base + half * PAGE;
    if (mremap(rest, (pages - half) * PAGE, quarter * PAGE, 0) != rest) fail("mremap that shrinks", 0);
    char *again = mremap(rest, quarter * PAGE, half * PAGE, MREMAP_MAYMOVE);
    for (unsigned long page = 0; page < quarter; page++) expect("shrunk", again + page * PAGE, half + page);
    for (unsigned long page = quarter; page < half; page++) expect_zeros("grown again", again + page * PAGE, page);
}

static void do_madvise(void) {
    unsigned long quarter = pages / 4;
    for (unsigned long page = 0; page < 2 * quarter; page += 2) expect("before", base + page * PAGE, page);
    /* Touched and untouched pages alike, small and large pieces. */
    for (unsigned long page = 0; page < quarter; page += 4)
        if (madvise(base + page * PAGE, 2 * PAGE, MADV_DONTNEED)) fail("madvise", page);
    if (madvise(base + 2 * quarter * PAGE, quarter * PAGE, MADV_DONTNEED)) fail("madvise", 0);
    for (unsigned long page = 0; page < pages; page++) {
        int dropped = (page < quarter / 4 * 4 && page % 4 < 2) || (page >= 2 * quarter && page < 3 * quarter);
        if (dropped) expect_zeros("dropped", base + page * PAGE, page);
        else expect("kept", base + page * PAGE, page);
    }
    memset(base + PAGE, 9, PAGE);
    if (madvise(base + PAGE, PAGE, MADV_DONTNEED)) fail("madvise", 1);
    expect_zeros("dropped twice", base + PAGE, 1);
}

static void do_munmap(void) {
    unsigned long third = pages / 3;
    for (unsigned long page = third; page < 2 * third; page += 3) expect("before", base + page * PAGE, page);
    if (munmap(base + third * PAGE, third * PAGE)) fail("munmap", 0);
    char *fresh = mmap(base + third * PAGE, third / 2 * PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (fresh != base + third * PAGE) fail("mmap", 0);
    for (unsigned long page = 0; page < third / 2; page++) expect_zeros("fresh", fresh + page * PAGE, page);
    munmap(fresh, third / 2 * PAGE);
    /* What was owed there once must not come back when the mapping before it grows. */
    if (mremap(base, third * PAGE, 2 * third * PAGE, 0) != base) fail("mremap in place", 0);
    for (unsigned long page = 0; page < third; page++) expect("kept", base + page * PAGE, page);
    for (unsigned long page = third; page < 2 * third; page++) expect_zeros("grown into", base + page * PAGE, page);
    for (unsigned long page = 2 * third; page < pages; page++) expect("behind", base + page * PAGE, page);
}

static volatile int stop_changes;

/* Changes memory and forks, while others touch the range. */
static void *change(void *unused) {
    (void)unused;
    char *own = mmap(0, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 60 && !stop_changes; round++) {
        /* The last page is the changer's: it is moved away and back. */
        char *last = base + (pages - 1) * PAGE;
        char *there = mremap(last, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, own + 32 * PAGE);
        if (there != own + 32 * PAGE) fail("mremap", 0);
        expect("moved away", there, pages - 1);
        if (mremap(there, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, last) != last) fail("mremap back", 0);
        expect("moved back", last, pages - 1);
        madvise(base + (pages - 2) * PAGE, PAGE, MADV_DONTNEED);
        expect_zeros("dropped", base + (pages - 2) * PAGE, pages - 2);
        if (round % 6 == 0) {
            pid_t child = forked();
            if (child == 0) {
                for (int touch = 0; touch < 60; touch++) {
                    unsigned long page = next_random(pages - 2);
                    expect("child", base + page * PAGE, page);
                }
                _exit(0);
            }
            wait_for(child);
        }
    }
    return 0;
}

static void *touch_share(void *share) {
    for (unsigned long page = (unsigned long)share; page < pages - 2; page++)
        expect("thread", base + page * 17 % (pages - 2) * PAGE, page * 17 % (pages - 2));
    return 0;
}

static void do_threads(void) {
    pthread_t threads[4];
    for (unsigned long index = 0; index < 4; index++)
        pthread_create(&threads[index], 0, index == 0 ? change : touch_share, (void *)index);
    for (int index = 1; index < 4; index++) pthread_join(threads[index], 0);
    stop_changes = 1;
    pthread_join(threads[0], 0);
}

static void on_bus_error(int signal) {
    (void)signal;
    printf("ok bus error\n");
    fflush(stdout);
    _exit(0);
}

/* Touches one page of which the source knows nothing: as a call's buffer, then directly. */
static void do_lost(void) {
    int ends[2];
    signal(SIGBUS, on_bus_error);
    if (pipe(ends) || write(ends[1], base + 3 * PAGE, 8) >= 0 || errno != EFAULT) fail("a lost page in a call", 3);
    printf("%d\n", base[3 * PAGE]);
}

static void do_wait(void) {
    static char line[16];
    printf("waiting\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) _exit(1);
    touch_all("after waiting");
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    pages = strtoul(arguments[2], 0, 10);
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    int watcher = ioctl(device, 0xaa00, O_CLOEXEC | O_NONBLOCK);
    base = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (device < 0 || watcher < 0 || base == MAP_FAILED) fail("the beginning", 0);
    static char line[16];
    printf("%d %lu\n", watcher, (unsigned long)base);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    close(watcher);
    struct { const char *name; void (*function)(void); } all[] = {
        {"touch", do_touch}, {"write", do_write}, {"syscalls", do_syscalls}, {"fork", do_fork},
        {"mremap", do_mremap}, {"madvise", do_madvise}, {"munmap", do_munmap}, {"threads", do_threads},
        {"lost", do_lost}, {"wait", do_wait},
    };
    for (unsigned index = 0; index < sizeof all / sizeof *all; index++)
        if (!strcmp(arguments[1], all[index].name)) {
            all[index].function();
            printf("ok\n");
            return 0;
        }
    return 2;
}
