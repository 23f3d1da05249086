//! Busy processes: they do not take a slow broker for dead, and ask it seldom.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use trireme_bus::WaitTimeout;

use super::*;

/// Bytes a second that a slow link takes from a client, for each connection.
const SLOW: usize = 2 << 20;

/// The URL of a link to the server that is slow in one direction: the server gets little at a time.
async fn slow_link(server: &NatsServer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let target = server.url().trim_start_matches("nats://").to_owned();
    #[allow(clippy::disallowed_methods, reason = "the runtime of the test ends with it")]
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let broker = TcpStream::connect(&target).await.expect("the broker listens");
            #[allow(clippy::disallowed_methods, reason = "the runtime of the test ends with it")]
            tokio::spawn(async move {
                let ((mut from, mut to), (mut answers, mut questions)) = (client.into_split(), broker.into_split());
                let slowly = async {
                    let mut bytes = vec![0; SLOW / 50];
                    while let Ok(read @ 1..) = from.read(&mut bytes).await {
                        if questions.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_secs(1).mul_f64(read as f64 / SLOW as f64)).await;
                    }
                };
                tokio::select! {
                    () = slowly => {}
                    _ = tokio::io::copy(&mut answers, &mut to) => {}
                }
            });
        }
    });
    url
}

/// A question about the broker must not wait behind the messages of a busy process, nor a ping.
#[tokio::test]
async fn a_broker_behind_a_full_connection_is_alive() {
    const MESSAGES: usize = 22;
    let server = NatsServer::start();
    let gateway = connect_as(&at(&slow_link(&server).await)).await;
    let raw = async_nats::connect(server.url()).await.unwrap();
    let mut come = raw.subscribe("trireme.control.load").await.unwrap();
    raw.flush().await.unwrap();
    let (fault, connection) = (gateway.fault(), gateway.connection());
    let body = Bytes::from(vec![0; 512 << 10]);
    for _ in 0..MESSAGES {
        gateway.publish_to("load", body.clone()).await.unwrap();
    }
    for _ in 0..MESSAGES {
        within("a message over the slow link", come.next()).await.unwrap();
    }
    assert!(!fault.has_changed().unwrap(), "{:?}", *fault.borrow());
    assert!(!connection.has_changed().unwrap(), "the connection was held for lost");
}

/// The broker is not asked before the oldest message can be overdue.
#[tokio::test]
async fn a_worker_without_room_seldom_asks_what_waits() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let model = model("patient");
    let policy = LevelPolicy { timeout: Some(WaitTimeout::Reject(Duration::from_secs(600))), ..LevelPolicy::default() };
    bus.declare_queue(&model, &QueueOptions { levels: [(1, policy)].into(), ..options() }).await.unwrap();
    let mut consumer = bus.pull(&model).await.unwrap();
    let raw = async_nats::connect(server.url()).await.unwrap();
    let mut asked = raw.subscribe("$JS.API.CONSUMER.INFO.>").await.unwrap();
    raw.flush().await.unwrap();
    bus.publish(&message_at(&model, 1, 1)).await.unwrap();
    for _ in 0..100 {
        assert!(consumer.overdue().await.unwrap().is_empty());
    }
    raw.publish("$JS.API.CONSUMER.INFO.the.end", Bytes::new()).await.unwrap();
    let mut times = 0;
    while !within("the end", asked.next()).await.unwrap().subject.ends_with(".the.end") {
        times += 1;
    }
    assert_eq!(times, 1);
}
