//! Rows of chat templates equal those of transformers and sentence-transformers, which `golden/chat.py` recorded.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use trireme_inference::ErrorCode;
use trireme_text::{Extras, RequestOptions, Side, TextError, TextTokenizer, TokenizeOptions};

#[derive(Deserialize)]
struct Golden {
    /// The special tokens, as tokenizer_config.json has them.
    tokens: serde_json::Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    parameters: BTreeMap<String, String>,
    prompt: String,
    texts: Vec<String>,
    pairs: Option<Vec<String>>,
    input_ids: Vec<Vec<i64>>,
}

fn golden(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file)
}

/// A folder with the byte-level tokenizer and files of the given contents.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(golden("byte-bpe/tokenizer.json"), directory.path().join("tokenizer.json")).unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn load(folder: &tempfile::TempDir, parameters: &[(&str, &str)]) -> Result<TextTokenizer, TextError> {
    let parameters = parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    TextTokenizer::load(folder.path(), TokenizeOptions::from_parameters(&parameters)?)
}

const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}!";
const CONFIG: &str = r#"{"pad_token": "<|endoftext|>"}"#;

/// A tokenizer with this template, and its text of a row.
fn with_template(template: &str, parameters: &[(&str, &str)]) -> TextTokenizer {
    let folder = folder(&[("chat_template.jinja", template), ("tokenizer_config.json", CONFIG)]);
    load(&folder, &[parameters, &[("message_format", "flat")]].concat()).unwrap()
}

fn shown(tokenizer: &TextTokenizer, texts: (&str, Option<&str>), request: &RequestOptions<'_>) -> String {
    let pairs = texts.1.map(|pair| [pair]);
    let row = tokenizer.encode(&[texts.0], pairs.as_ref().map(<[_; 1]>::as_slice), request).unwrap();
    let ids: Vec<u32> = row.input_ids.iter().map(|&id| id as u32).collect();
    tokenizer.decode(&ids, false).unwrap()
}

#[test]
fn rows_are_those_of_the_libraries() {
    let golden: Golden = serde_json::from_slice(&fs::read(golden("chat.json")).unwrap()).unwrap();
    assert!(golden.cases.len() >= 28);
    let mut cut = 0;
    for case in golden.cases {
        let folder =
            folder(&[("chat_template.jinja", &case.template), ("tokenizer_config.json", &golden.tokens.to_string())]);
        let options = TokenizeOptions::from_parameters(&case.parameters).unwrap();
        let tokenizer = TextTokenizer::load(folder.path(), options).unwrap();
        let request = RequestOptions { prefix: Some(&case.prompt), ..RequestOptions::default() };
        let texts: Vec<&str> = case.texts.iter().map(String::as_str).collect();
        let pairs: Option<Vec<&str>> = case.pairs.as_ref().map(|pairs| pairs.iter().map(String::as_str).collect());
        let together = tokenizer.encode(&texts, pairs.as_deref(), &request).unwrap();
        for (row, expected) in case.input_ids.iter().enumerate() {
            let pair = pairs.as_ref().map(|pairs| [pairs[row]]);
            let alone = tokenizer.encode(&[texts[row]], pair.as_ref().map(<[_; 1]>::as_slice), &request).unwrap();
            assert_eq!(
                &alone.input_ids, expected,
                "{} {:?} '{}' {:?}",
                case.name, case.parameters, case.prompt, texts[row]
            );
            cut += alone.truncated;
            let of = row * together.length..(row + 1) * together.length;
            let pairs = together.input_ids[of.clone()].iter().zip(&together.attention_mask[of]);
            let attended: Vec<i64> = pairs.filter(|(_, mask)| **mask == 1).map(|(id, _)| *id).collect();
            assert_eq!(&attended, expected, "{}: a row of several", case.name);
        }
    }
    assert!(cut > 20, "{cut} rows were cut");
}

#[test]
fn the_template_is_where_transformers_has_it() {
    let parameters = [("message_format", "flat")];
    let first = |files: &[(&str, &str)]| {
        load(&folder(files), &parameters).map(|tokenizer| shown(&tokenizer, ("x", None), &RequestOptions::default()))
    };
    let own = ("chat_template.jinja", "own:{{ messages[0].content }}");
    let text = r#"{"pad_token": "<|endoftext|>", "chat_template": "text:{{ messages[0].content }}"}"#;
    let list = r#"{"pad_token": "<|endoftext|>", "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list:{{ messages[0].content }}"}]}"#;
    let older = r#"{"chat_template": "older:{{ messages[0].content }}"}"#;
    assert_eq!(first(&[own, ("tokenizer_config.json", text)]).unwrap(), "own:x");
    assert_eq!(first(&[("tokenizer_config.json", text)]).unwrap(), "text:x");
    assert_eq!(first(&[("tokenizer_config.json", list)]).unwrap(), "list:x");
    assert_eq!(first(&[("chat_template.json", older), ("tokenizer_config.json", CONFIG)]).unwrap(), "older:x");
    let none = first(&[("tokenizer_config.json", CONFIG)]).unwrap_err().to_string();
    assert!(none.starts_with("'message_format' is given, but ") && none.contains("no chat template"), "{none}");
    let broken =
        first(&[("chat_template.jinja", "{% if %}"), ("tokenizer_config.json", CONFIG)]).unwrap_err().to_string();
    assert!(broken.contains("chat_template.jinja is not valid: ") && broken.contains("in line 1"), "{broken}");
}

#[test]
fn what_is_cut_are_texts_and_a_row_ends_as_the_template_does() {
    let long = "deep water ".repeat(40);
    let with = |length: &str| with_template(CHATML, &[("max_length", length)]);
    let pair = shown(&with("60"), ("x", Some(&long)), &RequestOptions::default());
    assert!(pair.starts_with("<query>x</query><document>deep") && pair.ends_with("</document>!"), "{pair}");
    // The library cuts the frame between texts, too, where the first one leaves no room.
    let pair = shown(&with("60"), (&long, Some(&long)), &RequestOptions::default());
    assert!(
        pair.starts_with("<query>deep") && pair.ends_with("</document>!") && !pair.contains("<document>"),
        "{pair}"
    );
    let left = RequestOptions { truncation_side: Some(Side::Left), ..RequestOptions::default() };
    let pair = shown(&with("60"), (&long, Some("x y z")), &left);
    assert!(pair.starts_with("<query>") && pair.ends_with("water </query><document>x y z</document>!"), "{pair}");
    let alone = shown(&with("60"), (&long, None), &left);
    assert!(alone.starts_with("<user>") && alone.ends_with("deep water </user>!"), "{alone}");
    // Not even a row without a text fits.
    let frame = with("60").encode(&[""], Some(&[""]), &RequestOptions::default()).unwrap().length;
    let error = with("20").encode(&[long.as_str()], Some(&[""]), &left).unwrap_err();
    assert!(frame > 20 && error.to_string().contains("the chat template's own tokens"), "{frame} {error}");
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    let refused = RequestOptions { truncate: Some(false), ..RequestOptions::default() };
    assert!(matches!(with("60").encode(&[long.as_str()], None, &refused), Err(TextError::TooLong { .. })));
}

#[test]
fn a_prompt_is_a_message_of_the_system_and_its_name_is_the_template_s_task() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ task | default('none') }}";
    let prompts = ("prompts", r#"{"query": "Search", "document": ""}"#);
    let tokenizer = with_template(template, &[prompts]);
    let named = |name| RequestOptions { prompt_name: name, ..RequestOptions::default() };
    assert_eq!(shown(&tokenizer, ("x", None), &named(Some("query"))), "<system>Search<user>xquery");
    assert_eq!(shown(&tokenizer, ("x", None), &named(Some("document"))), "<user>xdocument");
    assert_eq!(shown(&tokenizer, ("x", None), &named(None)), "<user>xnone");
    let own = RequestOptions { prefix: Some("Own"), ..RequestOptions::default() };
    assert_eq!(shown(&tokenizer, ("x", Some("y")), &own), "<system>Own<query>x<document>ynone");
    // Some templates read an instruction as a variable.
    let variable = with_template("{{ instruction | default('usual') }}|{{ messages[-1].content }}", &[prompts]);
    let instructed = RequestOptions { instruction: Some("Find bugs"), ..RequestOptions::default() };
    assert_eq!(shown(&variable, ("x", None), &instructed), "Find bugs|x");
    assert_eq!(shown(&variable, ("x", None), &named(Some("query"))), "usual|x");
    assert_eq!(shown(&tokenizer, ("x", None), &instructed), "<system>Find bugs<user>xnone");
    // A row of ids comes as it shall be.
    let ids = RequestOptions { token_ids: true, ..RequestOptions::default() };
    assert_eq!(tokenizer.encode(&["[5, 6]"], None, &ids).unwrap().input_ids, [5, 6]);
}

#[test]
fn messages_that_a_template_leaves_out_are_refused() {
    let users = with_template("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", &[]);
    let error = users.encode(&["q"], Some(&["d"]), &RequestOptions::default()).unwrap_err();
    assert_eq!((error.to_string().contains("a pair, whose texts are messages of the roles 'query' and 'document': it leaves out messages of the role 'query'"), error.code()), (true, ErrorCode::InvalidArg), "{error}");
    assert!(users.check_messages(true).is_err() && users.check_messages(false).is_ok());
    let strict = with_template(
        "{% if messages[0].role == 'user' %}{{ raise_exception('pairs only') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
        &[],
    );
    assert!(strict.check_messages(false).unwrap_err().to_string().contains("pairs only"));
    assert!(strict.check_messages(true).is_ok());
}

#[test]
fn tokens_of_a_list_stand_for_characters_of_their_texts() {
    let tokenizer = with_template("<{{ messages[0].content | trim }}|{{ messages[1].content | trim }}>", &[]);
    let extras = Extras { token_lists: true, ..Extras::default() };
    let encoded = tokenizer.encode_with(&["  the water"], Some(&["é"]), &RequestOptions::default(), extras).unwrap();
    let tokens: serde_json::Value = serde_json::from_str(&encoded.token_lists[0]).unwrap();
    let of =
        |text: &str| tokens.as_array().unwrap().iter().find(|token| token["text"] == text).cloned().unwrap_or_default();
    assert_eq!((of("he")["start"].as_u64(), of("he")["stop"].as_u64()), (Some(3), Some(5)), "{tokens}");
    assert_eq!((of("é")["start"].as_u64(), of("é")["stop"].as_u64()), (Some(0), Some(1)), "{tokens}");
    assert!(of("<")["start"].is_null(), "{tokens}");
}

#[test]
fn options_that_do_not_go_with_a_template_are_named() {
    let folder = folder(&[("chat_template.jinja", CHATML), ("tokenizer_config.json", CONFIG)]);
    let fault = |parameters: &[(&str, &str)]| {
        load(&folder, &[parameters, &[("message_format", "flat")]].concat()).err().unwrap().to_string()
    };
    assert!(fault(&[("max_length", "3")]).contains("expected at least the"));
    assert!(fault(&[("truncation", "only_first")]).contains("'truncation' has to be 'true' or 'false'"));
    assert!(fault(&[("max_characters", "9")]).contains("'message_format' and 'max_characters' are both given"));
    assert!(fault(&[("chat_template_kwargs", "[]")]).contains("expected a JSON object, as {"));
}

#[test]
fn conversations_become_the_text_of_the_template() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let files = folder(&[("chat_template.jinja", template), ("tokenizer_config.json", CONFIG)]);
    let conversations = RequestOptions { messages: true, ..RequestOptions::default() };
    let talk = |more: &str| {
        let parts = r#"[{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]"#;
        format!(
            r#"{{"messages": [{{"role": "user", "content": "ab"}}, {{"role": "assistant", "content": {parts}}}]{more}}}"#
        )
    };
    // A template serves conversations whether or not texts are made messages of.
    for parameters in
        [&[][..], &[("message_format", "flat"), ("chat_template_kwargs", r#"{"add_generation_prompt": false}"#)]]
    {
        let tokenizer = load(&files, parameters).unwrap();
        let shown = |more: &str| shown(&tokenizer, (&talk(more), None), &conversations);
        assert_eq!(shown(""), "<user>ab;<assistant>c\nd;");
        assert_eq!(shown(r#", "add_generation_prompt": true"#), "<user>ab;<assistant>c\nd;<assistant>");
        assert_eq!(shown(r#", "continue_final_message": true"#), "<user>ab;<assistant>c\nd");
    }
    let tokenizer = load(&files, &[]).unwrap();
    let refused = |row: &str| tokenizer.encode(&[row], None, &conversations).unwrap_err();
    let both = refused(&talk(r#", "add_generation_prompt": true, "continue_final_message": true"#)).to_string();
    assert!(both.contains("Cannot set both `continue_final_message` and `add_generation_prompt` to True."), "{both}");
    assert!(refused(r#"{"messages": []}"#).to_string().contains("'messages' is empty"));
    assert!(refused("text").to_string().contains(r#"is not of the form {"messages": [{"role": …"#));
    let without = load(&folder(&[("tokenizer_config.json", CONFIG)]), &[]).unwrap();
    let error = without.encode(&[&talk("")], None, &conversations).unwrap_err();
    assert!(error.to_string().contains("has no chat template: send texts"), "{error}");
    assert_eq!(error.code(), ErrorCode::InvalidArg);
}
