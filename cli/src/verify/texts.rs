//! The default texts for verifying a model: from one letter to a text longer than any model takes.

/// Texts of one word to some sentences, in several scripts, and with characters that tokenizers treat differently: a JSON array.
const TEXTS: &str = include_str!("texts.json");

/// How often the last text is repeated for the longer texts.
const REPEATED: [usize; 3] = [3, 12, 80];

/// The texts to compare.
pub fn built_in() -> Vec<String> {
    let mut texts: Vec<String> = serde_json::from_str(TEXTS).expect("the file is a JSON array of texts");
    let longest = texts.last().cloned().unwrap_or_default();
    texts.extend(REPEATED.map(|times| vec![longest.as_str(); times].join(" ")));
    texts
}

/// A second text for each, for models that take pairs: the preceding text.
pub fn pairs(texts: &[String]) -> Vec<String> {
    let mut pairs = texts.to_vec();
    pairs.rotate_right(1);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_of_all_lengths() {
        let texts = built_in();
        assert!(texts.len() >= 20);
        let words: Vec<usize> = texts.iter().map(|text| text.split_whitespace().count()).collect();
        assert!(words.contains(&1) && words.iter().any(|&n| n > 100) && words.iter().any(|&n| n > 2000));
        assert!(pairs(&texts).iter().zip(&texts).all(|(pair, text)| pair != text));
    }
}
