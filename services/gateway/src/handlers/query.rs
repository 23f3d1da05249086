//! Reranking over the v2 protocol: one query for all documents of a request.

use bytes::Bytes;
use trireme_inference::{InferError, InferRequest};
use trireme_operations::Task;
use trireme_server::budget::BytesPermit;

use super::Handlers;
use crate::registry::ServedModel;

impl Handlers {
    /// Repeats a query of one row for each row of documents, where the model's configuration says `rerank` in its parameter
    /// `task`. The repeated bytes count as the request's own.
    pub(super) fn repeat_query(&self, request: &mut InferRequest, permit: &BytesPermit) -> Result<(), InferError> {
        // If there is no such model, the caller's next step answers with the error.
        let Ok((_, served)) = self.find_model(&request.model, request.version) else { return Ok(()) };
        match repetitions(request, &served) {
            Some((query, rows)) => repeat(request, query, rows, permit),
            None => Ok(()),
        }
    }
}

/// The place of a query of one row among the inputs, and the rows of the documents.
fn repetitions(request: &InferRequest, served: &ServedModel) -> Option<(usize, i64)> {
    let capabilities = served.capabilities.as_ref().ok()?;
    if !capabilities.tasks.contains_key(&Task::Rerank) || !served.config.parameters.contains_key("task") {
        return None;
    }
    let [query, documents, ..] = capabilities.inputs.as_slice() else { return None };
    let place = |name: &str| request.inputs.iter().position(|input| input.name == name);
    let rows = |place: usize| request.inputs[place].shape.first().copied();
    let (query, documents) = (place(&query.name)?, place(&documents.name)?);
    let rows_of_documents = rows(documents).filter(|&rows| rows > 1)?;
    (rows(query) == Some(1)).then_some((query, rows_of_documents))
}

fn repeat(request: &mut InferRequest, query: usize, rows: i64, permit: &BytesPermit) -> Result<(), InferError> {
    let size = (request.inputs[query].data.len() as u64).saturating_mul(rows as u64);
    // More documents are claimed than there are bytes for: the documents' own check says so.
    let bytes = request.inputs.iter().map(|input| input.data.len() as u64).max().unwrap_or_default();
    if rows as u64 > bytes {
        return Ok(());
    }
    permit.take(size).map_err(InferError::from)?;
    let input = &mut request.inputs[query];
    let shape: Vec<i64> = std::iter::once(rows).chain(input.shape.iter().skip(1).copied()).collect();
    input.shape = shape.as_slice().into();
    input.data = Bytes::from(input.data.repeat(rows as usize));
    Ok(())
}
