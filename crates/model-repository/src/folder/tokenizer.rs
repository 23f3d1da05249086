//! A folder's tokenizer: the files, the longest row, padding, prompts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::choices::PaddingSide;
use super::fields;
use super::files::{Json, Reader};
use super::messages::Messages;
use super::modules;
use super::origin::Derived;
use super::processing;
use super::rows;
use super::special;

/// A tokenizer's files; the ones that exist go into the version folder of the tokenizer model.
pub(crate) const FILES: [&str; 15] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "tokenizer.model",
];

/// SentencePiece models.
const PIECES: [&str; 4] = ["sentencepiece.bpe.model", "spiece.model", "source.spm", "tokenizer.model"];

/// A length above this means "no limit": Hugging Face writes 1e30.
const UNSET_LENGTH: f64 = 1e9;

/// The length for folders that give none.
const USUAL_LENGTH: u64 = 512;

/// Models whose positions are a table of fixed length.
const ABSOLUTE: [&str; 12] = [
    "bert",
    "distilbert",
    "electra",
    "albert",
    "convbert",
    "ernie",
    "squeezebert",
    "mobilebert",
    "nystromformer",
    "layoutlm",
    "megatron-bert",
    "rembert",
];

/// Likewise, with positions that are counted from behind the padding token's id.
const ABSOLUTE_AFTER_PADDING: [&str; 9] = [
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "mpnet",
    "roberta-prelayernorm",
    "longformer",
    "ibert",
    "data2vec-text",
];

/// A tokenizer as its files have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tokenizer {
    /// The files, by their paths within the folder.
    pub(crate) files: Vec<String>,
    pub(crate) max_length: Option<Derived<u64>>,
    /// The id that rows are filled up with.
    pub(crate) pad: Derived<i64>,
    /// Most characters of a text that are encoded: model2vec cuts texts before it encodes them.
    pub(crate) max_characters: Option<Derived<u64>>,
    /// The highest id, where `tokenizer.json` says it.
    pub(crate) highest: Option<Derived<i64>>,
    /// The highest id that texts get which name no added token.
    pub(crate) highest_learned: Option<i64>,
    /// The id of the token for unknown input, where `tokenizer.json` gives it.
    pub(crate) unknown: Option<Derived<i64>>,
    /// The token at the beginning of each row, `cls_token`.
    pub(crate) first: Option<Derived<String>>,
    /// The ids of the tokens `cls_token`, `eos_token`, `pad_token` and `unk_token`.
    pub(crate) special: Vec<i64>,
    /// The side on which the library fills rows up.
    pub(crate) padding_side: Derived<PaddingSide>,
    /// The token type of padding.
    pub(crate) pad_type: i64,
    /// The position of a row's first token, where it is not 0.
    pub(crate) first_position: Option<Derived<u64>>,
    /// Whether the library gives the model no token types, which are 0 then.
    pub(crate) no_types: Option<Derived<bool>>,
    /// Whether special tokens are added, where a file says it.
    pub(crate) adds_special: Option<Derived<bool>>,
    /// Whether all rows are filled up to `max_length`.
    pub(crate) pads_to_longest: Option<Derived<bool>>,
    /// Rows of token ids for checks of the model, as JSON: real rows of different lengths.
    pub(crate) sample_rows: Option<String>,
    /// The padding token, where the tokenizer's files that are served do not name it.
    pub(crate) pad_token: Option<Derived<String>>,
    /// How texts become messages of a chat, where the library makes messages of them.
    pub(crate) messages: Option<Messages>,
}

/// The texts that go before others, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prompts {
    pub(crate) texts: Option<Derived<BTreeMap<String, String>>>,
    pub(crate) default: Option<Derived<String>>,
}

/// Reads the tokenizer in `folder`. `is_static`: a length is not needed.
pub(crate) fn read(reader: &Reader<'_>, folder: &str, model: &Json, is_static: bool) -> Option<Tokenizer> {
    let mut files: Vec<_> =
        FILES.iter().map(|name| format!("{folder}{name}")).filter(|file| reader.has(file)).collect();
    let config = reader.json_or_empty(&format!("{folder}tokenizer_config.json"));
    let has_pieces = PIECES.iter().any(|name| files.contains(&format!("{folder}{name}")));
    if !special::check_files(reader, folder, &config, model, has_pieces) {
        return None;
    }
    let json = reader.json(&format!("{folder}tokenizer.json"));
    fields::check(reader, "tokenizer_config.json", &config);
    if let Some(map) = reader.json(&format!("{folder}special_tokens_map.json")) {
        fields::check(reader, "special_tokens_map.json", &map);
    }
    if let Some(json) = &json {
        special::check_agreement(reader, json, &config);
    }
    let vocabulary = json.as_ref().map(Vocabulary::of);
    let own = modules::transformer_config(reader, folder);
    if let (Some(own), Some(json)) = (&own, &json)
        && own.get("do_lower_case") == Some(&Value::Bool(true))
        && !lowers(json.get("normalizer"), &config)
    {
        reader.fault(format_args!(
            "{}: do_lower_case is true, but {}: normalizer keeps capitals; save the model with sentence-transformers 5 or newer",
            own.file, json.file
        ));
    }
    let max_length = match is_static {
        true => static_length(reader, model),
        false => Some(length(reader, own.as_ref(), &config, model)),
    };
    let named = |key: &str| {
        let token = config.get(key)?;
        token.as_str().or_else(|| token.get("content")?.as_str())
    };
    let id = |key: &str| vocabulary.as_ref()?.ids.get(named(key)?).copied();
    let special: BTreeSet<i64> =
        ["cls_token", "eos_token", "pad_token", "unk_token"].into_iter().filter_map(id).collect();
    let first = named("cls_token").map(|token| Derived::field(token.to_owned(), &config.file, "cls_token"));
    let roberta =
        model.get("model_type").and_then(Value::as_str).is_some_and(|kind| ABSOLUTE_AFTER_PADDING.contains(&kind));
    let pad_type = config.number(reader, "pad_token_type_id").map(|id| id.value as i64);
    let names = config.get("model_input_names").and_then(Value::as_array);
    let no_types = names.filter(|names| !names.iter().any(|name| name == "token_type_ids"));
    let median = vocabulary.as_ref().and_then(|vocabulary| vocabulary.median).filter(|_| is_static);
    if is_static {
        // The libraries of static models read tokenizer.json alone.
        files.retain(|file| !file.ends_with("tokenizer_config.json") && !file.ends_with("special_tokens_map.json"));
    }
    let pad_token = named("pad_token").filter(|_| is_static);
    Some(Tokenizer {
        files,
        pad_token: pad_token.map(|token| Derived::field(token.to_owned(), &config.file, "pad_token")),
        messages: None,
        max_characters: max_length.as_ref().zip(median).map(|(length, median)| {
            Derived::from(
                length.value * median,
                "max_length times the median length of the tokenizer's tokens, as model2vec cuts",
            )
        }),
        max_length,
        pad: pad(&config, json.as_ref(), vocabulary.as_ref(), model, is_static),
        highest: json.as_ref().zip(vocabulary.as_ref()).and_then(|(json, vocabulary)| {
            Some(Derived::field(vocabulary.highest?, &json.file, "model.vocab, added_tokens"))
        }),
        highest_learned: vocabulary.as_ref().and_then(|vocabulary| vocabulary.learned),
        padding_side: padding_side(reader, own.as_ref(), &config, json.as_ref(), model),
        pad_type: pad_type.unwrap_or(if special::class(&config) == "XLNetTokenizer" { 3 } else { 0 }),
        first_position: roberta.then(|| {
            let pad = model.number(reader, "pad_token_id").map_or(1, |pad| pad.value);
            Derived::from(pad + 1, format!("{}: model_type, whose positions begin behind the padding id", model.file))
        }),
        no_types: no_types.map(|_| Derived::field(true, &config.file, "model_input_names")),
        adds_special: own.as_ref().and_then(|own| processing::processing(own, "add_special_tokens")).and_then(
            |found| {
                let flag = found.value.as_bool();
                if flag.is_none() {
                    reader.fault(format_args!("{} is no flag, expected true or false", found.origin));
                }
                Some(Derived::from(flag?, found.origin))
            },
        ),
        pads_to_longest: rows::pads_to_longest(reader, own.as_ref(), model),
        sample_rows: json.as_ref().and_then(rows::sample),
        unknown: json.as_ref().zip(vocabulary.as_ref()).and_then(|(json, vocabulary)| unknown(json, vocabulary)),
        first,
        special: special.into_iter().collect(),
    })
}

/// The ids of a tokenizer.json.
struct Vocabulary {
    /// Special tokens.
    ids: BTreeMap<String, i64>,
    highest: Option<i64>,
    /// The highest id of a token that is not an added one.
    learned: Option<i64>,
    /// The median length of all tokens, in characters.
    median: Option<u64>,
}

// === impl Vocabulary ===

impl Vocabulary {
    /// WordPiece, BPE and word-level models have a map, Unigram a list of pieces and scores.
    fn of(json: &Json) -> Vocabulary {
        let mut ids = BTreeMap::new();
        let mut highest = None;
        let mut tokens = BTreeSet::new();
        match json.get("model").and_then(|model| model.get("vocab")) {
            Some(Value::Object(vocab)) => {
                highest = vocab.values().filter_map(Value::as_i64).max();
                tokens.extend(vocab.keys().map(String::as_str));
                let special = |token: &&String| token.starts_with(['[', '<']);
                let special = vocab.iter().filter(|(token, _)| special(token));
                ids.extend(special.filter_map(|(token, id)| Some((token.clone(), id.as_i64()?))));
            }
            Some(Value::Array(pieces)) => {
                highest = (pieces.len() as i64).checked_sub(1);
                tokens.extend(pieces.iter().filter_map(|piece| piece.get(0)?.as_str()));
            }
            _ => {}
        }
        let mut learned = highest;
        for token in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            let text = token.get("content").and_then(Value::as_str);
            if let (Some(text), Some(id)) = (text, token.get("id").and_then(Value::as_i64)) {
                ids.insert(text.to_owned(), id);
                tokens.insert(text);
                highest = highest.max(Some(id));
            }
        }
        let mut lengths: Vec<_> = tokens.iter().map(|token| token.chars().count() as u64).collect();
        lengths.sort_unstable();
        // Of an even number the mean of the two in the middle, rounded down.
        let middle = |at: usize| lengths.get(at).copied();
        let median = middle(lengths.len() / 2).zip(middle(lengths.len().saturating_sub(1) / 2));
        // Some files list added tokens in the vocabulary as well.
        let is_added = |id: &i64| ids.values().any(|added| added == id);
        if learned.as_ref().is_some_and(is_added)
            && let Some(Value::Object(vocab)) = json.get("model").and_then(|model| model.get("vocab"))
        {
            let added: BTreeSet<i64> = ids.values().copied().collect();
            learned = vocab.values().filter_map(Value::as_i64).filter(|id| !added.contains(id)).max();
        }
        Vocabulary { ids, highest, learned, median: median.map(|(upper, lower)| (upper + lower) / 2) }
    }
}

/// Whether a normalizer makes small letters; that of BERT goes by tokenizer_config.json.
fn lowers(normalizer: Option<&Value>, config: &Json) -> bool {
    let Some(normalizer) = normalizer else { return false };
    match normalizer.get("type").and_then(Value::as_str) {
        Some("Lowercase") => true,
        Some("BertNormalizer") => {
            let set = |value: Option<&Value>| value.and_then(Value::as_bool);
            set(config.get("do_lower_case")).or(set(normalizer.get("lowercase"))).unwrap_or(true)
        }
        Some("Sequence") => {
            let parts = normalizer.get("normalizers").and_then(Value::as_array);
            parts.into_iter().flatten().any(|part| lowers(Some(part), config))
        }
        _ => false,
    }
}

/// The longest row: the length in the transformer's file, else the lower of the tokenizer's and the positions' length.
fn length(reader: &Reader<'_>, own: Option<&Json>, config: &Json, model: &Json) -> Derived<u64> {
    let positions = positions(reader, model);
    let told = own.and_then(|own| processing_or_max(reader, own));
    if let Some(told) = told {
        // Files often count the positions before the first token, which no row can use. The library serves them as they are.
        let all = model.number(reader, "max_position_embeddings");
        if let (Some((usable, true)), Some(all)) = (&positions, all)
            && told.value > usable.value
            && told.value <= all.value
        {
            reader.warn(format_args!(
                "{} is {}, but {} allows {}, to which texts are cut",
                told.origin, told.value, usable.origin, usable.value
            ));
            return usable.clone();
        }
        check_length(reader, &told, model);
        return told;
    }
    let longest =
        config.get("model_max_length").and_then(Value::as_f64).filter(|&length| (1.0..UNSET_LENGTH).contains(&length));
    let longest = longest.map(|length| Derived::field(length as u64, &config.file, "model_max_length"));
    let positions = positions.map(|(positions, _)| positions);
    match (longest, positions) {
        (Some(longest), Some(positions)) if positions.value < longest.value => positions,
        (Some(longest), _) => longest,
        (None, Some(positions)) => positions,
        (None, None) => Derived::guessed(USUAL_LENGTH, "no file says a length"),
    }
}

/// A row must not be longer than the model's positions, where these are a table.
pub(crate) fn check_length(reader: &Reader<'_>, length: &Derived<u64>, model: &Json) {
    if let Some((positions, true)) = positions(reader, model)
        && length.value > positions.value
    {
        reader.fault(format_args!(
            "{} is {}, but {} allows {}: write that, because longer texts fail in the model",
            length.origin, length.value, positions.origin, positions.value
        ));
    }
}

fn processing_or_max(reader: &Reader<'_>, own: &Json) -> Option<Derived<u64>> {
    let processor = ["processor_kwargs", "tokenizer_args"].into_iter().find_map(|key| {
        let length = own.get(key)?.get("model_max_length")?.as_u64()?;
        Some(Derived::field(length, &own.file, &format!("{key}.model_max_length")))
    });
    let told = processing::processing_length(own).or(processor).or_else(|| own.number(reader, "max_seq_length"));
    told.filter(|length| length.value > 0)
}

/// The length of a row that the model's positions allow, and whether that is a hard limit.
fn positions(reader: &Reader<'_>, model: &Json) -> Option<(Derived<u64>, bool)> {
    let keys = ["max_trained_positions", "max_position_embeddings", "n_positions", "n_ctx"];
    // XLNet writes -1 for none.
    let given = |key: &&&str| model.get(key).is_some_and(|value| value.as_f64().is_none_or(|number| number > 0.0));
    let key = keys.iter().find(given)?;
    let positions = model.number(reader, key)?;
    let family = model.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let relative = model.get("position_embedding_type").is_some_and(|kind| kind != "absolute");
    if ABSOLUTE_AFTER_PADDING.contains(&family) {
        let pad = model.number(reader, "pad_token_id").map_or(1, |pad| pad.value);
        let usable = positions.value.saturating_sub(pad + 1).max(1);
        let origin = format!("{} less pad_token_id and one", positions.origin);
        return Some((Derived::from(usable, origin), true));
    }
    Some((positions, ABSOLUTE.contains(&family) && !relative))
}

/// The side on which the library fills rows up.
fn padding_side(
    reader: &Reader<'_>,
    own: Option<&Json>,
    config: &Json,
    json: Option<&Json>,
    model: &Json,
) -> Derived<PaddingSide> {
    if let Some(side) = reader.choices().padding_side {
        return Derived::from(side, "--padding-side");
    }
    let processor = own.and_then(|own| {
        let key = ["processor_kwargs", "tokenizer_args"].into_iter().find(|key| own.get(key).is_some())?;
        Some((own.get(key)?.get("padding_side")?.as_str()?.to_owned(), format!("{}: {key}.padding_side", own.file)))
    });
    let told = config.text(reader, "padding_side").map(|side| (side.value, side.origin));
    let padding = json.and_then(|json| {
        let side = json.get("padding")?.get("direction")?.as_str()?.to_lowercase();
        Some((side, format!("{}: padding.direction", json.file)))
    });
    match processor.or(told).or(padding) {
        Some((name, origin)) => {
            let side = PaddingSide::named(&name);
            if side.is_none() {
                reader.fault(format_args!("{origin} is '{name}', expected left or right"));
            }
            Derived::from(side.unwrap_or(PaddingSide::Right), origin)
        }
        None if model.get("model_type").is_some_and(|kind| kind == "xlnet") => {
            Derived::field(PaddingSide::Left, &model.file, "model_type, whose tokenizer fills rows up on the left")
        }
        None => Derived::from(PaddingSide::Right, "no file says a side"),
    }
}

/// model2vec cuts texts at the length in its configuration; sentence-transformers cuts no text.
fn static_length(reader: &Reader<'_>, model: &Json) -> Option<Derived<u64>> {
    if model.get("model_type").is_none_or(|kind| kind != "model2vec") || model.is_null("max_length") {
        return None;
    }
    let told = model.number(reader, "max_length").filter(|length| length.value > 0);
    Some(told.unwrap_or_else(|| Derived::default_of(USUAL_LENGTH, "model2vec", "no field says it")))
}

/// The id of the token that stands for input outside the vocabulary.
fn unknown(json: &Json, vocabulary: &Vocabulary) -> Option<Derived<i64>> {
    let model = json.get("model")?;
    if let Some(id) = model.get("unk_id").and_then(Value::as_i64) {
        return Some(Derived::field(id, &json.file, "model.unk_id"));
    }
    let id = vocabulary.ids.get(model.get("unk_token")?.as_str()?)?;
    Some(Derived::field(*id, &json.file, "model.unk_token"))
}

/// The id that fills rows up. A model that counts positions from the padding id needs the right one.
fn pad(
    config: &Json,
    json: Option<&Json>,
    vocabulary: Option<&Vocabulary>,
    model: &Json,
    is_static: bool,
) -> Derived<i64> {
    let token = config.get("pad_token").and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    if let (Some(token), Some(vocabulary)) = (token, vocabulary)
        && let Some(id) = vocabulary.ids.get(token)
    {
        return Derived::field(*id, &config.file, "pad_token");
    }
    if let Some(json) = json
        && let Some(id) = json.get("padding").and_then(|padding| padding.get("pad_id")?.as_i64())
    {
        return Derived::field(id, &json.file, "padding.pad_id");
    }
    match model.get("pad_token_id").and_then(Value::as_i64).filter(|&id| id >= 0) {
        Some(id) => Derived::field(id, &model.file, "pad_token_id"),
        // Any id does: a table's vectors are added up without those of the padding.
        None if is_static => Derived::from(0, "padding is masked"),
        None => Derived::guessed(0, "no file names a padding token"),
    }
}

/// `prompts` and `default_prompt_name` of config_sentence_transformers.json.
pub(crate) fn prompts(reader: &Reader<'_>, own: Option<&Json>) -> Prompts {
    let Some(own) = own else { return Prompts::default() };
    let texts = own.object(reader, "prompts").filter(|prompts| !prompts.is_empty()).map(|prompts| {
        let text = |(name, text): (String, Value)| match text {
            Value::String(text) => Some((name, text)),
            Value::Null => Some((name, String::new())),
            _ => {
                reader.fault(format_args!("{}: prompts.{name} is no text", own.file));
                None
            }
        };
        Derived::field(prompts.into_iter().filter_map(text).collect::<BTreeMap<_, _>>(), &own.file, "prompts")
    });
    let default = own.text(reader, "default_prompt_name");
    if let Some(default) = &default
        && !texts.as_ref().is_some_and(|texts| texts.value.contains_key(&default.value))
    {
        let known =
            texts.iter().flat_map(|texts| texts.value.keys().map(String::as_str)).collect::<Vec<_>>().join(", ");
        reader.fault(format_args!("{} is '{}', but {}: prompts has: {known}", default.origin, default.value, own.file));
    }
    Prompts { texts, default }
}

// === impl Prompts ===

impl Prompts {
    /// The first of these names that is a prompt: sentence-transformers looks for them in this order.
    pub(crate) fn first(&self, names: &[&'static str]) -> Option<Derived<&'static str>> {
        let texts = self.texts.as_ref()?;
        let name = names.iter().find(|name| texts.value.contains_key(**name))?;
        Some(Derived::from(*name, format!("{}.{name}", texts.origin)))
    }
}
