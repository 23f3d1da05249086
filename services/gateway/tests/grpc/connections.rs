//! Connections over gRPC: which of them may change the server, which end, and which are refused.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use tokio::task::JoinSet;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// This host's address for other hosts; finding it sends no packet. `None` if the host has only loopback.
fn address_for_others() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

async fn client_at(address: SocketAddr) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    Client::new(endpoint.connect().await.expect("the port is open"))
}

/// Status of each call that changes the server.
async fn changes(client: &mut Client) -> Vec<Code> {
    let name = || "x".to_owned();
    let logged = log_settings_request::SettingValue {
        parameter_choice: Some(log_settings_request::setting_value::ParameterChoice::Uint32Param(0)),
    };
    let logging = LogSettingsRequest { settings: [("log_verbose_level".to_owned(), logged)].into() };
    let traced = trace_setting_request::SettingValue { value: vec!["OFF".to_owned()] };
    let tracing = TraceSettingRequest { settings: [("trace_level".to_owned(), traced)].into(), ..Default::default() };
    let load = RepositoryModelLoadRequest { model_name: name(), ..Default::default() };
    let unload = RepositoryModelUnloadRequest { model_name: name(), ..Default::default() };
    let region = SystemSharedMemoryRegisterRequest { name: name(), ..Default::default() };
    let code = |outcome: Result<(), Status>| outcome.map_or_else(|status| status.code(), |()| Code::Ok);
    vec![
        code(client.repository_model_load(load).await.map(drop)),
        code(client.repository_model_unload(unload).await.map(drop)),
        code(client.log_settings(logging).await.map(drop)),
        code(client.trace_setting(tracing).await.map(drop)),
        code(client.system_shared_memory_register(region).await.map(drop)),
        code(client.system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest::default()).await.map(drop)),
        code(client.cuda_shared_memory_register(CudaSharedMemoryRegisterRequest::default()).await.map(drop)),
        code(client.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest::default()).await.map(drop)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn other_hosts_do_not_change_the_server_unless_a_flag_says_so() {
    let everywhere = ["--grpc-address", "0.0.0.0"];
    let server = Server::start(&everywhere).await;
    let port = server.gateway.grpc_address.expect("gRPC is on").port();
    assert!(!changes(&mut client_at(([127, 0, 0, 1], port).into()).await).await.contains(&Code::PermissionDenied));
    let Some(address) = address_for_others() else { return eprintln!("this host has no address but loopback") };
    let mut remote = client_at((address, port).into()).await;
    assert_eq!(changes(&mut remote).await, [Code::PermissionDenied; 8]);
    let refused = remote.repository_model_load(RepositoryModelLoadRequest::default()).await;
    assert_status(refused, Code::PermissionDenied, "--control-access=any");
    remote.log_settings(LogSettingsRequest::default()).await.expect("looking is free");
    remote.trace_setting(TraceSettingRequest::default()).await.expect("looking is free");
    remote.system_shared_memory_status(SystemSharedMemoryStatusRequest::default()).await.expect("looking is free");
    remote.repository_index(RepositoryIndexRequest::default()).await.expect("looking is free");
    remote.model_infer(request("1", "x")).await.expect("so are requests for models");

    let server = Server::start(&[&everywhere[..], &["--control-access=any"]].concat()).await;
    let port = server.gateway.grpc_address.expect("gRPC is on").port();
    let codes = changes(&mut client_at((address, port).into()).await).await;
    assert!(!codes.contains(&Code::PermissionDenied), "{codes:?}");

    let server = Server::start(&["--control-access=none"]).await;
    assert_eq!(changes(&mut server.client.clone()).await, [Code::PermissionDenied; 8]);
}

/// Waits for the end of a connection, and returns the bytes that came before.
async fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    // Reset or closed, it is over.
    let _ = within(stream.read_to_end(&mut received)).await;
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_calls_ends_and_its_client_notices_nothing() {
    let server = Server::start(&["--http-idle-timeout-secs", "1"]).await;
    let address = server.gateway.grpc_address.expect("gRPC is on");
    let mut client = server.client.clone();
    client.model_infer(request("1", "before")).await.expect("an answer");
    // Opened later than the client's, they end later.
    let silent = TcpStream::connect(address).await.expect("the port is open");
    let mut idle = TcpStream::connect(address).await.expect("the port is open");
    idle.write_all(PREFACE).await.expect("it is taken");
    until_closed(silent).await;
    until_closed(idle).await;
    client.model_infer(request("2", "after")).await.expect("the client opens another connection");
    let waiting = tokio::time::timeout(Duration::from_millis(2500), client.model_infer(request("3", "wait"))).await;
    assert!(waiting.is_err(), "a call in flight keeps its connection");
    server.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_frames_without_a_request_ends_its_connection_only() {
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong";
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    const PRIORITY: &[u8] = b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x07";
    let server = Server::start(&[]).await;
    for frame in [PING, SETTINGS, PRIORITY] {
        let address = server.gateway.grpc_address.expect("gRPC is on");
        let (mut reading, mut writing) = TcpStream::connect(address).await.expect("the port is open").into_split();
        let mut answers = JoinSet::new();
        answers.spawn(async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await });
        writing.write_all(PREFACE).await.expect("it is taken");
        let flood = async {
            let frames = frame.repeat(1000);
            while writing.write_all(&frames).await.is_ok() {}
        };
        within(flood).await;
    }
    server.client.clone().model_infer(request("1", "x")).await.expect("others notice nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_leave_room_for_those_with_calls() {
    let server = Server::start(&["--max-connections", "4", "--max-connections-per-address", "4"]).await;
    let address = server.gateway.grpc_address.expect("gRPC is on");
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.expect("the kernel takes it"));
    }
    for number in 0..20 {
        client_at(address).await.model_infer(request(&number.to_string(), "x")).await.expect("an answer");
    }
    // Calls that last on every connection there may be.
    let mut working = JoinSet::new();
    for number in 0..4 {
        let mut client = client_at(address).await;
        working.spawn(async move { client.model_infer(request("", "wait")).await });
        server.wait_for_executions(21 + number).await;
    }
    let refused = client_at(address).await.model_infer(request("", "x")).await;
    assert_status(refused, Code::Unavailable, "--max-connections");
    assert!(client_at(address).await.server_live(ServerLiveRequest {}).await.expect("an answer").into_inner().live);
    server.release();
    for call in working.join_all().await {
        call.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_tells_its_connections_at_once() {
    let Server { gateway, worker, mut client, executions, .. } = Server::start(&[]).await;
    client.model_infer(request("1", "x")).await.expect("an answer");
    let address = gateway.grpc_address.expect("gRPC is on");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        client.model_infer(request("2", "slow")).await.expect("what was in flight is answered");
    });
    within(async {
        while executions.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut idle = TcpStream::connect(address).await.expect("the port is open");
    idle.write_all(PREFACE).await.expect("it is taken");
    tasks.spawn(gateway.drain());
    const GOAWAY: u8 = 7;
    let received = until_closed(idle).await;
    let mut rest = &received[..];
    let mut kinds = Vec::new();
    while let Some(([a, b, c, kind, ..], _)) = rest.split_first_chunk::<9>() {
        kinds.push(*kind);
        rest = rest.get(9 + u32::from_be_bytes([0, *a, *b, *c]) as usize..).unwrap_or_default();
    }
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    within(tasks.join_all()).await;
    drop(worker);
}
