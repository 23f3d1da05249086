//! The gRPC listener with a whole gateway behind it, on the in-process bus, with a worker whose behaviour each request
//! chooses.

#[path = "grpc/connections.rs"]
mod connections;
#[path = "grpc/reflection.rs"]
mod reflection;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, Command, FromArgMatches};
use futures_util::stream::{self, StreamExt};
use parking_lot::{Condvar, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::codec::CompressionEncoding;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use trireme_bus::{Bus, InProcess, QueueOptions};
use trireme_gateway::{Gateway, GatewayArgs, ModelOptions};
use trireme_inference::{InferError, Tensor};
use trireme_protocol::grpc::health::health_check_response::ServingStatus;
use trireme_protocol::grpc::health::{HealthCheckRequest, health_client::HealthClient};
use trireme_protocol::grpc::wire::grpc_inference_service_client::GrpcInferenceServiceClient;
use trireme_protocol::grpc::wire::infer_parameter::ParameterChoice;
use trireme_protocol::grpc::wire::model_infer_request::InferInputTensor;
use trireme_protocol::grpc::wire::*;
use trireme_runtime::{
    Backend, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelInstance, ModelSource, OneAtATime,
    Statistics, Worker, WorkerOptions,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SLOW: Duration = Duration::from_secs(2);
const INSTANCES: usize = 4;

type Client = GrpcInferenceServiceClient<Channel>;

/// Obeys the text in its input, and echoes it, or shows the parameter that it names.
#[derive(Clone, Default)]
struct Obedient {
    executions: Arc<AtomicUsize>,
    /// Lets those go that wait to be let go.
    released: Arc<(Mutex<bool>, Condvar)>,
}

impl Backend for Obedient {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let instance = || Box::new(Instance(self.clone())) as Box<dyn ModelInstance>;
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances: (0..source.cpu_instances()?).map(|_| instance().into()).collect(),
            background: Vec::new(),
            guests: Vec::new(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

struct Instance(Obedient);

impl ModelInstance for Instance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        requests.iter().map(|request| self.obey(request)).collect()
    }
}

impl Instance {
    fn obey(&self, request: &ExecuteRequest) -> Result<ExecuteResponse, InferError> {
        self.0.executions.fetch_add(1, Ordering::SeqCst);
        match request.inputs[0].bytes_elements()?.next() {
            Some(b"refuse") => return Err(InferError::invalid_arg("refused")),
            Some(b"slow") => std::thread::sleep(SLOW),
            Some(text) if text.starts_with(b"wait") => {
                let (released, told) = &*self.0.released;
                told.wait_while(&mut released.lock(), |released| !*released);
            }
            Some(text) if text.starts_with(b"show ") => {
                let name = String::from_utf8_lossy(&text[5..]);
                let found = request.parameters.get(&*name).map_or("none".to_owned(), |value| format!("{value:?}"));
                let output = Tensor::from_bytes_elements("OUTPUT0", [1], &[found])?;
                return Ok(ExecuteResponse { outputs: vec![output], ..ExecuteResponse::default() });
            }
            _ => {}
        }
        Ok(ExecuteResponse {
            outputs: vec![request.inputs[0].clone().renamed("OUTPUT0")],
            ..ExecuteResponse::default()
        })
    }
}

/// A gateway, its worker and a client.
struct Server {
    gateway: Gateway,
    worker: Worker,
    client: Client,
    executions: Arc<AtomicUsize>,
    released: Arc<(Mutex<bool>, Condvar)>,
    _repository: tempfile::TempDir,
}

impl Server {
    async fn start(flags: &[&str]) -> Server {
        let repository = tempfile::tempdir().expect("a temporary directory");
        write_model(repository.path(), "echo", "");
        write_model(repository.path(), "many", "model_transaction_policy { decoupled: true }");
        let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
        bus.init_settings(&QueueOptions::default()).await.expect("in process nothing refuses");
        let models = ModelOptions { model_repository: vec![repository.path().to_owned()], ..Default::default() };
        let gateway = Gateway::start(bus.clone(), Statistics::new("gateway"), models, &args(flags), PATIENCE)
            .await
            .expect("free ports");

        let backend = Obedient::default();
        let (executions, released) = (backend.executions.clone(), backend.released.clone());
        let options = WorkerOptions::new("test", vec![repository.path().to_owned()], Statistics::new("worker"));
        let backends: [Arc<dyn Backend>; 1] = [Arc::new(backend)];
        let worker = Worker::start(bus, &backends, &options).await.expect("in process nothing refuses");
        gateway.until_ready(PATIENCE).await.expect("the worker serves every model");
        let client = Client::new(connect(&gateway).await);
        Server { gateway, worker, client, executions, released, _repository: repository }
    }

    /// Lets all requests go that wait in the model.
    fn release(&self) {
        *self.released.0.lock() = true;
        self.released.1.notify_all();
    }

    fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }

    async fn wait_for_executions(&self, count: usize) {
        within(async {
            while self.executions() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

async fn connect(gateway: &Gateway) -> Channel {
    let address = gateway.grpc_address.expect("gRPC is on");
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect().await.expect("the port is open")
}

fn args(flags: &[&str]) -> GatewayArgs {
    let ours = [
        "gateway",
        "--grpc-address",
        "127.0.0.1",
        "--grpc-port",
        "0",
        "--http-address",
        "127.0.0.1",
        "--http-port",
        "0",
        "--metrics-port",
        "0",
    ];
    let command = GatewayArgs::augment_args(Command::new("gateway")).args_override_self(true);
    let matches = command.try_get_matches_from(ours.iter().chain(flags)).expect("valid flags");
    GatewayArgs::from_arg_matches(&matches).expect("valid flags")
}

fn write_model(repository: &Path, name: &str, more: &str) {
    let directory = repository.join(name);
    std::fs::create_dir_all(directory.join("1")).expect("a directory");
    let config = format!(
        "backend: 'identity' max_batch_size: 0
        input [{{ name: 'INPUT0' data_type: TYPE_STRING dims: [-1] }}]
        output [{{ name: 'OUTPUT0' data_type: TYPE_STRING dims: [-1] }}]
        instance_group [{{ count: {INSTANCES} kind: KIND_CPU }}] {more}"
    );
    std::fs::write(directory.join("config.pbtxt"), config).expect("a file");
}

/// One text as a BYTES tensor's bytes.
fn element(text: &str) -> Bytes {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat().into()
}

fn request(id: &str, text: &str) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "BYTES".to_owned(),
        shape: vec![1],
        ..Default::default()
    };
    ModelInferRequest {
        model_name: "echo".to_owned(),
        id: id.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![element(text)],
        ..Default::default()
    }
}

fn integer(value: i64) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) }
}

/// Id, first output or error, and the final flag of a stream's response.
fn summary(response: ModelStreamInferResponse) -> (String, Result<Bytes, String>, bool) {
    let ModelStreamInferResponse { error_message, infer_response } = response;
    let response = infer_response.expect("every response has one");
    let flag = response.parameters.get("triton_final_response").and_then(|flag| flag.parameter_choice.clone());
    let outcome = match error_message.is_empty() {
        true => Ok(response.raw_output_contents[0].clone()),
        false => Err(error_message),
    };
    (response.id, outcome, flag == Some(ParameterChoice::BoolParam(true)))
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("took too long")
}

fn assert_status<T: std::fmt::Debug>(outcome: Result<T, Status>, code: Code, text: &str) {
    let status = outcome.expect_err(text);
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(text), "{:?} does not contain {text:?}", status.message());
}

/// Refusals have it in their metadata, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_call_comes_back() {
    let Server { gateway, worker, mut client, .. } = Server::start(&["--api-key=k"]).await;
    let call = |id: Option<&'static str>| {
        let mut call = Request::new(ServerLiveRequest {});
        if let Some(id) = id {
            call.metadata_mut().insert("x-request-id", id.parse().unwrap());
        }
        call
    };
    let given = client.server_live(call(Some("id-1"))).await.unwrap();
    assert_eq!(given.metadata().get("x-request-id").unwrap(), "id-1");
    let made = client.server_live(call(None)).await.unwrap();
    assert_eq!(made.metadata().get("x-request-id").unwrap().len(), 32);
    let mut metadata = Request::new(ServerMetadataRequest {});
    metadata.metadata_mut().insert("x-request-id", "id-2".parse().unwrap());
    let refused = client.server_metadata(metadata).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.metadata().get("x-request-id").unwrap().as_bytes()),
        (Code::Unauthenticated, &b"id-2"[..])
    );
    gateway.drain().await;
    worker.drain(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn describes_the_server_and_its_models() {
    let Server { gateway, mut client, .. } = Server::start(&["--id", "trireme-1"]).await;
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let named = |name: &str, version: &str| ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
    assert!(client.model_ready(named("echo", "1")).await.unwrap().into_inner().ready);
    assert_status(client.model_ready(named("none", "")).await, Code::NotFound, "unknown model: 'none' is not found");
    assert_status(client.model_ready(named("echo", "x")).await, Code::InvalidArgument, "version string 'x'");

    let server = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!(server.name, "trireme-1");
    let metadata = ModelMetadataRequest { name: "echo".to_owned(), version: String::new() };
    let metadata = client.model_metadata(metadata).await.unwrap().into_inner();
    assert_eq!((metadata.versions[0].as_str(), metadata.inputs[0].datatype.as_str()), ("1", "BYTES"));
    let config = ModelConfigRequest { name: "echo".to_owned(), version: "1".to_owned() };
    let config = client.model_config(config).await.unwrap().into_inner().config.unwrap();
    assert_eq!((config.name.as_str(), config.backend.as_str(), config.input.len()), ("echo", "identity", 1));

    let mut health = HealthClient::new(connect(&gateway).await);
    let check = HealthCheckRequest { service: "whatever".to_owned() };
    let status = health.check(check.clone()).await.unwrap().into_inner().status();
    assert_eq!(status, ServingStatus::Serving);
    assert_status(health.watch(check).await, Code::Unimplemented, "use Check");
    let statistics = |name: &str| ModelStatisticsRequest { name: name.to_owned(), version: String::new() };
    let all = client.model_statistics(statistics("")).await.unwrap().into_inner().model_stats;
    assert_eq!(all.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["echo", "many"]);
    assert!(all.iter().all(|model| model.inference_stats.as_ref().is_some_and(|stats| stats.cache_miss.is_some())));
    let unknown = client.model_statistics(statistics("nothing")).await;
    assert_status(unknown, Code::InvalidArgument, "requested model 'nothing' is not available");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_models_and_loads_none() {
    let Server { worker, mut client, .. } = Server::start(&[]).await;
    let request = |ready| RepositoryIndexRequest { ready, ..Default::default() };
    for ready in [false, true] {
        let index = client.repository_index(request(ready)).await.unwrap().into_inner().models;
        let found: Vec<_> = index.iter().map(|m| [&m.name, &m.version, &m.state, &m.reason]).collect();
        assert_eq!(found, [["echo", "1", "READY", ""], ["many", "1", "READY", ""]]);
    }
    worker.drain(PATIENCE).await;
    let gone = async {
        while !client.repository_index(request(true)).await.unwrap().into_inner().models.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(gone).await;

    let polling = "explicit model load / unload is not allowed if polling is enabled";
    let unnamed = "'repository_name' specification is not supported";
    for (repository, code, text) in [("", Code::Unavailable, polling), ("r", Code::Unimplemented, unnamed)] {
        let (repository_name, model_name) = (repository.to_owned(), "echo".to_owned());
        let load = RepositoryModelLoadRequest { repository_name, model_name, ..Default::default() };
        let unload = RepositoryModelUnloadRequest {
            repository_name: load.repository_name.clone(),
            model_name: load.model_name.clone(),
            ..Default::default()
        };
        assert_status(client.repository_model_load(load).await, code, text);
        assert_status(client.repository_model_unload(unload).await, code, text);
    }
    let index = RepositoryIndexRequest { repository_name: "r".to_owned(), ready: false };
    assert_status(client.repository_index(index).await, Code::Unimplemented, unnamed);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_has_a_status_and_no_regions() {
    let Server { mut client, .. } = Server::start(&[]).await;
    let all = client.system_shared_memory_status(SystemSharedMemoryStatusRequest::default()).await.unwrap();
    assert!(all.into_inner().regions.is_empty());
    let all = client.cuda_shared_memory_status(CudaSharedMemoryStatusRequest::default()).await.unwrap();
    assert!(all.into_inner().regions.is_empty());
    let one = SystemSharedMemoryStatusRequest { name: "r".to_owned() };
    let text = "Unable to find system shared memory region: 'r'";
    assert_status(client.system_shared_memory_status(one).await, Code::NotFound, text);
    let one = CudaSharedMemoryStatusRequest { name: "r".to_owned() };
    let text = "Unable to find cuda shared memory region: 'r'";
    assert_status(client.cuda_shared_memory_status(one).await, Code::NotFound, text);

    let controls = [
        client.system_shared_memory_register(SystemSharedMemoryRegisterRequest::default()).await.map(drop),
        client.system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest::default()).await.map(drop),
        client.cuda_shared_memory_register(CudaSharedMemoryRegisterRequest::default()).await.map(drop),
        client.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest::default()).await.map(drop),
    ];
    for outcome in controls {
        assert_status(outcome, Code::Unimplemented, "Client shared memory is disabled. Start the server with");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_are_registered_where_that_is_allowed() {
    let Server { mut client, .. } = Server::start(&["--allow-client-shm"]).await;
    let none =
        SystemSharedMemoryRegisterRequest { name: "r".to_owned(), key: "/none".to_owned(), ..Default::default() };
    let text = "Unable to open shared memory region: '/none'";
    assert_status(client.system_shared_memory_register(none).await, Code::Internal, text);
    client.system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest::default()).await.unwrap();
    let none = CudaSharedMemoryRegisterRequest { name: "c".to_owned(), ..Default::default() };
    let text = "failed to register CUDA shared memory region: 'c', GPUs not supported";
    assert_status(client.cuda_shared_memory_register(none).await, Code::InvalidArgument, text);
    let metadata = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert!(metadata.extensions.iter().any(|extension| extension == "system_shared_memory"));
}

/// The value of this parameter that the model got.
async fn shown(client: &mut Client, parameter: &str, metadata: &[(&'static str, &str)]) -> Result<String, Status> {
    let mut call = Request::new(request("1", &format!("show {parameter}")));
    for (name, value) in metadata {
        call.metadata_mut().insert(*name, value.parse().expect("an ASCII value"));
    }
    let response = client.model_infer(call).await?.into_inner();
    Ok(String::from_utf8_lossy(&response.raw_output_contents[0][4..]).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_matches_reaches_models_as_parameters() {
    let Server { mut client, .. } = Server::start(&["--grpc-header-forward-pattern=^X-.*"]).await;
    let given = [("x-tenant", "7"), ("tenant", "8")];
    assert_eq!(shown(&mut client, "x-tenant", &given).await.unwrap(), r#"String("7")"#);
    assert_eq!(shown(&mut client, "tenant", &given).await.unwrap(), "none");

    let mut call = Request::new(stream::iter([request("1", "show x-tenant")]));
    call.metadata_mut().insert("x-tenant", "9".parse().unwrap());
    let mut replies = client.model_stream_infer(call).await.unwrap().into_inner();
    let reply = replies.next().await.expect("an answer").unwrap().infer_response.expect("a response");
    assert_eq!(reply.raw_output_contents[0][4..], *br#"String("9")"#);

    let Server { mut client, .. } = Server::start(&[]).await;
    assert_eq!(shown(&mut client, "x-tenant", &given).await.unwrap(), "none");
    let Server { mut client, .. } = Server::start(&["--grpc-header-forward-pattern=.*"]).await;
    for reserved in ["timeout", "priority", "sequence_id", "triton_x"] {
        let given = [(reserved, "1"), ("x-tenant", "7")];
        assert_eq!(shown(&mut client, reserved, &given).await.unwrap(), "none", "{reserved}");
        assert_eq!(shown(&mut client, "x-tenant", &given).await.unwrap(), r#"String("7")"#, "{reserved}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_calls_metadata_says_where_the_time_went() {
    let Server { mut client, .. } = Server::start(&[]).await;
    let response = client.model_infer(request("1", "text")).await.unwrap();
    let timing = response.metadata().get("server-timing").expect("the ledger comes back").to_str().unwrap();
    let (head, rest) = timing.split_once("dur=").expect("a duration");
    assert_eq!(head, "echo;", "{timing}");
    rest.split(';').next().unwrap().parse::<f64>().expect("milliseconds");
    assert!(rest.contains("queue=") && rest.contains("transit="), "{timing}");
}

/// Settings with their values.
type Settings<'a> = &'a [(&'a str, &'a [&'a str])];

fn trace_request(model: &str, settings: Settings<'_>) -> TraceSettingRequest {
    let value = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
    let settings = settings
        .iter()
        .map(|(name, values)| (name.to_string(), trace_setting_request::SettingValue { value: value(values) }));
    TraceSettingRequest { settings: settings.collect(), model_name: model.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_settings_are_changed_and_shown() {
    let Server { mut client, .. } = Server::start(&[]).await;
    // In order: the model of the settings, the change, and the rate that is shown after it.
    let table: [(&str, Settings<'_>, &str); 7] = [
        ("", &[], "1000"),
        ("echo", &[], "1000"),
        ("echo", &[("trace_rate", &["9"]), ("trace_count", &["5"])], "9"),
        ("", &[("trace_rate", &["7"])], "7"),
        ("echo", &[], "9"),
        ("echo", &[("trace_rate", &[])], "7"),
        ("", &[("trace_rate", &[])], "1000"),
    ];
    for (model, settings, rate) in table {
        let shown = client.trace_setting(trace_request(model, settings)).await.unwrap().into_inner().settings;
        assert_eq!(shown["trace_rate"].value, [rate], "{model:?} {settings:?}");
    }
    let shown = client.trace_setting(trace_request("echo", &[])).await.unwrap().into_inner().settings;
    assert_eq!(
        (&shown["trace_count"].value[..], &shown["trace_mode"].value[..]),
        (&["5".to_owned()][..], &["triton".to_owned()][..])
    );

    let faulty: [(&str, &str, &[&str], Code, &str); 5] = [
        ("", "trace_level", &["TIMESTAMPS"], Code::InvalidArgument, "trace file name is not given"),
        ("none", "trace_rate", &["1"], Code::InvalidArgument, "Request for unknown model : none"),
        ("", "trace_file", &["x"], Code::Unimplemented, "trace file location can not be updated"),
        ("", "trace_rate", &["x"], Code::InvalidArgument, "Unable to parse 'trace_rate', got: x"),
        ("", "trace_count", &["1", "2"], Code::InvalidArgument, "expect only 1 value for 'trace_count'"),
    ];
    for (model, name, values, code, text) in faulty {
        assert_status(client.trace_setting(trace_request(model, &[(name, values)])).await, code, text);
    }
    assert_status(
        client.trace_setting(trace_request("none", &[])).await,
        Code::InvalidArgument,
        "unknown model : none",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn log_settings_are_shown_and_faulty_ones_refused() {
    use log_settings_request::setting_value::ParameterChoice::{BoolParam, StringParam, Uint32Param};
    use log_settings_response::setting_value::ParameterChoice as Shown;
    let Server { mut client, .. } = Server::start(&[]).await;
    let request = |name: &str, value| {
        let value = log_settings_request::SettingValue { parameter_choice: Some(value) };
        LogSettingsRequest { settings: [(name.to_owned(), value)].into() }
    };
    let shown = client.log_settings(LogSettingsRequest::default()).await.unwrap().into_inner().settings;
    let names: Vec<_> = shown.keys().map(String::as_str).collect();
    assert_eq!(names, ["log_error", "log_file", "log_format", "log_info", "log_verbose_level", "log_warning"]);
    assert_eq!(shown["log_format"].parameter_choice, Some(Shown::StringParam("default".to_owned())));

    let table = [
        ("log_file", StringParam("x".to_owned()), Code::Unimplemented, "log file location can not be updated"),
        ("log_format", StringParam("x".to_owned()), Code::Unavailable, "invalid argument for --log_format, got: x"),
        ("log_info", Uint32Param(1), Code::InvalidArgument, "expect boolean for 'log_info'"),
        ("log_verbose_level", BoolParam(true), Code::InvalidArgument, "expect int32 for 'log_verbose_level'"),
    ];
    for (name, value, code, text) in table {
        assert_status(client.log_settings(request(name, value)).await, code, text);
    }
    let unchanged = client.log_settings(LogSettingsRequest::default()).await.unwrap().into_inner().settings;
    assert_eq!(unchanged, shown);
    let changed = client.log_settings(request("log_format", StringParam("ISO8601".to_owned()))).await.unwrap();
    let format = &changed.into_inner().settings["log_format"].parameter_choice;
    assert_eq!(format, &Some(Shown::StringParam("ISO8601".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_and_refuses_with_statuses() {
    let Server { mut client, .. } = Server::start(&[]).await;
    let response = client.model_infer(request("7", "hello")).await.unwrap().into_inner();
    assert_eq!((response.model_version.as_str(), response.id.as_str()), ("1", "7"));
    assert_eq!((response.outputs[0].name.as_str(), &response.outputs[0].shape[..]), ("OUTPUT0", &[1][..]));
    assert_eq!(response.raw_output_contents, [element("hello")]);

    let unknown = ModelInferRequest { model_name: "none".to_owned(), ..request("", "") };
    assert_status(client.model_infer(unknown).await, Code::NotFound, "Request for unknown model: 'none' is not found");
    let missing = ModelInferRequest { inputs: Vec::new(), ..request("9", "") };
    assert_status(
        client.model_infer(missing).await,
        Code::InvalidArgument,
        "[request id: 9] expected 1 inputs but got 0",
    );
    assert_status(client.model_infer(request("", "refuse")).await, Code::InvalidArgument, "refused");
    let decoupled = ModelInferRequest { model_name: "many".to_owned(), ..request("", "") };
    assert_status(client.model_infer(decoupled).await, Code::Unimplemented, "decoupled transaction policy");
    let impatient = ModelInferRequest {
        parameters: [("trireme_timeout_ms".to_owned(), integer(20))].into(),
        ..request("", "slow")
    };
    assert_status(client.model_infer(impatient).await, Code::Unavailable, "Request timeout expired");
    let parameters = [("trireme_timeout_ms".to_owned(), integer(3_600_001))].into();
    let greedy = ModelInferRequest { parameters, ..request("9", "hello") };
    let words = "[request id: 9] 'trireme_timeout_ms' is 3600001 ms, more than the gateway allows: send at most 3600000, the \
                 gateway's --max-timeout-ms";
    assert_status(client.model_infer(greedy).await, Code::InvalidArgument, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn takes_and_gives_compressed_messages() {
    let Server { gateway, .. } = Server::start(&["--grpc-infer-response-compression-level=high"]).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = Client::new(connect(&gateway).await).send_compressed(encoding).accept_compressed(encoding);
        let text = "row ".repeat(100_000);
        let response = client.model_infer(request("", &text)).await.unwrap();
        let used = response.metadata().get("grpc-encoding").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(used.as_deref(), Some(if encoding == CompressionEncoding::Gzip { "gzip" } else { "deflate" }));
        assert_eq!(response.into_inner().raw_output_contents, [element(&text)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_other_than_health_checks_need_a_key() {
    let Server { gateway, mut client, .. } = Server::start(&["--api-key", "secret"]).await;
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let mut health = HealthClient::new(connect(&gateway).await);
    assert!(health.check(HealthCheckRequest::default()).await.is_ok());
    assert_status(client.model_infer(request("", "x")).await, Code::Unauthenticated, "a valid API key is required");
    let streamed = client.model_stream_infer(stream::iter([request("", "x")])).await;
    assert_status(streamed.map(drop), Code::Unauthenticated, "a valid API key is required");
    let with = |name: &'static str, value: &'static str| {
        let mut call = Request::new(request("", "x"));
        call.metadata_mut().insert(name, value.parse().unwrap());
        call
    };
    assert_status(client.model_infer(with("x-api-key", "wrong")).await, Code::Unauthenticated, "API key");
    assert!(client.model_infer(with("x-api-key", "secret")).await.is_ok());
    assert!(client.model_infer(with("authorization", "Bearer secret")).await.is_ok());
    // A proxy may want the other header for itself.
    let mut both = with("x-api-key", "secret");
    both.metadata_mut().insert("authorization", "Bearer of-a-proxy".parse().unwrap());
    assert!(client.model_infer(both).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_restricted_categories_need_their_header() {
    let flags =
        ["--grpc-restricted-protocol=health,inference:Admin=s3=cret", "--grpc-restricted-protocol=logging:log=x"];
    let Server { gateway, mut client, .. } = Server::start(&flags).await;
    let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'";
    assert_status(client.server_live(ServerLiveRequest {}).await, Code::Unavailable, text);
    let mut health = HealthClient::new(connect(&gateway).await);
    assert_status(health.check(HealthCheckRequest::default()).await, Code::Unavailable, text);
    let streamed = client.model_stream_infer(stream::iter([request("", "x")])).await;
    assert_status(streamed.map(drop), Code::Unavailable, text);
    for (value, admits) in [("s3=cret", true), ("s3", false)] {
        let mut call = Request::new(request("", "x"));
        call.metadata_mut().insert("triton-grpc-protocol-admin", value.parse().unwrap());
        assert_eq!(client.model_infer(call).await.is_ok(), admits, "{value}");
    }
    let text = "expecting header 'triton-grpc-protocol-log'";
    assert_status(client.log_settings(LogSettingsRequest::default()).await, Code::Unavailable, text);
    assert!(client.server_metadata(ServerMetadataRequest {}).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_is_refused() {
    let Server { mut client, .. } = Server::start(&["--grpc-max-message-size", "1000"]).await;
    assert!(client.model_infer(request("", &"x".repeat(500))).await.is_ok());
    assert_status(
        client.model_infer(request("", &"x".repeat(1000))).await,
        Code::OutOfRange,
        "the limit is: 1000 bytes",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_s_deadline_takes_no_request_past_the_gateway_s_limit() {
    let server = Server::start(&["--default-timeout-ms=100", "--max-timeout-ms=100"]).await;
    let mut call = Request::new(request("7", "wait"));
    call.set_timeout(PATIENCE);
    let words = "[request id: 7] Request timeout expired: no answer within the 100 ms";
    assert_status(within(server.client.clone().model_infer(call)).await, Code::Unavailable, words);
    server.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_show_the_beginning_of_a_client_s_text() {
    let mut client = Server::start(&[]).await.client;
    let refused = client.model_infer(request(&("\n".to_owned() + &"i".repeat(9000)), "refuse")).await.unwrap_err();
    let id = format!("[request id: \\n{}…] ", "i".repeat(255));
    assert!(refused.message().starts_with(&id) && refused.message().len() < 400, "{}", refused.message());
    let unknown = ModelInferRequest { model_name: "é".repeat(9000), ..request("", "x") };
    let words = format!("Request for unknown model: '{}…' is not found", "é".repeat(128));
    assert_status(client.model_infer(unknown).await, Code::NotFound, &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_call_and_the_request() {
    let server = Server::start(&[]).await;
    // As many as there are instances keep them busy; one more waits, and must not run once its call is over.
    let busy: Vec<_> = (0..INSTANCES)
        .map(|_| {
            let mut client = server.client.clone();
            async move { client.model_infer(request("", "slow")).await.map(drop) }
        })
        .collect();
    let mut client = server.client.clone();
    let waits = async {
        server.wait_for_executions(INSTANCES).await;
        let mut call = Request::new(request("", "never"));
        call.set_timeout(SLOW / 3);
        let started = Instant::now();
        (client.model_infer(call).await, started.elapsed())
    };
    let (busy, (outcome, elapsed)) =
        within(futures_util::future::join(futures_util::future::join_all(busy), waits)).await;
    assert!(busy.into_iter().all(|outcome| outcome.is_ok()));
    let status = outcome.unwrap_err();
    // The client's own timer says cancelled, and either may be first.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    assert!(elapsed < SLOW, "{elapsed:?}");
    client.model_infer(request("", "last")).await.unwrap();
    assert_eq!(server.executions(), INSTANCES + 1, "the expired request was computed");
}

/// Keeps every instance busy for a while.
async fn keep_busy(server: &Server) -> tokio::task::JoinSet<()> {
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..INSTANCES {
        let mut client = server.client.clone();
        busy.spawn(async move { drop(client.model_infer(request("", "slow")).await.expect("an answer")) });
    }
    server.wait_for_executions(INSTANCES).await;
    busy
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_or_stream_that_its_client_cancels_is_not_computed() {
    let server = Server::start(&[]).await;
    let busy = keep_busy(&server).await;
    let mut client = server.client.clone();
    let mut leaving = tokio::task::JoinSet::new();
    leaving.spawn(async move { drop(client.model_infer(request("", "never")).await) });
    let mut client = server.client.clone();
    leaving.spawn(async move {
        let requests = stream::iter([request("", "never")]);
        let mut responses = client.model_stream_infer(requests).await.expect("a stream").into_inner();
        drop(responses.next().await);
    });
    // Both wait, unless this machine is slow: then they are gone before they come, which is as well.
    tokio::time::sleep(SLOW / 4).await;
    leaving.abort_all();
    within(busy.join_all()).await;
    let mut client = server.client.clone();
    within(client.model_infer(request("", "last"))).await.unwrap();
    assert_eq!(server.executions(), INSTANCES + 1, "what was cancelled was computed");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_are_in_flight_than_allowed() {
    let server = Server::start(&["--max-in-flight", &INSTANCES.to_string()]).await;
    let busy = keep_busy(&server).await;
    let mut client = server.client.clone();
    let refused = within(client.model_infer(request("", "one more"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(refused.message().contains("Exceeds maximum queue size"), "{refused:?}");
    within(busy.join_all()).await;
    within(client.model_infer(request("", "now"))).await.unwrap();
    assert_eq!(server.executions(), INSTANCES + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_keeps_order_while_requests_run_side_by_side() {
    let Server { mut client, .. } = Server::start(&[]).await;
    let texts = ["slow", "1", "slow", "2", "slow", "slow"];
    let requests: Vec<_> = texts.iter().enumerate().map(|(id, text)| request(&id.to_string(), text)).collect();
    let started = Instant::now();
    let responses = client.model_stream_infer(stream::iter(requests)).await.unwrap().into_inner();
    let found: Vec<_> = within(responses.map(|response| summary(response.unwrap())).collect()).await;
    let expected: Vec<_> =
        texts.iter().enumerate().map(|(id, text)| (id.to_string(), Ok(element(text)), true)).collect();
    assert_eq!(found, expected);
    assert!(started.elapsed() < SLOW * 3, "one after the other it would take {:?}", SLOW * 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_responses_of_the_stream() {
    let Server { mut client, .. } = Server::start(&[]).await;
    let unknown = ModelInferRequest { model_name: "none".to_owned(), ..request("b", "") };
    let requests = stream::iter([request("a", "refuse"), unknown, request("c", "fine")]);
    let responses = client.model_stream_infer(requests).await.unwrap().into_inner();
    let found: Vec<_> = within(responses.map(|response| summary(response.unwrap())).collect()).await;
    let [(a, refused, true), (b, not_found, false), (c, fine, true)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((a.as_str(), b.as_str(), c.as_str()), ("a", "b", "c"));
    assert!(refused.as_ref().unwrap_err().contains("refused"));
    assert!(not_found.as_ref().unwrap_err().contains("Request for unknown model: 'none' is not found"));
    assert_eq!(fine.as_ref().unwrap(), &element("fine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_may_ask_to_end_with_its_first_error() {
    let Server { mut client, .. } = Server::start(&[]).await;
    let mut call = Request::new(stream::iter([request("a", "fine"), request("b", "refuse"), request("c", "fine")]));
    call.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    let mut responses = client.model_stream_infer(call).await.unwrap().into_inner();
    assert_eq!(summary(within(responses.message()).await.unwrap().unwrap()).0, "a");
    assert_status(within(responses.message()).await, Code::InvalidArgument, "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_calls_and_ends_open_streams() {
    let Server { gateway, worker, mut client, executions, .. } = Server::start(&[]).await;
    let open = stream::iter([request("a", "slow")]).chain(stream::pending());
    let mut responses = client.model_stream_infer(open).await.unwrap().into_inner();
    let mut caller = client.clone();
    let call = async move { caller.model_infer(request("", "slow")).await };
    let drain = async {
        within(async {
            while executions.load(Ordering::SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let started = Instant::now();
        gateway.drain().await;
        started.elapsed()
    };
    let streamed = async { (responses.message().await, responses.message().await) };
    let (answer, elapsed, (first, second)) = within(futures_util::future::join3(call, drain, streamed)).await;
    assert_eq!(answer.unwrap().into_inner().raw_output_contents, [element("slow")]);
    assert_eq!(summary(first.unwrap().unwrap()).1, Ok(element("slow")));
    assert_status(second, Code::Unavailable, "Server is stopping");
    assert!(elapsed < PATIENCE / 2, "an open stream held up the drain for {elapsed:?}");
    assert_eq!(worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_sends_the_calls_of_open_connections_elsewhere() {
    let Server { gateway, worker, mut client, executions, released, .. } = Server::start(&[]).await;
    let begun = async || {
        while executions.load(Ordering::SeqCst) < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut caller = client.clone();
    let held = async move { caller.model_infer(request("", "wait")).await };
    let drain = async {
        begun().await;
        gateway.drain().await;
    };
    // The client got GOAWAY, and no listener accepts its next connection.
    let refused = async {
        begun().await;
        let refused = loop {
            match client.model_infer(request("", "fine")).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(refused) => break refused,
            }
        };
        *released.0.lock() = true;
        released.1.notify_all();
        refused
    };
    let (held, (), refused) = within(futures_util::future::join3(held, drain, refused)).await;
    assert_eq!(held.unwrap().into_inner().raw_output_contents, [element("wait")], "what was begun is finished");
    // The client's own words for a connection that closes, for a call that it began just before GOAWAY came, or for a connection that is
    // not accepted.
    let is_closed = matches!(refused.code(), Code::Cancelled | Code::Unavailable);
    assert!(is_closed || format!("{refused:?}").contains("GoAway"), "{refused:?}");
    assert_eq!(worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let models = ModelOptions::default();
    let flags = args(&["--grpc-port", &port]);
    let outcome =
        Gateway::start(Arc::new(InProcess::default()), Statistics::new("gateway"), models, &flags, PATIENCE).await;
    let error = format!("{:#}", outcome.err().expect("the port is taken"));
    assert!(error.contains(&format!("cannot listen on 127.0.0.1:{port} for gRPC")), "{error}");
    assert!(error.contains("--grpc-port"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_can_be_switched_off() {
    let models = ModelOptions::default();
    let flags = args(&["--allow-grpc=false"]);
    let gateway = Gateway::start(Arc::new(InProcess::default()), Statistics::new("gateway"), models, &flags, PATIENCE)
        .await
        .unwrap();
    assert_eq!(gateway.grpc_address, None);
    gateway.drain().await;
}

/// A request over HTTP with a body of so many bytes, which waits in the model: then its bytes have come and are counted.
async fn keep_bytes(server: &Server, bytes: usize) -> TcpStream {
    let json =
        r#"{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":SIZE}}]}"#;
    let size = bytes - json.len() - 1;
    let json = json.replace("SIZE", &format!("{size:5}"));
    let head = format!(
        "POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\nInference-Header-Content-Length: {}\r\n\r\n",
        json.len()
    );
    let text = format!("wait{}", "x".repeat(size - 8));
    let request = [head.as_bytes(), json.as_bytes(), &element(&text)].concat();
    let address = server.gateway.http_address.expect("HTTP is on");
    let mut connection = TcpStream::connect(address).await.expect("the port is open");
    let executions = server.executions();
    connection.write_all(&request).await.expect("the server reads");
    server.wait_for_executions(executions + 1).await;
    connection
}

/// Both protocols share one budget: a call finds no room for bytes that a body over HTTP holds.
#[tokio::test(flavor = "multi_thread")]
async fn calls_for_which_no_bytes_are_left_are_refused() {
    let server = Server::start(&["--max-bytes-in-flight", "100000"]).await;
    let mut client = server.client.clone();
    let other = keep_bytes(&server, 60_000).await;
    let text = "x".repeat(60_000);
    let large = || request("large", &text);
    let refused = within(client.model_infer(large())).await;
    assert_status(refused, Code::Unavailable, "Exceeds maximum queue size");
    within(client.model_infer(request("small", "x"))).await.unwrap();

    let messages = stream::iter([large(), large()]);
    let replies = within(client.model_stream_infer(messages)).await.map(tonic::Response::into_inner);
    let refused = match replies {
        Ok(mut replies) => within(replies.next()).await.expect("a status").expect_err("no room"),
        Err(refused) => refused,
    };
    assert_status::<()>(Err(refused), Code::Unavailable, "Exceeds maximum queue size");

    server.release();
    drop(other);
    within(async { while client.model_infer(large()).await.is_err() {} }).await;
    // The messages of a stream do not add up. A client may have an answer a little before its request has given its bytes
    // back, so that there has to be room for two of them, and for the call before.
    let text = "y".repeat(15_000);
    let (sender, messages) = tokio::sync::mpsc::channel(1);
    let messages = stream::unfold(messages, async |mut messages| Some((messages.recv().await?, messages)));
    sender.send(request("part", &text)).await.unwrap();
    let mut replies = within(client.model_stream_infer(messages)).await.unwrap().into_inner();
    for _ in 0..10 {
        let reply = within(replies.next()).await.expect("an answer").unwrap();
        assert_eq!(summary(reply).1, Ok(element(&text)));
        sender.send(request("part", &text)).await.unwrap();
    }
}

/// The expanded size of a message counts, whether its coding expands or its numbers and texts do.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_become_too_large_are_refused() {
    let Server { gateway, worker: _worker, mut client, .. } = Server::start(&["--max-bytes-in-flight", "100000"]).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = Client::new(connect(&gateway).await).send_compressed(encoding);
        within(client.model_infer(request("", &"x".repeat(30_000)))).await.unwrap();
        let refused = within(client.model_infer(request("", &"x".repeat(99_990)))).await;
        assert_status(refused, Code::Unavailable, "Exceeds maximum queue size");
        let refused = within(client.model_infer(request("", &"x".repeat(1_000_000)))).await;
        assert!(refused.is_err(), "larger than the whole");
    }
    let typed = |elements: usize| {
        let contents = InferTensorContents { bytes_contents: vec![Default::default(); elements], ..Default::default() };
        let mut typed = ModelInferRequest { raw_input_contents: Vec::new(), ..request("", "") };
        typed.inputs[0].contents = Some(contents);
        typed.inputs[0].shape = vec![elements as i64];
        typed
    };
    within(client.model_infer(typed(10_000))).await.unwrap();
    assert_status(within(client.model_infer(typed(30_000))).await, Code::ResourceExhausted, "once it is decoded");
}

/// A connection with a call of `ModelInfer` whose body is announced and does not come. HTTP/2 by hand, because libraries do not
/// send this.
struct Announced(TcpStream);

impl Announced {
    async fn connect(server: &Server, bytes: usize) -> Announced {
        let address = server.gateway.grpc_address.expect("gRPC is on");
        let mut connection = TcpStream::connect(address).await.expect("the port is open");
        let length = bytes.to_string();
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ModelInfer"),
            (":authority", "gateway"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("content-length", &length),
        ];
        // Literals without an index.
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let block: Vec<u8> =
            fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect();
        let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
        };
        let settings = frame(4, 0, 0, &[]);
        // The headers end, the stream does not.
        let headers = frame(1, 4, 1, &block);
        let ping = frame(6, 0, 0, b"anything");
        let sent = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &headers, &ping].concat();
        connection.write_all(&sent).await.expect("the server reads");
        let mut announced = Announced(connection);
        // The answer to the ping shows that the server has read the frames before it.
        announced.wait_for(6).await;
        announced
    }

    /// Reads frames until one of this kind comes.
    async fn wait_for(&mut self, kind: u8) -> Vec<u8> {
        within(async {
            loop {
                let mut head = [0; 9];
                self.0.read_exact(&mut head).await.expect("the server goes on");
                let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                self.0.read_exact(&mut payload).await.expect("the server goes on");
                if head[3] == kind {
                    return payload;
                }
            }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_only_announces_its_bytes_takes_no_room_and_ends() {
    let server = Server::start(&["--max-bytes-in-flight", "100000", "--http-idle-timeout-secs", "1"]).await;
    let mut announced = Announced::connect(&server, 100_000).await;
    let mut client = server.client.clone();
    for _ in 0..10 {
        within(client.model_infer(request("", &"x".repeat(1000)))).await.expect("there is room");
    }
    // The call's only frame of headers: the status that it ends with.
    announced.wait_for(1).await;
}

/// Health checks show that a gateway without room is not broken, and its models can be unloaded.
#[tokio::test(flavor = "multi_thread")]
async fn calls_about_the_server_are_answered_when_no_bytes_are_left() {
    let server = Server::start(&["--max-bytes-in-flight", "50000"]).await;
    let mut client = server.client.clone();
    let _other = keep_bytes(&server, 50_000).await;
    assert_status(within(client.model_infer(request("", "x"))).await, Code::Unavailable, "Exceeds maximum queue size");
    within(client.server_live(ServerLiveRequest {})).await.unwrap();
    within(client.server_ready(ServerReadyRequest {})).await.unwrap();
    let mut health = HealthClient::new(connect(&server.gateway).await);
    within(health.check(HealthCheckRequest { service: "whatever".to_owned() })).await.unwrap();
    let metadata = ModelMetadataRequest { name: "echo".to_owned(), version: String::new() };
    within(client.model_metadata(metadata)).await.unwrap();
    within(client.model_statistics(ModelStatisticsRequest { name: "echo".to_owned(), version: String::new() }))
        .await
        .unwrap();
    within(client.repository_index(RepositoryIndexRequest::default())).await.unwrap();
    server.release();
}
