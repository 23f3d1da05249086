//! One attempt to get a question answered over gRPC.

use std::collections::HashMap;
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::ask::{Attempt, Break, floats, is_reset};
use super::questions::{Input, Question, Said, Way};
use crate::messages::{INFER, Tensor};

const STREAM: PathAndQuery = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelStreamInfer");

/// The runtime for gRPC calls of all threads.
pub(super) struct GrpcClient(Runtime);

#[derive(Clone, PartialEq, prost::Message)]
struct InferRequest {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(map = "string, message", tag = "4")]
    parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    raw_input_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Parameter {
    #[prost(int64, tag = "2")]
    int64: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    outputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    raw_output_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StreamResponse {
    #[prost(string, tag = "1")]
    error_message: String,
    #[prost(message, optional, tag = "2")]
    infer_response: Option<InferResponse>,
}

// === impl GrpcClient ===

impl GrpcClient {
    pub fn new() -> GrpcClient {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        GrpcClient(runtime.expect("threads can be started"))
    }

    /// Sends the question on a connection of its own and reads the answer, for `patience` at most.
    pub fn ask(&self, question: &Question, address: SocketAddr, patience: Duration) -> Attempt {
        self.0.block_on(async {
            let asked = tokio::time::timeout(patience, ask(question, address)).await;
            asked.unwrap_or_else(|_| Attempt::Broken(Break::Cut, format!("no answer within {patience:?}")))
        })
    }
}

async fn ask(question: &Question, address: SocketAddr) -> Attempt {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URL");
    let mut client = match endpoint.connect().await {
        Ok(channel) => Grpc::new(channel),
        Err(error) => return Attempt::Broken(Break::Refused, describe(&error)),
    };
    if let Err(error) = client.ready().await {
        return Attempt::Broken(Break::Refused, describe(&error));
    }
    match question.way {
        Way::GrpcStream => stream(question, client).await,
        _ => match client.unary(Request::new(request(question)), INFER, ProstCodec::default()).await {
            Ok(answer) => Attempt::Said(outputs(answer.into_inner())),
            Err(status) => failed(&status, true),
        },
    }
}

async fn stream(question: &Question, mut client: Grpc<Channel>) -> Attempt {
    let sent = client.server_streaming(Request::new(request(question)), STREAM, ProstCodec::default()).await;
    let mut answers = match sent {
        Ok(answers) => answers.into_inner(),
        Err(status) => return failed(&status, true),
    };
    let mut parts = Vec::new();
    loop {
        let answer: StreamResponse = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Attempt::Said(Said::Parts(parts, None)),
            Err(status) => return failed(&status, false),
        };
        if !answer.error_message.is_empty() {
            return Attempt::Said(Said::Parts(parts, Some(answer.error_message)));
        }
        let raw = answer.infer_response.unwrap_or_default().raw_output_contents;
        match raw.first().and_then(|raw| raw.as_slice().try_into().ok()) {
            Some(bytes) => parts.push(i32::from_le_bytes(bytes)),
            None => return Attempt::Said(Said::Parts(parts, Some(format!("a part of no number: {raw:?}")))),
        }
    }
}

fn request(question: &Question) -> InferRequest {
    let tensor = |Input { name, data }: &Input| Tensor {
        name: (*name).to_owned(),
        datatype: data.datatype().to_owned(),
        shape: vec![data.len() as i64],
    };
    let timeout =
        |timeout: Duration| ("trireme_timeout_ms".to_owned(), Parameter { int64: timeout.as_millis() as i64 });
    InferRequest {
        model_name: question.model.to_owned(),
        parameters: question.timeout.map(timeout).into_iter().collect(),
        inputs: question.inputs.iter().map(tensor).collect(),
        raw_input_contents: question.inputs.iter().map(|input| input.data.bytes()).collect(),
    }
}

fn outputs(answer: InferResponse) -> Said {
    let names = answer.outputs.into_iter().map(|output| output.name);
    Said::Outputs(names.zip(answer.raw_output_contents.iter().map(|raw| floats(raw))).collect())
}

/// A status of the server is an answer; any other error is the end of the connection. `before_anything_came`
/// distinguishes connections that were never accepted from others.
fn failed(status: &Status, before_anything_came: bool) -> Attempt {
    let Some(source) = status.source() else {
        return Attempt::Said(Said::Error(format!("{:?} {}", status.code(), status.message())));
    };
    let text = describe(source);
    let mut io = causes(source).filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    // A server that ends sends the last call that it took in, so the client knows that the server has not seen this
    // call.
    let never_taken = text.contains("GoAway") && text.contains("NO_ERROR");
    // The client library's error for a request that it had not sent when the connection ended.
    let never_sent = text.contains("Canceled, \"connection closed\"");
    let how = match before_anything_came {
        // The connection had ended before the request was sent, so the library tried another one.
        true if io.clone().any(|error| error.kind() == ErrorKind::ConnectionRefused) => Break::Refused,
        true if io.any(is_reset) || never_taken || never_sent => Break::Reset,
        _ => Break::Cut,
    };
    Attempt::Broken(how, text)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> + Clone {
    std::iter::successors(Some(error), |&error| error.source())
}

fn describe(error: &(dyn Error + 'static)) -> String {
    causes(error).map(|cause| format!("{cause:?}")).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::super::ask::tests::{accepts_and_leaves, never_accepts, server};
    use super::*;

    #[test]
    fn ends_without_an_answer_are_told_apart() {
        let client = GrpcClient::new();
        let broken = |address| match client.ask(&Question::of(5, &[]), address, Duration::from_secs(60)) {
            Attempt::Broken(how, text) => (how, text),
            other => panic!("{other:?}"),
        };
        // When the client's write is what meets the reset, its read afterwards finds an ordinary end of the connection,
        // and the client library gives out only the latter. So one attempt in a few may look like a cut.
        let never: Vec<_> = (0..10).map(|_| broken(server(never_accepts))).collect();
        let told_apart = |(how, _): &(Break, String)| matches!(how, Break::Reset | Break::Refused);
        assert!(never.iter().any(told_apart), "{never:?}");
        let left = broken(server(accepts_and_leaves));
        assert_eq!(left.0, Break::Cut, "{left:?}");
    }
}
