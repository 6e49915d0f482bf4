//! The system calls that a tool call may make.
//!
//! The filter is installed anew for every tool call, and the kernel runs it once for each system
//! call number when it is installed, to learn which ones it always allows. A linear filter of 350
//! comparisons makes that a cost of its own; this one is a binary search over ranges of numbers.

use crate::seccomp_calls::{Action, DENIED, NOT_THERE, SPECIAL};

/// An instruction of classic BPF: `sock_filter` of linux/filter.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    constant: u32,
}

// linux/bpf_common.h
const LOAD_WORD: u16 = 0x20;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const JUMP_BITS_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

// linux/seccomp.h
const RETURN_ALLOW: u32 = 0x7fff_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENT_0: u32 = 16;

/// linux/audit.h: 64-bit, little endian, EM_X86_64.
const ARCHITECTURE_X86_64: u32 = 0xc000_003e;
/// Numbers of the x32 ABI begin here; nothing of it is allowed.
const X32_FIRST: u32 = 0x4000_0000;
/// First number that this list was not written for. Calls that did not exist then are "not there".
const NUMBER_END: u32 = 470;

/// Flags of `clone` that make namespaces.
const CLONE_NAMESPACES: u32 = 0x7e02_0080;
const AF_ALG: u32 = 38;
const AF_VSOCK: u32 = 40;
/// Values of `personality` that only ask or that programs set for compatibility: Linux, with and
/// without ADDR_NO_RANDOMIZE, UNAME26, and the query.
const PERSONALITIES: [u32; 7] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0x4_0008, 0xffff_ffff];

fn statement(code: u16, constant: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, constant }
}

fn jump(code: u16, constant: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, constant }
}

fn give(action: Action) -> Instruction {
    statement(
        RETURN,
        match action {
            Action::Allow => RETURN_ALLOW,
            Action::Deny => RETURN_ERRNO | libc_errno::EPERM,
            Action::NotThere => RETURN_ERRNO | libc_errno::ENOSYS,
            Action::WrongFamily => RETURN_ERRNO | libc_errno::EAFNOSUPPORT,
        },
    )
}

/// Error numbers, as the kernel defines them for x86-64.
mod libc_errno {
    pub(super) const EPERM: u32 = rustix::io::Errno::PERM.raw_os_error() as u32;
    pub(super) const ENOSYS: u32 = rustix::io::Errno::NOSYS.raw_os_error() as u32;
    pub(super) const EAFNOSUPPORT: u32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error() as u32;
}

/// What becomes of one call number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Always(Action),
    /// Depends on the first argument.
    Clone,
    Socket,
    Personality,
}

fn verdict(number: u32) -> Verdict {
    if let Some(special) = SPECIAL.iter().position(|special| *special == number) {
        return [Verdict::Clone, Verdict::Socket, Verdict::Personality][special];
    }
    if number >= NUMBER_END || NOT_THERE.contains(&number) {
        return Verdict::Always(Action::NotThere);
    }
    Verdict::Always(if DENIED.contains(&number) { Action::Deny } else { Action::Allow })
}

/// The filter of every tool call, as the bytes that the kernel reads.
pub(crate) fn program() -> Vec<u8> {
    let mut bytes = Vec::new();
    for instruction in instructions() {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jump_true, instruction.jump_false]);
        bytes.extend(instruction.constant.to_ne_bytes());
    }
    bytes
}

fn instructions() -> Vec<Instruction> {
    let mut ranges: Vec<(u32, Verdict)> = vec![(0, verdict(0))];
    for number in 1..=NUMBER_END {
        if ranges.last().is_none_or(|(_, last)| *last != verdict(number)) {
            ranges.push((number, verdict(number)));
        }
    }
    let mut program = vec![
        statement(LOAD_WORD, OFFSET_ARCHITECTURE),
        jump(JUMP_EQUAL, ARCHITECTURE_X86_64, 1, 0),
        give(Action::NotThere),
        statement(LOAD_WORD, OFFSET_NUMBER),
        jump(JUMP_GREATER_OR_EQUAL, X32_FIRST, 0, 1),
        give(Action::NotThere),
    ];
    program.extend(search(&ranges));
    program
}

/// Code that finds the range of the number at hand by halving.
fn search(ranges: &[(u32, Verdict)]) -> Vec<Instruction> {
    if let [(_, verdict)] = ranges {
        return decide(*verdict);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (first, lower, upper) = (upper[0].0, search(lower), search(upper));
    let mut code = match u8::try_from(lower.len()) {
        Ok(skipped) => vec![jump(JUMP_GREATER_OR_EQUAL, first, skipped, 0)],
        // A conditional jump reaches 255 instructions, an unconditional one any distance.
        Err(_) => {
            let distance = u32::try_from(lower.len()).unwrap_or(u32::MAX);
            vec![jump(JUMP_GREATER_OR_EQUAL, first, 0, 1), statement(JUMP_ALWAYS, distance)]
        }
    };
    code.extend(lower);
    code.extend(upper);
    code
}

fn decide(verdict: Verdict) -> Vec<Instruction> {
    let argument = statement(LOAD_WORD, OFFSET_ARGUMENT_0);
    match verdict {
        Verdict::Always(action) => vec![give(action)],
        Verdict::Clone => {
            vec![argument, jump(JUMP_BITS_SET, CLONE_NAMESPACES, 0, 1), give(Action::Deny), give(Action::Allow)]
        }
        Verdict::Socket => vec![
            argument,
            jump(JUMP_EQUAL, AF_ALG, 1, 0),
            jump(JUMP_EQUAL, AF_VSOCK, 0, 1),
            give(Action::WrongFamily),
            give(Action::Allow),
        ],
        Verdict::Personality => {
            let mut code = vec![argument];
            for (index, value) in PERSONALITIES.into_iter().enumerate() {
                let to_allow = u8::try_from(PERSONALITIES.len() - index).unwrap_or(u8::MAX);
                code.push(jump(JUMP_EQUAL, value, to_allow, 0));
            }
            code.extend([give(Action::Deny), give(Action::Allow)]);
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn run(program: &[Instruction], architecture: u32, number: u32, argument: u32) -> u32 {
        let (mut accumulator, mut at) = (0, 0);
        for _ in 0..program.len() {
            let instruction = program[at];
            at += 1;
            let skip = |taken: bool| usize::from(if taken { instruction.jump_true } else { instruction.jump_false });
            match instruction.code {
                LOAD_WORD => {
                    accumulator = match instruction.constant {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCHITECTURE => architecture,
                        OFFSET_ARGUMENT_0 => argument,
                        other => panic!("load from {other}"),
                    }
                }
                JUMP_ALWAYS => at += instruction.constant as usize,
                JUMP_EQUAL => at += skip(accumulator == instruction.constant),
                JUMP_GREATER_OR_EQUAL => at += skip(accumulator >= instruction.constant),
                JUMP_BITS_SET => at += skip(accumulator & instruction.constant != 0),
                RETURN => return instruction.constant,
                other => panic!("instruction {other:#x}"),
            }
        }
        panic!("the filter does not end");
    }

    fn run_number(number: u32, argument: u32) -> u32 {
        run(&instructions(), ARCHITECTURE_X86_64, number, argument)
    }

    #[test]
    fn every_number_gets_what_the_tables_say() {
        for number in 0..NUMBER_END + 50 {
            let wanted = match verdict(number) {
                Verdict::Always(action) => give(action).constant,
                _ => RETURN_ALLOW,
            };
            assert_eq!(run_number(number, 0), wanted, "{number}");
        }
    }

    #[test]
    fn other_architectures_and_x32_are_not_there() {
        let not_there = give(Action::NotThere).constant;
        assert_eq!(run(&instructions(), 0x4000_0003, 20, 0), not_there);
        assert_eq!(run_number(X32_FIRST | 1, 0), not_there);
        assert_eq!(run_number(u32::MAX, 0), not_there);
    }

    #[test]
    fn arguments_decide_where_they_must() {
        let deny = give(Action::Deny).constant;
        let [clone, socket, personality] = SPECIAL;
        for flag in [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x80] {
            assert_eq!(run_number(clone, flag | 17), deny, "{flag:#x}");
        }
        assert_eq!(run_number(clone, 0x003d_0f00), RETURN_ALLOW);
        assert_eq!(run_number(socket, AF_VSOCK), give(Action::WrongFamily).constant);
        assert_eq!(run_number(socket, 2), RETURN_ALLOW);
        assert_eq!(run_number(personality, 0xffff_ffff), RETURN_ALLOW);
        assert_eq!(run_number(personality, 0x0400_0000), deny);
    }

    #[test]
    fn the_search_is_short() {
        let program = instructions();
        assert!(program.len() < 400, "{}", program.len());
    }
}
