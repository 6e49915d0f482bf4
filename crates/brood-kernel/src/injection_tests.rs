//! Batches and single calls in a real process.

use super::*;
use crate::ptrace::Options;
use crate::test_child::Child;

struct Target {
    child: Child,
    memory: File,
    area: EngineArea,
    instruction: u64,
}

fn target() -> Target {
    let child = Child::sleeping();
    let pid = child.pid();
    let options = Options::SYSCALL_GOOD | Options::FORK | Options::CLONE | Options::EXIT_KILL;
    ptrace::seize(pid, options).unwrap();
    ptrace::interrupt(pid).unwrap();
    assert!(ptrace::wait(pid, true).unwrap().unwrap().is_interrupt());
    let mut buffer = Vec::new();
    let mappings = maps::read(pid, &mut buffer).unwrap();
    let vdso = mappings.iter().find(|mapping| &*mapping.name == "[vdso]").unwrap().start;
    let instruction = vdso + syscall_instruction_in_vdso().unwrap();
    let memory = process_memory::open(pid).unwrap();
    let area = map_area(pid, &memory, instruction, 0x6000_0000_0000).unwrap();
    Target { child, memory, area, instruction }
}

#[test]
fn a_batch_makes_its_calls_in_order_and_leaves_registers_alone() {
    let target = target();
    assert_eq!(target.area.start, 0x6000_0000_0000);
    let pid = target.child.pid();
    let before = ptrace::registers(pid).unwrap();
    let mut batch = Batch::new(target.area);
    let path = batch.text(b"/dev/null");
    let own = batch.call(libc::SYS_getpid, &[]);
    let open = batch.call(libc::SYS_openat, &[u64::MAX - 99, path, 0]);
    let duplicate = batch.call(libc::SYS_dup2, &[0, 77]);
    batch.forward(open, duplicate, 0);
    let close = batch.attempt(libc::SYS_close, &[999]);
    let name = batch.output(16);
    batch.call(libc::SYS_prctl, &[16, name.address]);
    let results = batch.run(pid, &target.memory).unwrap();
    assert_eq!(results.result(own).unwrap(), u64::from(pid.as_raw_nonzero().get().unsigned_abs()));
    assert_eq!(results.result(duplicate).unwrap(), 77);
    assert_eq!(results.result(close), Err(Errno::BADF));
    assert!(results.output(name).starts_with(b"cat\0"), "{:?}", results.output(name));
    let after = ptrace::registers(pid).unwrap();
    assert_eq!((before.rip, before.rax, before.rsp), (after.rip, after.rax, after.rsp));
    let link = std::fs::read_link(format!("/proc/{}/fd/77", pid.as_raw_nonzero())).unwrap();
    assert_eq!(link.to_str(), Some("/dev/null"));
}

#[test]
fn a_required_call_that_fails_ends_the_batch() {
    let target = target();
    let mut batch = Batch::new(target.area);
    batch.call(libc::SYS_close, &[999]);
    batch.call(libc::SYS_exit_group, &[1]);
    let error = batch.run(target.child.pid(), &target.memory).unwrap_err();
    let is_call = matches!(error, InjectionError::Call { index: 0, source: Errno::BADF, number: libc::SYS_close, .. });
    assert!(is_call, "{error:?}");
    assert!(ptrace::registers(target.child.pid()).is_ok(), "the second call was not made");
}

#[test]
fn children_made_by_a_batch_are_reported_and_stop() {
    let target = target();
    let mut batch = Batch::new(target.area);
    let arguments = crate::clone::arguments(0, libc::SIGCHLD, None);
    let arguments = batch.data(&arguments);
    let clone = batch.call(libc::SYS_clone3, &[arguments, 88]);
    let results = batch.run(target.child.pid(), &target.memory).unwrap();
    let [child] = results.new_tasks() else { panic!("{:?}", results.new_tasks()) };
    let number = u64::from(child.as_raw_nonzero().get().unsigned_abs());
    assert_eq!(results.result(clone).unwrap(), number);
    assert!(ptrace::wait(*child, true).unwrap().unwrap().is_interrupt());
    rustix::process::kill_process(*child, rustix::process::Signal::KILL).unwrap();
    assert!(ptrace::wait(*child, true).unwrap().unwrap().is_end());
}

#[test]
fn single_calls_work_and_report_their_errors() {
    let target = target();
    let pid = target.child.pid();
    let call = |number, first| single_call(pid, target.instruction, number, [first, 0, 0, 0, 0, 0]);
    let number = call(libc::SYS_getpid, 0).unwrap();
    assert_eq!(number, u64::from(pid.as_raw_nonzero().get().unsigned_abs()));
    let error = call(libc::SYS_close, 999).unwrap_err();
    assert!(matches!(error, InjectionError::Call { source: Errno::BADF, .. }), "{error:?}");
}

#[test]
fn a_target_goes_on_in_its_interrupted_read_after_a_batch() {
    let mut target = target();
    let mut batch = Batch::new(target.area);
    batch.call(libc::SYS_getpid, &[]);
    batch.run(target.child.pid(), &target.memory).unwrap();
    ptrace::detach(target.child.pid(), 0).unwrap();
    assert_eq!(target.child.echo("hello"), "hello");
}
