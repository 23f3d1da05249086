//! Contradictions between tokenizer_config.json and tokenizer.json: tokens around texts, tokens that are missing, the
//! space before the first word. The crate `trireme-text` does the same with the files.

use serde_json::Value;

use super::files::{Json, Reader};

/// Tokenizer classes without which a tokenizer.json cannot be made: they read characters, or need a program for words.
const NEVER_JSON: [&str; 11] = [
    "ByT5Tokenizer",
    "CanineTokenizer",
    "BertJapaneseTokenizer",
    "PhobertTokenizer",
    "BertweetTokenizer",
    "BartphoTokenizer",
    "CpmAntTokenizer",
    "EsmTokenizer",
    "BioGptTokenizer",
    "FlaubertTokenizer",
    "XLMTokenizer",
];

/// Files that tokenizers of transformers have in place of tokenizer.json.
const VOCABULARIES: [&str; 5] = ["vocab.txt", "vocab.json", "bpe.codes", "tokenizer.model", "spm.model"];

/// Classes whose SentencePiece models are read without tokenizer.json.
const SENTENCEPIECE: [&str; 6] =
    ["M2M100Tokenizer", "NllbTokenizer", "MBartTokenizer", "MBart50Tokenizer", "MarianTokenizer", "T5Tokenizer"];

/// The same by config.json, where the folder names no class.
const SENTENCEPIECE_MODELS: [&str; 8] = ["m2m_100", "nllb", "mbart", "marian", "t5", "mt5", "umt5", "longt5"];

/// Classes that make their pre-tokenizer anew, with the space before the first word that tokenizer_config.json asks for.
const PREFIX_SPACE: [&str; 7] = [
    "RobertaTokenizer",
    "GPT2Tokenizer",
    "BartTokenizer",
    "LongformerTokenizer",
    "LEDTokenizer",
    "MvpTokenizer",
    "BlenderbotTokenizer",
];

/// A tokenizer's class without `Fast`, which says nothing since transformers 5; empty where there is none.
pub(super) fn class(config: &Json) -> &str {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    class.strip_suffix("Fast").unwrap_or(class)
}

/// A folder without tokenizer.json is a fault, except where its SentencePiece model is of a class that is read. Gives whether it has a
/// tokenizer.
pub(super) fn check_files(reader: &Reader<'_>, folder: &str, config: &Json, model: &Json, has_pieces: bool) -> bool {
    let class = class(config);
    let kind = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let is_read = SENTENCEPIECE.contains(&class) || (class.is_empty() && SENTENCEPIECE_MODELS.contains(&kind));
    if reader.has(&format!("{folder}tokenizer.json")) || (has_pieces && is_read) {
        return true;
    }
    let place = reader.root().join(folder).display().to_string();
    let place = place.trim_end_matches('/');
    if NEVER_JSON.contains(&class) {
        reader.refuse(format_args!(
            "{0}: tokenizer_class is {class}, which has no tokenizer.json, and transformers cannot write one: tokenize in a model.py \
             (backend: \"python\") that loads it with AutoTokenizer and gives input_ids and attention_mask, and link it with the ONNX file \
             in an ensemble (docs/python.md)",
            config.file
        ));
        return false;
    }
    let vocabulary = VOCABULARIES.iter().find(|name| reader.has(&format!("{folder}{name}")));
    if !has_pieces && class.is_empty() && vocabulary.is_none() {
        reader.lacks(format_args!(
            "{place} holds no file of a tokenizer: for a model of texts, copy tokenizer.json and tokenizer_config.json from the model that it \
             was made of; another model is served by its ONNX file in a model repository of your own (docs/model-repository.md)"
        ));
        return false;
    }
    let found = match (has_pieces, class, vocabulary) {
        (true, "", _) => "only a SentencePiece model, and no tokenizer_class that says how to read it".to_owned(),
        (true, class, _) => format!("only a SentencePiece model, of which class {class} has tokens of its own"),
        (false, _, Some(file)) => format!("only {file}, which a class of transformers reads"),
        (false, _, None) => "and no SentencePiece model either".to_owned(),
    };
    reader.lacks(format_args!(
        "{place} holds no tokenizer.json, {found}; write it: pip install transformers sentencepiece protobuf && python \
         -c \"from transformers import AutoTokenizer as T; \
         T.from_pretrained('{place}').save_pretrained('{place}')\""
    ));
    false
}

/// Compares tokenizer.json with the fields of tokenizer_config.json that transformers 4 and 5 do not understand alike.
pub(super) fn check_agreement(reader: &Reader<'_>, json: &Json, config: &Json) {
    for (field, token, at_end) in [("add_bos_token", "bos_token", false), ("add_eos_token", "eos_token", true)] {
        let Some(wanted) = config.get(field).and_then(Value::as_bool) else { continue };
        let Some(token) = text(config.get(token)) else { continue };
        let adds = adds(json, token, at_end);
        if adds != wanted {
            let does = if adds { "adds" } else { "does not add" };
            reader.contradiction(
                field,
                format_args!(
                    "{}: {field} is {wanted}, but {}: post_processor {does} '{token}': transformers 4 follows the former, and transformers 5 \
                     the latter. Where the model was trained with transformers 4, write it into tokenizer.json, with pip install tokenizers \
                     && {}",
                    config.file,
                    json.file,
                    as_before(reader, json, config)
                ),
                &format!("rows are as {} has them", json.file),
            );
        }
    }
    let Some(wanted) = config.get("add_prefix_space").and_then(Value::as_bool) else { return };
    let adds = adds_space(json);
    if adds.is_some_and(|(adds, is_bytes)| adds != wanted && !(is_bytes && PREFIX_SPACE.contains(&class(config)))) {
        reader.contradiction(
            "add_prefix_space",
            format_args!(
                "{}: add_prefix_space is {wanted}, but {}: pre_tokenizer says otherwise, and releases of transformers differ in which they \
                 follow. Write into one of the files what the model was trained with",
                config.file, json.file
            ),
            &format!("rows are as {} has them", json.file),
        );
    }
}

/// The command that makes tokenizer.json add the tokens that tokenizer_config.json asks for, as transformers 4 does.
fn as_before(reader: &Reader<'_>, json: &Json, config: &Json) -> String {
    let wanted = |field: &str, token: &str, at_end: bool| {
        let token = text(config.get(token))?;
        let flag = config.get(field).and_then(Value::as_bool).unwrap_or_else(|| adds(json, token, at_end));
        flag.then(|| token.to_owned())
    };
    let (bos, eos) = (wanted("add_bos_token", "bos_token", false), wanted("add_eos_token", "eos_token", true));
    let part = |text: &str, kind: u8| {
        let token = |token: &Option<String>| token.as_ref().map(|token| format!("{token}:{kind}"));
        [token(&bos), Some(format!("{text}:{kind}")), token(&eos)].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let tokens: Vec<_> = [&bos, &eos].into_iter().flatten().map(|token| format!("\"{token}\"")).collect();
    // A shell leaves `$A` alone within single quotes.
    format!(
        "python -c 'from tokenizers import Tokenizer as T, processors as p; f = \"{}\"; t = T.from_file(f); t.post_processor = \
         p.TemplateProcessing(single=\"{1}\", pair=\"{1} {2}\", special_tokens=[(x, t.token_to_id(x)) for x in [{3}]]); t.save(f)'",
        reader.path(&json.file).display(),
        part("$A", 0),
        part("$B", 1),
        tokens.join(", ")
    )
}

/// Whether the post-processor puts this token at an end of a single text.
fn adds(json: &Json, token: &str, at_end: bool) -> bool {
    let within = |processor: &Value| -> bool {
        let of = |key: &str| processor.get(key).and_then(|pair| pair.get(0)?.as_str()) == Some(token);
        match processor.get("type").and_then(Value::as_str) {
            Some("BertProcessing" | "RobertaProcessing") => of(if at_end { "sep" } else { "cls" }),
            Some("TemplateProcessing") => {
                let parts = processor.get("single").and_then(Value::as_array);
                let mut parts: Vec<&Value> = parts.into_iter().flatten().collect();
                if at_end {
                    parts.reverse();
                }
                let before = parts.iter().take_while(|part| part.get("Sequence").is_none());
                before.into_iter().any(|part| part["SpecialToken"]["id"].as_str() == Some(token))
            }
            _ => false,
        }
    };
    let Some(processor) = json.get("post_processor") else { return false };
    let parts = processor.get("processors").and_then(Value::as_array);
    within(processor) || parts.into_iter().flatten().any(within)
}

/// Whether a space is put before the first word, and whether bytes are what tokens are made of; `None` where tokenizer.json says
/// neither.
fn adds_space(json: &Json) -> Option<(bool, bool)> {
    let of = |part: &Value| match part.get("type").and_then(Value::as_str) {
        Some("ByteLevel") => Some((part.get("add_prefix_space")?.as_bool()?, true)),
        Some("Metaspace") => Some((part.get("prepend_scheme").is_none_or(|scheme| scheme != "never"), false)),
        Some("Prepend") => Some((true, false)),
        _ => None,
    };
    ["pre_tokenizer", "normalizer"].into_iter().find_map(|key| {
        let part = json.get(key)?;
        let parts = ["pretokenizers", "normalizers"].into_iter().find_map(|key| part.get(key)?.as_array());
        of(part).or_else(|| parts.into_iter().flatten().find_map(of))
    })
}

/// A token: its text, or an object with its text.
fn text(token: Option<&Value>) -> Option<&str> {
    let token = token?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}
