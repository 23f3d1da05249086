//! The costs of a model's runs: from the cache, otherwise measured. They are logged in one line for each kind of place.

use trireme_engine::ModelInstance;
use trireme_model_repository::ModelConfig;

use super::accelerators::{InstanceDevice, firsts};
use super::cost_cache::Entry;
use super::measure;
use crate::batcher::cost::Fit;
use crate::batcher::{Declaration, USUAL_LENGTH};

/// A measurement whose runs are further than this from the costs that it gives, on average, was disturbed.
const DISTURBED: f64 = 0.25;

/// How many times costs are measured at most.
const TRIES: u32 = 3;

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
    if let Some(fit) = kept.as_ref().and_then(Entry::read).filter(|fit| !is_disturbed(fit)) {
        report(config, declaration, place, &fit, "cache");
        return Some(fit);
    }
    let mut fit = match undisturbed(|| measure::measure(config, declaration, place, instance, wanted)) {
        Ok(fit) => fit,
        Err(_) if !wanted() => return None,
        Err(reason) => {
            tracing::warn!(model = config.name, %place, reason, "costs could not be measured");
            return None;
        }
    };
    if (places.is_accelerated)(place) && !declaration.has_multiple {
        fit.steps = measure::steps(config, declaration, instance);
    }
    report(config, declaration, place, &fit, "measured");
    if let Some(Err(error)) = kept.map(|entry| entry.write(&fit)) {
        tracing::warn!(model = config.name, %error, "the cost model could not be kept");
    }
    Some(fit)
}

/// Whether a measurement is so far off that other work of the host must have disturbed it. It is not taken from the cache.
fn is_disturbed(fit: &Fit) -> bool {
    fit.error > DISTURBED
}

/// Measures again what was disturbed, a few times. Returns the measurement that is least off; an error of a later one ends that.
fn undisturbed<E>(mut measure: impl FnMut() -> Result<Fit, E>) -> Result<Fit, E> {
    let mut best = measure()?;
    for _ in 1..TRIES {
        if !is_disturbed(&best) {
            break;
        }
        match measure() {
            Ok(fit) if fit.error < best.error => best = fit,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Ok(best)
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

    #[test]
    fn a_disturbed_measurement_is_repeated_and_the_best_is_taken() {
        let model = CostModel { run: 1e-3, token: 1e-5, pair: 0.0 };
        let fit = |error| Fit { model, token_budget: 512, error, steps: Steps::default() };
        for (errors, best, taken) in [
            (&[Ok(0.05), Ok(0.01)][..], Ok(0.05), 1),
            (&[Ok(0.5), Ok(0.1), Ok(0.01)], Ok(0.1), 2),
            (&[Ok(0.5), Ok(0.4), Ok(0.6), Ok(0.0)], Ok(0.4), 3),
            (&[Ok(0.5), Err("busy"), Ok(0.0)], Ok(0.5), 2),
            (&[Err("busy"), Ok(0.0)], Err("busy"), 1),
        ] {
            let mut left = errors.iter();
            let found = undisturbed(|| left.next().expect("it is not asked so often").map(fit));
            assert_eq!((found.map(|fit| fit.error), errors.len() - left.len()), (best, taken), "{errors:?}");
        }
        assert!(is_disturbed(&fit(0.5)) && !is_disturbed(&fit(0.2)));
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
