//! Links without any C runtime: the program brings its own entry point and is fully static.

fn main() {
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,noexecstack"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
