//! Template builds through the command line.

use std::fs;

use crate::fixture::{TEMPLATE, brood, spawn};

struct Template(&'static str);

impl Drop for Template {
    fn drop(&mut self) {
        brood(&["template", "rm", self.0]);
    }
}

fn build(name: &str, options: &[&str]) -> crate::fixture::Ran {
    let from = format!("template:{TEMPLATE}");
    brood(&[&["template", "build", name, "--from", &from], options].concat())
}

#[test]
fn steps_run_in_order_and_are_cached() {
    let template = Template("ordered");
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "copied\n").unwrap();
    let copy = format!("{}/file:/data/file", directory.path().display());
    let options = [
        "--run",
        "echo 1 > /tmp/order",
        "--copy",
        &copy,
        "--run",
        "cat /data/file >> /tmp/order",
        "--env",
        "COLOUR=green",
        "--workdir",
        "/data",
        "--user",
        "nobody",
    ];
    build(template.0, &options).succeeded();
    brood(&["run", template.0, "--", "cat", "/tmp/order"]).succeeded().printed("1\ncopied\n");
    brood(&["run", template.0, "--", "/bin/sh", "-c", "id -un; echo $COLOUR"]).succeeded().printed("nobody\ngreen\n");
    let again = build(template.0, &options).succeeded();
    assert!(again.stderr.matches("(cached)").count() >= 3, "{}", again.stderr);
    fs::write(directory.path().join("file"), "changed\n").unwrap();
    build(template.0, &options).succeeded();
    brood(&["run", template.0, "--", "cat", "/tmp/order"]).succeeded().printed("1\nchanged\n");
    let history = brood(&["template", "history", template.0, "--json"]).succeeded().json();
    assert!(history.as_array().unwrap().len() >= 4, "{history}");
    let info = brood(&["template", "inspect", template.0]).succeeded().json();
    assert_eq!((&info[0]["user"], &info[0]["working_directory"]), (&"nobody".into(), &"/data".into()));
}

#[test]
fn a_step_that_fails_leaves_no_template() {
    let ran = build("failing", &["--run", "echo to be seen; exit 3"]).ended(1);
    assert!(ran.stderr.contains("to be seen") && ran.stderr.contains('3'), "{}", ran.stderr);
    brood(&["template", "inspect", "failing"]).ended(1);
}

#[test]
fn two_builds_of_one_name_do_not_mix() {
    let template = Template("twice");
    let from = format!("template:{TEMPLATE}");
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    fs::write(&gate, "").unwrap();
    let arguments = [
        "template",
        "build",
        template.0,
        "--from",
        &from,
        "--no-cache",
        "--run",
        "echo begun; sleep 3; echo first > /who",
    ];
    let mut first = spawn(&arguments);
    // The first line of the step shows that the build has the name.
    let mut shown = String::new();
    let mut stderr = std::io::BufReader::new(first.stderr.take().unwrap());
    while !shown.contains("begun") {
        assert!(std::io::BufRead::read_line(&mut stderr, &mut shown).unwrap() > 0, "{shown}");
    }
    build(template.0, &["--no-cache", "--run", "echo second > /who"]).ended(1).said(template.0);
    std::io::Read::read_to_string(&mut stderr, &mut shown).unwrap();
    assert!(first.wait().unwrap().success(), "{shown}");
    brood(&["run", template.0, "--", "cat", "/who"]).succeeded().printed("first\n");
}

#[test]
fn a_template_in_use_is_not_removed() {
    let template = Template("used");
    build(template.0, &["--run", "echo 1 > /version"]).succeeded();
    let id = brood(&["create", template.0]).succeeded().stdout;
    brood(&["template", "rm", template.0]).ended(1).said(template.0);
    // Building it anew leaves the sandbox as it was.
    build(template.0, &["--run", "echo 2 > /version"]).succeeded();
    brood(&["exec", id.trim(), "--", "cat", "/version"]).succeeded().printed("1\n");
    brood(&["kill", id.trim()]).succeeded();
    brood(&["run", template.0, "--", "cat", "/version"]).succeeded().printed("2\n");
    brood(&["template", "rm", template.0]).succeeded();
    brood(&["template", "inspect", template.0]).ended(1);
}

#[test]
fn a_directory_becomes_a_template() {
    let template = Template("directory");
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("etc")).unwrap();
    fs::write(directory.path().join("etc/motto"), "from a directory\n").unwrap();
    brood(&["template", "build", template.0, "--from", &format!("dir:{}", directory.path().display())]).succeeded();
    let id = brood(&["create", template.0]).succeeded().stdout;
    let ran = brood(&["cp", &format!("{}:/etc/motto", id.trim()), "-"]).succeeded();
    assert!(ran.stdout.contains("from a directory"), "{ran:#?}");
    brood(&["exec", id.trim(), "--", "ls"]).ended(127).said("ls");
    brood(&["kill", id.trim()]).succeeded();
}
