//! What programs see of inode and device numbers across mounts.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use brood_deltafs::{LayerStack, Upper};

use crate::fixture::{Attached, Mounted, Place};

fn inode(mounted: &Mounted, path: &str) -> u64 {
    fs::metadata(mounted.path.join(path)).unwrap().ino()
}

fn freeze(place: &Place, stack: &LayerStack, upper: &Upper, carry: &[&str]) -> (LayerStack, Upper) {
    let frozen = place.store.freeze(upper, stack).unwrap();
    let carry: Vec<PathBuf> = carry.iter().map(PathBuf::from).collect();
    frozen.upper().carry(frozen.stack(), &carry).unwrap();
    place.store.commit_freeze(frozen).unwrap()
}

#[test]
fn untouched_and_new_files_keep_their_numbers_always() {
    let place = Place::new();
    let mut stack = place.stack.clone();
    let mut upper = place.store.new_upper(&stack).unwrap();
    let mounted = Mounted::new(&stack, &upper);
    mounted.write("data/new", "1");
    let (untouched, new) = (inode(&mounted, "data/deep/er/file"), inode(&mounted, "data/new"));
    drop(mounted);
    for round in 0..12 {
        (stack, upper) = freeze(&place, &stack, &upper, &[]);
        if round == 7 {
            let shorter = place.store.shortened(&stack, &place.stack.ids().cloned().collect()).unwrap().unwrap();
            stack = shorter;
        }
        let mounted = Mounted::new(&stack, &upper);
        assert_eq!(inode(&mounted, "data/deep/er/file"), untouched, "round {round}");
        assert_eq!(inode(&mounted, "data/new"), new, "round {round}");
    }
    // Copied up, it keeps the number as long as the mount lives.
    let mounted = Mounted::new(&stack, &upper);
    drop(File::options().append(true).open(mounted.path.join("data/deep/er/file")).unwrap());
    assert_eq!(inode(&mounted, "data/deep/er/file"), untouched);
    // A fork sees the same numbers.
    let fork = Mounted::new(&stack, &place.store.new_upper(&stack).unwrap());
    assert_eq!(inode(&fork, "data/new"), new);
}

#[test]
fn files_that_are_carried_keep_their_numbers_through_any_number_of_freezes() {
    let place = Place::new();
    let path = "data/deep/er/file";
    let mut stack = place.stack.clone();
    let mut upper = place.store.new_upper(&stack).unwrap();
    let mounted = Mounted::new(&stack, &upper);
    let before = inode(&mounted, path);
    mounted.write(path, "changed");
    assert_eq!(inode(&mounted, path), before);
    drop(mounted);
    let left_alone = freeze(&place, &stack, &upper, &[]);
    // Without: the number of the copy. This is what carrying is for.
    assert_ne!(inode(&Mounted::new(&left_alone.0, &left_alone.1), path), before);
    (stack, upper) = left_alone;
    place.store.discard(upper).unwrap();
    for round in 0..5 {
        upper = place.store.new_upper(&stack).unwrap();
        let carried = ["/data/deep/er/file", "/data/deep/er/file", "/data/none", "/data/link", "/", "/data"];
        let carried: Vec<PathBuf> = carried.iter().map(PathBuf::from).collect();
        upper.carry(&stack, &carried).unwrap();
        let mounted = Mounted::new(&stack, &upper);
        assert_eq!(inode(&mounted, path), before, "round {round}");
        mounted.write(path, &format!("round {round}"));
        assert_eq!(inode(&mounted, path), before, "round {round}");
        assert_eq!(mounted.read("data/file"), "one");
        drop(mounted);
        (stack, _) = freeze(&place, &stack, &upper, &[]);
        let rolled_back = place.store.new_upper(&stack).unwrap();
        rolled_back.carry(&stack, &carried).unwrap();
        let mounted = Mounted::new(&stack, &rolled_back);
        assert_eq!(mounted.read(path), format!("round {round}"));
        assert_eq!(inode(&mounted, path), before, "round {round}");
    }
}

/// Paths that git would have to read again, because their status is not what
/// its index says.
fn stale_for_git(root: &Path) -> Vec<String> {
    let output = git(root, &["diff-files", "--name-only"]);
    output.lines().map(str::to_owned).collect()
}

fn git(root: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@b"])
        .args(arguments)
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn git_finds_its_index_valid_after_freeze_and_fork() {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("SKIPPED: git is not installed");
        return;
    }
    let place = Place::new();
    let mut stack = place.stack.clone();
    let mut upper = place.store.new_upper(&stack).unwrap();
    let mounted = Attached::new(&place, &stack, &upper);
    let repository = mounted.path.join("data/repository");
    fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "-q"]);
    for number in 0..50 {
        fs::write(repository.join(format!("file-{number}")), "content").unwrap();
    }
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "-qm", "all"]);
    drop(mounted);
    // Index and files are frozen: nothing is stale, in any later mount.
    for _ in 0..3 {
        (stack, upper) = freeze(&place, &stack, &upper, &[]);
        let mounted = Attached::new(&place, &stack, &upper);
        assert_eq!(stale_for_git(&mounted.path.join("data/repository")), Vec::<String>::new());
    }
    // Files changed and added in a later mount are read once more after the
    // next freeze, because their numbers become those of the copies.
    let mounted = Attached::new(&place, &stack, &upper);
    let repository = mounted.path.join("data/repository");
    fs::write(repository.join("file-7"), "changed").unwrap();
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "-qm", "one"]);
    assert_eq!(stale_for_git(&repository), Vec::<String>::new());
    drop(mounted);
    (stack, upper) = freeze(&place, &stack, &upper, &[]);
    let mounted = Attached::new(&place, &stack, &upper);
    let repository = mounted.path.join("data/repository");
    assert_eq!(stale_for_git(&repository), ["file-7"]);
    assert_eq!(git(&repository, &["status", "--short"]), "");
    assert_eq!(stale_for_git(&repository), Vec::<String>::new());
}

const SQLITE: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("create table if not exists t (x)")
database.execute("insert into t values (1)")
print("ready", flush=True)
sys.stdin.readline()
try:
    database.execute("insert into t values (2)")
    print("written")
except sqlite3.OperationalError as error:
    print(error)
"#;

/// What a SQLite connection, opened before a freeze, says to a write after it.
fn sqlite_after_freeze(carry: &[&str]) -> String {
    let place = Place::new();
    let upper = place.store.new_upper(&place.stack).unwrap();
    fs::create_dir(upper.changes().join("db")).unwrap();
    let path = |mounted: &Attached| mounted.path.join("db/file");
    let run = |mounted: &Attached| {
        let mut command = Command::new("python3");
        command.args(["-c", SQLITE]).arg(path(mounted)).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let made = Attached::new(&place, &place.stack, &upper);
    run(&made).wait_with_output().unwrap();
    drop(made);
    let (stack, upper) = freeze(&place, &place.stack, &upper, &[]);
    let mut mounted = Attached::new(&place, &stack, &upper);
    let mut child = run(&mounted);
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    let (stack, upper) = freeze(&place, &stack, &upper, carry);
    mounted.replace(&stack, &upper);
    drop(child.stdin.take());
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said.trim_end().to_owned()
}

#[test]
fn sqlite_goes_on_writing_when_its_database_was_carried() {
    if Command::new("python3").args(["-c", "import sqlite3"]).status().is_ok_and(|status| status.success()) {
        assert_eq!(sqlite_after_freeze(&["/db/file"]), "written");
        // And this is what it does otherwise.
        assert_eq!(sqlite_after_freeze(&[]), "attempt to write a readonly database");
    } else {
        eprintln!("SKIPPED: no python3 with sqlite3");
    }
}

#[test]
fn device_numbers_are_those_of_the_mount() {
    let place = Place::new();
    let upper = place.store.new_upper(&place.stack).unwrap();
    let device = |mounted: &Mounted, path: &str| fs::metadata(mounted.path.join(path)).unwrap().dev();
    let one = Mounted::new(&place.stack, &upper);
    one.write("data/new", "");
    let number = device(&one, ".");
    for path in ["data/file", "data/new", "data", "tmp"] {
        assert_eq!(device(&one, path), number, "{path}");
    }
    let frozen = place.store.freeze(&upper, &place.stack).unwrap();
    let two = Mounted::new(frozen.stack(), frozen.upper());
    assert_ne!(device(&two, "."), number);
}
