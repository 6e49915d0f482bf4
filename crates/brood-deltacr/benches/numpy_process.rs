//! What capture, rollback and restore of a Python process with numpy cost. Run with
//! `cargo bench -p brood-deltacr`; needs root. `BROOD_BENCH_PYTHON` names the Python
//! to use; numpy is installed into a temporary folder if it has none. `BROOD_BENCH_ROUNDS` is the number of rounds.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use brood_deltacr::{CaptureStatistics, PageStore, RestoreTarget, SandboxRoot};

#[path = "../tests/zoo/harness.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "shared with the tests; a measurement that fails has no other way out"
)]
mod harness;

use harness::{Sandbox, seed};

/// Rounds of each measurement.
const ROUNDS_DEFAULT: usize = 60;
/// Pages changed between checkpoints.
const CHANGED_PAGES: [(&str, usize); 5] =
    [("touch", 0), ("touch", 100), ("touch", 1000), ("scatter", 1000), ("touch", 4000)];

fn main() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/workload.py");
    let python = python();
    let mut arguments: Vec<&str> = python.iter().map(String::as_str).collect();
    arguments.push(script.to_str().unwrap_or_default());
    let rounds = std::env::var("BROOD_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS_DEFAULT);
    println!("milliseconds, {rounds} rounds: p10 median p90 p99 | parts are medians");
    checkpoints(&arguments, rounds);
    rollbacks(&arguments, rounds);
    restores(&arguments, rounds);
}

/// The command that starts Python with numpy, which must be readable for every user.
fn python() -> Vec<String> {
    let python = std::env::var("BROOD_BENCH_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".into());
    let packages = std::env::temp_dir().join("brood-bench-packages");
    let has_numpy = || {
        let import = Command::new(&python).args(["-c", "import numpy"]).env("PYTHONPATH", &packages).output();
        import.is_ok_and(|output| output.status.success())
    };
    if !has_numpy() {
        let pip = ["-m", "pip", "install", "-q", "numpy", "--target"];
        let installed = Command::new("python3").args(pip).arg(&packages).status();
        assert!(installed.is_ok_and(|status| status.success()) && has_numpy(), "no numpy; set BROOD_BENCH_PYTHON");
    }
    let path = format!("PYTHONPATH={}", packages.display());
    // One thread, so that figures can be compared with those of other tools.
    vec!["/usr/bin/env".into(), path, "OPENBLAS_NUM_THREADS=1".into(), python]
}

/// A line of figures about durations.
fn report(what: &str, durations: &mut [Duration], note: &str) {
    durations.sort_unstable();
    let at = |share: f64| {
        let index = ((durations.len() - 1) as f64 * share).round() as usize;
        durations[index].as_secs_f64() * 1e3
    };
    println!("{what:<44} {:7.3} {:7.3} {:7.3} {:7.3} | {note}", at(0.1), at(0.5), at(0.9), at(0.99));
}

fn median(values: impl Iterator<Item = Duration>) -> f64 {
    let mut values: Vec<Duration> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).map_or(0.0, Duration::as_secs_f64) * 1e3
}

fn checkpoints(arguments: &[&str], rounds: usize) {
    let store = PageStore::new();
    let mut sandbox = Sandbox::start(arguments);
    let mut tree = sandbox.tree();
    for (how, changed) in CHANGED_PAGES {
        let mut parent = None;
        let (mut standstills, mut statistics): (Vec<Duration>, Vec<CaptureStatistics>) = (Vec::new(), Vec::new());
        let mut stopping = Vec::new();
        for round in 0..rounds + 2 {
            assert_eq!(sandbox.ask(&format!("{how} {changed}\n")), "ok");
            store.prepare(changed + 2000).expect("memory for the store");
            let begun = Instant::now();
            let mut stopped = tree.stop().expect("stop");
            let stopped_after = begun.elapsed();
            let (image, figures) = stopped.capture(&store, &sandbox.pipes).expect("capture");
            let _since_last_stop = stopped.resume();
            let standstill = begun.elapsed();
            parent = Some(image);
            // The first rounds copy everything and warm up.
            if round >= 2 {
                standstills.push(standstill);
                stopping.push(stopped_after);
                statistics.push(figures);
            }
        }
        drop(parent);
        let part = |part: fn(&CaptureStatistics) -> Duration| median(statistics.iter().map(part));
        let copied = statistics.iter().map(|figures| figures.copied_pages).sum::<usize>() / statistics.len();
        let note = format!(
            "{copied} pages; stop {:.3} survey {:.3} questions {:.3} memory {:.3}",
            median(stopping.into_iter()),
            part(|figures| figures.survey),
            part(|figures| figures.questions),
            part(|figures| figures.memory),
        );
        report(&format!("checkpoint, {how} {changed}: stop to resume"), &mut standstills, &note);
    }
}

fn rollbacks(arguments: &[&str], rounds: usize) {
    let store = PageStore::new();
    let mut sandbox = Sandbox::start(arguments);
    let mut tree = sandbox.tree();
    let before = sandbox.ask("sum\n");
    let image = harness::capture(&mut tree, &store, &sandbox.pipes);
    for (how, changed) in CHANGED_PAGES {
        let (mut durations, mut pages) = (Vec::new(), 0);
        for _ in 0..rounds {
            assert_eq!(sandbox.ask(&format!("{how} {changed}\n")), "ok");
            let begun = Instant::now();
            let statistics = harness::roll_back(&mut tree, &image, &sandbox);
            durations.push(begun.elapsed());
            assert!(!statistics.made_anew, "the process is kept");
            pages += statistics.pages;
            assert_eq!(sandbox.ask("sum\n"), before, "the state is the one captured");
        }
        let note = format!("{} pages written or dropped", pages / rounds);
        report(&format!("rollback in place, {how} {changed}"), &mut durations, &note);
    }
}

fn restores(arguments: &[&str], rounds: usize) {
    let store = PageStore::new();
    let mut sandbox = Sandbox::start(arguments);
    let mut tree = sandbox.tree();
    let before = sandbox.ask("sum\n");
    let image = harness::capture(&mut tree, &store, &sandbox.pipes);
    let (mut running, mut answering, mut summing) = (Vec::new(), Vec::new(), Vec::new());
    let (mut at_start, mut after_answer, mut after_sum) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut fork = Sandbox::empty();
        let root = SandboxRoot::of_process(fork.init).expect("root");
        let target = RestoreTarget { init: fork.init, root: &root, place: &|_| Ok(()) };
        let begun = Instant::now();
        let restored = image.restore(seed(), &target, &fork.pipes).expect("restore");
        let pid = restored.pids()[0].1;
        at_start.push(unshared_kilobytes(pid));
        let paused = Instant::now();
        let restored_after = paused - begun;
        let _tree = restored.run().expect("run");
        running.push(restored_after + paused.elapsed());
        let begun = Instant::now();
        assert_eq!(fork.ask("touch 1\n"), "ok");
        answering.push(restored_after + begun.elapsed());
        after_answer.push(unshared_kilobytes(pid));
        let begun = Instant::now();
        assert_eq!(fork.ask("sum\n").len(), before.len());
        summing.push(begun.elapsed());
        after_sum.push(unshared_kilobytes(pid));
        drop(fork);
    }
    let pages = store.usage().used;
    let kilobytes = |mut sizes: Vec<u64>| {
        sizes.sort_unstable();
        format!("{} KB of its own", sizes[sizes.len() / 2])
    };
    report("restore until running", &mut running, &format!("{pages} pages stored; {}", kilobytes(at_start)));
    report("restore until the first answer", &mut answering, &kilobytes(after_answer));
    report("then a sum over all its data", &mut summing, &kilobytes(after_sum));
    println!("pager: {:?}", harness::pager().statistics());
    assert_eq!(sandbox.ask("sum\n"), before);
}

/// Memory that a process shares with nobody.
fn unshared_kilobytes(pid: rustix::process::Pid) -> u64 {
    let path = format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(path).expect("smaps");
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
