//! Wrong input: a clear message that names the object, the right exit code, nothing half-made.

use std::fs;

use crate::fixture::{Sandbox, TEMPLATE, brood, brood_with, fixture};

#[test]
fn unknown_objects_are_named() {
    brood(&["inspect", "zzzzzzzzzzzzzzzzzzzz"]).ended(1).said("zzzzzzzzzzzzzzzzzzzz");
    brood(&["exec", "zzzzzzzzzzzzzzzzzzzz", "--", "true"]).ended(125).said("zzzzzzzzzzzzzzzzzzzz");
    brood(&["stats", "zz"]).ended(1).said("zz");
    brood(&["kill", "zzzzzzzzzzzzzzzzzzzz"]).ended(1).said("zzzzzzzzzzzzzzzzzzzz");
    brood(&["template", "inspect", "nothing"]).ended(1).said("nothing");
    brood(&["template", "rm", "nothing"]).ended(1).said("nothing");
    brood(&["create", "nothing"]).ended(1).said("nothing");
    brood(&["run", "nothing", "--", "true"]).ended(125).said("nothing");
    let sandbox = Sandbox::new();
    brood(&["attach", &sandbox.id, "99999"]).ended(125).said("99999");
    brood(&["cp", &format!("{}:/nothing", sandbox.id), "/tmp"]).ended(1).said("/nothing");
}

#[test]
fn hostile_names_are_refused() {
    for name in ["../x", "a/b", "..", "a\nb", "a b", "", "-x", "\u{202e}x", &"x".repeat(500)] {
        let ran = brood(&["create", "--", name]);
        assert_eq!(ran.code, 1, "{name:?}: {ran:#?}");
        let ran = brood(&["template", "inspect", "--", name]);
        assert_eq!(ran.code, 1, "{name:?}: {ran:#?}");
        let ran = brood(&["kill", "--", name]);
        assert_eq!(ran.code, 1, "{name:?}: {ran:#?}");
        assert!(!ran.stderr.contains('\u{202e}') || name.contains('\u{202e}'));
    }
}

#[test]
fn an_id_that_fits_several_is_refused() {
    let sandboxes: Vec<_> = (0..40).map(|_| Sandbox::new()).collect();
    // Of 40 ids with 36 possible first characters two begin alike.
    let first = |sandbox: &Sandbox| sandbox.id.chars().next().unwrap();
    let twice = sandboxes.iter().find(|one| sandboxes.iter().filter(|other| first(one) == first(other)).count() > 1);
    let letter = first(twice.unwrap()).to_string();
    brood(&["inspect", &letter]).ended(1).said("write more of it");
}

#[test]
fn commands_that_cannot_run_have_their_shells_codes() {
    let sandbox = Sandbox::new();
    sandbox.exec(&["surely-not-there"]).ended(127).said("surely-not-there");
    sandbox.exec(&["/surely/not/there"]).ended(127).said("/surely/not/there");
    sandbox.exec(&["/etc/passwd"]).ended(126).said("/etc/passwd");
    sandbox.exec(&["/etc"]).ended(126).said("/etc");
    sandbox.sh("printf '#!/not/there\\n' > /script; chmod +x /script").succeeded();
    let ran = sandbox.exec(&["/script"]);
    assert!([126, 127].contains(&ran.code), "{ran:#?}");
    sandbox.exec_with(&["--user", "nosuchuser"], &["true"]).ended(125).said("nosuchuser");
    sandbox.exec_with(&["--cwd", "/not/there"], &["true"]).ended(125).said("/not/there");
    sandbox.exec(&["true"]).succeeded();
}

#[test]
fn wrong_command_lines_have_their_codes() {
    brood(&["create"]).ended(2);
    brood(&["create", TEMPLATE, "--memory", "lots"]).ended(2).said("lots");
    brood(&["create", TEMPLATE, "--timeout", "5"]).ended(2).said("30s");
    brood(&["create", TEMPLATE, "-n", "0"]).ended(2);
    brood(&["exec"]).ended(125);
    brood(&["exec", "id", "--timeout", "soon", "--", "true"]).ended(125).said("soon");
    brood(&["frobnicate"]).ended(2);
    brood(&["create", TEMPLATE, "-n", "5000"]).ended(1).said("1024");
}

#[test]
fn killing_twice_says_so() {
    let sandbox = Sandbox::new();
    let (one, other) = (Sandbox::new(), Sandbox::new());
    brood(&["kill", &sandbox.id]).succeeded();
    let ran = brood(&["kill", &one.id, &sandbox.id, &other.id]).ended(1).said(&sandbox.id);
    assert_eq!(ran.stdout.lines().count(), 2, "the others are killed all the same");
    let json = brood(&["--json", "kill", &one.id]).ended(1).json();
    assert_eq!(json["failed"][0]["error"]["code"], "not_found", "{json}");
}

#[test]
fn archives_that_are_broken_leave_no_template() {
    let directory = tempfile::tempdir().unwrap();
    let archive = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let noise: Vec<u8> = (0..100_000u32).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let whole = fs::read(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("root-python3.tar"));
    let _ = fixture();
    let whole = whole
        .or_else(|_| fs::read(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("root-python3.tar")))
        .unwrap();
    for (kind, path) in [
        ("tar", archive("noise.tar", &noise)),
        ("tar", archive("cut.tar", &whole[..whole.len() / 2 + 100])),
        ("oci-archive", archive("noise.oci", &noise)),
        ("docker-archive", archive("empty.docker", b"")),
    ] {
        let source = format!("{kind}:{}", path.display());
        let ran = brood(&["template", "build", "broken", "--from", &source]).ended(1);
        assert!(ran.stderr.contains("brood: "), "{source}: {ran:#?}");
        brood(&["template", "inspect", "broken"]).ended(1);
    }
    for source in ["nonsense", "ftp://x", "debian:", "docker://", "debian:bookworm+a b", "tar:/nonexistent.tar"] {
        let ran = brood(&["template", "build", "broken", "--from", source]);
        assert_eq!(ran.code, 1, "{source}: {ran:#?}");
    }
}

#[test]
fn a_hostile_archive_is_refused_by_the_sandbox_too() {
    let sandbox = Sandbox::new();
    brood_with(&["cp", "-", &format!("{}:/tmp", sandbox.id)], b"this is no archive").ended(1);
    let mut cut = vec![0u8; 700];
    cut[..4].copy_from_slice(b"file");
    brood_with(&["cp", "-", &format!("{}:/tmp", sandbox.id)], &cut).ended(1);
    sandbox.exec(&["true"]).succeeded();
}
