//! Proves at the load that a graph takes rows as the model's tokenizer makes them, and gives a result for each: a graph that does not
//! is refused, because every request would fail or be wrong.
//!
//! Rows of several lengths run alone, then a row beside another one whose tokens change. Not here: whether rows of different lengths may
//! share a run ([`super::probe`]).

use std::path::Path;

use trireme_engine::{ExecuteRequest, LoadError};
use trireme_inference::{InferError, Tensor};
use trireme_model_repository::ModelConfig;

use super::instance::OnnxInstance;
use super::measure;
use super::probe::{ROUNDING, difference, with_tokens};
use crate::batcher::{Declaration, merge};

/// The words of the error about a graph that runs for rows of some lengths only.
pub const TRACED: &str = "it has constants of the length that it was traced with";

/// Tokens of the two rows that run beside one another.
const LENGTH: u32 = 9;

/// How the rows of a graph behave that share a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Company {
    /// A row's result is its own.
    Independent,
    /// A row's result depends on the others, or rows do not run together at all.
    Dependent,
}

/// The graph that is tried.
pub struct Proof<'a> {
    /// The model's configuration.
    pub config: &'a ModelConfig,
    /// Its rows and lengths.
    pub declaration: &'a Declaration,
    /// The graph's file, for messages.
    pub graph: &'a Path,
}

// === impl Proof ===

impl Proof<'_> {
    /// Tries the graph on the rows of the configuration. The error says why no text can be served, and how the graph is made again.
    pub fn run(&self, instance: &mut OnnxInstance) -> Result<Company, LoadError> {
        let rows = &self.declaration.sample_rows;
        let fixed = self.declaration.fixed_length;
        let mut lengths: Vec<u32> = rows.iter().map(|row| fixed.unwrap_or(row.len() as u32)).collect();
        lengths.dedup();
        let mut alone = Vec::with_capacity(lengths.len());
        for length in lengths {
            let request = self.request(length)?;
            match run(instance, &request) {
                Ok(outputs) => {
                    self.check_shapes(length, &outputs)?;
                    alone.push(outputs);
                }
                Err(error) if fails_for_any_tokens(instance, &request) => return Err(self.traced(length, &error)),
                // Real rows may run all the same.
                Err(error) => {
                    tracing::debug!(model = self.config.name, length, reason = error.message, "a row cannot be tried");
                    return Ok(Company::Independent);
                }
            }
        }
        self.check_constant(&alone)?;
        let shorter = self.declaration.longest_row.map_or(LENGTH, |longest| longest.min(LENGTH));
        self.company(instance, fixed.unwrap_or(shorter))
    }

    /// Tries a row of the longest length, which takes long on a large model.
    pub fn run_longest(&self, instance: &mut OnnxInstance) -> Result<(), LoadError> {
        let Some(longest) = self.declaration.longest_row.filter(|_| self.declaration.fixed_length.is_none()) else {
            return Ok(());
        };
        match run(instance, &self.request(longest)?) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.traced(longest, &error)),
        }
    }

    fn request(&self, length: u32) -> Result<ExecuteRequest, LoadError> {
        measure::request(self.config, self.declaration, 1, length).map_err(|reason| self.refused(&reason))
    }

    fn refused(&self, reason: &str) -> LoadError {
        // A derived repository has links to the folder's files.
        let graph = std::fs::canonicalize(self.graph).unwrap_or_else(|_| self.graph.to_owned());
        LoadError::Backend {
            model: self.config.name.clone(),
            reason: reason.replace("GRAPH", &graph.display().to_string()),
        }
    }

    /// Each output of one row is one row, and as wide as the configuration says.
    fn check_shapes(&self, length: u32, outputs: &[Tensor]) -> Result<(), LoadError> {
        let width = |output: &Tensor| {
            let own = self.config.outputs.iter().find(|own| own.name == output.name());
            own.and_then(|own| own.dims.last().copied()).filter(|&width| width > 0)
        };
        let other = outputs.iter().find_map(|output| Some((output, width(output)?, *output.shape().last()?)));
        if let Some((output, width, found)) = other.filter(|(_, width, found)| width != found) {
            return Err(self.refused(&format!(
                "GRAPH: output '{}' is {found} wide, but {width} is expected, as the configuration has it: the graph is of another model, or has \
                 further layers. Make it again: mv GRAPH GRAPH.other && trireme export FOLDER",
                output.name()
            )));
        }
        let Some(output) = outputs.iter().find(|output| output.shape().first() != Some(&1)) else { return Ok(()) };
        let (name, shape) = (output.name(), output.shape());
        let turned = match shape[..] {
            [first, 1, ..] if first == i64::from(length) => self.turned(false),
            [first, _] if first == i64::from(length) => self.turned(true),
            _ => "Make it again: mv GRAPH GRAPH.odd && trireme export FOLDER".to_owned(),
        };
        Err(self.refused(&format!(
            "GRAPH: output '{name}' of one row of {length} tokens has the shape {shape}, expected 1 as its first dimension, the rows. {turned}"
        )))
    }

    /// How a graph is turned around whose sequence comes first: its outputs, and its inputs, too.
    fn turned(&self, inputs_too: bool) -> String {
        let inputs = self.config.inputs.iter().filter(|_| inputs_too).map(|input| format!("'{}'", input.name));
        let outputs = self.config.outputs.iter().filter(|output| output.dims.len() > 2);
        let outputs = outputs.map(|output| format!("'{}'", output.name));
        let side = if inputs_too { "takes" } else { "gives" };
        format!(
            "The graph {side} the tokens of a row as the first dimension, and rows as the second one: make it again by mv GRAPH GRAPH.turned && \
             trireme export FOLDER, or turn it around: python -c \"import onnx; m = onnx.load('GRAPH'); g = m.graph; a = [{}]; b = [{}]; \
             c = onnx.helper.make_node; \
             [s.__setitem__(k, x + '_turned') for n in g.node for s in (n.input, n.output) for k, x in enumerate(s) if x in a + b]; \
             [g.node.insert(0, c('Transpose', [x], [x + '_turned'], perm=[1, 0])) for x in a]; \
             [g.node.append(c('Transpose', [x + '_turned'], [x], perm=[1, 0, 2])) for x in b]; onnx.save(m, 'GRAPH')\"",
            inputs.collect::<Vec<_>>().join(", "),
            outputs.collect::<Vec<_>>().join(", "),
        )
    }

    /// Not every number of every row is 1, as it is after a Softmax over the rows of a run of one.
    fn check_constant(&self, alone: &[Vec<Tensor>]) -> Result<(), LoadError> {
        if alone.len() < 2 || self.config.outputs.len() != 1 || !alone.iter().flatten().all(is_one) {
            return Ok(());
        }
        Err(self.refused(
            "GRAPH gives the number 1 for every text, so that its answers say nothing. A Softmax over the rows in place of the labels does \
             this. Make it again: mv GRAPH GRAPH.constant && trireme export FOLDER",
        ))
    }

    /// Whether the result of a row depends on the row beside it.
    fn company(&self, instance: &mut OnnxInstance, length: u32) -> Result<Company, LoadError> {
        let row = self.request(length)?;
        // A row of one repeated token, so that a neighbor with more tokens also changes a maximum over both rows.
        let plain: Vec<_> = row.inputs.iter().map(|input| with_tokens(input, |ids| ids.fill(ids[0]))).collect();
        let beside = |instance: &mut OnnxInstance, neighbor: &[Tensor]| -> Result<Vec<Tensor>, InferError> {
            let inputs = merge::join(&[&plain, neighbor], &[], None)?.into_owned();
            let outputs = run(instance, &ExecuteRequest { inputs, ..row.clone() })?;
            outputs.into_iter().map(|output| Ok(merge::split(output, &[1, 1], None)?.swap_remove(0))).collect()
        };
        let pair = beside(instance, &row.inputs).and_then(|first| Ok((first, beside(instance, &plain)?)));
        let (first, second) = match pair {
            Ok(pair) => pair,
            Err(error) => {
                tracing::debug!(model = self.config.name, reason = error.message, "two rows do not run together");
                return Ok(Company::Dependent);
            }
        };
        let change = largest(&first, &second);
        tracing::debug!(model = self.config.name, change, "a row with another neighbor of its length");
        if change <= ROUNDING {
            return Ok(Company::Independent);
        }
        if self.has_tokens_apart(instance, &row, length) {
            return Err(self.refused(&format!(
                "GRAPH: a row's result depends on the other rows of its run, and that of a token does not depend on the other tokens of its \
                 row. {}",
                self.turned(true)
            )));
        }
        Ok(Company::Dependent)
    }

    /// Whether the vector of a row's first token does not depend on the row's other tokens, where the graph gives one for each token.
    fn has_tokens_apart(&self, instance: &mut OnnxInstance, row: &ExecuteRequest, length: u32) -> bool {
        let inputs = row.inputs.iter().map(|input| with_tokens(input, |ids| ids.fill(ids[0]))).collect();
        let other = ExecuteRequest { inputs, ..row.clone() };
        let (Ok(own), Ok(other)) = (run(instance, row), run(instance, &other)) else { return false };
        let of_first = |outputs: Vec<Tensor>| -> Option<Vec<Tensor>> {
            let first = |output: Tensor| {
                let shape = output.shape().clone();
                let [1, tokens, ref inner @ ..] = shape[..] else { return None };
                let flat = output.reshaped([&[tokens], inner].concat()).ok().filter(|_| tokens == i64::from(length))?;
                merge::split(flat, &vec![1; length as usize], None).ok().map(|mut rows| rows.swap_remove(0))
            };
            outputs.into_iter().map(first).collect()
        };
        match (of_first(own), of_first(other)) {
            (Some(own), Some(other)) => largest(&own, &other) <= ROUNDING,
            _ => false,
        }
    }

    /// The error about a graph that runs for rows of one length only.
    fn traced(&self, length: u32, error: &InferError) -> LoadError {
        self.refused(&format!(
            "GRAPH does not run for a row of {length} tokens, as the tokenizer makes them of texts: {TRACED} ({}). Make it again, for rows of any \
             length: mv GRAPH GRAPH.traced && trireme export FOLDER. Of some models, as Longformer and Funnel, no graph takes rows of any length: \
             serve those by a model.py that loads the folder with its own library (docs/python.md)",
            error.message
        ))
    }
}

fn run(instance: &mut OnnxInstance, request: &ExecuteRequest) -> Result<Vec<Tensor>, InferError> {
    Ok(instance.execute_together(std::slice::from_ref(request))?.remove(0).outputs)
}

fn largest(left: &[Tensor], right: &[Tensor]) -> f32 {
    left.iter().zip(right).map(|(left, right)| difference(left, right)).fold(0.0, f32::max)
}

/// Whether the graph does not even run for one token repeated, so that the cause of an error is the length.
fn fails_for_any_tokens(instance: &mut OnnxInstance, request: &ExecuteRequest) -> bool {
    let mut repeated = request.clone();
    for input in &mut repeated.inputs {
        *input = with_tokens(input, |ids| ids.fill(ids[0]));
    }
    instance.execute_together(&[repeated]).is_err()
}

/// Whether all numbers are 1.
fn is_one(tensor: &Tensor) -> bool {
    match tensor.values::<f32>() {
        Ok(values) => values.iter().all(|&value| value == 1.0),
        Err(_) => tensor.values::<half::f16>().is_ok_and(|values| values.iter().all(|value| value.to_f32() == 1.0)),
    }
}
