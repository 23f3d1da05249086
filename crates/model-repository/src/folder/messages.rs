//! Whether sentence-transformers makes messages of a folder's texts, of which the chat template of its tokenizer makes one text. The
//! crate `trireme-text` applies the template.

use serde_json::{Map, Value};
use trireme_model_files::regular;

use super::described::FolderFiles;
use super::files::{Json, Reader};
use super::modules;
use super::origin::Derived;
use super::task::Task;

/// The flag's value that has texts served without the template.
const PLAIN: &str = "chat-template";

/// Models whose template takes flat contents, whatever it looks like.
const FLAT_MODELS: [&str; 4] = ["apertus", "deepseek_v3", "gpt_oss", "seed_oss"];

/// Passages of templates that take contents of several parts.
const PARTS: [&str; 6] = ["content[0]", ".type", "'type'", "\"type\"", "item.type", "message.content["];

/// Arguments that the library does not hand on to the template.
const NO_VARIABLES: [&str; 7] =
    ["padding", "truncation", "max_length", "pad_to_multiple_of", "return_tensors", "return_dict", "restore_suffix"];

/// How texts become messages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Messages {
    /// `flat` or `structured`: the form of a message's content.
    pub(crate) format: Derived<&'static str>,
    /// Further variables of the template.
    pub(crate) variables: Option<Derived<Map<String, Value>>>,
}

/// How texts become messages, where the library makes messages of them.
pub(super) fn read(reader: &Reader<'_>, folder: &str, files: &FolderFiles, task: Task) -> Option<Messages> {
    let own = modules::transformer_config(reader, folder);
    let message = own.as_ref().and_then(|own| own.get("modality_config")?.get("message"));
    match (&files.modules, message) {
        (_, Some(_)) => {}
        // Without modules.json the library takes any template that is there; a classifier's pipeline takes none.
        (None, None) if task != Task::Classify && task != Task::TokenClassify => {}
        _ => return None,
    }
    let config = reader.json_or_empty(&format!("{folder}tokenizer_config.json"));
    let file = ["chat_template.jinja", "chat_template.json"]
        .map(|name| format!("{folder}{name}"))
        .into_iter()
        .find(|file| reader.has(file));
    let (source, place) = match &file {
        Some(file) if file.ends_with(".jinja") => {
            match regular::open(&reader.path(file)).and_then(std::io::read_to_string) {
                Ok(source) => (Some(Value::from(source)), file.clone()),
                Err(error) => {
                    reader.unreadable(file, format_args!("cannot be read: {error}"));
                    return None;
                }
            }
        }
        Some(file) => (reader.json(file)?.get("chat_template").cloned(), format!("{file}: chat_template")),
        None => (config.get("chat_template").cloned(), format!("{}: chat_template", config.file)),
    };
    let Some(source) = source else {
        if let (Some(own), Some(_)) = (&own, message) {
            reader.fault(format_args!(
                "{}: modality_config.message is given, but the folder has no chat template, neither {folder}chat_template.jinja nor {}: \
                 chat_template; fetch that file of the model, or remove modality_config.message where texts go to the model as they are",
                own.file, config.file
            ));
        }
        return None;
    };
    if !source.is_string() && default_of(&source).is_none() {
        reader.fault(format_args!("{place} lists templates, but none of the name default, which the library takes"));
    }
    if reader.choices().accept.iter().any(|accepted| accepted == PLAIN) {
        reader.warn(format_args!(
            "{place} is not applied: texts go to the model as they are sent, because of --accept {PLAIN}"
        ));
        return None;
    }
    let variables = own.as_ref().and_then(variables);
    let mut format = format(reader, own.as_ref(), message, files, (&source, &place));
    if message.is_none() && task != Task::Rerank {
        // Models were often trained without the template that their tokenizer was copied with.
        let why = format!("no file says whether texts are messages of {place}, as sentence-transformers takes them");
        format = Derived::guessed(format.value, &why);
    }
    Some(Messages { format, variables })
}

/// The template of the name default among several.
fn default_of(source: &Value) -> Option<&Value> {
    match source {
        Value::Object(by_name) => by_name.get("default"),
        Value::Array(list) => list.iter().find(|entry| entry.get("name").is_some_and(|name| name == "default")),
        _ => None,
    }
}

/// The form of contents, as the library tells it where no file says it.
fn format(
    reader: &Reader<'_>,
    own: Option<&Json>,
    message: Option<&Value>,
    files: &FolderFiles,
    (source, place): (&Value, &str),
) -> Derived<&'static str> {
    let told = message.and_then(|message| message.get("format")?.as_str());
    if let (Some(told), Some(own)) = (told.filter(|told| *told != "auto"), own) {
        let field = |format| Derived::field(format, &own.file, "modality_config.message.format");
        match told {
            "flat" => return field("flat"),
            "structured" => return field("structured"),
            _ => reader.fault(format_args!(
                "{}: modality_config.message.format is '{told}', expected flat, structured or auto",
                own.file
            )),
        }
    }
    let model = files.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let is_flat = match source.as_str() {
        _ if FLAT_MODELS.contains(&model) => true,
        Some(source) if !source.is_empty() => !PARTS.iter().any(|part| source.contains(part)),
        _ => false,
    };
    let (format, form) = if is_flat { ("flat", "a text") } else { ("structured", "a list") };
    Derived::from(format, format!("{place}, whose contents look like {form}"))
}

/// `processing_kwargs.chat_template`, without the keys that the template does not get.
fn variables(own: &Json) -> Option<Derived<Map<String, Value>>> {
    let all = own.get("processing_kwargs")?.get("chat_template")?.as_object()?;
    let given = all.iter().filter(|(name, value)| !NO_VARIABLES.contains(&name.as_str()) && !value.is_null());
    let given: Map<String, Value> = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    (!given.is_empty()).then(|| Derived::field(given, &own.file, "processing_kwargs.chat_template"))
}
