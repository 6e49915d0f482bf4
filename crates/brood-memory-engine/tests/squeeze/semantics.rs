//! What programs do to squeezed memory, each by each.

use crate::harness::{Sandbox, machinery};

const PAGES: usize = 600;

#[test]
fn a_squeezed_process_finds_all_its_pages() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, PAGES);
    let report = sandbox.squeeze();
    assert!(report.given_up_pages >= PAGES * 49 / 50, "{report:?}");
    assert!(sandbox.absent_pages() >= PAGES * 48 / 50, "{}", sandbox.absent_pages());
    sandbox.good("check");
    assert!(machinery.pager.statistics().faults > 0);
    // Squeezed again, nothing changed: all is found again.
    let again = sandbox.squeeze();
    assert!(again.given_up_pages >= PAGES * 49 / 50, "{again:?}");
    sandbox.good("write 100 200");
    sandbox.good("check");
    let restored = sandbox.restore();
    sandbox.good("check");
    sandbox.squeeze();
    let restored_all = sandbox.restore();
    assert!(restored_all.pages > PAGES * 9 / 10, "{restored:?} {restored_all:?}");
    assert_eq!(sandbox.absent_pages(), 0);
    let faults = machinery.pager.statistics().waited_pages;
    sandbox.good("check");
    assert_eq!(machinery.pager.statistics().waited_pages, faults, "nothing was left to wait for");
}

#[test]
fn what_was_given_up_by_the_process_is_zeros() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, PAGES);
    sandbox.squeeze();
    sandbox.good("discard 10 40");
    sandbox.good("check");
    sandbox.squeeze();
    sandbox.good("check");
    sandbox.good("write 0 30");
    sandbox.squeeze();
    sandbox.good("discard 5 10");
    sandbox.squeeze();
    sandbox.good("check");
}

#[test]
fn unmapped_moved_and_grown_memory_is_followed() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, PAGES);
    sandbox.squeeze();
    sandbox.good("move 0 5000");
    sandbox.good("look 0 100");
    sandbox.squeeze();
    sandbox.good("write 200 50");
    sandbox.squeeze();
    sandbox.good("move 0 9000");
    sandbox.squeeze();
    sandbox.good("check");
    sandbox.squeeze();
    sandbox.good("unmap 300 17");
    sandbox.squeeze();
    sandbox.good("check");
}

#[test]
fn a_system_call_reads_into_squeezed_memory() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, PAGES);
    for round in 0..5 {
        sandbox.squeeze();
        sandbox.good(&format!("read {} 40", 60 + round * 40));
        sandbox.squeeze();
        sandbox.good("check");
    }
}

#[test]
fn children_have_the_pages_of_their_parent_and_each_goes_its_own_way() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, PAGES);
    sandbox.squeeze();
    sandbox.good("fork");
    sandbox.good("write 0 100");
    sandbox.squeeze();
    sandbox.good("fork");
    sandbox.squeeze();
    // The child goes on; both are squeezed, again and again.
    sandbox.good("split");
    sandbox.good("look 0 50");
    sandbox.good("write 20 60");
    for _ in 0..3 {
        let report = sandbox.squeeze();
        assert_eq!(report.processes, 2);
        sandbox.good("check");
        sandbox.good("write 100 90");
    }
    sandbox.squeeze();
    sandbox.good("end");
    sandbox.good("check");
}

#[test]
fn another_program_has_nothing_of_the_one_before() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, PAGES);
    sandbox.squeeze();
    sandbox.send("exec");
    assert_eq!(sandbox.line(), "ready");
    sandbox.good("check");
    let report = sandbox.squeeze();
    assert!(report.given_up_pages >= PAGES * 49 / 50, "{report:?}");
    sandbox.good("check");
}

#[test]
fn a_squeeze_that_is_called_off_leaves_everything_in_order() {
    let machinery = machinery();
    let mut sandbox = Sandbox::chains(&machinery, 3000);
    let looks = std::cell::Cell::new(0);
    let report = sandbox.memory.squeeze(&mut sandbox.tree, &|| {
        looks.set(looks.get() + 1);
        looks.get() < 40
    });
    let report = report.unwrap();
    assert!(report.cancelled && report.given_up_pages > 0 && report.given_up_pages < 2000, "{report:?}");
    sandbox.good("check");
}
