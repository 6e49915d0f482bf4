/* Regular files: offsets, append, descriptors that share an offset, directories, null. */
#include "zoo.h"
#include <dirent.h>

static char name[128], *folder;
static int data, shared, append_only, directory, null;
static void setup(void) {
    folder = getenv("ZOO_FOLDER");
    snprintf(name, sizeof name, "%s/data", folder);
    data = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(data >= 0 && write(data, "0123456789", 10) == 10);
    CHECK(lseek(data, 4, SEEK_SET) == 4);
    shared = dup2(data, 50);
    append_only = open(name, O_WRONLY | O_APPEND);
    directory = open(folder, O_RDONLY | O_DIRECTORY);
    null = open("/dev/null", O_RDWR);
    CHECK(chdir(folder) == 0);
    umask(027);
    CHECK(shared == 50 && append_only >= 0 && directory >= 0 && null >= 0);
}
static void verify(void) {
    char byte, cwd[128];
    CHECK(lseek(data, 0, SEEK_CUR) == 4 && lseek(shared, 0, SEEK_CUR) == 4);
    CHECK(read(shared, &byte, 1) == 1 && byte == '4');
    CHECK(lseek(data, 0, SEEK_CUR) == 5);
    CHECK(lseek(data, 4, SEEK_SET) == 4);
    CHECK(fcntl(data, F_GETFD) == FD_CLOEXEC && fcntl(shared, F_GETFD) == 0);
    CHECK((fcntl(data, F_GETFL) & O_ACCMODE) == O_RDWR);
    CHECK(fcntl(append_only, F_GETFL) & O_APPEND);
    CHECK(faccessat(directory, "data", F_OK, 0) == 0);
    CHECK(write(null, "x", 1) == 1);
    CHECK(getcwd(cwd, sizeof cwd) && !strcmp(cwd, folder));
    CHECK(umask(027) == 027);
    CHECK(open("/dev/null", O_RDONLY) == null + 1 && close(null + 1) == 0);
}
static void mutate(void) {
    lseek(data, 8, SEEK_SET);
    close(shared);
    shared = open("/dev/null", O_RDONLY);
    CHECK(chdir("/") == 0);
    umask(0);
    fcntl(append_only, F_SETFL, 0);
}
