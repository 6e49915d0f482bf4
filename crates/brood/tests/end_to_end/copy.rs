//! `brood cp` both ways, and what an attacker inside makes of it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::fixture::{Sandbox, brood, brood_with};

fn inside(sandbox: &Sandbox, path: &str) -> String {
    format!("{}:{path}", sandbox.id)
}

#[test]
fn files_and_trees_go_in_and_come_out_the_same() {
    let sandbox = Sandbox::new();
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    fs::write(tree.join("deep/er/file"), vec![7u8; 3_000_000]).unwrap();
    fs::write(tree.join("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(tree.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("run.sh", tree.join("link")).unwrap();
    let tree_text = tree.to_str().unwrap();

    brood(&["cp", tree_text, &inside(&sandbox, "/tmp")]).succeeded();
    sandbox.exec(&["/tmp/tree/link"]).succeeded().printed("ran\n");
    brood(&["cp", tree_text, &inside(&sandbox, "/renamed")]).succeeded();
    sandbox.sh("test -f /renamed/deep/er/file && test ! -e /renamed/tree").succeeded();
    brood(&["cp", &format!("{tree_text}/."), &inside(&sandbox, "/mnt")]).succeeded();
    sandbox.sh("test -x /mnt/run.sh && test $(stat -c %u /mnt/run.sh) = 0").succeeded();

    let out = directory.path().join("out");
    brood(&["cp", &inside(&sandbox, "/renamed"), out.to_str().unwrap()]).succeeded();
    assert_eq!(fs::read(out.join("deep/er/file")).unwrap(), vec![7u8; 3_000_000]);
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("run.sh"));
    assert_eq!(fs::metadata(out.join("run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
    brood(&["cp", &inside(&sandbox, "/renamed/run.sh"), out.join("other.sh").to_str().unwrap()]).succeeded();
    assert_eq!(fs::read(out.join("other.sh")).unwrap(), fs::read(tree.join("run.sh")).unwrap());
}

#[test]
fn archives_stream_from_one_sandbox_to_another() {
    let (one, other) = (Sandbox::new(), Sandbox::new());
    one.sh("mkdir /d; head -c 5000000 /dev/urandom > /d/file; sha256sum < /d/file > /d/sum").succeeded();
    let archive = std::process::Command::new(crate::fixture::binary())
        .args(["cp", &inside(&one, "/d"), "-"])
        .env("BROOD_STATE_DIRECTORY", crate::fixture::fixture().directory.join("state"))
        .env("BROOD_RUN_DIRECTORY", crate::fixture::fixture().directory.join("run"))
        .output()
        .unwrap();
    assert!(archive.status.success());
    brood_with(&["cp", "-", &inside(&other, "/srv")], &archive.stdout).succeeded();
    other.sh("cd /srv/d && test \"$(sha256sum < file)\" = \"$(cat sum)\"").succeeded();
}

#[test]
fn mistakes_are_told() {
    let sandbox = Sandbox::new();
    brood(&["cp", "/nonexistent", &inside(&sandbox, "/tmp")]).ended(1).said("/nonexistent");
    brood(&["cp", "/etc/hostname", &inside(&sandbox, "/not/there/file")]).ended(1).said("/not/there");
    brood(&["cp", "/etc/hostname", &inside(&sandbox, "/not/")]).ended(1).said("mkdir -p /not/");
    brood(&["cp", &inside(&sandbox, "/etc/hostname"), "/not/there/file"]).ended(1).said("/not/there");
    brood(&["cp", "a", "b"]).ended(1).said("inside a sandbox");
    brood(&["cp", &inside(&sandbox, "relative"), "/tmp"]).ended(2).said("absolute");
    brood(&["cp", "/etc/apt", &inside(&sandbox, "/etc/hostname")]).ended(1).said("a directory cannot replace it");
}

/// A witness outside that no copy may touch.
struct Witness(tempfile::TempDir);

impl Witness {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("brood-witness").tempdir_in("/var/tmp").unwrap();
        fs::write(directory.path().join("file"), "untouched").unwrap();
        Self(directory)
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    #[track_caller]
    fn is_untouched(&self) {
        let entries: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(entries, ["file"]);
        assert_eq!(fs::read_to_string(self.0.path().join("file")).unwrap(), "untouched");
    }
}

#[test]
fn links_inside_do_not_lead_copies_to_the_host() {
    let sandbox = Sandbox::new();
    let witness = Witness::new();
    let local = tempfile::tempdir().unwrap();
    let file = local.path().join("file");
    fs::write(&file, "attack").unwrap();
    let file = file.to_str().unwrap();
    let host = witness.path();
    for link in [
        host.to_owned(),
        format!("../../../../../../..{host}"),
        format!("/proc/1/root{host}"),
        format!("/proc/self/root/..{host}"),
    ] {
        sandbox.sh(&format!("ln -sfn {link} /door; ln -sfn {link}/file /window")).succeeded();
        // Inside the same path may exist or not; whichever, the host's own stays as it is.
        brood(&["cp", file, &inside(&sandbox, "/door")]);
        brood(&["cp", file, &inside(&sandbox, "/door/new")]);
        brood(&["cp", file, &inside(&sandbox, "/window")]);
        witness.is_untouched();
        let out = local.path().join("out");
        brood(&["cp", &inside(&sandbox, "/window"), out.to_str().unwrap()]);
        assert_ne!(fs::read_to_string(&out).ok().as_deref(), Some("untouched"), "a file of the host came out");
        fs::remove_file(&out).unwrap_or(());
    }
    for path in ["/proc/1/root/etc/shadow", "/proc/self/root", "/proc/1/environ", "/sys/kernel"] {
        let ran = brood(&["cp", &inside(&sandbox, path), "-"]);
        assert_ne!(ran.code, 0, "{path}");
    }
    sandbox.exec(&["true"]).succeeded();
}

#[test]
fn a_link_that_changes_while_it_is_copied_through_leads_nowhere() {
    let sandbox = Sandbox::new();
    let witness = Witness::new();
    sandbox.sh(&format!("mkdir -p /safe {}", witness.path())).succeeded();
    let race = format!("while :; do ln -sfn /safe /flip; ln -sfn {} /flip; ln -sfn / /flip; done", witness.path());
    sandbox.exec_with(&["--detach"], &["/bin/sh", "-c", &race]).succeeded();
    let local = tempfile::NamedTempFile::new().unwrap();
    for number in 0..60 {
        brood(&["cp", local.path().to_str().unwrap(), &inside(&sandbox, &format!("/flip/new{number}"))]);
    }
    witness.is_untouched();
}

#[test]
fn what_comes_out_stays_in_its_destination() {
    let sandbox = Sandbox::new();
    let witness = Witness::new();
    let script = format!(
        "mkdir /evil; ln -s {0} /evil/door; ln -s {0}/file /evil/window; ln -s / /evil/root; \
         cp /bin/true /evil/suid; chmod 6755 /evil/suid; mkfifo /evil/pipe; \
         printf 'x' > '/evil/-rf'; printf 'x' > \"/evil/$(printf 'a\\033[2Jb')\"",
        witness.path()
    );
    sandbox.sh(&script).succeeded();
    let local = tempfile::tempdir().unwrap();
    brood(&["cp", &inside(&sandbox, "/evil"), local.path().to_str().unwrap()]).succeeded();
    let evil = local.path().join("evil");
    assert_eq!(fs::metadata(evil.join("suid")).unwrap().permissions().mode() & 0o7000, 0);
    assert!(evil.join("-rf").exists() && !evil.join("pipe").exists());
    assert_eq!(fs::read_link(evil.join("door")).unwrap(), Path::new(witness.path()));
    // A second copy meets the links of the first one.
    sandbox
        .sh("rm /evil/door /evil/window; mkdir /evil/door; echo attack > /evil/door/file; echo attack > /evil/window")
        .succeeded();
    brood(&["cp", &inside(&sandbox, "/evil"), local.path().to_str().unwrap()]);
    witness.is_untouched();
}
