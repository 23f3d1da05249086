//! The options of the treatment of texts, in vLLM's words.

use serde::Deserialize;
use trireme_operations::{Side, TextOptions};
use utoipa::ToSchema;

use super::super::answer;
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, idle, only, ours, read};
use super::super::input::{Input, Message};
use super::super::refusal::{Kind, Refusal};

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
    only("padding", &[r#""do_not_pad""#], &[r#""do_not_pad""#], "padding changes no vector here, and counts no tokens"),
    idle("cache_salt", fields::TEXT, "answers are not made of those of others"),
    idle("priority", fields::NUMBER, "orders the requests of one server"),
    idle("user", fields::TEXT, "names the author of the texts"),
];

/// Fields of bodies with texts or conversations.
pub const INPUT: &[Field] =
    &[read("input", &[r#""a""#, r#"["a"]"#, "[1]", "[[1]]", MESSAGES]), read("add_special_tokens", fields::FLAG)];

/// Fields of bodies with conversations.
pub const TALK: &[Field] = &[
    read("messages", &[MESSAGES, r#"[[{"role": "user", "content": "a"}]]"#]),
    read("add_generation_prompt", fields::FLAG),
    read("continue_final_message", fields::FLAG),
    read("chat_template_kwargs", fields::OBJECT),
    only("chat_template", fields::TEXT, &[], "the model's own template is applied"),
];

const MESSAGES: &str = r#"[{"role": "user", "content": "a"}]"#;

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
    /// Variables of the chat template; for texts `instruction` is taken of them.
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

/// Variables of a chat template.
pub type Variables = serde_json::Map<String, serde_json::Value>;

/// One conversation or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Conversations {
    One(Vec<Message>),
    Many(Vec<Vec<Message>>),
}

/// The fields of a body that conversations have.
#[derive(Deserialize)]
struct Talk {
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Variables>,
}

/// Conversations as the tokenizer reads them. `prompts` says whether an answer is to follow where the request does not.
pub fn conversations(call: &DialectCall, messages: Conversations, prompts: bool) -> Result<Vec<String>, Refusal> {
    let conversations = match messages {
        Conversations::One(messages) => vec![messages],
        Conversations::Many(conversations) => conversations,
    };
    if conversations.is_empty() {
        return Err(Refusal::empty("messages"));
    }
    let Talk { add_generation_prompt, continue_final_message, chat_template_kwargs } = call.read()?;
    let continues = continue_final_message.unwrap_or(false);
    if continues && add_generation_prompt == Some(true) {
        let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
        return Err(Refusal::new(Kind::Field, message));
    }
    let prompts = add_generation_prompt.unwrap_or(prompts && !continues);
    let variables = chat_template_kwargs.unwrap_or_default();
    let row = |messages: Vec<Message>| {
        serde_json::json!({
            "messages": messages, "add_generation_prompt": prompts, "continue_final_message": continues,
            "chat_template_kwargs": variables,
        })
        .to_string()
    };
    Ok(conversations.into_iter().map(row).collect())
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

    /// The texts, token ids or conversations of a body, and the options with which they are taken.
    pub fn rows(
        &self,
        call: &DialectCall,
        input: Option<Input>,
        messages: Option<Conversations>,
    ) -> Result<(Vec<String>, TextOptions), Refusal> {
        let options = self.options(call)?;
        let talks = match (input, messages) {
            (Some(Input::Conversations(conversations)), None) => Conversations::Many(conversations),
            (None, Some(conversations)) => conversations,
            (Some(input), None) => {
                let (texts, _, token_ids) = input.texts_or_ids("input")?;
                return Ok((texts, TextOptions { token_ids, ..options }));
            }
            (None, None) => return Err(Refusal::field("input", "is missing, as is 'messages'")),
            (Some(_), Some(_)) => return Err(Refusal::field("messages", "comes with 'input', expected one of them")),
        };
        let texts = conversations(call, talks, false)?;
        Ok((texts, TextOptions { messages: true, ..options }))
    }

    /// The options as operations take them. As in the original a text that is too long is an error, unless the request says where it is
    /// cut, which is not behind the model's longest row.
    pub fn options(&self, call: &DialectCall) -> Result<TextOptions, Refusal> {
        let longest = call.operations.text_model(self.model.as_deref()).ok().and_then(|model| model.max_length);
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
            // Clients of the original look for these words.
            let message =
                "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size.";
            let field = Some("truncate_prompt_tokens".to_owned());
            return Err(Refusal { field, ..Refusal::new(Kind::Field, message) });
        }
        let variable = |name: &str| self.chat_template_kwargs.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let of_template = || variable("instruction").or_else(|| variable("instruct"));
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
        assert!(refused.message.contains("Please request a smaller truncation size."), "{}", refused.message);
        assert_eq!(read("{}").unwrap().truncate, None);
        let none = read(r#"{"truncate_prompt_tokens": 0}"#).unwrap_err();
        assert!(none.message.contains("is 0, expected -1 or at least 1"), "{}", none.message);
        assert_eq!(read(r#"{"use_activation": false}"#).unwrap().raw_scores, Some(true));
    }
}
