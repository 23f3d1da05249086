//! The task of a masked language model without modules.json. Its architecture leaves the task open: a SPLADE needs the head, an embedder does
//! without it.

use std::fs;
use std::path::Path;

use anyhow::bail;
use serde_json::Value;
use trireme_model_repository::{Choices, Export, Task};

/// Words of a model card's head that tell a SPLADE, and those that tell an embedder.
const TOLD: [(Task, &[&str]); 2] = [
    (Task::Sparse, &["splade", "sparse-encoder", "sparse", "SparseEncoder"]),
    (Task::Embed, &["sentence-similarity", "SentenceTransformer"]),
];

/// The graph that the folder needs, and the choices with the task that the model's card tells. The error asks for the task where nothing
/// tells it.
pub fn plan(folder: &Path, choices: &Choices) -> anyhow::Result<(Export, Choices)> {
    let export = Export::of(folder, choices)?;
    let Some(architecture) = masked(folder).filter(|_| choices.task.is_none() && export.task == Task::Embed) else {
        return Ok((export, choices.clone()));
    };
    let card = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
    let Some(task) = told(&card) else {
        bail!(
            "model folder {}: config.json: architectures is {architecture}, a masked language model, and README.md does not tell what it is for: say \
             it by --task sparse for a SPLADE, or by --task embed for an embedder",
            folder.display()
        );
    };
    let choices = Choices { task: Some(task), ..choices.clone() };
    Ok((Export::of(folder, &choices)?, choices))
}

/// The architecture of a masked language model that no module follows.
fn masked(folder: &Path) -> Option<String> {
    if folder.join("modules.json").exists() {
        return None;
    }
    let config: Value = serde_json::from_str(&fs::read_to_string(folder.join("config.json")).ok()?).ok()?;
    let architecture = config["architectures"][0].as_str()?;
    architecture.ends_with("ForMaskedLM").then(|| architecture.to_owned())
}

/// The task that the head of a model card tells: the lines between two of `---`.
fn told(card: &str) -> Option<Task> {
    let head = card.trim_start().strip_prefix("---")?.split("\n---").next()?;
    let words: Vec<&str> = head
        .lines()
        .flat_map(|line| line.split([':', ',', '[', ']', ' ']))
        .map(|word| word.trim_matches(['-', '"', '\'', ' ', '\r']))
        .collect();
    TOLD.into_iter().find(|(_, known)| known.iter().any(|known| words.contains(known))).map(|(task, _)| task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_card_tells_the_task() {
        for (card, task) in [
            ("---\ntags:\n- splade\n- query-expansion\npipeline_tag: fill-mask\n---\n", Some(Task::Sparse)),
            ("---\ntags: [sentence-transformers, \"sparse-encoder\"]\n---\n# A model", Some(Task::Sparse)),
            ("---\r\npipeline_tag: sentence-similarity\r\n---\r\n", Some(Task::Embed)),
            ("---\npipeline_tag: fill-mask\n---\nIt is no splade.", None),
            ("# splade", None),
            ("", None),
        ] {
            assert_eq!(told(card), task, "{card}");
        }
    }

    #[test]
    fn a_masked_language_model_is_asked_for_its_task() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("config.json", r#"{"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 9}"#);
        write("tokenizer.json", "{}");
        let planned = |choices: &Choices| plan(folder.path(), choices);
        let asked = planned(&Choices::default()).unwrap_err().to_string();
        assert!(
            asked.contains("BertForMaskedLM") && asked.contains("--task sparse") && asked.contains("--task embed"),
            "{asked}"
        );
        let chosen = Choices { task: Some(Task::Embed), ..Choices::default() };
        assert_eq!(planned(&chosen).unwrap().0.export_task, "feature-extraction");
        write("README.md", "---\ntags:\n- splade\n---\n");
        let (export, choices) = planned(&Choices::default()).unwrap();
        assert_eq!((export.export_task, choices.task), ("fill-mask", Some(Task::Sparse)));
        write("modules.json", r#"[{"type": "sentence_transformers.models.Transformer", "path": ""}]"#);
        assert_eq!(planned(&Choices::default()).unwrap().0.export_task, "feature-extraction");
    }
}
