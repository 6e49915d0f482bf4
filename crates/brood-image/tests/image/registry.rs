//! `docker://`, against a real registry.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use brood_image::{
    Credentials, Digest, ErrorKind, FetchOptions, NoProgress, Progress, ProgressItem, Source, Stage, fetch,
};

use crate::images::{Layout, assert_image, make_image};
use crate::registry_server::{BreakingLine, RegistryServer};
use crate::support::{Place, chain};
use crate::token_server::TokenServer;

/// Options that never see the credentials of whoever runs the tests.
fn options(place: &Place) -> FetchOptions {
    let docker_config = place.path("no-credentials.json");
    fs::write(&docker_config, "{}").unwrap();
    FetchOptions { docker_config: Some(docker_config), ..place.options() }
}

fn source(address: &str, name: &str) -> Source {
    format!("docker://{address}/{name}").parse().unwrap()
}

fn push(layout: &Layout, tag: &str, address: &str, name: &str, more: &[&str]) {
    let options = [&["--dest-tls-verify=false"], more].concat();
    layout.copy(tag, &format!("docker://{address}/{name}"), &options);
}

/// The digest of the biggest blob that the registry keeps: the layer of random data.
fn biggest_blob(server: &RegistryServer) -> (String, u64) {
    let mut found = (String::new(), 0);
    for dir in fs::read_dir(server.storage.join("docker/registry/v2/blobs/sha256")).unwrap() {
        for blob in fs::read_dir(dir.unwrap().path()).unwrap() {
            let blob = blob.unwrap();
            let size = blob.path().join("data").metadata().unwrap().len();
            if size > found.1 {
                found = (blob.file_name().into_string().unwrap(), size);
            }
        }
    }
    found
}

fn names(dir: &std::path::Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// What was reported of each item: total, advanced, finished.
#[derive(Default)]
struct Bytes(Mutex<BTreeMap<ProgressItem, Reported>>);

type Reported = (Option<u64>, u64, bool);

impl Progress for Bytes {
    fn started(&self, item: &ProgressItem, total: Option<u64>) {
        assert!(self.0.lock().unwrap().insert(item.clone(), (total, 0, false)).is_none(), "{item:?} started twice");
    }

    fn advanced(&self, item: &ProgressItem, bytes: u64) {
        self.0.lock().unwrap().get_mut(item).expect("advanced before started").1 += bytes;
    }

    fn finished(&self, item: &ProgressItem) {
        self.0.lock().unwrap().get_mut(item).expect("finished before started").2 = true;
    }
}

#[test]
fn images_are_pulled_with_every_byte_accounted_for() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let server = RegistryServer::start(&place.path(""));
    push(&layout, "v1", &server.address, "team/app:v1", &[]);
    let bytes = Bytes::default();
    let image = fetch(&source(&server.address, "team/app:v1"), &options(&place), &bytes).unwrap();
    assert_image(&image, &place.path(""));
    let items = bytes.0.into_inner().unwrap();
    assert_eq!(items.keys().filter(|item| item.stage == Stage::Download).count(), 3);
    assert_eq!(items.keys().filter(|item| item.stage == Stage::Unpack).count(), 3);
    for (item, (total, advanced, finished)) in items {
        assert!(finished && total == Some(advanced), "{item:?}: {advanced} of {total:?}");
    }
    // What is kept is the layers, not their archives.
    assert_eq!(names(&place.path("cache/blobs")), [""; 0]);

    // Nothing is downloaded again, and zstd layers of the same content are the same layers.
    layout.copy_zstd("v1", &format!("docker://{}/team/app:zstd", server.address), &["--dest-tls-verify=false"]);
    let again = Bytes::default();
    let zstd = fetch(&source(&server.address, "team/app:zstd"), &options(&place), &again).unwrap();
    assert_eq!(zstd.layers, image.layers);
    assert!(again.0.into_inner().unwrap().is_empty());
}

#[test]
fn zstd_layers_are_unpacked() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let server = RegistryServer::start(&place.path(""));
    layout.copy_zstd("v1", &format!("docker://{}/app:zstd", server.address), &["--dest-tls-verify=false"]);
    let image = fetch(&source(&server.address, "app:zstd"), &options(&place), &NoProgress).unwrap();
    assert_image(&image, &place.path(""));
}

#[test]
fn indexes_lead_to_the_image_of_this_machine() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    layout.configure("v1", &["--tag", "foreign", "--architecture", "riscv64"]);
    let host = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    layout.make_index("multi", &[("foreign", "riscv64"), ("v1", host)]);
    layout.make_index("elsewhere", &[("foreign", "riscv64")]);
    let server = RegistryServer::start(&place.path(""));
    push(&layout, "multi", &server.address, "app:multi", &["--all"]);
    push(&layout, "elsewhere", &server.address, "app:elsewhere", &["--all"]);
    let image = fetch(&source(&server.address, "app:multi"), &options(&place), &NoProgress).unwrap();
    assert_image(&image, &place.path(""));
    let error = fetch(&source(&server.address, "app:elsewhere"), &options(&place), &NoProgress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(chain(&error).contains("linux/riscv64"), "{}", chain(&error));
}

#[test]
fn passwords_are_asked_for_and_used() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let server = RegistryServer::with_password(&place.path(""), "alice", "open sesame");
    push(&layout, "v1", &server.address, "app:v1", &["--dest-creds", "alice:open sesame"]);
    let source = source(&server.address, "app:v1");
    let with = |password: &str| {
        let credentials = Credentials { username: "alice".to_owned(), password: password.to_owned() };
        FetchOptions { credentials: Some(credentials), ..options(&place) }
    };
    for wrong in [options(&place), with("guess")] {
        let error = fetch(&source, &wrong, &NoProgress).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{}", chain(&error));
        assert!(chain(&error).contains("log in"), "{}", chain(&error));
    }
    assert_image(&fetch(&source, &with("open sesame"), &NoProgress).unwrap(), &place.path(""));

    // The same from the file that docker and skopeo write.
    fs::remove_dir_all(place.layers_dir()).unwrap();
    let docker_config = place.path("auth.json");
    let mut login = std::process::Command::new("skopeo");
    login.args(["login", "--tls-verify=false", "--username=alice", "--password=open sesame", "--authfile"]);
    crate::support::run(login.arg(&docker_config).arg(&server.address));
    let options = FetchOptions { docker_config: Some(docker_config), ..place.options() };
    assert_image(&fetch(&source, &options, &NoProgress).unwrap(), &place.path(""));
}

#[test]
fn tokens_are_fetched_from_where_the_registry_says() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let tokens = TokenServer::start(&place.path(""), "bob", "swordfish");
    let server = RegistryServer::with(&place.path(""), &tokens.registry_configuration());
    push(&layout, "v1", &server.address, "team/app:v1", &["--dest-creds", "bob:swordfish"]);
    let source = source(&server.address, "team/app:v1");
    let with = |password: &str| {
        let credentials = Credentials { username: "bob".to_owned(), password: password.to_owned() };
        FetchOptions { credentials: Some(credentials), ..options(&place) }
    };
    for wrong in [options(&place), with("guess")] {
        let error = fetch(&source, &wrong, &NoProgress).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{}", chain(&error));
    }
    let before = tokens.issued.load(Ordering::SeqCst);
    assert_image(&fetch(&source, &with("swordfish"), &NoProgress).unwrap(), &place.path(""));
    assert!(tokens.issued.load(Ordering::SeqCst) > before, "the image was pulled without a token");
}

#[test]
fn missing_images_and_dead_registries_are_told_apart() {
    let place = Place::new();
    let server = RegistryServer::start(&place.path(""));
    let error = fetch(&source(&server.address, "no/such:image"), &options(&place), &NoProgress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", chain(&error));
    let address = server.address.clone();
    drop(server);
    let error = fetch(&source(&address, "no/such:image"), &options(&place), &NoProgress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", chain(&error));
    assert!(chain(&error).contains(&address), "{}", chain(&error));
}

#[test]
fn broken_downloads_are_resumed() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let server = RegistryServer::start(&place.path(""));
    push(&layout, "v1", &server.address, "app:v1", &[]);
    // The layer of 3 MiB needs at least seven connections.
    let line = BreakingLine::to(&server.address, 500_000);
    let bytes = Bytes::default();
    let image = fetch(&source(&line.address.to_string(), "app:v1"), &options(&place), &bytes);
    let image = image.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_image(&image, &place.path(""));
    let connections = line.connections.load(Ordering::SeqCst);
    assert!(connections >= 7, "{connections} connections");
    for (item, (total, advanced, _)) in bytes.0.into_inner().unwrap() {
        assert_eq!(total, Some(advanced), "{item:?}: bytes were counted twice");
    }
}

#[test]
fn a_later_pull_goes_on_where_an_earlier_one_broke_off() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let server = RegistryServer::start(&place.path(""));
    push(&layout, "v1", &server.address, "app:v1", &[]);
    let (hex, size) = biggest_blob(&server);
    let blob = fs::read(server.blob(&hex)).unwrap();
    let cache = place.path("cache/blobs");
    fs::create_dir_all(&cache).unwrap();

    // A good beginning is used: of the big layer only the rest crosses the line.
    fs::write(cache.join(format!("{hex}.partial")), &blob[..blob.len() - 1000]).unwrap();
    let line = BreakingLine::to(&server.address, size - 1);
    let image = fetch(&source(&line.address.to_string(), "app:v1"), &options(&place), &NoProgress).unwrap();
    assert_image(&image, &place.path(""));

    // A bad one is noticed, and the layer downloaded from the beginning.
    fs::remove_dir_all(place.layers_dir()).unwrap();
    fs::write(cache.join(format!("{hex}.partial")), vec![0; 100_000]).unwrap();
    let image = fetch(&source(&server.address, "app:v1"), &options(&place), &NoProgress).unwrap();
    assert_image(&image, &place.path(""));
}

#[test]
fn altered_layers_and_manifests_are_refused() {
    let place = Place::new();
    let layout = make_image(&place.path(""));
    let server = RegistryServer::start(&place.path(""));
    push(&layout, "v1", &server.address, "app:v1", &[]);
    let (hex, size) = biggest_blob(&server);
    let good = fs::read(server.blob(&hex)).unwrap();

    let mut altered = good.clone();
    altered[good.len() / 2] ^= 1;
    for bad in [altered, good[..good.len() / 2].to_vec(), [&good[..], &good[..]].concat()] {
        fs::write(server.blob(&hex), &bad).unwrap();
        let error = fetch(&source(&server.address, "app:v1"), &options(&place), &NoProgress).unwrap_err();
        let text = chain(&error);
        let expected = if bad.len() < good.len() { ErrorKind::Unavailable } else { ErrorKind::Corrupt };
        assert_eq!(error.kind(), expected, "{} of {size} bytes: {text}", bad.len());
        let left = place.names_in_layers_dir();
        assert!(left.iter().all(|name| Digest::from_hex(name).is_ok()) && left.len() < 3, "left: {left:?}");
    }
    fs::write(server.blob(&hex), &good).unwrap();
    assert_image(&fetch(&source(&server.address, "app:v1"), &options(&place), &NoProgress).unwrap(), &place.path(""));

    let wrong = Digest::of(b"another manifest");
    let pinned = source(&server.address, &format!("app@{wrong}"));
    let error = fetch(&pinned, &options(&place), &NoProgress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", chain(&error));
}
