//! Clients without the interface's files learn the services and messages by reflection, and names from the answer to a call of a service that
//! does not exist.

use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;

use super::*;

const SERVICES: [&str; 7] = [
    "grpc.health.v1.Health",
    "inference.GRPCInferenceService",
    "tei.v1.Embed",
    "tei.v1.Info",
    "tei.v1.Predict",
    "tei.v1.Rerank",
    "tei.v1.Tokenize",
];

fn asked(message: MessageRequest) -> impl stream::Stream<Item = ServerReflectionRequest> {
    stream::iter([ServerReflectionRequest { host: String::new(), message_request: Some(message) }])
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_their_messages_are_described() {
    let Server { gateway, .. } = Server::start(&[]).await;
    let channel = connect(&gateway).await;
    let mut client = ServerReflectionClient::new(channel.clone());
    let mut answer = async |message| -> ServerReflectionResponse {
        let mut answers = client.server_reflection_info(asked(message)).await.unwrap().into_inner();
        answers.next().await.expect("an answer").unwrap()
    };
    let Some(MessageResponse::ListServicesResponse(list)) =
        answer(MessageRequest::ListServices(String::new())).await.message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(SERVICES.iter().all(|name| names.contains(name)), "{names:?}");
    for symbol in ["inference.ModelInferRequest", "inference.ModelConfig", "tei.v1.EmbedRequest"] {
        let found = answer(MessageRequest::FileContainingSymbol(symbol.to_owned())).await.message_response;
        let Some(MessageResponse::FileDescriptorResponse(files)) = found else { panic!("{symbol}: {found:?}") };
        let name = symbol.rsplit('.').next().unwrap_or_default().as_bytes();
        let holds = |file: &Vec<u8>| file.windows(name.len()).any(|window| window == name);
        assert!(files.file_descriptor_proto.iter().any(holds), "{symbol}");
    }

    let mut older = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let list = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut answers = older.server_reflection_info(stream::iter([list])).await.unwrap().into_inner();
    let text = format!("{:?}", answers.next().await.expect("an answer").unwrap());
    assert!(SERVICES.iter().all(|name| text.contains(name)), "{text}");
}

/// As grpcurl asks: it ends its side of the call once it knows everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_will_ask_more_is_answered() {
    let Server { gateway, .. } = Server::start(&[]).await;
    let mut client = ServerReflectionClient::new(connect(&gateway).await);
    let open = asked(MessageRequest::ListServices(String::new())).chain(stream::pending());
    let answer = async { client.server_reflection_info(open).await.unwrap().into_inner().next().await };
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await.expect("an answer before the call ends");
    assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_does_not_exist_names_those_that_do() {
    let Server { gateway, .. } = Server::start(&[]).await;
    let origin = "http://host/tensorflow.serving.PredictionService".parse().expect("a URI");
    let mut client = HealthClient::with_origin(connect(&gateway).await, origin);
    let refused = client.check(HealthCheckRequest::default()).await.expect_err("there is none");
    assert_eq!(refused.code(), Code::Unimplemented);
    let text = refused.message();
    assert!(
        text.starts_with("there is no service 'tensorflow.serving.PredictionService'; services here are "),
        "{text}"
    );
    assert!(SERVICES.iter().all(|name| text.contains(name)), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_does_not_exist_names_those_that_do() {
    let Server { gateway, .. } = Server::start(&[]).await;
    let origin = "http://host/inference.GRPCInferenceService".parse().expect("a URI");
    let mut client = HealthClient::with_origin(connect(&gateway).await, origin);
    let refused = client.check(HealthCheckRequest::default()).await.expect_err("there is none");
    assert_eq!(refused.code(), Code::Unimplemented);
    let text = refused.message();
    let expected = "service 'inference.GRPCInferenceService' has no method 'grpc.health.v1.Health/Check'; its methods are \
                    ServerLive, ServerReady, ";
    assert!(text.starts_with(expected) && text.contains(" ModelInfer, "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_needs_a_key_where_calls_do() {
    let Server { gateway, .. } = Server::start(&["--api-key", "secret"]).await;
    let mut client = ServerReflectionClient::new(connect(&gateway).await);
    let refused = client.server_reflection_info(asked(MessageRequest::ListServices(String::new()))).await;
    assert_status(refused.map(drop), Code::Unauthenticated, "a valid API key is required");
}
