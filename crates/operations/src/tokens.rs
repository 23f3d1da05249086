//! Texts to their named entities.

use trireme_inference::{InferError, Ledger};

use crate::{OperationRequest, Operations, Task};

/// The entities of each text.
#[derive(Clone, Debug)]
pub struct Entities {
    /// By text, a JSON array of its entities.
    pub rows: Vec<String>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

impl Operations {
    /// The named entities of each text.
    pub async fn token_classify(&self, texts: &[String], ask: &OperationRequest) -> Result<Entities, InferError> {
        let found = self.find_for(Task::TokenClassify, ask)?;
        let (tensors, ledger) = self.run_texts(&found, texts, None::<&[String]>, ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no entities".to_owned()))?;
        let rows = tensor.bytes_elements().map_err(|error| found.fault(format!("gave a result that {error}")))?;
        let array = |row: &[u8]| {
            // The row is written into an answer as it is, so it has to be a JSON array.
            let is_array = matches!(serde_json::from_slice(row), Ok(serde_json::Value::Array(_)));
            let text = String::from_utf8(row.to_vec()).ok().filter(|_| is_array);
            text.ok_or_else(|| found.fault("gave entities that are no JSON array".to_owned()))
        };
        Ok(Entities { rows: rows.map(array).collect::<Result<_, _>>()?, ledger })
    }
}
