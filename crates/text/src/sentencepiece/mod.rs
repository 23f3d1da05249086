//! SentencePiece models: texts to pieces, the same pieces as from the library of that name.
//!
//! This is written here and not built from parts of `tokenizers`, whose conversions of such models differ in rare
//! cases: they look up replacements by grapheme, compare scores in other orders and break ties by rank. A model needs
//! exactly the pieces it was trained on.
//!
//! Not here: the token id of a piece (`slow`), joining pieces to texts, training, sampling.

mod bpe;
mod normalizer;
mod proto;
mod trie;
mod unigram;
mod vocabulary;

use prost::Message;

use self::normalizer::Normalizer;
pub(crate) use self::normalizer::SPACE;
use self::proto::{ModelProto, ModelType};
use self::vocabulary::Vocabulary;

/// A model that splits texts into pieces.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    normalizer: Normalizer,
    vocabulary: Vocabulary,
    encode: fn(&str, &Vocabulary) -> Vec<(usize, u32)>,
    /// The ids of single bytes, if unknown characters are written as bytes.
    bytes: Option<Box<[u32; 256]>>,
    /// The text of every piece, by id.
    texts: Vec<String>,
}

// === impl SentencePiece ===

impl SentencePiece {
    /// Reads a model file. The error describes the fault in the file.
    pub(crate) fn parse(file: &[u8]) -> Result<SentencePiece, String> {
        let model = ModelProto::decode(file).map_err(|error| error.to_string())?;
        let trainer = model.trainer_spec.clone().unwrap_or_default();
        let encode = match trainer.model_type() {
            ModelType::Unigram => unigram::encode,
            ModelType::Bpe => bpe::encode,
            other => return Err(format!("it is of type {other:?}, expected Unigram or Bpe")),
        };
        if model.denormalizer_spec.as_ref().is_some_and(|spec| !spec.precompiled_charsmap().is_empty()) {
            return Err("it has a table of its own for decoding, which is not supported".to_owned());
        }
        let normalizer = model.normalizer_spec.clone().unwrap_or_default();
        let normalizer = Normalizer::new(&normalizer, trainer.treat_whitespace_as_suffix())?;
        let vocabulary = Vocabulary::new(&model)?;
        let texts: Vec<String> = model.pieces.into_iter().map(|p| p.piece.unwrap_or_default()).collect();
        let bytes = trainer.byte_fallback().then(|| byte_pieces(&texts)).transpose()?;
        Ok(SentencePiece { normalizer, vocabulary, encode, bytes, texts })
    }

    /// Turns off the space that is added before (or after) a text.
    pub(crate) fn without_added_space(mut self) -> SentencePiece {
        self.normalizer.add_space = false;
        self
    }

    /// The pieces of `text`, in order: their texts and ids. A run of characters without a piece is one unknown piece
    /// with its own text.
    pub(crate) fn encode(&self, text: &str, mut piece: impl FnMut(&str, u32)) {
        let normalized = self.normalizer.normalize(text, &self.vocabulary.user_defined);
        let mut start = 0;
        let mut pieces = (self.encode)(&normalized, &self.vocabulary).into_iter().peekable();
        while let Some((mut end, id)) = pieces.next() {
            if id != self.vocabulary.unknown {
                piece(&normalized[start..end], id);
            } else if let Some(ids) = &self.bytes {
                for byte in normalized[start..end].bytes() {
                    let id = ids[usize::from(byte)];
                    piece(&self.texts[id as usize], id);
                }
            } else {
                while let Some((unknown_end, _)) = pieces.next_if(|&(_, next)| next == id) {
                    end = unknown_end;
                }
                piece(&normalized[start..end], id);
            }
            start = end;
        }
    }

    /// The text of each piece, by id.
    pub(crate) fn pieces(&self) -> &[String] {
        &self.texts
    }

    /// The id of the unknown piece.
    pub(crate) fn unknown(&self) -> u32 {
        self.vocabulary.unknown
    }
}

/// The byte of a piece such as `<0x0A>`.
pub(crate) fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The ids of the pieces of single bytes.
fn byte_pieces(texts: &[String]) -> Result<Box<[u32; 256]>, String> {
    let mut ids = Box::new([u32::MAX; 256]);
    for (id, text) in (0..).zip(texts) {
        if let Some(byte) = byte_of(text) {
            ids[usize::from(byte)] = id;
        }
    }
    match ids.iter().position(|&id| id == u32::MAX) {
        Some(byte) => Err(format!("it writes unknown characters as bytes, but has no piece for byte {byte:#04x}")),
        None => Ok(ids),
    }
}
