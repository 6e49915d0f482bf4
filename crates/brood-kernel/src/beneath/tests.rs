use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

/// A directory of its own with a `root` in it and a `secret` beside.
struct Place {
    path: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brood-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("root/inside")).unwrap();
        fs::write(path.join("secret"), "secret").unwrap();
        fs::write(path.join("root/inside/file"), "inside").unwrap();
        Self { path }
    }

    fn root(&self) -> Root {
        Root::open(&self.path.join("root")).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.path));
    }
}

fn read(root: &Root, path: &str) -> Result<Vec<u8>> {
    let file = root.open_file(Path::new(path), OFlags::RDONLY, Mode::empty())?;
    let mut buffer = vec![0; 64];
    let length = rustix::io::read(&file, &mut buffer).unwrap();
    buffer.truncate(length);
    Ok(buffer)
}

#[test]
fn links_and_dots_stay_inside() {
    let place = Place::new("beneath-links");
    let base = place.path.join("root");
    symlink(place.path.join("secret"), base.join("absolute")).unwrap();
    symlink("../secret", base.join("relative")).unwrap();
    symlink("/inside/file", base.join("rooted")).unwrap();
    symlink("/..", base.join("up")).unwrap();
    symlink("/proc/self/root", base.join("magic")).unwrap();
    let root = place.root();
    for path in ["absolute", "relative", "../secret", "up/secret", "/../../secret", "magic/etc"] {
        assert_eq!(read(&root, path).unwrap_err().source, Errno::NOENT, "{path}");
    }
    assert_eq!(read(&root, "rooted").unwrap(), b"inside");
    assert_eq!(read(&root, "/inside/../up/inside/file").unwrap(), b"inside");
}

#[test]
fn magic_links_of_proc_are_refused() {
    let root = Root::open(Path::new("/proc/self")).unwrap();
    assert_eq!(read(&root, "root/etc/hostname").unwrap_err().source, Errno::LOOP);
    assert_eq!(read(&root, "cwd/Cargo.toml").unwrap_err().source, Errno::LOOP);
}

#[test]
fn nothing_is_created_through_a_link_out() {
    let place = Place::new("beneath-create");
    let base = place.path.join("root");
    symlink(&place.path, base.join("out")).unwrap();
    symlink(place.path.join("made"), base.join("target")).unwrap();
    let root = place.root();
    let mode = Mode::from_raw_mode(0o640);
    assert_eq!(root.create_file(Path::new("out/made"), mode).unwrap_err().source, Errno::NOENT);
    assert_eq!(root.create_file(Path::new("target"), mode).unwrap_err().source, Errno::EXIST);
    assert_eq!(root.make_directory(Path::new("out/made"), mode).unwrap_err().source, Errno::NOENT);
    root.make_directories(Path::new("/a/../b/./c"), Mode::RWXU).unwrap();
    drop(root.create_file(Path::new("b/c/file"), mode).unwrap());
    assert_eq!(fs::metadata(base.join("b/c/file")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert!(!place.path.join("made").exists());
}

#[test]
fn last_components_that_are_no_names_are_refused() {
    let place = Place::new("beneath-names");
    let root = place.root();
    for path in ["", "/", ".", "..", "inside/..", "../.."] {
        assert_eq!(root.remove_tree(Path::new(path)).unwrap_err().source, Errno::INVAL, "{path}");
    }
    assert_eq!(read(&root, "inside/file").unwrap(), b"inside");
}

#[test]
fn rename_and_remove_act_on_links_not_targets() {
    let place = Place::new("beneath-rename");
    let base = place.path.join("root");
    symlink(place.path.join("secret"), base.join("link")).unwrap();
    let root = place.root();
    root.rename(Path::new("link"), Path::new("inside/link"), RenameFlags::NOREPLACE).unwrap();
    assert!(root.read_link(Path::new("inside/link")).unwrap().ends_with(b"/secret"));
    root.remove_file(Path::new("inside/link")).unwrap();
    root.make_symlink(OsStr::new("/inside"), Path::new("dir")).unwrap();
    assert_eq!(root.status(Path::new("dir")).unwrap().st_ino, root.link_status(Path::new("inside")).unwrap().st_ino);
    root.remove_tree(Path::new("dir")).unwrap();
    assert!(base.join("inside/file").exists());
    assert_eq!(fs::read(place.path.join("secret")).unwrap(), b"secret");
}

#[test]
fn trees_of_hostile_depth_and_names_are_removed() {
    let place = Place::new("beneath-deep");
    let base = place.path.join("root");
    fs::create_dir(base.join("deep")).unwrap();
    symlink(&place.path, base.join("deep/out")).unwrap();
    fs::create_dir(base.join("deep/.lifted-1")).unwrap();
    fs::write(base.join("deep/.lifted-2"), "").unwrap();
    let mut current = rustix::fs::open(base.join("deep"), OFlags::PATH, Mode::empty()).unwrap();
    // Ten times longer than any path can be.
    for _ in 0..2_000 {
        let name = "directory-with-a-long-name\n";
        mkdirat(&current, name, Mode::RWXU).unwrap();
        current = rustix::fs::openat(&current, name, OFlags::PATH, Mode::empty()).unwrap();
    }
    place.root().remove_tree(Path::new("deep")).unwrap();
    assert!(!base.join("deep").exists());
    assert_eq!(fs::read(place.path.join("secret")).unwrap(), b"secret");
}

#[test]
fn a_walk_is_ordered_complete_and_does_not_follow() {
    let place = Place::new("beneath-walk");
    let base = place.path.join("root");
    symlink(&place.path, base.join("inside/out")).unwrap();
    fs::create_dir(base.join("inside/a")).unwrap();
    fs::write(base.join("inside/a/z"), "").unwrap();
    fs::write(base.join("inside/a.b"), "").unwrap();
    let walk = place.root().walk(Path::new("/")).unwrap();
    let mut paths = Vec::new();
    for entry in walk {
        let entry = entry.unwrap();
        let expected = fs::symlink_metadata(base.join(&entry.path)).unwrap();
        assert_eq!(expected.ino(), entry.status.st_ino);
        paths.push(entry.path.to_str().unwrap().to_owned());
    }
    let expected = ["inside", "inside/a", "inside/a/z", "inside/a.b", "inside/file", "inside/out"];
    assert_eq!(paths, expected);
    let mut walk = place.root().walk(Path::new("/")).unwrap();
    walk.next().unwrap().unwrap();
    walk.skip_directory();
    assert!(walk.next().is_none());
}
