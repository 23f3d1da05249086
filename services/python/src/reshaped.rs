//! `reshape` of config.pbtxt around an instance: the model gets its inputs and gives its outputs in the shapes of `reshape`, clients see
//! those of `dims`.

use std::sync::Arc;

use tokio::sync::watch;
use trireme_engine::Progress;
use trireme_inference::{InferError, Reshape, Tensor};
use trireme_model_repository::ModelConfig;
use trireme_runtime::{
    ExecuteRequest, ExecuteResponse, Instance, ModelInstance, Outage, StepwiseInstance, Stop, Ticket,
};

/// An instance behind the reshapes of its model.
struct Reshaped<I> {
    instance: I,
    reshapes: Arc<Reshapes>,
}

/// The reshapes of a model's tensors, each with the tensor's name.
struct Reshapes {
    inputs: Vec<(String, Reshape)>,
    outputs: Vec<(String, Reshape)>,
}

/// The instance as clients see it.
pub fn reshaped(config: &ModelConfig, instance: Instance) -> Instance {
    let inputs = config.inputs.iter().filter_map(|input| {
        let to = input.reshape.clone()?;
        Some((input.name.clone(), Reshape { from: input.dims.clone(), to }))
    });
    let outputs = config.outputs.iter().filter_map(|output| {
        let from = output.reshape.clone()?;
        Some((output.name.clone(), Reshape { from, to: output.dims.clone() }))
    });
    let reshapes = Reshapes { inputs: inputs.collect(), outputs: outputs.collect() };
    if reshapes.inputs.is_empty() && reshapes.outputs.is_empty() {
        return instance;
    }
    let reshapes = Arc::new(reshapes);
    match instance {
        Instance::Batch(instance) => Instance::Batch(Box::new(Reshaped { instance, reshapes })),
        Instance::Stepwise(instance) => Instance::Stepwise(Box::new(Reshaped { instance, reshapes })),
    }
}

// === impl Reshapes ===

impl Reshapes {
    fn request(&self, request: &ExecuteRequest) -> Result<ExecuteRequest, InferError> {
        Ok(ExecuteRequest { inputs: apply(&self.inputs, &request.inputs)?, ..request.clone() })
    }

    fn response(&self, response: ExecuteResponse) -> Result<ExecuteResponse, InferError> {
        Ok(ExecuteResponse { outputs: apply(&self.outputs, &response.outputs)?, ..response })
    }
}

/// The tensors, those that are named here in their other shape. A tensor of any other shape stays as it is: whoever takes it refuses it.
fn apply(reshapes: &[(String, Reshape)], tensors: &[Tensor]) -> Result<Vec<Tensor>, InferError> {
    let reshape = |tensor: &Tensor| match reshapes.iter().find(|(name, _)| name == tensor.name()) {
        Some((_, reshape)) => tensor.clone().reshaped(reshape.apply(tensor.shape())),
        None => Ok(tensor.clone()),
    };
    let reshaped: Result<_, _> = tensors.iter().map(reshape).collect();
    reshaped.map_err(|error| InferError::internal(error.to_string()))
}

impl ModelInstance for Reshaped<Box<dyn ModelInstance>> {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let given: Vec<_> = requests.iter().map(|request| self.reshapes.request(request)).collect();
        let fit: Vec<_> = given.iter().flatten().cloned().collect();
        let mut results = match fit.is_empty() {
            true => Vec::new(),
            false => self.instance.execute(&fit),
        }
        .into_iter();
        let none = || Err(InferError::internal("the model gave no result"));
        let result = |given: Result<ExecuteRequest, InferError>| {
            given
                .and_then(|_| results.next().unwrap_or_else(none))
                .and_then(|response| self.reshapes.response(response))
        };
        given.into_iter().map(result).collect()
    }

    fn stop(&self) -> Option<Arc<dyn Stop>> {
        self.instance.stop()
    }

    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        self.instance.outage()
    }
}

impl StepwiseInstance for Reshaped<Box<dyn StepwiseInstance>> {
    fn room(&self) -> usize {
        self.instance.room()
    }

    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
        self.instance.join(ticket, self.reshapes.request(&request)?)
    }

    fn leave(&mut self, ticket: Ticket) {
        self.instance.leave(ticket);
    }

    fn step(&mut self) -> Vec<(Ticket, Progress)> {
        let reshape = |progress| match progress {
            Progress::Part(outputs, parameters) => match apply(&self.reshapes.outputs, &outputs) {
                Ok(outputs) => Progress::Part(outputs, parameters),
                Err(error) => Progress::Done(Err(error)),
            },
            Progress::Done(result) => Progress::Done(result.and_then(|response| self.reshapes.response(response))),
        };
        self.instance.step().into_iter().map(|(ticket, progress)| (ticket, reshape(progress))).collect()
    }

    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        self.instance.outage()
    }
}
