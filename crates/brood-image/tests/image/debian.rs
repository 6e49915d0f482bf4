//! `debian:`, by the real mmdebstrap from the mirrors that the host uses.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use brood_image::{ErrorKind, FetchOptions, Progress, ProgressItem, Source, Stage, fetch};

use crate::images::need;
use crate::namespace::UserNamespace;
use crate::support::{BASE, Place, chain, run};

#[derive(Default)]
struct Messages {
    lines: Mutex<Vec<String>>,
    cancel_on: &'static str,
    cancelled: AtomicBool,
}

impl Progress for Messages {
    fn message(&self, item: &ProgressItem, line: &str) {
        assert_eq!(item.stage, Stage::Install);
        if !self.cancel_on.is_empty() && line.contains(self.cancel_on) {
            self.cancelled.store(true, Ordering::SeqCst);
        }
        self.lines.lock().unwrap().push(line.to_owned());
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

fn left_behind(place: &Place) -> Vec<String> {
    let dirs = [place.layers_dir(), place.path("cache/debian")];
    let names = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with('.')).collect()
}

#[test]
fn a_small_system_is_installed_once_and_remembered() {
    need("mmdebstrap", "mmdebstrap");
    let place = Place::in_memory();
    let source: Source = "debian:bookworm+ed".parse().unwrap();
    let messages = Messages::default();
    let image = fetch(&source, &place.options(), &messages).unwrap_or_else(|error| panic!("{}", chain(&error)));
    let lines = messages.lines.into_inner().unwrap();
    assert!(lines.iter().any(|line| line.contains("essential")), "no progress was reported: {lines:?}");

    let root = &image.layers[0].path;
    for program in ["usr/bin/apt-get", "bin/ed", "usr/bin/dpkg"] {
        let metadata = root.join(program).metadata().unwrap_or_else(|error| panic!("{program}: {error}"));
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&metadata), BASE, "{program}");
    }
    let sources = fs::read_dir(root.join("etc/apt/sources.list.d")).unwrap().count();
    assert!(sources > 0 || fs::metadata(root.join("etc/apt/sources.list")).is_ok_and(|file| file.len() > 0));
    assert!(image.layers[0].notes.devices_skipped > 0, "its /dev has no nodes");
    assert_eq!(
        fs::read_dir(root.join("dev"))
            .unwrap()
            .filter(|entry| {
                let file_type = entry.as_ref().unwrap().file_type().unwrap();
                std::os::unix::fs::FileTypeExt::is_char_device(&file_type)
            })
            .count(),
        0
    );

    // The system runs where it will be used: its root is a shifted id.
    let namespace = UserNamespace::new();
    for dir in root.ancestors().take_while(|dir| dir.starts_with(place.path(""))).skip(1) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
    }
    let mut chroot = namespace.command(0, Path::new("/usr/sbin/chroot"));
    let script = "id -u && dpkg-query --show ed && stat --format=%u:%g:%a /etc/shadow /usr/bin/passwd";
    let printed = run(chroot.arg(root).args(["sh", "-c", script]));
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0], "0");
    assert!(lines[1].starts_with("ed\t"), "{printed}");
    assert_eq!(lines[2..], ["0:42:640", "0:0:4755"]);

    let silent = Messages::default();
    let again = fetch(&source, &place.options(), &silent).unwrap();
    assert_eq!(again.layers, image.layers);
    assert!(silent.lines.into_inner().unwrap().is_empty(), "it was installed again");
    assert_eq!(left_behind(&place), [""; 0]);
}

#[test]
fn suites_and_packages_that_do_not_exist_are_named() {
    need("mmdebstrap", "mmdebstrap");
    let place = Place::in_memory();
    for (source, part) in [
        ("debian:bookworm+brood-no-such-package", "brood-no-such-package"),
        ("debian:brood-no-such-suite", "brood-no-such-suite"),
    ] {
        let error = place.fetch(source).unwrap_err();
        let text = chain(&error);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{text}");
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(left_behind(&place), [""; 0]);
    assert!(place.names_in_layers_dir().is_empty());
}

#[test]
fn cancelling_ends_the_tool_and_leaves_nothing() {
    need("mmdebstrap", "mmdebstrap");
    let place = Place::in_memory();
    let source: Source = "debian:bookworm".parse().unwrap();
    let messages = Messages { cancel_on: "I: ", ..Messages::default() };
    let options = FetchOptions { refresh: true, ..place.options() };
    let error = fetch(&source, &options, &messages).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", chain(&error));
    assert_eq!(left_behind(&place), [""; 0]);
    let cache = place.path("cache").display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&cache), "a mount was left behind");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let commands = processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
    let ours = commands.filter(|environ| String::from_utf8_lossy(environ).contains(&format!("TMPDIR={cache}")));
    assert_eq!(ours.count(), 0, "a process was left behind");
}
