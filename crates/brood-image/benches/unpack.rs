//! Throughput of unpacking a layer, with the system's tar on the same archive beside it.
//!
//! Both write to memory (`/dev/shm`), so that what is compared is the work and not the disk. The layer is hashed, its
//! owners shifted and every path checked; tar does none of that.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run has nothing to say")]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use brood_image::{FetchOptions, NoProgress, Source, fetch};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

/// Files of a source tree: many and small.
const SMALL_FILES: usize = 10_000;
const SMALL_BYTES: usize = 6_000;
/// Files like shared libraries: few and big.
const BIG_FILES: usize = 20;
const BIG_BYTES: usize = 4 << 20;

fn make_archives(dir: &Path) -> u64 {
    let tree = dir.join("tree");
    let mut state = 1_u64;
    let mut body = |count: usize| -> Vec<u8> {
        // Compresses about as well as code does.
        let letters = (0..count).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"etaoin shrdlu\n(){};"[(state >> 33) as usize % 19]
        });
        letters.collect()
    };
    for index in 0..SMALL_FILES {
        let path = tree.join(format!("src/dir{}/sub{}/file{index}.c", index % 50, index % 7));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, body(SMALL_BYTES)).unwrap();
    }
    for index in 0..BIG_FILES {
        fs::create_dir_all(tree.join("lib")).unwrap();
        fs::write(tree.join(format!("lib/lib{index}.so")), body(BIG_BYTES)).unwrap();
    }
    for (name, option) in [("plain.tar", "--format=posix"), ("gzip.tar", "--gzip"), ("zstd.tar", "--zstd")] {
        let mut tar = Command::new("tar");
        tar.args(["--create", option, "--file"]).arg(dir.join(name)).arg("--directory").arg(&tree).arg(".");
        assert!(tar.status().unwrap().success());
    }
    fs::remove_dir_all(tree).unwrap();
    dir.join("plain.tar").metadata().unwrap().len()
}

fn unpack(criterion: &mut Criterion) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let bytes = make_archives(dir.path());
    let mut group = criterion.benchmark_group("unpack");
    group.throughput(Throughput::Bytes(bytes)).sample_size(10).measurement_time(Duration::from_secs(10));
    for name in ["plain.tar", "gzip.tar", "zstd.tar"] {
        let archive = dir.path().join(name);
        let source: Source = format!("tar:{}", archive.display()).parse().unwrap();
        let fresh = || tempfile::tempdir_in("/dev/shm").unwrap();
        group.bench_function(format!("brood/{name}"), |bencher| {
            bencher.iter_batched(
                fresh,
                |target| {
                    let mut options = FetchOptions::new(target.path().join("layers"), target.path().join("cache"));
                    options.unpack.durable = false;
                    black_box(fetch(&source, &options, &NoProgress).unwrap());
                    target
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function(format!("tar/{name}"), |bencher| {
            bencher.iter_batched(
                fresh,
                |target| {
                    let mut tar = Command::new("tar");
                    tar.args(["--extract", "--file"]).arg(&archive).arg("--directory").arg(target.path());
                    assert!(tar.status().unwrap().success());
                    target
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, unpack);
criterion_main!(benches);
