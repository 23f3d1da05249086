//! Requests of models to other models, which workers send to gateways: each runs like a client's request.

use std::sync::Arc;

use trireme_bus::{ALIVE, AnswerForm, Bus, BusError, Call, LATEST, Output, Reply, WorkMessage};
use trireme_inference::{
    Action, InferError, InferRequest, InferResponse, ParameterValue, RequestedOutput, SharedTensors, UnixMicros,
};
use trireme_protocol::repository::LoadRequest;
use trireme_runtime::TaskSet;
use trireme_server::RequestContext;

use crate::handlers::{Handlers, Next, Traced};

/// Takes calls until the tasks have to stop.
pub async fn serve(bus: &dyn Bus, handlers: Arc<Handlers>, tasks: &TaskSet) -> Result<(), BusError> {
    let mut calls = bus.calls().await?;
    let running = tasks.clone();
    tasks.spawn_until_stop("calls", async move {
        while let Some(call) = calls.recv().await {
            let (handlers, stopping) = (handlers.clone(), running.stopping().clone());
            running.spawn("call", async move {
                tokio::select! {
                    () = run(&handlers, &call) => {}
                    // Dropping the request cancels it in every stage.
                    () = call.hung_up() => {}
                    () = stopping.cancelled() => {
                        let error = InferError::unavailable("the gateway that ran the request ends");
                        send(&call, call.message.reply(Err(error))).await;
                    }
                }
            });
        }
    });
    Ok(())
}

/// Runs a call and sends its replies; says meanwhile that it is run.
async fn run(handlers: &Arc<Handlers>, call: &Call) {
    let running = answer(handlers, call);
    tokio::pin!(running);
    loop {
        match tokio::time::timeout(ALIVE, &mut running).await {
            Ok(()) => return,
            Err(_) => {
                if let Err(error) = call.alive().await {
                    tracing::debug!(%error, "a caller could not be told that its request is run");
                }
            }
        }
    }
}

async fn answer(handlers: &Arc<Handlers>, call: &Call) {
    let message = &call.message;
    if call.action != Action::Infer {
        let outcome = control(handlers, call).await;
        return send(call, message.reply(outcome)).await;
    }
    let traced = match read(handlers, message) {
        Ok(traced) => traced,
        Err(error) => return send(call, message.reply(Err(error))).await,
    };
    if message.answer == AnswerForm::Whole {
        let outcome = handlers.infer(traced).await;
        return send(call, reply(message, 0, true, outcome)).await;
    }
    let mut responses = match handlers.infer_stream(traced) {
        Ok(responses) => responses,
        Err(error) => return send(call, message.reply(Err(error))).await,
    };
    let mut sequence = 0;
    while let Some(next) = responses.next().await {
        let last = next.as_ref().map_or(true, |Next { last, .. }| *last);
        send(call, reply(message, sequence, last, next.map(|next| next.response))).await;
        sequence += 1;
    }
}

/// Loads or unloads a model for another one, or says whether it is ready.
async fn control(handlers: &Handlers, call: &Call) -> Result<Output, InferError> {
    let (model, parameters) = (call.message.route.model(), &call.message.parameters);
    let mut output = Output::default();
    match call.action {
        Action::Infer => {}
        Action::Load => {
            let config = parameters.get("config").and_then(|config| config.as_str()).map(str::to_owned);
            let files = call.message.tensors.iter().map(|file| (file.name().to_owned(), file.data().clone()));
            handlers.load_model(&model.name, LoadRequest { config, files: files.collect() }).await?;
        }
        Action::Unload => {
            let dependents = parameters.get("unload_dependents") == Some(&ParameterValue::Bool(true));
            handlers.unload_model(&model.name, dependents).await?;
        }
        Action::Ready => {
            let version = (model.version != LATEST).then_some(model.version);
            // A model that nobody knows is not ready.
            let ready = handlers.model_ready(&model.name, version).unwrap_or(false);
            output.parameters.insert("ready".to_owned(), ParameterValue::Bool(ready));
        }
    }
    Ok(output)
}

/// The request in a call.
fn read(handlers: &Handlers, message: &WorkMessage) -> Result<Traced, InferError> {
    let permit = handlers.budget.permit();
    let bytes = message.tensors.iter().map(|tensor| tensor.data().len() as u64).sum();
    permit.cover(bytes).map_err(InferError::from)?;
    let (model, now) = (message.route.model(), UnixMicros::now());
    let outputs = message.route.current().map_or(&[][..], |step| &step.outputs);
    let wanted = |name: &str| RequestedOutput { name: name.to_owned(), classification: 0 };
    let request = InferRequest {
        id: message.client_id.to_string(),
        model: model.name.to_string(),
        version: (model.version != LATEST).then_some(model.version),
        parameters: (*message.parameters).clone(),
        priority: message.priority,
        timeout: Some(message.deadline.remaining(now).unwrap_or_default()),
        inputs: message.tensors.iter().cloned().map(Into::into).collect(),
        outputs: outputs.iter().map(|output| wanted(&output.name)).collect(),
        shared: SharedTensors::default(),
    };
    let (traceparent, owner) = (message.traceparent.clone(), message.owner.clone());
    let context = RequestContext::of_model(traceparent, owner, message.lane(), permit);
    Ok(Traced { callers: message.callers.clone(), ..Traced::new(request, context) })
}

fn reply(message: &WorkMessage, sequence: u32, last: bool, outcome: Result<InferResponse, InferError>) -> Reply {
    let (outcome, ledger) = match outcome {
        Ok(response) => (Ok(Output { tensors: response.outputs, parameters: response.parameters }), response.ledger),
        Err(error) => (Err(error), Default::default()),
    };
    Reply { sequence, last, ledger, ..message.reply(outcome) }
}

async fn send(call: &Call, reply: Reply) {
    if let Err(error) = call.reply(&reply).await {
        // The caller notices the silence.
        tracing::warn!(%error, "the answer to a model's request could not be sent");
    }
}
