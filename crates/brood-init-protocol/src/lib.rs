//! The messages between the daemon and PID 1 of a sandbox.
//!
//! Both ends are ours, yet each checks what it reads: PID 1 lives next to hostile code. A message
//! is a fixed [`Header`] and a body, little endian, over a stream socket that PID 1 finds at
//! [`CONTROL_DESCRIPTOR`]; descriptors travel with the header's first byte (`SCM_RIGHTS`). Texts
//! in bodies end in a zero byte, so that PID 1 can hand them to `execve` where they lie.
//!
//! The crate has no dependency and needs no allocator, because PID 1 has none.
#![no_std]
#![forbid(unsafe_code)]

pub mod spawn;
pub mod wire;

/// Where PID 1 finds its end of the control socket.
pub const CONTROL_DESCRIPTOR: i32 = 3;
/// Largest body of a message: arguments and environment (2 MiB, the kernel's own limit) and room.
pub const BODY_BYTES_MAX: usize = 3 << 20;
/// Most descriptors that one message carries.
pub const DESCRIPTORS_MAX: usize = 8;
/// Processes that PID 1 reports the end of. Others are reaped in silence.
pub const TRACKED_PROCESSES_MAX: usize = 4096;

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// To PID 1: make this root yours ([`Enter`]); answered by `Entered` or `Failed`.
    Enter = 1,
    /// To PID 1: start a tool call ([`spawn::Spawn`]); answered by `Spawned` or `Failed`.
    Spawn = 2,
    /// To PID 1: send a signal to a tool call ([`Signal`]); answered by `Done` or `Failed`.
    Signal = 3,
    /// To PID 1: report the end of these processes, which somebody else made its children.
    Track = 4,
    /// To PID 1: end, and everything in the sandbox with it. Not answered.
    Exit = 5,
    /// From PID 1: alive.
    Hello = 101,
    /// From PID 1: the root is entered and isolation is complete.
    Entered = 102,
    /// From PID 1: a tool call runs ([`Spawned`]); with a terminal, its master side comes along.
    Spawned = 103,
    /// From PID 1: a tracked process ended ([`Exited`]).
    Exited = 104,
    /// From PID 1: the request was carried out.
    Done = 105,
    /// From PID 1: the request failed ([`Failed`]).
    Failed = 106,
}

impl Kind {
    /// The kind with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Enter,
            2 => Self::Spawn,
            3 => Self::Signal,
            4 => Self::Track,
            5 => Self::Exit,
            101 => Self::Hello,
            102 => Self::Entered,
            103 => Self::Spawned,
            104 => Self::Exited,
            105 => Self::Done,
            106 => Self::Failed,
            _ => return None,
        })
    }
}

/// What stands before every body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is about.
    pub kind: Kind,
    /// Descriptors that come with it.
    pub descriptors: u16,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Chosen by the daemon, repeated in the answer.
    pub request: u64,
}

impl Header {
    /// Bytes of an encoded header.
    pub const BYTES: usize = 16;

    /// The header as it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&self.descriptors.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        bytes
    }

    /// Reads a header; none when the kind is unknown or a bound is exceeded.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut reader = wire::Reader::new(bytes);
        let kind = Kind::from_number(reader.u16()?)?;
        let descriptors = reader.u16()?;
        let body_bytes = reader.u32()?;
        let request = reader.u64()?;
        let fits = usize::from(descriptors) <= DESCRIPTORS_MAX && (body_bytes as usize) <= BODY_BYTES_MAX;
        fits.then_some(Self { kind, descriptors, body_bytes, request })
    }
}

/// Body of [`Kind::Enter`], followed by the host name and the seccomp program.
///
/// Descriptor 0 is the detached mount of the new root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enter<'a> {
    /// Capabilities that tool calls may ever have, as a bit set.
    pub capability_bounds: u64,
    /// Added to the badness of tool calls when memory runs out.
    pub tool_call_oom_score: i32,
    /// Most open files of a tool call: soft limit.
    pub open_files_soft: u32,
    /// Most open files of a tool call: hard limit.
    pub open_files_hard: u32,
    /// Host name.
    pub host_name: &'a [u8],
    /// The filter that every tool call gets: `sock_filter` records, eight bytes each.
    pub seccomp_program: &'a [u8],
}

impl<'a> Enter<'a> {
    /// Writes the body; none when `buffer` is too small.
    pub fn encode(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut writer = wire::Writer::new(buffer);
        writer.u64(self.capability_bounds)?;
        writer.u32(self.tool_call_oom_score as u32)?;
        writer.u32(self.open_files_soft)?;
        writer.u32(self.open_files_hard)?;
        writer.bytes(self.host_name)?;
        writer.bytes(self.seccomp_program)?;
        Some(writer.written())
    }

    /// Reads the body; none when it is malformed.
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let mut reader = wire::Reader::new(body);
        let enter = Self {
            capability_bounds: reader.u64()?,
            tool_call_oom_score: reader.u32()? as i32,
            open_files_soft: reader.u32()?,
            open_files_hard: reader.u32()?,
            host_name: reader.bytes()?,
            seccomp_program: reader.bytes()?,
        };
        (reader.is_empty() && enter.seccomp_program.len().is_multiple_of(8)).then_some(enter)
    }
}

/// Body of [`Kind::Signal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// The tool call, as the sandbox numbers processes.
    pub pid: u32,
    /// The signal.
    pub signal: u32,
    /// To the whole foreground process group rather than to the process alone.
    pub group: bool,
}

impl Signal {
    /// Bytes of an encoded body.
    pub const BYTES: usize = 12;

    /// The body as it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.signal.to_le_bytes());
        bytes[8] = u8::from(self.group);
        bytes
    }

    /// Reads the body; none when it is malformed.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = wire::Reader::new(body);
        let signal = Self { pid: reader.u32()?, signal: reader.u32()?, group: reader.u32()? & 1 == 1 };
        reader.is_empty().then_some(signal)
    }
}

/// Body of [`Kind::Spawned`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spawned {
    /// The tool call, as the sandbox numbers processes.
    pub pid: u32,
}

/// Body of [`Kind::Exited`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited {
    /// The process, as the sandbox numbers processes.
    pub pid: u32,
    /// As `wait` gives it.
    pub wait_status: u32,
    /// Processor time in user and kernel mode, its reaped children included, in microseconds.
    pub cpu_us: u64,
    /// Largest resident set of it or a reaped child, in KiB.
    pub resident_peak_kib: u64,
}

impl Exited {
    /// Bytes of an encoded body.
    pub const BYTES: usize = 24;

    /// The body as it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.wait_status.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.cpu_us.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.resident_peak_kib.to_le_bytes());
        bytes
    }

    /// Reads the body; none when it is malformed.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = wire::Reader::new(body);
        let exited = Self {
            pid: reader.u32()?,
            wait_status: reader.u32()?,
            cpu_us: reader.u64()?,
            resident_peak_kib: reader.u64()?,
        };
        reader.is_empty().then_some(exited)
    }
}

/// What PID 1 was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Reading the request.
    Decode = 1,
    /// Making mounts private.
    PrivateMounts = 2,
    /// Attaching the new root.
    AttachRoot = 3,
    /// Mounting `/proc`.
    MountProc = 4,
    /// Mounting `/sys`.
    MountSys = 5,
    /// Mounting `/dev/pts`.
    MountDevpts = 6,
    /// Mounting `/dev/mqueue`.
    MountMqueue = 7,
    /// Covering what a sandbox must not see.
    Mask = 8,
    /// Changing into the new root.
    PivotRoot = 9,
    /// Setting the host name.
    HostName = 10,
    /// Bringing the loopback interface up.
    Loopback = 11,
    /// Lowering capabilities.
    Capabilities = 12,
    /// Making a control group namespace.
    CgroupNamespace = 13,
    /// Opening a pseudo-terminal.
    Terminal = 14,
    /// Making the process.
    Clone = 15,
    /// Limits and scores of the new process.
    Limits = 16,
    /// Its standard streams.
    Streams = 17,
    /// Its system call filter.
    Seccomp = 18,
    /// Its user and groups.
    User = 19,
    /// Its working directory.
    WorkingDirectory = 20,
    /// Executing the command.
    Execute = 21,
    /// Finding the process that a signal was meant for.
    FindProcess = 22,
    /// Keeping account of one process more.
    Track = 23,
}

impl Step {
    /// The step with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        const ALL: [Step; 23] = [
            Step::Decode,
            Step::PrivateMounts,
            Step::AttachRoot,
            Step::MountProc,
            Step::MountSys,
            Step::MountDevpts,
            Step::MountMqueue,
            Step::Mask,
            Step::PivotRoot,
            Step::HostName,
            Step::Loopback,
            Step::Capabilities,
            Step::CgroupNamespace,
            Step::Terminal,
            Step::Clone,
            Step::Limits,
            Step::Streams,
            Step::Seccomp,
            Step::User,
            Step::WorkingDirectory,
            Step::Execute,
            Step::FindProcess,
            Step::Track,
        ];
        ALL.into_iter().find(|step| *step as u32 == number)
    }
}

/// Body of [`Kind::Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// What PID 1 was doing.
    pub step: Step,
    /// The system's error number.
    pub errno: u32,
}

impl Failed {
    /// Bytes of an encoded body.
    pub const BYTES: usize = 8;

    /// The body as it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&(self.step as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.errno.to_le_bytes());
        bytes
    }

    /// Reads the body; none when it is malformed.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = wire::Reader::new(body);
        let failed = Self { step: Step::from_number(reader.u32()?)?, errno: reader.u32()? };
        reader.is_empty().then_some(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_refuses_nonsense() {
        let header = Header { kind: Kind::Spawned, descriptors: 1, body_bytes: 4, request: 77 };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        let mut unknown = header.encode();
        unknown[0] = 99;
        assert_eq!(Header::decode(&unknown), None);
        let huge = Header { body_bytes: BODY_BYTES_MAX as u32 + 1, ..header };
        assert_eq!(Header::decode(&huge.encode()), None);
    }

    #[test]
    fn bodies_round_trip() {
        let enter = Enter {
            capability_bounds: 0xdead_beef,
            tool_call_oom_score: -3,
            open_files_soft: 1024,
            open_files_hard: 4096,
            host_name: b"sandbox",
            seccomp_program: &[7; 16],
        };
        let mut buffer = [0; 128];
        let length = enter.encode(&mut buffer).unwrap();
        assert_eq!(Enter::decode(&buffer[..length]), Some(enter));
        assert_eq!(Enter::decode(&buffer[..length - 1]), None);
        assert_eq!(enter.encode(&mut [0; 20]), None);
        let signal = Signal { pid: 5, signal: 15, group: true };
        assert_eq!(Signal::decode(&signal.encode()), Some(signal));
        let exited = Exited { pid: 9, wait_status: 256, cpu_us: 12, resident_peak_kib: 99 };
        assert_eq!(Exited::decode(&exited.encode()), Some(exited));
        for number in 1..=23 {
            let step = Step::from_number(number).unwrap();
            let failed = Failed { step, errno: 2 };
            assert_eq!(Failed::decode(&failed.encode()), Some(failed));
        }
        assert_eq!(Step::from_number(24), None);
    }
}
