//! Messages of the v2 protocol over gRPC, declared here as far as they are needed, so that nothing of the product is linked.

use tonic::codegen::http::uri::PathAndQuery;

/// The path of one request with one answer.
pub(crate) const INFER: PathAndQuery = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");

/// An input, or an output: their fields are the same.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Tensor {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

/// A request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub raw_input_contents: Vec<Vec<u8>>,
}

/// The bytes of its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InferResponse {
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub raw_output_contents: Vec<Vec<u8>>,
}
