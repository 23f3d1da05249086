//! Requests that meet workers of another content than the one that they were admitted for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trireme_bus::{AnswerForm, InProcess, Output, Part, QueueOptions};
use trireme_inference::{Cause, Hop, Name, PlanStep, Route, RoutePlan, StepInput, StepOutput, Tensor, UnixMicros};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

/// Workers whose content changes after some steps. The content of the gateway's registry is the workers'.
struct Pipeline {
    bus: Arc<dyn Bus>,
    dispatcher: Dispatcher,
    executed: Arc<AtomicUsize>,
    tasks: TaskSet,
}

fn key(model: &str) -> ModelKey {
    ModelKey { name: model.into(), version: 1 }
}

/// The content after so many executed steps: 1, and from `switch` on 2.
fn content(executed: usize, switch: usize) -> i64 {
    if executed < switch { 1 } else { 2 }
}

/// Adds the number of the content to the tensor of each step.
async fn work(bus: Arc<dyn Bus>, model: ModelKey, executed: Arc<AtomicUsize>, switch: usize) {
    let mut consumer = bus.pull(&model).await.expect("the queue is there");
    loop {
        let delivery = consumer.next(1).await.expect("in process nothing refuses").remove(0);
        let (mut message, now) = (delivery.message, content(executed.load(Ordering::SeqCst), switch));
        let step = message.route.current().expect("a step").clone();
        if step.content != Some(now.to_string().into()) {
            let error = InferError::unavailable("other content").because(Cause::OtherContent);
            bus.reply(message.reply(Err(error))).await.expect("in process nothing refuses");
        } else {
            executed.fetch_add(1, Ordering::SeqCst);
            let rows = message.tensors[0].shape()[0];
            let tensor = |output: &StepOutput| {
                Tensor::from_values(output.name.clone(), [rows], vec![now; rows as usize]).expect("a tensor")
            };
            message.route.advance(&mut message.tensors, step.outputs.iter().map(tensor).collect());
            message.ledger.0.push(Hop::default());
            if message.route.current().is_some() && message.answer == AnswerForm::InParts {
                message.answer = AnswerForm::Part(Part { sequence: 0, last: true });
            }
            match message.route.current() {
                Some(_) => drop(bus.publish(&message).await.expect("there is room")),
                None => {
                    let output = Output { tensors: message.tensors.clone(), ..Output::default() };
                    bus.reply(message.reply(Ok(output))).await.expect("in process nothing refuses");
                }
            }
        }
        delivery.acker.ack().await.expect("in process nothing refuses");
    }
}

impl Pipeline {
    /// Workers whose content is another one from the step `switch` on. The registry says so from the step `known` on.
    async fn start(switch: usize, known: usize) -> Pipeline {
        let bus: Arc<dyn Bus> = Arc::new(InProcess::new(&QueueOptions::default()));
        let (tasks, executed) = (TaskSet::new(), Arc::new(AtomicUsize::new(0)));
        for model in ["a", "b", "c"].map(key) {
            bus.declare_queue(&model, &QueueOptions::default()).await.expect("in process nothing refuses");
            tasks.spawn_until_stop("worker", work(bus.clone(), model, executed.clone(), switch));
        }
        let seen = executed.clone();
        let contents: RouteContents = Arc::new(move |route: Route| {
            let now = content(seen.load(Ordering::SeqCst), known).to_string();
            route.for_contents(|_| Some(Name::from(now.as_str())))
        });
        let dispatcher = Dispatcher::open(bus.clone(), "g", 100, contents, &tasks).await.expect("an inbox");
        Pipeline { bus, dispatcher, executed, tasks }
    }

    /// A request of four rows that was admitted for the first content, through these models: `a` alone, `a` then `b`, or `a` and then `b`
    /// beside `c`.
    fn message(&self, models: &[&str]) -> WorkMessage {
        let step = |(index, model): (usize, &&str)| PlanStep {
            model: (*model).into(),
            version: None,
            inputs: vec![StepInput {
                name: "in".into(),
                tensor: if index == 0 { "x" } else { "a" }.into(),
                optional: false,
                reshapes: Vec::new(),
                crosses: false,
            }],
            outputs: vec![StepOutput { name: (*model).into(), tensor: (*model).into() }],
        };
        let plan = RoutePlan {
            model: "e".into(),
            ensemble: true,
            steps: models.iter().enumerate().map(step).collect(),
            outputs: models.iter().map(|model| (*model).into()).collect(),
            reshapes: Default::default(),
            crossing: Default::default(),
        };
        let route = plan.route(1, &[], &["x"], |_, _| Ok(1)).expect("the steps fit");
        let message = trireme_bus::fixtures::message(&key("a"), 7);
        WorkMessage {
            request_id: self.dispatcher.request_id().into(),
            gateway: self.dispatcher.gateway().into(),
            route: route.for_contents(|_| Some("1".into())),
            tensors: vec![Tensor::from_values("x", [4], vec![0i64; 4]).expect("a tensor")],
            ..message
        }
    }

    fn start_whole(&self, message: WorkMessage) -> Exchange {
        self.dispatcher.start(message, Duration::ZERO).expect("it is admitted")
    }

    async fn stop(self) {
        self.tasks.join().await;
        drop(self.bus);
    }
}

async fn next(exchange: &mut Exchange) -> Result<Reply, InferError> {
    tokio::time::timeout(LIMIT, exchange.next()).await.expect("an answer").expect("a reply")
}

/// The contents that the answer comes from.
async fn answer(mut exchange: Exchange) -> Vec<i64> {
    let output = next(&mut exchange).await.expect("an answer").outcome.expect("a result");
    let mut contents: Vec<i64> =
        output.tensors.iter().flat_map(|tensor| tensor.values::<i64>().expect("numbers").to_vec()).collect();
    contents.dedup();
    contents
}

#[tokio::test]
async fn a_request_whose_content_is_served_no_more_is_admitted_anew() {
    for (models, switch) in [(&["a"][..], 0), (&["a", "b"], 1)] {
        let pipeline = Pipeline::start(switch, switch).await;
        assert_eq!(answer(pipeline.start_whole(pipeline.message(models))).await, [2], "{models:?}");
        assert_eq!(pipeline.dispatcher.in_flight(), 0);
        pipeline.stop().await;
    }
}

#[tokio::test]
async fn an_answer_of_several_messages_comes_from_one_content() {
    // The content changes between two parts of the rows, or between two branches.
    let pipeline = Pipeline::start(2, 2).await;
    let message = pipeline.message(&["a"]);
    let parts = rows::split(&message.tensors, 1, 1 << 20).expect("few rows").expect("several parts");
    assert_eq!(answer(pipeline.dispatcher.start_split(message, parts).expect("admitted")).await, [2]);
    assert_eq!(pipeline.executed.load(Ordering::SeqCst), 6, "two rows of the old content, and all four of the new one");
    pipeline.stop().await;
    for switch in [1, 2] {
        let pipeline = Pipeline::start(switch, switch).await;
        let message = pipeline.message(&["a", "b", "c"]);
        assert!(message.route.branches(&message.tensors).is_some(), "it forks");
        assert_eq!(answer(pipeline.start_whole(message)).await, [2]);
        pipeline.stop().await;
    }
}

#[tokio::test]
async fn a_request_for_parts_is_admitted_anew_only_before_its_first_step() {
    for (models, switch) in [(&["a"][..], 0), (&["a", "b"], 1)] {
        let pipeline = Pipeline::start(switch, switch).await;
        let mut exchange =
            pipeline.start_whole(WorkMessage { answer: AnswerForm::InParts, ..pipeline.message(models) });
        let reply = next(&mut exchange).await.expect("a reply");
        match switch {
            0 => assert!(reply.outcome.is_ok(), "{reply:?}"),
            _ => assert_eq!(reply.outcome.expect_err("it has begun").message, "other content"),
        }
        pipeline.stop().await;
    }
}

#[tokio::test]
async fn a_request_for_a_content_that_nobody_serves_is_answered_at_its_deadline_with_the_reason() {
    let pipeline = Pipeline::start(0, usize::MAX).await;
    let deadline = UnixMicros::now().after(Duration::from_millis(200));
    let mut exchange = pipeline.start_whole(WorkMessage { deadline, ..pipeline.message(&["a"]) });
    let error = match next(&mut exchange).await {
        Ok(reply) => reply.outcome.expect_err("nobody may run it"),
        Err(error) => error,
    };
    assert_eq!(error.message, "Request timeout expired: other content");
    assert_eq!(pipeline.executed.load(Ordering::SeqCst), 0);
    pipeline.stop().await;
}
