//! The graphs of a model, and the outputs that are kept between steps: the encoder's states and the key-value cache.
//!
//! Tensors are recognised by their names in Hugging Face's ONNX export: `past_key_values.N.decoder.key` is the input
//! for the output `present.N.decoder.key`, and so on. `.decoder.` is computed from the generated ids, `.encoder.` once
//! from the text. Cache tensors stay ONNX Runtime's own values: they go into the next run without a copy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use half::f16;
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, Outlet, Tensor, TensorElementType};

use super::files::{Layout, ModelFiles};
use super::values::{Rows, assemble};

/// Makes the session of a model's graph in a file.
pub type OpenGraph = Box<dyn Fn(&Path) -> Result<Session, LoadError>>;
use trireme_engine::LoadError;

/// The dimension with the text's length: in the encoder's states and the mask, and in the cache made from them.
const STATES_AXIS: usize = 1;
const CACHE_AXIS: usize = 2;

/// A model's graphs.
pub struct Graphs {
    encoder: Session,
    first: Decoder,
    next: Option<Decoder>,
    layout: Layout,
    /// Number of ids in the vocabulary, if the graph's shapes contain it.
    pub vocabulary: Option<usize>,
}

/// One decoder graph.
struct Decoder {
    session: Session,
    inputs: Vec<(String, Role)>,
    /// Outputs that are kept, with their slots.
    presents: Vec<(String, Slot)>,
}

/// The role of a decoder's input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Ids,
    Mask,
    States,
    EncoderMask,
    UseCache,
    Past(Slot),
}

/// A tensor of the cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    /// Computed from the generated ids.
    Own(String),
    /// Computed from the text.
    Cross(String),
}

/// The tensors kept between steps for the rows of a batch.
pub struct State {
    rows: usize,
    /// Length of the texts in the batch, padding included.
    length: usize,
    mask: DynValue,
    states: DynValue,
    cache: BTreeMap<Slot, DynValue>,
}

// === impl Graphs ===

impl Graphs {
    /// Opens the graphs in `files`.
    pub fn open(model: &str, files: &ModelFiles, open: &OpenGraph) -> Result<Graphs, LoadError> {
        let refused = |reason: String| LoadError::Config(format!("model '{model}': {reason}"));
        let encoder = open(&files.encoder)?;
        check_encoder(&encoder).map_err(|reason| refused(format!("{}: {reason}", files.encoder.display())))?;
        let mut decoders = Vec::new();
        for file in &files.decoders {
            let decoder = Decoder::new(open(file)?);
            decoders.push(decoder.map_err(|reason| refused(format!("{}: {reason}", file.display())))?);
        }
        let mut decoders = decoders.into_iter();
        let first = decoders.next().ok_or_else(|| refused("has no decoder".to_owned()))?;
        let graphs =
            Graphs { encoder, vocabulary: first.vocabulary(), first, next: decoders.next(), layout: files.layout };
        graphs.check_cache().map_err(refused)?;
        Ok(graphs)
    }

    /// Checks that some graph produces every part of the cache that a later step takes.
    fn check_cache(&self) -> Result<(), String> {
        if self.layout == Layout::WithoutPast {
            return match self.first.inputs.iter().find(|(_, role)| matches!(role, Role::Past(_))) {
                Some((name, _)) => {
                    Err(format!("decoder_model.onnx takes '{name}', which nothing gives in the first step"))
                }
                None => Ok(()),
            };
        }
        let next = self.next.as_ref().unwrap_or(&self.first);
        let given = |slot: &Slot| self.first.presents.iter().any(|(_, present)| present == slot);
        let missing = next.inputs.iter().find(|(_, role)| matches!(role, Role::Past(slot) if !given(slot)));
        match missing {
            Some((name, _)) => Err(format!("the decoder takes '{name}', but its first step does not give it")),
            None => Ok(()),
        }
    }

    /// Whether rows of different lengths may step together. Without a cache each row brings its whole sequence, padded
    /// at its end, where a decoder does not look.
    pub fn mixes_lengths(&self) -> bool {
        self.layout == Layout::WithoutPast
    }

    /// Runs the encoder on texts; shorter ones are padded.
    pub fn encode(&mut self, texts: &[(&[i64], &[i64])], pad: i64) -> ort::Result<State> {
        let rows = texts.len();
        let length = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let ids = integers(texts.iter().map(|(ids, _)| *ids), length, pad)?;
        let mask = integers(texts.iter().map(|(_, mask)| *mask), length, 0)?;
        let name = self.encoder.outputs().first().map(|output| output.name().to_owned()).unwrap_or_default();
        let inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> =
            vec![(Cow::Borrowed("input_ids"), (&ids).into()), (Cow::Borrowed("attention_mask"), (&mask).into())];
        let mut outputs = self.encoder.run(inputs)?;
        let states = outputs.remove(&name).ok_or_else(|| missing(&name))?;
        Ok(State { rows, length, mask, states, cache: BTreeMap::new() })
    }

    /// Runs one step. `sequences` are the rows' ids so far. Returns logits of shape [rows, length, vocabulary], of
    /// which only a row's last real position counts, and updates the cache.
    pub fn step(&mut self, state: &mut State, sequences: &[&[i64]], pad: i64) -> ort::Result<DynValue> {
        let cached = !state.cache.is_empty();
        let ids = match cached {
            true => integers(sequences.iter().map(|ids| &ids[ids.len().saturating_sub(1)..]), 1, pad)?,
            false => {
                let length = sequences.iter().map(|ids| ids.len()).max().unwrap_or(0);
                integers(sequences.iter().copied(), length, pad)?
            }
        };
        let keep = self.layout != Layout::WithoutPast;
        let decoder = match (&mut self.next, cached) {
            (Some(next), true) => next,
            _ => &mut self.first,
        };
        decoder.step(state, &ids, cached, keep)
    }
}

/// Checks that the encoder's inputs have these names and no others.
fn check_encoder(encoder: &Session) -> Result<(), String> {
    for input in encoder.inputs() {
        if !matches!(input.name(), "input_ids" | "attention_mask") {
            return Err(format!(
                "input '{}' of an encoder is unknown, expected input_ids and attention_mask",
                input.name()
            ));
        }
        check_integers(input)?;
    }
    Ok(())
}

fn check_integers(input: &Outlet) -> Result<(), String> {
    match input.dtype().tensor_type() {
        Some(TensorElementType::Int64) => Ok(()),
        _ => Err(format!("input '{}' is {}, expected a tensor of INT64", input.name(), input.dtype())),
    }
}

// === impl Decoder ===

impl Decoder {
    fn new(session: Session) -> Result<Decoder, String> {
        let mut inputs = Vec::new();
        for input in session.inputs() {
            let role = Role::of(input.name())
                .ok_or_else(|| format!("input '{}' of a decoder is unknown to backend 'generation'", input.name()))?;
            if matches!(role, Role::Ids | Role::Mask | Role::EncoderMask) {
                check_integers(input)?;
            }
            inputs.push((input.name().to_owned(), role));
        }
        if !inputs.iter().any(|(_, role)| *role == Role::Ids) {
            return Err("a decoder has to have the input 'input_ids' or 'decoder_input_ids'".to_owned());
        }
        if !session.outputs().iter().any(|output| output.name() == "logits") {
            return Err("a decoder has to have the output 'logits'".to_owned());
        }
        let presents = session.outputs().iter().filter_map(|output| {
            let slot = Slot::of(output.name().strip_prefix("present.")?)?;
            Some((output.name().to_owned(), slot))
        });
        let presents = presents.collect();
        Ok(Decoder { session, inputs, presents })
    }

    fn vocabulary(&self) -> Option<usize> {
        let logits = self.session.outputs().iter().find(|output| output.name() == "logits")?;
        let dimension = *logits.dtype().tensor_shape()?.last()?;
        usize::try_from(dimension).ok().filter(|&ids| ids > 0)
    }

    fn step(&mut self, state: &mut State, ids: &DynValue, cached: bool, keep: bool) -> ort::Result<DynValue> {
        let use_cache = Tensor::from_array((vec![1i64], vec![cached]))?;
        let past = state.past_length();
        let total = past + ids.shape().get(1).map_or(0, |&length| length as usize);
        let seen = vec![1i64; total];
        let mask = integers(std::iter::repeat_n(&seen[..], state.rows), total, 1)?;
        // The first step of a graph with a switch takes a cache as input, but ignores it.
        let mut empty = BTreeMap::new();
        if !cached {
            for (name, role) in &self.inputs {
                if let Role::Past(slot) = role {
                    empty.insert(slot.clone(), unused(&self.session, name, state.rows)?);
                }
            }
        }
        let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::with_capacity(self.inputs.len());
        for (name, role) in &self.inputs {
            let value: &DynValue = match role {
                Role::Ids => ids,
                Role::Mask => &mask,
                Role::States => &state.states,
                Role::EncoderMask => &state.mask,
                Role::UseCache => {
                    inputs.push((Cow::Borrowed(name), (&use_cache).into()));
                    continue;
                }
                Role::Past(slot) => {
                    let cache = if cached { &state.cache } else { &empty };
                    cache.get(slot).ok_or_else(|| missing(name))?
                }
            };
            inputs.push((Cow::Borrowed(name), value.into()));
        }
        let mut outputs = self.session.run(inputs)?;
        let logits = outputs.remove("logits").ok_or_else(|| missing("logits"))?;
        if keep {
            for (name, slot) in &self.presents {
                // Tensors computed from the text do not change, and graphs with a switch return an empty one for them.
                if cached && matches!(slot, Slot::Cross(_)) {
                    continue;
                }
                let value = outputs.remove(name).ok_or_else(|| missing(name))?;
                state.cache.insert(slot.clone(), value);
            }
        }
        Ok(logits)
    }
}

/// A tensor for an ignored input.
fn unused(session: &Session, name: &str, rows: usize) -> ort::Result<DynValue> {
    let input = session.inputs().iter().find(|input| input.name() == name).ok_or_else(|| missing(name))?;
    let dims = input.dtype().tensor_shape().map(|shape| shape.to_vec()).unwrap_or_default();
    let shape: Vec<i64> =
        dims.iter().enumerate().map(|(axis, &dim)| if axis == 0 { rows as i64 } else { dim.max(1) }).collect();
    let count = shape.iter().product::<i64>() as usize;
    Ok(match input.dtype().tensor_type() {
        Some(TensorElementType::Float16) => Tensor::from_array((shape, vec![f16::ZERO; count]))?.into_dyn(),
        _ => Tensor::from_array((shape, vec![0f32; count]))?.into_dyn(),
    })
}

/// Rows of ids as a tensor, the shorter ones padded.
fn integers<'a>(rows: impl Iterator<Item = &'a [i64]>, length: usize, fill: i64) -> ort::Result<DynValue> {
    let mut data = Vec::new();
    let mut count = 0i64;
    for row in rows {
        data.extend_from_slice(row);
        count += 1;
        data.resize(count as usize * length, fill);
    }
    Ok(Tensor::from_array((vec![count, length as i64], data))?.into_dyn())
}

fn missing(name: &str) -> ort::Error {
    ort::Error::new(format!("the graph gave no '{name}'"))
}

// === impl Role ===

impl Role {
    fn of(name: &str) -> Option<Role> {
        Some(match name {
            "input_ids" | "decoder_input_ids" => Role::Ids,
            "decoder_attention_mask" => Role::Mask,
            "encoder_hidden_states" | "encoder_outputs" => Role::States,
            "encoder_attention_mask" | "attention_mask" => Role::EncoderMask,
            "use_cache_branch" => Role::UseCache,
            _ => Role::Past(Slot::of(name.strip_prefix("past_key_values.")?)?),
        })
    }
}

// === impl Slot ===

impl Slot {
    /// The slot of `0.decoder.key` and similar names.
    fn of(name: &str) -> Option<Slot> {
        if name.contains(".decoder.") {
            return Some(Slot::Own(name.to_owned()));
        }
        name.contains(".encoder.").then(|| Slot::Cross(name.to_owned()))
    }
}

// === impl State ===

impl State {
    fn past_length(&self) -> usize {
        let own = self.cache.iter().find(|(slot, _)| matches!(slot, Slot::Own(_)));
        own.and_then(|(_, value)| value.shape().get(CACHE_AXIS).copied()).unwrap_or(0) as usize
    }

    /// The rows of `parts` together, in their order, for texts of at most `length` ids.
    pub fn assemble(parts: &[(&State, &[usize])], length: usize) -> ort::Result<State> {
        let Some(((first, _), others)) = parts.split_first() else { return Err(ort::Error::new("no rows to keep")) };
        let join = |pick: &dyn Fn(&State) -> Option<&DynValue>, axis: Option<usize>| {
            let rows = parts.iter().map(|(state, rows)| Some(Rows { of: pick(state)?, rows }));
            let rows: Option<Vec<_>> = rows.collect();
            let rows = rows.ok_or_else(|| ort::Error::new("batches of different steps cannot be joined"))?;
            assemble(&rows, axis.map(|axis| (axis, length)))
        };
        let mut cache = BTreeMap::new();
        for slot in first.cache.keys() {
            let axis = matches!(slot, Slot::Cross(_)).then_some(CACHE_AXIS);
            cache.insert(slot.clone(), join(&|state| state.cache.get(slot), axis)?);
        }
        debug_assert!(others.iter().all(|(state, _)| state.cache.len() == cache.len()));
        Ok(State {
            rows: parts.iter().map(|(_, rows)| rows.len()).sum(),
            length,
            mask: join(&|state| Some(&state.mask), Some(STATES_AXIS))?,
            states: join(&|state| Some(&state.states), Some(STATES_AXIS))?,
            cache,
        })
    }

    /// Replaces each row by another row of the same text. Only tensors computed from generated ids move.
    pub fn reorder(&mut self, rows: &[usize]) -> ort::Result<()> {
        for (slot, value) in &mut self.cache {
            if matches!(slot, Slot::Own(_)) {
                *value = assemble(&[Rows { of: value, rows }], None)?;
            }
        }
        Ok(())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of the texts, padding included.
    pub fn length(&self) -> usize {
        self.length
    }
}

/// The last logits of each row, whose sequence has this length in the tensor. With a single position they are returned
/// in place.
pub fn last_logits<'a>(
    logits: &'a mut DynValue,
    lengths: &[usize],
    scratch: &'a mut Vec<f32>,
) -> ort::Result<(&'a mut [f32], usize)> {
    let shape = logits.shape().to_vec();
    let &[rows, positions, vocabulary] = &shape[..] else {
        return Err(ort::Error::new(format!("logits have shape {shape:?}, expected three dimensions")));
    };
    let (rows, positions, vocabulary) = (rows as usize, positions as usize, vocabulary as usize);
    if rows != lengths.len() || positions == 0 || vocabulary == 0 {
        return Err(ort::Error::new(format!("logits have shape {shape:?}, expected {} rows", lengths.len())));
    }
    if positions == 1 && logits.dtype().tensor_type() == Some(TensorElementType::Float32) {
        return Ok((logits.try_extract_tensor_mut::<f32>()?.1, vocabulary));
    }
    scratch.clear();
    for (row, &length) in lengths.iter().enumerate() {
        let start = (row * positions + length.clamp(1, positions) - 1) * vocabulary;
        match logits.dtype().tensor_type() {
            Some(TensorElementType::Float16) => {
                let (_, values) = logits.try_extract_tensor::<f16>()?;
                scratch.extend(values[start..start + vocabulary].iter().map(|value| value.to_f32()));
            }
            _ => scratch.extend_from_slice(&logits.try_extract_tensor::<f32>()?.1[start..start + vocabulary]),
        }
    }
    Ok((scratch, vocabulary))
}
