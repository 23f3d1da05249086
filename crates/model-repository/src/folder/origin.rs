//! Values with the place that they come from.

/// The library that most model folders are of, whose defaults count where its files say nothing.
pub(crate) const SENTENCE_TRANSFORMERS: &str = "sentence-transformers 6.2";

/// The library below it.
pub(crate) const TRANSFORMERS: &str = "transformers 5.23";

/// A value and its origin: the file and field that it was read from, what the graph shows, a flag, a library's default, or `guessed` and
/// why.
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

    /// A value that no file has, and that the library which trained such models would take.
    pub(crate) fn default_of(value: T, library: &str, why: &str) -> Derived<T> {
        Derived { value, origin: format!("the default of {library}: {why}") }
    }

    /// A value that neither a file nor a library has.
    pub(crate) fn guessed(value: T, why: &str) -> Derived<T> {
        Derived { value, origin: format!("guessed: {why}") }
    }

    /// Whether neither a file nor a library has the value.
    pub(crate) fn is_guess(&self) -> bool {
        self.origin.starts_with("guessed")
    }

    /// The same origin for another value.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Derived<U> {
        Derived { value: change(self.value), origin: self.origin }
    }
}
