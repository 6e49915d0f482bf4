//! A real registry on the loopback interface, and a line to it that breaks.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::images::need;
use crate::support::run;

/// Debian's `docker-registry`, storing into a directory. Killed when dropped.
pub struct RegistryServer {
    child: Child,
    pub address: String,
    pub storage: PathBuf,
}

impl RegistryServer {
    /// A registry that anybody may use.
    pub fn start(dir: &Path) -> Self {
        Self::with(dir, "")
    }

    /// A registry that asks for a password itself.
    pub fn with_password(dir: &Path, user: &str, password: &str) -> Self {
        // The registry takes bcrypt alone; perl is on every Debian and hashes so.
        let program = "print crypt(shift, '$2b$05$abcdefghijklmnopqrstuu')";
        let hash = run(Command::new("perl").args(["-e", program, password]));
        let file = dir.join("htpasswd");
        fs::write(&file, format!("{user}:{hash}\n")).unwrap();
        Self::with(dir, &format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", file.display()))
    }

    /// A registry with more configuration.
    pub fn with(dir: &Path, more: &str) -> Self {
        need("docker-registry", "docker-registry");
        let storage = dir.join("registry");
        let config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{more}",
            storage.display()
        );
        let path = dir.join("registry.yml");
        fs::write(&path, config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the registry ended early").unwrap();
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(['"', ' ', ',']).next().unwrap().to_owned();
            }
        };
        // Its log must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, storage }
    }

    /// The file in which the registry keeps a blob.
    pub fn blob(&self, hex: &str) -> PathBuf {
        self.storage.join("docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("cannot end the registry: {error}");
        }
    }
}

/// Forwards connections to a registry, and closes each after `bytes_max` bytes from there.
pub struct BreakingLine {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
}

impl BreakingLine {
    pub fn to(target: &str, bytes_max: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (target, counter) = (target.to_owned(), Arc::clone(&connections));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                counter.fetch_add(1, Ordering::SeqCst);
                let target = target.clone();
                std::thread::spawn(move || forward(&client, &target, bytes_max));
            }
        });
        Self { address, connections }
    }
}

fn forward(client: &TcpStream, target: &str, bytes_max: u64) -> Option<()> {
    let server = TcpStream::connect(target).ok()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let done = io::copy(&mut &*client, &mut &server);
            let closed = server.shutdown(Shutdown::Both);
            done.and(closed.map(|()| 0))
        });
        let mut limited = (&server).take(bytes_max);
        let done = io::copy(&mut limited, &mut &*client).and_then(|_| (&*client).flush());
        let closed = client.shutdown(Shutdown::Both);
        done.and(closed).ok()
    })
}
