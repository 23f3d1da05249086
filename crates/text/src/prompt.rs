//! The text before each text: a prompt of the options, or one of the request.

use std::borrow::Cow;

use crate::{RequestOptions, TextError, TokenizeOptions};

/// The forms of prompts that hold an instruction: the texts before it and behind it.
const FORMS: [(&str, &str); 4] =
    [("Instruct: ", "\nQuery:"), ("task: ", " | query:"), ("<instruct>", "\n<query>"), ("Instruction: ", "\nQuery:")];

/// The text before each text, or the message before each message: the request's own, or that of the prompt it names, or as the options
/// say, with the request's instruction in it.
pub(crate) fn prompt<'a>(
    options: &'a TokenizeOptions,
    request: &RequestOptions<'a>,
) -> Result<Cow<'a, str>, TextError> {
    let usual = || match &options.default_prompt {
        Some(name) => options.prompts.get(name).map_or("", String::as_str),
        None => options.prefix.as_str(),
    };
    let named = |name: &str| {
        options.prompts.get(name).map(String::as_str).ok_or_else(|| TextError::UnknownPrompt {
            name: name.to_owned(),
            known: options.prompts.keys().cloned().collect(),
        })
    };
    let text = match (request.prefix, request.prompt_name) {
        (Some(_), Some(name)) => return Err(TextError::TwoPrompts { name: name.to_owned() }),
        (Some(_), None) if request.instruction.is_some() => return Err(TextError::PrefixAndInstruction),
        (Some(prefix), None) => prefix,
        (None, Some(name)) => named(name)?,
        (None, None) => usual(),
    };
    let Some(instruction) = request.instruction else { return Ok(Cow::Borrowed(text)) };
    if options.message_format.is_some() {
        return Ok(Cow::Borrowed(instruction));
    }
    // Where the request names none, the instruction is that of queries.
    let query = options.prompts.get("query").filter(|_| request.prompt_name.is_none()).map(String::as_str);
    let place = |text: &'a str| {
        let form = |(before, behind): (&str, &str)| {
            let rest = text.strip_prefix(before)?;
            Some((&text[..before.len()], &rest[rest.find(behind)?..]))
        };
        FORMS.into_iter().find_map(form)
    };
    let found = place(text).or_else(|| place(query?));
    let (before, behind) = found.ok_or_else(|| TextError::NoInstruction { forms: FORMS[0] })?;
    Ok(Cow::Owned(format!("{before}{instruction}{behind}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MessageFormat;

    fn options(prompts: &[(&str, &str)]) -> TokenizeOptions {
        let prompts = prompts.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        TokenizeOptions { prompts, ..TokenizeOptions::default() }
    }

    fn asked<'a>(prompt_name: Option<&'a str>, instruction: &'a str) -> RequestOptions<'a> {
        RequestOptions { prompt_name, instruction: Some(instruction), ..RequestOptions::default() }
    }

    #[test]
    fn an_instruction_takes_its_place_in_the_prompt() {
        let qwen = options(&[("query", "Instruct: Given a web search query\nQuery:"), ("document", "")]);
        assert_eq!(prompt(&qwen, &asked(None, "Find bugs")).unwrap(), "Instruct: Find bugs\nQuery:");
        assert_eq!(prompt(&qwen, &asked(Some("query"), "Find bugs")).unwrap(), "Instruct: Find bugs\nQuery:");
        let gemma = options(&[("query", "task: search result | query: ")]);
        assert_eq!(prompt(&gemma, &asked(None, "code retrieval")).unwrap(), "task: code retrieval | query: ");
        let chat = TokenizeOptions { message_format: Some(MessageFormat::Flat), ..options(&[]) };
        assert_eq!(prompt(&chat, &asked(None, "Find bugs")).unwrap(), "Find bugs");
    }

    #[test]
    fn an_instruction_without_a_place_is_refused() {
        let qwen = options(&[("query", "Instruct: Given a web search query\nQuery:"), ("document", "")]);
        let error = prompt(&qwen, &asked(Some("document"), "x")).unwrap_err().to_string();
        assert!(error.contains("'Instruct: …\\nQuery:'") && error.contains("parameter 'prefix'"), "{error}");
        assert!(prompt(&options(&[("query", "query: ")]), &asked(None, "x")).is_err());
        let both = RequestOptions { prefix: Some("p"), ..asked(None, "x") };
        assert!(prompt(&qwen, &both).unwrap_err().to_string().contains("are both given"));
    }
}
