/* Private memory of all sorts: heap, anonymous mappings with holes and protections, bss, stack. */
#include "zoo.h"

#define PAGES 64
static unsigned char big[PAGES * 4096];
static unsigned char *mapped, *readonly, *none, *reserved, *heap, *fresh;
static char *stack_text;
static void *break_at;
static unsigned generation;

static void fill(unsigned char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(seed + i * 31 + (i >> 8));
}
static int filled(const unsigned char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) if (at[i] != (unsigned char)(seed + i * 31 + (i >> 8))) return 0;
    return 1;
}
static unsigned char *map(size_t bytes, int protection, int flags) {
    unsigned char *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}
static void setup(void) {
    fill(big, sizeof big, 1);
    mapped = map(PAGES * 4096, PROT_READ | PROT_WRITE, 0);
    for (int i = 0; i < PAGES; i += 3) fill(mapped + i * 4096, 4096, i);
    readonly = map(4 * 4096, PROT_READ | PROT_WRITE, 0);
    fill(readonly, 4 * 4096, 7);
    mprotect(readonly, 4 * 4096, PROT_READ);
    none = map(3 * 4096, PROT_READ | PROT_WRITE, 0);
    fill(none, 3 * 4096, 9);
    mprotect(none, 3 * 4096, PROT_NONE);
    reserved = map(1UL << 40, PROT_NONE, MAP_NORESERVE);
    mprotect(reserved + (1UL << 39), 4096, PROT_READ | PROT_WRITE);
    fill(reserved + (1UL << 39), 4096, 11);
    heap = malloc(100000);
    fill(heap, 100000, 13);
    break_at = sbrk(0);
    stack_text = strdup("on the heap");
}
static void verify(void) {
    CHECK(generation == 0);
    CHECK(filled(big, sizeof big, 1));
    for (int i = 0; i < PAGES; i++) {
        if (i % 3 == 0) CHECK(filled(mapped + i * 4096, 4096, i));
        else for (int j = 0; j < 4096; j += 512) CHECK(mapped[i * 4096 + j] == 0);
    }
    CHECK(filled(readonly, 4 * 4096, 7));
    CHECK(mprotect(none, 3 * 4096, PROT_READ) == 0 && filled(none, 3 * 4096, 9));
    CHECK(mprotect(none, 3 * 4096, PROT_NONE) == 0);
    CHECK(filled(reserved + (1UL << 39), 4096, 11));
    CHECK(filled(heap, 100000, 13));
    CHECK(sbrk(0) == break_at);
    CHECK(!strcmp(stack_text, "on the heap"));
    /* What the allocator and the kernel do must go on as if nothing had happened. */
    CHECK(madvise(mapped, 4096, MADV_DONTNEED) == 0 && mapped[5] == 0);
    fill(mapped, 4096, 0);
    unsigned char *grown = mremap(readonly, 4 * 4096, 8 * 4096, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED && filled(grown, 4 * 4096, 7) && grown[5 * 4096] == 0);
    readonly = mremap(grown, 8 * 4096, 4 * 4096, 0);
    CHECK(readonly == grown);
    void *more = malloc(1 << 20);
    CHECK(more);
    memset(more, 1, 1 << 20);
    free(more);
    void *before = sbrk(8192);
    CHECK(before == break_at);
    memset(before, 0x55, 8192);
    CHECK(sbrk(-8192) == (char *)before + 8192 && sbrk(0) == break_at);
}
static void mutate(void) {
    generation++;
    fill(big, sizeof big / 2, 200);
    fill(mapped, PAGES * 4096, 201);
    munmap(none, 4096);
    mprotect(readonly, 4 * 4096, PROT_READ | PROT_WRITE);
    fill(readonly, 4096, 5);
    fill(heap, 50000, 4);
    fresh = map(40 * 4096, PROT_READ | PROT_WRITE, 0);
    fill(fresh, 40 * 4096, 17);
    madvise(reserved + (1UL << 39), 4096, MADV_DONTNEED);
    CHECK(sbrk(100 * 4096) == break_at);
    memset(break_at, 0x77, 100 * 4096);
    stack_text[0] = 'X';
}
