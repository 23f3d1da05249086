//! The steps of an ensemble in text: a chain in one line, one that forks as a tree.

use std::collections::HashMap;

use serde_json::Value;

/// A step, and the steps that it takes tensors from.
struct Node {
    model: String,
    sources: Vec<usize>,
    /// The longest way from the request to it.
    depth: usize,
}

/// The lines that draw the steps in the status document's `steps`, the first one to be put behind the ensemble's name: `a → b → c` where
/// each step needs the step before it. Otherwise each step is a line below its deepest source, and names its other sources.
pub fn draw(steps: &[Value]) -> Vec<String> {
    let nodes = nodes(steps);
    let is_chain = nodes.iter().enumerate().all(|(index, node)| node.depth == index);
    if is_chain {
        return vec![nodes.iter().map(|node| node.model.as_str()).collect::<Vec<_>>().join(" → ")];
    }
    let mut lines = vec!["the request".to_owned()];
    below(&nodes, None, "", &mut lines);
    lines
}

fn nodes(steps: &[Value]) -> Vec<Node> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut makers: HashMap<String, usize> = HashMap::new();
    let mut nodes: Vec<Node> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let tensors = |field: &str| -> Vec<String> {
            list(&step[field]).iter().filter_map(|entry| entry["tensor"].as_str().map(str::to_owned)).collect()
        };
        let mut sources: Vec<usize> =
            tensors("inputs").iter().filter_map(|tensor| makers.get(tensor)).copied().collect();
        sources.sort_unstable();
        sources.dedup();
        let depth = sources.iter().map(|&source| nodes[source].depth + 1).max().unwrap_or(0);
        makers.extend(tensors("outputs").into_iter().map(|tensor| (tensor, index)));
        nodes.push(Node { model: step["model"].as_str().unwrap_or("-").to_owned(), sources, depth });
    }
    nodes
}

/// Adds the lines of the steps below `parent`, `None` being the request; `indent` begins each line.
fn below(nodes: &[Node], parent: Option<usize>, indent: &str, lines: &mut Vec<String>) {
    let of = |node: &Node| node.sources.iter().copied().min_by_key(|&source| std::cmp::Reverse(nodes[source].depth));
    let children: Vec<usize> = (0..nodes.len()).filter(|&index| of(&nodes[index]) == parent).collect();
    for (place, &child) in children.iter().enumerate() {
        let (fork, way) = if place + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let others: Vec<_> = nodes[child]
            .sources
            .iter()
            .filter(|&&source| Some(source) != parent)
            .map(|&source| nodes[source].model.as_str())
            .collect();
        let others = if others.is_empty() { String::new() } else { format!(" (and of {})", others.join(", ")) };
        lines.push(format!("{indent}{fork}{}{others}", nodes[child].model));
        below(nodes, Some(child), &format!("{indent}{way}"), lines);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(model: &str, inputs: &[&str], outputs: &[&str]) -> Value {
        let tensors =
            |names: &[&str]| names.iter().map(|name| json!({"name": "X", "tensor": name})).collect::<Vec<_>>();
        json!({"model": model, "inputs": tensors(inputs), "outputs": tensors(outputs)})
    }

    #[test]
    fn a_chain_is_a_line_also_where_a_tensor_skips_a_step() {
        let chain = [
            step("tokenizer", &["TEXT"], &["ids", "mask"]),
            step("encoder", &["ids", "mask"], &["states"]),
            step("pool", &["states", "mask"], &["EMBEDDING"]),
        ];
        assert_eq!(draw(&chain), ["tokenizer → encoder → pool"]);
    }

    #[test]
    fn a_fork_is_a_tree_that_names_what_meets() {
        let fork = [
            step("tokenizer", &["TEXT"], &["ids"]),
            step("dense", &["ids"], &["d"]),
            step("sparse", &["ids"], &["s"]),
            step("fuse", &["d", "s"], &["OUT"]),
        ];
        assert_eq!(
            draw(&fork).join("\n"),
            "the request\n└─ tokenizer\n   ├─ dense\n   │  └─ fuse (and of sparse)\n   └─ sparse"
        );
        let apart = [step("left", &["X"], &["L"]), step("right", &["X"], &["R"])];
        assert_eq!(draw(&apart), ["the request", "├─ left", "└─ right"]);
    }

    #[test]
    fn a_document_without_tensors_is_drawn_too() {
        assert_eq!(draw(&[json!({"model": "m"}), json!({})]), ["the request", "├─ m", "└─ -"]);
        assert_eq!(draw(&[]), [""]);
    }
}
