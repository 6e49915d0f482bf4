// Pages that carry checksum chains. Each page is filled from its index and version, and ends in a
// checksum; a version follows from the one before. Whatever page is looked at must hold exactly
// what was written last, or zeros where it was given up.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512, THREADS = 2 };
typedef uint64_t page_t[WORDS];

static page_t *pages;
static size_t count;
// 0: never written or given up, so zeros; ~0: not mapped.
static uint64_t *versions;
static const uint64_t UNMAPPED = ~0ull;
static volatile int running;
static uint64_t rounds[THREADS];

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// What a word of a page holds: kinds of content from constant to noise.
static uint64_t content(uint64_t index, uint64_t version, int word) {
    uint64_t seed = mix(index * 131 + 7);
    switch (index % 6) {
    case 0: return seed & 0xff;
    case 1: return word == (int)(version % 500) + 2 ? version : mix(seed + word);
    case 2: return mix(seed ^ (version * 1000003 + word));
    case 3: return word % 16 ? 0 : mix(seed + version + word) & 0xffff;
    case 4: return 0x7f0000000000ull + (mix(seed + word / 4) & 0xffff) * 16 + version % 3;
    default: return (mix(seed + word) % 26) * 0x0101010101010101ull + (uint64_t)(word == 99) * version;
    }
}

static void fill(size_t index, uint64_t version) {
    uint64_t sum = version;
    uint64_t *words = pages[index];
    words[0] = index;
    words[1] = version;
    for (int word = 2; word < WORDS - 1; word++) {
        words[word] = content(index, version, word);
        sum = mix(sum ^ words[word]);
    }
    words[WORDS - 1] = sum;
    versions[index] = version;
}

static int check(size_t index) {
    uint64_t version = versions[index];
    const uint64_t *words = pages[index];
    if (version == UNMAPPED) return 1;
    if (version == 0) {
        for (int word = 0; word < WORDS; word++)
            if (words[word]) goto bad;
        return 1;
    }
    uint64_t sum = version;
    if (words[0] != index || words[1] != version) goto bad;
    for (int word = 2; word < WORDS - 1; word++) {
        if (words[word] != content(index, version, word)) goto bad;
        sum = mix(sum ^ words[word]);
    }
    if (words[WORDS - 1] == sum) return 1;
bad:
    printf("BAD page %zu: index %lu version %lu, expected version %lu\n", index, words[0], words[1], version);
    fflush(stdout);
    fprintf(stderr, "BAD page %zu\n", index);
    return 0;
}

static int check_all(void) {
    for (size_t index = 0; index < count; index++)
        if (!check(index)) return 0;
    return 1;
}

static void *hammer(void *argument) {
    uint64_t own = (uintptr_t)argument, state = mix(own + (uint64_t)getpid());
    while (running) {
        state = mix(state);
        size_t index = state % (count / THREADS) * THREADS + own;
        if (!check(index)) abort();
        if (versions[index] != UNMAPPED && state >> 59 < 1) fill(index, versions[index] + 1);
        rounds[own]++;
    }
    return NULL;
}

// A read(2) into pages: the kernel touches them.
static int read_into(size_t index, size_t number) {
    int file = memfd_create("content", 0);
    page_t copy;
    for (size_t page = index; page < index + number; page++) {
        uint64_t version = versions[page];
        if (version == UNMAPPED) return 1;
        page_t *place = pages;
        pages = &copy - page;
        fill(page, version + 1);
        pages = place;
        if (write(file, copy, sizeof copy) != sizeof copy) return 0;
    }
    int whole = pread(file, pages[index], number * sizeof copy, 0) == (ssize_t)(number * sizeof copy);
    close(file);
    return whole;
}

// A line of standard input, byte by byte, into memory that the caller stands on: a reader that waits for a page holds
// the pipe meanwhile.
static char *next_line(char *line, size_t size) {
    size_t length = 0;
    while (length + 1 < size && read(0, line + length, 1) == 1)
        if (line[length++] == '\n') break;
    line[length] = 0;
    return length ? line : NULL;
}

int main(int argc, char **argv) {
    count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    pages = mmap(NULL, count * sizeof *pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    versions = calloc(count, sizeof *versions);
    // Some are never written.
    for (size_t index = 0; index < count; index++)
        if (index % 50) fill(index, 1);
    pthread_t threads[THREADS];
    char line[256];
    // What is wrong is said even if nobody listens.
    signal(SIGPIPE, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    while (next_line(line, sizeof line)) {
        size_t from = 0, number = 0;
        char verb[32] = "";
        sscanf(line, "%31s %zu %zu", verb, &from, &number);
        int good = 1;
        if (!strcmp(verb, "check")) {
            good = check_all();
        } else if (!strcmp(verb, "look")) {
            for (size_t index = from; index < from + number; index++) good = good && check(index);
        } else if (!strcmp(verb, "write")) {
            for (size_t index = from; index < from + number; index++)
                if (versions[index] != UNMAPPED) fill(index, versions[index] + 1);
        } else if (!strcmp(verb, "hammer")) {
            running = 1;
            for (uintptr_t own = 0; own < THREADS; own++) pthread_create(&threads[own], NULL, hammer, (void *)own);
        } else if (!strcmp(verb, "rest")) {
            running = 0;
            for (int own = 0; own < THREADS; own++) pthread_join(threads[own], NULL);
            printf("rounds %lu\n", rounds[0] + rounds[1]);
        } else if (!strcmp(verb, "discard")) {
            madvise(pages[from], number * sizeof *pages, MADV_DONTNEED);
            for (size_t index = from; index < from + number; index++) versions[index] = 0;
        } else if (!strcmp(verb, "unmap")) {
            munmap(pages[from], number * sizeof *pages);
            for (size_t index = from; index < from + number; index++) versions[index] = UNMAPPED;
        } else if (!strcmp(verb, "move")) {
            void *moved = mremap(pages, count * sizeof *pages, (count + number) * sizeof *pages, MREMAP_MAYMOVE);
            good = moved != MAP_FAILED;
            if (good) {
                pages = moved;
                versions = realloc(versions, (count + number) * sizeof *versions);
                memset(versions + count, 0, number * sizeof *versions);
                count += number;
            } else {
                printf("mremap: %s\n", strerror(errno));
            }
        } else if (!strcmp(verb, "read")) {
            good = read_into(from, number);
        } else if (!strcmp(verb, "fork")) {
            // The child looks, writes, looks again; the parent's pages stay its own.
            pid_t child = fork();
            if (child == 0) {
                if (!check_all()) _exit(1);
                for (size_t index = 0; index < count; index += 3)
                    if (versions[index] != UNMAPPED) fill(index, versions[index] + 7);
                _exit(check_all() ? 0 : 1);
            }
            int status = -1;
            waitpid(child, &status, 0);
            good = status == 0 && check_all();
        } else if (!strcmp(verb, "split")) {
            // A child that stays and takes the commands from now on; the parent waits for it.
            pid_t child = fork();
            if (child != 0) {
                int status = -1;
                waitpid(child, &status, 0);
                printf(status == 0 && check_all() ? "ok\n" : "BAD child\n");
                fflush(stdout);
                continue;
            }
        } else if (!strcmp(verb, "exec")) {
            execl("/proc/self/exe", argv[0], argv[1], NULL);
        } else if (!strcmp(verb, "end")) {
            return 0;
        }
        printf(good ? "ok\n" : "BAD %s", line);
        fflush(stdout);
    }
    return 0;
}
