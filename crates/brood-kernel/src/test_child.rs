//! A child process for tests of this crate, killed and reaped when dropped.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::process::Pid;

#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
}

impl Child {
    /// `cat` between two pipes, having finished its start-up and waiting for input.
    pub(crate) fn sleeping() -> Self {
        let mut process = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        process.stdin.as_mut().unwrap().write_all(b"ready").unwrap();
        let mut line = [0_u8; 5];
        process.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        Self { process }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends text through the child and returns what comes out.
    pub(crate) fn echo(&mut self, text: &str) -> String {
        self.process.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        let mut answer = vec![0_u8; text.len()];
        self.process.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
