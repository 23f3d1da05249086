//! Vectors of texts for the process that the gateway runs in: the operation of `/v1/embeddings` without a listener.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use trireme_inference::{IF_SPACE, InferError, KEEP, ParameterValue, Parameters, TextFacts};
use trireme_operations::{OperationRequest, Operations, TextOptions, Window};
use trireme_server::RequestContext;
use trireme_server::budget::Budget;

use crate::handlers::Handlers;

/// Embeds texts. Clones are the same.
#[derive(Clone)]
pub struct Embedder {
    operations: Operations,
    budget: Budget,
}

/// How texts become windows, each with a vector of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunking {
    /// Most tokens of a window, special ones included; `None`: the model's longest row.
    pub max_tokens: Option<u64>,
    /// Tokens that two neighbours share, at most; `None`: a quarter of a window.
    pub overlap: Option<u64>,
}

/// Texts that were embedded.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// The vector of each text or window.
    pub vectors: Vec<Vec<f32>>,
    /// By vector, the window that it stands for; `None` where each vector is of a text.
    pub windows: Option<Vec<Window>>,
    /// The counts of the texts' tokens, where the model's tokenizer makes them.
    pub texts: Option<TextFacts>,
    /// The space of the vectors, as `trireme-space` tells it.
    pub space: Option<String>,
}

// === impl Embedder ===

impl Embedder {
    pub(crate) fn new(handlers: Arc<Handlers>) -> Embedder {
        Embedder { budget: handlers.budget.clone(), operations: Operations::new(handlers) }
    }

    /// The vector of each text, or with `chunking` those of its windows, in the order of the texts; all vectors have one length. `model` is the name of a model that embeds; `None`
    /// is the only one that does. The request waits up to `patience` for room in a full queue. `if_space` are the spaces of which the
    /// vectors have to have one, as the header `If-Space` has them. Errors are those of `/v1/embeddings`.
    pub fn embed<'a>(
        &'a self,
        model: Option<&'a str>,
        texts: &'a [String],
        chunking: Option<Chunking>,
        patience: Duration,
        if_space: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Embedded, InferError>> {
        Box::pin(async move {
            let mut ask = self.ask(model, patience);
            if let Some(Chunking { max_tokens, overlap }) = chunking {
                let fold = Some(KEEP.to_owned());
                ask.options = TextOptions { windows: Some(true), fold, max_tokens, overlap, ..ask.options };
            }
            let condition = if_space.map(|spaces| (IF_SPACE.to_owned(), ParameterValue::from(spaces)));
            ask.parameters.extend(condition);
            let vectors = match chunking {
                Some(_) => self.operations.embed_windows(texts, &ask).await?,
                None => self.operations.embed(texts, &ask).await?,
            };
            let rows = vectors.numbers().chunks_exact(vectors.width.max(1)).map(<[f32]>::to_vec).collect();
            let (texts, space) = (vectors.ledger.texts(), vectors.ledger.space());
            Ok(Embedded { vectors: rows, windows: vectors.windows, texts, space })
        })
    }

    /// Most tokens of a text, where the tokenizer's configuration says it: longer texts are cut.
    pub fn max_length<'a>(&'a self, model: Option<&'a str>) -> BoxFuture<'a, Option<u64>> {
        Box::pin(async move {
            let lists = self.operations.tokenize(&["text".to_owned()], &self.ask(model, Duration::ZERO)).await;
            lists.ok()?.max_length
        })
    }

    fn ask(&self, model: Option<&str>, patience: Duration) -> OperationRequest {
        let context = RequestContext::of_process(self.budget.permit());
        context.waits(patience);
        OperationRequest {
            model: model.map(str::to_owned),
            options: TextOptions::default(),
            context,
            parameters: Parameters::new(),
            request_id: String::new(),
        }
    }
}
