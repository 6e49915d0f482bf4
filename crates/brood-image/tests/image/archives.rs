//! `oci-archive:` and `docker-archive:`, with images made by umoci and packed by skopeo.

use std::fs;
use std::process::Command;
use std::sync::Mutex;

use brood_image::{Digest, ErrorKind, Progress, ProgressItem, Source, Stage, fetch};

use crate::images::{assert_image, make_image};
use crate::support::{Place, chain, run};

#[test]
fn both_kinds_of_archive_give_the_same_layers() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let oci = format!("oci-archive:{}", place.path("oci.tar").display());
    let docker = format!("docker-archive:{}", place.path("docker.tar").display());
    layout.copy("v1", &format!("{oci}:v1"), &[]);
    layout.copy("v1", &format!("{docker}:app:v1"), &[]);
    let image = place.fetch(&oci).unwrap();
    assert_eq!(image.layers.len(), 3);
    assert_image(&image, &place.path(""));
    let again = place.fetch(&docker).unwrap();
    assert_eq!(image.layers, again.layers);
    assert_image(&again, &place.path(""));
    assert_eq!(place.names_in_layers_dir().len(), 3);

    run(Command::new("gzip").arg("--keep").arg(place.path("docker.tar")));
    let packed = place.fetch(&format!("{docker}.gz")).unwrap();
    assert_eq!(image.layers, packed.layers);
}

#[test]
fn zstd_layers_have_the_same_identity() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let plain = format!("oci-archive:{}", place.path("plain.tar").display());
    let zstd = format!("oci-archive:{}", place.path("zstd.tar").display());
    layout.copy("v1", &plain, &[]);
    layout.copy_zstd("v1", &zstd, &[]);
    let listing = run(Command::new("tar").arg("--to-stdout").arg("--extract").arg("--wildcards").args([
        "--file",
        place.path("zstd.tar").to_str().unwrap(),
        "blobs/sha256/*",
    ]));
    assert!(listing.contains("tar+zstd"), "skopeo did not compress with zstd");
    let image = place.fetch(&zstd).unwrap();
    assert_image(&image, &place.path(""));
    assert_eq!(place.fetch(&plain).unwrap().layers, image.layers);
}

#[test]
fn archives_of_several_images_or_of_another_kind_are_explained() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    layout.configure("v1", &["--tag", "foreign", "--architecture", "riscv64"]);
    layout.configure("v1", &["--tag", "other", "--config.label=x=y"]);
    let all = place.path("all.tar");
    run(Command::new("tar").arg("--create").arg("--file").arg(&all).arg("--directory").arg(&layout.dir).arg("."));
    let refused = |source: String, part: &str| {
        let error = place.fetch(&source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(chain(&error).contains(part), "{}", chain(&error));
    };
    refused(format!("oci-archive:{}", all.display()), "holds 3 images");
    let foreign = place.path("foreign.tar");
    layout.copy("foreign", &format!("oci-archive:{}", foreign.display()), &[]);
    refused(format!("oci-archive:{}", foreign.display()), "riscv64");
    refused(format!("docker-archive:{}", foreign.display()), "'manifest.json' is missing");
    assert!(place.names_in_layers_dir().is_empty());
}

#[test]
fn damaged_archives_leave_nothing_behind() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let good = place.path("good.tar");
    layout.copy("v1", &format!("oci-archive:{}", good.display()), &[]);
    let bytes = fs::read(&good).unwrap();
    let damaged = place.path("damaged.tar");
    let source = format!("oci-archive:{}", damaged.display());
    for cut in [0, 100, 512, 5000, bytes.len() / 2, bytes.len() - 1024] {
        fs::write(&damaged, &bytes[..cut]).unwrap();
        let error = place.fetch(&source).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {cut}: {}", chain(&error));
    }
    // One byte in the middle of the big layer, which is most of the archive.
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    fs::write(&damaged, &flipped).unwrap();
    let error = place.fetch(&source).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", chain(&error));
    let names = place.names_in_layers_dir();
    assert!(names.iter().all(|name| Digest::from_hex(name).is_ok()), "left behind: {names:?}");
    assert!(names.len() < 3, "the damaged layer appeared");
    fs::write(&damaged, &bytes).unwrap();
    assert_image(&place.fetch(&source).unwrap(), &place.path(""));
}

/// Counts what is started.
#[derive(Default)]
struct Count(Mutex<Vec<ProgressItem>>);

impl Progress for Count {
    fn started(&self, item: &ProgressItem, _: Option<u64>) {
        self.0.lock().unwrap().push(item.clone());
    }
}

#[test]
fn simultaneous_fetches_unpack_each_layer_once() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let source = format!("oci-archive:{}", place.path("oci.tar").display());
    layout.copy("v1", &source, &[]);
    let source: Source = source.parse().unwrap();
    let count = Count::default();
    let images: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| fetch(&source, &place.options(), &count).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(images.windows(2).all(|pair| pair[0].layers == pair[1].layers));
    let mut started = count.0.into_inner().unwrap();
    started.sort();
    started.dedup();
    assert_eq!(started.iter().filter(|item| item.stage == Stage::Unpack).count(), 3);
    assert_eq!(place.names_in_layers_dir().len(), 3);
}
