//! Checkpoint, rollback, fork, tree, diff and network, as a person or a script uses them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout};

use crate::fixture::{Ran, Sandbox, TEMPLATE, brood, brood_with, spawn};

/// A Python program that answers one expression a line.
const INTERPRETER: &str = "
import sys
state = {}
print('ready', flush=True)
for line in sys.stdin:
    try:
        result = eval(line, state)
    except SyntaxError:
        result = exec(line, state)
    print(result, flush=True)
";

/// It, as a client holds it.
struct Session {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Session {
    fn start(sandbox: &Sandbox) -> Self {
        let command = ["exec", &sandbox.id, "-i", "--tag", "session", "--", "python3", "-c", INTERPRETER];
        let mut session = Self::client(&command);
        assert_eq!(session.line(), "ready");
        session
    }

    /// The one that lives in a fork, or after a rollback.
    fn attach(id: &str) -> Self {
        Self::client(&["attach", id, "session", "-i", "--no-history"])
    }

    fn client(command: &[&str]) -> Self {
        let mut child = spawn(command);
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, expression: &str) -> String {
        writeln!(self.stdin, "{expression}").unwrap();
        self.line()
    }

    fn end(self) -> Ran {
        drop(self.stdin);
        self.child.wait_with_output().unwrap().into()
    }

    /// Waits for an end that comes by itself, with standard input still open.
    fn ended(self) -> Ran {
        let Self { child, stdin, stdout } = self;
        let ran = child.wait_with_output().unwrap().into();
        drop((stdin, stdout));
        ran
    }
}

fn id_of(ran: Ran) -> String {
    let id = ran.succeeded().stdout.trim().to_owned();
    assert_eq!(id.len(), 20, "{id}");
    id
}

#[test]
fn a_session_and_the_working_tree_come_back() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox);
    session.ask("x = 41");
    sandbox.sh("mkdir /repo && echo before > /repo/file").succeeded();
    let checkpoint = id_of(brood(&["checkpoint", &sandbox.id, "--name", "before-work"]));
    assert_eq!(session.ask("x + 1"), "42", "the original goes on");
    session.ask("x = 99");
    sandbox.sh("rm -r /repo /etc/apt && echo after > /etc/after").succeeded();
    brood(&["rollback", &sandbox.id, "before-work"]).succeeded().printed(&format!("{checkpoint}\n"));
    session.ended().said("rolled back");
    sandbox.sh("cat /repo/file; test -d /etc/apt; test ! -e /etc/after").succeeded().printed("before\n");
    let mut session = Session::attach(&sandbox.id);
    assert_eq!(session.ask("x"), "41");
    assert_eq!(session.ask("open('/repo/file').read().strip()"), "before");
    session.end().succeeded();
    brood(&["checkpoint", "rm", &checkpoint]).succeeded().printed(&format!("{checkpoint}\n"));
}

#[test]
fn a_background_process_goes_on_from_the_checkpoint() {
    let sandbox = Sandbox::new();
    let script = "n=0; trap 'n=$((n+1)); echo $n' USR1; echo up; while :; do sleep 1000 & wait $!; done";
    sandbox.exec_with(&["--detach", "--tag", "counter"], &["/bin/sh", "-c", script]).succeeded();
    let follow = || {
        let mut child = spawn(&["attach", &sandbox.id, "counter"]);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (child, stdout)
    };
    let (mut client, mut lines) = follow();
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let count = || brood(&["kill", &sandbox.id, "--process", "counter", "--signal", "USR1"]).succeeded();
    assert_eq!(next(), "up");
    count();
    assert_eq!(next(), "1");
    let checkpoint = id_of(brood(&["checkpoint", &sandbox.id]));
    count();
    assert_eq!(next(), "2");
    brood(&["rollback", &sandbox.id, &checkpoint]).succeeded();
    count();
    assert_eq!(next(), "2", "it counts on from one again, and its client still listens");
    brood(&["kill", &sandbox.id]).succeeded();
    client.wait().unwrap();
}

#[test]
fn forks_are_independent() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox);
    session.ask("x = [1, 2, 3]");
    sandbox.sh("echo base > /file").succeeded();
    let checkpoint = id_of(brood(&["checkpoint", &sandbox.id, "--name", "fan-out"]));
    let ran = brood(&["fork", "fan-out", "-n", "4"]).succeeded();
    let forks: Vec<Sandbox> = ran.stdout.lines().map(|id| Sandbox { id: id.to_owned() }).collect();
    assert_eq!(forks.len(), 4);
    let mut sessions: Vec<Session> = forks.iter().map(|fork| Session::attach(&fork.id)).collect();
    for (number, (fork, session)) in forks.iter().zip(&mut sessions).enumerate() {
        session.ask(&format!("x.append({number})"));
        fork.sh(&format!("echo {number} >> /file")).succeeded();
    }
    for (number, (fork, mut session)) in forks.iter().zip(sessions).enumerate() {
        assert_eq!(session.ask("x"), format!("[1, 2, 3, {number}]"));
        fork.sh("cat /file").succeeded().printed(&format!("base\n{number}\n"));
        session.end().succeeded();
        let shown = brood(&["inspect", &fork.id]).succeeded().json();
        assert_eq!(shown[0]["checkpoint"], checkpoint.as_str());
    }
    assert_eq!(session.ask("x"), "[1, 2, 3]");
    sandbox.sh("cat /file").succeeded().printed("base\n");
    session.end().succeeded();
}

#[test]
fn live_sandboxes_and_templates_are_forked_too() {
    let sandbox = Sandbox::new();
    sandbox.sh("echo mine > /file").succeeded();
    let forks = brood(&["fork", &sandbox.id[..12], "-n", "2", "--json"]).succeeded().json();
    let forks: Vec<Sandbox> =
        forks.as_array().unwrap().iter().map(|fork| Sandbox { id: fork["id"].as_str().unwrap().to_owned() }).collect();
    assert_eq!(forks.len(), 2);
    forks[1].sh("cat /file; echo other > /file").succeeded().printed("mine\n");
    sandbox.sh("cat /file").succeeded().printed("mine\n");
    let taken = brood(&["inspect", &sandbox.id]).succeeded().json()[0]["checkpoint"].as_str().unwrap().to_owned();
    let shown = brood(&["checkpoint", "inspect", &taken]).succeeded().json();
    assert_eq!((&shown[0]["name"], &shown[0]["sandbox"]), (&serde_json::Value::Null, &sandbox.id.as_str().into()));
    let fresh = Sandbox { id: id_of(brood(&["fork", TEMPLATE])) };
    fresh.sh("test ! -e /file").succeeded();
}

#[test]
fn the_tree_shows_what_came_from_what() {
    let sandbox = Sandbox::new();
    let root = id_of(brood(&["checkpoint", &sandbox.id, "--name", "tree-root"]));
    let child = id_of(brood(&["checkpoint", &sandbox.id, "--name", "tree-child"]));
    let files = id_of(brood(&["checkpoint", &sandbox.id, "--name", "tree-files", "--no-processes"]));
    let fork = Sandbox { id: id_of(brood(&["fork", "tree-root"])) };
    let drawn = brood(&["tree", &fork.id]).succeeded().stdout;
    let lines: Vec<&str> = drawn.lines().collect();
    let begins = |line: usize, text: &str| assert!(lines[line].starts_with(text), "{text:?} at {line} of\n{drawn}");
    assert_eq!(lines.len(), 6, "{drawn}");
    begins(0, TEMPLATE);
    begins(1, &format!("└─ {} tree-root, ", &root[..12]));
    begins(2, &format!("   ├─ {} tree-child, ", &child[..12]));
    begins(3, &format!("   │  └─ {} tree-files, ", &files[..12]));
    begins(4, &format!("   │     └─ * sandbox {}, running", &sandbox.id[..12]));
    begins(5, &format!("   └─ * sandbox {}, running", &fork.id[..12]));
    assert!(lines[3].contains("files alone") && lines[1].contains("pages copied"), "{drawn}");
    let whole = brood(&["tree", TEMPLATE]).succeeded().stdout;
    assert!(whole.contains("tree-root") && whole.contains(&fork.id[..12]), "{whole}");
    let listed = brood(&["checkpoint", "ls", "--json"]).succeeded().json();
    let parent = listed.as_array().unwrap().iter().find(|info| info["id"] == child.as_str()).unwrap();
    assert_eq!(parent["parent"], root.as_str());
    // A checkpoint in the middle goes; what was below it stays whole.
    brood(&["checkpoint", "rm", "tree-child"]).succeeded().printed(&format!("{child}\n"));
    let shown = brood(&["checkpoint", "inspect", &files[..10]]).succeeded().json();
    assert_eq!(shown[0]["parent"], root.as_str());
    brood(&["rollback", &sandbox.id, &root]).succeeded();
    let gone = brood(&["--json", "checkpoint", "rm", "--recursive", "tree-root"]).succeeded().json();
    assert_eq!(gone["removed"].as_array().unwrap().len(), 2, "{gone}");
    sandbox.exec(&["true"]).succeeded();
}

#[test]
fn differences_have_their_letters() {
    let sandbox = Sandbox::new();
    let first = id_of(brood(&["checkpoint", &sandbox.id]));
    sandbox.sh("mkdir /new; echo 1 > /new/file; echo x >> /etc/passwd; rm /etc/issue; touch '/a\nb'").succeeded();
    let second = id_of(brood(&["checkpoint", &sandbox.id]));
    sandbox.sh("rm -r /new").succeeded();
    let between = brood(&["diff", &first, &second]).succeeded().stdout;
    let lines: Vec<&str> = between.lines().collect();
    for line in ["A /new", "A /new/file", "C /etc/passwd", "D /etc/issue"] {
        assert!(lines.contains(&line), "{line:?} in\n{between}");
    }
    assert!(lines.iter().all(|line| ["A /", "C /", "D /"].contains(&&line[..3])), "{between}");
    let now = brood(&["diff", &second, &sandbox.id, "--json"]).succeeded().json();
    let gone = serde_json::json!({ "path": "/new", "kind": "deleted", "directory": true });
    assert!(now.as_array().unwrap().contains(&gone), "{now}");
    brood(&["diff", &first, &first]).succeeded().printed("");
}

#[test]
fn what_cannot_be_captured_is_named() {
    let sandbox = Sandbox::new();
    let script = "import socket; s = socket.create_server(('127.0.0.1', 9000)); print('up', flush=True); s.accept()";
    let mut server = spawn(&["exec", &sandbox.id, "--", "python3", "-c", script]);
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    let ran = brood(&["checkpoint", &sandbox.id]).ended(1).said("socket").said("python3").said("--no-processes");
    assert!(ran.stdout.is_empty());
    brood(&["fork", &sandbox.id]).ended(1).said("socket");
    let error: serde_json::Value =
        serde_json::from_str(&brood(&["--json", "checkpoint", &sandbox.id]).ended(1).stderr).unwrap();
    assert_eq!(error["error"]["code"], "unsupported", "{error}");
    // Nothing has changed, and the files alone can be frozen.
    sandbox.sh("echo fine > /file").succeeded();
    let files = id_of(brood(&["checkpoint", &sandbox.id, "--no-processes"]));
    let fork = Sandbox { id: id_of(brood(&["fork", &files])) };
    fork.sh("cat /file").succeeded().printed("fine\n");
    brood(&["rollback", &sandbox.id, &files]).ended(1).said("files alone");
    assert!(server.try_wait().unwrap().is_none(), "it lives on");
    brood(&["kill", &sandbox.id]).succeeded();
    server.wait().unwrap();
}

#[test]
fn unknown_states_and_wrong_names_are_refused() {
    const NOTHING: &str = "zzzzzzzzzzzzzzzzzzzz";
    let sandbox = Sandbox::new();
    brood(&["checkpoint", NOTHING]).ended(1).said(NOTHING);
    brood(&["checkpoint"]).ended(2);
    brood(&["rollback", NOTHING, NOTHING]).ended(1).said(NOTHING);
    brood(&["rollback", &sandbox.id, "no-such"]).ended(1).said("no-such");
    brood(&["fork", "no-such"]).ended(1).said("no-such");
    brood(&["fork", TEMPLATE, "-n", "5000"]).ended(1).said("1024");
    brood(&["fork", TEMPLATE, "-n", "0"]).ended(2);
    brood(&["diff", &sandbox.id, "no-such"]).ended(1).said("no-such");
    brood(&["tree", NOTHING]).ended(1).said(NOTHING);
    brood(&["network", NOTHING, "--network", "none"]).ended(1).said(NOTHING);
    let ran = brood(&["--json", "checkpoint", "rm", "no-such"]).ended(1).json();
    assert_eq!(ran["failed"][0]["error"]["code"], "not_found", "{ran}");
    for name in ["../x", "a b", "", ".x", &"x".repeat(500)] {
        brood(&["checkpoint", &sandbox.id, &format!("--name={name}")]).ended(1).said("not valid");
    }
    brood(&["checkpoint", &sandbox.id, "--name", "taken"]).succeeded();
    brood(&["checkpoint", &sandbox.id, "--name", "taken"]).ended(1).said("taken");
    sandbox.exec(&["true"]).succeeded();
}

#[test]
fn a_name_that_is_a_template_and_a_checkpoint_is_not_guessed_at() {
    let sandbox = Sandbox::new();
    let checkpoint = id_of(brood(&["checkpoint", &sandbox.id, "--name", TEMPLATE]));
    brood(&["fork", TEMPLATE]).ended(1).said(&checkpoint);
    brood(&["checkpoint", "rm", &checkpoint]).succeeded();
}

#[test]
fn the_network_is_shown_and_wrong_rules_change_nothing() {
    let sandbox = Sandbox::new();
    brood(&["network", &sandbox.id]).succeeded().printed("none\n");
    brood(&["network", &sandbox.id, "--network", "none"]).succeeded().printed("none\n");
    brood(&["network", &sandbox.id, "--network", "sometimes"]).ended(2);
    brood(&["network", &sandbox.id, "--allow", "example.com"]).ended(2);
    brood(&["network", &sandbox.id, "--network", "none", "--allow", "not a/name"]).ended(1);
    brood(&["network", &sandbox.id, "--json"]).succeeded();
    brood(&["network", &sandbox.id]).succeeded().printed("none\n");
    brood_with(&["exec", &sandbox.id, "-i", "--", "cat"], b"still there").succeeded().printed("still there");
}

#[test]
fn a_paused_sandbox_is_listed_and_comes_back() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox);
    session.ask("x = 41");
    assert_eq!(brood(&["pause", &sandbox.id]).succeeded().stdout.trim(), sandbox.id);
    let listed = brood(&["ps", "--json"]).succeeded().json();
    let found = listed.as_array().unwrap().iter().find(|entry| entry["id"] == *sandbox.id).unwrap();
    assert_eq!(found["state"], "paused");
    brood(&["exec", &sandbox.id, "--", "true"]).ended(125);
    brood(&["resume", &sandbox.id[..8]]).succeeded();
    brood(&["resume", &sandbox.id]).ended(1);
    assert_eq!(Session::attach(&sandbox.id).ask("x + 1"), "42");
    brood(&["pause", &sandbox.id]).succeeded();
    brood(&["kill", &sandbox.id]).succeeded();
    brood(&["inspect", &sandbox.id]).ended(1);
}
