/* Files below a directory that is exchanged while the program is stopped: an open file that two
 * descriptors share, a working directory, and a shared mapping. */
#include "zoo.h"

static int file, shared;
static char *view;
static void setup(void) {
    CHECK(chdir(getenv("ZOO_FOLDER")) == 0);
    file = open("data", O_RDWR);
    CHECK(file >= 0 && lseek(file, 3, SEEK_SET) == 3);
    shared = dup(file);
    view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(view != MAP_FAILED && !memcmp(view, "old", 3));
}
static void verify(void) {
    char byte, text[8] = "";
    CHECK(!memcmp(view, "new", 3));
    CHECK(read(shared, &byte, 1) == 1 && byte == '!' && lseek(file, 0, SEEK_CUR) == 4);
    CHECK(lseek(file, 3, SEEK_SET) == 3);
    int again = open("data", O_RDONLY);
    CHECK(again >= 0 && read(again, text, 3) == 3 && !strcmp(text, "new"));
    close(again);
    view[0] = 'N';
    CHECK(pread(file, &byte, 1, 0) == 1 && byte == 'N');
    view[0] = 'n';
}
static void mutate(void) {}
