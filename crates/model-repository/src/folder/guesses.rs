//! Tells a person which values of a description are guesses.
//!
//! A value has its origin in a field of a file, in the nodes of the graph, in a flag or in the default of the library that trained the
//! model. Any other value is a guess, and may differ from the one of the training: each start warns of it.

use super::description::FolderDescription;
use super::table::Row;

/// How a person says a value in place of the guess, by its name in the table.
pub(super) const REMEDIES: [(&str, &str); 7] = [
    ("task", "say it with --task TASK"),
    ("max_length", "write max_seq_length into sentence_bert_config.json; longer texts are cut, and the answer says so"),
    ("padding", "write pad_token into tokenizer_config.json"),
    ("output", "name the one that is meant with --output, or choose another file with --graph"),
    (
        "message_format",
        "texts go through the chat template; where the model was trained on plain texts, serve them as they are with --accept chat-template, \
         else write modality_config.message into sentence_bert_config.json",
    ),
    ("layer", "export a graph that leaves the layers to the server, with trireme export"),
    ("op", "say it with --pooling mean, cls, last or another, as the model's card says how it was trained"),
];

/// A sentence for each guess: the value, its source, and the flag that says it.
pub(super) fn warnings(description: &FolderDescription) -> Vec<String> {
    description.table().iter().filter(|row| row.is_guess).map(warning).collect()
}

fn warning(row: &Row) -> String {
    let Row { part, what, value, origin, .. } = row;
    let is_layer = value.starts_with("dense:") || value.starts_with("layer_norm:");
    let key = if is_layer { "layer" } else { what };
    let remedy = REMEDIES.iter().find(|(name, _)| *name == key).map_or("", |(_, remedy)| remedy);
    let more = match (*what, value.as_str()) {
        ("task", "rerank") => ", as in --task classify for single texts",
        ("op", _) if origin.contains("modules.json") => ", and with --normalize true whether vectors get the length 1",
        _ => "",
    };
    let place = if part.is_empty() { String::new() } else { format!("{part}: ") };
    format!(
        "{place}{what} is {value}, {origin}: {remedy}{more}; trireme verify compares the answers with the library's"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_told_with_its_reason_and_its_remedy() {
        let told = |what, value: &str, origin: &str| {
            warning(&Row {
                part: "model".to_owned(),
                what,
                value: value.to_owned(),
                origin: origin.to_owned(),
                is_guess: true,
            })
        };
        for (what, remedy) in REMEDIES {
            let told = told(what, "x", "guessed: no file says it");
            assert!(
                told.contains(remedy) && told.contains("no file says it") && told.contains("trireme verify"),
                "{told}"
            );
        }
    }
}
