//! An HTTP client for thousands of parallel requests: a task and a connection for each.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Request, Response};

/// A request on its connection.
pub struct Call {
    stream: TcpStream,
    limit: Duration,
}

// === impl Call ===

impl Call {
    /// Sends the request. The answer may take `limit`.
    pub async fn start(address: SocketAddr, request: &Request, limit: Duration) -> Result<Call> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&request.encode(address)).await?;
        Ok(Call { stream, limit })
    }

    /// Waits for the answer.
    pub async fn answer(mut self) -> Result<Response> {
        let mut received = Vec::new();
        let read = tokio::time::timeout(self.limit, self.stream.read_to_end(&mut received)).await;
        read.map_err(|_| Error::new(ErrorKind::TimedOut, format!("no answer in {} s", self.limit.as_secs())))??;
        Response::parse(&received)?
            .ok_or_else(|| Error::new(ErrorKind::UnexpectedEof, "an answer that is not complete"))
    }
}

/// Sends the request and waits for the answer, for `limit` at most.
pub async fn ask(address: SocketAddr, request: &Request, limit: Duration) -> Result<Response> {
    Call::start(address, request, limit).await?.answer().await
}

/// An infer request to a model that returns its input, which is this number.
pub fn echo(model: &str, number: usize) -> Request {
    let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [number]});
    Request::infer(model, &json!({"inputs": [input]}))
}

/// The fault of the answer to such a request; `None` if the answer is right.
pub fn fault(answer: &Result<Response>, number: usize) -> Option<Fault> {
    let answer = match answer {
        Err(error) => return Some(Fault::Unanswered(error.to_string())),
        Ok(answer) => answer,
    };
    if answer.status != 200 {
        return Some(Fault::Refused(format!("{}: {}", answer.status, answer.text())));
    }
    let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let right = json["outputs"][0]["data"][0].as_f64() == Some(number as f64);
    (!right).then(|| Fault::Wrong(answer.text()))
}

/// Why a request was not answered as expected, with the actual answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The gateway answered with another status than 200.
    Refused(String),
    /// No answer arrived.
    Unanswered(String),
    /// The answer was not the input.
    Wrong(String),
}
