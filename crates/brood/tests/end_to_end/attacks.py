# Attempts to get out of a sandbox, run inside it. Each prints one line: its name, HELD or BROKEN, and
# what was seen. Numbers of system calls are those of x86-64.
import ctypes, errno, os, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)


def syscall(number, *arguments):
    ctypes.set_errno(0)
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return result, ctypes.get_errno()


def refused(name, number, *arguments):
    """The call must fail; if it succeeds the attack got through."""
    result, error = syscall(number, *arguments)
    tell(name, result < 0, f"{result} {errno.errorcode.get(error, error)}")


def tell(name, held, seen=""):
    print(name, "HELD" if held else "BROKEN", seen, flush=True)


def forbidden(name, action):
    try:
        seen = action()
    except (OSError, ValueError) as error:
        tell(name, True, repr(error))
    else:
        tell(name, False, repr(seen)[:200])


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path, "rb") as file:
        return file.read(64)


def in_child(action):
    """Some attempts would change this process: they get one of their own, and say by its code how they ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if action() else 1
        except BaseException:
            code = 1
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def mounts():
    text = lambda t: ctypes.c_char_p(t)
    refused("mount tmpfs", 165, text(b"none"), text(b"/mnt"), text(b"tmpfs"), 0, None)
    refused("bind mount", 165, text(b"/proc"), text(b"/mnt"), None, 4096, None)
    refused("remount /proc/sys writable", 165, None, text(b"/proc/sys"), None, 32 | 4096, None)
    refused("remount root", 165, None, text(b"/"), None, 32, None)
    refused("umount /proc", 166, text(b"/proc"), 2)
    refused("umount /proc/sys", 166, text(b"/proc/sys"), 2)
    refused("pivot_root", 155, text(b"/"), text(b"/mnt"))
    refused("open_tree", 428, -100, text(b"/"), 1)
    refused("fsopen", 430, text(b"tmpfs"), 0)
    refused("mount_setattr", 442, -100, text(b"/"), 0, None, 0)
    refused("swapon", 167, text(b"/etc/passwd"), 0)


def proc_and_sys():
    for path in [
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/panic", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
        "/proc/sys/kernel/randomize_va_space", "/proc/sys/fs/file-max", 
        "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/module/overlay/parameters/xino_auto",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cgroup.procs",
    ]:
        forbidden(f"write {path}", lambda: write(path, "1"))
    for path in ["/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/port", "/proc/1/mem", "/proc/keys", "/proc/timer_list", "/sys/firmware/acpi/tables/DSDT"]:
        try:
            content = read(path)
            tell(f"read {path}", content.strip(b"\0") == b"", content[:40])
        except OSError as error:
            tell(f"read {path}", True, repr(error))
    forbidden("escape the memory limit's choice", lambda: write("/proc/self/oom_score_adj", "-1000"))
    refused("syslog", 103, 3, ctypes.create_string_buffer(4096), 4096)
    held = not any(os.path.exists(f"/proc/{pid}/root/proc/1/fd") and os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid") for pid in os.listdir("/proc") if pid.isdigit())
    tell("processes of the host are not in /proc", held)
    fds = {int(fd) for fd in os.listdir("/proc/self/fd")}
    tell("no descriptor of the host is inherited", fds <= {0, 1, 2, 3}, sorted(fds))


def devices():
    for name, kind, major, minor in [("disk", 0o060000, 8, 0), ("disk-vda", 0o060000, 254, 0), ("mem", 0o020000, 1, 1), ("kmsg", 0o020000, 1, 11), ("loop", 0o060000, 7, 0), ("fuse", 0o020000, 10, 229)]:
        path = f"/tmp/device-{name}"
        try:
            os.mknod(path, kind | 0o666, os.makedev(major, minor))
        except OSError as error:
            tell(f"mknod {name}", True, repr(error))
            continue
        try:
            os.open(path, os.O_RDWR)
            tell(f"mknod {name}", False, "made and opened")
        except OSError as error:
            tell(f"mknod {name}", True, "made, but " + repr(error))
        os.unlink(path)
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts", "shm", "mqueue", "fd", "stdin", "stdout", "stderr", "core"}
    tell("no other devices in /dev", set(os.listdir("/dev")) <= allowed, sorted(set(os.listdir("/dev")) - allowed))


def namespaces():
    for name, flag in [("user", 0x10000000), ("mount", 0x20000), ("network", 0x40000000), ("pid", 0x20000000), ("cgroup", 0x02000000)]:
        tell(f"unshare {name}", not in_child(lambda: syscall(272, flag)[0] == 0))
        tell(f"clone {name}", not in_child(lambda: clone(flag)))
    args = struct.pack("<11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    tell("clone3 user", not in_child(lambda: clone3(args)))
    tell("setns", not in_child(lambda: syscall(308, os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)[0] == 0))
    forbidden("write uid_map", lambda: write("/proc/self/uid_map", "0 0 4294967295"))
    lines = open("/proc/self/uid_map").read().split()
    tell("root inside is nobody outside", lines[0] == "0" and int(lines[1]) >= 65536, lines)


def clone(flag):
    result, _ = syscall(56, flag | 17, 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    return result > 0


def clone3(args):
    result, _ = syscall(435, ctypes.create_string_buffer(args, len(args)), len(args))
    if result == 0:
        os._exit(0)
    return result > 0


def kernel():
    text = lambda t: ctypes.c_char_p(t)
    zero = ctypes.create_string_buffer(256)
    refused("bpf", 321, 0, zero, 72)
    refused("perf_event_open", 298, zero, 0, -1, -1, 0)
    result, error = syscall(425, 8, zero)
    tell("io_uring_setup", result < 0 and error == errno.ENOSYS, f"{result} {errno.errorcode.get(error, error)}")
    refused("userfaultfd", 323, 0)
    refused("init_module", 175, zero, 16, text(b""))
    refused("finit_module", 313, 0, text(b""), 0)
    refused("delete_module", 176, text(b"overlay"), 0)
    refused("kexec_load", 246, 0, 0, None, 0)
    refused("reboot", 169, 0xFEE1DEAD, 672274793, 0, None)
    refused("settimeofday", 164, zero, None)
    refused("clock_settime", 227, 0, zero)
    refused("adjtimex offset", 159, struct_timex())
    refused("iopl", 172, 3)
    refused("ioperm", 173, 0x70, 2, 1)
    refused("open_by_handle_at", 304, 3, zero, 0)
    refused("acct", 163, text(b"/tmp/acct"))
    refused("quotactl", 179, 0, text(b"/"), 0, None)
    refused("nfsservctl", 180, 0, None, None)
    refused("lookup_dcookie", 212, 0, zero, 256)
    buffer = ctypes.create_string_buffer(8)
    own = ctypes.create_string_buffer(struct.pack("<QQ", ctypes.addressof(buffer), 8), 16)
    theirs = ctypes.create_string_buffer(struct.pack("<QQ", 0x400000, 8), 16)
    result, error = syscall(310, 1, own, 1, theirs, 1, 0)
    # EFAULT would mean that only the address was wrong.
    tell("process_vm_readv of init", result < 0 and error in (errno.EPERM, errno.ENOSYS, errno.EACCES), errno.errorcode.get(error, error))
    refused("pidfd_getfd of init", 438, os.pidfd_open(1) if hasattr(os, "pidfd_open") else -1, 0, 0)
    refused("sethostname of another", 170, text(b"x" * 65), 65)


def struct_timex():
    buffer = ctypes.create_string_buffer(208)
    struct.pack_into("<I", buffer, 0, 1)
    return buffer


def keyrings():
    refused("add_key", 248, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"brood"), ctypes.c_char_p(b"x"), 1, -3)
    refused("request_key", 249, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"brood"), None, -3)
    refused("keyctl", 250, 0, -3, 1)
    refused("keyctl join", 250, 1, None)


def init():
    refused("ptrace attach init", 101, 16, 1, 0, 0)
    refused("ptrace seize init", 101, 0x4206, 1, 0, 0)
    for signal in [9, 15, 19, 11]:
        try:
            os.kill(1, signal)
        except OSError:
            pass
    tell("init survives signals", os.path.exists("/proc/1/status"))
    forbidden("read init's memory", lambda: read("/proc/1/mem"))
    forbidden("write init's memory", lambda: open("/proc/1/mem", "r+b").write(b"x"))
    forbidden("init's descriptors", lambda: [os.open(f"/proc/1/fd/{fd}", os.O_RDWR) for fd in os.listdir("/proc/1/fd")] or [][0])


def network():
    forbidden("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    forbidden("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    forbidden("raw socket, IPv6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW))
    for name, family in [("vsock", 40), ("xdp", 44), ("bluetooth", 31), ("alg", 38), ("packet", 17), ("tipc", 30), ("rds", 21)]:
        forbidden(f"{name} socket", lambda: socket.socket(family, socket.SOCK_SEQPACKET if family == 38 else socket.SOCK_STREAM))
    links = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else ["lo"]
    tell("own network devices only", "docker0" not in links and "virbr0" not in links, links)


def chroot():
    """The classic way out of a chroot: keep a directory open outside of a new root, and go up from it."""

    def escape():
        os.makedirs("/tmp/jail", exist_ok=True)
        outside = os.open("/", os.O_RDONLY)
        os.chroot("/tmp/jail")
        os.fchdir(outside)
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        return os.path.exists(WITNESS)

    tell("chroot and up", not in_child(escape))
    tell("the witness is not here", not os.path.exists(WITNESS))
    forbidden("/proc/1/root", lambda: open("/proc/1/root" + WITNESS).read())
    forbidden("/proc/1/cwd", lambda: open("/proc/1/cwd" + WITNESS).read())


def links():
    """Hard links to files of others, and to what is open elsewhere."""
    forbidden("hard link to a /proc file", lambda: os.link("/proc/1/environ", "/tmp/environ"))
    forbidden("hard link to init's program", lambda: os.link("/proc/1/exe", "/tmp/init", follow_symlinks=True) or write("/tmp/init", "x"))
    forbidden("overwrite init's program", lambda: open("/proc/1/exe", "r+b").write(b"x"))
    forbidden("overwrite one's own program", lambda: open("/proc/self/exe", "r+b").write(b"x"))


def capabilities():
    status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    bounding = int(status["CapBnd"], 16)
    names = {16: "SYS_MODULE", 17: "SYS_RAWIO", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 22: "SYS_BOOT", 25: "SYS_TIME", 12: "NET_ADMIN", 34: "SYSLOG", 39: "BPF", 38: "PERFMON", 35: "WAKE_ALARM", 33: "MAC_ADMIN"}
    for bit, name in names.items():
        tell(f"capability {name}", not bounding >> bit & 1, status["CapBnd"])
    tell("a seccomp filter is in force", status["Seccomp"] == "2", status["Seccomp"])


WITNESS = sys.argv[2]
globals()[sys.argv[1]]()
