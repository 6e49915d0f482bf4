use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use brood_deltafs::{LayerStack, OverlayMount, RootSwapper, SwapError, Upper};
use brood_kernel::mount::{FsContext, attach, open_directory};
use rustix::mount::MountAttrFlags;

use crate::fixture::Place;

/// A process in mount, pid and user namespaces of its own, killed at the end.
struct Tenant(Child);

impl Tenant {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--propagation", "private", "sh", "-c", "echo; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        Self(child)
    }

    fn namespace(&self) -> File {
        File::open(format!("/proc/{}/ns/mnt", self.0.id())).unwrap()
    }

    /// What the process has under the absolute path `path`.
    fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.0.id()))
    }

    fn mounts(&self) -> Vec<String> {
        let text = fs::read_to_string(format!("/proc/{}/mountinfo", self.0.id())).unwrap();
        let mut points: Vec<_> = text.lines().map(|line| line.split(' ').nth(4).unwrap().to_owned()).collect();
        points.sort();
        points
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        drop(self.0.stdin.as_mut().unwrap().write_all(b"\n"));
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn carried() -> Vec<PathBuf> {
    vec!["/proc".into(), "/dev/shm".into()]
}

/// A tenant on `stack`, with a tmpfs on /proc, another on /proc/masked, and one
/// on /dev/shm.
fn tenant_on(swapper: &RootSwapper, stack: &LayerStack, upper: &Upper) -> Tenant {
    let tenant = Tenant::new();
    let overlay = OverlayMount::mount(stack, upper).unwrap();
    fs::write(brood_kernel::mount::descriptor_path(overlay.as_fd()).join("first"), "").unwrap();
    let tmpfs = || FsContext::new("tmpfs").unwrap().mount(MountAttrFlags::empty()).unwrap();
    let (proc, masked, shm) = (tmpfs(), tmpfs(), tmpfs());
    swapper.swap(tenant.namespace().as_fd(), &overlay, &[]).unwrap();
    let thread = brood_kernel::mount_namespace::MountNamespaceThread::start().unwrap();
    let mounting = move || {
        attach(proc.as_fd(), open_directory(Path::new("/")).unwrap().as_fd(), Path::new("proc")).unwrap();
        fs::create_dir("/proc/masked").unwrap();
        fs::write("/proc/mark", "").unwrap();
        attach(masked.as_fd(), open_directory(Path::new("/proc")).unwrap().as_fd(), Path::new("masked")).unwrap();
        fs::write("/proc/masked/mark", "").unwrap();
        attach(shm.as_fd(), open_directory(Path::new("/dev")).unwrap().as_fd(), Path::new("shm")).unwrap();
        fs::write("/dev/shm/mark", "").unwrap();
    };
    thread.run(tenant.namespace().as_fd(), mounting).unwrap();
    tenant
}

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
