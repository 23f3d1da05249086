//! Conversations of requests, as clients of chat models send them.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::Deserialize;

use super::{Chat, value_of};

/// A row of a request with `messages`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    messages: Vec<Message>,
    /// Whether the beginning of the assistant's next message follows them.
    add_generation_prompt: Option<bool>,
    /// Whether the last message is left open: the text ends where its content ends.
    #[serde(default)]
    continue_final_message: bool,
    /// Further variables of the template.
    #[serde(default)]
    chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Content,
    /// Further fields for templates, such as `name`.
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

/// A text, or parts that are texts.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
    #[default]
    None,
}

#[derive(Deserialize)]
struct Part {
    text: String,
}

// === impl Content ===

impl Content {
    fn text(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => parts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n"),
            Content::None => String::new(),
        }
    }
}

// === impl Chat ===

impl Chat {
    /// The text that the template makes of a conversation, a JSON object with `messages`.
    pub(crate) fn converse(&self, conversation: &str, instruction: Option<&str>) -> Result<String, String> {
        let read = serde_json::from_str(conversation);
        let Conversation { messages, add_generation_prompt, continue_final_message, chat_template_kwargs } = read
            .map_err(|error| {
                format!("it is not of the form {{\"messages\": [{{\"role\": …, \"content\": …}}]}}: {error}")
            })?;
        let Some(last) = messages.last() else { return Err("'messages' is empty".to_owned()) };
        if continue_final_message && add_generation_prompt == Some(true) {
            return Err("Cannot set both `continue_final_message` and `add_generation_prompt` to True.".to_owned());
        }
        let mut variables = self.variables.clone();
        let flag = add_generation_prompt.map(|flag| ("add_generation_prompt".to_owned(), Value::from(flag)));
        variables.extend(flag);
        variables.extend(instruction.map(|text| ("instruction".to_owned(), Value::from(text))));
        variables.extend(chat_template_kwargs.iter().map(|(name, value)| (name.clone(), value_of(value))));
        let list: Vec<Value> = messages.iter().map(|message| self.spoken(message)).collect();
        variables.insert("messages".to_owned(), Value::from(list));
        let mut text = self.template.render(Value::from(variables))?;
        if continue_final_message {
            let content = last.content.text();
            let content = content.trim();
            let at = text.rfind(content).ok_or("the template leaves out the last message, which is to be continued")?;
            text.truncate(at + content.len());
        }
        Ok(text)
    }

    /// A message for the template.
    fn spoken(&self, Message { role, content, more }: &Message) -> Value {
        let own = [("role", Value::from(role.as_str())), ("content", self.content(&content.text()))];
        let more = more.iter().map(|(name, value)| (name.as_str(), value_of(value)));
        Value::from_pairs(more.chain(own))
    }
}
