//! Builds PID 1 of a sandbox, which is a workspace of its own, for embedding.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let init = manifest.join("../../init");
    let output = PathBuf::from(variable("OUT_DIR"));
    let target = output.join("init-target");
    for watched in ["src", "Cargo.toml", "Cargo.lock", "build.rs", "../crates/brood-init-protocol/src"] {
        println!("cargo::rerun-if-changed={}", init.join(watched).display());
    }
    let mut command = Command::new(variable("CARGO"));
    command.args(["build", "--release", "--locked", "--quiet", "--target-dir"]).arg(&target).current_dir(&init);
    // What cargo tells its build scripts is about this workspace, not about that one; and flags
    // meant for programs of the host (a sanitizer, coverage) have no place in PID 1.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let inherited = name.starts_with("CARGO_") && !matches!(name.as_str(), "CARGO_HOME" | "CARGO_NET_OFFLINE");
        if inherited || name.starts_with("RUSTC") || name == "RUSTFLAGS" || name == "CLIPPY_ARGS" {
            command.env_remove(name);
        }
    }
    let status = command.status().expect("cargo can be started");
    assert!(status.success(), "brood-init could not be built in {}", init.display());
    copy(&target.join("release/brood-init"), &output.join("brood-init"));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_error| panic!("cargo sets {name}"))
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|error| panic!("{} cannot be copied: {error}", from.display()));
}
