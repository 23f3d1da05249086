//! Thousands of requests in flight over few connections: calls of gRPC.

use std::net::SocketAddr;
use std::time::Duration;

use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::client::Fault;
use crate::messages::{INFER, InferRequest, InferResponse, Tensor};

/// Calls that share a connection. A gateway allows 1024.
const SHARING: usize = 500;

/// Connections to a gateway.
#[derive(Clone)]
pub struct Calls(Vec<Grpc<Channel>>);

// === impl Calls ===

impl Calls {
    /// Opens connections for this number of calls at a time.
    ///
    /// # Panics
    /// When the gateway takes no connection.
    pub async fn connect(gateway: SocketAddr, calls: usize) -> Calls {
        let endpoint = Endpoint::from_shared(format!("http://{gateway}")).expect("an address makes a URL");
        let mut connections = Vec::new();
        for _ in 0..calls.div_ceil(SHARING) {
            connections.push(Grpc::new(endpoint.connect().await.expect("the gateway takes connections")));
        }
        Calls(connections)
    }

    /// Sends a number to a model that returns its input, and waits for the answer, for `limit` at most. Returns what was
    /// wrong with it.
    pub async fn echo(&self, model: &str, number: usize, limit: Duration) -> Option<Fault> {
        let mut client = self.0[number % self.0.len()].clone();
        let input = Tensor { name: "INPUT0".to_owned(), datatype: "FP32".to_owned(), shape: vec![1, 1] };
        let bytes = (number as f32).to_le_bytes().to_vec();
        let request =
            InferRequest { model_name: model.to_owned(), inputs: vec![input], raw_input_contents: vec![bytes.clone()] };
        let answered = tokio::time::timeout(limit, async {
            client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
            client.unary(Request::new(request), INFER, ProstCodec::<_, InferResponse>::default()).await
        });
        match answered.await {
            Err(_) => Some(Fault::Unanswered(format!("no answer in {} s", limit.as_secs()))),
            Ok(Ok(answer)) if answer.get_ref().raw_output_contents == [bytes] => None,
            Ok(Ok(answer)) => Some(Fault::Wrong(format!("{:?}", answer.into_inner()))),
            Ok(Err(status)) if status.code() == Code::Unknown => Some(Fault::Unanswered(status.to_string())),
            Ok(Err(status)) => Some(Fault::Refused(status.to_string())),
        }
    }
}
