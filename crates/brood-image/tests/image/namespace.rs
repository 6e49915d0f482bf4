//! What was unpacked, used from inside a user namespace with the range of ids that it was shifted into.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::XattrFlags;

use crate::support::{BASE, Place, run};

/// `CAP_NET_RAW` by number (capability.h).
const CAP_NET_RAW: u32 = 13;

/// A user namespace, held by a process that waits. Ends when dropped.
pub struct UserNamespace {
    holder: Child,
}

impl UserNamespace {
    pub fn new() -> Self {
        // `cat` waits for its standard input to end, and says when it runs by passing a line on.
        let mut command = Command::new("unshare");
        command.args(["--user", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        std::io::Write::write_all(holder.stdin.as_mut().unwrap(), b"\n").unwrap();
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", holder.id()), format!("0 {BASE} 65536\n")).unwrap();
        }
        Self { holder }
    }

    /// A command that runs inside as this user.
    pub fn command(&self, user: u32, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--user=/proc/{}/ns/user", self.holder.id()));
        command.arg(format!("--setuid={user}")).arg(format!("--setgid={user}")).arg("--").arg(program);
        command
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        if let Err(error) = self.holder.kill().and_then(|()| self.holder.wait()) {
            eprintln!("cannot end the holder of a namespace: {error}");
        }
    }
}

fn effective_capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn file_capabilities_count_inside_and_nowhere_else() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::copy("/bin/cat", tree.join("cat")).unwrap();
    fs::set_permissions(tree.join("cat"), fs::Permissions::from_mode(0o755)).unwrap();
    // Revision 2 with the effective flag; one permitted capability.
    let mut capability = 0x0200_0001_u32.to_le_bytes().to_vec();
    capability.extend((1_u32 << CAP_NET_RAW).to_le_bytes());
    capability.extend([0; 12]);
    rustix::fs::setxattr(tree.join("cat"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    let image = place.fetch(&format!("dir:{}", tree.display())).unwrap();
    let program = image.layers[0].path.join("cat");
    // The directory of layers is root's alone; here an ordinary user inside must reach the program.
    for dir in program.ancestors().skip(1).take_while(|dir| dir.starts_with(place.path(""))) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
    }

    let namespace = UserNamespace::new();
    let inside = run(namespace.command(1000, &program).arg("/proc/self/status"));
    assert_eq!(effective_capabilities(&inside), 1 << CAP_NET_RAW);
    let host_user = (BASE + 1000).to_string();
    let mut outside = Command::new("setpriv");
    outside.args(["--reuid", &host_user, "--regid", &host_user, "--clear-groups"]).arg(&program);
    assert_eq!(effective_capabilities(&run(outside.arg("/proc/self/status"))), 0);
}
