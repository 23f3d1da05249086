//! Changes inputs: a few small changes at a time, always the same ones for a seed.

/// Longest input.
const MAX_LENGTH: usize = 64 << 10;

/// Bytes that are edge cases in many formats.
const EDGES: &[u8] = &[0, 1, 0x7F, 0x80, 0xFE, 0xFF, b'"', b'{', b'[', b'\\', b'-', b'0', b'9', b'e'];

/// Makes new inputs from existing ones.
pub struct Mutator {
    state: u64,
}

// === impl Mutator ===

impl Mutator {
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    /// One of `inputs`, changed. `words` are pieces of the format.
    pub fn change(&mut self, inputs: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(6) {
            self.change_once(&mut input, inputs, words);
        }
        input.truncate(MAX_LENGTH);
        input
    }

    fn change_once(&mut self, input: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[&str]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = EDGES[self.below(EDGES.len())],
            2 if at < end => drop(input.drain(at..end)),
            3 => {
                let byte = EDGES[self.below(EDGES.len())];
                let count = 1 + self.below(8);
                input.splice(at..at, std::iter::repeat_n(byte, count));
            }
            4 if at < end => {
                let piece = input[at..end].to_vec();
                let copies = 1 + self.below(64);
                input.splice(at..at, piece.repeat(copies));
            }
            5 => {
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 if !words.is_empty() => {
                let word = words[self.below(words.len())].as_bytes();
                input.splice(at..at, word.iter().copied());
            }
            _ if at < input.len() => input[at] = self.next() as u8,
            _ => input.push(self.next() as u8),
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A random number by xorshift.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}
