//! What interrupts an unpack: a kill, a full disk, a caller who changes his mind, a store for another range of ids.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use brood_image::{ErrorKind, LayerStore, NoProgress, Progress, ProgressItem, Source, UnpackOptions, fetch};
use tar::EntryType;

use crate::crafted::Crafted;
use crate::images::random_bytes;
use crate::support::{MemoryDisk, Place, chain};

/// The child process of the kill test finds its place here.
const CHILD_PLACE: &str = "BROOD_IMAGE_TEST_PLACE";

/// An archive of `count` files of 64 KiB that do not compress.
fn write_archive(path: &Path, count: usize) {
    let body = random_bytes(64 << 10);
    let archive = (0..count).fold(Crafted::new(), |archive, index| {
        archive.entry(&format!("dir{}/file{index}", index % 10), EntryType::Regular, &body, |_| {})
    });
    fs::write(path, archive.finish()).unwrap();
}

/// Says when half of the archive is read, and then waits for ever.
struct StopHalfway {
    read: AtomicU64,
    total: u64,
}

impl Progress for StopHalfway {
    fn advanced(&self, _: &ProgressItem, bytes: u64) {
        if self.read.fetch_add(bytes, Ordering::SeqCst) + bytes > self.total / 2 {
            println!("\nhalfway");
            std::io::stdout().flush().unwrap();
            // Ends only with the process, whose standard input never has anything.
            let nothing = std::io::stdin().read(&mut [0]);
            panic!("the child was not killed: {nothing:?}");
        }
    }
}

#[test]
#[ignore = "run as a child process by a_killed_unpack_leaves_nothing_half_made"]
fn child_that_is_killed() {
    let place = PathBuf::from(std::env::var_os(CHILD_PLACE).unwrap());
    let archive = place.join("archive.tar");
    let total = archive.metadata().unwrap().len();
    let source: Source = format!("tar:{}", archive.display()).parse().unwrap();
    let options = brood_image::FetchOptions::new(place.join("layers"), place.join("cache"));
    let stop = StopHalfway { read: AtomicU64::new(0), total };
    fetch(&source, &options, &stop).unwrap();
}

#[test]
fn a_killed_unpack_leaves_nothing_half_made() {
    let place = Place::new();
    write_archive(&place.path("archive.tar"), 100);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "interruption::child_that_is_killed", "--ignored", "--nocapture"]);
    command.env(CHILD_PLACE, place.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "halfway"), "the child ended early");

    // While it lives its work is nobody else's to remove.
    let store = LayerStore::open(&UnpackOptions::new(place.layers_dir())).unwrap();
    let partial = |names: &[String]| names.iter().filter(|name| name.starts_with(".partial-")).count();
    assert_eq!(partial(&place.names_in_layers_dir()), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(partial(&place.names_in_layers_dir()), 1, "nothing was half-made: the kill came too late");
    assert_eq!(store.list().unwrap(), []);

    LayerStore::open(&UnpackOptions::new(place.layers_dir())).unwrap();
    assert_eq!(place.names_in_layers_dir(), [""; 0]);
    let image = place.fetch(&format!("tar:{}", place.path("archive.tar").display())).unwrap();
    assert_eq!(image.layers[0].notes.entries, 100);
}

#[test]
fn a_full_disk_is_named_and_leaves_room_again() {
    let place = Place::new();
    write_archive(&place.path("archive.tar"), 200);
    let disk = MemoryDisk::mount(place.layers_dir(), 8);
    let source = format!("tar:{}", place.path("archive.tar").display());
    for _ in 0..3 {
        let error = place.fetch(&source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{}", chain(&error));
        assert!(chain(&error).contains("free space"), "{}", chain(&error));
        assert_eq!(place.names_in_layers_dir(), [""; 0]);
    }
    disk.grow(32);
    assert_eq!(place.fetch(&source).unwrap().layers[0].notes.entries, 200);
}

/// Cancels after some bytes.
struct CancelAfter(AtomicU64);

impl Progress for CancelAfter {
    fn advanced(&self, _: &ProgressItem, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 1 << 20
    }
}

#[test]
fn cancelling_leaves_nothing() {
    let place = Place::new();
    write_archive(&place.path("archive.tar"), 100);
    let source: Source = format!("tar:{}", place.path("archive.tar").display()).parse().unwrap();
    let error = fetch(&source, &place.options(), &CancelAfter(AtomicU64::new(0))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{}", chain(&error));
    assert_eq!(place.names_in_layers_dir(), [""; 0]);
}

#[test]
fn layers_that_are_not_as_we_would_make_them_are_not_used() {
    let place = Place::new();
    write_archive(&place.path("archive.tar"), 1);
    let source: Source = format!("tar:{}", place.path("archive.tar").display()).parse().unwrap();
    let mut options = place.options();
    let image = fetch(&source, &options, &NoProgress).unwrap();
    options.unpack.id_shift.base += 65536;
    let error = fetch(&source, &options, &NoProgress).unwrap_err();
    assert!(chain(&error).contains("remove the layer's directory"), "{}", chain(&error));
    options.unpack.id_shift.base = u32::MAX;
    let error = fetch(&source, &options, &NoProgress).unwrap_err();
    assert!(chain(&error).contains("lower base"), "{}", chain(&error));

    let store = LayerStore::open(&UnpackOptions::new(place.layers_dir())).unwrap();
    assert_eq!(store.list().unwrap(), [image.layers[0].diff_id]);
    assert_eq!(store.get(&image.layers[0].diff_id).unwrap().as_ref(), Some(&image.layers[0]));
    let description = image.layers[0].path.with_file_name("layer.json");
    let text = fs::read_to_string(&description).unwrap();
    fs::write(&description, text.replace("\"format\": 1", "\"format\": 999")).unwrap();
    let error = store.get(&image.layers[0].diff_id).unwrap_err();
    assert!(chain(&error).contains("format 999"), "{}", chain(&error));
    // Without its description it is no layer, and is replaced by one.
    fs::remove_file(&description).unwrap();
    fs::write(image.layers[0].path.join("stray"), "x").unwrap();
    let again = place.fetch(&source.to_string()).unwrap();
    assert_eq!(again.layers, image.layers);
    assert!(!again.layers[0].path.join("stray").exists());
    assert_eq!(fs::read_dir(place.layers_dir().join(again.layers[0].diff_id.hex())).unwrap().count(), 2);
    assert!(store.remove(&image.layers[0].diff_id).unwrap());
    assert!(!store.remove(&image.layers[0].diff_id).unwrap());
    assert_eq!(place.names_in_layers_dir(), [""; 0]);
}
