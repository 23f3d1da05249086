//! Texts as messages of a chat, which the template of the tokenizer's files makes one text of, as sentence-transformers does it.
//!
//! A text is a message of the role `user`, a pair one of `query` and one of `document`, and a prompt stands before them as a message of
//! the role `system`. The template gets them with the special tokens and the variables of the options; its result is tokenized without
//! further special tokens. A row that is too long loses tokens of its texts, and ends as the template ends: see [`cut`].

mod conversation;
mod cut;
mod template;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use minijinja::Value;

use crate::config::TokenizerConfig;
use crate::core::Core;
use crate::json_file::read_json;
use crate::role::Role;
use crate::{MessageFormat, TextError};

pub(crate) use self::cut::kept;
use self::template::Template;

const FILE: &str = "chat_template.jinja";

/// Characters for private use that stand for the texts where the frame around them is looked for.
const MARKS: [&str; 2] = ["\u{F5A01}", "\u{F5A02}"];

/// Texts of no common tokens, by which sentence-transformers finds the end of a frame.
const FILLERS: [&str; 2] = ["0", "1 2 3 4"];

/// The settings of a request, besides its texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChatOptions<'a> {
    /// The text of the message of the system; empty for none.
    pub(crate) prompt: &'a str,
    /// The same, where it is the request's own instruction: some templates read it as a variable.
    pub(crate) instruction: Option<&'a str>,
    pub(crate) role: Role,
}

/// The place of a text in what the template made of it.
pub(crate) struct Place {
    /// Its number among the texts of the row.
    pub(crate) text: usize,
    /// Its characters in the rendered text.
    pub(crate) characters: Range<usize>,
    /// How many blanks at its beginning the template has left out.
    pub(crate) skipped: usize,
}

/// The template of a tokenizer, and how texts become messages.
#[derive(Debug)]
pub(crate) struct Chat {
    template: Template,
    format: MessageFormat,
    /// The special tokens by their names, and the variables of the options.
    variables: BTreeMap<String, Value>,
    /// Why texts that come alone, and those of pairs, cannot be carried.
    faults: [Option<String>; 2],
}

// === impl Chat ===

impl Chat {
    /// Reads the template beside the tokenizer in `directory`: a file of its own, or in the files that had it before.
    pub(crate) fn read(
        directory: &Path,
        format: MessageFormat,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Chat, TextError> {
        let mut config = TokenizerConfig::read(directory)?;
        config.add_older_special_tokens(directory)?;
        let path = directory.join(FILE);
        let (path, source) = match std::fs::read_to_string(&path) {
            Ok(source) => (path, Some(source)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let older = read_json::<TokenizerConfig>(directory, "chat_template.json")?;
                let path = directory.join("tokenizer_config.json");
                let own = config.chat_template.clone().or(older.and_then(|older| older.chat_template));
                (path, own.as_ref().and_then(default_template).map(str::to_owned))
            }
            Err(source) => return Err(TextError::File { path, source }),
        };
        let Some(source) = source else {
            return Err(TextError::Options(vec![format!(
                "'message_format' is given, but {} has no chat template: neither {FILE}, nor chat_template in tokenizer_config.json, \
                 or no template of the name default in it",
                directory.display()
            )]));
        };
        let template = Template::parse(&source).map_err(|reason| TextError::Malformed { path, reason })?;
        let special = config.named_tokens().map(|(name, token)| (name.to_owned(), Value::from(token)));
        let given =
            [("add_generation_prompt", Value::from(false)), ("tools", Value::from(())), ("documents", Value::from(()))];
        let mut all: BTreeMap<String, Value> = special.collect();
        all.extend(given.map(|(name, value)| (name.to_owned(), value)));
        let own = variables.iter().map(|(name, value)| (name.clone(), value_of(value)));
        all.extend(own);
        let mut chat = Chat { template, format, variables: all, faults: [None, None] };
        chat.faults = [&MARKS[..1], &MARKS[..]].map(|marks| chat.fault(marks));
        Ok(chat)
    }

    /// The text that the template makes of messages: one text, or those of a pair.
    pub(crate) fn render(&self, asked: ChatOptions<'_>, texts: &[&str]) -> Result<String, String> {
        let roles = if texts.len() == 2 { ["query", "document"] } else { ["user", ""] };
        let system = (!asked.prompt.is_empty()).then_some(("system", asked.prompt));
        let messages: Vec<Value> = system
            .into_iter()
            .chain(roles.into_iter().zip(texts.iter().copied()))
            .map(|(role, text)| self.message(role, text))
            .collect();
        let mut variables = self.variables.clone();
        variables.insert("messages".to_owned(), Value::from(messages));
        variables.extend(asked.instruction.map(|text| ("instruction".to_owned(), Value::from(text))));
        let task = match asked.role {
            Role::Query => Some("query"),
            Role::Document => Some("document"),
            Role::Unknown => None,
        };
        if let Some(task) = task {
            variables.entry("task".to_owned()).or_insert_with(|| Value::from(task));
        }
        self.template.render(Value::from(variables))
    }

    fn message(&self, role: &str, text: &str) -> Value {
        Value::from_pairs([("role", Value::from(role)), ("content", self.content(text))])
    }

    /// The content of a message, in the form that the template takes.
    fn content(&self, text: &str) -> Value {
        match self.format {
            MessageFormat::Flat => Value::from(text),
            MessageFormat::Structured => {
                let part = [("type", Value::from("text")), ("text", Value::from(text))];
                Value::from(vec![Value::from_pairs(part)])
            }
        }
    }

    /// Why the template cannot carry these texts: it refuses them, or leaves one out.
    fn fault(&self, marks: &[&str]) -> Option<String> {
        let roles = if marks.len() == 2 { ["query", "document"] } else { ["user", ""] };
        match self.render(ChatOptions { prompt: "", instruction: None, role: Role::Unknown }, marks) {
            Ok(rendered) => {
                let (role, _) = roles.into_iter().zip(marks).find(|(_, mark)| !rendered.contains(*mark))?;
                Some(format!("it leaves out messages of the role '{role}'"))
            }
            Err(reason) => Some(reason),
        }
    }

    /// An error where the template cannot carry texts that come alone, or those of pairs.
    pub(crate) fn check(&self, pairs: bool) -> Result<(), TextError> {
        let fault = self.faults[usize::from(pairs)].clone();
        fault.map_or(Ok(()), |reason| Err(TextError::Messages { pairs, reason }))
    }

    /// Number of tokens that the template makes of no text.
    pub(crate) fn frame_tokens(&self, core: &Core, asked: ChatOptions<'_>) -> usize {
        let texts: &[&str] = if self.faults[0].is_none() { &[""] } else { &["", ""] };
        let rendered = self.render(asked, texts).unwrap_or_default();
        core.ids(&rendered).map_or(0, |ids| ids.len())
    }

    /// Where `texts` are in the rendered text, in order; empty where that is not known, because the template changes them or depends on
    /// them.
    pub(crate) fn places(&self, asked: ChatOptions<'_>, texts: &[&str], rendered: &str) -> Vec<Place> {
        let Ok(frame) = self.render(asked, &MARKS[..texts.len()]) else { return Vec::new() };
        let mut marks: Vec<(usize, usize)> = Vec::new();
        for (text, mark) in MARKS[..texts.len()].iter().enumerate() {
            match (frame.find(mark), frame.rfind(mark)) {
                (Some(at), Some(last)) if at == last => marks.push((at, text)),
                _ => return Vec::new(),
            }
        }
        marks.sort_unstable();
        // Templates put a text in as it is, or without blanks at its ends.
        let forms: [fn(&str) -> &str; 2] = [|text| text, str::trim];
        let found = forms.into_iter().find_map(|form| places_of(&frame, &marks, texts, form, rendered));
        found.unwrap_or_default()
    }

    /// The tokens with which every row of these messages ends, as sentence-transformers finds them.
    pub(crate) fn suffix(&self, core: &Core, asked: ChatOptions<'_>, texts: usize) -> Result<Vec<u32>, String> {
        let ids = |filler: &'static str| {
            let rendered = self.render(asked, &vec![filler; texts])?;
            core.ids(&rendered).map_err(|error| error.to_string())
        };
        let (mut first, second) = (ids(FILLERS[0])?, ids(FILLERS[1])?);
        let same = first.iter().rev().zip(second.iter().rev()).take_while(|(ours, theirs)| ours == theirs).count();
        Ok(if same < first.len().min(second.len()) { first.split_off(first.len() - same) } else { Vec::new() })
    }
}

/// Where the texts are, if each is in the rendered text in this form.
fn places_of(
    frame: &str,
    marks: &[(usize, usize)],
    texts: &[&str],
    form: fn(&str) -> &str,
    rendered: &str,
) -> Option<Vec<Place>> {
    let (mut rest, mut at, mut from, mut places) = (rendered, 0, 0, Vec::new());
    for &(mark, text) in marks {
        let (before, whole) = (&frame[from..mark], texts[text]);
        let shown = form(whole);
        rest = rest.strip_prefix(before)?.strip_prefix(shown)?;
        let begin = at + before.chars().count();
        at = begin + shown.chars().count();
        let skipped = whole.find(shown).map_or(0, |at| whole[..at].chars().count());
        places.push(Place { text, characters: begin..at, skipped });
        from = mark + MARKS[text].len();
    }
    (rest == &frame[from..]).then_some(places)
}

/// The template of a field that is a text, or a list of templates by name.
fn default_template(value: &serde_json::Value) -> Option<&str> {
    let named = |entry: &&serde_json::Value| entry.get("name").and_then(serde_json::Value::as_str) == Some("default");
    match value {
        serde_json::Value::Array(list) => list.iter().find(named)?.get("template")?.as_str(),
        serde_json::Value::Object(by_name) => by_name.get("default")?.as_str(),
        text => text.as_str(),
    }
}

/// A JSON value for a template.
fn value_of(value: &serde_json::Value) -> Value {
    serde_json::from_value(value.clone()).expect("templates take every JSON value")
}
