//! The options of the treatment of texts, in vLLM's words.

use serde::Deserialize;
use utoipa::ToSchema;

use super::super::answer;
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, idle, only, ours, read};
use super::super::refusal::Refusal;
use crate::handlers::operations::{Side, TextOptions};

/// Fields that all bodies may have.
pub const FIELDS: &[Field] = &[
    read("model", fields::TEXT),
    read("request_id", fields::TEXT),
    read("truncate_prompt_tokens", fields::NUMBER),
    read("truncation_side", &[r#""left""#]),
    ours("instruction", fields::TEXT),
    read("chat_template_kwargs", fields::OBJECT),
    only("chat_template", fields::TEXT, &[], "the model's own template is applied"),
    only("mm_processor_kwargs", fields::OBJECT, &["{}"], "models here take texts"),
    idle("priority", fields::NUMBER, "orders the requests of one server"),
    idle("user", fields::TEXT, "names the author of the texts"),
];

/// Fields of bodies with texts or conversations.
pub const INPUT: &[Field] = &[
    read("input", fields::INPUT),
    read("add_special_tokens", fields::FLAG),
    only(
        "messages",
        fields::OBJECTS,
        &[],
        "send the text as 'input', which the model's chat template makes a message of",
    ),
    only("add_generation_prompt", fields::FLAG, &["false"], "the model's configuration says it"),
    only("continue_final_message", fields::FLAG, &["false"], "there is no last message to go on with"),
];

/// Fields of bodies that ask for scores.
pub const SCORES: &[Field] =
    &[read("use_activation", fields::FLAG), read("activation", fields::FLAG), read("softmax", fields::FLAG)];

/// The options of the treatment of texts that all bodies may have.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = VllmTreatment)]
pub struct Treatment {
    pub model: Option<String>,
    /// The task for the model in words.
    pub instruction: Option<String>,
    /// Variables of the chat template, of which `instruction` is taken.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Variables>,
    pub truncate_prompt_tokens: Option<i64>,
    pub truncation_side: Option<TruncationSide>,
    pub add_special_tokens: Option<bool>,
    #[serde(alias = "activation", alias = "softmax")]
    pub use_activation: Option<bool>,
    /// The client's id of the request.
    pub request_id: Option<String>,
}

/// Those variables of a chat template that are taken.
#[derive(Clone, Default, Deserialize)]
pub struct Variables {
    #[serde(alias = "instruct")]
    instruction: Option<String>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = VllmTruncationSide)]
pub enum TruncationSide {
    Left,
    Right,
}

// === impl Treatment ===

impl Treatment {
    /// The id of an answer of this kind.
    pub fn id(&self, kind: &str) -> String {
        format!("{kind}-{}", self.request_id.clone().unwrap_or_else(answer::id))
    }

    /// The options as operations take them. As in the original a text that is too long is an error, unless the request says where it is
    /// cut, which is not behind the model's longest row.
    pub fn options(&self, call: &DialectCall) -> Result<TextOptions, Refusal> {
        let longest = call.handlers.text_model(self.model.as_deref()).ok().and_then(|model| model.max_length);
        self.options_within(longest)
    }

    fn options_within(&self, longest: Option<u64>) -> Result<TextOptions, Refusal> {
        let max_tokens = match self.truncate_prompt_tokens {
            // As many as the model takes.
            None | Some(-1) => None,
            Some(tokens) => Some(u64::try_from(tokens).ok().filter(|&tokens| tokens > 0).ok_or_else(|| {
                Refusal::field("truncate_prompt_tokens", format!("is {tokens}, expected -1 or at least 1"))
            })?),
        };
        if let (Some(tokens), Some(longest)) = (max_tokens, longest)
            && tokens > longest
        {
            let expected = format!(
                "is {tokens}, the model's longest row has {longest} tokens. Please, select a smaller truncation size."
            );
            return Err(Refusal::field("truncate_prompt_tokens", expected));
        }
        let of_template = || self.chat_template_kwargs.as_ref()?.instruction.clone();
        Ok(TextOptions {
            instruction: self.instruction.clone().or_else(of_template),
            truncate: self.truncate_prompt_tokens.map(|_| true),
            wants_whole: true,
            max_tokens,
            truncation_side: self.truncation_side.map(|side| match side {
                TruncationSide::Left => Side::Left,
                TruncationSide::Right => Side::Right,
            }),
            raw_scores: self.use_activation.map(|activation| !activation),
            add_special_tokens: self.add_special_tokens,
            ..TextOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_comes_as_a_field_or_as_a_variable_of_the_template() {
        let read =
            |body: &str| serde_json::from_str::<Treatment>(body).unwrap().options_within(None).unwrap().instruction;
        assert_eq!(read(r#"{"instruction": "Find bugs"}"#).as_deref(), Some("Find bugs"));
        assert_eq!(
            read(r#"{"chat_template_kwargs": {"instruction": "Find bugs", "x": 1}}"#).as_deref(),
            Some("Find bugs")
        );
        assert_eq!(read(r#"{"chat_template_kwargs": {}}"#), None);
    }

    #[test]
    fn a_text_is_cut_where_the_request_says_and_not_behind_the_longest_row() {
        let read = |body: &str| serde_json::from_str::<Treatment>(body).unwrap().options_within(Some(512));
        let cut = read(r#"{"truncate_prompt_tokens": 512}"#).unwrap();
        assert_eq!((cut.truncate, cut.max_tokens), (Some(true), Some(512)));
        assert_eq!(read(r#"{"truncate_prompt_tokens": -1}"#).unwrap().max_tokens, None);
        let refused = read(r#"{"truncate_prompt_tokens": 513}"#).unwrap_err();
        assert!(refused.message.contains("Please, select a smaller truncation size."), "{}", refused.message);
        assert_eq!(read("{}").unwrap().truncate, None);
        let none = read(r#"{"truncate_prompt_tokens": 0}"#).unwrap_err();
        assert!(none.message.contains("is 0, expected -1 or at least 1"), "{}", none.message);
        assert_eq!(read(r#"{"use_activation": false}"#).unwrap().raw_scores, Some(true));
    }
}
