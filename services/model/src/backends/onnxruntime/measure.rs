//! Measures the costs of a model's runs before it serves: a grid of rows and lengths, with made-up tokens.
//!
//! One instance runs while the model's others are idle. So the result does not include how instances slow each other down
//! (memory bandwidth, shared caches). The batcher needs only ratios between runs, which that changes little.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use trireme_engine::{ExecuteRequest, ModelInstance};
use trireme_inference::{DataType, Shape, Tensor, TensorSpec};
use trireme_model_repository::ModelConfig;

use super::accelerators::InstanceDevice;
use super::tasks;
use crate::batcher::cost::{self, Fit, Point};
use crate::batcher::{Declaration, PaddedInput, Steps};

/// The grid. On CPUs it ends with the sixth number of rows.
const ROWS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const ROWS_ON_CPUS: usize = 6;
const LENGTHS: [u32; 6] = [8, 16, 32, 64, 128, 256];

/// Most tokens of a measured run. On CPUs tokens of larger runs are dearer, and the arena would keep the memory of such a run;
/// accelerators are at their best with large runs only.
const MOST_TOKENS: u32 = 4096;
const MOST_TOKENS_ACCELERATED: u32 = 65536;

/// Measured runs with the same number of tokens: the two extremes and one in between.
const SHAPES_PER_SIZE: usize = 3;

/// Each point's cost is the least of several runs, because a disturbance only makes a run longer. So many are made before it is decided
/// whether larger ones are measured; more follow in rounds, so that one disturbance does not affect all runs of a point.
const FIRST_RUNS: u32 = 2;

/// The measuring ends when this many rounds after one another lead to the same token budget.
const EQUAL_ROUNDS: u32 = 2;

/// When to stop in any case. The first runs may take this share of it, so a slow model gets fewer points.
const TIME_LIMIT: Duration = Duration::from_millis(2500);
const SHARE_OF_FIRST_RUNS: f64 = 0.6;

/// Prevents two models that load at the same time from measuring each other.
static MEASURING: Mutex<()> = Mutex::new(());

/// Lengths that are no multiples, and the multiples to which their rows may be filled up.
const ODD_LENGTHS: [u32; 5] = [19, 37, 53, 75, 101];
const MULTIPLES: [u32; 3] = [8, 16, 32];
const ROWS_OF_STEPS: u32 = 4;

/// Rounds in which the multiples are measured, at most.
const ROUNDS_OF_STEPS: usize = 4;

/// Filling up pays where it takes this part of the time at most.
const STEPS_PAY: f64 = 0.97;

/// A provider compiles each shape where the first run of a length takes so many times as long as a later one: 1.5 to 1.8 with OpenVINO, 1.05
/// with the plain provider. There it always pays to fill up, because texts of all lengths in all numbers of rows are some thousand shapes.
const COMPILES: f64 = 1.25;

/// A multiple that takes so many times as long as the fastest one is as fast. The largest of them makes the fewest shapes.
const AS_FAST: f64 = 1.05;

/// How many seconds the first run of a shape takes, and a later run.
#[derive(Clone, Copy)]
struct Took {
    first: f64,
    later: f64,
}

/// Rows are filled up to the longest of these that the model takes.
const LONGEST: [u32; 4] = [512, 256, 128, 64];

/// Keeps others from measuring meanwhile.
pub fn alone() -> MutexGuard<'static, ()> {
    MEASURING.lock()
}

/// The lengths of runs with which `instance` takes the least time for rows whose lengths are no multiples.
pub fn steps(config: &ModelConfig, declaration: &Declaration, instance: &mut dyn ModelInstance) -> Steps {
    let _alone = alone();
    let rows = ROWS_OF_STEPS.min(declaration.max_rows);
    let mut seconds = |rows, length| run(config, declaration, instance, rows, length).ok();
    let longest = LONGEST.into_iter().find(|&length| seconds(1, length).is_some());
    longest.map_or_else(Steps::default, |longest| agreed_steps(longest, |length| seconds(rows, length)))
}

/// The steps on which two rounds agree, by the seconds of runs with rows of a length. Only the first run of a length compiles it. Without
/// agreement the least times of all rounds decide.
fn agreed_steps(longest: u32, mut seconds: impl FnMut(u32) -> Option<f64>) -> Steps {
    let mut all: HashMap<u32, Option<Took>> = HashMap::new();
    let mut chosen = Vec::new();
    for _ in 0..ROUNDS_OF_STEPS {
        let mut round: HashMap<u32, Option<Took>> = HashMap::new();
        let steps = choose_steps(longest, |length| {
            *round.entry(length).or_insert_with(|| {
                let before = all.get(&length).copied();
                let first = match before {
                    Some(took) => took?.first,
                    None => seconds(length)?,
                };
                Some(Took { first, later: seconds(length)? })
            })
        });
        for (length, took) in round {
            let least = |before: Took, took: Took| Took { later: before.later.min(took.later), ..before };
            all.entry(length).and_modify(|before| *before = before.zip(took).map(|(a, b)| least(a, b))).or_insert(took);
        }
        if chosen.contains(&steps) {
            return steps;
        }
        chosen.push(steps);
    }
    choose_steps(longest, |length| all.get(&length).copied().flatten())
}

/// The steps by the seconds of runs with rows of a length; `None`: a length that the model does not take.
fn choose_steps(longest: u32, mut seconds: impl FnMut(u32) -> Option<Took>) -> Steps {
    let mut total = |steps: Steps| {
        let mut lengths = ODD_LENGTHS.into_iter().filter(|length| *length <= longest).map(|length| steps.of(length));
        lengths.try_fold(Took { first: 0.0, later: 0.0 }, |sum, length| {
            let took = seconds(length)?;
            Some(Took { first: sum.first + took.first, later: sum.later + took.later })
        })
    };
    let none = Steps::default();
    let Some(exact) = total(none) else { return none };
    let totals: Vec<_> = MULTIPLES
        .into_iter()
        .map(|multiple| Steps { multiple, longest })
        .filter_map(|steps| Some((steps, total(steps)?.later)))
        .collect();
    let least = totals.iter().map(|(_, total)| *total).fold(f64::INFINITY, f64::min);
    let pays = exact.first >= COMPILES * exact.later || least <= STEPS_PAY * exact.later;
    let chosen = totals.iter().rev().find(|(_, total)| pays && *total <= AS_FAST * least);
    chosen.map_or(none, |(steps, _)| *steps)
}

/// Measures `instance`, which is at `place`, while that is `wanted`. The error says why that is impossible; the model then serves without
/// measurements.
pub fn measure(
    config: &ModelConfig,
    declaration: &Declaration,
    place: InstanceDevice,
    instance: &mut dyn ModelInstance,
    wanted: &dyn Fn() -> bool,
) -> Result<Fit, String> {
    let (counts, most_tokens) = match place.is_gpu() {
        true => (&ROWS[..], MOST_TOKENS_ACCELERATED),
        false => (&ROWS[..ROWS_ON_CPUS], MOST_TOKENS),
    };
    let _alone = alone();
    let started = Instant::now();
    let mut seconds = |rows: u32, length: u32| -> Result<f64, String> {
        if !wanted() {
            return Err("the model is unloaded".to_owned());
        }
        run(config, declaration, instance, rows, length)
    };
    let mut points: Vec<Point> = Vec::new();
    // A model may accept only as many tokens as it has positions.
    let mut too_long = u32::MAX;
    let mut why = "no run was made".to_owned();
    let sizes = grid(counts, declaration.max_rows, declaration.token_budget.unwrap_or(most_tokens));
    for alike in sizes.chunk_by(|(rows, length), (rows_after, length_after)| rows * length == rows_after * length_after)
    {
        if started.elapsed() >= TIME_LIMIT.mul_f64(SHARE_OF_FIRST_RUNS) || cost::is_enough(&points) {
            break;
        }
        let first = points.len();
        for &(rows, length) in alike {
            if length < too_long {
                match seconds(rows, length) {
                    Ok(cost) => points.push(Point { rows, length, cost }),
                    Err(error) => (too_long, why) = (length, error),
                }
            }
        }
        for _ in 1..FIRST_RUNS {
            repeat(&mut points[first..], &mut seconds, || started.elapsed() < TIME_LIMIT)?;
        }
    }
    let (mut budget, mut equal) = (None, 0);
    while equal < EQUAL_ROUNDS && repeat(&mut points, &mut seconds, || started.elapsed() < TIME_LIMIT)? {
        let chosen = cost::fit(&points).map(|fit| fit.token_budget);
        equal = if chosen == budget { equal + 1 } else { 0 };
        budget = chosen;
    }
    let count = points.len();
    cost::fit(&points).ok_or_else(|| format!("only {count} sizes could be run: {why}"))
}

/// The seconds of one run of `instance` with `rows` rows of `length` tokens. Errors if the model does not take them.
pub fn run(
    config: &ModelConfig,
    declaration: &Declaration,
    instance: &mut dyn ModelInstance,
    rows: u32,
    length: u32,
) -> Result<f64, String> {
    let request = request(config, declaration, rows, length)?;
    let result = instance.execute(std::slice::from_ref(&request)).pop();
    let result = result.ok_or("an execution without a result")?.map_err(|error| error.message)?;
    // Without the time before the run, in which it may wait for its turn.
    let took = result.timing.compute_infer + result.timing.compute_output;
    Ok(took.as_secs_f64().max(1e-9))
}

/// Runs the points once more, as long as there is time. Whether there was enough for all.
fn repeat(
    points: &mut [Point],
    seconds: &mut impl FnMut(u32, u32) -> Result<f64, String>,
    is_time: impl Fn() -> bool,
) -> Result<bool, String> {
    for Point { rows, length, cost } in points {
        if !is_time() {
            return Ok(false);
        }
        *cost = seconds(*rows, *length)?.min(*cost);
    }
    Ok(true)
}

/// The sizes to measure, small runs first.
fn grid(counts: &[u32], max_rows: u32, most_tokens: u32) -> Vec<(u32, u32)> {
    let mut sizes: Vec<u32> = counts.iter().flat_map(|rows| LENGTHS.map(|length| rows * length)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of_size = |tokens: u32| {
        let lengths =
            LENGTHS.iter().filter(|&&length| tokens.is_multiple_of(length) && counts.contains(&(tokens / length)));
        let shapes: Vec<_> =
            lengths.map(|&length| (tokens / length, length)).filter(|(rows, _)| *rows <= max_rows).collect();
        match shapes.len() {
            0..=SHAPES_PER_SIZE => shapes,
            count => vec![shapes[0], shapes[count / 2], shapes[count - 1]],
        }
    };
    sizes.into_iter().take_while(|tokens| *tokens <= most_tokens).flat_map(of_size).collect()
}

/// A request of `rows` rows of `length` tokens, for all outputs: of the declaration's rows where there are some, else made up. Errors if
/// an input has no definite size.
pub fn request(
    config: &ModelConfig,
    declaration: &Declaration,
    rows: u32,
    length: u32,
) -> Result<ExecuteRequest, String> {
    let input = |spec: TensorSpec| {
        let mut shape = spec.shape.to_vec();
        shape[0] = rows.into();
        let padded = declaration.padding.inputs.iter().find(|padded| padded.name == spec.name);
        if let Some(padded) = padded {
            shape[padded.axis] = length.into();
        }
        if let Some(longest) = declaration.sample_rows.iter().max_by_key(|row| row.len())
            && let Some(tensor) = sample(&spec, padded, longest, rows, length)
        {
            return Ok(tensor);
        }
        // The filler stands for padding, so that a row of it would show nothing.
        let filler = padded.map(|padded| padded.value.as_slice());
        ones(&spec.name, spec.datatype, shape.into(), filler)
    };
    let inputs = config.input_specs().into_iter().map(input).collect::<Result<_, _>>()?;
    let outputs = config.outputs.iter().map(|output| &output.name);
    Ok(tasks::of_first_task(ExecuteRequest::made_up("made up while loading", inputs, outputs)))
}

/// One of a tokenizer's tensors, of `rows` rows of `length` tokens: those of `row`, with its last one at the end.
fn sample(spec: &TensorSpec, padded: Option<&PaddedInput>, row: &[i64], rows: u32, length: u32) -> Option<Tensor> {
    let (padded, last) = (padded?, *row.last()?);
    let filler = padded.value.iter().rev().fold(0i64, |number, byte| number << 8 | i64::from(*byte));
    let length = length as usize;
    let own: Vec<i64> = match spec.name.as_str() {
        "input_ids" => {
            let tokens = row.iter().chain(row.iter().skip(1).cycle()).copied();
            tokens.take(length.saturating_sub(1)).chain([last]).collect()
        }
        "attention_mask" => vec![1; length],
        "token_type_ids" => vec![0; length],
        "position_ids" => (0..length as i64).map(|at| at + if filler == 0 { 0 } else { filler + 1 }).collect(),
        _ => return None,
    };
    let all = own.repeat(rows as usize);
    let shape = [i64::from(rows), length as i64];
    match spec.datatype {
        DataType::Int64 => Tensor::from_values(&*spec.name, shape, all).ok(),
        DataType::Int32 => Tensor::from_values(&*spec.name, shape, all.iter().map(|&id| id as i32).collect()).ok(),
        _ => None,
    }
}

/// A tensor of ones, which are valid as token, mask and segment, or of twos where `filler` is one. Strings are empty.
fn ones(name: &str, datatype: DataType, shape: Shape, filler: Option<&[u8]>) -> Result<Tensor, String> {
    const LARGEST: u64 = 1 << 24;
    let count = shape.element_count().filter(|count| *count <= LARGEST);
    let count =
        count.ok_or_else(|| format!("input '{name}' of shape {shape} has no definite size or too large a one"))?;
    let one: &[u8] = match datatype {
        DataType::Bytes => &[0; 4],
        DataType::Bool | DataType::Uint8 | DataType::Int8 => &[1],
        DataType::Uint16 | DataType::Int16 => &1u16.to_le_bytes(),
        DataType::Uint32 | DataType::Int32 => &1u32.to_le_bytes(),
        DataType::Uint64 | DataType::Int64 => &1u64.to_le_bytes(),
        DataType::Fp16 => &half::f16::ONE.to_le_bytes(),
        DataType::Bf16 => &half::bf16::ONE.to_le_bytes(),
        DataType::Fp32 => &1f32.to_le_bytes(),
        DataType::Fp64 => &1f64.to_le_bytes(),
    };
    let mut one = one.to_vec();
    if filler == Some(&one) && matches!(datatype, DataType::Int64 | DataType::Int32) {
        one[0] = 2;
    }
    Tensor::new(name, datatype, shape, Bytes::from(one.repeat(count as usize))).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_small_and_in_order() {
        let points = grid(&ROWS[..ROWS_ON_CPUS], 64, MOST_TOKENS);
        assert!(points.is_sorted_by_key(|(rows, length)| rows * length));
        assert!((20..40).contains(&points.len()), "{}", points.len());
        for size in [(1, 8), (1, 256), (32, 8), (32, 32), (16, 256)] {
            assert!(points.contains(&size), "{size:?}");
        }
        assert!(grid(&ROWS, 4, 512).iter().all(|(rows, length)| *rows <= 4 && rows * length <= 512));
        assert!(grid(&ROWS, 256, MOST_TOKENS_ACCELERATED).contains(&(256, 256)));
    }

    #[test]
    fn rows_are_filled_up_where_it_pays() {
        let steady = |later: f64| Some(Took { first: later, later });
        let no_length_is_dearer = |length: u32| steady(f64::from(length));
        assert_eq!(choose_steps(512, no_length_is_dearer), Steps::default());
        let dear_unless_16 =
            |length: u32| steady(f64::from(length) * if length.is_multiple_of(16) { 1.0 } else { 1.4 });
        assert_eq!(choose_steps(512, dear_unless_16), Steps { multiple: 16, longest: 512 });
        assert_eq!(choose_steps(64, dear_unless_16), Steps { multiple: 16, longest: 64 }, "longer ones are not tried");
        let missing = |length| (length != 53).then_some(Took { first: 1.0, later: 1.0 });
        assert_eq!(choose_steps(512, missing), Steps::default(), "not measured");
        let compiled = |length: u32| Some(Took { first: 2.0 * f64::from(length), later: f64::from(length) });
        assert_eq!(choose_steps(512, compiled), Steps { multiple: 8, longest: 512 }, "each length costs a compilation");
    }

    #[test]
    fn multiples_are_measured_until_two_rounds_agree() {
        // In each round a run of a length takes its time by the round's factor for lengths that are no multiples of 16.
        let found = |factors: &[f64], first: f64| {
            let mut runs: HashMap<u32, usize> = HashMap::new();
            let steps = agreed_steps(512, |length| {
                let run = runs.entry(length).or_default();
                let factor = match *run {
                    0 => first,
                    run if length.is_multiple_of(16) || run > factors.len() => 1.0,
                    run => factors[run - 1],
                };
                *run += 1;
                Some(f64::from(length) * factor)
            });
            (steps.multiple, runs[&19] - 1)
        };
        assert_eq!(found(&[1.4, 1.4], 1.0), (16, 2));
        assert_eq!(found(&[1.0, 1.0], 1.0), (1, 2));
        assert_eq!(found(&[1.0, 1.4, 1.4], 1.0), (16, 3), "the first round was disturbed");
        assert_eq!(found(&[1.0, 1.0], 2.0), (8, 2), "the compilation of the first run counts in each round");
    }

    #[test]
    fn rows_of_a_tokenizer_keep_their_ends() {
        let ids = |name: &str, value: i64, row: &[i64], length| {
            let shape = Shape::from([-1, -1]);
            let spec = TensorSpec { name: name.into(), datatype: DataType::Int64, shape, optional: false };
            let padded = PaddedInput { name: name.into(), axis: 1, value: value.to_le_bytes().to_vec(), left: false };
            sample(&spec, Some(&padded), row, 1, length).unwrap().values::<i64>().unwrap().to_vec()
        };
        assert_eq!(ids("input_ids", 1, &[0, 7, 8, 2], 4), [0, 7, 8, 2]);
        assert_eq!(ids("input_ids", 1, &[0, 7, 8, 2], 2), [0, 2]);
        assert_eq!(ids("input_ids", 1, &[0, 7, 8, 2], 6)[5], 2);
        assert_eq!(ids("position_ids", 1, &[0, 2], 3), [2, 3, 4]);
        assert_eq!(ids("position_ids", 0, &[0, 2], 3), [0, 1, 2]);
        let two = ones("x", DataType::Int64, [2].into(), Some(&1i64.to_le_bytes())).unwrap();
        assert_eq!(*two.values::<i64>().unwrap(), [2, 2], "a row of padding shows nothing");
    }

    #[test]
    fn inputs_are_ones() {
        for datatype in DataType::ALL {
            assert_eq!(ones("x", datatype, [2, 3].into(), None).unwrap().element_count(), 6);
        }
        assert_eq!(*ones("x", DataType::Fp32, [2].into(), None).unwrap().values::<f32>().unwrap(), [1.0, 1.0]);
        assert!(
            ones("x", DataType::Fp32, [2, -1].into(), None).unwrap_err().contains("shape [2,-1] has no definite size")
        );
    }
}
