//! Reads the files of a tokenizer without `tokenizer.json` and assigns an id to every token.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use super::added::{AddedToken, AddedTokens};
use super::{FixedSpaces, SlowTokenizer, languages};
use crate::TextError;
use crate::config::{ConfigToken, TokenizerConfig};
use crate::family::Family;
use crate::json_file::read_json;
use crate::sentencepiece::SentencePiece;

/// Possible names of a tokenizer's SentencePiece model.
pub(crate) const MODEL_FILES: [&str; 3] = ["sentencepiece.bpe.model", "source.spm", "spiece.model"];

/// The first tokens of the vocabularies of mBART and NLLB. SentencePiece's pieces follow, from the fourth one.
const FAIRSEQ_TOKENS: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];

/// Sentinel tokens of T5, if its configuration does not set a number.
const T5_EXTRA_TOKENS: u32 = 100;

/// Most tokens of a vocabulary, which catches a nonsensical number in a file.
const MAX_EXTRA_TOKENS: u32 = 1 << 20;

/// Tokens and their ids while a vocabulary is built.
#[derive(Default)]
struct Ids {
    ids: HashMap<String, u32>,
    tokens: HashMap<u32, String>,
}

/// A tokenizer's SentencePiece model and vocabulary.
struct Vocabulary {
    ids: Ids,
    /// The tokens for decoding, if they differ from those in `ids`.
    target: Option<HashMap<u32, String>>,
    piece_ids: Vec<u32>,
}

// === impl SlowTokenizer ===

impl SlowTokenizer {
    /// Reads the files in `directory`; `None` if there is no SentencePiece model.
    pub(crate) fn load(directory: &Path, config: &TokenizerConfig) -> Result<Option<SlowTokenizer>, TextError> {
        let Some(name) = MODEL_FILES.into_iter().find(|name| directory.join(name).is_file()) else { return Ok(None) };
        let path = directory.join(name);
        let file = std::fs::read(&path).map_err(|source| TextError::File { path: path.clone(), source })?;
        let malformed = |reason: String| TextError::Malformed { path: path.clone(), reason };
        let mut model = SentencePiece::parse(&file).map_err(malformed)?;
        let family = family(directory, name, config)?;

        let unknown_token = config.unk_token.as_ref().map_or("<unk>", ConfigToken::text);
        let Vocabulary { mut ids, target, piece_ids } = vocabulary(directory, family, &model, unknown_token, config)?;
        let unknown = ids.ids.get(unknown_token).copied();
        let unknown = unknown.ok_or_else(|| malformed(format!("its vocabulary has no token '{unknown_token}'")))?;
        let (added, special) = add_tokens(&mut ids, family, &model, config);
        let added = AddedTokens::new(added).map_err(malformed)?;

        let fixed_spaces = (family == Family::T5 && config.legacy == Some(false))
            .then(|| FixedSpaces { before_text: config.add_prefix_space.unwrap_or(true) });
        if fixed_spaces.is_some() {
            model = model.without_added_space();
        }
        let tokens = match target {
            Some(mut target) => {
                target.extend(special.iter().filter_map(|id| Some((*id, ids.tokens.get(id)?.clone()))));
                target
            }
            None => ids.tokens,
        };
        let ids = ids.ids;
        Ok(Some(SlowTokenizer { family, model, piece_ids, ids, tokens, special, added, unknown, fixed_spaces }))
    }
}

/// The family, from the tokenizer's class or from the names of the files.
fn family(directory: &Path, model: &str, config: &TokenizerConfig) -> Result<Family, TextError> {
    let by_class = config.tokenizer_class.as_deref().and_then(Family::of_class);
    let by_files = || match model {
        "source.spm" => Some(Family::Marian),
        "spiece.model" => Some(Family::T5),
        _ if directory.join("vocab.json").is_file() => Some(Family::M2m100),
        _ => None,
    };
    // A class that is named and not known has special tokens of its own.
    let by_files = || by_files().filter(|_| config.tokenizer_class.is_none());
    by_class.or_else(by_files).ok_or_else(|| {
        let found = config.tokenizer_class.as_deref().unwrap_or("missing");
        TextError::Malformed {
            path: directory.join("tokenizer_config.json"),
            reason: format!(
                "without tokenizer.json, its tokenizer_class is {found}, expected M2M100Tokenizer, NllbTokenizer, \
                 MBartTokenizer, MBart50Tokenizer, MarianTokenizer or T5Tokenizer"
            ),
        }
    })
}

/// The ids of all pieces.
fn vocabulary(
    directory: &Path,
    family: Family,
    model: &SentencePiece,
    unknown_token: &str,
    config: &TokenizerConfig,
) -> Result<Vocabulary, TextError> {
    let mut ids = Ids::default();
    let mut target = None;
    let pieces = model.pieces();
    let piece_ids = match family {
        Family::M2m100 | Family::Marian => {
            for (token, id) in vocab_json(directory, "vocab.json")? {
                ids.insert(token, id);
            }
            if family == Family::Marian && config.separate_vocabs {
                let vocabulary = vocab_json(directory, "target_vocab.json")?;
                target = Some(vocabulary.into_iter().map(|(token, id)| (id, token)).collect());
            }
            let unknown = ids.ids.get(unknown_token).copied().unwrap_or(0);
            pieces.iter().map(|piece| ids.ids.get(piece).copied().unwrap_or(unknown)).collect()
        }
        Family::T5 => {
            for (piece, id) in pieces.iter().zip(0..) {
                ids.insert(piece.clone(), id);
            }
            (0..pieces.len() as u32).collect()
        }
        Family::Nllb | Family::Mbart | Family::Mbart50 => {
            for (token, id) in FAIRSEQ_TOKENS.into_iter().zip(0..) {
                ids.insert(token.to_owned(), id);
            }
            for (piece, id) in pieces.iter().zip(1..).skip(3) {
                ids.insert(piece.clone(), id);
            }
            let shifted = |(id, _): (u32, &String)| if id == model.unknown() { 3 } else { id + 1 };
            (0..).zip(pieces).map(shifted).collect()
        }
    };
    Ok(Vocabulary { ids, target, piece_ids })
}

fn vocab_json(directory: &Path, name: &str) -> Result<HashMap<String, u32>, TextError> {
    let missing = |path: PathBuf| TextError::File { path, source: io::ErrorKind::NotFound.into() };
    read_json(directory, name)?.ok_or_else(|| missing(directory.join(name)))
}

/// Assigns ids to the special tokens and those added after training. Returns the tokens to search for in texts, and the
/// ids that stand for no text.
fn add_tokens(
    ids: &mut Ids,
    family: Family,
    model: &SentencePiece,
    config: &TokenizerConfig,
) -> (Vec<AddedToken>, HashSet<u32>) {
    let mut added: Vec<AddedToken> = Vec::new();
    let mut special = HashSet::new();
    let languages = family_languages(family, config);
    let pieces = model.pieces().len() as u32;

    // Ids that the classes compute.
    if family == Family::M2m100 {
        ids.append(ids.ids.len() as u32, languages.iter().cloned());
    } else if matches!(family, Family::Mbart | Family::Mbart50) {
        ids.append(pieces + 1, languages.iter().cloned().chain(["<mask>".to_owned()]));
    } else if family == Family::T5 {
        let extra = config.extra_ids.unwrap_or(T5_EXTRA_TOKENS).min(MAX_EXTRA_TOKENS);
        ids.append(pieces, (0..extra).rev().map(|i| format!("<extra_id_{i}>")));
        let extra = (0..extra).map(|i| (format!("<extra_id_{i}>"), pieces + extra - 1 - i));
        for (content, id) in extra {
            special.insert(id);
            added.push(AddedToken { content, id, strips_left: true, strips_right: true });
        }
    }
    // Ids in the files.
    for (&id, token) in &config.added_tokens_decoder {
        ids.insert(token.text().to_owned(), id);
        put(&mut added, token, id);
        if token.is_special() {
            special.insert(id);
        }
    }
    // All other tokens come last, in the order of the classes.
    let listed = config.additional_special_tokens.iter().flatten().cloned();
    let usual = languages.iter().filter(|_| match family {
        Family::Mbart | Family::Mbart50 => true,
        Family::Nllb => config.additional_special_tokens.is_none(),
        _ => false,
    });
    let additional: Vec<ConfigToken> = usual.cloned().map(ConfigToken::Text).chain(listed).collect();
    for token in named_tokens(family, config).into_iter().chain(additional) {
        let id = ids.id_or_append(token.text());
        special.insert(id);
        if !added.iter().any(|known| known.id == id) {
            put(&mut added, &token, id);
        }
    }
    special.extend(languages.iter().filter_map(|language| ids.ids.get(language)));
    (added, special)
}

/// Adds `token` to those that texts may contain. It replaces an earlier entry with the same id or text.
fn put(added: &mut Vec<AddedToken>, token: &ConfigToken, id: u32) {
    added.retain(|known| known.id != id && known.content != token.text());
    let (strips_left, strips_right) = token.strips();
    if !token.text().is_empty() {
        added.push(AddedToken { content: token.text().to_owned(), id, strips_left, strips_right });
    }
}

/// The tokens of the family's languages, which its models have even if their files do not list them.
fn family_languages(family: Family, config: &TokenizerConfig) -> Vec<String> {
    let codes = match family {
        Family::M2m100 if config.language_codes.as_deref() == Some("wmt21") => languages::WMT21,
        Family::M2m100 => languages::M2M100,
        Family::Nllb => languages::NLLB,
        Family::Mbart => languages::MBART,
        Family::Mbart50 => languages::MBART50,
        Family::Marian | Family::T5 => "",
    };
    let token = |code: &str| if family == Family::M2m100 { format!("__{code}__") } else { code.to_owned() };
    codes.split_whitespace().map(token).collect()
}

/// The special tokens with a role, in the order in which the classes add them.
fn named_tokens(family: Family, config: &TokenizerConfig) -> Vec<ConfigToken> {
    let masked = matches!(family, Family::Nllb | Family::Mbart | Family::Mbart50);
    let mask = ConfigToken::Added {
        content: "<mask>".to_owned(),
        lstrip: true,
        rstrip: false,
        special: true,
        single_word: false,
        normalized: None,
    };
    let usual = |token: &str, has: bool| has.then(|| ConfigToken::Text(token.to_owned()));
    let bos = matches!(family, Family::M2m100 | Family::Nllb | Family::Mbart);
    let sep = masked || family == Family::M2m100;
    [
        config.bos_token.clone().or_else(|| usual("<s>", bos)),
        config.eos_token.clone().or_else(|| usual("</s>", true)),
        config.unk_token.clone().or_else(|| usual("<unk>", true)),
        config.sep_token.clone().or_else(|| usual("</s>", sep)),
        config.pad_token.clone().or_else(|| usual("<pad>", true)),
        config.cls_token.clone().or_else(|| usual("<s>", masked)),
        config.mask_token.clone().or(masked.then_some(mask)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

// === impl Ids ===

impl Ids {
    fn insert(&mut self, token: String, id: u32) {
        self.tokens.insert(id, token.clone());
        self.ids.insert(token, id);
    }

    /// Assigns ids to `tokens`, starting with `first`.
    fn append(&mut self, first: u32, tokens: impl Iterator<Item = String>) {
        for (token, id) in tokens.zip(first..) {
            self.insert(token, id);
        }
    }

    /// The id of `token`. A token without one gets the next free id.
    fn id_or_append(&mut self, token: &str) -> u32 {
        if let Some(&id) = self.ids.get(token) {
            return id;
        }
        let id = self.tokens.len() as u32;
        self.insert(token.to_owned(), id);
        id
    }
}
