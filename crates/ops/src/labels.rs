//! The names of classes.

use std::io;
use std::path::Path;

/// Class labels by index; may be empty.
///
/// ```
/// use trireme_ops::Labels;
///
/// let labels = Labels::from_list("negative, positive");
/// assert_eq!((labels.len(), labels.get(1), labels.get(2)), (2, "positive", ""));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<String>);

// === impl Labels ===

impl Labels {
    /// One label a line, as in Triton's label files.
    pub fn read(path: &Path) -> io::Result<Labels> {
        Ok(Labels(std::fs::read_to_string(path)?.lines().map(str::to_owned).collect()))
    }

    /// Labels separated by commas, blanks around them dropped; or a JSON array of texts.
    pub fn from_list(list: &str) -> Labels {
        if let Ok(labels) = serde_json::from_str(list) {
            return Labels(labels);
        }
        Labels(list.split(',').map(|label| label.trim().to_owned()).collect())
    }

    /// The label of class `index`; empty for a class without a label.
    pub fn get(&self, index: i64) -> &str {
        usize::try_from(index).ok().and_then(|i| self.0.get(i)).map_or("", String::as_str)
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_index() {
        let labels = Labels::from_list("negative, positive");
        assert_eq!((labels.get(0), labels.get(1), labels.get(2), labels.get(-1)), ("negative", "positive", "", ""));
        assert!(Labels::default().is_empty());
        let labels = Labels::from_list(r#" ["a, b", "[c]"]"#);
        assert_eq!((labels.get(0), labels.get(1), labels.len()), ("a, b", "[c]", 2));
    }

    #[test]
    fn files_hold_one_label_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a b\r\nc, d\n").unwrap();
        assert_eq!(Labels::read(file.path()).unwrap(), Labels(vec!["a b".to_owned(), "c, d".to_owned()]));
    }
}
