//! Interpreters and shells as they are, squeezed and woken a hundred times.

use crate::harness::{Sandbox, machinery};

const TIMES: usize = 100;

/// How to make a program keep a state, and one step of it.
fn session(command: &[&str], prepare: &str, step: &str, expected: impl Fn(usize) -> String) {
    if !std::path::Path::new(command[0]).exists() {
        eprintln!("SKIPPED: {} is not installed", command[0]);
        return;
    }
    let machinery = machinery();
    let mut sandbox = Sandbox::start(&machinery, 1, command);
    assert_eq!(sandbox.ask(prepare), "ready");
    let mut given_up = 0;
    for time in 1..=TIMES {
        given_up += sandbox.squeeze().given_up_pages;
        assert_eq!(sandbox.ask(step), expected(time), "time {time}");
        if time % 10 == 0 {
            sandbox.restore();
        }
    }
    assert!(given_up > TIMES * 10, "{given_up} pages in {TIMES} squeezes");
    let statistics = machinery.pager.statistics();
    eprintln!(
        "{}: {given_up} pages given up, {} faults, p99 {:?}",
        command[0], statistics.faults, statistics.fault_p99
    );
    assert_eq!(statistics.lost_pages, 0);
}

#[test]
fn python() {
    let prepare = "import hashlib, json, sys; n = 0; data = {str(i): [i, i * i] for i in range(5000)}; print('ready')";
    let step = "n += 1; data[str(n)] = json.loads(json.dumps([n])); \
                print(n, hashlib.md5(json.dumps(data['77']).encode()).hexdigest(), len(data))";
    let command = ["/usr/bin/python3", "-iqu", "-c", "import sys\nsys.ps1 = ''"];
    let (before, after) = (md5_of("[77, 5929]"), md5_of("[77]"));
    session(&command, prepare, step, |n| format!("{n} {} 5000", if n < 77 { &before } else { &after }));
}

/// The digest of a text, by a program that is not squeezed.
fn md5_of(text: &str) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("md5sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn bash() {
    let prepare = "n=0; a=(); for i in {1..3000}; do a+=($((i * i))); done; echo ready";
    let step = "n=$((n + 1)); a[n]=$n; /bin/true; echo $n ${a[$((n + 1))]} ${#a[@]}";
    session(&["/bin/bash"], prepare, step, |n| format!("{n} {} 3000", (n + 2) * (n + 2)));
}

#[test]
fn node() {
    let script = "const o = new Map(); for (let i = 0; i < 5000; i++) o.set(i, 'x' + i * i); let n = 0; \
                  require('readline').createInterface({input: process.stdin}).on('line', l => { \
                  if (l === 'prepare') return console.log('ready'); \
                  n++; o.set(n, JSON.parse(JSON.stringify({n}))); \
                  let s = 0; for (const [k, v] of o) s += typeof v === 'string' ? 1 : v.n; console.log(n, s); })";
    let node = ["/usr/bin/node", "/usr/local/bin/node"].into_iter().find(|path| std::path::Path::new(path).exists());
    session(&[node.unwrap_or("/usr/bin/node"), "-e", script], "prepare", "step", |n| {
        format!("{n} {}", 5000 - n + n * (n + 1) / 2)
    });
}
