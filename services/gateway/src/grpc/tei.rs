//! `tei.v1`, the gRPC interface of Text Embeddings Inference: its messages to the operations that HTTP shares.
//!
//! Messages name no model, but the call's metadata `model` may. Without it the call goes to the only model that does the operation. Requests of a
//! stream run side by side and are answered in their order; the first error ends the stream.

use std::time::Instant;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, StreamExt, TryStreamExt};
use regex::Regex;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};
use trireme_inference::{ErrorCode, InferError, Ledger};
use trireme_operations::{Classified, OperationRequest, Operations, Prompt, Scores, Side, Task, TextOptions};
use trireme_protocol::grpc::status;
use trireme_protocol::grpc::tei::embed_server::Embed;
use trireme_protocol::grpc::tei::info_server::Info;
use trireme_protocol::grpc::tei::predict_server::Predict;
use trireme_protocol::grpc::tei::rerank_server::Rerank;
use trireme_protocol::grpc::tei::tokenize_server::Tokenize;
use trireme_protocol::grpc::tei::*;

use super::call::RpcCall;
use crate::handlers::SharedHandlers;

/// Most requests of one stream that run at a time.
const MAX_IN_FLIGHT: usize = 128;

/// Texts of a request that clients may send at once: any number is taken, and clients that batch by it read a number.
const MOST_TEXTS: u32 = 1024;

/// The length of a text that clients read where the tokenizer's configuration has no `max_length`.
const UNKNOWN_LENGTH: u64 = 512;

/// The metadata that names the model.
const MODEL: &str = "model";

/// Answers calls. Clones are the same.
#[derive(Clone)]
pub struct TeiService {
    pub handlers: SharedHandlers,
    /// Which metadata models get as parameters.
    pub forward: Option<Regex>,
    /// Raised when streams shall end.
    pub stop: CancellationToken,
}

/// A call without its messages. Clones are of the same call.
#[derive(Clone)]
struct Call {
    operations: Operations,
    rpc: RpcCall,
    model: Option<String>,
}

type Reply<T> = Result<Response<T>, Status>;
type Replies<T> = BoxStream<'static, Result<T, Status>>;

/// Answers one message.
type Run<M, R> = fn(Call, M) -> BoxFuture<'static, Result<R, Status>>;

// === impl TeiService ===

impl TeiService {
    fn call<T>(&self, request: &Request<T>) -> Call {
        let model = request.metadata().get(MODEL).and_then(|name| name.to_str().ok()).map(str::to_owned);
        let rpc = RpcCall::of(request, self.forward.as_ref());
        Call { operations: Operations::new(self.handlers.clone()), rpc, model }
    }

    async fn one<M, R>(&self, request: Request<M>, run: Run<M, R>) -> Reply<R> {
        let call = self.call(&request);
        run(call, request.into_inner()).await.map(Response::new)
    }

    async fn each<M: Send + 'static, R: Send + 'static>(
        &self,
        request: Request<Streaming<M>>,
        run: Run<M, R>,
    ) -> Reply<Replies<R>> {
        let call = self.call(&request);
        let messages = self.messages(request.into_inner());
        let answer = move |message: Result<M, Status>| {
            let call = Call { rpc: call.rpc.of_message(), ..call.clone() };
            async move { run(call, message?).await }
        };
        Ok(Response::new(messages.map(answer).buffered(MAX_IN_FLIGHT).boxed()))
    }

    /// The messages of a stream until the client sends no more, or the server stops.
    fn messages<M: Send + 'static>(
        &self,
        messages: Streaming<M>,
    ) -> impl Stream<Item = Result<M, Status>> + Send + 'static {
        messages.take_until(self.stop.clone().cancelled_owned())
    }
}

// === impl Call ===

impl Call {
    fn ask(&self, options: TextOptions) -> OperationRequest {
        self.rpc.operation(self.model.clone(), options)
    }
}

/// The status of an error, as the original has it.
fn refused(error: InferError) -> Status {
    match error.code {
        ErrorCode::Unsupported | ErrorCode::Internal | ErrorCode::Unknown => {
            Status::new(Code::FailedPrecondition, error.message)
        }
        _ => status(&error),
    }
}

fn not_empty(text: &str) -> Result<(), Status> {
    if text.is_empty() { Err(Status::invalid_argument("'inputs' is empty, expected a text")) } else { Ok(()) }
}

/// The options of the fields that most messages have.
fn options(truncate: bool, direction: i32, prompt_name: Option<String>) -> TextOptions {
    let is_left = direction == i32::from(TruncationDirection::Left);
    TextOptions {
        prompt: prompt_name.map_or(Prompt::Default, Prompt::Named),
        // A model without a tokenizer cuts nothing, whatever the message says.
        truncate: truncate.then_some(true),
        wants_whole: !truncate,
        truncation_side: is_left.then_some(Side::Left),
        ..TextOptions::default()
    }
}

/// The times and tokens of a request whose texts have so many characters.
fn metadata(ledger: &Ledger, started: Instant, characters: usize) -> Option<Metadata> {
    let hops = || ledger.0.iter();
    let compute = |hop: &trireme_inference::Hop| hop.compute_input_us + hop.compute_infer_us + hop.compute_output_us;
    let nanoseconds = |microseconds: u64| microseconds.saturating_mul(1000);
    Some(Metadata {
        compute_chars: u32::try_from(characters).unwrap_or(u32::MAX),
        compute_tokens: ledger.texts().map_or(0, |texts| u32::try_from(texts.tokens).unwrap_or(u32::MAX)),
        total_time_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        tokenization_time_ns: nanoseconds(hops().filter(|hop| hop.texts.is_some()).map(compute).sum()),
        queue_time_ns: nanoseconds(hops().map(|hop| hop.transit_us + hop.queue_us).sum()),
        inference_time_ns: nanoseconds(hops().filter(|hop| hop.texts.is_none()).map(compute).sum()),
    })
}

async fn embed(call: Call, message: EmbedRequest) -> Result<EmbedResponse, Status> {
    let started = Instant::now();
    let EmbedRequest { inputs, truncate, normalize, truncation_direction, prompt_name, dimensions } = message;
    not_empty(&inputs)?;
    let options = TextOptions {
        normalize: Some(normalize.unwrap_or(true)),
        dimensions: dimensions.map(u64::from),
        ..options(truncate, truncation_direction, prompt_name)
    };
    let characters = inputs.chars().count();
    let vectors = call.operations.embed(&[inputs], &call.ask(options)).await.map_err(refused)?;
    let embeddings = vectors.numbers().into_owned();
    Ok(EmbedResponse { embeddings, metadata: metadata(&vectors.ledger, started, characters) })
}

async fn embed_sparse(call: Call, message: EmbedSparseRequest) -> Result<EmbedSparseResponse, Status> {
    let started = Instant::now();
    let EmbedSparseRequest { inputs, truncate, truncation_direction, prompt_name } = message;
    not_empty(&inputs)?;
    let characters = inputs.chars().count();
    let ask = call.ask(options(truncate, truncation_direction, prompt_name));
    let vectors = call.operations.sparse(&[inputs], &ask).await.map_err(refused)?;
    let value = |&(index, value): &(u64, f32)| SparseValue { index: u32::try_from(index).unwrap_or(u32::MAX), value };
    let sparse_embeddings = vectors.rows.first().into_iter().flatten().map(value).collect();
    Ok(EmbedSparseResponse { sparse_embeddings, metadata: metadata(&vectors.ledger, started, characters) })
}

async fn embed_all(call: Call, message: EmbedAllRequest) -> Result<EmbedAllResponse, Status> {
    let started = Instant::now();
    let EmbedAllRequest { inputs, truncate, truncation_direction, prompt_name } = message;
    not_empty(&inputs)?;
    let characters = inputs.chars().count();
    let ask = call.ask(options(truncate, truncation_direction, prompt_name));
    let vectors = call.operations.multi_vector(&[inputs], &ask).await.map_err(refused)?;
    let numbers = vectors.rows.first().map_or(&[][..], Vec::as_slice);
    let token = |token: &[f32]| TokenEmbedding { embeddings: token.to_vec() };
    let token_embeddings = numbers.chunks_exact(vectors.width.max(1)).map(token).collect();
    Ok(EmbedAllResponse { token_embeddings, metadata: metadata(&vectors.ledger, started, characters) })
}

async fn predict(call: Call, message: PredictRequest) -> Result<PredictResponse, Status> {
    let PredictRequest { inputs, truncate, raw_scores, truncation_direction } = message;
    classify(call, vec![inputs], truncate, raw_scores, truncation_direction).await
}

async fn predict_pair(call: Call, message: PredictPairRequest) -> Result<PredictResponse, Status> {
    let PredictPairRequest { inputs, truncate, raw_scores, truncation_direction } = message;
    classify(call, inputs, truncate, raw_scores, truncation_direction).await
}

async fn classify(
    call: Call,
    mut texts: Vec<String>,
    truncate: bool,
    raw_scores: bool,
    direction: i32,
) -> Result<PredictResponse, Status> {
    let started = Instant::now();
    let second = match texts.len() {
        1 => None,
        2 => texts.pop().map(|second| [second]),
        count => {
            let why = format!("'inputs' holds {count} texts, expected one text or a pair");
            return Err(Status::invalid_argument(why));
        }
    };
    not_empty(&texts[0])?;
    let characters = texts.iter().chain(second.iter().flatten()).map(|text| text.chars().count()).sum();
    let ask = call.ask(TextOptions { raw_scores: Some(raw_scores), ..options(truncate, direction, None) });
    let pairs = second.as_ref().map(|second| &second[..]);
    let classified: Classified = call.operations.classify(&texts, pairs, &ask).await.map_err(refused)?;
    let best = classified.rows.first().map(|row| classified.best_first(row)).unwrap_or_default();
    let predictions = best.iter().map(|one| Prediction { score: one.score, label: one.label.to_owned() }).collect();
    Ok(PredictResponse { predictions, metadata: metadata(&classified.ledger, started, characters) })
}

async fn rerank(call: Call, message: RerankRequest) -> Result<RerankResponse, Status> {
    let started = Instant::now();
    let RerankRequest { query, texts, truncate, raw_scores, return_text, truncation_direction } = message;
    let queries = vec![query.as_str(); texts.len()];
    let options = TextOptions { raw_scores: Some(raw_scores), ..options(truncate, truncation_direction, None) };
    ranked(&call, &queries, &texts, options, return_text, started).await
}

/// The ranks of texts, each by its query.
async fn ranked(
    call: &Call,
    queries: &[&str],
    texts: &[String],
    options: TextOptions,
    return_text: bool,
    started: Instant,
) -> Result<RerankResponse, Status> {
    if texts.is_empty() {
        return Err(Status::invalid_argument("'texts' is empty, expected at least one text"));
    }
    let second: Vec<&str> = texts.iter().map(String::as_str).collect();
    let scores: Scores = call.operations.score(queries, &second, &call.ask(options)).await.map_err(refused)?;
    let rank = |(index, score): (usize, f32)| Rank {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        text: return_text.then(|| texts[index].clone()),
        score,
    };
    let characters = texts.iter().map(|text| text.chars().count()).sum();
    let ranks = scores.ranked(None).into_iter().map(rank).collect();
    Ok(RerankResponse { ranks, metadata: metadata(&scores.ledger, started, characters) })
}

async fn tokenize(call: Call, message: EncodeRequest) -> Result<EncodeResponse, Status> {
    let EncodeRequest { inputs, add_special_tokens, prompt_name } = message;
    let prompt = prompt_name.map_or(Prompt::Default, Prompt::Named);
    let options = TextOptions { prompt, add_special_tokens: Some(add_special_tokens), ..TextOptions::default() };
    let lists = call.operations.tokenize(&[inputs], &call.ask(options)).await.map_err(refused)?;
    let token = |token: trireme_operations::Token| SimpleToken {
        id: token.id,
        text: token.text,
        special: token.start.is_none(),
        start: token.start.and_then(|start| u32::try_from(start).ok()),
        stop: token.stop.and_then(|stop| u32::try_from(stop).ok()),
    };
    Ok(EncodeResponse { tokens: lists.tokens(0).into_iter().map(token).collect() })
}

async fn decode(call: Call, message: DecodeRequest) -> Result<DecodeResponse, Status> {
    let options = TextOptions { skip_special_tokens: Some(message.skip_special_tokens), ..TextOptions::default() };
    let (texts, _) = call.operations.decode(&[message.ids], &call.ask(options)).await.map_err(refused)?;
    Ok(DecodeResponse { text: texts.into_iter().next().unwrap_or_default() })
}

async fn info(call: Call, _: InfoRequest) -> Result<InfoResponse, Status> {
    let model = call.operations.text_model(call.model.as_deref()).map_err(refused)?;
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let length = model.max_length.unwrap_or(UNKNOWN_LENGTH);
    let kind = match model.tasks.first() {
        Some(Task::Classify | Task::ZeroShot | Task::TokenClassify) => ModelType::Classifier,
        Some(Task::Rerank) => ModelType::Reranker,
        _ => ModelType::Embedding,
    };
    Ok(InfoResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sha: None,
        docker_label: None,
        model_id: model.name,
        model_sha: None,
        model_dtype: "float32".to_owned(),
        model_type: kind.into(),
        max_concurrent_requests: MOST_TEXTS,
        max_input_length: number(length),
        max_batch_tokens: number(model.max_batch.unwrap_or(MOST_TEXTS.into()).saturating_mul(length)),
        max_batch_requests: model.max_batch.map(number),
        max_client_batch_size: MOST_TEXTS,
        tokenization_workers: 1,
    })
}

#[tonic::async_trait]
impl Info for TeiService {
    async fn info(&self, request: Request<InfoRequest>) -> Reply<InfoResponse> {
        self.one(request, |call, message| Box::pin(info(call, message))).await
    }
}

#[tonic::async_trait]
impl Embed for TeiService {
    type EmbedStreamStream = Replies<EmbedResponse>;
    type EmbedSparseStreamStream = Replies<EmbedSparseResponse>;
    type EmbedAllStreamStream = Replies<EmbedAllResponse>;

    async fn embed(&self, request: Request<EmbedRequest>) -> Reply<EmbedResponse> {
        self.one(request, |call, message| Box::pin(embed(call, message))).await
    }

    async fn embed_stream(&self, request: Request<Streaming<EmbedRequest>>) -> Reply<Replies<EmbedResponse>> {
        self.each(request, |call, message| Box::pin(embed(call, message))).await
    }

    async fn embed_sparse(&self, request: Request<EmbedSparseRequest>) -> Reply<EmbedSparseResponse> {
        self.one(request, |call, message| Box::pin(embed_sparse(call, message))).await
    }

    async fn embed_sparse_stream(
        &self,
        request: Request<Streaming<EmbedSparseRequest>>,
    ) -> Reply<Replies<EmbedSparseResponse>> {
        self.each(request, |call, message| Box::pin(embed_sparse(call, message))).await
    }

    async fn embed_all(&self, request: Request<EmbedAllRequest>) -> Reply<EmbedAllResponse> {
        self.one(request, |call, message| Box::pin(embed_all(call, message))).await
    }

    async fn embed_all_stream(&self, request: Request<Streaming<EmbedAllRequest>>) -> Reply<Replies<EmbedAllResponse>> {
        self.each(request, |call, message| Box::pin(embed_all(call, message))).await
    }
}

#[tonic::async_trait]
impl Predict for TeiService {
    type PredictStreamStream = Replies<PredictResponse>;
    type PredictPairStreamStream = Replies<PredictResponse>;

    async fn predict(&self, request: Request<PredictRequest>) -> Reply<PredictResponse> {
        self.one(request, |call, message| Box::pin(predict(call, message))).await
    }

    async fn predict_pair(&self, request: Request<PredictPairRequest>) -> Reply<PredictResponse> {
        self.one(request, |call, message| Box::pin(predict_pair(call, message))).await
    }

    async fn predict_stream(&self, request: Request<Streaming<PredictRequest>>) -> Reply<Replies<PredictResponse>> {
        self.each(request, |call, message| Box::pin(predict(call, message))).await
    }

    async fn predict_pair_stream(
        &self,
        request: Request<Streaming<PredictPairRequest>>,
    ) -> Reply<Replies<PredictResponse>> {
        self.each(request, |call, message| Box::pin(predict_pair(call, message))).await
    }
}

#[tonic::async_trait]
impl Rerank for TeiService {
    async fn rerank(&self, request: Request<RerankRequest>) -> Reply<RerankResponse> {
        self.one(request, |call, message| Box::pin(rerank(call, message))).await
    }

    async fn rerank_stream(&self, request: Request<Streaming<RerankStreamRequest>>) -> Reply<RerankResponse> {
        let (started, call) = (Instant::now(), self.call(&request));
        let messages: Vec<RerankStreamRequest> = self.messages(request.into_inner()).try_collect().await?;
        let (truncate, direction, raw_scores, return_text) = match messages.first() {
            Some(first) => (first.truncate, first.truncation_direction, first.raw_scores, first.return_text),
            None => Default::default(),
        };
        let (queries, texts): (Vec<String>, Vec<String>) =
            messages.into_iter().map(|message| (message.query, message.text)).unzip();
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let options = TextOptions { raw_scores: Some(raw_scores), ..options(truncate, direction, None) };
        ranked(&call, &queries, &texts, options, return_text, started).await.map(Response::new)
    }
}

#[tonic::async_trait]
impl Tokenize for TeiService {
    type TokenizeStreamStream = Replies<EncodeResponse>;
    type DecodeStreamStream = Replies<DecodeResponse>;

    async fn tokenize(&self, request: Request<EncodeRequest>) -> Reply<EncodeResponse> {
        self.one(request, |call, message| Box::pin(tokenize(call, message))).await
    }

    async fn tokenize_stream(&self, request: Request<Streaming<EncodeRequest>>) -> Reply<Replies<EncodeResponse>> {
        self.each(request, |call, message| Box::pin(tokenize(call, message))).await
    }

    async fn decode(&self, request: Request<DecodeRequest>) -> Reply<DecodeResponse> {
        self.one(request, |call, message| Box::pin(decode(call, message))).await
    }

    async fn decode_stream(&self, request: Request<Streaming<DecodeRequest>>) -> Reply<Replies<DecodeResponse>> {
        self.each(request, |call, message| Box::pin(decode(call, message))).await
    }
}
