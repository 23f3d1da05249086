//! Clients that ask, wait for the answer, and check it.

use std::fmt;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Builder;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::felt::Felt;
use super::target::Target;
use crate::messages::{INFER, InferRequest, InferResponse, Tensor};
use crate::{Request, Response};

/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Infers over HTTP, on one connection.
    Http,
    /// Infers over HTTP, on a connection for each request.
    Newcomer,
    /// Infers over gRPC, on one connection.
    Grpc,
    /// Asks over HTTP whether the server lives, on a connection for each request, as monitoring does.
    Health,
}

// === impl Client ===

impl Client {
    /// All kinds.
    pub const ALL: [Client; 4] = [Client::Http, Client::Newcomer, Client::Grpc, Client::Health];
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Client::Http => "over HTTP",
            Client::Newcomer => "over HTTP, new",
            Client::Grpc => "over gRPC",
            Client::Health => "for health",
        })
    }
}

/// Asks one question after the other until it is `over`.
pub(super) fn ask(client: Client, target: Target, over: &AtomicBool) -> Felt {
    let mut ask: Box<dyn FnMut() -> Result<(), String>> = match client {
        Client::Http => Box::new(kept(target)),
        Client::Newcomer => Box::new(move || infer(|request| request.send(target.http))),
        Client::Grpc => Box::new(grpc(target)),
        Client::Health => Box::new(move || match Request::get("/v2/health/live").send(target.http) {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("status {}: {}", answer.status, answer.text())),
            Err(error) => Err(error.to_string()),
        }),
    };
    let mut felt = Felt::default();
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        match ask() {
            Ok(()) => felt.times.push(asked.elapsed()),
            Err(error) => felt.lost.push(error),
        }
        std::thread::sleep(PAUSE);
    }
    felt
}

/// Over a connection that stays; another one is opened after a request was lost.
fn kept(target: Target) -> impl FnMut() -> Result<(), String> {
    let mut connection: Option<TcpStream> = None;
    move || {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => Request::connect(target.http).map_err(|error| error.to_string())?,
        };
        infer(|request| {
            request.keep_connection().write(&mut stream)?;
            Response::read(&mut stream)
        })?;
        connection = Some(stream);
        Ok(())
    }
}

/// Adds ones to ones.
fn infer(send: impl FnOnce(Request) -> std::io::Result<Response>) -> Result<(), String> {
    let (ones, twos) = ([1; 16], [2; 16]);
    let input = |name: &str| json!({ "name": name, "datatype": "INT32", "shape": [1, 16], "data": ones });
    let body = json!({ "inputs": [input("INPUT0"), input("INPUT1")], "outputs": [{ "name": "OUTPUT0" }] });
    let answer = send(Request::infer("simple", &body)).map_err(|error| error.to_string())?;
    match answer.status == 200 && answer.json()["outputs"][0]["data"] == json!(twos) {
        true => Ok(()),
        false => Err(format!("status {}: {}", answer.status, answer.text())),
    }
}

/// The same over gRPC.
fn grpc(target: Target) -> impl FnMut() -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("threads can be started");
    let endpoint = Endpoint::from_shared(format!("http://{}", target.grpc)).expect("an address makes a URL");
    let channel: Channel = runtime.block_on(async { endpoint.connect_lazy() });
    let ones: Vec<u8> = 1i32.to_le_bytes().repeat(16);
    let tensor = |name: &str| Tensor { name: name.to_owned(), datatype: "INT32".to_owned(), shape: vec![1, 16] };
    let inputs = vec![tensor("INPUT0"), tensor("INPUT1")];
    let call = InferRequest { model_name: "simple".to_owned(), inputs, raw_input_contents: vec![ones.clone(), ones] };
    move || {
        let mut client = Grpc::new(channel.clone());
        let asking = async {
            client.ready().await.map_err(|error| error.to_string())?;
            let answered = client.unary(tonic::Request::new(call.clone()), INFER, ProstCodec::default()).await;
            let answer: InferResponse = answered.map_err(|status| status.to_string())?.into_inner();
            match answer.raw_output_contents.first() == Some(&2i32.to_le_bytes().repeat(16)) {
                true => Ok(()),
                false => Err(format!("not the sum: {answer:?}")),
            }
        };
        let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, asking).await });
        asked.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
    }
}
