//! `tei.v1`, the gRPC interface of Text Embeddings Inference: each of its calls gives what the route of HTTP gives.

use std::future::Future;

use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use trireme_e2e::{KEY, Mode, TextsServer, TextsState, in_one_mode, numbers};
use trireme_protocol::grpc::tei::embed_client::EmbedClient;
use trireme_protocol::grpc::tei::info_client::InfoClient;
use trireme_protocol::grpc::tei::predict_client::PredictClient;
use trireme_protocol::grpc::tei::rerank_client::RerankClient;
use trireme_protocol::grpc::tei::tokenize_client::TokenizeClient;
use trireme_protocol::grpc::tei::*;
use trireme_testkit::assert_close;

in_one_mode!(each_call_gives_what_its_route_gives);

/// A call with the server's key, for the model of this name.
fn asked<T>(model: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("authorization", format!("Bearer {KEY}").parse().expect("a header"));
    if !model.is_empty() {
        metadata.insert("model", model.parse().expect("a header"));
    }
    request
}

async fn one<T>(answer: impl Future<Output = Result<tonic::Response<T>, Status>>) -> T {
    answer.await.expect("an answer").into_inner()
}

fn text(inputs: &str) -> EmbedRequest {
    EmbedRequest { inputs: inputs.to_owned(), truncate: true, ..EmbedRequest::default() }
}

fn each_call_gives_what_its_route_gives(mode: Mode) {
    let mut server = TextsServer::start(mode, TextsState::Serving);
    let address = server.sandbox.grpc_address();
    let http = |path: &str, body: Value| -> Value {
        let request = trireme_e2e::Request::post(path, body.to_string());
        let request = request.header("Content-Type", "application/json");
        server.sandbox.send(&request.header("Authorization", &format!("Bearer {KEY}"))).json()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URL");
    let channel: Channel = runtime.block_on(endpoint.connect()).expect("the port is open");
    runtime.block_on(async {
        let mut client = EmbedClient::new(channel.clone());
        let refused = client.embed(Request::new(text("the oar"))).await.expect_err("no key");
        assert_eq!(refused.code(), Code::Unauthenticated);

        let embedding = |text: &str| numbers(&http("/tei/embedding/embed", json!({"inputs": text}))[0]);
        let found = one(client.embed(asked("", text("the oar")))).await;
        assert_close(&found.embeddings, &embedding("the oar"), 1e-5);
        let counted = found.metadata.expect("metadata");
        assert!(counted.compute_chars == 7 && counted.compute_tokens > 2 && counted.total_time_ns > 0, "{counted:?}");
        let short = EmbedRequest { dimensions: Some(4), ..text("the oar") };
        assert_eq!(one(client.embed(asked("embedding", short))).await.embeddings.len(), 4);

        // A stream is answered in its order.
        let texts = ["the oar", "a storm", "oar"];
        let mut answers = one(client.embed_stream(asked("", tokio_stream(texts.map(text))))).await;
        for text in texts {
            let answer = answers.message().await.expect("an answer").expect("one for each");
            assert_close(&answer.embeddings, &embedding(text), 1e-5);
        }
        assert!(answers.message().await.expect("the end").is_none());

        let all = EmbedAllRequest { inputs: "the oar".to_owned(), truncate: true, ..EmbedAllRequest::default() };
        let tokens = one(client.embed_all(asked("", all))).await.token_embeddings;
        let expected = http("/embed_all", json!({"inputs": "the oar"}))[0].clone();
        assert_eq!(tokens.len(), expected.as_array().map_or(0, Vec::len));
        assert_close(&tokens[1].embeddings, &numbers(&expected[1]), 1e-5);

        // Texts that are too long are cut only where the message says so; nothing is no text; a task has to be the model's.
        let long = EmbedRequest { truncate: false, ..text(&"oar ".repeat(99)) };
        for (model, message, code) in [
            ("", long, Code::InvalidArgument),
            ("", text(""), Code::InvalidArgument),
            ("reranker", text("a"), Code::FailedPrecondition),
            ("nobody", text("a"), Code::NotFound),
        ] {
            let refused = client.embed(asked(model, message)).await.expect_err("a refusal");
            assert_eq!(refused.code(), code, "{refused}");
        }

        let ranked = http("/rerank", json!({"query": "the oar", "texts": texts, "return_text": true}));
        let mut client = RerankClient::new(channel.clone());
        let message = RerankRequest {
            query: "the oar".to_owned(),
            texts: texts.map(str::to_owned).into(),
            truncate: true,
            return_text: true,
            ..RerankRequest::default()
        };
        let each = texts.map(|text| RerankStreamRequest {
            query: "the oar".to_owned(),
            text: text.to_owned(),
            truncate: true,
            return_text: true,
            ..RerankStreamRequest::default()
        });
        let whole = one(client.rerank(asked("", message))).await.ranks;
        let streamed = one(client.rerank_stream(asked("", tokio_stream(each)))).await.ranks;
        for ranks in [whole, streamed] {
            for (at, rank) in ranks.iter().enumerate() {
                assert_eq!(
                    (json!(rank.index), json!(rank.text)),
                    (ranked[at]["index"].clone(), ranked[at]["text"].clone())
                );
                assert_close(&[rank.score], &numbers(&json!([ranked[at]["score"]])), 1e-5);
            }
            assert_eq!(ranks.len(), 3);
        }

        let mut client = PredictClient::new(channel.clone());
        let message = PredictRequest { inputs: "the oar".to_owned(), truncate: true, ..PredictRequest::default() };
        let classes = one(client.predict(asked("", message))).await.predictions;
        let expected = http("/predict", json!({"inputs": "the oar"}));
        assert_eq!(json!(classes[0].label), expected[0]["label"]);
        let inputs = vec!["the oar".to_owned(), "a storm".to_owned()];
        let pair = PredictPairRequest { inputs, truncate: true, ..PredictPairRequest::default() };
        let classes = one(client.predict_pair(asked("", pair))).await.predictions;
        let expected = http("/predict", json!({"inputs": ["the oar", "a storm"]}));
        assert_close(&[classes[0].score], &numbers(&json!([expected[0]["score"]])), 1e-5);

        let mut client = TokenizeClient::new(channel.clone());
        let message = EncodeRequest { inputs: "the oar".to_owned(), ..EncodeRequest::default() };
        let tokens = one(client.tokenize(asked("embedding", message))).await.tokens;
        let shown: Vec<_> = tokens.iter().map(|token| (token.text.as_str(), token.start, token.special)).collect();
        assert_eq!(shown, [("the", Some(0), false), ("oar", Some(4), false)]);
        let ids = tokens.iter().map(|token| token.id).collect();
        let message = DecodeRequest { ids, skip_special_tokens: true };
        assert_eq!(one(client.decode(asked("embedding", message))).await.text, "the oar");

        let info = one(InfoClient::new(channel).info(asked("classifier", InfoRequest {}))).await;
        assert_eq!((info.model_id.as_str(), info.model_type()), ("classifier", ModelType::Classifier));
    });
}

/// Messages as a stream.
fn tokio_stream<T: Send + 'static, const N: usize>(
    messages: [T; N],
) -> impl tonic::codegen::tokio_stream::Stream<Item = T> + Send + 'static {
    tonic::codegen::tokio_stream::iter(messages)
}
