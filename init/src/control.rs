//! The control socket: whole messages in, whole messages out.

use core::mem::MaybeUninit;

use brood_init_protocol::{BODY_BYTES_MAX, CONTROL_DESCRIPTOR, DESCRIPTORS_MAX, Header, Kind};
use linux_raw_sys::net;

use crate::sys::{self, Errno, linux, syscall};

/// `SCM_RIGHTS` header (16 bytes) and room for the descriptors.
const ANCILLARY_BYTES: usize = 16 + 4 * DESCRIPTORS_MAX;
/// A page more than any message needs: the tables of pointers to arguments lie behind the body.
pub const POINTER_BYTES_MAX: usize = BODY_BYTES_MAX * 8;

/// PID 1's end of the control socket.
pub struct Control;

/// A request with its descriptors; both go away with it.
pub struct Message {
    /// What the daemon wrote first.
    pub header: Header,
    descriptors: [i32; DESCRIPTORS_MAX],
    memory: *mut u8,
    memory_bytes: usize,
}

#[repr(C, align(8))]
struct Ancillary([u8; ANCILLARY_BYTES]);

impl Control {
    /// The socket that the daemon left at a fixed number. It must not reach tool calls.
    pub fn new() -> Self {
        // SAFETY: takes no pointers.
        let _ = unsafe { syscall!(__NR_fcntl, CONTROL_DESCRIPTOR, linux::F_SETFD, linux::FD_CLOEXEC) };
        Self
    }

    /// Reads one message; none when the daemon is gone or talks nonsense.
    pub fn receive(&self) -> Option<Message> {
        let mut bytes = [0u8; Header::BYTES];
        let mut ancillary = Ancillary([0; ANCILLARY_BYTES]);
        let first = receive_with_descriptors(&mut bytes, &mut ancillary)?;
        read_exactly(&mut bytes[first..])?;
        let descriptors = descriptors_of(&ancillary);
        let header = Header::decode(&bytes)?;
        let mut message = Message { header, descriptors, memory: core::ptr::null_mut(), memory_bytes: 0 };
        if header.body_bytes > 0 {
            message.map()?;
            read_exactly(message.body_mut())?;
        }
        Some(message)
    }

    /// Writes one message.
    pub fn send(&self, kind: Kind, request: u64, body: &[u8], descriptor: Option<i32>) -> Result<(), Errno> {
        let descriptors = u16::from(descriptor.is_some());
        let header = Header { kind, descriptors, body_bytes: body.len() as u32, request }.encode();
        let mut packet = [0u8; Header::BYTES + 64];
        let length = header.len() + body.len();
        packet[..header.len()].copy_from_slice(&header);
        packet[header.len()..length].copy_from_slice(body);
        let mut sent = match descriptor {
            Some(descriptor) => send_with_descriptor(&packet[..length], descriptor)?,
            None => 0,
        };
        while sent < length {
            let rest = &packet[sent..length];
            // SAFETY: `rest` is valid for reading. MSG_NOSIGNAL is not needed: SIGPIPE is blocked.
            match unsafe { syscall!(__NR_sendto, CONTROL_DESCRIPTOR, rest.as_ptr(), rest.len(), 0, 0, 0) } {
                Ok(count) => sent += count,
                Err(sys::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl Message {
    /// The body as it came.
    pub fn body(&self) -> &[u8] {
        if self.memory.is_null() {
            return &[];
        }
        // SAFETY: the memory was mapped for at least this many bytes and nobody else has it.
        unsafe { core::slice::from_raw_parts(self.memory, self.header.body_bytes as usize) }
    }

    fn body_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `body`, and `self` is borrowed for writing.
        unsafe { core::slice::from_raw_parts_mut(self.memory, self.header.body_bytes as usize) }
    }

    /// Room behind the body for a table of `count` pointers; none when it would be out of bounds.
    pub fn pointer_table(&self, count: usize) -> Option<*mut *const u8> {
        let start = (self.header.body_bytes as usize).next_multiple_of(8);
        (start + count * 8 <= self.memory_bytes).then(|| {
            // SAFETY: just checked to lie inside of the mapping, and aligned.
            unsafe { self.memory.add(start) }.cast()
        })
    }

    /// The descriptor at `index`, still owned by the message.
    pub fn descriptor(&self, index: usize) -> Option<i32> {
        self.descriptors.get(index).copied().filter(|descriptor| *descriptor >= 0)
    }

    /// Maps memory for the body and for the largest pointer table that it can ask for.
    fn map(&mut self) -> Option<()> {
        let body = self.header.body_bytes as usize;
        // Each text takes at least one byte, so there are at most `body` pointers and two ends.
        let bytes = (body.next_multiple_of(8) + (body + 2) * 8).min(body + POINTER_BYTES_MAX).next_multiple_of(4096);
        let protection = linux::PROT_READ | linux::PROT_WRITE;
        let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe { syscall!(__NR_mmap, 0, bytes, protection, flags, -1isize, 0) }.ok()?;
        self.memory = memory as *mut u8;
        self.memory_bytes = bytes;
        Some(())
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        for descriptor in self.descriptors {
            if descriptor >= 0 {
                sys::close(descriptor);
            }
        }
        if !self.memory.is_null() {
            // SAFETY: the mapping is this message's own and nothing borrows it any more.
            let _ = unsafe { syscall!(__NR_munmap, self.memory, self.memory_bytes) };
        }
    }
}

/// Reads the first bytes of a message with the descriptors that travel with them.
fn receive_with_descriptors(buffer: &mut [u8], ancillary: &mut Ancillary) -> Option<usize> {
    let mut piece = linux::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() as _ };
    let mut message = empty_message(&mut piece);
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    message.msg_controllen = ANCILLARY_BYTES as _;
    loop {
        // SAFETY: all that `message` points to outlives the call.
        match unsafe { syscall!(__NR_recvmsg, CONTROL_DESCRIPTOR, &raw mut message, net::MSG_CMSG_CLOEXEC) } {
            Ok(0) => return None,
            Ok(count) => return Some(count),
            Err(sys::EINTR) => {}
            Err(_) => return None,
        }
    }
}

fn empty_message(piece: &mut linux::iovec) -> net::msghdr {
    // SAFETY: a `msghdr` of zeros is valid: no name, no pieces, no ancillary data.
    let mut message: net::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = (piece as *mut linux::iovec).cast();
    message.msg_iovlen = 1;
    message
}

fn descriptors_of(ancillary: &Ancillary) -> [i32; DESCRIPTORS_MAX] {
    let mut descriptors = [-1; DESCRIPTORS_MAX];
    let word = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|i| ancillary.0[at + i]));
    // A `cmsghdr`: length (8 bytes, header included), level, type; zeros when nothing came.
    let length = word(0) as usize;
    let is_rights = word(8) == net::SOL_SOCKET as i32 && word(12) == net::SCM_RIGHTS as i32;
    if is_rights && (16..=ANCILLARY_BYTES).contains(&length) {
        for (index, descriptor) in descriptors.iter_mut().enumerate().take((length - 16) / 4) {
            *descriptor = word(16 + 4 * index);
        }
    }
    descriptors
}

fn send_with_descriptor(packet: &[u8], descriptor: i32) -> Result<usize, Errno> {
    let mut ancillary = Ancillary([0; ANCILLARY_BYTES]);
    ancillary.0[0..8].copy_from_slice(&20u64.to_ne_bytes());
    ancillary.0[8..12].copy_from_slice(&net::SOL_SOCKET.to_ne_bytes());
    ancillary.0[12..16].copy_from_slice(&net::SCM_RIGHTS.to_ne_bytes());
    ancillary.0[16..20].copy_from_slice(&descriptor.to_ne_bytes());
    let mut piece = linux::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() as _ };
    let mut message = empty_message(&mut piece);
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    message.msg_controllen = 24;
    // SAFETY: all that `message` points to outlives the call; the kernel only reads it.
    unsafe { syscall!(__NR_sendmsg, CONTROL_DESCRIPTOR, &raw const message, 0) }
}

/// Reads until `buffer` is full; none when the stream ends before.
fn read_exactly(mut buffer: &mut [u8]) -> Option<()> {
    while !buffer.is_empty() {
        // SAFETY: `buffer` is valid for writing.
        match unsafe { syscall!(__NR_read, CONTROL_DESCRIPTOR, buffer.as_mut_ptr(), buffer.len()) } {
            Ok(0) => return None,
            Ok(count) => buffer = &mut buffer[count..],
            Err(sys::EINTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}
