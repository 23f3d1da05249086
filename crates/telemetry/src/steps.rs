//! The spans of the steps that a worker runs for requests.
//!
//! A step's span is recorded after its end: [`StepSpan`] collects its times. When dropped, it records `step <model>`
//! below the request's span, and `transit`, `queue` and `execute` below that. A batch of several requests is a span
//! `run` in a trace of its own, with links to the steps in it and links back from them. `tracing` cannot do this, so
//! these spans are made with the SDK.
//!
//! The step is recorded before its parts, so a process that dies in between leaves no span without its parent. If the
//! request is not sampled, or the process does not export spans, nothing is collected.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};

use crate::trace;

/// A step that a worker has received.
#[derive(Clone, Copy, Debug)]
pub struct StepRun<'a> {
    /// The step's model.
    pub model: &'a str,
    /// Its version.
    pub version: i64,
    /// The worker.
    pub worker: &'a str,
    /// Trireme's own id of the request.
    pub request_id: &'a str,
    /// Which delivery of its message this is, from 1.
    pub attempt: u32,
    /// When the previous stage sent it.
    pub sent_at: SystemTime,
    /// When this worker received it.
    pub received_at: SystemTime,
}

/// Times of running a step's batch.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    /// Rows of the batch.
    pub batch_size: u32,
    /// Preparing inputs.
    pub input: Duration,
    /// The run itself.
    pub infer: Duration,
    /// Converting outputs.
    pub output: Duration,
}

/// The span of a step, if it is sampled. It is recorded when it is dropped, after the result was passed on.
#[derive(Debug, Default)]
pub struct StepSpan(Option<Box<Recorded>>);

#[derive(Debug)]
struct Recorded {
    tracer: SdkTracer,
    span: Span,
    /// Attributes of the step and the request.
    identity: Vec<KeyValue>,
    sent_at: SystemTime,
    received_at: SystemTime,
    begun: Option<SystemTime>,
    ended: Option<SystemTime>,
    computed: Option<Computed>,
    /// The span of its batch.
    run: Option<SpanContext>,
    error: Option<String>,
}

// === impl StepSpan ===

impl StepSpan {
    /// The span of a step of the request in a W3C `traceparent`, with its `tracestate`.
    pub fn start(parent: Option<(&str, Option<&str>)>, step: &StepRun<'_>) -> StepSpan {
        StepSpan::start_with(trace::exporting(), parent, step)
    }

    fn start_with(
        provider: Option<&SdkTracerProvider>,
        parent: Option<(&str, Option<&str>)>,
        step: &StepRun<'_>,
    ) -> StepSpan {
        let (Some(provider), Some((traceparent, tracestate))) = (provider, parent) else { return StepSpan(None) };
        let parent = trace::extract(traceparent, tracestate);
        if !parent.span().span_context().is_sampled() {
            return StepSpan(None);
        }
        let tracer = provider.tracer("trireme");
        let identity = vec![
            KeyValue::new("model", step.model.to_owned()),
            KeyValue::new("version", step.version),
            KeyValue::new("worker", step.worker.to_owned()),
            KeyValue::new("request_id", step.request_id.to_owned()),
            KeyValue::new("attempt", i64::from(step.attempt)),
        ];
        let span = SpanBuilder::from_name(format!("step {}", step.model))
            .with_kind(SpanKind::Consumer)
            .with_start_time(step.received_at)
            .with_attributes(identity.clone())
            .start_with_context(&tracer, &parent);
        StepSpan(Some(Box::new(Recorded {
            tracer,
            span,
            identity,
            sent_at: step.sent_at,
            received_at: step.received_at,
            begun: None,
            ended: None,
            computed: None,
            run: None,
            error: None,
        })))
    }

    /// The step's batch begins.
    pub fn begin(&mut self) {
        if let Some(recorded) = &mut self.0 {
            recorded.begun = Some(SystemTime::now());
        }
    }

    /// A part of the answer has been sent.
    pub fn part(&mut self, sequence: u32) {
        if let Some(recorded) = &mut self.0 {
            recorded.span.add_event("part", vec![KeyValue::new("sequence", i64::from(sequence))]);
        }
    }

    /// The step was executed, in these times.
    pub fn computed(&mut self, computed: Computed) {
        if let Some(recorded) = &mut self.0 {
            recorded.ended.get_or_insert_with(SystemTime::now);
            recorded.computed = Some(computed);
        }
    }

    /// The step has failed.
    pub fn fail(&mut self, error: &str) {
        if let Some(recorded) = &mut self.0 {
            recorded.error = Some(error.to_owned());
        }
    }
}

impl Drop for StepSpan {
    fn drop(&mut self) {
        if let Some(recorded) = self.0.take() {
            recorded.record();
        }
    }
}

/// The steps of a batch were executed, until now. `requests` is the size of the batch, steps without a span included.
pub fn ran_together<'a>(steps: impl Iterator<Item = &'a mut StepSpan>, requests: usize) {
    let mut steps: Vec<&mut Recorded> = steps.filter_map(|step| step.0.as_deref_mut()).collect();
    let Some(begun) = steps.iter().filter_map(|step| step.begun).min() else { return };
    let ended = SystemTime::now();
    let run = (requests > 1).then(|| record_run(&steps, begun, ended, requests));
    for step in &mut steps {
        step.ended = Some(ended);
        step.run.clone_from(&run);
    }
}

fn record_run(steps: &[&mut Recorded], begun: SystemTime, ended: SystemTime, requests: usize) -> SpanContext {
    let first = &steps[0];
    let model_and_worker =
        first.identity.iter().filter(|pair| ["model", "version", "worker"].contains(&pair.key.as_str()));
    let attributes = model_and_worker.cloned().chain([KeyValue::new("requests", requests as i64)]);
    let links = steps.iter().map(|step| Link::with_context(step.span.span_context().clone())).collect();
    let mut run = SpanBuilder::from_name("run")
        .with_start_time(begun)
        .with_attributes(attributes)
        .with_links(links)
        .start_with_context(&first.tracer, &Context::new());
    run.end_with_timestamp(ended);
    run.span_context().clone()
}

// === impl Recorded ===

impl Recorded {
    fn record(mut self) {
        let error = self.error.take().map(Status::error);
        if let Some(error) = &error {
            self.span.set_status(error.clone());
        }
        let now = SystemTime::now().max(self.received_at);
        let own = self.span.span_context().clone();
        self.span.end_with_timestamp(now);

        let parent = Context::new().with_remote_span_context(own);
        self.child(SpanBuilder::from_name("transit"), self.sent_at, self.received_at, &parent, None);
        let Some(begun) = self.begun else { return };
        // `received_at` is in the broker's time, which may be before or after the host's.
        let begun = begun.max(self.received_at);
        let ended = self.ended.unwrap_or(now).max(begun);
        self.child(SpanBuilder::from_name("queue"), self.received_at, begun, &parent, None);
        let computed = self.computed.map(Computed::attributes);
        let attributes = std::mem::take(&mut self.identity).into_iter().chain(computed.into_iter().flatten());
        let links = self.run.iter().cloned().map(Link::with_context).collect();
        let execute = SpanBuilder::from_name("execute").with_attributes(attributes).with_links(links);
        self.child(execute, begun, ended, &parent, error);
    }

    /// Clocks of two hosts may disagree: no span ends before it begins.
    fn child(&self, span: SpanBuilder, from: SystemTime, until: SystemTime, parent: &Context, error: Option<Status>) {
        let mut span = span.with_start_time(from.min(until)).start_with_context(&self.tracer, parent);
        if let Some(error) = error {
            span.set_status(error);
        }
        span.end_with_timestamp(until);
    }
}

// === impl Computed ===

impl Computed {
    fn attributes(self) -> [KeyValue; 4] {
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        [
            KeyValue::new("batch_size", i64::from(self.batch_size)),
            KeyValue::new("compute_input_ms", milliseconds(self.input)),
            KeyValue::new("compute_infer_ms", milliseconds(self.infer)),
            KeyValue::new("compute_output_ms", milliseconds(self.output)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Sampling;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{Sampler, SpanData, SpanExporter};
    use parking_lot::Mutex;
    use std::sync::Arc;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().extend(batch);
            Ok(())
        }
    }

    /// A provider that never starts a trace by itself.
    fn provider() -> (SdkTracerProvider, Kept) {
        let kept = Kept::default();
        let sampler = Sampling(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)));
        (SdkTracerProvider::builder().with_simple_exporter(kept.clone()).with_sampler(sampler).build(), kept)
    }

    fn step() -> StepRun<'static> {
        let received_at = SystemTime::now();
        let sent_at = received_at - Duration::from_millis(3);
        StepRun { model: "encoder", version: 2, worker: "w", request_id: "g-1", attempt: 1, sent_at, received_at }
    }

    fn children<'a>(spans: &'a [SpanData], parent: &SpanData) -> Vec<&'a SpanData> {
        spans.iter().filter(|span| span.parent_span_id == parent.span_context.span_id()).collect()
    }

    #[test]
    fn a_batch_is_one_run_and_a_step_for_each_request() {
        let (provider, kept) = provider();
        let mut steps = [1, 2].map(|_| StepSpan::start_with(Some(&provider), Some((PARENT, None)), &step()));
        steps.iter_mut().for_each(StepSpan::begin);
        ran_together(steps.iter_mut(), 2);
        let took = Duration::from_millis(1);
        steps[0].computed(Computed { batch_size: 2, input: took, infer: took, output: took });
        steps[1].fail("out of luck");
        drop(steps);

        let spans = kept.0.lock();
        let run = &spans[0];
        assert_eq!((run.name.as_ref(), run.parent_span_id), ("run", opentelemetry::trace::SpanId::INVALID));
        let made: Vec<_> = spans.iter().filter(|span| span.name == "step encoder").collect();
        let linked: Vec<_> = run.links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(linked, made.iter().map(|step| step.span_context.span_id()).collect::<Vec<_>>());
        for (step, failed) in made.into_iter().zip([false, true]) {
            assert_eq!(step.parent_span_id.to_string(), PARENT[36..52]);
            assert_eq!(step.span_context.trace_id().to_string(), PARENT[3..35]);
            let children = children(&spans, step);
            assert_eq!(
                children.iter().map(|span| span.name.as_ref()).collect::<Vec<_>>(),
                ["transit", "queue", "execute"]
            );
            let [transit, queue, execute] = children[..] else { panic!() };
            assert_eq!((transit.end_time, queue.start_time), (step.start_time, step.start_time));
            assert_eq!(transit.end_time.duration_since(transit.start_time).unwrap(), Duration::from_millis(3));
            assert_eq!(queue.end_time, execute.start_time);
            assert!(execute.end_time <= step.end_time);
            assert_eq!(execute.links[0].span_context, run.span_context);
            assert_eq!(execute.attributes.iter().any(|pair| pair.key.as_str() == "batch_size"), !failed);
            let status = if failed { Status::error("out of luck") } else { Status::Unset };
            assert_eq!((&step.status, &execute.status), (&status, &status));
        }
    }

    #[test]
    fn what_never_ran_has_no_execution() {
        let (provider, kept) = provider();
        let mut refused = StepSpan::start_with(Some(&provider), Some((PARENT, None)), &step());
        refused.fail("too late");
        drop(refused);
        let mut alone = StepSpan::start_with(Some(&provider), Some((PARENT, None)), &step());
        alone.begin();
        ran_together([&mut alone].into_iter(), 1);
        drop(alone);
        let spans = kept.0.lock();
        let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["step encoder", "transit", "step encoder", "transit", "queue", "execute"]);
    }

    #[test]
    fn what_nobody_asked_for_is_not_recorded() {
        let (provider, kept) = provider();
        for traceparent in [None, Some(""), Some("rubbish"), Some(&PARENT.replace("-01", "-00")[..])] {
            let mut span = StepSpan::start_with(Some(&provider), traceparent.map(|parent| (parent, None)), &step());
            assert!(span.0.is_none(), "{traceparent:?}");
            span.begin();
            ran_together([&mut span].into_iter(), 1);
        }
        assert!(StepSpan::start_with(None, Some((PARENT, None)), &step()).0.is_none());
        assert!(kept.0.lock().is_empty());
    }
}
