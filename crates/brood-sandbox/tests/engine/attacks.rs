//! Attempts to get out or to harm others, each from inside, with a sibling that must not notice.

use brood_sandbox::error::ErrorKind;
use brood_sandbox::files::Owner;
use brood_sandbox::model::{CreateRequest, ExitReason, ProcessRequest, ResourceLimits};

use crate::fixture::{TestEngine, call, create_request, out, run, shell};

#[test]
fn the_kernel_interfaces_of_the_host_are_out_of_reach() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    for script in [
        "mount -t tmpfs none /mnt",
        "mount --bind /proc /mnt",
        "umount /proc/sys",
        "unshare -U true",
        "unshare -m true",
        "unshare -r true",
        "mknod /tmp/disk b 8 0",
        "mknod /tmp/mem c 1 1",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger",
        "echo x > /proc/sys/kernel/core_pattern",
        "cat /proc/kcore | head -c 1 | grep -q .",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "ls /proc/1/root/",
        "readlink /proc/1/fd/3",
        "kill -9 1 && sleep 0.1 && test ! -d /proc/1",
        "echo 1 > /sys/kernel/uevent_helper",
        "ls /sys/firmware/* /sys/kernel/debug/* /sys/kernel/security/*",
        "chroot /proc/1/root true",
        "hostname other",
        "date -s 2000-01-01",
        "dmesg",
        "echo -1000 > /proc/self/oom_score_adj",
        "test -e /sys/fs/cgroup/cgroup.procs",
        "nice -n -5 true 2>&1 | grep -qv 'cannot set niceness'",
    ] {
        let outcome = run(&sandbox, shell(script));
        assert_ne!(outcome.report.shell_code(), 0, "{script}: {outcome:?}");
    }
    assert_eq!(out(&sandbox, "echo fine"), "fine");
}

/// Makes a system call from inside; its error number, or zero.
fn system_call(sandbox: &std::sync::Arc<brood_sandbox::sandbox::Sandbox>, arguments: &str) -> i32 {
    let script = format!(
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); r = c.syscall({arguments}); \
         print(ctypes.get_errno() if r < 0 else 0)"
    );
    run(sandbox, call(&["python3", "-c", &script])).stdout.trim().parse().unwrap()
}

#[test]
fn system_calls_that_no_sandbox_needs_are_refused() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    const EPERM: i32 = 1;
    const ENOSYS: i32 = 38;
    const EAFNOSUPPORT: i32 = 97;
    for (arguments, wanted) in [
        ("248, b'user', b'name', b'x', 1, -2", EPERM), // add_key
        ("250, 0, -3, 0", EPERM),                      // keyctl
        ("321, 0, 0, 0", EPERM),                       // bpf
        ("298, 0, 0, 0, 0, 0", EPERM),                 // perf_event_open
        ("323, 0", EPERM),                             // userfaultfd
        ("425, 8, 0", ENOSYS),                         // io_uring_setup
        ("435, 0, 0", ENOSYS),                         // clone3
        ("308, 0, 0", EPERM),                          // setns
        ("304, 0, 0, 0", EPERM),                       // open_by_handle_at
        ("246, 0, 0, 0, 0", EPERM),                    // kexec_load
        ("175, 0, 0, 0", EPERM),                       // init_module
        ("56, 0x10000000, 0, 0, 0, 0", EPERM),         // clone with a user namespace
        ("41, 40, 1, 0", EAFNOSUPPORT),                // socket of virtual machines
        ("41, 38, 5, 0", EAFNOSUPPORT),                // socket of kernel cryptography
        ("9999", ENOSYS),
        ("0x40000000 + 39", ENOSYS), // x32
        ("101, 16, 1, 0, 0", EPERM), // ptrace: attach to PID 1
    ] {
        assert_eq!(system_call(&sandbox, arguments), wanted, "{arguments}");
    }
    assert_eq!(system_call(&sandbox, "39"), 0, "getpid");
}

#[test]
fn a_fork_bomb_stays_in_its_sandbox() {
    let engine = TestEngine::with_debian();
    let sibling = engine.sandbox();
    let limits = ResourceLimits { pids: 40, ..create_request().limits };
    let victim = engine.create(CreateRequest { limits, ..create_request() }).unwrap();
    let bomb = victim.spawn(shell("b() { b | b & }; b; sleep 1000")).unwrap();
    assert_eq!(out(&sibling, "echo fine"), "fine");
    assert!(victim.stats().unwrap().pids <= 40);
    bomb.kill().unwrap();
    bomb.wait();
    victim.kill().unwrap();
    assert_eq!(out(&sibling, "echo fine"), "fine");
}

#[test]
fn a_memory_bomb_stays_in_its_sandbox() {
    let engine = TestEngine::with_debian();
    let sibling = engine.sandbox();
    let limits = ResourceLimits { memory_bytes: 64 << 20, ..create_request().limits };
    let victim = engine.create(CreateRequest { limits, ..create_request() }).unwrap();
    let script = "import os\nfor i in range(8):\n  if os.fork() == 0:\n    x = []\n    while True: x.append(bytearray(1 << 20))\n\
                  for i in range(8): os.wait()";
    let outcome = run(&victim, call(&["python3", "-c", script]));
    assert!(matches!(outcome.report.reason, ExitReason::Exited(_) | ExitReason::OutOfMemory), "{outcome:?}");
    assert_eq!(out(&victim, "echo alive"), "alive");
    assert_eq!(out(&sibling, "echo fine"), "fine");
}

#[test]
fn links_of_the_sandbox_do_not_lead_the_engine_to_the_host() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let secret = engine.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let target = secret.display();
    out(&sandbox, &format!("ln -s {target} /link; ln -s / /root-link; ln -s ../../../../../../.. /up; mkfifo /fifo"));
    out(&sandbox, "ln -s /proc/1/root /proc-link; ln -s /dev/zero /zero");
    let files = sandbox.files().unwrap();
    for path in ["/link", "/up/etc/no-such-file", &format!("/root-link{target}"), &format!("/up{target}")] {
        assert_eq!(files.open_read(path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
    }
    for path in ["/proc/1/environ", "/fifo", "/zero", "/dev/null", "/sys/kernel/notes"] {
        let kind = files.open_read(path).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Internal), "{path}: {kind:?}");
    }
    // Writing through a link stays inside too.
    files.create("/link", Owner::default(), 0o644).unwrap_err();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the host");
    out(&sandbox, "rm /etc/passwd; ln -s /fifo /etc/passwd");
    let request = ProcessRequest { user: Some("daemon".to_owned()), ..call(&["true"]) };
    assert_eq!(sandbox.spawn(request).unwrap_err().kind(), ErrorKind::Invalid, "a fifo for /etc/passwd does not block");
}

#[test]
fn hostile_archives_are_refused() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let files = sandbox.files().unwrap();
    out(&sandbox, "mkdir /in; ln -s /etc /in/link");
    for (name, kind) in [("../../etc/evil", tar::EntryType::Regular), ("node", tar::EntryType::Char)] {
        let mut header = tar::Header::new_gnu();
        // Through the raw field: the safe interface refuses such names.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o644);
        header.set_cksum();
        let mut archive = header.as_bytes().to_vec();
        archive.extend([0; 1024]);
        assert_eq!(
            files.copy_in(&archive[..], "/in", Owner::default()).unwrap_err().kind(),
            ErrorKind::Invalid,
            "{name}"
        );
    }
    assert_eq!(
        files.copy_in(&b"not a tar archive at all"[..], "/in", Owner::default()).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    out(&sandbox, "test ! -e /etc/evil");
}

#[test]
fn output_that_nobody_reads_does_not_fill_the_daemon() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let before = resident_kib();
    let process = sandbox.spawn(shell("head -c 300000000 /dev/zero")).unwrap();
    assert_eq!(process.wait().reason, ExitReason::Exited(0));
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 50_000, "{grown} KiB");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
