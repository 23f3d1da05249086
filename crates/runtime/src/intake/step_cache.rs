//! Answers of a model's steps from the response cache: where its configuration has `response_cache` and the worker a cache, a
//! request that comes as a step of an ensemble and was answered before is not executed again.
//!
//! A request for the model itself was looked up by its gateway.

use std::sync::Arc;
use std::time::Instant;

use trireme_engine::{ExecuteRequest, ExecuteResponse};
use trireme_inference::{Name, RequestedOutput, UnixMicros};

use crate::hosted::{HostedModel, Missed, Pending};
use crate::response_cache::{Key, StepAnswer};

// === impl HostedModel ===

impl HostedModel {
    /// Answers a request from the cache. Returns it if it has to be executed.
    pub(crate) fn answer_from_cache(
        self: &Arc<Self>,
        mut pending: Box<Pending>,
        request: &ExecuteRequest,
    ) -> Option<Box<Pending>> {
        let Some((loaded, cache)) = self.cached.zip(self.worker.step_answers.as_ref()) else { return Some(pending) };
        if !pending.message.route.is_ensemble() {
            return Some(pending);
        }
        let started = Instant::now();
        let output = |name: &Name| RequestedOutput { name: name.to_string(), classification: 0 };
        let outputs: Vec<_> = request.outputs.iter().map(output).collect();
        let key = Key::new(&self.key, loaded, &request.inputs, &outputs, &request.parameters);
        let Some(StepAnswer { outputs, texts, each_text }) = cache.get(&key) else {
            pending.missed = Some(Missed { key, looked_up: started.elapsed() });
            return Some(pending);
        };
        let (looked_up, now) = (started.elapsed(), UnixMicros::now());
        pending.stay.span.begin();
        self.statistics.record(|counters| counters.hit(looked_up, now.since(pending.message.sent_at), now));
        self.pass_on(pending, ExecuteResponse { outputs, texts, each_text, ..ExecuteResponse::default() });
        None
    }

    /// Keeps the answer to a request that was not found in the cache.
    pub(crate) fn keep_answer(&self, pending: &mut Pending, response: &ExecuteResponse) {
        let Some((Missed { key, looked_up }, cache)) = pending.missed.take().zip(self.worker.step_answers.as_ref())
        else {
            return;
        };
        // The cache has no parameters of responses.
        if !response.parameters.is_empty() {
            return;
        }
        let started = Instant::now();
        let ExecuteResponse { outputs, texts, each_text, .. } = response.clone();
        cache.keep(key, &StepAnswer { outputs, texts, each_text });
        self.statistics.record(|counters| counters.cache_miss.record(looked_up + started.elapsed()));
    }
}
