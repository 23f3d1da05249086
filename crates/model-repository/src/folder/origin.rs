//! Values with the place that they come from.

/// A value and its origin: the file and field that it was read from, or `guessed` and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived<T> {
    /// The value.
    pub value: T,
    /// `sentence_bert_config.json: max_seq_length`, or `guessed: no file says it`.
    pub origin: String,
}

// === impl Derived ===

impl<T> Derived<T> {
    /// A value that a field of a file has.
    pub(crate) fn field(value: T, file: &str, field: &str) -> Derived<T> {
        Derived { value, origin: format!("{file}: {field}") }
    }

    /// A value that follows from this.
    pub(crate) fn from(value: T, origin: impl Into<String>) -> Derived<T> {
        Derived { value, origin: origin.into() }
    }

    /// A value that no file has.
    pub(crate) fn guessed(value: T, why: &str) -> Derived<T> {
        Derived { value, origin: format!("guessed: {why}") }
    }

    /// The same origin for another value.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Derived<U> {
        Derived { value: change(self.value), origin: self.origin }
    }
}
