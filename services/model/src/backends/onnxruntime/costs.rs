//! The costs of a model's runs: from the cache, otherwise measured. They are logged in one line for each kind of place.
//!
//! The choices that follow from costs, the token budget and the steps of lengths, are measured until two measurements agree. Kept costs are
//! compared with a few runs when they are read, and measured again where these runs contradict them.

use trireme_engine::ModelInstance;
use trireme_model_repository::ModelConfig;

use super::accelerators::{InstanceDevice, firsts};
use super::cost_cache::Entry;
use super::measure;
use crate::batcher::cost::Fit;
use crate::batcher::{Declaration, USUAL_LENGTH};

/// A measurement whose runs are further than this from the costs that it gives, on average, was disturbed.
const DISTURBED: f64 = 0.25;

/// How many times costs are measured at most, and how many measurements have to agree.
const TRIES: usize = 3;
const AGREEING: usize = 2;

/// Budgets agree, whatever they are, whose full runs are no longer than this: the next request hardly waits for them.
const SHORT_RUN: f64 = 5e-3;

/// Rows of this length that are compared with kept costs, and how many runs of each are made until their ratio agrees.
const COMPARED_ROWS: [u32; 2] = [1, 8];
const COMPARED_RUNS: usize = 3;

/// Runs contradict kept costs if the larger ones are dearer or cheaper beside the smaller ones by this part. A busy host slows down both.
const CONTRADICTS: f64 = 1.0 / 3.0;

/// Runs of less are not compared: the times of the host's other work would be.
const LEAST_SECONDS: f64 = 1e-3;

/// The places of a model's instances.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// One for each instance.
    pub all: &'a [InstanceDevice],
    /// Whether an accelerator runs the model there: then the steps of lengths are measured, too.
    pub is_accelerated: &'a dyn Fn(InstanceDevice) -> bool,
}

/// The costs that batches of `config`'s model go by. Its `instances` are at `places`; `kept` is a place's entry in the cache, if
/// there is one. `None` if the declaration turns measuring off or, with a warning, if they cannot be measured; also when they are not
/// `wanted` any more.
pub fn find<I: ModelInstance>(
    config: &ModelConfig,
    declaration: &Declaration,
    places: Places<'_>,
    kept: impl Fn(InstanceDevice) -> Option<Entry>,
    instances: &mut [I],
    wanted: &dyn Fn() -> bool,
) -> Option<Fit> {
    if !declaration.measure {
        return None;
    }
    // GPUs are taken for alike.
    let firsts = firsts(places.all, InstanceDevice::is_gpu).into_iter();
    let at = |at: usize| {
        let place = places.all[at];
        Some((place, find_at(config, declaration, kept(place), (places, place), &mut instances[at], wanted)?))
    };
    let found: Vec<_> = firsts.filter_map(at).collect();
    decisive(declaration, places.all, &found)
}

/// The costs at `place`, where `instance` is.
fn find_at(
    config: &ModelConfig,
    declaration: &Declaration,
    kept: Option<Entry>,
    (places, place): (Places<'_>, InstanceDevice),
    instance: &mut dyn ModelInstance,
    wanted: &dyn Fn() -> bool,
) -> Option<Fit> {
    let known = kept.as_ref().and_then(Entry::read).filter(|fit| !is_disturbed(fit));
    if let Some(fit) = known {
        let _alone = measure::alone();
        let seconds = |rows| measure::run(config, declaration, instance, rows, USUAL_LENGTH).ok();
        let Some(contradiction) = contradiction(&fit, declaration.max_rows, seconds) else {
            report(config, declaration, place, &fit, "cache");
            return Some(fit);
        };
        tracing::info!(model = config.name, %place, "the kept costs are measured again: {contradiction}");
    }
    // A configured budget leaves nothing to choose.
    let agreeing = if declaration.token_budget.is_some() { 1 } else { AGREEING };
    let measured = agreed(agreeing, || measure::measure(config, declaration, place, instance, wanted));
    let (mut fit, is_agreed) = match measured {
        Ok(measured) => measured,
        Err(_) if !wanted() => return None,
        Err(reason) => {
            tracing::warn!(model = config.name, %place, reason, "costs could not be measured");
            return None;
        }
    };
    if !is_agreed && let Some(fit) = known {
        report(config, declaration, place, &fit, "cache");
        return Some(fit);
    }
    if (places.is_accelerated)(place) && !declaration.has_multiple {
        fit.steps = measure::steps(config, declaration, instance);
    }
    report(config, declaration, place, &fit, if is_agreed { "measured" } else { "measured in doubt" });
    // In doubt the next load measures again.
    if let Some(Err(error)) = kept.filter(|_| is_agreed).map(|entry| entry.write(&fit)) {
        tracing::warn!(model = config.name, %error, "the cost model could not be kept");
    }
    Some(fit)
}

/// Whether a measurement is so far off that other work of the host must have disturbed it. It is not taken from the cache.
fn is_disturbed(fit: &Fit) -> bool {
    fit.error > DISTURBED
}

/// Measures a few times at most, until `agreeing` undisturbed measurements have one budget. The result is the one with the least error,
/// and true. Without agreement it is the undisturbed one with the middle budget, and false. An error of a later measurement ends the measuring.
fn agreed<E>(agreeing: usize, mut measure: impl FnMut() -> Result<Fit, E>) -> Result<(Fit, bool), E> {
    let mut found = vec![measure()?];
    let least_off = |fits: &[Fit]| fits.iter().copied().min_by(|a, b| a.error.total_cmp(&b.error));
    loop {
        let last = found[found.len() - 1];
        let is_alike = |fit: &&Fit| !is_disturbed(fit) && is_one_budget(fit, &last);
        let alike: Vec<Fit> = found.iter().filter(is_alike).copied().collect();
        if alike.len() >= agreeing
            && let Some(fit) = least_off(&alike)
        {
            return Ok((fit, true));
        }
        match if found.len() < TRIES { measure().ok() } else { None } {
            Some(fit) => found.push(fit),
            None => break,
        }
    }
    let mut undisturbed: Vec<Fit> = found.iter().filter(|fit| !is_disturbed(fit)).copied().collect();
    undisturbed.sort_by_key(|fit| fit.token_budget);
    let middle = undisturbed.get(undisturbed.len() / 2).copied();
    Ok((middle.or_else(|| least_off(&found)).unwrap_or(found[0]), false))
}

/// Whether two measurements agree in the budget.
fn is_one_budget(one: &Fit, other: &Fit) -> bool {
    let is_short = |fit: &Fit| fit.model.cost((fit.token_budget / USUAL_LENGTH).max(1), USUAL_LENGTH) <= SHORT_RUN;
    one.token_budget == other.token_budget || is_short(one) && is_short(other)
}

/// How runs contradict the kept costs of `fit`, for the log. `seconds` runs so many rows of [`USUAL_LENGTH`]; a run that fails says nothing.
fn contradiction(fit: &Fit, max_rows: u32, mut seconds: impl FnMut(u32) -> Option<f64>) -> Option<String> {
    let rows = COMPARED_ROWS.map(|rows| rows.min(max_rows));
    let [one, many] = rows.map(|rows| fit.model.cost(rows, USUAL_LENGTH));
    if rows[0] == rows[1] || many < LEAST_SECONDS {
        return None;
    }
    let (kept, mut least, mut found) = (many / one, [f64::INFINITY; 2], 0.0);
    for _ in 0..COMPARED_RUNS {
        for (least, rows) in least.iter_mut().zip(rows) {
            *least = least.min(seconds(rows)?);
        }
        found = least[1] / least[0];
        if (found / kept - 1.0).abs() <= CONTRADICTS {
            return None;
        }
    }
    let [_, rows] = rows;
    Some(format!("{rows} rows take {found:.1} times as long as one, and by the kept costs {kept:.1} times"))
}

/// The costs that batches go by, out of those at several places. All instances of a model take their batches from one policy, which
/// does not know the instance. So the costs of one kind of place decide: the one whose instances together do the most tokens per
/// second in full runs of usual texts.
fn decisive(declaration: &Declaration, places: &[InstanceDevice], found: &[(InstanceDevice, Fit)]) -> Option<Fit> {
    let throughput = |(place, fit): &(InstanceDevice, Fit)| {
        let alike = places.iter().filter(|other| other.is_gpu() == place.is_gpu()).count();
        let budget = declaration.token_budget.unwrap_or(fit.token_budget);
        let rows = (budget / USUAL_LENGTH).min(declaration.max_rows).max(1);
        alike as f64 * f64::from(rows * USUAL_LENGTH) / fit.model.cost(rows, USUAL_LENGTH)
    };
    found.iter().max_by(|one, other| throughput(one).total_cmp(&throughput(other))).map(|(_, fit)| *fit)
}

fn report(config: &ModelConfig, declaration: &Declaration, place: InstanceDevice, fit: &Fit, source: &str) {
    let micros = |seconds: f64| (seconds * 1e9).round() / 1e3;
    tracing::info!(
        model = config.name,
        %place,
        source,
        run_us = micros(fit.model.run),
        token_us = micros(fit.model.token),
        pair_us = micros(fit.model.pair),
        token_budget = declaration.token_budget.unwrap_or(fit.token_budget),
        pad_to_multiple_of = if declaration.has_multiple { declaration.padding.steps } else { fit.steps }.multiple,
        error_percent = (fit.error * 1e3).round() / 10.0,
        "cost model"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batcher::Steps;
    use crate::batcher::cost::CostModel;

    fn fit(token_budget: u32, error: f64) -> Fit {
        let model = CostModel { run: 1e-3, token: 1e-4, pair: 0.0 };
        Fit { model, token_budget, error, steps: Steps::default() }
    }

    /// The budget and the error of a measurement, or why it failed.
    type Given = Result<(u32, f64), &'static str>;

    #[test]
    fn costs_are_measured_until_two_measurements_agree() {
        let cases: [(&[Given], _, _); 9] = [
            (&[Ok((512, 0.05)), Ok((512, 0.01)), Ok((512, 0.0))], Ok(((512, 0.01), true)), 2),
            (&[Ok((1024, 0.05)), Ok((512, 0.04)), Ok((512, 0.06)), Ok((512, 0.0))], Ok(((512, 0.04), true)), 3),
            (&[Ok((512, 0.05)), Ok((1024, 0.01)), Ok((512, 0.02))], Ok(((512, 0.02), true)), 3),
            // The middle one, though another is less off.
            (&[Ok((2048, 0.01)), Ok((512, 0.02)), Ok((1024, 0.03)), Ok((512, 0.0))], Ok(((1024, 0.03), false)), 3),
            // Disturbed measurements agree with none.
            (&[Ok((512, 0.5)), Ok((512, 0.1)), Ok((512, 0.2)), Ok((512, 0.0))], Ok(((512, 0.1), true)), 3),
            (&[Ok((512, 0.5)), Ok((512, 0.4)), Ok((512, 0.6)), Ok((512, 0.0))], Ok(((512, 0.4), false)), 3),
            (&[Ok((4096, 0.5)), Ok((512, 0.1)), Ok((512, 0.6))], Ok(((512, 0.1), false)), 3),
            (&[Ok((512, 0.1)), Err("busy"), Ok((512, 0.0))], Ok(((512, 0.1), false)), 2),
            (&[Err("busy"), Ok((512, 0.0))], Err("busy"), 1),
        ];
        for (given, expected, taken) in cases {
            let mut left = given.iter();
            let found = agreed(AGREEING, || {
                left.next().expect("it is not asked so often").map(|(budget, error)| fit(budget, error))
            });
            let found = found.map(|(fit, is_agreed)| ((fit.token_budget, fit.error), is_agreed));
            assert_eq!((found, given.len() - left.len()), (expected, taken), "{given:?}");
        }
        let short =
            |token_budget| Fit { model: CostModel { run: 1e-4, token: 1e-6, pair: 0.0 }, ..fit(token_budget, 0.1) };
        let mut given = [short(4096), short(512)].into_iter();
        let found = agreed(AGREEING, || given.next().ok_or(())).unwrap();
        assert_eq!(found, (short(4096), true), "the budget of runs of some milliseconds does not matter");
        let one = agreed(1, || Ok::<_, ()>(fit(512, 0.1))).unwrap();
        assert_eq!(one, (fit(512, 0.1), true), "with nothing to choose one measurement is enough");
    }

    #[test]
    fn kept_costs_hold_until_runs_contradict_them_by_a_third() {
        // 1 x 32 tokens cost 4.2 ms and 8 x 32 tokens 26.6 ms, which is 6.3 times as much.
        let kept = fit(512, 0.1);
        let found = |given: &[f64]| {
            let mut left = given.iter().copied();
            let contradiction = contradiction(&kept, 64, |_| left.next());
            (contradiction.is_some(), given.len() - left.len())
        };
        assert_eq!(found(&[0.0042, 0.0266, 1.0]), (false, 2), "one run of each size is enough");
        assert_eq!(found(&[0.0084, 0.0532, 1.0]), (false, 2), "a busy host slows down both");
        assert_eq!(found(&[0.0042, 0.034, 1.0]), (false, 2), "within a third");
        assert_eq!(found(&[0.01, 0.0266, 0.0042, 0.0266, 1.0]), (false, 4), "only the first run was disturbed");
        assert_eq!(found(&[0.0042, 0.04, 0.0042, 0.038, 0.0042, 0.037, 1.0]), (true, 6));
        assert_eq!(found(&[0.0042, 0.016, 0.0042, 0.017, 0.0042, 0.017, 1.0]), (true, 6), "cheaper is one, too");
        assert_eq!(found(&[]), (false, 0), "a run that fails says nothing");
        let told = contradiction(&kept, 4, |_| Some(0.1)).unwrap();
        assert_eq!(told, "4 rows take 1.0 times as long as one, and by the kept costs 3.3 times");
        let tiny = Fit { model: CostModel { run: 1e-5, token: 1e-7, pair: 0.0 }, ..kept };
        assert_eq!(contradiction(&tiny, 64, |_| panic!("it is too short")), None);
        assert_eq!(contradiction(&kept, 1, |_| panic!("there is no larger run")), None);
    }

    #[test]
    fn batches_go_by_the_place_that_does_most_of_the_work() {
        let config = ModelConfig::parse(
            "backend: 'onnxruntime' max_batch_size: 64 input [{ name: 'x' data_type: TYPE_INT64 dims: [-1] }]
             output [{ name: 'y' data_type: TYPE_FP32 dims: [1] }]
             parameters { key: 'pad_inputs' value { string_value: 'x:0' } }",
            "m",
        );
        let declaration = Declaration::parse(&config.unwrap()).unwrap().unwrap();
        let fit = |token, token_budget| Fit {
            model: CostModel { run: 1e-3, token, pair: 0.0 },
            token_budget,
            error: 0.0,
            steps: Steps::default(),
        };
        let (cpu, gpu) = (fit(1e-4, 512), fit(1e-5, 65536));
        let found = [(InstanceDevice::Cpu, cpu), (InstanceDevice::Gpu(1), gpu)];
        let one_each = [InstanceDevice::Gpu(1), InstanceDevice::Cpu];
        assert_eq!(decisive(&declaration, &one_each, &found), Some(gpu));
        let many = [&[InstanceDevice::Cpu; 16][..], &one_each].concat();
        assert_eq!(decisive(&declaration, &many, &found), Some(cpu));
        assert_eq!(decisive(&declaration, &one_each, &found[..1]), Some(cpu), "the other could not be measured");
        assert_eq!(decisive(&declaration, &one_each, &[]), None);
    }
}
