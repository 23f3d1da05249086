//! Runs of a packed graph: the requests in groups of similar length, each group with the inputs that the plain graph would have, and the places of
//! all tokens (`trireme_packing`).

use std::time::Instant;

use trireme_engine::{ExecuteRequest, ExecuteResponse, ExecuteTiming};
use trireme_inference::{InferError, Name, Tensor};

use super::super::run::{Outcome, in_model};
use super::OnnxInstance;
use crate::batcher::merge;
use crate::batcher::packing::groups;
use crate::batcher::{Padded, Padding};

/// A run's inputs, and what its outputs are split by.
struct Feed {
    inputs: Vec<Tensor>,
    /// Lengths of each group, where its requests differ.
    lengths: Vec<Option<Padded>>,
}

/// The tokens of a run so far.
#[derive(Default)]
struct Tokens {
    /// How many there are.
    count: i64,
    /// Where each is, if all groups lie one behind the other.
    places: Vec<i64>,
    /// Positions so far, padding included.
    positions: i64,
}

// === impl OnnxInstance ===

impl OnnxInstance {
    /// From now on the session runs a packed graph of so many groups.
    pub fn pack(&mut self, groups: usize) {
        self.groups = Some(groups);
    }

    /// Runs `requests` in at most `most` groups; an error applies to all of them.
    pub(super) fn execute_packed(
        &mut self,
        requests: &[ExecuteRequest],
        most: usize,
    ) -> Result<Vec<ExecuteResponse>, InferError> {
        let started = Instant::now();
        let rows = self.rows(requests)?;
        let selected = self.select_outputs(requests)?;
        self.check_room(requests, &selected)?;
        let padding = self.padding.as_ref().or(self.apart.as_ref());
        let padding = padding.ok_or_else(|| InferError::internal("a packed graph without padded inputs"))?;
        let length = |request: &ExecuteRequest| padding.length(&request.inputs).unwrap_or(1);
        let sizes: Vec<_> = requests.iter().zip(&rows).map(|(request, &rows)| (rows, length(request))).collect();
        let groups = groups(&sizes, most);
        let feed = Feed::new(padding, requests, &groups, most).map_err(|error| in_model(&self.model, error))?;
        let of_group =
            |group: usize| selected.iter().map(move |name| Name::new(trireme_packing::of_group(name, group)));
        let names: Vec<Name> = (0..groups.len()).flat_map(of_group).collect();
        let Outcome { outputs, began, ended } = self.runner.run(requests, &feed.inputs, &names)?;
        let mut found: Vec<Vec<Tensor>> = vec![Vec::new(); groups.len()];
        for output in outputs {
            // The names of a group come one behind the other.
            let at = names.iter().position(|name| *name == output.name());
            let at = at.ok_or_else(|| InferError::internal(format!("no one asked for output '{}'", output.name())))?;
            found[at / selected.len()].push(output.renamed(selected[at % selected.len()].clone()));
        }
        let mut parts: Vec<Vec<Tensor>> = vec![Vec::new(); requests.len()];
        for ((group, outputs), lengths) in groups.iter().zip(found).zip(&feed.lengths) {
            let members: Vec<_> = group.iter().map(|&at| &requests[at]).collect();
            let rows: Vec<_> = group.iter().map(|&at| rows[at]).collect();
            let own = self.hand_out(&members, outputs, &rows, lengths.as_ref())?;
            group.iter().zip(own).for_each(|(&at, outputs)| parts[at] = outputs);
        }
        let timing = ExecuteTiming {
            compute_input: began - started,
            compute_infer: ended - began,
            compute_output: ended.elapsed(),
            batch_size: rows.iter().fold(0, |sum, rows| sum.saturating_add(*rows)),
        };
        Ok(parts.into_iter().map(|outputs| ExecuteResponse { outputs, timing, ..ExecuteResponse::default() }).collect())
    }
}

// === impl Feed ===

impl Feed {
    fn new(
        padding: &Padding,
        requests: &[ExecuteRequest],
        groups: &[Vec<usize>],
        most: usize,
    ) -> Result<Feed, InferError> {
        let (mut inputs, mut all_lengths, mut tokens) = (Vec::new(), Vec::new(), Tokens::default());
        for (group, members) in groups.iter().enumerate() {
            let members: Vec<_> = members.iter().map(|&at| &requests[at].inputs[..]).collect();
            let lengths = padding.lengths(&members);
            let padded = if lengths.is_some() { &padding.inputs[..] } else { &[] };
            let joined = merge::join(&members, padded, lengths.as_ref().map(|padded| padded.to))?;
            inputs.push(tokens.add(padding, &joined, &members, lengths.as_ref(), group)?);
            let of_group = |tensor: &Tensor| tensor.clone().renamed(trireme_packing::of_group(tensor.name(), group));
            inputs.extend(joined.iter().map(of_group));
            all_lengths.push(lengths);
        }
        let Tokens { count, places, .. } = tokens;
        if count == 0 {
            return Err(InferError::invalid_arg("the request has no tokens"));
        }
        // The graph runs all its groups: one without requests has a row of one token, whose results nobody asks for.
        let first = requests.first().map_or(&[][..], |request| &request.inputs);
        for group in groups.len()..most {
            for tensor in first {
                let one = tensor.data().slice(..tensor.datatype().element_size().unwrap_or(0));
                let name = trireme_packing::of_group(tensor.name(), group);
                inputs.push(Tensor::new(name, tensor.datatype(), [1, 1], one)?);
            }
            inputs.push(Tensor::from_values(trireme_packing::tokens(group), [1, 1], vec![0i64])?);
        }
        inputs.push(Tensor::from_values(trireme_packing::PLACES, [1, count], places)?);
        Ok(Feed { inputs, lengths: all_lengths })
    }
}

// === impl Tokens ===

impl Tokens {
    /// Adds the tokens of a group's `members`, whose inputs are `joined`; gives the number of each position's token. Padding
    /// has the number of the nearest token of its row.
    fn add(
        &mut self,
        padding: &Padding,
        joined: &[Tensor],
        members: &[&[Tensor]],
        lengths: Option<&Padded>,
        group: usize,
    ) -> Result<Tensor, InferError> {
        let first = &padding.inputs[0];
        let size = |inputs: &[Tensor]| {
            let shape = inputs.iter().find(|tensor| tensor.name() == first.name).map(Tensor::shape);
            match shape.map(|shape| &shape[..]) {
                Some(&[rows, length]) => Ok((rows, length)),
                _ => Err(InferError::invalid_arg(format!("input '{}' has to have two dimensions", first.name))),
            }
        };
        let (all, length) = size(joined)?;
        let mut numbers = Vec::new();
        if length > 0 {
            for (at, inputs) in members.iter().enumerate() {
                let own = lengths.map_or(length, |padded| i64::from(padded.lengths[at]));
                let before = if first.left { length - own } else { 0 };
                for _ in 0..size(inputs)?.0 {
                    numbers.extend((0..length).map(|place| self.count + (place - before).clamp(0, own - 1)));
                    self.places.extend((before..before + own).map(|place| self.positions + place));
                    (self.count, self.positions) = (self.count + own, self.positions + length);
                }
            }
        }
        Ok(Tensor::from_values(trireme_packing::tokens(group), [all, length], numbers)?)
    }
}
