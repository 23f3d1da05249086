//! The most memory that one file takes in this process: bounds that hold before memory is taken, because a process that the system refuses memory
//! ends, with everything that it does for others.

/// Most bytes of the end of a file, where its columns and their places are.
pub const FOOTER: u64 = 16 << 20;

/// Most columns, those within lists and structs counted one by one. A reader and a writer have buffers for each.
pub const COLUMNS: usize = 2048;

/// Deepest nesting of types.
pub const DEPTH: usize = 32;

/// Most bytes of a page of Parquet without compression.
pub const PAGE: u64 = 128 << 20;

/// Most bytes that one reader has decoded at once: all pages of Parquet that the rows of a batch lie in, or a record batch of Arrow.
pub const DECODED: u64 = 512 << 20;

/// Most bytes of a row, and of the rows that are given away together if they are more than one.
pub const ROW: u64 = 32 << 20;
pub const ROWS: u64 = 16 << 20;
