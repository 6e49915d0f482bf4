//! Attempts to get out, or to harm others, from inside. Siblings are watched meanwhile.
//!
//! What is tried stands in `attacks.py`, which runs inside.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, Ran, Sandbox, TEMPLATE, brood, brood_with};

/// How long the dead of a killed call may take to be reaped on a busy machine.
const REAPING_PATIENCE: Duration = Duration::from_secs(30);

const PROGRAM: &str = include_str!("attacks.py");

/// Runs one set of attempts as root inside, and fails with those that got through.
#[track_caller]
fn all_held(set: &str, at_least: usize) {
    let witness = tempfile::Builder::new().prefix("brood-witness").tempfile_in("/var/tmp").unwrap();
    let path = witness.path().to_str().unwrap();
    let sandbox = Sandbox::new();
    let sibling = Sandbox::new();
    let ran = brood_with(&["exec", &sandbox.id, "-i", "--", "python3", "-", set, path], PROGRAM.as_bytes()).succeeded();
    let broken: Vec<_> = ran.stdout.lines().filter(|line| !line.contains(" HELD ")).collect();
    assert!(broken.is_empty(), "got through: {broken:#?}");
    assert!(ran.stdout.lines().count() >= at_least, "{ran:#?}");
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
    sibling.exec(&["echo", "alive"]).succeeded().printed("alive\n");
}

#[test]
fn mounts_are_refused() {
    all_held("mounts", 11);
}

#[test]
fn proc_and_sys_do_not_reach_the_host() {
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    all_held("proc_and_sys", 20);
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
}

#[test]
fn devices_cannot_be_made_or_opened() {
    all_held("devices", 7);
}

#[test]
fn namespaces_cannot_be_made_or_joined() {
    all_held("namespaces", 12);
}

#[test]
fn kernel_interfaces_are_refused() {
    all_held("kernel", 20);
}

#[test]
fn keyrings_are_refused() {
    all_held("keyrings", 4);
}

#[test]
fn init_cannot_be_traced_or_killed() {
    all_held("init", 5);
}

#[test]
fn raw_and_foreign_sockets_are_refused() {
    all_held("network", 10);
}

#[test]
fn the_root_cannot_be_left() {
    all_held("chroot", 4);
}

#[test]
fn programs_of_the_host_cannot_be_linked_or_overwritten() {
    all_held("links", 4);
}

#[test]
fn capabilities_are_dropped() {
    all_held("capabilities", 12);
}

/// Runs an attack while a sibling is asked to work, over and over.
fn while_a_sibling_works(attack: impl FnOnce() -> Ran) -> Ran {
    let sibling = Sandbox::new();
    sibling.sh("echo mine > /file").succeeded();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) || rounds == 0 {
                sibling.exec(&["cat", "/file"]).succeeded().printed("mine\n");
                rounds += 1;
            }
            rounds
        });
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attack));
        over.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_fork_bomb_harms_nobody() {
    let sandbox = Sandbox::with(&["--pids", "200", "--cpus", "1"]);
    let bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let ran = while_a_sibling_works(|| sandbox.exec_with(&["--timeout", "5s"], &["python3", "-c", bomb]));
    ran.ended(124).said("timed out");
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
    // The dead count until they are reaped, which goes on after the call has ended.
    let deadline = Instant::now() + REAPING_PATIENCE;
    loop {
        let stats = brood(&["stats", &sandbox.id, "--json"]).succeeded().json();
        if stats[0]["pids"].as_u64().unwrap() < 20 {
            break;
        }
        assert!(Instant::now() < deadline, "{stats}");
    }
}

#[test]
fn a_memory_bomb_harms_nobody() {
    let sandbox = Sandbox::with(&["--memory", "128M"]);
    // Many processes at once, so that it does not matter which of them the kernel takes first.
    let bomb = "import os\nfor _ in range(8): os.fork()\nx=[]\nwhile True: x.append(bytearray(1<<20))";
    let ran = while_a_sibling_works(|| sandbox.exec_with(&["--timeout", "60s"], &["python3", "-c", bomb]));
    assert!([137, 124].contains(&ran.code), "{ran:#?}");
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
}

#[test]
fn files_in_memory_count_as_memory() {
    let sandbox = Sandbox::with(&["--memory", "64M"]);
    let ran = while_a_sibling_works(|| {
        sandbox.exec_with(
            &["--timeout", "60s"],
            &["python3", "-c", "import os\nf=os.memfd_create('x')\nwhile True: os.write(f, b'x'*(1<<20))"],
        )
    });
    assert_eq!(ran.code, 137, "{ran:#?}");
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
}

#[test]
fn a_full_disk_harms_nobody() {
    let sandbox = Sandbox::with(&["--disk", "64M"]);
    let ran = while_a_sibling_works(|| {
        sandbox.sh(
            "i=0; while head -c 1000000 /dev/zero > /fill$i; do i=$((i+1)); [ $i -lt 500 ] || exit 99; done; exit 5",
        )
    });
    ran.ended(5);
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
}

#[test]
fn open_descriptors_are_limited() {
    let sandbox = Sandbox::new();
    let script =
        "import os\nn=0\ntry:\n  while n < 3000000: os.open('/', 0); n+=1\nexcept OSError: pass\nprint(n < 3000000)";
    let ran = while_a_sibling_works(|| sandbox.exec_with(&["--timeout", "60s"], &["python3", "-c", script]));
    ran.succeeded().printed("True\n");
}

#[test]
fn output_without_end_is_bounded_in_the_daemon() {
    // With a daemon of its own, so that other tests' output does not count.
    let daemon = Fixture::start("output");
    let id = daemon.run(&["create", TEMPLATE]).succeeded().stdout;
    let pid = daemon.daemon_pid();
    let memory = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap().to_owned();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let before = memory();
    for _ in 0..4 {
        daemon.run(&["exec", id.trim(), "--detach", "--", "yes"]).succeeded();
    }
    daemon.run(&["exec", id.trim(), "--", "sleep", "3"]).succeeded();
    let after = memory();
    assert!(after < before + (20 << 10), "{before} KiB -> {after} KiB");
}

#[test]
fn the_daemons_socket_is_not_reachable() {
    let sandbox = Sandbox::new();
    let socket = crate::fixture::fixture().socket();
    sandbox.sh(&format!("test ! -e {}", socket.display())).succeeded();
}
