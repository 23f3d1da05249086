//! Byte pair encoding as in SentencePiece. Of all neighbours that are a piece together, those with the highest score
//! are joined first; of equal scores, the leftmost.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::vocabulary::{Kind, Vocabulary};

/// A part of the text, joined from characters. It is empty once it was joined to the one before.
struct Symbol {
    range: Range<usize>,
    previous: Option<usize>,
    next: Option<usize>,
    /// A user-defined piece, which is not joined to others.
    frozen: bool,
}

/// Two neighbours that may be joined.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// The bytes of both at the time they were found.
    size: usize,
}

struct Encoder<'a> {
    text: &'a str,
    vocabulary: &'a Vocabulary,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// Unused pieces that were joined, with the length of their first half: they are split again at the end.
    unused: HashMap<&'a str, usize>,
}

/// The pieces of the normalized `text`: for each the end of its range, and its id.
pub(super) fn encode(text: &str, vocabulary: &Vocabulary) -> Vec<(usize, u32)> {
    let mut encoder = Encoder {
        text,
        vocabulary,
        symbols: split(text, vocabulary),
        agenda: BinaryHeap::new(),
        unused: HashMap::new(),
    };
    for right in 1..encoder.symbols.len() {
        encoder.consider(Some(right - 1), Some(right));
    }
    while let Some(pair) = encoder.agenda.pop() {
        encoder.join(&pair);
    }
    let mut pieces = Vec::new();
    let mut symbol = encoder.symbols.first();
    while let Some(current) = symbol {
        encoder.finish(current.range.clone(), &mut pieces);
        symbol = current.next.map(|next| &encoder.symbols[next]);
    }
    pieces
}

/// The characters of `text`; user defined pieces stay whole.
fn split(text: &str, vocabulary: &Vocabulary) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::new();
    let mut start = 0;
    while let Some(character) = text[start..].chars().next() {
        let user_defined = vocabulary.user_defined.prefixes(&text.as_bytes()[start..]).last();
        let end = start + user_defined.map_or(character.len_utf8(), |(_, length)| length);
        let index = symbols.len();
        symbols.push(Symbol {
            range: start..end,
            previous: index.checked_sub(1),
            next: (end < text.len()).then_some(index + 1),
            frozen: user_defined.is_some(),
        });
        start = end;
    }
    symbols
}

// === impl Encoder ===

impl Encoder<'_> {
    /// Adds two neighbours to the agenda if together they are a piece.
    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (first, second) = (&self.symbols[left], &self.symbols[right]);
        if first.frozen || second.frozen {
            return;
        }
        let joined = &self.text[first.range.start..second.range.end];
        let Some(&id) = self.vocabulary.ids.get(joined) else { return };
        let piece = &self.vocabulary.scored[id as usize];
        self.agenda.push(Pair { score: piece.score, left, right, size: joined.len() });
        if piece.kind == Kind::Unused {
            self.unused.insert(joined, first.range.len());
        }
    }

    /// Joins the neighbours, unless either has changed since they were found.
    fn join(&mut self, &Pair { left, right, size, .. }: &Pair) {
        let (first, second) = (&self.symbols[left], &self.symbols[right]);
        if first.range.is_empty() || second.range.is_empty() || first.range.len() + second.range.len() != size {
            return;
        }
        let (end, next) = (second.range.end, second.next);
        self.symbols[left].range.end = end;
        self.symbols[left].next = next;
        if let Some(next) = next {
            self.symbols[next].previous = Some(left);
        }
        self.symbols[right].range = end..end;
        self.consider(self.symbols[left].previous, Some(left));
        self.consider(Some(left), next);
    }

    /// Appends the piece at `range`; unused pieces are split.
    fn finish(&self, range: Range<usize>, pieces: &mut Vec<(usize, u32)>) {
        let id = self.vocabulary.id(&self.text[range.clone()]);
        let is_unused = self.vocabulary.scored[id as usize].kind == Kind::Unused;
        match self.unused.get(&self.text[range.clone()]).filter(|_| is_unused) {
            Some(first) => {
                let middle = range.start + first;
                self.finish(range.start..middle, pieces);
                self.finish(middle..range.end, pieces);
            }
            None => pieces.push((range.end, id)),
        }
    }
}

// === impl Pair ===

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}
