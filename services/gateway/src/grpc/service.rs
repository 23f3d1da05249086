//! `inference.GRPCInferenceService`: each call to the operation that HTTP shares.

use regex::Regex;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use trireme_inference::{InferError, InferResponse};
use trireme_protocol::grpc::wire::grpc_inference_service_server::GrpcInferenceService;
use trireme_protocol::grpc::wire::*;
use trireme_protocol::grpc::{self, encode_infer_response, parse_model_version};
use trireme_server::answer_headers;

use super::access::credentials;
use super::call::{RpcCall, named};
use super::deadline;
use super::{settings, stream};
use crate::handlers::{ModelMetadata, SharedHandlers};

/// Answers calls.
pub struct InferenceService {
    pub handlers: SharedHandlers,
    /// Which metadata models get as parameters.
    pub forward: Option<Regex>,
    /// Raised when streams shall end.
    pub stop: CancellationToken,
}

type Reply<T> = Result<Response<T>, Status>;

/// An operation's outcome as the reply of a call.
fn reply<T>(outcome: Result<T, InferError>) -> Reply<T> {
    outcome.map(Response::new).map_err(|error| grpc::status(&error))
}

/// The outcome of an operation without a result.
fn empty<T: Default>(outcome: Result<(), InferError>) -> Reply<T> {
    reply(outcome.map(|()| T::default()))
}

/// An infer response as its message, with the request's times in the call's metadata.
fn timed(response: Response<InferResponse>) -> Response<ModelInferResponse> {
    let told: Vec<_> = answer_headers(&response.get_ref().ledger).collect();
    let mut response = response.map(encode_infer_response);
    for (name, value) in told {
        if let Ok(value) = value.parse() {
            response.metadata_mut().insert(name, value);
        }
    }
    response
}

// === impl InferenceService ===

impl InferenceService {
    /// Whether a call whose message changes the server may do so.
    fn check_control<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let checked = self.handlers.access.check_control(credentials(request));
        checked.map_err(|refusal| Status::permission_denied(refusal.to_string()))
    }

    /// The own name of a model that a call names by another one, such as that of the Hugging Face hub.
    fn own_name(&self, name: String) -> String {
        self.handlers.registry.catalog().own_name_or(name)
    }
}

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
        let name = self.own_name(name);
        let ready = parse_model_version(&version).and_then(|version| self.handlers.model_ready(&name, version));
        reply(ready.map(|ready| ModelReadyResponse { ready }))
    }

    async fn server_metadata(&self, _: Request<ServerMetadataRequest>) -> Reply<ServerMetadataResponse> {
        let (version, extensions) = self.handlers.server_metadata();
        reply(Ok(grpc::server_metadata(self.handlers.server_name(), version, &extensions)))
    }

    async fn model_metadata(&self, request: Request<ModelMetadataRequest>) -> Reply<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let name = self.own_name(name);
        let found = parse_model_version(&version).and_then(|version| self.handlers.model_metadata(&name, version));
        reply(found.map(|ModelMetadata { served, versions, properties }| {
            grpc::model_metadata(&name, &versions, served.platform(), &served.inputs, &served.outputs, &properties)
        }))
    }

    async fn model_config(&self, request: Request<ModelConfigRequest>) -> Reply<ModelConfigResponse> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let name = self.own_name(name);
        let found = parse_model_version(&version).and_then(|version| self.handlers.find_model(&name, version));
        reply(found.and_then(|(_, served)| grpc::model_config(served.config.to_protobuf())))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Reply<ModelInferResponse> {
        let call = RpcCall::of(&request, self.forward.as_ref());
        let response = call.infer(&self.handlers, request.into_inner()).await;
        match response {
            // The request's own time ran out with the call's: which of the two was noticed first means nothing.
            Err(_) if call.deadline.is_some_and(deadline::is_over) => Err(deadline::exceeded()),
            response => reply(response).map(timed),
        }
    }

    async fn model_stream_infer(&self, request: Request<Streaming<ModelInferRequest>>) -> Reply<stream::Replies> {
        let call = RpcCall::of(&request, self.forward.as_ref());
        let close_on_error = stream::closes_on_error(request.metadata());
        let (handlers, stop) = (self.handlers.clone(), self.stop.clone());
        reply(Ok(stream::answer(handlers, request.into_inner(), call, close_on_error, stop)))
    }

    async fn repository_index(&self, request: Request<RepositoryIndexRequest>) -> Reply<RepositoryIndexResponse> {
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        let checked = grpc::check_repository_name(&repository_name);
        reply(checked.map(|()| grpc::encode_index(self.handlers.repository_index(ready))))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Reply<RepositoryModelLoadResponse> {
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } = request.into_inner();
        let checked = grpc::check_repository_name(&repository_name);
        match checked.and_then(|()| grpc::decode_load_request(parameters)) {
            Ok(load) => empty(self.handlers.load_model(&model_name, load).await),
            Err(error) => empty(Err(error)),
        }
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Reply<RepositoryModelUnloadResponse> {
        let RepositoryModelUnloadRequest { repository_name, model_name, parameters } = request.into_inner();
        let checked = grpc::check_repository_name(&repository_name);
        match checked.and_then(|()| grpc::decode_unload_request(&parameters)) {
            Ok(dependents) => empty(self.handlers.unload_model(&model_name, dependents).await),
            Err(error) => empty(Err(error)),
        }
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Reply<SystemSharedMemoryStatusResponse> {
        let regions = self.handlers.system_regions(named(&request.get_ref().name));
        reply(regions.map(|regions| grpc::encode_regions(regions.into_iter())))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Reply<SystemSharedMemoryRegisterResponse> {
        let (name, region) = grpc::decode_region(request.into_inner());
        empty(self.handlers.register_system_region(&name, region))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Reply<SystemSharedMemoryUnregisterResponse> {
        empty(self.handlers.unregister_system_regions(named(&request.get_ref().name)))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<CudaSharedMemoryStatusRequest>,
    ) -> Reply<CudaSharedMemoryStatusResponse> {
        empty(self.handlers.cuda_regions(named(&request.get_ref().name)))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Reply<CudaSharedMemoryRegisterResponse> {
        empty(self.handlers.register_cuda_region(&request.get_ref().name))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Reply<CudaSharedMemoryUnregisterResponse> {
        empty(self.handlers.unregister_cuda_regions())
    }

    async fn trace_setting(&self, request: Request<TraceSettingRequest>) -> Reply<TraceSettingResponse> {
        if !request.get_ref().settings.is_empty() {
            self.check_control(&request)?;
        }
        reply(settings::trace(&self.handlers, request.get_ref()))
    }

    async fn log_settings(&self, request: Request<LogSettingsRequest>) -> Reply<LogSettingsResponse> {
        if !request.get_ref().settings.is_empty() {
            self.check_control(&request)?;
        }
        reply(settings::log(&self.handlers, request.into_inner()).await)
    }

    async fn model_statistics(&self, request: Request<ModelStatisticsRequest>) -> Reply<ModelStatisticsResponse> {
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let name = self.own_name(name);
        let models = match parse_model_version(&version) {
            Ok(version) => self.handlers.statistics(named(&name), version).await,
            Err(error) => Err(error),
        };
        reply(models.map(|models| grpc::encode_statistics(models.iter().map(|(key, counters)| (key, counters)))))
    }
}
