//! The deployment's settings: those of the first gateway hold, whatever other processes want, until an operator changes
//! them.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use trireme_bus::fixtures::{options, within};
use trireme_bus::{Bus, BusError, Deployment, Nats, NatsOptions, QueueOptions};
use trireme_testkit::NatsServer;

use super::{at, connect_as, connect_stage};

fn gateway_with(server: &NatsServer, queue: QueueOptions) -> NatsOptions {
    NatsOptions { deployment: Some(Deployment { queue, ..Deployment::default() }), ..at(&server.url()) }
}

#[tokio::test]
async fn settings_of_the_first_gateway_hold() {
    let mut server = NatsServer::start();
    let first = connect_as(&gateway_with(&server, QueueOptions { max_messages: 7, ..options() })).await;
    let second = connect_as(&gateway_with(&server, QueueOptions { max_messages: 8, ..options() })).await;
    let stage = connect_stage(&server).await;
    let expected = QueueOptions { max_messages: 7, ..options() };
    for bus in [&first, &second, &stage] {
        assert_eq!(within("the settings", bus.settings()).await.unwrap(), expected);
    }
    assert_eq!(second.init_settings(&QueueOptions { max_messages: 9, ..options() }).await.unwrap(), expected);

    let changed = QueueOptions { max_messages: 10, ack_wait: Duration::from_secs(3), ..options() };
    first.change_settings(&changed).await.unwrap();
    assert_eq!(within("the change", stage.settings()).await.unwrap(), changed);

    // The settings are on disk.
    server.stop();
    server.restart();
    let third = connect_as(&gateway_with(&server, options())).await;
    assert_eq!(third.find_settings().await.unwrap(), Some(changed));
}

#[tokio::test]
async fn gateways_that_start_together_agree() {
    let server = NatsServer::start();
    let gateways = (1..=8).map(|max_messages| {
        let options = gateway_with(&server, QueueOptions { max_messages, ..options() });
        async move {
            let bus: Arc<dyn Bus> = Arc::new(Nats::connect(&options).await.expect("the server was started"));
            bus
        }
    });
    let gateways = within("all of them", futures_util::future::join_all(gateways)).await;
    let settings = gateways[0].settings().await.unwrap();
    for gateway in &gateways {
        assert_eq!(gateway.settings().await.unwrap(), settings);
    }
}

#[tokio::test]
async fn a_stage_that_starts_first_waits_for_a_gateway() {
    let server = NatsServer::start();
    let stage = connect_stage(&server).await;
    let starting = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        connect_as(&gateway_with(&server, options())).await
    };
    let (settings, _gateway) = within("the settings", async { tokio::join!(stage.settings(), starting) }).await;
    assert_eq!(settings.unwrap(), options());
}

#[tokio::test]
async fn settings_that_cannot_be_read_are_an_error_for_all() {
    let server = NatsServer::start();
    let gateway = connect_as(&gateway_with(&server, options())).await;
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    raw.publish("$KV.trireme_settings.deployment", "{}".into()).await.unwrap().await.unwrap();
    let read = within("an answer", gateway.settings()).await;
    assert!(matches!(read, Err(BusError::Refused { action: "reading the deployment's settings", .. })), "{read:?}");
    let connected = within("an end", Nats::connect(&gateway_with(&server, options()))).await;
    assert!(matches!(connected, Err(BusError::Refused { .. })));
}

/// A stream that an operator created or resized stays as it is.
#[tokio::test]
async fn what_an_operator_has_made_is_used_as_it_is() {
    let server = NatsServer::start();
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let config = jetstream::stream::Config {
        name: "trireme_claims".to_owned(),
        subjects: vec!["trireme.claim.>".to_owned()],
        max_bytes: 1 << 20,
        storage: jetstream::stream::StorageType::File,
        ..Default::default()
    };
    raw.create_stream(config).await.unwrap();
    let _gateway = connect_as(&gateway_with(&server, options())).await;
    let stream = raw.get_stream("trireme_claims").await.unwrap();
    let config = &stream.cached_info().config;
    assert_eq!((config.max_bytes, config.storage), (1 << 20, jetstream::stream::StorageType::File));
    assert!(config.allow_direct && config.allow_message_ttl, "the rest is as it has to be");
}

#[tokio::test]
async fn settings_that_the_broker_has_lost_are_written_again() {
    let server = NatsServer::start();
    let _gateway = connect_as(&gateway_with(&server, QueueOptions { max_messages: 7, ..options() })).await;
    let raw = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    raw.delete_stream("KV_trireme_settings").await.unwrap();
    let stage = connect_stage(&server).await;
    assert_eq!(within("the settings", stage.settings()).await.unwrap().max_messages, 7);
}
