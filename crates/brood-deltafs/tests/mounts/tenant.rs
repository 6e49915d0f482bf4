//! A process with a mount namespace of its own, to swap roots under.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use brood_deltafs::{LayerStack, OverlayMount, RootSwapper, Upper};
use brood_kernel::mount::{FsContext, attach, open_directory};
use rustix::mount::MountAttrFlags;

/// A process in user and mount namespaces of its own, killed at the end.
pub struct Tenant(Child);

impl Tenant {
    pub fn new() -> Self {
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

    pub fn namespace(&self) -> File {
        File::open(format!("/proc/{}/ns/mnt", self.0.id())).unwrap()
    }

    /// What the process has under the absolute path `path`.
    pub fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.0.id()))
    }

    pub fn mounts(&self) -> Vec<String> {
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

pub fn carried() -> Vec<PathBuf> {
    vec!["/proc".into(), "/dev/shm".into()]
}

/// A tenant on `stack`, with a tmpfs on /proc, another on /proc/masked, and one
/// on /dev/shm.
pub fn tenant_on(swapper: &RootSwapper, stack: &LayerStack, upper: &Upper) -> Tenant {
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
