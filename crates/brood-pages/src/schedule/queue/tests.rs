//! The scheduler on a virtual clock.

use super::*;
use crate::testing::mix;
use proptest::prelude::*;

const COHORT: CohortId = CohortId(1);

fn job(tag: u64, saves_bytes: u64, micros: u64) -> Job {
    Job { tag, saves_bytes, costs: Duration::from_micros(micros) }
}

fn scheduler(workers: usize, sandboxes: u64) -> Scheduler {
    let mut scheduler = Scheduler::new(Settings { workers, ..Settings::default() });
    (0..sandboxes).for_each(|id| scheduler.add(SandboxId(id), COHORT, Policy::Always));
    scheduler
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[test]
fn the_most_profitable_goes_first() {
    let mut scheduler = scheduler(3, 3);
    for id in 0..3 {
        scheduler.idle(Duration::ZERO, SandboxId(id), 0, None);
        scheduler.offer(SandboxId(id), job(id, 1000 * (id + 1), 100));
        scheduler.offer(SandboxId(id), job(10 + id, 50_000 * (id + 1), 100));
    }
    let order: Vec<u64> = (0..3).filter_map(|_| scheduler.next(Duration::ZERO)).map(|lease| lease.job.tag).collect();
    assert_eq!(order, [12, 11, 10]);
    assert!(scheduler.next(Duration::ZERO).is_none(), "no worker is free");
}

#[test]
fn a_tool_call_cancels_at_once_and_only_its_own_sandbox() {
    let mut scheduler = scheduler(2, 2);
    for id in 0..2 {
        scheduler.idle(Duration::ZERO, SandboxId(id), 0, None);
        scheduler.offer(SandboxId(id), job(id, 1000, 100));
    }
    scheduler.offer(SandboxId(0), job(7, 10, 100));
    let leases = [0, 1].map(|_| scheduler.next(Duration::ZERO).expect("two jobs"));
    assert_eq!(scheduler.busy(seconds(0.1), SandboxId(0)), [job(7, 10, 100)]);
    for lease in leases {
        assert_eq!(lease.is_cancelled(), lease.sandbox == SandboxId(0));
        scheduler.finished(lease);
    }
    scheduler.offer(SandboxId(0), job(8, 10, 100));
    assert!(scheduler.next(seconds(0.2)).is_none(), "a busy sandbox is left alone");
    assert_eq!(scheduler.counters().cancelled, 1);
}

#[test]
fn policies_follow_the_pressure() {
    let mut scheduler = scheduler(9, 1);
    scheduler.add(SandboxId(1), COHORT, Policy::Pressure);
    scheduler.add(SandboxId(2), COHORT, Policy::Never);
    scheduler.add(SandboxId(3), COHORT, Policy::Pressure);
    for id in 0..4 {
        (0..40).for_each(|tag| scheduler.offer(SandboxId(id), job(tag, 1000, 100)));
    }
    (0..3).for_each(|id| scheduler.idle(Duration::ZERO, SandboxId(id), 0, None));
    let served = |scheduler: &mut Scheduler, turns: usize| {
        let mut served = [0; 4];
        for _ in 0..turns {
            if let Some(lease) = scheduler.next(Duration::ZERO) {
                served[lease.sandbox.0 as usize] += 1;
                scheduler.finished(lease);
            }
        }
        served
    };
    assert_eq!(served(&mut scheduler, 10), [10, 0, 0, 0]);
    scheduler.set_level(Level::Short);
    let short = served(&mut scheduler, 20);
    assert!(short[1] > 0 && short[2] == 0 && short[3] == 0, "{short:?}");
    scheduler.set_level(Level::Critical);
    let critical = served(&mut scheduler, 200);
    assert!(critical[2] == 0, "{critical:?}");
    assert_eq!(critical[0] + critical[1], 80 - 10 - 20, "idle sandboxes are done");
    assert!(critical[3] <= 200 / GENTLE_TURNS as i32 + 1, "{critical:?}");
}

#[test]
fn gaps_that_are_too_short_are_skipped_once_learnt() {
    let mut scheduler = scheduler(1, 1);
    let sandbox = SandboxId(0);
    let mut now = Duration::ZERO;
    let mut started = Vec::new();
    for _ in 0..30 {
        scheduler.idle(now, sandbox, 0, None);
        scheduler.offer(sandbox, job(0, 1 << 20, 50_000));
        let lease = scheduler.next(now);
        started.push(lease.is_some());
        lease.into_iter().for_each(|lease| scheduler.finished(lease));
        now += Duration::from_millis(40);
        scheduler.busy(now, sandbox);
        now += Duration::from_millis(100);
    }
    assert!(started[0] && !started[29], "{started:?}");
    assert!(scheduler.counters().gaps_overestimated > 0);
    let hint = Some(Hint::Expect(seconds(10.0)));
    scheduler.idle(now, sandbox, 0, hint);
    scheduler.offer(sandbox, job(0, 1 << 20, 50_000));
    assert!(scheduler.next(now).is_some(), "who knows better is believed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn nobody_starves(profits in proptest::collection::vec(1u64..1_000_000_000, 2..20), seed: u64) {
        let count = profits.len() as u64;
        let mut scheduler = scheduler(1, count);
        (0..count).for_each(|id| scheduler.idle(Duration::ZERO, SandboxId(id), 0, None));
        let mut waited = vec![0u64; profits.len()];
        for turn in 0..400 {
            for (id, profit) in (0..).zip(&profits) {
                // Everybody always has work, some much more profitable than other.
                scheduler.offer(SandboxId(id), job(turn, profit + mix(seed, turn) % 100, 10));
            }
            let lease = scheduler.next(Duration::ZERO).expect("there is work");
            waited.iter_mut().for_each(|turns| *turns += 1);
            waited[lease.sandbox.0 as usize] = 0;
            scheduler.finished(lease);
            prop_assert!(waited.iter().all(|turns| *turns <= FAIR_TURNS * count + FAIR_TURNS), "{:?}", waited);
        }
    }

    #[test]
    fn workers_and_cancellation_hold_under_any_rhythm(
        steps in proptest::collection::vec((0u8..6, 0u64..5, 1u64..5000), 1..400), workers in 1usize..4
    ) {
        let mut scheduler = scheduler(workers, 5);
        let mut now = Duration::ZERO;
        let mut busy = [true; 5];
        let mut leases: Vec<Lease> = Vec::new();
        let (mut offered, mut ended) = (0, 0);
        for (step, id, amount) in steps {
            now += Duration::from_micros(amount * 100);
            let sandbox = SandboxId(id);
            match step {
                0 => {
                    scheduler.idle(now, sandbox, amount as usize % 70, None);
                    busy[id as usize] = false;
                }
                1 => {
                    ended += scheduler.busy(now, sandbox).len();
                    busy[id as usize] = true;
                    prop_assert!(leases.iter().all(|lease| lease.sandbox != sandbox || lease.is_cancelled()));
                }
                2 => {
                    scheduler.offer(sandbox, job(amount, amount * 7, amount));
                    offered += 1;
                }
                3 | 4 => {
                    if let Some(lease) = scheduler.next(now) {
                        prop_assert!(!busy[lease.sandbox.0 as usize] && !lease.is_cancelled());
                        leases.push(lease);
                    }
                    prop_assert!(leases.len() <= workers);
                }
                _ => {
                    if !leases.is_empty() {
                        scheduler.finished(leases.swap_remove(amount as usize % leases.len()));
                        ended += 1;
                    }
                }
            }
            prop_assert_eq!(offered, ended + leases.len() + scheduler.queued(), "a job was lost");
        }
    }
}
