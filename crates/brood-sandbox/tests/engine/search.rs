//! A search over the states of one session, and many continuations of one state.

use std::collections::HashMap;
use std::sync::Arc;

use brood_sandbox::model::ProcessRequest;
use brood_sandbox::output::{OutputEvent, SubscribeFrom};
use brood_sandbox::sandbox::Sandbox;

use crate::fixture::{TestEngine, call, out};

/// A Python session that answers one expression or statement a line.
const SESSION: &str = "
import sys
state = {}
print('ready', flush=True)
for line in sys.stdin:
    try:
        result = eval(line, state)
    except SyntaxError:
        result = exec(line, state)
    print(result, flush=True)
";

/// A package with a test-suite of its own: the working tree that is searched over.
const REPOSITORY: &str = r#"
mkdir -p /repo/shop
cat > /repo/shop/__init__.py <<'END'
END
cat > /repo/shop/price.py <<'END'
def total(items, discount=0):
    return sum(items) - discount
END
cat > /repo/test_price.py <<'END'
import unittest
from shop.price import total

class Prices(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2, 3]), 6)
    def test_discount(self):
        self.assertEqual(total([5], discount=2), 3)
END
"#;

fn start(sandbox: &Arc<Sandbox>) {
    let request = ProcessRequest {
        stdin: true,
        background: true,
        tag: Some("session".to_owned()),
        ..call(&["python3", "-c", SESSION])
    };
    let (_process, mut output) = sandbox.spawn_with_output(request).unwrap();
    assert!(matches!(output.next_blocking(), Some(OutputEvent::Data { .. })));
}

fn ask(sandbox: &Sandbox, line: &str) -> String {
    let session = sandbox.process_by_tag("session").unwrap();
    let mut output = session.subscribe(SubscribeFrom::Now);
    session.write_stdin(format!("{line}\n").as_bytes()).unwrap();
    let mut text = String::new();
    while !text.ends_with('\n') {
        match output.next_blocking() {
            Some(OutputEvent::Data { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{line}: {other:?}"),
        }
    }
    text.trim_end().to_owned()
}

/// Of names, modes and contents below a directory.
fn content_hash(sandbox: &Arc<Sandbox>) -> String {
    out(
        sandbox,
        "cd /repo && find . -printf '%p %m %y\\n' | sort | sha256sum; find . -type f | sort | xargs sha256sum | sha256sum",
    )
}

/// What a node of the tree must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    files: String,
    variables: String,
}

struct Search<'e> {
    sandbox: &'e Arc<Sandbox>,
    nodes: usize,
    /// By checkpoint.
    seen: HashMap<String, Node>,
}

impl Search<'_> {
    fn look(&self) -> Node {
        Node { files: content_hash(self.sandbox), variables: ask(self.sandbox, "sorted(path)") }
    }

    /// Depth first: edit, run the tests, freeze; then each child from here, and back.
    fn visit(&mut self, name: &str, depth: usize, children: usize) {
        let broken = name.len() % 3 == 2;
        let formula = if broken { "sum(items)" } else { "sum(items) - discount" };
        let edit = format!(
            "printf 'def total(items, discount=0):\\n    return {formula}  # {name}\\n' > /repo/shop/price.py; \
             mkdir -p /repo/{name}; echo {name} > /repo/{name}/note; rm -f /repo/last-*; touch /repo/last-{name}"
        );
        out(self.sandbox, &edit);
        ask(self.sandbox, &format!("path.append('{name}')"));
        let tests = crate::fixture::run(
            self.sandbox,
            crate::fixture::shell("cd /repo && PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -q 2>&1"),
        );
        assert_eq!(tests.report.shell_code() == 0, !broken, "{name}: {tests:?}");
        let checkpoint = self.sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
        let id = checkpoint.id.as_str().to_owned();
        let node = self.look();
        self.seen.insert(id.clone(), node.clone());
        self.nodes += 1;
        if depth == 0 {
            return;
        }
        for child in 0..children {
            self.visit(&format!("{name}{child}"), depth - 1, children);
            self.sandbox.rollback(&id).unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
            assert_eq!(self.look(), node, "{name} after its child {child}");
        }
    }
}

#[test]
fn a_depth_first_search_finds_every_node_as_it_left_it() {
    let soak = std::env::var("BROOD_TEST_SOAK").is_ok_and(|value| value == "full");
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    out(&sandbox, REPOSITORY);
    start(&sandbox);
    ask(&sandbox, "path = []");
    let mut search = Search { sandbox: &sandbox, nodes: 0, seen: HashMap::new() };
    // 121 nodes, or 40.
    search.visit("n", if soak { 4 } else { 3 }, 3);
    assert_eq!(search.nodes, if soak { 121 } else { 40 });
    // Any node again, from any other.
    let mut ids: Vec<_> = search.seen.keys().cloned().collect();
    ids.sort();
    for id in ids.iter().step_by(3) {
        sandbox.rollback(id).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(search.look(), search.seen[id]);
    }
}

#[test]
fn many_forks_of_one_state_go_on_as_if_each_were_alone() {
    const FORKS: usize = 64;
    let engine = TestEngine::with_debian();
    let sandbox = engine.sandbox();
    out(&sandbox, REPOSITORY);
    start(&sandbox);
    ask(&sandbox, "path = list(range(1000))");
    let checkpoint = sandbox.checkpoint(None, true).unwrap_or_else(|error| panic!("{}", error.chain()));
    let id = checkpoint.id.as_str();
    let forks: Vec<Arc<Sandbox>> = std::thread::scope(|scope| {
        let fork = |_| scope.spawn(|| engine.fork(id).unwrap_or_else(|error| panic!("{}", error.chain())));
        let threads: Vec<_> = (0..FORKS).map(fork).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let work = |sandbox: &Arc<Sandbox>, number: usize| {
        ask(sandbox, &format!("path.extend(range({number}))"));
        ask(sandbox, &format!("open('/repo/result', 'w').write(str(sum(path) * {number}))"));
        out(sandbox, &format!("cat /repo/result; echo; mkdir /repo/d{number}; ls /repo"))
    };
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            forks.iter().enumerate().map(|(number, fork)| scope.spawn(move || work(fork, number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    forks.iter().for_each(|fork| fork.kill().unwrap());
    for (number, result) in together.iter().enumerate().step_by(9) {
        let alone = engine.fork(id).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(work(&alone, number), *result);
        alone.kill().unwrap();
    }
    let sum: usize = (0..1000).sum();
    for (number, result) in together.iter().enumerate() {
        let own: usize = (0..number).sum();
        assert_eq!(result.lines().next(), Some(&*((sum + own) * number).to_string()), "{number}");
    }
    assert_eq!(ask(&sandbox, "len(path)"), "1000");
}
