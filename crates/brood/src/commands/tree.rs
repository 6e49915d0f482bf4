//! `brood tree`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;

use brood_sandbox::checkpoint::CheckpointInfo;
use brood_sandbox::ids::{CheckpointId, TemplateName};
use brood_sandbox::model::SandboxInfo;
use serde::Serialize;

use super::Context;
use super::checkpoint::standstill;
use crate::failure::Outcome;
use crate::output::{self, distance, short};

/// The checkpoints and sandboxes of one template.
#[derive(Debug, Serialize)]
struct Tree {
    template: TemplateName,
    /// Oldest first; each names its parent.
    checkpoints: Vec<CheckpointInfo>,
    /// Each names the checkpoint that it goes on from.
    sandboxes: Vec<SandboxInfo>,
}

pub async fn run(context: &Context, root: Option<String>) -> Outcome {
    let client = context.client().await?;
    let is_template = match &root {
        Some(root) => root.parse::<TemplateName>().is_ok() && client.template(root).await.is_ok(),
        None => false,
    };
    let sandbox = match &root {
        Some(root) if !is_template => Some(client.sandbox(root).await?),
        _ => None,
    };
    let mut trees = collect(client.checkpoints().await?, client.sandboxes().await?);
    let mut tree_of = |template: &TemplateName| trees.remove(template).unwrap_or_else(|| Tree::new(template));
    match (root, sandbox) {
        (_, Some(sandbox)) => show(context, &[tree_of(&sandbox.template).around(&sandbox)]),
        (Some(template), None) => show(context, &[tree_of(&template.parse()?)]),
        (None, None) => show(context, &trees.into_values().collect::<Vec<_>>()),
    }
}

fn show(context: &Context, trees: &[Tree]) -> Outcome {
    if context.global.json {
        output::json(&trees)?;
    } else {
        for line in trees.iter().flat_map(Tree::lines) {
            output::line(output::printable(&line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(checkpoints: Vec<CheckpointInfo>, sandboxes: Vec<SandboxInfo>) -> BTreeMap<TemplateName, Tree> {
    let mut trees = BTreeMap::new();
    for checkpoint in checkpoints {
        let tree = trees.entry(checkpoint.template.clone()).or_insert_with_key(Tree::new);
        tree.checkpoints.push(checkpoint);
    }
    for sandbox in sandboxes {
        let tree = trees.entry(sandbox.template.clone()).or_insert_with_key(Tree::new);
        tree.sandboxes.push(sandbox);
    }
    trees
}

/// A line of the drawing with what is below it.
#[derive(Clone, Copy)]
enum Node<'t> {
    Checkpoint(&'t CheckpointInfo),
    Sandbox(&'t SandboxInfo),
}

impl Tree {
    fn new(template: &TemplateName) -> Self {
        Self { template: template.clone(), checkpoints: Vec::new(), sandboxes: Vec::new() }
    }

    /// What hangs below each checkpoint; below none is what comes from the template itself, or from
    /// a checkpoint that was removed.
    fn children(&self) -> HashMap<Option<&CheckpointId>, Vec<Node<'_>>> {
        let known: HashSet<&CheckpointId> = self.checkpoints.iter().map(|checkpoint| &checkpoint.id).collect();
        let mut children: HashMap<_, Vec<_>> = HashMap::new();
        for checkpoint in &self.checkpoints {
            let parent = checkpoint.parent.as_ref().filter(|parent| known.contains(parent));
            children.entry(parent).or_default().push(Node::Checkpoint(checkpoint));
        }
        for sandbox in &self.sandboxes {
            let parent = sandbox.checkpoint.as_ref().filter(|parent| known.contains(parent));
            children.entry(parent).or_default().push(Node::Sandbox(sandbox));
        }
        children
    }

    /// Only the first checkpoint above a sandbox with all below it, or the sandbox alone.
    fn around(self, sandbox: &SandboxInfo) -> Self {
        let by_id: HashMap<_, _> = self.checkpoints.iter().map(|checkpoint| (&checkpoint.id, checkpoint)).collect();
        let mut top = sandbox.checkpoint.as_ref().and_then(|id| by_id.get(id)).copied();
        while let Some(parent) = top.and_then(|top| top.parent.as_ref()).and_then(|id| by_id.get(id)) {
            top = Some(parent);
        }
        let Some(top) = top else {
            return Self { template: self.template, checkpoints: Vec::new(), sandboxes: vec![sandbox.clone()] };
        };
        let children = self.children();
        let mut kept = Self::new(&self.template);
        let mut pending = vec![Node::Checkpoint(top)];
        while let Some(node) = pending.pop() {
            match node {
                Node::Sandbox(sandbox) => kept.sandboxes.push(sandbox.clone()),
                Node::Checkpoint(checkpoint) => {
                    kept.checkpoints.push(checkpoint.clone());
                    pending.extend(children.get(&Some(&checkpoint.id)).into_iter().flatten());
                }
            }
        }
        kept.checkpoints.sort_by(|one, other| (one.created_ms, &one.id).cmp(&(other.created_ms, &other.id)));
        kept.sandboxes.sort_by(|one, other| (one.created_ms, &one.id).cmp(&(other.created_ms, &other.id)));
        kept
    }

    fn lines(&self) -> Vec<String> {
        let mut children = self.children();
        let mut lines = vec![self.template.to_string()];
        // Chains of checkpoints are long: a call for each level would overflow the stack.
        let mut pending = Vec::new();
        push_nodes(&mut pending, "", children.remove(&None));
        while let Some((prefix, is_last, node)) = pending.pop() {
            let (branch, trunk) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            lines.push(format!("{prefix}{branch}{}", node.text()));
            if let Node::Checkpoint(checkpoint) = node {
                push_nodes(&mut pending, &format!("{prefix}{trunk}"), children.remove(&Some(&checkpoint.id)));
            }
        }
        lines
    }
}

/// Puts siblings on the stack, the first on top, each with whether it is the last one.
fn push_nodes<'t>(pending: &mut Vec<(String, bool, Node<'t>)>, prefix: &str, nodes: Option<Vec<Node<'t>>>) {
    for (index, node) in nodes.into_iter().flatten().rev().enumerate() {
        pending.push((prefix.to_owned(), index == 0, node));
    }
}

impl Node<'_> {
    fn text(self) -> String {
        match self {
            Node::Sandbox(sandbox) => {
                let state = format!("{:?}", sandbox.state).to_lowercase();
                format!("* sandbox {}, {state}, {} old", short(sandbox.id.as_str()), distance(sandbox.created_ms))
            }
            Node::Checkpoint(checkpoint) => {
                let name = checkpoint.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
                let content = match (checkpoint.with_processes, checkpoint.processes) {
                    (false, _) => "files alone".to_owned(),
                    (true, 1) => "1 process".to_owned(),
                    (true, count) => format!("{count} processes"),
                };
                format!(
                    "{}{name}, {} old, {content}, {} pages copied, {} standstill",
                    short(checkpoint.id.as_str()),
                    distance(checkpoint.created_ms),
                    checkpoint.copied_pages,
                    standstill(checkpoint),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(letter: char, parent: Option<char>, created_ms: u64) -> CheckpointInfo {
        let id = |letter: char| letter.to_string().repeat(20);
        let json = serde_json::json!({
            "id": id(letter), "name": format!("name-{letter}"), "parent": parent.map(id), "sandbox": id('s'),
            "template": "py", "created_ms": created_ms, "with_processes": true, "processes": 1, "layers": 2,
            "copied_pages": 7, "standstill_us": 800,
        });
        serde_json::from_value(json).unwrap()
    }

    fn drawn(checkpoints: Vec<CheckpointInfo>) -> Vec<String> {
        let lines = collect(checkpoints, Vec::new()).values().flat_map(Tree::lines).collect::<Vec<_>>();
        lines.iter().map(|line| line.split(',').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn branches_are_drawn() {
        let all = vec![
            checkpoint('a', None, 1),
            checkpoint('b', Some('a'), 2),
            checkpoint('c', Some('b'), 3),
            checkpoint('d', Some('a'), 4),
            // Its parent was removed.
            checkpoint('e', Some('z'), 5),
        ];
        let expected = [
            "py",
            "├─ aaaaaaaaaaaa name-a",
            "│  ├─ bbbbbbbbbbbb name-b",
            "│  │  └─ cccccccccccc name-c",
            "│  └─ dddddddddddd name-d",
            "└─ eeeeeeeeeeee name-e",
        ];
        assert_eq!(drawn(all), expected);
    }
}
