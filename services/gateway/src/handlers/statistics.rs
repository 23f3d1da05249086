//! The statistics extension, and the sums behind metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use trireme_bus::{BusError, QueueStatus};
use trireme_inference::{Counters, InferError, Lane, ModelKey, shown};

use super::Handlers;
use crate::statistics::Totals;

/// How long the bus may take to report a queue's length.
const QUEUES_LIMIT: Duration = Duration::from_millis(500);

/// How full the queues are, by model version.
pub type Queues = BTreeMap<ModelKey, QueueStatus>;

impl Handlers {
    /// The counts of the whole system, by model version.
    pub async fn totals(&self) -> Arc<Totals> {
        self.collector.totals().await
    }

    /// The statistics of a model's version, of all its versions that are ready, or of all models. An unknown model is an error.
    pub async fn statistics(
        &self,
        model: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<(ModelKey, Counters)>, InferError> {
        let keys = self.keys(model, version)?;
        let totals = self.totals().await;
        let counters = |key: &ModelKey| totals.get(key).map(|total| total.counters.clone()).unwrap_or_default();
        Ok(keys.into_iter().map(|key| (key.clone(), counters(&key))).collect())
    }

    /// Requests that wait for their answers.
    pub fn in_flight(&self) -> usize {
        self.dispatcher.in_flight()
    }

    /// The length of every queue. Leaves out models without a queue, such as ensembles, and queues for which the bus does not
    /// answer.
    pub async fn queues(&self) -> Queues {
        let bulk = tokio::time::timeout(QUEUES_LIMIT, self.dispatcher.bulk_queues()).await;
        let bulk = bulk.ok().and_then(Result::ok).unwrap_or_default();
        let ask = async |key: ModelKey| {
            let mut levels = match self.registry.catalog().find(&key.name, Some(key.version)) {
                // No gateway made a queue for it, so this process may lack the right to look for one.
                Ok((_, served)) if served.config.is_ensemble() => return None,
                Ok((_, served)) => served.config.queue_levels(),
                Err(_) => vec![0],
            };
            levels.extend(bulk.contains(&key).then_some(Lane::Bulk.level(0)));
            let asked = self.dispatcher.queue_status(&key, &levels);
            match tokio::time::timeout(QUEUES_LIMIT, asked).await {
                Ok(Ok(status)) => Some((key, status)),
                Ok(Err(BusError::NoQueue { .. })) => None,
                Ok(Err(error)) => {
                    tracing::debug!(model = %key, %error, "the bus does not tell of a queue");
                    None
                }
                Err(_) => {
                    tracing::debug!(model = %key, "the bus does not tell of a queue in time");
                    None
                }
            }
        };
        let keys = self.registry.catalog().known();
        join_all(keys.into_iter().map(ask)).await.into_iter().flatten().collect()
    }

    fn keys(&self, model: Option<&str>, version: Option<i64>) -> Result<Vec<ModelKey>, InferError> {
        let catalog = self.registry.catalog();
        let Some(name) = model else { return Ok(catalog.ready()) };
        let mut versions = catalog.ready_versions(name);
        if versions.is_empty() {
            return Err(InferError::invalid_arg(format!("requested model '{}' is not available", shown(name))));
        }
        if let Some(version) = version {
            versions.retain(|ready| *ready == version);
        }
        if versions.is_empty() {
            let text = format!("requested model version is not available for model '{name}'");
            return Err(InferError::invalid_arg(text));
        }
        Ok(versions.into_iter().map(|version| ModelKey { name: name.into(), version }).collect())
    }
}
