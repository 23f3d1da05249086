//! The formats.

/// A format of files of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Arrow's IPC file format, which is Feather 2 too.
    Arrow,
}

// === impl Format ===

impl Format {
    /// The format that the end of a file's name says: `.parquet`, `.arrow` or `.feather`.
    pub fn of_name(name: &str) -> Option<Format> {
        match name.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "parquet" => Some(Format::Parquet),
            "arrow" | "feather" => Some(Format::Arrow),
            _ => None,
        }
    }

    /// The end of the names of such files.
    pub fn suffix(self) -> &'static str {
        match self {
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
        }
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Format::Parquet => "Parquet",
            Format::Arrow => "an Arrow file",
        }
    }
}
