//! A folder's derived values as a table for people.

use super::choices::PaddingSide;
use super::description::{Executor, FolderDescription};
use super::origin::Derived;
use super::task::Task;

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The model that it belongs to: `tokenizer`, `model`, `postprocess`, with the route before it where there are several (`query
    /// tokenizer`), or empty for the whole.
    pub part: String,
    /// The value's name, such as `task`.
    pub what: &'static str,
    /// The value itself.
    pub value: String,
    /// The file and field, the graph, the flag, the library's default, or `guessed` and why.
    pub origin: String,
    /// Whether it is a guess, which a person should replace.
    pub is_guess: bool,
}

// === impl Row ===

impl Row {
    fn new(part: &'static str, what: &'static str, derived: Derived<impl ToString>) -> Row {
        let is_guess = derived.is_guess();
        Row { part: part.to_owned(), what, value: derived.value.to_string(), origin: derived.origin, is_guess }
    }
}

// === impl FolderDescription ===

impl FolderDescription {
    /// All derived values, part by part; those of routes one behind the other.
    pub fn table(&self) -> Vec<Row> {
        let Some(routed) = &self.routed else { return self.rows() };
        let is_whole = |row: &Row| row.part.is_empty();
        let mut rows: Vec<_> = self.rows().into_iter().filter(is_whole).collect();
        let of_tasks = routed.routes.of_tasks.iter();
        let words = of_tasks.map(|(task, route)| match task == route {
            true => task.clone(),
            false => format!("{task} by {route}"),
        });
        let words: Vec<_> = words.collect();
        rows.push(Row::new("", "routes", Derived::from(few(&words), "router_config.json: structure")));
        rows.extend(routed.routes.usual.clone().map(|usual| Row::new("", "default_route", usual)));
        for (route, description) in &routed.each {
            let of_route = description.rows().into_iter().filter(|row| !is_whole(row));
            rows.extend(of_route.map(|row| Row { part: format!("{route} {}", row.part), ..row }));
        }
        rows
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = vec![Row::new("", "task", self.task.clone().map(|task| task.name()))];
        if !self.served_names.is_empty() {
            let names = Derived::from(few(&self.served_names), "the hub's name, or that of a flag");
            rows.push(Row::new("", "served_names", names));
        }
        if let Some(labels) = &self.labels {
            rows.push(Row::new("", "labels", labels.clone().map(|labels| few(&labels))));
            if self.tasks().contains(&Task::ZeroShot) {
                rows.push(Row::new("", "further task", labels.clone().map(|_| Task::ZeroShot.name())));
            }
        }
        let of_labels = self.heads.iter().filter(|head| matches!(head.task, Task::ZeroShot | Task::Extract));
        rows.extend(
            of_labels.map(|head| Row::new("", "further task", Derived::from(head.task.name(), head.origin.as_str()))),
        );
        rows.extend(self.problem.clone().map(|problem| Row::new("", "problem_type", problem)));
        if let Some(prompts) = &self.prompts.texts {
            let names: Vec<String> = prompts.value.keys().cloned().collect();
            rows.push(Row::new("", "prompts", Derived::from(few(&names), prompts.origin.clone())));
        }
        rows.extend(self.prompts.default.clone().map(|default| Row::new("", "default_prompt", default)));

        rows.extend(self.unserved.clone().map(|files| Row::new("", "not served", files)));
        let none = || Derived::from("none".to_owned(), "texts of any length are encoded");
        let length = self.row_length().map_or_else(none, |length| length.map(|length| length.to_string()));
        rows.push(Row::new("tokenizer", "max_length", length));
        rows.push(Row::new("tokenizer", "padding", self.tokenizer.pad.clone()));
        if self.padding_side().value == PaddingSide::Left {
            rows.push(Row::new("tokenizer", "padding_side", self.padding_side().map(PaddingSide::name)));
        }
        if let Some(special) = &self.special_tokens {
            rows.push(Row::new("tokenizer", "add_special_tokens", special.clone()));
        }
        if let Some(messages) = &self.tokenizer.messages {
            rows.push(Row::new("tokenizer", "message_format", messages.format.clone()));
            let variables = messages.variables.clone();
            rows.extend(
                variables
                    .map(|given| Row::new("tokenizer", "chat_template_kwargs", given.map(serde_json::Value::from))),
            );
        }
        let late = &self.late;
        let lengths = [("query_length", &late.query_length), ("document_length", &late.document_length)];
        rows.extend(
            lengths.into_iter().filter_map(|(what, length)| Some(Row::new("tokenizer", what, length.clone()?))),
        );
        let lists = [
            ("query_expansion", &late.query_expansion),
            ("skiplist_words", &late.skiplist_words),
            ("skiplist_tasks", &late.skiplist_tasks),
        ];
        rows.extend(lists.into_iter().filter_map(|(what, list)| Some(Row::new("tokenizer", what, list.clone()?))));
        match &self.executor {
            Executor::Onnx { file, output } => {
                rows.push(Row::new("model", "graph", file.file.clone()));
                let adapters = self.adapters.clone();
                rows.extend(adapters.map(|names| Row::new("model", "tasks", names.map(|names| few(&names)))));
                rows.push(Row::new("model", "output", output.clone().map(|output| output.name)));
            }
            Executor::Static { file, .. } => rows.push(Row::new("model", "table", file.clone())),
            Executor::Generation { files, .. } => {
                rows.push(Row::new(
                    "model",
                    "graphs",
                    Derived::from(few(files), "the files that the backend looks for"),
                ));
            }
        }
        rows.extend(self.ops.iter().map(|op| Row::new("postprocess", "op", op.clone())));
        if self.width.value > 0 {
            rows.push(Row::new("postprocess", "width", self.width.clone()));
        }
        rows
    }
}

/// The first ones of a list.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        Some(more) => format!("{shown} and {more} more"),
        None => shown,
    }
}
