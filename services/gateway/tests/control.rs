//! A gateway's answers right after a load or unload, while the announcements of workers have not come yet, or come late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::{Args, Command, FromArgMatches};
use parking_lot::Mutex;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use trireme_bus::{Bus, InProcess, ModelState, WorkerEntry};
use trireme_gateway::{Embedder, Gateway, GatewayArgs, ModelOptions};
use trireme_inference::{ModelKey, UnixMicros};
use trireme_protocol::grpc::wire::grpc_inference_service_client::GrpcInferenceServiceClient;
use trireme_protocol::grpc::wire::*;
use trireme_runtime::model_control::{Outcome, Override, Participant, Participation};
use trireme_runtime::{ControlMode, ControlOptions, Statistics, TaskSet};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A worker that carries out commands without announcing itself, as if its announcements were still on their way.
#[derive(Default)]
struct Mute {
    /// Every change has a later time than the one before.
    since: Mutex<u64>,
}

impl Mute {
    fn entry(&self, model: &str, state: ModelState) -> WorkerEntry {
        let mut since = self.since.lock();
        *since += 1;
        entry(model, state, *since)
    }
}

#[async_trait]
impl Participant for Mute {
    async fn load(&self, model: &str, _: &Override) -> Outcome {
        match model {
            "broken" => {
                let entries = vec![self.entry(model, ModelState::Unavailable("it is broken".to_owned()))];
                Outcome::Failed { why: "it is broken".to_owned(), entries }
            }
            _ => Outcome::Done(vec![self.entry(model, ModelState::Ready)]),
        }
    }

    async fn unload(&self, model: &str) -> Outcome {
        Outcome::Done(vec![self.entry(model, ModelState::Unloading)])
    }

    async fn wanted_changed(&self, _: &str, _: Option<&Override>) {}
}

pub fn entry(model: &str, state: ModelState, since: u64) -> WorkerEntry {
    WorkerEntry {
        worker: "mute".to_owned(),
        service: "test".to_owned(),
        host: "h".to_owned(),
        model: ModelKey { name: model.into(), version: 1 },
        state,
        config: format!(r#"{{"name":"{model}","backend":"identity"}}"#),
        capacity: 1,
        bulk: true,
        content: None,
        since: UnixMicros(since),
    }
}

pub struct Server {
    pub bus: Arc<InProcess>,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    gateway: Gateway,
    pub client: GrpcInferenceServiceClient<Channel>,
    tasks: TaskSet,
}

impl Server {
    pub async fn start() -> Server {
        Server::start_with(&[]).await
    }

    pub async fn start_with(flags: &[&str]) -> Server {
        Server::start_on(InProcess::default(), flags).await
    }

    pub async fn start_on(bus: InProcess, flags: &[&str]) -> Server {
        let (bus, tasks) = (Arc::new(bus), TaskSet::new());
        let worker =
            Participation::join(bus.clone(), "mute/worker".to_owned()).await.expect("in process nothing refuses");
        worker.serve(Arc::new(Mute::default()), &tasks);
        let control = ControlOptions { mode: ControlMode::Explicit, ..ControlOptions::default() };
        let models = ModelOptions { control, ..ModelOptions::default() };
        let ports = [
            "gateway",
            "--grpc-address=127.0.0.1",
            "--grpc-port=0",
            "--http-address=127.0.0.1",
            "--http-port=0",
            "--metrics-port=0",
        ];
        let matches =
            GatewayArgs::augment_args(Command::new("gateway")).try_get_matches_from(ports.iter().chain(flags));
        let args = GatewayArgs::from_arg_matches(&matches.expect("valid flags")).expect("valid flags");
        let gateway = Gateway::start(bus.clone(), Statistics::new("gateway"), models, &args, PATIENCE).await;
        let gateway = gateway.expect("free ports");
        let address = format!("http://{}", gateway.grpc_address.expect("gRPC is on"));
        let channel = Endpoint::from_shared(address).expect("an address").connect().await.expect("the port is open");
        let (http, grpc) = (gateway.http_address.expect("HTTP is on"), gateway.grpc_address.expect("gRPC is on"));
        Server { bus, http, grpc, gateway, client: GrpcInferenceServiceClient::new(channel), tasks }
    }

    async fn load(&mut self, model: &str) -> Result<(), tonic::Status> {
        let request = RepositoryModelLoadRequest { model_name: model.to_owned(), ..Default::default() };
        self.client.repository_model_load(request).await.map(drop)
    }

    async fn unload(&mut self, model: &str) {
        let request = RepositoryModelUnloadRequest { model_name: model.to_owned(), ..Default::default() };
        self.client.repository_model_unload(request).await.expect("unloading is no error");
    }

    /// Embeds texts without a listener.
    pub fn embedder(&self) -> Embedder {
        self.gateway.embedder()
    }

    pub async fn is_ready(&mut self, model: &str) -> bool {
        let request = ModelReadyRequest { name: model.to_owned(), ..Default::default() };
        self.client.model_ready(request).await.is_ok_and(|answer| answer.into_inner().ready)
    }

    /// State and reason in the index.
    async fn index(&mut self, model: &str) -> Option<(String, String)> {
        let index = self.client.repository_index(RepositoryIndexRequest::default()).await.expect("an index");
        let found = index.into_inner().models.into_iter().find(|line| line.name == model);
        found.map(|line| (line.state, line.reason))
    }

    /// The bus brings this, and the gateway has taken it in when this returns.
    pub async fn bring(&mut self, late: &WorkerEntry) {
        let bus: &dyn Bus = self.bus.as_ref();
        bus.announce(late).await.expect("in process nothing refuses");
        let marker = format!("after-{}-{}", late.model.name, late.since);
        bus.announce(&entry(&marker, ModelState::Ready, 1)).await.expect("in process nothing refuses");
        let taken = async { while !self.is_ready(&marker).await {} };
        tokio::time::timeout(PATIENCE, taken).await.expect("events come in order");
    }

    pub async fn stop(self) {
        self.gateway.drain().await;
        self.tasks.join().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_load_has_its_reason_at_once() {
    let mut server = Server::start().await;
    let refused = server.load("broken").await.expect_err("it cannot be loaded");
    assert!(refused.message().contains("it is broken"), "{refused}");
    assert_eq!(server.index("broken").await, Some(("UNAVAILABLE".to_owned(), "it is broken".to_owned())));
    let request = ModelInferRequest { model_name: "broken".to_owned(), ..Default::default() };
    let refused = server.client.model_infer(request).await.expect_err("it is not served");
    let text = "Request for unknown model: 'broken' has no available versions";
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, text));
    let ready = server.client.server_ready(ServerReadyRequest {}).await.expect("an answer").into_inner().ready;
    assert!(!ready, "a model that was asked for is missing");

    server.unload("broken").await;
    let ready = server.client.server_ready(ServerReadyRequest {}).await.expect("an answer").into_inner().ready;
    assert!(ready, "nobody asks for it any more");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_undoes_nothing() {
    let mut server = Server::start().await;
    server.load("m").await.expect("it can be loaded");
    assert!(server.is_ready("m").await);
    server.unload("m").await;
    assert!(!server.is_ready("m").await);
    server.bring(&entry("m", ModelState::Ready, 1)).await;
    assert!(!server.is_ready("m").await, "what was announced before it was unloaded");
    server.load("m").await.expect("it can be loaded again");
    server.bring(&entry("m", ModelState::Unloading, 2)).await;
    assert!(server.is_ready("m").await, "what was announced before it was loaded again");
    server.stop().await;
}
