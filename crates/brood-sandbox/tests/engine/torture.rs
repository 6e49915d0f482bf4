//! Random programs under random checkpoints, rollbacks and forks, beside a model that is told the
//! same. `BROOD_TEST_SEED` repeats a run, `BROOD_TEST_SOAK=full` makes it minutes long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brood_sandbox::model::ProcessRequest;
use brood_sandbox::output::{OutputEvent, SubscribeFrom};
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call, out};

/// Holds memory, files, pipes and children, does what it is told, and tells what it holds.
const ACTOR: &str = r#"
import hashlib, json, mmap, os, sys
blocks, pipes, files = {}, {}, {}
children = 0
for line in sys.stdin:
    command, name, number = line.split()
    number = int(number)
    if command == "allocate":
        blocks[name] = bytearray(bytes([number % 256]) * (4096 * (1 + number % 40)))
    elif command == "map":
        area = mmap.mmap(-1, 4096 * (1 + number % 64))
        area[:] = bytes([number % 256]) * len(area)
        blocks[name] = area
    elif command == "change" and name in blocks:
        block = blocks[name]
        for at in range(number % 7, len(block), 4096):
            block[at] = number % 256
    elif command == "free":
        blocks.pop(name, None)
    elif command == "write":
        with open(f"/data/{name}", "w") as file:
            file.write(f"{number}\n" * (1 + number % 500))
    elif command == "append":
        with open(f"/data/{name}", "a") as file:
            file.write(f"{number}\n")
    elif command == "hold":
        file = files.get(name) or files.setdefault(name, open(f"/data/held-{name}", "a+"))
        file.write(f"{number}\n")
        file.flush()
    elif command == "remove" and os.path.exists(f"/data/{name}"):
        os.unlink(f"/data/{name}")
    elif command == "pipe":
        if name not in pipes:
            pipes[name] = [*os.pipe(), b""]
        if len(pipes[name][2]) < 4000:
            os.write(pipes[name][1], b"%d " % number)
            pipes[name][2] += b"%d " % number
    elif command == "drain" and name in pipes and pipes[name][2]:
        assert os.read(pipes[name][0], 65536) == pipes[name][2]
        pipes[name][2] = b""
    elif command == "child":
        pid = os.fork()
        if pid == 0:
            os._exit(number % 100)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == number % 100
        children += 1
    memory = {name: hashlib.sha256(bytes(block)).hexdigest()[:12] for name, block in sorted(blocks.items())}
    held = {name: file.tell() for name, file in sorted(files.items())}
    waiting = {name: pipe[2].decode() for name, pipe in sorted(pipes.items())}
    print(json.dumps([memory, held, waiting, children]), flush=True)
"#;

const COMMANDS: [&str; 11] =
    ["allocate", "map", "change", "change", "free", "write", "append", "hold", "remove", "pipe", "drain"];

struct Random(u64);

impl Random {
    /// xorshift64*, Vigna 2016.
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

/// What a state must look like, as it was seen when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Seen {
    actor: String,
    files: String,
}

/// Files of the model: what the commands so far make of them.
type Files = BTreeMap<String, String>;

fn apply(files: &mut Files, command: &str, name: &str, number: usize) {
    match command {
        "write" => drop(files.insert(name.to_owned(), format!("{number}\n").repeat(1 + number % 500))),
        "append" => files.entry(name.to_owned()).or_default().push_str(&format!("{number}\n")),
        "hold" => files.entry(format!("held-{name}")).or_default().push_str(&format!("{number}\n")),
        "remove" => drop(files.remove(name)),
        _ => {}
    }
}

fn hash(files: &Files) -> String {
    files.iter().map(|(name, text)| format!("{name} {} {}\n", text.len(), text.lines().last().unwrap_or(""))).collect()
}

fn tell(sandbox: &Sandbox, line: &str) -> String {
    let actor = sandbox.process_by_tag("actor").unwrap();
    let mut output = actor.subscribe(SubscribeFrom::Now);
    actor.write_stdin(format!("{line}\n").as_bytes()).unwrap();
    let mut text = String::new();
    while !text.ends_with('\n') {
        match output.next_blocking() {
            Some(OutputEvent::Data { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{line}: {text} {other:?}"),
        }
    }
    text
}

fn look(sandbox: &Arc<Sandbox>) -> Seen {
    let listing = "cd /data; for f in *; do [ -e \"$f\" ] && echo \"$f $(wc -c < $f) $(tail -n 1 $f)\"; done; true";
    let files = out(sandbox, listing);
    let files = if files.is_empty() { files } else { files + "\n" };
    Seen { actor: tell(sandbox, "look - 0"), files }
}

#[test]
fn random_programs_under_random_transactions_match_their_model() {
    let seed = std::env::var("BROOD_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_260_711);
    let soak = std::env::var("BROOD_TEST_SOAK").is_ok_and(|value| value == "full");
    println!("seed {seed}");
    let mut random = Random(seed);
    let engine = TestEngine::with_debian();
    let mut sandbox = engine.sandbox();
    out(&sandbox, "mkdir /data");
    let request = ProcessRequest {
        stdin: true,
        background: true,
        tag: Some("actor".to_owned()),
        ..call(&["python3", "-c", ACTOR])
    };
    sandbox.spawn(request).unwrap();
    let mut files = Files::new();
    let mut kept: Vec<(String, Seen, Files)> = Vec::new();
    let (mut rollbacks, mut forks, mut steps) = (0, 0, 0);
    let end = Instant::now() + Duration::from_secs(if soak { 180 } else { 6 });
    while Instant::now() < end || rollbacks < 5 || forks < 2 {
        steps += 1;
        for _ in 0..1 + random.next(6) {
            let command = if random.next(20) == 0 { "child" } else { COMMANDS[random.next(COMMANDS.len())] };
            let (name, number) = (format!("n{}", random.next(12)), random.next(100_000));
            tell(&sandbox, &format!("{command} {name} {number}"));
            apply(&mut files, command, &name, number);
        }
        assert_eq!(look(&sandbox).files, hash(&files), "seed {seed}, step {steps}");
        match random.next(5) {
            0 | 1 => {
                let before = look(&sandbox);
                let info = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
                assert_eq!(look(&sandbox), before, "seed {seed}, step {steps}: the original after a checkpoint");
                kept.push((info.id.as_str().to_owned(), before, files.clone()));
            }
            2 | 3 if !kept.is_empty() => {
                let (id, seen, model) = kept[random.next(kept.len())].clone();
                sandbox.rollback(&id).unwrap_or_else(|error| panic!("seed {seed}, step {steps}: {}", error.chain()));
                assert_eq!(look(&sandbox), seen, "seed {seed}, step {steps}: rollback to {id}");
                assert_eq!(seen.files, hash(&model));
                files = model;
                rollbacks += 1;
            }
            _ if !kept.is_empty() => {
                let (id, seen, model) = kept[random.next(kept.len())].clone();
                let fork =
                    engine.fork(&id).unwrap_or_else(|error| panic!("seed {seed}, step {steps}: {}", error.chain()));
                assert_eq!(look(&fork), seen, "seed {seed}, step {steps}: fork of {id}");
                forks += 1;
                // Half of the time the fork is what goes on.
                if random.next(2) == 0 {
                    std::mem::replace(&mut sandbox, fork).kill().unwrap();
                    files = model;
                } else {
                    fork.kill().unwrap();
                }
            }
            _ => {}
        }
        if kept.len() > 12 {
            let (id, ..) = kept.remove(random.next(kept.len()));
            engine.remove_checkpoint(&id, false).unwrap();
        }
    }
    println!("{steps} steps, {rollbacks} rollbacks, {forks} forks");
}
