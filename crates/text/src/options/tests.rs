//! Options are read or refused by name.

use proptest::prelude::*;

use super::*;

fn parse(parameters: &[(&str, &str)]) -> Result<TokenizeOptions, TextError> {
    TokenizeOptions::from_parameters(&parameters.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect())
}

#[test]
fn no_parameters_are_the_defaults_of_auto_tokenizer() {
    let options = parse(&[]).unwrap();
    assert_eq!(options, TokenizeOptions::default());
    assert_eq!((options.padding, options.truncation), (Padding::Longest, Truncation::LongestFirst));
}

#[test]
fn every_parameter_is_read() {
    let options = parse(&[
        ("max_length", "256"),
        ("max_characters", "1024"),
        ("truncation", "only_second"),
        ("padding", "max_length"),
        ("pad_to_multiple_of", " 8 "),
        ("prefix", "query: "),
        ("prompts", r#"{"query": "Q: ", "passage": ""}"#),
        ("source_language", "en"),
        ("target_language", "sw"),
        ("add_special_tokens", "false"),
        ("padding_side", "left"),
        ("truncation_side", "left"),
        ("pad_token", "<pad>"),
        ("query_length", "32"),
        ("document_length", "180"),
        ("query_expansion", r#"{"strategy": "min", "attend": true, "length": 24, "token": "[MASK]"}"#),
        ("skiplist_words", r#"["!", "?"]"#),
        ("skiplist_tasks", r#"["query", "document"]"#),
        ("prompts_as_tokens", "true"),
        ("message_format", "structured"),
        ("chat_template_kwargs", r#"{"enable_thinking": false}"#),
        ("first_position", "2"),
        ("token_types", "false"),
        ("long_texts", "windows"),
        ("windows_of", "longer"),
        ("spans", r#"{"label_token": "<<ENT>>", "separator": "<<SEP>>", "max_words": 384, "max_width": 12}"#),
        ("EXECUTION_ENV_PATH", "x"),
        ("trireme.queue", "x"),
    ])
    .unwrap();
    let expected = TokenizeOptions {
        max_length: NonZeroUsize::new(256),
        max_characters: NonZeroUsize::new(1024),
        truncation: Truncation::OnlySecond,
        padding: Padding::MaxLength,
        pad_to_multiple_of: NonZeroUsize::new(8),
        prefix: "query: ".to_owned(),
        prompts: [("query", "Q: "), ("passage", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        default_prompt: None,
        source_language: Some("en".to_owned()),
        target_language: Some("sw".to_owned()),
        add_special_tokens: false,
        padding_side: Some(Side::Left),
        truncation_side: Some(Side::Left),
        pad_token: Some("<pad>".to_owned()),
        query_length: NonZeroUsize::new(32),
        document_length: NonZeroUsize::new(180),
        query_expansion: Some(QueryExpansion {
            strategy: crate::ExpansionStrategy::Min,
            attend: true,
            token: Some("[MASK]".to_owned()),
            length: NonZeroUsize::new(24).unwrap(),
        }),
        skiplist_words: vec!["!".to_owned(), "?".to_owned()],
        skiplist_tasks: vec!["query".to_owned(), "document".to_owned()],
        first_position: 2,
        token_types: false,
        long_texts: LongTexts::Windows,
        windows_of: WindowsOf::Longer,
        spans: Some(crate::SpanPrompt {
            form: crate::SpanForm::Gliner,
            label_token: "<<ENT>>".to_owned(),
            separator: "<<SEP>>".to_owned(),
            max_words: NonZeroUsize::new(384).unwrap(),
            max_width: NonZeroUsize::new(12).unwrap(),
        }),
        prompts_as_tokens: true,
        message_format: Some(MessageFormat::Structured),
        chat_template_kwargs: [("enable_thinking".to_owned(), false.into())].into_iter().collect(),
    };
    assert_eq!(options, expected);
}

#[test]
fn all_faults_are_reported_together() {
    let error = parse(&[("max_lenght", "256"), ("padding", "yes"), ("pad_to_multiple_of", "0")]).unwrap_err();
    let TextError::Options(faults) = error else { panic!("{error}") };
    assert_eq!(faults[0], "unknown parameter 'max_lenght', did you mean 'max_length'?");
    assert_eq!(faults[1], "parameter 'pad_to_multiple_of' is '0', expected a whole number from 1");
    assert_eq!(
        faults[2],
        "parameter 'padding' is 'yes', expected 'longest', 'max_length', 'none' or a number of tokens"
    );
    assert_eq!(faults.len(), 3);
}

#[test]
fn default_prompts_are_held_against_the_prompts() {
    let fault = |parameters: &[(&str, &str)]| parse(parameters).unwrap_err().to_string();
    let prompts = ("prompts", r#"{"query": "Q: "}"#);
    assert!(parse(&[prompts, ("default_prompt", "query")]).is_ok());
    assert_eq!(
        fault(&[prompts, ("default_prompt", "document")]),
        "parameter 'default_prompt' is 'document', expected a name in 'prompts', which has query"
    );
    assert!(fault(&[("default_prompt", "query")]).ends_with("which has nothing"));
    assert!(fault(&[prompts, ("default_prompt", "query"), ("prefix", "x")]).contains("are both given"));
    assert!(fault(&[("prompts", "[]")]).starts_with("parameter 'prompts' is '[]', expected a JSON object of texts"));
}

#[test]
fn what_is_somebody_else_s_is_passed_over_unless_it_is_nearly_ours() {
    assert!(parse(&[("EXECUTION_ENV_PATH", "x"), ("trireme.queue", "y")]).is_ok());
    let error = parse(&[("Max_length", "256")]).unwrap_err().to_string();
    assert!(error.contains("unknown parameter 'Max_length', did you mean 'max_length'?"), "{error}");
}

#[test]
fn the_listed_parameters_are_the_known_ones() {
    for key in TokenizeOptions::PARAMETERS {
        assert_ne!(TokenizeOptions::default().set(key, ""), Err(None), "{key}");
    }
}

proptest! {
    #[test]
    fn any_parameters_parse_or_are_refused(parameters: BTreeMap<String, String>) {
        let unknown = parameters.keys().any(|k| {
            !TokenizeOptions::PARAMETERS.contains(&k.as_str()) && !k.contains(|c: char| c == '.' || c.is_uppercase())
        });
        prop_assert!(!unknown || TokenizeOptions::from_parameters(&parameters).is_err());
    }
}
