//! Computes the memory of a decoded message before it is decoded: a number of one byte becomes eight, and an empty input of two bytes a
//! struct. The messages of infer calls are followed piece by piece, by the lengths in them; others have no such fields.

use bytes::Buf;

/// Bytes of a decoded number of typed contents: in a list that grows, and as the tensor's bytes.
const NUMBER: u64 = 24;
/// Bytes of a decoded input, output or parameter beside its own.
const STRUCT: u64 = 256;
/// Bytes of a decoded text or contents beside its own.
const BYTES: u64 = 96;
/// Bytes for each byte of parameters and outputs, which may be made of empty ones.
const WITHIN: u64 = 64;

/// The bytes before each message: whether it is coded, and its length.
const PREFIX: usize = 5;

/// Follows the messages of a call.
#[derive(Debug, Default)]
pub struct Cost {
    prefix: [u8; PREFIX],
    begun: usize,
    /// The messages around the present place, outermost first, with their bytes that are left.
    around: Vec<(Part, u64)>,
    at: At,
    number: u64,
    shift: u32,
    bytes: u64,
}

/// The messages that are looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Request,
    Input,
    Contents,
}

/// The next piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Tag,
    Number,
    Length(u64),
    Skipped(u64),
    Packed(u64),
}

// === impl Cost ===

impl Cost {
    /// Goes on past `piece`. Returns the bytes of the message that it ends in, as far as they are known; most of the messages in it.
    pub fn pass(&mut self, mut piece: &[u8]) -> u64 {
        let mut most = self.bytes;
        while piece.has_remaining() {
            if self.around.is_empty() {
                let passed = (PREFIX - self.begun).min(piece.len());
                piece.copy_to_slice(&mut self.prefix[self.begun..self.begun + passed]);
                self.begun += passed;
                if let (PREFIX, [_, length @ ..]) = (self.begun, self.prefix) {
                    (self.begun, self.bytes, self.at) = (0, 0, At::Tag);
                    let length = u64::from(u32::from_be_bytes(length));
                    self.around.extend((length > 0).then_some((Part::Request, length)));
                }
                continue;
            }
            let passed = self.step(piece);
            most = most.max(self.bytes);
            piece.advance(passed);
            self.around.iter_mut().for_each(|(_, left)| *left -= passed as u64);
            while self.around.last().is_some_and(|(_, left)| *left == 0) {
                self.around.pop();
                (self.at, self.number, self.shift) = (At::Tag, 0, 0);
            }
        }
        most
    }

    /// Takes some of `piece`, all of which may belong to the message around. Returns how many bytes.
    fn step(&mut self, piece: &[u8]) -> usize {
        let Some(&(part, left)) = self.around.last() else { return piece.len() };
        let within = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.at {
            At::Skipped(rest) | At::Packed(rest) => {
                let passed = within.min(usize::try_from(rest).unwrap_or(usize::MAX));
                let rest = rest - passed as u64;
                if matches!(self.at, At::Packed(_)) {
                    let ends = piece[..passed].iter().filter(|byte| **byte < 0x80).count();
                    self.bytes = self.bytes.saturating_add(NUMBER * ends as u64);
                }
                self.at = match self.at {
                    _ if rest == 0 => At::Tag,
                    At::Packed(_) => At::Packed(rest),
                    _ => At::Skipped(rest),
                };
                passed
            }
            At::Tag | At::Number | At::Length(_) => {
                let byte = piece[0];
                if self.shift < 64 {
                    self.number |= u64::from(byte & 0x7f) << self.shift;
                }
                self.shift += 7;
                if byte < 0x80 {
                    let number = std::mem::take(&mut self.number);
                    self.shift = 0;
                    self.at = self.next(part, number, left - 1);
                }
                1
            }
        }
    }

    /// The next piece behind a whole number, with `left` bytes of the message around.
    fn next(&mut self, part: Part, number: u64, left: u64) -> At {
        // The decoder refuses what contradicts itself.
        let broken = At::Skipped(left);
        match self.at {
            At::Tag => match number & 7 {
                0 => At::Number,
                1 => At::Skipped(8),
                2 => At::Length(number >> 3),
                5 => At::Skipped(4),
                _ => broken,
            },
            At::Number => {
                self.bytes = self.bytes.saturating_add(if part == Part::Contents { NUMBER } else { 0 });
                At::Tag
            }
            At::Length(_) if number > left => broken,
            At::Length(field) => {
                let (bytes, at) = match (part, field) {
                    (Part::Request, 5) => (STRUCT, self.into(Part::Input, number)),
                    (Part::Input, 5) => (STRUCT, self.into(Part::Contents, number)),
                    (Part::Request, 7) => (BYTES, At::Skipped(number)),
                    (Part::Request, 4 | 6) | (Part::Input, 4) => {
                        (STRUCT + number.saturating_mul(WITHIN), At::Skipped(number))
                    }
                    (Part::Input, 3) | (Part::Contents, 1..=5) => (0, At::Packed(number)),
                    (Part::Contents, 6 | 7) => (number.saturating_mul(3), At::Skipped(number)),
                    _ => (BYTES + number.saturating_mul(2), At::Skipped(number)),
                };
                self.bytes = self.bytes.saturating_add(bytes);
                match at {
                    At::Skipped(0) | At::Packed(0) => At::Tag,
                    at => at,
                }
            }
            At::Skipped(_) | At::Packed(_) => broken,
        }
    }

    /// Goes into a message of `length` bytes. The byte that ended its length is still counted for those around.
    fn into(&mut self, part: Part, length: u64) -> At {
        if length > 0 {
            self.around.push((part, length + 1));
        }
        At::Tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 127 {
            bytes.push(number as u8 | 128);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    /// A field with a length.
    fn field(number: u64, content: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    /// A request with one input, whose contents are these.
    fn typed(contents: &[u8]) -> Vec<u8> {
        let input = [field(1, b"x"), field(2, b"INT64"), field(3, &varint(10)), field(5, contents)].concat();
        framed(&[field(1, b"m"), field(5, &input)].concat())
    }

    fn numbers(count: usize, number: u64) -> Vec<u8> {
        typed(&field(3, &varint(number).repeat(count)))
    }

    /// The cost, which does not depend on where the pieces end.
    fn cost(bytes: &[u8]) -> u64 {
        let of = |size| {
            let mut cost = Cost::default();
            bytes.chunks(size).map(|piece| cost.pass(piece)).max().unwrap_or_default()
        };
        assert_eq!(of(1), of(7));
        assert_eq!(of(7), of(bytes.len().max(1)));
        of(1)
    }

    #[test]
    fn small_numbers_and_empty_structs_cost_what_they_become() {
        let small = cost(&numbers(10_000, 0));
        assert!((240_000..245_000).contains(&small), "{small}");
        assert_eq!(cost(&numbers(10_000, u64::MAX)), small, "as many numbers in ten times the bytes");
        let unpacked = typed(&[varint(3 << 3), varint(7)].concat().repeat(10_000));
        assert!((240_000..245_000).contains(&cost(&unpacked)));
        assert!(cost(&typed(&field(6, &[0; 40_000]))) < 130_000);
        assert!(cost(&framed(&field(5, b"").repeat(1000))) >= 256_000, "empty inputs");
        assert!(cost(&typed(&field(8, b"").repeat(1000))) >= 96_000, "empty texts");
        assert!(cost(&framed(&field(7, &[0; 1 << 20]))) < 1000, "raw bytes are taken as they are");
    }

    #[test]
    fn each_message_of_a_stream_is_counted_by_itself() {
        let (small, large) = (numbers(10, 0), numbers(1000, 0));
        assert_eq!(cost(&[small.clone(), large.clone(), small.clone()].concat()), cost(&large));
        assert_eq!(cost(&[framed(b""), small.clone()].concat()), cost(&small));
    }

    #[test]
    fn rubbish_is_passed_over() {
        let mut seed = 7u64;
        for _ in 0..2000 {
            let mut bytes = numbers(20, 300);
            for _ in 0..3 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = seed as u8;
            }
            cost(&bytes);
        }
    }
}
