//! Real processes whose memory is owed: every page that they see is checked.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod subject;

use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use brood_pager::{PageAddress, Pager, Settings};

use subject::{PAGE, Pattern, Subject};

/// No common factor with 17, by whose multiples pages are visited.
const PAGES: u64 = 1201;

fn pager() -> Pager {
    Pager::new(Settings { servers: NonZeroUsize::new(2).unwrap(), ..Settings::default() }).unwrap()
}

fn run(scenario: &str, together: usize) -> brood_pager::PagerStatistics {
    let pager = pager();
    let mut subject = Subject::start(scenario, PAGES);
    let space = subject.adopt(&pager, Pattern { together, ..Pattern::default() });
    assert_eq!(subject.finish(), "ok");
    drop(space);
    let statistics = pager.statistics();
    eprintln!("{scenario}, {together} together: {statistics:?}");
    assert_eq!(statistics.lost_pages, 0);
    statistics
}

#[test]
fn touched_pages_have_their_content() {
    let alone = run("touch", 1);
    assert_eq!(alone.faults, PAGES);
    assert_eq!(alone.waited_pages, PAGES - PAGES.div_ceil(5));
    assert_eq!(alone.zero_pages, PAGES.div_ceil(5));
    let together = run("touch", 8);
    assert!(together.faults < PAGES * 2 / 3, "neighbours came along: {together:?}");
}

#[test]
fn written_pages_keep_the_rest_of_their_content() {
    run("write", 4);
}

#[test]
fn system_calls_wait_for_pages_too() {
    run("syscalls", 1);
}

#[test]
fn forked_children_and_theirs_see_what_the_parent_would() {
    let statistics = run("fork", 2);
    assert!(statistics.changes >= 7, "every fork was followed: {statistics:?}");
}

#[test]
fn moved_grown_and_shrunk_memory_stays_what_it_was() {
    run("mremap", 4);
}

#[test]
fn memory_given_up_is_zeros() {
    run("madvise", 4);
}

#[test]
fn unmapped_memory_does_not_come_back() {
    run("munmap", 1);
}

#[test]
fn threads_that_change_memory_under_others_cause_no_error() {
    for together in [1, 8] {
        run("threads", together);
    }
}

#[test]
fn a_lost_page_is_an_error_and_never_zeros() {
    let pager = pager();
    let mut subject = Subject::start("lost", PAGES);
    let space = subject.adopt(&pager, Pattern { lost: Some(3), ..Pattern::default() });
    assert_eq!(subject.finish(), "ok bus error");
    drop(space);
    assert_eq!(pager.statistics().lost_pages, 1);
}

#[test]
fn what_was_filled_ahead_is_not_waited_for() {
    let pager = pager();
    let mut subject = Subject::start("wait", PAGES);
    let space = subject.adopt(&pager, Pattern::default());
    assert_eq!(subject.line(), "waiting");
    let start = subject.base;
    let half = PageAddress::of(start + PAGES / 2 * PAGE);
    let filled = space.fill_now(&[PageAddress::of(start)..half]);
    assert_eq!(filled as u64, PAGES / 2 - (PAGES / 2).div_ceil(5));
    assert_eq!(space.fill_now(&[PageAddress::of(start)..half]), 0, "nothing is supplied twice");
    space.fill(vec![half..PageAddress::of(start + PAGES * PAGE)]);
    let content = PAGES - PAGES.div_ceil(5);
    subject.wait_until(|| pager.statistics().ahead_pages == content);
    let before = pager.statistics();
    assert_eq!(subject.finish(), "ok");
    let after = pager.statistics();
    assert_eq!(after.waited_pages, 0);
    assert_eq!(after.faults - before.faults, PAGES.div_ceil(5), "only the pages of zeros");
}

#[test]
fn filling_and_touching_at_once_give_every_page_once() {
    let pager = pager();
    let mut subject = Subject::start("threads", PAGES);
    let space = subject.adopt_with(&pager, Pattern::default(), |space, start| {
        space.fill(vec![PageAddress::of(start)..PageAddress::of(start + PAGES * PAGE)]);
    });
    assert_eq!(subject.finish(), "ok");
    drop(space);
}

#[test]
fn a_process_killed_while_it_waits_is_gone_and_its_space_with_it() {
    let pager = pager();
    let (release, wait) = mpsc::channel::<()>();
    let mut subject = Subject::start("touch", PAGES);
    let (told, asked) = mpsc::channel();
    let gate = Arc::new(Mutex::new((told, wait)));
    let space = subject.adopt(&pager, Pattern { gate: Some(gate), ..Pattern::default() });
    asked.recv().unwrap();
    subject.kill();
    release.send(()).unwrap();
    drop(release);
    assert!(!space.is_alive());
    drop(space);
    subject.wait_until(|| pager.statistics().spaces == 0);
}

#[test]
fn ended_children_leave_nothing_behind() {
    let pager = pager();
    let mut subject = Subject::start("fork", PAGES);
    let space = subject.adopt(&pager, Pattern::default());
    assert_eq!(subject.finish(), "ok");
    assert!(space.children().is_empty(), "all have ended");
    drop(space);
    assert_eq!(pager.statistics().spaces, 0);
}

#[test]
fn a_process_outlives_its_pager_whole() {
    let pager = pager();
    let mut subject = Subject::start("wait", PAGES);
    let space = subject.adopt(&pager, Pattern::default());
    assert_eq!(subject.line(), "waiting");
    drop(pager);
    drop(space);
    assert_eq!(subject.finish(), "ok");
}
