//! `inference.GRPCInferenceService`: each call to the operation that HTTP shares.

use std::future::Future;
use std::pin::Pin;

use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use trireme_inference::InferError;
use trireme_protocol::grpc::wire::grpc_inference_service_server::GrpcInferenceService;
use trireme_protocol::grpc::wire::*;
use trireme_protocol::grpc::{self, encode_infer_response, parse_model_version};

use super::call::{Call, Responses};
use super::stream;
use crate::handlers::SharedHandlers;

/// Answers calls.
pub struct InferenceService {
    pub handlers: SharedHandlers,
    /// Raised when streams shall end.
    pub stop: CancellationToken,
}

type Reply<T> = Result<Response<T>, Status>;

/// An operation's outcome as a call's.
fn reply<T>(outcome: Result<T, InferError>) -> Reply<T> {
    outcome.map(Response::new).map_err(|error| grpc::status(&error))
}

/// Calls of the published service that are not offered. These are written out as `async_trait` would have them, because
/// that does not look into macros.
macro_rules! not_offered {
    ($($method:ident $name:literal: $request:ty => $response:ty;)*) => {$(
        fn $method<'a, 'async_trait>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Reply<$response>> + Send + 'async_trait>>
        where
            'a: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented(concat!($name, " is not offered by this server"))) })
        }
    )*};
}

// === impl InferenceService ===

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    type ModelStreamInferStream = stream::Replies;

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Reply<ServerLiveResponse> {
        reply(Ok(ServerLiveResponse { live: self.handlers.server_live() }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Reply<ServerReadyResponse> {
        reply(self.handlers.server_ready().map(|ready| ServerReadyResponse { ready }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Reply<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        let ready = parse_model_version(&version).and_then(|version| self.handlers.model_ready(&name, version));
        reply(ready.map(|ready| ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Reply<ServerMetadataResponse> {
        let (version, extensions) = self.handlers.server_metadata();
        reply(Ok(grpc::server_metadata(self.handlers.server_name(), version, extensions)))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Reply<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let found = parse_model_version(&version).and_then(|version| self.handlers.model_metadata(&name, version));
        reply(found.map(|(served, versions)| {
            grpc::model_metadata(&name, &versions, served.platform(), &served.inputs, &served.outputs)
        }))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Reply<ModelConfigResponse> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let found = parse_model_version(&version).and_then(|version| self.handlers.find_model(&name, version));
        reply(found.and_then(|(_, served)| grpc::model_config(served.config.to_protobuf())))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Reply<ModelInferResponse> {
        let call = Call::of(&request);
        let response = call.infer(&self.handlers, request.into_inner(), Responses::One).await;
        reply(response.map(encode_infer_response))
    }

    async fn model_stream_infer(&self, request: Request<Streaming<ModelInferRequest>>) -> Reply<stream::Replies> {
        let call = Call::of(&request);
        let close_on_error = stream::closes_on_error(request.metadata());
        let (handlers, stop) = (self.handlers.clone(), self.stop.clone());
        reply(Ok(stream::answer(handlers, request.into_inner(), call, close_on_error, stop)))
    }

    not_offered! {
        model_statistics "ModelStatistics": ModelStatisticsRequest => ModelStatisticsResponse;
        repository_index "RepositoryIndex": RepositoryIndexRequest => RepositoryIndexResponse;
        repository_model_load "RepositoryModelLoad": RepositoryModelLoadRequest => RepositoryModelLoadResponse;
        repository_model_unload "RepositoryModelUnload":
            RepositoryModelUnloadRequest => RepositoryModelUnloadResponse;
        system_shared_memory_status "SystemSharedMemoryStatus":
            SystemSharedMemoryStatusRequest => SystemSharedMemoryStatusResponse;
        system_shared_memory_register "SystemSharedMemoryRegister":
            SystemSharedMemoryRegisterRequest => SystemSharedMemoryRegisterResponse;
        system_shared_memory_unregister "SystemSharedMemoryUnregister":
            SystemSharedMemoryUnregisterRequest => SystemSharedMemoryUnregisterResponse;
        cuda_shared_memory_status "CudaSharedMemoryStatus":
            CudaSharedMemoryStatusRequest => CudaSharedMemoryStatusResponse;
        cuda_shared_memory_register "CudaSharedMemoryRegister":
            CudaSharedMemoryRegisterRequest => CudaSharedMemoryRegisterResponse;
        cuda_shared_memory_unregister "CudaSharedMemoryUnregister":
            CudaSharedMemoryUnregisterRequest => CudaSharedMemoryUnregisterResponse;
        trace_setting "TraceSetting": TraceSettingRequest => TraceSettingResponse;
        log_settings "LogSettings": LogSettingsRequest => LogSettingsResponse;
    }
}
