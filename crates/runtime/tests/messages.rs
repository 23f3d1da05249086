//! Messages to workers whose models have one input and one output.

use std::sync::Arc;
use std::time::Duration;

use trireme_bus::{AnswerForm, WorkMessage};
use trireme_inference::{Callers, Ledger, ModelKey, Route, Step, StepInput, StepOutput, Tensor, UnixMicros};

/// How long a request and its test wait at most.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A request that goes through `models` one after the other, with `input`, a tensor `t0`, for the first.
pub fn message(id: &str, models: &[&str], input: Tensor, answer: AnswerForm) -> WorkMessage {
    let tensor = |number: usize| format!("t{number}");
    let step = |(number, model): (usize, &&str)| Step {
        model: ModelKey { name: (*model).into(), version: 1 },
        inputs: vec![StepInput {
            name: "INPUT0".into(),
            tensor: tensor(number).into(),
            optional: false,
            reshapes: Vec::new(),
            crosses: false,
        }],
        outputs: vec![StepOutput { name: "OUTPUT0".into(), tensor: tensor(number + 1).into() }],
        dead: vec![tensor(number).into()],
        level: 0,
        content: None,
    };
    let steps = models.iter().enumerate().map(step).collect();
    let now = UnixMicros::now();
    WorkMessage {
        request_id: id.into(),
        gateway: "gateway".into(),
        deadline: now.after(PATIENCE),
        priority: 0,
        traceparent: None,
        client_id: String::new().into(),
        sent_at: now,
        route: Route::resume(ModelKey { name: "e".into(), version: 1 }, models.len() > 1, 0, steps),
        tensors: vec![input],
        parameters: Arc::default(),
        ledger: Ledger::default(),
        answer,
        callers: Callers::default(),
        job: None,
        owner: trireme_inference::Owner::default(),
    }
}
