//! Texts to tokens and back. The tokenizer of a model does it: the gateway itself knows no vocabulary but OpenAI's.

use serde::Deserialize;
use trireme_inference::{InferError, Ledger, ParameterValue};

use crate::{Found, OperationRequest, Operations, Prompt, Task, TextOptions};

/// The tokens of each text.
#[derive(Clone, Debug)]
pub struct TokenLists {
    /// By text, a JSON array of its tokens: objects with `id`, `text`, `special`, `start` and `stop`.
    pub rows: Vec<String>,
    /// Most tokens of a row, where the tokenizer's configuration says it.
    pub max_length: Option<u64>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

/// A token of a list.
#[derive(Clone, Debug, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The characters it stands for, or its name.
    pub text: String,
    /// The first character of the text that it stands for; `None` for special tokens.
    pub start: Option<u64>,
    /// The character behind the last one.
    pub stop: Option<u64>,
}

impl Operations {
    /// The tokens of each text.
    pub async fn tokenize(&self, texts: &[String], ask: &OperationRequest) -> Result<TokenLists, InferError> {
        let found = self.find_tokenizer(Task::Tokenize, ask)?;
        let (rows, ledger) = self.run_tokenizer(&found, texts, ask).await?;
        let max_length =
            found.pipeline.config.parameters.get("max_length").and_then(|length| length.trim().parse().ok());
        // The rows are written into an answer as they are, so each has to be a JSON array.
        match rows.iter().position(|row| serde_json::from_str::<Vec<Token>>(row).is_err()) {
            None => Ok(TokenLists { rows, max_length, ledger }),
            Some(row) => Err(found.fault(format!("gave tokens of text {row} that are no JSON array of tokens"))),
        }
    }

    /// The tokens of each text as the model that does `task` reads them: with its prompt. An error where a text is longer than a row.
    pub async fn tokenize_for(
        &self,
        task: Task,
        texts: &[String],
        ask: &OperationRequest,
    ) -> Result<TokenLists, InferError> {
        let found = self.find_for(task, ask)?;
        let parameters = ask.options.parameters(&found.pipeline.capabilities)?;
        let prompt = parameters.get("prompt_name").and_then(ParameterValue::as_str);
        let options = TextOptions {
            prompt: prompt.map_or(Prompt::Default, |name| Prompt::Named(name.to_owned())),
            instruction: ask.options.instruction.clone(),
            add_special_tokens: ask.options.add_special_tokens,
            truncate: Some(false),
            ..TextOptions::default()
        };
        let model = Some(found.pipeline.name);
        self.tokenize(texts, &OperationRequest { model, options, ..ask.clone() }).await
    }

    /// The texts of rows of token ids.
    pub async fn decode(&self, rows: &[Vec<u32>], ask: &OperationRequest) -> Result<(Vec<String>, Ledger), InferError> {
        let found = self.find_tokenizer(Task::Decode, ask)?;
        let mut ask = ask.clone();
        ask.options.token_ids = true;
        let rows: Vec<String> = rows.iter().map(|row| ids(row)).collect();
        self.run_tokenizer(&found, &rows, &ask).await
    }

    fn find_tokenizer(&self, task: Task, ask: &OperationRequest) -> Result<Found, InferError> {
        Ok(Found { pipeline: self.0.tokenizing(task, ask.model.as_deref())?, task })
    }

    /// The texts that a tokenizer gives for texts.
    async fn run_tokenizer(
        &self,
        found: &Found,
        texts: &[String],
        ask: &OperationRequest,
    ) -> Result<(Vec<String>, Ledger), InferError> {
        let (tensors, ledger) = self.run_texts(found, texts, None::<&[String]>, ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault(format!("gave no result of '{}'", found.task)))?;
        let rows = tensor.bytes_elements().map_err(|error| found.fault(format!("gave a result that {error}")))?;
        let text = |row: &[u8]| String::from_utf8(row.to_vec()).map_err(|_| found.fault("gave no UTF-8".to_owned()));
        Ok((rows.map(text).collect::<Result<_, _>>()?, ledger))
    }
}

/// Token ids as tokenizers take them in place of a text.
pub fn ids(row: &[u32]) -> String {
    let ids: Vec<String> = row.iter().map(u32::to_string).collect();
    format!("[{}]", ids.join(","))
}

// === impl TokenLists ===

impl TokenLists {
    /// The tokens of a text.
    pub fn tokens(&self, row: usize) -> Vec<Token> {
        // Checked when the tokenizer gave them.
        self.rows.get(row).and_then(|row| serde_json::from_str(row).ok()).unwrap_or_default()
    }
}
