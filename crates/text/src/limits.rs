//! The limit on the size of encoded texts.

/// The most tokens, padding included, of one call of [`TextTokenizer::encode`](crate::TextTokenizer::encode): an output with as
/// many ids is as large as a message may be. Without this limit, one long text among many short ones could fill the memory
/// with padding.
pub const MAX_PADDED_TOKENS: usize = trireme_inference::MAX_MESSAGE_BYTES / size_of::<i64>();
