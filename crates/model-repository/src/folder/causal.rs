//! Causal language models that judge a pair by the logits of two tokens: the module `LogitScore` of sentence-transformers, and what its
//! CrossEncoder makes of a causal language model without modules.

use serde_json::Value;

use super::chain::Chain;
use super::classifier::Head;
use super::described::FolderFiles;
use super::files::Reader;
use super::graphs::GraphFile;
use super::modules::ModuleKind;
use super::origin::Derived;
use super::scores;
use super::task::Purpose;

/// The tokens that the library reads where no module names others.
const ANSWERS: [&str; 2] = ["yes", "no"];

/// The argument of op `logit_score`, where the model's scores are made so.
pub(super) fn score(
    reader: &Reader<'_>,
    purpose: &Purpose,
    files: &FolderFiles,
    folder: &str,
) -> Option<Derived<String>> {
    if !purpose.causal {
        return None;
    }
    let module = files.modules.iter().flatten().find_map(|module| match &module.step {
        ModuleKind::LogitScore { argument } => Some(argument.clone()),
        _ => None,
    });
    if module.is_some() {
        return module;
    }
    let json = reader.json(&format!("{folder}tokenizer.json"))?;
    let id = |word: &str| {
        let added = json.get("added_tokens").and_then(Value::as_array);
        let added = added.into_iter().flatten().find(|token| token.get("content").is_some_and(|text| text == word));
        let own = match json.get("model")?.get("vocab")? {
            Value::Array(pieces) => {
                pieces.iter().position(|piece| piece.get(0).is_some_and(|text| text == word)).map(|id| id as u64)
            }
            by_token => by_token.get(word)?.as_u64(),
        };
        added.and_then(|token| token.get("id")?.as_u64()).or(own)
    };
    let [Some(yes), Some(no)] = ANSWERS.map(id) else {
        reader.fault(format_args!(
            "{}: the vocabulary lacks the token yes or no, whose logits sentence-transformers compares where the folder has no modules.json; \
             save the model with a LogitScore that names others: sentence_transformers.cross_encoder.modules.LogitScore",
            json.file
        ));
        return None;
    };
    Some(Derived::from(format!("{yes}-{no}"), "the tokens yes and no, sentence-transformers' default"))
}

/// The chain that ends in such a score.
pub(super) fn scores(
    reader: &Reader<'_>,
    purpose: &Purpose,
    files: &FolderFiles,
    file: &GraphFile,
    argument: Derived<String>,
) -> Chain {
    let width = Some(Derived::from(1, argument.origin.clone()));
    let Some(logits) = file.logits(3) else {
        reader.fault(format_args!(
            "{} gives no logits over the vocabulary, found {}; export it again with --task text-generation",
            file.file.value,
            file.outputs()
        ));
        return Chain::none(width);
    };
    let mut output = logits.clone();
    if file.graph.input("num_logits_to_keep").is_some()
        && let Some(kept) = output.dims.as_mut().and_then(|dims| dims.get_mut(1))
    {
        *kept = 1;
    }
    let activation = scores::activation(reader, purpose, files, &Head::default());
    let mut ops = vec![argument.map(|argument| format!("logit_score:{argument}"))];
    ops.extend(activation.value.op().map(|op| Derived::from(op.to_owned(), activation.origin)));
    let place = file.place(logits);
    Chain { output: Some(Derived::from(output, place)), ops, ..Chain::none(width) }
}
