//! The costs of a model's runs: from the cache, otherwise measured. They are logged in one line.

use trireme_engine::ModelInstance;
use trireme_model_repository::ModelConfig;

use super::cost_cache::Entry;
use super::measure;
use crate::batcher::Declaration;
use crate::batcher::cost::Fit;

/// The costs of `config`'s model; `kept` is its entry in the cache, if there is one. The
/// instance runs on an accelerator or on CPUs. `None` if the declaration turns
/// measuring off or, with a warning, if they cannot be measured.
pub fn find(
    config: &ModelConfig,
    declaration: &Declaration,
    kept: Option<Entry>,
    accelerated: bool,
    instance: &mut dyn ModelInstance,
) -> Option<Fit> {
    if !declaration.measure {
        return None;
    }
    if let Some(fit) = kept.as_ref().and_then(Entry::read) {
        report(config, declaration, &fit, "cache");
        return Some(fit);
    }
    let fit = match measure::measure(config, declaration, accelerated, instance) {
        Ok(fit) => fit,
        Err(reason) => {
            tracing::warn!(model = config.name, reason, "costs could not be measured: batches go by tokens alone");
            return None;
        }
    };
    report(config, declaration, &fit, "measured");
    if let Some(Err(error)) = kept.map(|entry| entry.write(&fit)) {
        tracing::warn!(model = config.name, %error, "the cost model could not be kept");
    }
    Some(fit)
}

fn report(config: &ModelConfig, declaration: &Declaration, fit: &Fit, source: &str) {
    let micros = |seconds: f64| (seconds * 1e9).round() / 1e3;
    tracing::info!(
        model = config.name,
        source,
        run_us = micros(fit.model.run),
        token_us = micros(fit.model.token),
        pair_us = micros(fit.model.pair),
        token_budget = declaration.token_budget.unwrap_or(fit.token_budget),
        error_percent = (fit.error * 1e3).round() / 10.0,
        "cost model"
    );
}
