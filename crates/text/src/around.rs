//! The settings for all rows of a request: the options of the tokenizer and of the request together.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use crate::chat::ChatOptions;
use crate::family::Template;
use crate::prompt::prompt;
use crate::role::Role;
use crate::{RequestOptions, Side, TextError, TokenizeOptions, Truncation};

/// Settings for all rows of a request.
#[derive(Clone)]
pub(crate) struct Around<'a> {
    /// The text before each text.
    pub(crate) prefix: Cow<'a, str>,
    /// The request's instruction, which is in it.
    pub(crate) instruction: Option<&'a str>,
    /// The special tokens of each row; `None`: the post-processor of `tokenizer.json` knows them.
    pub(crate) template: Option<Template>,
    pub(crate) forced_bos: Option<u32>,
    /// Most tokens of a row; `None` is no limit.
    pub(crate) max_length: Option<usize>,
    pub(crate) truncation: Truncation,
    pub(crate) truncation_side: Side,
    /// Most tokens of the first text and of the second one; `None` is no limit of their own.
    pub(crate) most: [Option<NonZeroUsize>; 2],
    /// Whether a row that is too long is an error.
    pub(crate) refuses_long: bool,
    /// Whether to say which characters tokens stand for.
    pub(crate) offsets: bool,
    pub(crate) add_special_tokens: bool,
    /// Whether rows are token ids, not texts.
    pub(crate) token_ids: bool,
    /// Whether rows are conversations.
    pub(crate) messages: bool,
    /// The side of all texts.
    pub(crate) role: Role,
}

// === impl Around ===

impl<'a> Around<'a> {
    /// Combines the options of the tokenizer and of the request.
    pub(crate) fn new(
        options: &'a TokenizeOptions,
        request: &RequestOptions<'a>,
        max_length: Option<usize>,
        truncation_side: Side,
    ) -> Result<Around<'a>, TextError> {
        let longest = request.max_tokens.map(NonZeroUsize::get);
        Ok(Around {
            prefix: if is_whole(request) { Cow::Borrowed("") } else { prompt(options, request)? },
            instruction: request.instruction,
            template: None,
            forced_bos: None,
            max_length: longest.into_iter().chain(max_length).min(),
            truncation: match (options.truncation, request) {
                (Truncation::Off, RequestOptions { truncate: Some(true), .. }) => Truncation::LongestFirst,
                (Truncation::Off, RequestOptions { max_tokens: Some(_), .. }) => Truncation::LongestFirst,
                (truncation, _) => truncation,
            },
            truncation_side: request.truncation_side.unwrap_or(truncation_side),
            most: [request.max_text_tokens, request.max_pair_tokens],
            refuses_long: request.truncate == Some(false),
            offsets: false,
            // Ids come as they shall be, and templates write the special tokens.
            add_special_tokens: !request.token_ids
                && request.add_special_tokens.unwrap_or(options.add_special_tokens && !request.messages),
            token_ids: request.token_ids,
            messages: request.messages,
            role: role(request),
        })
    }
}

impl Around<'_> {
    /// Most tokens of a text that a row needs, of which at most `most` stay, and the side on which the others are cut off.
    pub(crate) fn limit(&self, most: Option<NonZeroUsize>) -> Option<(usize, Side)> {
        let is_limited = self.truncation != Truncation::Off || self.refuses_long;
        match most {
            Some(most) => Some((most.get(), Side::Right)),
            // Offsets are counted from the beginning of the text.
            None if self.offsets && self.truncation_side == Side::Left => None,
            None => Some((self.max_length.filter(|_| is_limited)?, self.truncation_side)),
        }
    }

    /// The settings that a chat template reads.
    pub(crate) fn asked(&self) -> ChatOptions<'_> {
        ChatOptions { prompt: &self.prefix, instruction: self.instruction, role: self.role }
    }
}

/// Whether rows come with all that shall be around their texts: no prompt is put before them.
fn is_whole(request: &RequestOptions<'_>) -> bool {
    request.token_ids || request.messages
}

/// The side of a request's texts; rows that come whole have none.
pub(crate) fn role(request: &RequestOptions<'_>) -> Role {
    Role::of(request.prompt_name.filter(|_| !is_whole(request)))
}
