//! Limits hold, say so, and harm neither the sandbox nor its siblings.

use crate::fixture::{Sandbox, brood};

#[test]
fn a_call_that_uses_up_the_memory_says_so_and_the_sandbox_lives_on() {
    let sandbox = Sandbox::with(&["--memory", "64M"]);
    let sibling = Sandbox::with(&["--memory", "64M"]);
    let ran = sandbox.exec(&["python3", "-c", "x=[]\nwhile True: x.append(bytearray(1<<20))"]);
    ran.ended(137).said("out of memory");
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
    sibling.exec(&["echo", "alive"]).succeeded().printed("alive\n");
    let stats = brood(&["stats", &sandbox.id, "--json"]).succeeded().json();
    assert!(stats[0]["out_of_memory_kills"].as_u64().unwrap() >= 1, "{stats}");
}

#[test]
fn a_background_process_survives_a_call_that_dies_of_memory() {
    let sandbox = Sandbox::with(&["--memory", "96M"]);
    let pid = sandbox.exec_with(&["--detach"], &["sleep", "1000"]).succeeded().stdout;
    sandbox.exec(&["python3", "-c", "x=[]\nwhile True: x.append(bytearray(1<<20))"]).ended(137);
    sandbox.sh(&format!("kill -0 {}", pid.trim())).succeeded();
}

#[test]
fn the_number_of_tasks_is_limited() {
    let sandbox = Sandbox::with(&["--pids", "20"]);
    let script = "import os,time\nn=0\nwhile True:\n  try:\n    if os.fork()==0: time.sleep(60); os._exit(0)\n  \
                  except OSError: break\n  n+=1\nprint(n<20 and n>5)\nos.kill(0,9)";
    let ran = sandbox.exec(&["python3", "-c", script]);
    assert!(ran.stdout.contains("True") || ran.code == 137, "{ran:#?}");
    sandbox.exec(&["echo", "alive"]).succeeded().printed("alive\n");
}

#[test]
fn processor_time_is_limited() {
    let sandbox = Sandbox::with(&["--cpus", "0.25"]);
    let script = "import time\nb=time.monotonic(); c=time.process_time()\nwhile time.monotonic()-b<2: pass\n\
                  print(time.process_time()-c)";
    let used: f64 = sandbox.exec(&["python3", "-c", script]).succeeded().stdout.trim().parse().unwrap();
    assert!(used < 1.0, "{used} of 2 seconds");
}

#[test]
fn a_full_disk_is_the_sandboxs_own() {
    let sandbox = Sandbox::with(&["--disk", "64M"]);
    let sibling = Sandbox::with(&["--disk", "64M"]);
    let ran = sandbox.sh("head -c 200000000 /dev/zero > /big");
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains("No space left") || ran.stderr.contains("quota"), "{ran:#?}");
    sibling.sh("head -c 10000000 /dev/zero > /fits").succeeded();
    sandbox.sh("rm /big && head -c 10000000 /dev/zero > /fits").succeeded();
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    for (option, value) in [("--memory", "1K"), ("--pids", "1"), ("--disk", "1K")] {
        let ran = brood(&["create", crate::fixture::TEMPLATE, option, value]);
        assert!(ran.code == 1 && ran.stderr.starts_with("brood: "), "{option} {value}: {ran:#?}");
    }
}
