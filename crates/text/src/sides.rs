//! Queries and documents that a model takes in different forms, as those with a vector for each token do (ColBERT): lengths of their
//! own, queries that are filled up with a token, and tokens whose vectors are not compared.
//!
//! The rules are those of sentence-transformers' `Transformer` (`query_length`, `document_length`, `query_expansion`) and
//! `MultiVectorMask` (`skiplist_words`, `skiplist_tasks`). A text is a query where the request names the prompt `query`, and a
//! document where it names `document`, `passage` or `corpus`. Any other text keeps the tokenizer's own length, is not
//! filled up, and counts as a document for the tokens that are left out.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use tokenizers::AddedToken;

use crate::core::Core;
use crate::expansion::ExpansionStrategy;
use crate::options::TokenizeOptions;
use crate::role::Role;
use crate::row::Row;

/// The mask tokens of tokenizers whose files name none.
const USUAL_MASK_TOKENS: [&str; 2] = ["[MASK]", "<mask>"];

/// The two sides of a tokenizer's texts.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    query_length: Option<usize>,
    document_length: Option<usize>,
    expansion: Option<Expansion>,
    /// The ids whose vectors are not compared, and the sides that this is true of.
    skipped: BTreeSet<u32>,
    skips_in: [bool; 2],
}

#[derive(Debug)]
struct Expansion {
    id: u32,
    length: usize,
    is_fixed: bool,
    attend: bool,
}

// === impl Sides ===

impl Sides {
    /// The sides by the options. `mask` and `end` are the tokens of these names in the tokenizer's files. Tokens of the skip list that
    /// the vocabulary lacks are left out, as the library does it.
    pub(crate) fn new(
        options: &TokenizeOptions,
        core: &Core,
        mask: Option<String>,
        end: Option<String>,
        faults: &mut Vec<String>,
    ) -> Sides {
        let expansion = options.query_expansion.as_ref().and_then(|expansion| {
            let usual = || USUAL_MASK_TOKENS.into_iter().find(|token| core.token_to_id(token).is_some());
            let token = expansion.token.clone().or(mask).or_else(|| usual().map(str::to_owned)).or(end);
            let id = token.as_ref().and_then(|token| core.token_to_id(token));
            if id.is_none() {
                faults.push(match token {
                    Some(token) => format!("'query_expansion' fills up with '{token}', which is not in the vocabulary"),
                    None => "'query_expansion' names no 'token', and the tokenizer has no mask token".to_owned(),
                });
            }
            let (length, attend) = (expansion.length.get(), expansion.attend);
            Some(Expansion { id: id?, length, is_fixed: expansion.strategy == ExpansionStrategy::Fixed, attend })
        });
        if let (Some(length), Some(expansion)) = (options.query_length, &expansion)
            && length.get() < expansion.length
        {
            let (length, least) = (length.get(), expansion.length);
            faults.push(format!("'query_length' is {length}, expected at least the {least} of 'query_expansion'"));
        }
        let skips = |task: &str| options.skiplist_tasks.iter().any(|named| named == task);
        Sides {
            query_length: options.query_length.map(NonZeroUsize::get),
            document_length: options.document_length.map(NonZeroUsize::get),
            expansion,
            skipped: options.skiplist_words.iter().filter_map(|word| core.token_to_id(word)).collect(),
            skips_in: [skips("query"), skips("document")],
        }
    }

    /// Most tokens of a row, where `own` is the tokenizer's own limit.
    pub(crate) fn max_length(&self, role: Role, own: Option<usize>) -> Option<usize> {
        match (role, &self.expansion) {
            (Role::Query, Some(expansion)) if expansion.is_fixed => Some(expansion.length),
            (Role::Query, _) => self.query_length.or(own),
            (Role::Document, _) => self.document_length.or(own),
            (Role::Unknown, _) => own,
        }
    }

    /// Fills a row up, where it is a query and queries are filled up.
    pub(crate) fn expand(&self, role: Role, row: &mut Row) {
        let Some(expansion) = self.expansion.as_ref().filter(|_| role == Role::Query) else { return };
        row.expansion = expansion.length.saturating_sub(row.ids.len());
        row.attends = expansion.attend;
        let length = row.ids.len() + row.expansion;
        row.ids.resize(length, expansion.id);
        row.type_ids.resize(length, 0);
        if !row.special.is_empty() {
            row.special.resize(length, 1);
        }
        if !row.offsets.is_empty() {
            row.offsets.resize(length, (0, 0));
            row.sequences.resize(length, None);
        }
    }

    /// Whether the vector of a token is compared.
    pub(crate) fn counts(&self, role: Role, id: u32) -> bool {
        !(self.skips_in[usize::from(role != Role::Query)] && self.skipped.contains(&id))
    }
}

/// Makes prompts that the vocabulary has as one token, or whose first word it has, one token wherever a text begins with them, as PyLate
/// puts them before texts.
pub(crate) fn join_prompts<'a>(core: &mut Core, prompts: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let Core::Json(tokenizer) = core else {
        return Err("'prompts_as_tokens' needs a tokenizer.json".to_owned());
    };
    for prompt in prompts {
        let first = prompt.split_whitespace().next();
        let Some(token) = [Some(prompt.as_str()), first]
            .into_iter()
            .flatten()
            .find(|token| !token.trim().is_empty() && tokenizer.token_to_id(token).is_some())
        else {
            continue;
        };
        let encoded = tokenizer.encode_fast(token, false).map_err(|error| error.to_string())?;
        if encoded.get_ids() != tokenizer.token_to_id(token).as_slice() {
            let token = AddedToken::from(token, true).normalized(false);
            tokenizer.add_special_tokens([token]).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
