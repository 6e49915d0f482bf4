//! Birth and death of sandboxes, and what they leave: nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use brood_sandbox::error::ErrorKind;
use brood_sandbox::files::Owner;
use brood_sandbox::model::{CreateRequest, ExitReason, ResourceLimits, SandboxState};

use crate::fixture::{TestEngine, create_request, out, run, shell};

fn entries(path: &Path) -> usize {
    std::fs::read_dir(path).map_or(0, Iterator::count)
}

#[test]
fn siblings_do_not_see_each_other() {
    let engine = TestEngine::with_debian();
    let (first, second) = (engine.sandbox(), engine.sandbox());
    out(&first, "echo mine > /tmp/file; rm /etc/passwd");
    assert_eq!(run(&second, shell("cat /tmp/file")).report.reason, ExitReason::Exited(1));
    assert!(out(&second, "cat /etc/passwd").starts_with("root:"));
    assert_ne!(out(&first, "hostname"), out(&second, "hostname"));
    assert_eq!(out(&second, "getent hosts $(hostname) | cut -c1-9"), "127.0.1.1");
}

#[test]
fn a_killed_sandbox_is_gone_and_cannot_be_killed_twice() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let id = sandbox.id().clone();
    let call = sandbox.spawn(shell("sleep 1000")).unwrap();
    engine.kill(&id).unwrap();
    assert_eq!(call.wait().reason, ExitReason::SandboxKilled);
    assert_eq!(engine.kill(&id).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.kill().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.spawn(shell("true")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.info().state, SandboxState::Dead);
    assert_eq!(entries(&engine.path().join("state/store/uppers")), 0);
}

#[test]
fn time_runs_out() {
    let engine = TestEngine::with_debian();
    let request = CreateRequest { timeout: Some(Duration::from_millis(300)), ..create_request() };
    let sandbox = engine.create(request).unwrap();
    let call = sandbox.spawn(shell("sleep 1000")).unwrap();
    let started = Instant::now();
    assert_eq!(call.wait().reason, ExitReason::SandboxKilled);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_sandbox_whose_first_process_dies_is_cleaned_up() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let call = sandbox.spawn(shell("sleep 1000")).unwrap();
    let pid = rustix::process::Pid::from_raw(sandbox.info().init_pid.unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(call.wait().reason, ExitReason::SandboxKilled);
}

#[test]
fn limits_out_of_range_are_refused_and_leave_nothing() {
    let engine = TestEngine::with_debian();
    let bad = [
        ResourceLimits { memory_bytes: 1, ..ResourceLimits::default() },
        ResourceLimits { pids: 1, ..ResourceLimits::default() },
        ResourceLimits { cpus: Some(0.0), ..ResourceLimits::default() },
        ResourceLimits { cpus: Some(f64::NAN), ..ResourceLimits::default() },
        ResourceLimits { disk_bytes: Some(1), ..ResourceLimits::default() },
    ];
    for limits in bad {
        let error = engine.create(CreateRequest { limits: limits.clone(), ..create_request() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{limits:?}: {}", error.chain());
    }
    assert_eq!(entries(&engine.path().join("state/store/uppers")), 0);
    assert!(engine.sandboxes().is_empty());
}

#[test]
fn a_disk_limit_holds_and_siblings_keep_working() {
    let engine = TestEngine::with_debian();
    let limits = ResourceLimits { disk_bytes: Some(32 << 20), ..create_request().limits };
    let limited = engine.create(CreateRequest { limits, ..create_request() }).unwrap();
    let free = engine.sandbox();
    let outcome = run(&limited, shell("dd if=/dev/zero of=/big bs=1M count=64"));
    assert_ne!(outcome.report.shell_code(), 0);
    assert!(outcome.stderr.contains("No space left") || outcome.stderr.contains("quota"), "{outcome:?}");
    out(&limited, "rm /big && dd if=/dev/zero of=/small bs=1M count=8");
    out(&free, "dd if=/dev/zero of=/big bs=1M count=64");
}

#[test]
fn templates_outlive_the_engine_and_leftovers_do_not() {
    let mut engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    out(&sandbox, "touch /tmp/x");
    drop(sandbox);
    engine.reopen();
    assert_eq!(engine.templates().unwrap().len(), 1);
    assert!(engine.sandboxes().is_empty());
    assert_eq!(entries(&engine.path().join("state/store/uppers")), 0);
    out(&engine.sandbox(), "true");
}

#[test]
fn a_template_in_use_cannot_be_removed() {
    let engine = TestEngine::with_debian();
    let name = "debian".parse().unwrap();
    let sandbox = engine.sandbox();
    assert_eq!(engine.remove_template(&name).unwrap_err().kind(), ErrorKind::Conflict);
    sandbox.kill().unwrap();
    drop(sandbox);
    engine.remove_template(&name).unwrap();
    assert_eq!(engine.remove_template(&name).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(engine.create(create_request()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn cycles_leave_no_descriptors_and_no_files() {
    let engine = TestEngine::with_debian();
    let descriptors = || entries(Path::new("/proc/self/fd"));
    let cycle = || {
        let sandbox = engine.sandbox();
        assert_eq!(out(&sandbox, "echo hi"), "hi");
        sandbox.kill().unwrap();
    };
    cycle();
    let before = descriptors();
    for _ in 0..30 {
        cycle();
    }
    // The thread that removes trees may have a few open at this moment; thirty leaks would show.
    let now = descriptors();
    assert!(now < before + 10, "{before} grew to {now}");
    assert_eq!(entries(&engine.path().join("state/store/uppers")), 0);
}

#[test]
fn files_go_in_and_out() {
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    let files = sandbox.files().unwrap();
    let mut file = files.create("/data/new/file", Owner { uid: 7, gid: 8 }, 0o640).unwrap();
    std::io::Write::write_all(&mut file, b"content").unwrap();
    drop(file);
    assert_eq!(
        out(&sandbox, "stat -c '%u %g %a %n' /data/new/file; cat /data/new/file"),
        "7 8 640 /data/new/file\ncontent"
    );
    assert_eq!(files.list("/data").unwrap()[0].name, "new");
    let mut archive = Vec::new();
    files.copy_out("/data", &mut archive).unwrap();
    files.copy_in(&archive[..], "/copy", Owner::default()).unwrap();
    assert_eq!(out(&sandbox, "cat /copy/data/new/file"), "content");
    files.rename("/copy/data", "/copy/moved").unwrap();
    files.remove("/copy/moved").unwrap();
    assert_eq!(files.stat("/copy/moved").unwrap_err().kind(), ErrorKind::NotFound);
}
