//! The pieces of a model, indexed for the encoders.

use std::collections::HashMap;

use super::proto::{ModelProto, PieceType};
use super::trie::Trie;

/// The use of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Occurs in texts.
    Normal,
    /// Occurs in texts and is always chosen, whatever its score.
    UserDefined,
    /// Never in the result, but a step on the way to longer pieces.
    Unused,
    /// Never in texts: control pieces, single bytes and the unknown piece.
    Reserved,
}

/// A piece without its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// The pieces of a model.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// By id.
    pub(super) scored: Vec<Scored>,
    /// Ids of the pieces that texts may contain.
    pub(super) ids: HashMap<String, u32>,
    /// The same pieces.
    pub(super) pieces: Trie,
    pub(super) user_defined: Trie,
    /// The id of the unknown piece.
    pub(super) unknown: u32,
    /// The lowest and the highest score of a normal piece.
    pub(super) min_score: f32,
    pub(super) max_score: f32,
}

// === impl Vocabulary ===

impl Vocabulary {
    pub(super) fn new(model: &ModelProto) -> Result<Vocabulary, String> {
        let mut unknown = None;
        let mut scored = Vec::with_capacity(model.pieces.len());
        let mut ids = HashMap::new();
        for (id, piece) in (0..).zip(&model.pieces) {
            let kind = match piece.kind() {
                PieceType::Normal => Kind::Normal,
                PieceType::UserDefined => Kind::UserDefined,
                PieceType::Unused => Kind::Unused,
                PieceType::Unknown => {
                    if unknown.replace(id).is_some() {
                        return Err("it has two unknown pieces, expected one".to_owned());
                    }
                    Kind::Reserved
                }
                PieceType::Control | PieceType::Byte => Kind::Reserved,
            };
            scored.push(Scored { score: piece.score(), kind });
            if kind != Kind::Reserved && ids.insert(piece.piece().to_owned(), id).is_some() {
                return Err(format!("it has the piece '{}' twice", piece.piece()));
            }
        }
        let normal = || scored.iter().filter(|piece| piece.kind == Kind::Normal).map(|piece| piece.score);
        let keys = || ids.iter().map(|(piece, &id)| (piece.as_str(), id));
        Ok(Vocabulary {
            pieces: Trie::build(keys())?,
            user_defined: Trie::build(keys().filter(|&(_, id)| scored[id as usize].kind == Kind::UserDefined))?,
            unknown: unknown.ok_or("it has no unknown piece")?,
            min_score: normal().fold(f32::MAX, f32::min),
            // The lower bound is the same as in SentencePiece.
            max_score: normal().fold(f32::MIN_POSITIVE, f32::max),
            scored,
            ids,
        })
    }

    /// The id of a piece that texts may contain, or else of the unknown piece.
    pub(super) fn id(&self, piece: &str) -> u32 {
        self.ids.get(piece).copied().unwrap_or(self.unknown)
    }
}
