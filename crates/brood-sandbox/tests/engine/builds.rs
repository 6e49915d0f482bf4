//! Building templates.

use std::sync::Mutex;

use brood_sandbox::build::{BuildProgress, Quiet};
use brood_sandbox::error::ErrorKind;
use brood_sandbox::model::BuildStep;

use crate::fixture::{TestEngine, build_request, create_request, out};

/// Which steps came from an earlier build.
#[derive(Default)]
struct Cached(Mutex<Vec<bool>>);

impl BuildProgress for Cached {
    fn step(&self, _: usize, _: usize, _: &str, cached: bool) {
        self.0.lock().unwrap().push(cached);
    }
    fn output(&self, _: &str) {}
    fn transfer(&self, _: &str, _: u64, _: Option<u64>) {}
}

fn run_step(command: &str) -> BuildStep {
    BuildStep::Run { command: command.to_owned() }
}

#[test]
fn steps_are_layers_and_unchanged_ones_are_not_repeated() {
    let engine = TestEngine::empty();
    engine.build("debian", vec![run_step("echo one > /one"), run_step("rm /etc/motd; cat /one > /two")]);
    let sandbox = engine.sandbox();
    assert_eq!(out(&sandbox, "cat /one /two; ls /etc/motd 2>&1 | grep -c 'No such'"), "one\none\n1");
    let cached = Cached::default();
    let steps = vec![run_step("echo one > /one"), run_step("echo other > /two")];
    engine.build_template(build_request("other", steps), &cached).unwrap();
    assert_eq!(*cached.0.lock().unwrap(), [false, true, false]);
    assert_eq!(engine.template_history(&"other".parse().unwrap()).unwrap()[0].created_by, "RUN echo other > /two");
    // The files that every sandbox gets anew are not part of a layer.
    assert_ne!(out(&sandbox, "cat /etc/hostname"), "");
}

#[test]
fn a_failing_step_says_what_it_printed_and_leaves_no_template() {
    let engine = TestEngine::empty();
    let request = build_request("broken", vec![run_step("echo because; exit 3")]);
    let error = engine.build_template(request, &Quiet).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("exit code 3") && error.to_string().contains("because"), "{error}");
    assert!(engine.templates().unwrap().is_empty());
    assert!(engine.sandboxes().is_empty());
    assert_eq!(std::fs::read_dir(engine.path().join("state/store/uppers")).unwrap().count(), 0);
}

#[test]
fn files_are_copied_and_a_change_of_them_is_noticed() {
    let engine = TestEngine::empty();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    std::fs::write(directory.path().join("sub/file"), "first").unwrap();
    std::os::unix::fs::symlink("/etc/shadow", directory.path().join("link")).unwrap();
    let copy = || BuildStep::Copy { source: directory.path().to_owned(), destination: "/app".to_owned() };
    engine.build("debian", vec![copy()]);
    assert_eq!(out(&engine.sandbox(), "cat /app/sub/file; readlink /app/link"), "first/etc/shadow");
    std::fs::write(directory.path().join("sub/file"), "second").unwrap();
    let cached = Cached::default();
    engine.build_template(build_request("debian", vec![copy()]), &cached).unwrap();
    assert_eq!(*cached.0.lock().unwrap(), [false, false]);
    assert_eq!(out(&engine.create(create_request()).unwrap(), "cat /app/sub/file"), "second");
}

#[test]
fn a_template_can_start_from_another() {
    let engine = TestEngine::with_debian();
    let mut request = build_request("child", vec![run_step("echo child > /name")]);
    request.source = "template:debian".to_owned();
    request.environment.insert("COLOUR".to_owned(), "green".to_owned());
    request.working_directory = Some("/var".to_owned());
    engine.build_template(request, &Quiet).unwrap();
    let mut create = create_request();
    create.template = "child".parse().unwrap();
    assert_eq!(out(&engine.create(create).unwrap(), "cat /name; echo $COLOUR; pwd"), "child\ngreen\n/var");
}

#[test]
fn two_builds_of_one_name_do_not_mix() {
    let engine = TestEngine::empty();
    std::thread::scope(|scope| {
        let builds: Vec<_> = (0..2)
            .map(|number| {
                let engine = &engine;
                scope.spawn(move || {
                    let steps = vec![run_step(&format!("sleep 1; echo {number} > /number"))];
                    engine.build_template(build_request("debian", steps), &Quiet).map_err(|error| error.kind())
                })
            })
            .collect();
        let outcomes: Vec<_> = builds.into_iter().map(|build| build.join().unwrap().is_ok()).collect();
        assert_eq!(outcomes.iter().filter(|succeeded| **succeeded).count(), 1, "{outcomes:?}");
    });
}

#[test]
fn nonsense_sources_are_named() {
    let engine = TestEngine::empty();
    for (source, kind) in [
        ("nonsense", ErrorKind::Invalid),
        ("tar:/no/such/file.tar", ErrorKind::NotFound),
        ("template:missing", ErrorKind::NotFound),
    ] {
        let mut request = build_request("x", Vec::new());
        request.source = source.to_owned();
        let error = engine.build_template(request, &Quiet).unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(
            error.chain().contains(source.trim_start_matches("tar:")) || source.starts_with("template"),
            "{}",
            error.chain()
        );
    }
}
