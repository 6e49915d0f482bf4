use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use brood_deltafs::{OverlayMount, RootSwapper, SwapError};

use crate::fixture::Place;
use crate::tenant::{Tenant, carried, tenant_on};

fn has_all_mounts(tenant: &Tenant) {
    assert_eq!(tenant.mounts(), ["/", "/dev/shm", "/proc", "/proc/masked"]);
    for mark in ["/proc/mark", "/proc/masked/mark", "/dev/shm/mark"] {
        assert!(tenant.inside(mark).exists(), "{mark}");
    }
}

#[test]
fn a_living_namespace_gets_another_root_and_keeps_its_mounts() {
    let place = Place::new();
    let store = &place.store;
    let swapper = RootSwapper::start().unwrap();
    let mut upper = store.new_upper(&place.stack).unwrap();
    let mut stack = place.stack.clone();
    let tenant = tenant_on(&swapper, &stack, &upper);
    has_all_mounts(&tenant);
    for round in 0..20 {
        fs::write(tenant.inside(&format!("/data/round-{round}")), "").unwrap();
        let frozen = store.freeze(&upper, &stack).unwrap();
        let next = OverlayMount::mount(frozen.stack(), frozen.upper()).unwrap();
        swapper.swap(tenant.namespace().as_fd(), &next, &carried()).unwrap();
        (stack, upper) = store.commit_freeze(frozen).unwrap();
        has_all_mounts(&tenant);
        assert!(tenant.inside("/first").exists());
        assert!(tenant.inside(&format!("/data/round-{round}")).exists());
        assert_eq!(fs::read_dir(upper.changes()).unwrap().count(), 0);
    }
    // Rollback to the second round.
    let early = store.stack(stack.ids().skip(18)).unwrap();
    let fresh = store.new_upper(&early).unwrap();
    let back = OverlayMount::mount(&early, &fresh).unwrap();
    swapper.swap(tenant.namespace().as_fd(), &back, &carried()).unwrap();
    has_all_mounts(&tenant);
    assert!(tenant.inside("/data/round-1").exists() && !tenant.inside("/data/round-2").exists());
}

#[test]
fn a_swap_that_cannot_be_done_changes_nothing() {
    let place = Place::new();
    let store = &place.store;
    let swapper = RootSwapper::start().unwrap();
    let upper = store.new_upper(&place.stack).unwrap();
    let tenant = tenant_on(&swapper, &place.stack, &upper);
    let mount = || OverlayMount::mount(&place.stack, &store.new_upper(&place.stack).unwrap()).unwrap();
    let swap = |carry: &[&str], new: &OverlayMount| {
        let carry: Vec<PathBuf> = carry.iter().map(PathBuf::from).collect();
        swapper.swap(tenant.namespace().as_fd(), new, &carry)
    };
    // Not a mount; not there; a relative path; one that is no directory in the
    // new root, found out before anything is moved.
    for carry in [["/proc", "/data"], ["/proc", "/nothing"], ["/proc", "dev/shm"]] {
        let refused = swap(&carry, &mount());
        assert!(matches!(refused, Err(SwapError::Place { .. })), "{refused:?}");
        has_all_mounts(&tenant);
    }
    let unfit = mount();
    let root = brood_kernel::mount::descriptor_path(unfit.as_fd());
    fs::remove_dir(root.join("dev/shm")).unwrap();
    std::os::unix::fs::symlink("/tmp", root.join("dev/shm")).unwrap();
    assert!(matches!(swap(&["/proc", "/dev/shm"], &unfit), Err(SwapError::Place { .. })));
    has_all_mounts(&tenant);
    // A file in the place of a directory is found out by the move itself, when
    // /proc has moved already and must go back.
    fs::remove_file(root.join("dev/shm")).unwrap();
    fs::write(root.join("dev/shm"), "").unwrap();
    assert!(matches!(swap(&["/proc", "/dev/shm"], &unfit), Err(SwapError::Move { .. })));
    has_all_mounts(&tenant);
    assert!(tenant.inside("/first").exists());
    swap(&["/proc", "/dev/shm"], &mount()).unwrap();
    has_all_mounts(&tenant);
    assert!(!tenant.inside("/first").exists());
}
