//! Created, listed, looked at, killed.

use crate::fixture::{Sandbox, TEMPLATE, brood};

#[test]
fn a_sandbox_lives_from_create_to_kill() {
    let sandbox = Sandbox::with(&["--label", "test=life"]);
    assert_eq!(sandbox.id.len(), 20);
    sandbox.exec(&["echo", "hello"]).succeeded().printed("hello\n");
    let listed = brood(&["ps", "--json", "--label", "test=life"]).succeeded().json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["id"], sandbox.id.as_str());
    let shown = brood(&["inspect", &sandbox.id[..12]]).succeeded().json();
    assert_eq!(shown[0]["state"], "running");
    assert_eq!(shown[0]["template"], TEMPLATE);
    brood(&["kill", &sandbox.id]).succeeded().printed(&format!("{}\n", sandbox.id));
    brood(&["exec", &sandbox.id, "--", "true"]).ended(125).said(&sandbox.id);
}

#[test]
fn many_are_created_by_one_request() {
    let ids = brood(&["create", TEMPLATE, "-n", "20", "--label", "test=many"]).succeeded().stdout;
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(ids.len(), 20);
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 20);
    let listed = brood(&["ps", "-q", "--label", "test=many"]).succeeded();
    assert_eq!(listed.stdout.lines().count(), 20);
    let killed = brood(&[&["kill"], &ids[..]].concat()).succeeded();
    assert_eq!(killed.stdout.lines().count(), 20);
    brood(&["ps", "-q", "--label", "test=many"]).succeeded().printed("");
}

#[test]
fn siblings_do_not_see_each_others_files() {
    let (one, other) = (Sandbox::new(), Sandbox::new());
    one.sh("echo mine > /tmp/file; rm -r /etc/apt; echo changed >> /etc/passwd").succeeded();
    other.sh("test ! -e /tmp/file && test -d /etc/apt && ! grep -q changed /etc/passwd").succeeded();
    let third = Sandbox::new();
    third.sh("test ! -e /tmp/file && test -d /etc/apt").succeeded();
}

#[test]
fn run_creates_and_kills() {
    let before = brood(&["ps", "-q", "--label", "test=run"]).succeeded().stdout;
    let ran =
        brood(&["run", TEMPLATE, "--label", "test=run", "--env", "A=1", "--", "/bin/sh", "-c", "echo $A; exit 7"]);
    ran.ended(7).printed("1\n");
    assert_eq!(brood(&["ps", "-q", "--label", "test=run"]).succeeded().stdout, before);
}

#[test]
fn a_sandbox_is_killed_when_its_time_is_up() {
    let sandbox = Sandbox::with(&["--timeout", "300ms"]);
    // The call ends with the sandbox, which is the event that is waited for.
    sandbox.exec(&["sleep", "60"]).ended(137).said("the sandbox was killed");
    brood(&["inspect", &sandbox.id]).ended(1).said(&sandbox.id);
}

#[test]
fn environment_and_user_and_directory_are_as_asked() {
    let sandbox = Sandbox::with(&["--env", "OUTER=1"]);
    sandbox.exec_with(&["--env", "INNER=a b"], &["/bin/sh", "-c", "echo $OUTER $INNER"]).succeeded().printed("1 a b\n");
    sandbox.exec_with(&["--user", "nobody"], &["id", "-un"]).succeeded().printed("nobody\n");
    sandbox.exec_with(&["--user", "1234:5678"], &["/bin/sh", "-c", "id -u; id -g"]).succeeded().printed("1234\n5678\n");
    sandbox.exec_with(&["--cwd", "/usr/lib"], &["pwd"]).succeeded().printed("/usr/lib\n");
    sandbox.exec(&["id", "-u"]).succeeded().printed("0\n");
}

#[test]
fn the_inside_looks_like_a_machine_of_its_own() {
    let sandbox = Sandbox::new();
    let pids = sandbox.sh("ls -d /proc/[0-9]* | wc -l").succeeded().stdout;
    assert!(pids.trim().parse::<u32>().unwrap() < 8, "{pids}");
    sandbox.sh("test -w /dev/null && test -c /dev/urandom && test -d /dev/pts && test -w /dev/shm").succeeded();
    sandbox.sh("grep -q localhost /etc/hosts && grep -q $(hostname) /etc/hosts").succeeded();
    sandbox
        .python(
            "import socket\ns=socket.create_server(('127.0.0.1',0))\n\
             c=socket.create_connection(s.getsockname())\nprint('loopback')",
        )
        .succeeded()
        .printed("loopback\n");
    // Without randomisation two runs find the same addresses.
    let map = "grep -m1 libc.so /proc/self/maps | cut -d- -f1";
    assert_eq!(sandbox.sh(map).succeeded().stdout, sandbox.sh(map).succeeded().stdout);
}

#[test]
fn events_tell_what_happened() {
    let sandbox = Sandbox::new();
    sandbox.exec(&["true"]).succeeded();
    brood(&["kill", &sandbox.id]).succeeded();
    let events = brood(&["events", "--no-follow", "--json"]).succeeded().stdout;
    let of_it: Vec<_> = events.lines().filter(|line| line.contains(&sandbox.id)).collect();
    for action in ["create", "exec_start", "exec_die", "die"] {
        assert!(of_it.iter().any(|line| line.contains(&format!("\"action\":\"{action}\""))), "{action} in {of_it:#?}");
    }
}

#[test]
fn logs_hold_what_background_processes_wrote() {
    let sandbox = Sandbox::new();
    let pid = sandbox.exec_with(&["--detach"], &["/bin/sh", "-c", "echo to the log; echo bad >&2"]).succeeded().stdout;
    brood(&["attach", &sandbox.id, pid.trim()]).succeeded();
    let logs = brood(&["logs", &sandbox.id]).succeeded().stdout;
    assert!(logs.contains("to the log") && logs.contains("bad"), "{logs}");
    let last = brood(&["logs", &sandbox.id, "--tail", "1", "--json"]).succeeded().stdout;
    assert_eq!(last.lines().count(), 1, "{last}");
}

#[test]
fn stats_count_what_is_used() {
    let sandbox = Sandbox::with(&["--memory", "256M"]);
    sandbox
        .exec_with(&["--detach"], &["python3", "-c", "x=bytearray(50<<20)\nimport time\ntime.sleep(100)"])
        .succeeded();
    sandbox.sh("head -c 5000000 /dev/urandom > /file").succeeded();
    // The allocation may take a moment longer than the call; each look is an event of its own.
    let grown = (0..200).any(|_| {
        let stats = brood(&["stats", &sandbox.id, "--json"]).succeeded().json();
        assert_eq!(stats[0]["memory_limit_bytes"], 256 << 20);
        stats[0]["memory_bytes"].as_u64().unwrap() > 50 << 20
    });
    assert!(grown);
    let stats = brood(&["stats", &sandbox.id, "--json"]).succeeded().json();
    assert!(stats[0]["disk_bytes"].as_u64().unwrap() >= 5_000_000, "{stats}");
    assert!(stats[0]["pids"].as_u64().unwrap() >= 2, "{stats}");
    assert!(stats[0]["cpu_us"].as_u64().unwrap() > 0, "{stats}");
}
