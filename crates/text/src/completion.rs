//! Completes tokenizer.json by tokenizer_config.json, as transformers does: tokens that the latter lacks, and the space before the
//! first word.

use std::collections::BTreeSet;

use tokenizers::{PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

use crate::config::TokenizerConfig;

/// Classes that make their pre-tokenizer anew, so that tokenizer_config.json decides about the space before the first word, and what
/// they do where it says nothing.
const PREFIX_SPACE: [(&str, bool); 7] = [
    ("RobertaTokenizer", false),
    ("GPT2Tokenizer", false),
    ("BartTokenizer", false),
    ("LongformerTokenizer", false),
    ("LEDTokenizer", false),
    ("MvpTokenizer", false),
    ("BlenderbotTokenizer", true),
];

/// Adds what the tokenizer lacks, before its post-processor is taken; the error says what cannot be added.
pub(crate) fn complete(config: &TokenizerConfig, tokenizer: &mut Tokenizer) -> Result<(), String> {
    let failed = |error: tokenizers::Error| error.to_string();
    let decoder = tokenizer.get_added_tokens_decoder();
    let mut known: BTreeSet<String> = decoder.into_values().map(|token| token.content).collect();
    let named: BTreeSet<String> = config.special_tokens().map(|token| token.text().to_owned()).collect();
    let added = config.added_tokens_decoder.values().cloned().chain(config.special_tokens());
    for token in added.filter(|token| !token.text().is_empty()) {
        if known.insert(token.text().to_owned()) {
            let mut token = token.added();
            if named.contains(&token.content) && !token.special {
                token.special = true;
            }
            tokenizer.add_tokens([token]).map_err(failed)?;
        }
    }
    let class = config.tokenizer_class.as_deref().map(|class| class.strip_suffix("Fast").unwrap_or(class));
    if let Some((_, usual)) = PREFIX_SPACE.iter().find(|(known, _)| Some(*known) == class)
        && let Some(PreTokenizerWrapper::ByteLevel(bytes)) = tokenizer.get_pre_tokenizer()
    {
        let wanted = config.add_prefix_space.unwrap_or(*usual);
        let bytes = bytes.add_prefix_space(wanted);
        tokenizer.with_pre_tokenizer(Some(bytes));
        // The post-processor says which characters the first token stands for.
        if let Some(PostProcessorWrapper::Roberta(roberta)) = tokenizer.get_post_processor().cloned() {
            tokenizer.with_post_processor(Some(roberta.add_prefix_space(wanted)));
        }
    }
    Ok(())
}
