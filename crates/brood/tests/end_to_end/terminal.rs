//! `exec -t` on a real terminal: raw while it lasts, as before when it is over.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::fixture::{Sandbox, brood, fixture};

/// How long something is waited for on a busy machine.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

struct Screen {
    outer: File,
    inner: OwnedFd,
    shown: String,
}

impl Screen {
    fn new() -> Self {
        let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&outer).unwrap();
        unlockpt(&outer).unwrap();
        let name = ptsname(&outer, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let inner = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        let screen = Self { outer: outer.into(), inner, shown: String::new() };
        screen.resize(100, 40);
        screen
    }

    fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.inner, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    fn start(&self, arguments: &[&str]) -> Child {
        let end = || Stdio::from(self.inner.try_clone().unwrap());
        fixture().brood(arguments).env("TERM", "vt100").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    fn wait_for(&mut self, text: &str) {
        let mut buffer = [0u8; 4096];
        while !self.shown.contains(text) {
            let mut poll = [PollFd::new(&self.outer, PollFlags::IN)];
            let ready = rustix::event::poll(&mut poll, Some(&PATIENCE)).unwrap();
            assert!(ready > 0, "{text:?} did not come; there is {:?}", self.shown);
            let count = self.outer.read(&mut buffer).unwrap();
            self.shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end);
    }

    fn type_in(&mut self, text: &str) {
        self.outer.write_all(text.as_bytes()).unwrap();
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.inner).unwrap()
    }
}

#[test]
fn a_shell_on_a_terminal_works_and_restores_it() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::new();
    let before = screen.modes().local_modes;
    let mut child = screen.start(&["exec", &sandbox.id, "-it", "--", "/bin/sh"]);
    screen.type_in("tty; echo term $TERM\r");
    screen.wait_for("/dev/pts/");
    screen.wait_for("term vt100");
    assert!(!screen.modes().local_modes.contains(LocalModes::ICANON), "the terminal is raw meanwhile");
    screen.type_in("stty size\r");
    screen.wait_for("40 100");
    screen.resize(77, 33);
    kill_process(Pid::from_child(&child), Signal::WINCH).unwrap();
    // The resize travels beside the input, so it is asked for until it is there.
    screen.type_in("while [ \"$(stty size)\" != '33 77' ]; do :; done; echo re''sized\r");
    screen.wait_for("resized");
    // The interrupt must not overtake the shell, which hands the terminal over only after its fork.
    screen.type_in("sh -c 'echo run\"\"ning; sleep 1000'\r");
    screen.wait_for("running");
    screen.type_in("\x03");
    screen.type_in("echo inter''rupted\r");
    screen.wait_for("interrupted");
    screen.type_in("exit 9\r");
    assert_eq!(child.wait().unwrap().code(), Some(9));
    assert_eq!(screen.modes().local_modes, before);
}

#[test]
fn the_terminal_is_restored_when_the_sandbox_dies() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::new();
    let before = screen.modes().local_modes;
    let mut child = screen.start(&["exec", &sandbox.id, "-it", "--", "/bin/sh", "-c", "echo rea''dy; sleep 1000"]);
    screen.wait_for("ready");
    brood(&["kill", &sandbox.id]).succeeded();
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert_eq!(screen.modes().local_modes, before);
}

#[test]
fn leaving_a_terminal_lets_it_run_and_attaching_finds_it_again() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::new();
    let before = screen.modes().local_modes;
    let mut child = screen.start(&["exec", &sandbox.id, "-it", "--tag", "shell", "--", "/bin/sh"]);
    screen.type_in("x=kept; echo rea''dy\r");
    screen.wait_for("ready");
    screen.type_in("\x10\x11");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(screen.modes().local_modes, before);
    let mut child = screen.start(&["attach", &sandbox.id, "shell", "--no-history"]);
    screen.type_in("echo still $x\r");
    screen.wait_for("still kept");
    screen.type_in("exit 3\r");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(screen.modes().local_modes, before);
}

#[test]
fn a_terminal_without_a_local_one_has_a_size_too() {
    let sandbox = Sandbox::new();
    let ran = sandbox.exec_with(&["-t"], &["stty", "size"]).succeeded();
    assert_eq!(ran.stdout.trim(), "24 80");
}
