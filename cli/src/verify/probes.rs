//! Texts that two models are compared with, by kinds: a model may be like another one for short texts, and cut long ones elsewhere.

use super::texts;

/// Characters of a text that is long.
const LONG: usize = 1000;

/// More texts than those of `verify`: code, and texts without a word.
const MORE: [&str; 8] = [
    "",
    "   ",
    "def area(r):\n    return 3.14159 * r ** 2  # circle\n\nassert area(1) > 3",
    "SELECT name, count(*) FROM users WHERE age >= 18 AND city = 'Oslo' GROUP BY name;",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }",
    "{\"id\": 7, \"tags\": [\"a\", \"b\"], \"nested\": {\"deep\": null}}",
    "서울은 대한민국의 수도입니다.",
    "नई दिल्ली भारत की राजधानी है।",
];

/// A kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Up to [`LONG`] characters, and none of the others.
    Short,
    /// More characters.
    Long,
    /// A third of its letters or more are no Latin ones.
    OtherScripts,
    /// A twelfth of its characters or more are signs of programs.
    Code,
    /// Nothing but white space.
    Empty,
}

// === impl Kind ===

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Short, Kind::Long, Kind::OtherScripts, Kind::Code, Kind::Empty];

    pub fn of(text: &str) -> Kind {
        let (mut all, mut letters, mut others, mut signs) = (0, 0, 0, 0);
        for character in text.chars().filter(|character| !character.is_whitespace()) {
            all += 1;
            letters += usize::from(character.is_alphabetic());
            // The Latin letters of Unicode's first blocks, and those with marks.
            let is_latin = character <= '\u{24f}' || ('\u{1e00}'..='\u{1eff}').contains(&character);
            others += usize::from(character.is_alphabetic() && !is_latin);
            signs += usize::from("{}[]();<>=_\\/|&$#*+\"".contains(character));
        }
        match text.chars().count() {
            _ if all == 0 => Kind::Empty,
            length if length > LONG => Kind::Long,
            _ if others > 0 && 3 * others >= letters => Kind::OtherScripts,
            _ if 12 * signs >= all => Kind::Code,
            _ => Kind::Short,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Short => "short",
            Kind::Long => "long",
            Kind::OtherScripts => "other scripts",
            Kind::Code => "code",
            Kind::Empty => "empty",
        }
    }
}

/// The texts of this command, of all kinds.
pub fn built_in() -> Vec<String> {
    texts::built_in().into_iter().chain(MORE.map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_kinds_and_all_kinds_have_texts() {
        assert_eq!(Kind::of(" \n"), Kind::Empty);
        assert_eq!(Kind::of("What is the capital of Kenya?"), Kind::Short);
        assert_eq!(Kind::of("naïve café façade, Zürich, São Paulo, Łódź"), Kind::Short);
        assert_eq!(Kind::of("Москва — столица России."), Kind::OtherScripts);
        assert_eq!(Kind::of("for (i = 0; i < n; i++) { a[i] += 1; }"), Kind::Code);
        assert_eq!(Kind::of(&"word ".repeat(300)), Kind::Long);
        for kind in Kind::ALL {
            assert!(built_in().iter().filter(|text| Kind::of(text) == kind).count() >= 2, "{}", kind.name());
        }
    }
}
