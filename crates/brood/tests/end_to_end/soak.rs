//! Ten thousand calls and a thousand sandboxes leave the daemon as it was.
//!
//! `BROOD_TEST_SOAK=full` runs them all; otherwise a tenth of the calls and a fifth of the sandboxes,
//! with the same bounds on what may stay.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use brood_api::Client;
use brood_api::types::CreateSandboxes;
use brood_sandbox::model::ProcessRequest;

use crate::fixture::{Fixture, TEMPLATE};

/// Growth of the daemon's memory that counts as flat: what an allocator keeps for itself.
const MEMORY_KIB_GROWTH_MAX: u64 = 4 << 10;
/// Connections of this very test come and go.
const DESCRIPTOR_GROWTH_MAX: usize = 4;

/// Time that removal in the background may take on a busy machine.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(30);

fn lengths() -> (usize, usize) {
    match std::env::var("BROOD_TEST_SOAK").as_deref() {
        Ok("full") => (10_000, 1_000),
        _ => (1_000, 200),
    }
}

#[derive(Debug)]
struct Use {
    memory_kib: u64,
    descriptors: usize,
    state_entries: usize,
}

fn in_use(daemon: &Fixture, pid: u32) -> Use {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    Use {
        memory_kib: memory.split_whitespace().next().unwrap().parse().unwrap(),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        state_entries: entries(&daemon.directory.join("state"), 3),
    }
}

/// Files and directories below a path, but not below the layers' own roots.
fn entries(path: &Path, depth: usize) -> usize {
    let Ok(list) = fs::read_dir(path) else { return 0 };
    list.flatten()
        .map(|entry| {
            let below = depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir());
            1 + if below { entries(&entry.path(), depth - 1) } else { 0 }
        })
        .sum()
}

fn request(arguments: &[&str]) -> ProcessRequest {
    serde_json::from_value(serde_json::json!({ "arguments": arguments })).unwrap()
}

/// With a daemon of its own, so that nobody else disturbs the count.
#[test]
fn calls_and_sandboxes_leave_the_daemon_flat() {
    let (calls, cycles) = lengths();
    let daemon = Fixture::start("soak");
    let pid = daemon.daemon_pid();
    let sandbox = daemon.run(&["create", TEMPLATE]).succeeded().stdout;
    let sandbox = sandbox.trim();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(daemon.socket());
        let create: CreateSandboxes = serde_json::from_value(serde_json::json!({ "template": TEMPLATE })).unwrap();
        let run = async |calls: usize| {
            let mut session = client.open_session(sandbox, &request(&["/bin/true"])).await.unwrap();
            assert_eq!(session.wait().await.unwrap().shell_code(), 0);
            for call in 0..calls {
                let text = call.to_string();
                session.run(sandbox, &request(&["/bin/echo", &text])).await.unwrap();
                assert_eq!(session.wait().await.unwrap().shell_code(), 0);
            }
        };
        let cycle = async |cycles: usize| {
            for _ in 0..cycles {
                let id = client.create(&create).await.unwrap().remove(0).id;
                let mut session = client.open_session(id.as_str(), &request(&["/bin/true"])).await.unwrap();
                assert_eq!(session.wait().await.unwrap().shell_code(), 0);
                client.kill(id.as_str()).await.unwrap();
            }
        };
        // What is kept up to a bound (ended calls, events, log records) is filled first.
        run(calls / 4).await;
        cycle(cycles / 4).await;
        let before = in_use(&daemon, pid);
        run(calls).await;
        cycle(cycles).await;
        let after = in_use(&daemon, pid);
        eprintln!("{calls} calls, {cycles} sandboxes: {before:?} -> {after:?}");
        assert!(after.memory_kib <= before.memory_kib + MEMORY_KIB_GROWTH_MAX, "{before:?} -> {after:?}");
        assert!(after.descriptors <= before.descriptors + DESCRIPTOR_GROWTH_MAX, "{before:?} -> {after:?}");
        // Removal goes on in the background; what is being removed is found in the state as well.
        let begin = Instant::now();
        let settled = loop {
            if in_use(&daemon, pid).state_entries <= before.state_entries {
                break true;
            }
            if begin.elapsed() > REMOVAL_PATIENCE {
                break false;
            }
            std::thread::yield_now();
        };
        assert!(settled, "{before:?} -> {after:?}");
    });
}
