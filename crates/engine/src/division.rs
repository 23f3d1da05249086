//! A request that takes several runs of an instance, such as the windows of a long text. The instance divides it, and says how the outputs of its runs
//! become those of the request. Between two of its runs the harness executes others' requests, so that a long one stops none of them.
//!
//! Not here: when each run has its turn (`execute`).

use trireme_inference::{InferError, Tensor};

use crate::request::{ExecuteRequest, ExecuteResponse, ExecuteTiming};

/// Makes the outputs of a request of those of each part, in the order of the parts.
type Join = Box<dyn FnOnce(Vec<Vec<Tensor>>) -> Result<Vec<Tensor>, InferError> + Send>;

/// The results of a run, one for each of its parts.
type Results = Vec<Result<ExecuteResponse, InferError>>;

/// A divided request: the runs that are still to come, and the outputs of the others.
///
/// Four numbers that an instance takes one at a time:
///
/// ```
/// use trireme_engine::{Division, ExecuteRequest, ExecuteResponse};
/// use trireme_inference::{InferError, Tensor};
///
/// let of = |number: i64| Tensor::from_values("NUMBER", [1], vec![number]);
/// let part = |number| Ok::<_, InferError>(vec![ExecuteRequest::made_up("1", vec![of(number)?], ["NUMBER"])]);
/// let runs = (1..=4).map(part).collect::<Result<_, _>>()?;
/// let division = Division::new(runs, |outputs: Vec<Vec<Tensor>>| Ok(outputs.concat()));
///
/// let response = division.run(|requests| {
///     vec![Ok(ExecuteResponse { outputs: requests[0].inputs.clone(), ..ExecuteResponse::default() })]
/// })?;
/// assert_eq!(response.outputs.len(), 4);
/// assert_eq!(response.outputs[3], of(4)?);
/// # Ok::<(), InferError>(())
/// ```
pub struct Division {
    /// The parts that each run executes together.
    runs: std::vec::IntoIter<Vec<ExecuteRequest>>,
    join: Join,
    outputs: Vec<Vec<Tensor>>,
    timing: ExecuteTiming,
}

// === impl Division ===

impl Division {
    /// A request of these runs, each of some parts, whose outputs `join` puts together in the order of the parts.
    pub fn new(
        runs: Vec<Vec<ExecuteRequest>>,
        join: impl FnOnce(Vec<Vec<Tensor>>) -> Result<Vec<Tensor>, InferError> + Send + 'static,
    ) -> Division {
        let outputs = Vec::with_capacity(runs.iter().map(Vec::len).sum());
        Division { runs: runs.into_iter(), join: Box::new(join), outputs, timing: ExecuteTiming::default() }
    }

    /// Executes one run after the other. The first error ends it.
    pub fn run(mut self, mut execute: impl FnMut(&[ExecuteRequest]) -> Results) -> Result<ExecuteResponse, InferError> {
        while let Some(run) = self.next() {
            self.add(execute(&run))?;
        }
        self.join()
    }

    /// The next run; `None` after the last one.
    pub(crate) fn next(&mut self) -> Option<Vec<ExecuteRequest>> {
        self.runs.next()
    }

    /// Whether all runs have begun.
    pub(crate) fn is_over(&self) -> bool {
        self.runs.len() == 0
    }

    /// Adds the results of a run, or gives its first error.
    pub(crate) fn add(&mut self, results: Results) -> Result<(), InferError> {
        let responses = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some(ExecuteResponse { timing, .. }) = responses.first() {
            self.timing.compute_input += timing.compute_input;
            self.timing.compute_infer += timing.compute_infer;
            self.timing.compute_output += timing.compute_output;
            self.timing.batch_size = self.timing.batch_size.saturating_add(timing.batch_size);
        }
        self.outputs.extend(responses.into_iter().map(|response| response.outputs));
        Ok(())
    }

    /// The response of the whole request, with the time of all its runs.
    pub(crate) fn join(self) -> Result<ExecuteResponse, InferError> {
        let outputs = (self.join)(self.outputs)?;
        Ok(ExecuteResponse { outputs, timing: self.timing, ..ExecuteResponse::default() })
    }
}
