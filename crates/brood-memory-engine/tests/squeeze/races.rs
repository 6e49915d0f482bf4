//! Writers that never rest while their pages are squeezed and brought back. Each page carries a checksum chain, which
//! its writer checks before every write: a lost or stale page ends the program.

use std::time::{Duration, Instant};

use crate::harness::{Sandbox, machinery};

/// How long each race lasts.
fn duration() -> Duration {
    let is_soak = std::env::var("BROOD_TEST_SOAK").is_ok_and(|value| value == "full");
    Duration::from_secs(if is_soak { 1800 } else { 4 })
}

#[test]
fn writers_lose_nothing_while_they_are_squeezed_and_brought_back() {
    let machinery = machinery();
    let mut sandboxes = [500, 3000].map(|pages| Sandbox::chains(&machinery, pages));
    let until = Instant::now() + duration();
    let (mut squeezed, mut changed, mut rounds) = (0, 0, 0_u64);
    while Instant::now() < until {
        for sandbox in &mut sandboxes {
            sandbox.good("hammer");
        }
        for turn in 0..8 {
            for sandbox in &mut sandboxes {
                let report = sandbox.squeeze();
                squeezed += report.given_up_pages;
                changed += report.changed_pages;
                if turn % 3 == 1 {
                    sandbox.restore();
                }
            }
        }
        for sandbox in &mut sandboxes {
            let line = sandbox.ask("rest");
            let done = line.strip_prefix("rounds ").unwrap_or_else(|| panic!("{line}"));
            rounds += done.parse::<u64>().unwrap();
            assert_eq!(sandbox.line(), "ok");
            sandbox.good("check");
            sandbox.good("fork");
            sandbox.good("discard 60 30");
            sandbox.good("check");
        }
    }
    eprintln!("{squeezed} pages given up, {changed} written meanwhile, {rounds} looks");
    assert!(squeezed > 10_000 && changed > 0 && rounds > 1000, "{squeezed} {changed} {rounds}");
}
