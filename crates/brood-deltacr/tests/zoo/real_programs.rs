//! Interpreters and shells as they are: a variable set before a checkpoint is there afterwards, in
//! a fork, and after a rollback, and each goes its own way.

use brood_deltacr::PageStore;

use crate::harness::{Sandbox, capture, roll_back};

/// How to make a program say it is ready, set a variable, and print it.
struct Program {
    command: &'static [&'static str],
    ready: &'static str,
    set: &'static str,
    change: &'static str,
    show: &'static str,
}

fn session(program: &Program) {
    if !std::path::Path::new(program.command[0]).exists() {
        eprintln!("SKIPPED: {} is not installed", program.command[0]);
        return;
    }
    let store = PageStore::new();
    let mut sandbox = Sandbox::start_silent(program.command);
    assert_eq!(sandbox.ask(program.ready), "ready");
    sandbox.send(program.set);
    assert_eq!(sandbox.ask(program.show), "forty-two");
    let mut tree = sandbox.tree();
    let image = capture(&mut tree, &store, &sandbox.pipes);
    sandbox.send(program.change);
    assert_eq!(sandbox.ask(program.show), "changed");
    let later = capture(&mut tree, &store, &sandbox.pipes);
    let mut fork = Sandbox::empty();
    let _fork_tree = fork.restore(&image);
    assert_eq!(fork.ask(program.show), "forty-two", "the fork");
    fork.send(program.change);
    assert_eq!(fork.ask(program.show), "changed", "the fork goes its own way");
    for _ in 0..3 {
        roll_back(&mut tree, &image, &sandbox);
        assert_eq!(sandbox.ask(program.show), "forty-two", "after a rollback");
        roll_back(&mut tree, &later, &sandbox);
        assert_eq!(sandbox.ask(program.show), "changed", "forward again");
    }
}

#[test]
fn bash() {
    session(&Program {
        command: &["/bin/bash"],
        ready: "echo ready\n",
        set: "x=forty-two; (sleep 1000 & ) ; sleep 1000 &\n",
        change: "x=changed; for i in 1 2 3; do /bin/true; done\n",
        show: "echo $x\n",
    });
}

#[test]
fn python_with_threads() {
    session(&Program {
        command: &["/usr/bin/python3", "-iqu", "-c", "import threading, time, subprocess, sys\nsys.ps1 = ''"],
        ready: "print('ready')\n",
        set: "x = 'forty-two'; [threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range(3)] and None\n",
        change: "x = subprocess.run(['echo', 'changed'], capture_output=True, text=True).stdout.strip()\n",
        show: "print(x)\n",
    });
}

#[test]
fn perl() {
    session(&Program {
        command: &["/usr/bin/perl", "-e", "$| = 1; while (<STDIN>) { eval $_; }"],
        ready: "print \"ready\\n\";\n",
        set: "$x = 'forty-two'; @big = map { $_ x 100 } 1 .. 10000;\n",
        change: "$x = 'changed'; @big = (); @other = map { {n => $_} } 1 .. 10000;\n",
        show: "print \"$x\\n\";\n",
    });
}

#[test]
fn node() {
    session(&Program {
        command: &[
            "/usr/bin/node",
            "-e",
            "let x; require('readline').createInterface({input: process.stdin}).on('line', line => eval(line))",
        ],
        ready: "console.log('ready')\n",
        set: "x = 'forty-two'; setInterval(() => {}, 5)\n",
        change: "x = 'changed'; globalThis.big = Array.from({length: 1e5}, (_, i) => ({i}))\n",
        show: "console.log(x)\n",
    });
}

#[test]
fn a_shell_that_never_stops_starting_programs_can_be_stopped() {
    let store = PageStore::new();
    let endless = "echo ready; while :; do /bin/true; /bin/true | /bin/true; done";
    let sandbox = Sandbox::start(&["/bin/bash", "-c", endless]);
    let mut tree = sandbox.tree();
    for _ in 0..20 {
        capture(&mut tree, &store, &sandbox.pipes);
    }
}

#[test]
fn a_program_that_never_stops_spawning_by_vfork_can_be_stopped() {
    let store = PageStore::new();
    let loop_of_spawns = "import os\nwhile True: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)";
    let mut sandbox = Sandbox::start_silent(&["/usr/bin/python3", "-uc", &format!("print('ready')\n{loop_of_spawns}")]);
    assert_eq!(sandbox.line(), "ready");
    let mut tree = sandbox.tree();
    for _ in 0..20 {
        capture(&mut tree, &store, &sandbox.pipes);
    }
}
