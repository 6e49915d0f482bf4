//! Everything at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fixture::{Sandbox, TEMPLATE, brood};

#[test]
fn creating_running_and_killing_from_many_clients() {
    let ran = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..12 {
            let ran = &ran;
            scope.spawn(move || {
                for round in 0..5 {
                    let sandbox = Sandbox::new();
                    let text = format!("{client}-{round}");
                    sandbox.sh(&format!("echo {text} > /tmp/x; cat /tmp/x")).succeeded().printed(&format!("{text}\n"));
                    brood(&["kill", &sandbox.id]).succeeded();
                    ran.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(ran.into_inner(), 60);
}

#[test]
fn a_kill_ends_all_calls_of_its_sandbox_and_no_others() {
    let (victim, other) = (Sandbox::new(), Sandbox::new());
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| victim.sh("echo ready >> /ready; sleep 1000"))).collect();
        let others: Vec<_> = (0..4).map(|_| scope.spawn(|| other.sh("sleep 2; echo done"))).collect();
        while victim.sh("test $(wc -l < /ready) = 8").code != 0 {}
        brood(&["kill", &victim.id]).succeeded();
        for call in calls {
            call.join().unwrap().ended(137).said("killed");
        }
        for call in others {
            call.join().unwrap().succeeded().printed("done\n");
        }
    });
}

#[test]
fn lists_hold_while_things_change() {
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for _ in 0..20 {
                brood(&["run", TEMPLATE, "--", "true"]).succeeded();
            }
        });
        while !churn.is_finished() {
            brood(&["ps", "--json"]).succeeded().json();
            brood(&["stats", "--json"]).succeeded().json();
            brood(&["template", "ls", "--json"]).succeeded().json();
        }
    });
}
