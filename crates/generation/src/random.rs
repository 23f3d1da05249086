//! Random numbers that depend only on a request's seed, row and sequence, not on when or where it runs.
//!
//! This is not a library's generator, because those may change their numbers between versions. A request that is
//! delivered again has to repeat itself, even on a worker of another version.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

// === impl Random ===

impl Random {
    /// The numbers for row `row` of a request with this seed.
    pub fn new(seed: u64, row: usize) -> Random {
        let mut random = Random { state: seed };
        random.state = random.next() ^ (row as u64).wrapping_mul(STEP);
        random
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to, but not including, 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An index drawn by `weights`, which need not add up to 1. If rounding exceeds the total, the last index with a
    /// weight; without any weight, 0.
    pub fn draw(&mut self, weights: &[f32]) -> usize {
        let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let mut left = self.uniform() * total;
        let mut last = 0;
        for (index, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            last = index;
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

/// The seed of a request without one: a hash (FNV-1a) of its id, which a redelivery keeps.
pub fn seed_of(request_id: &str) -> u64 {
    request_id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_these_for_ever() {
        // The first numbers of SplitMix64 from state 0, as published with it.
        let mut random = Random { state: 0 };
        assert_eq!([random.next(), random.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert_eq!(seed_of("a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn draws_follow_the_weights() {
        let mut random = Random::new(7, 3);
        let weights = [0.0, 1.0, 0.0, 3.0, 4.0, 0.0];
        let mut counts = [0i64; 6];
        for _ in 0..8000 {
            counts[random.draw(&weights)] += 1;
        }
        assert_eq!((counts[0], counts[2], counts[5]), (0, 0, 0));
        for (count, expected) in [(counts[1], 1000), (counts[3], 3000), (counts[4], 4000)] {
            assert!((count - expected).abs() < 200, "{counts:?}");
        }
        assert_ne!(Random::new(7, 0).next(), Random::new(7, 1).next());
    }
}
