//! Inference: from a decoded request to its response.

mod kept;
mod responses;
mod running;
mod texts;

use std::sync::Arc;

use tokio::time::Instant;
use tracing::Instrument;
use trireme_bus::{AnswerForm, WorkMessage};
use trireme_inference::{
    AskedSpaces, Callers, InferError, InferRequest, InferResponse, Ledger, ModelKey, Name, ParameterValue, Parameters,
    REQUEST_TIMEOUT, Tensor, TraceParent, UnixMicros, request_timeout, shown,
};
use trireme_operations::Capabilities;
use trireme_runtime::response_cache::Key;
use trireme_server::RequestContext;
use trireme_triton_compat::traces::OpenTrace;

use super::Handlers;
use super::metering::Metered;
use super::sequences::{self, InSequence, SequenceRequest};
use super::zero_shot::LabelScores;
use crate::counts;
use crate::dispatch::{Exchange, LinePlace, no_answer};
use crate::rows;
use crate::statistics::CountedRequest;
use kept::KeptWindows;
pub use responses::{Next, Responses};
use running::{Limit, Running, set_error, with_id};
use texts::TextsAsked;

/// A request with its context, and how it runs.
#[derive(Debug)]
pub struct Traced {
    /// The request.
    pub request: InferRequest,
    /// The context in which it came. The client's id there is for logs and errors; the request's own goes before it.
    pub context: Arc<RequestContext>,
    /// Whether its rows may travel apart.
    pub rows: Rows,
    /// The models that wait for its answer, where a model has sent it.
    pub callers: Callers,
    /// Whether it asks for vectors of texts, which its span says in OpenTelemetry's words.
    pub embeds: bool,
}

/// Whether the rows of a request may travel apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Where the model's configuration says so (`max_rows_per_message`).
    Configured,
    /// In any case: they are texts of an operation that treats each by itself.
    Independent,
}

/// The rows of a message where they may travel apart and the configuration has no number.
const INDEPENDENT_ROWS: u32 = 32;

/// The attribute of the span of a request that says which space its answer is of.
const SPACE: &str = "trireme.space";

/// A request on its way into the pipeline.
struct Prepared {
    request: Running,
    message: WorkMessage,
    /// Its place in the response cache, where its model has one.
    cached: Option<Cached>,
    /// Its place among the requests of its model, where the model keeps their order.
    place: Option<LinePlace>,
}

/// The place of a request in the response cache.
struct Cached {
    key: Key,
    /// How often contents had changed when it was admitted. A later answer may come from other contents than those in the key.
    changes: u64,
}

/// The conditions under which a request runs.
struct InferOptions {
    rows: Rows,
    answer: AnswerForm,
    traceparent: Option<TraceParent>,
    callers: Callers,
    trace: Option<Arc<OpenTrace>>,
    labels: Option<LabelScores>,
    spaces: Option<AskedSpaces>,
}

// === impl Traced ===

impl Traced {
    /// A request whose rows travel as its model's configuration says.
    pub fn new(request: InferRequest, context: Arc<RequestContext>) -> Traced {
        Traced { request, context, rows: Rows::Configured, callers: Callers::default(), embeds: false }
    }
}

impl Handlers {
    /// Runs a request through the pipeline, with what of it lies in shared memory. Dropping the future cancels the request in
    /// every stage; nothing is written then.
    pub async fn infer(&self, mut traced: Traced) -> Result<InferResponse, InferError> {
        let outputs = self.read_shared(&mut traced.request, traced.context.permit())?;
        let mut response = self.run(traced).await?;
        outputs.write(&mut response)?;
        Ok(response)
    }

    async fn run(&self, traced: Traced) -> Result<InferResponse, InferError> {
        let embeds = traced.embeds;
        let Prepared { mut request, message, cached, place } = self.prepare(traced, AnswerForm::Whole)?;
        let span = request.span.clone();
        let response = self.answer(&mut request, message, cached).instrument(span.clone()).await;
        request.ended();
        if let Ok(response) = &response {
            trireme_telemetry::set_attributes(&span, response.ledger.space().map(|space| (SPACE, space)));
        }
        let response = response.and_then(|response| request.with_spaces(response));
        request.meter(&response);
        let response = response.map(|response| request.named(response));
        if let (true, Ok(response)) = (embeds, &response) {
            let tokens = response.ledger.texts().map_or(0, |texts| texts.tokens);
            trireme_telemetry::set_count(&span, "gen_ai.usage.input_tokens", tokens);
        }
        let response = response?;
        if let Some(place) = place {
            // Also where the answer is the response cache's.
            place.turn().instrument(span).await.map_err(|error| {
                set_error(&request.span, &error);
                request.error(error)
            })?;
        }
        Ok(response)
    }

    /// The one response to a request: that of the response cache, or what the pipeline makes.
    async fn answer(
        &self,
        request: &mut Running,
        message: WorkMessage,
        cached: Option<Cached>,
    ) -> Result<InferResponse, InferError> {
        let Some((cache, cached)) = self.cache.as_ref().zip(cached) else {
            return self.compute(request, message).await;
        };
        let patience = message.deadline.remaining(UnixMicros::now()).unwrap_or_default();
        let compute = async {
            let answer = self.compute(request, message).await?;
            let is_of_key = self.registry.catalog().changes_of_contents() == cached.changes;
            Ok((answer, is_of_key))
        };
        match cache.answer(cached.key, patience, compute).await {
            Ok((answer, lookup)) => {
                request.counted.looked_up(lookup);
                Ok(InferResponse { id: request.answered_id.clone(), ..answer })
            }
            Err(error) => {
                request.counted.failed(&error);
                set_error(&request.span, &error);
                Err(request.error(error))
            }
        }
    }

    /// Sends a request into the pipeline and gives its responses as they come: one response of a model that is not decoupled,
    /// any number of a decoupled one. Dropping the responses cancels the request in every stage. An `Err` means that the request
    /// was not sent.
    pub fn infer_stream(self: &Arc<Self>, mut traced: Traced) -> Result<Responses, InferError> {
        let outputs = self.read_shared(&mut traced.request, traced.context.permit())?;
        let Prepared { mut request, message, place, .. } = self.prepare(traced, AnswerForm::InParts)?;
        let exchange = self.begin(&mut request, message).inspect_err(|_| request.metered.failed())?;
        let exchange = match place {
            Some(place) => self.dispatcher.in_turn(exchange, place),
            None => exchange,
        };
        Ok(Responses { handlers: self.clone(), request, exchange, outputs })
    }

    /// The span of a request, and the trace context that goes to the stages.
    fn span(&self, traced: &Traced) -> (tracing::Span, Option<TraceParent>) {
        let client = traced.context.traceparent();
        if client.is_none() && !self.tracing.samples(&traced.request.model) {
            // The stages get this too, because they would begin a trace of their own otherwise.
            return (tracing::Span::none(), Some(trireme_telemetry::not_sampled().as_str().into()));
        }
        let request = &traced.request;
        let (model, id) = (shown(&request.model), shown(&request.id));
        let span = tracing::info_span!("infer", otel.kind = "server", model = &*model, id = &*id);
        if let Some(traceparent) = client {
            trireme_telemetry::set_parent(&span, &traceparent.parent, traceparent.state.as_deref());
        }
        let own = trireme_telemetry::traceparent(&span).map(|(parent, state)| TraceParent::new(parent, state));
        let traceparent = own.or_else(|| client.cloned());
        (span, traceparent)
    }

    /// Prepares a request, within its span.
    fn prepare(&self, mut traced: Traced, answer: AnswerForm) -> Result<Prepared, InferError> {
        let context = traced.context.clone();
        let answered_id = traced.request.id.clone();
        if answered_id.is_empty() {
            traced.request.id = context.given_id().to_owned();
        }
        let spaces = AskedSpaces::take(&mut traced.request.parameters);
        let spaces = spaces.map_err(|error| with_id(error, &traced.request.id))?;
        let (span, traceparent) = self.span(&traced);
        trireme_telemetry::set_attributes(&span, context.attributes());
        context.follow(&span);
        if traced.embeds {
            let names = [
                ("gen_ai.operation.name", counts::EMBEDDINGS),
                ("gen_ai.provider.name", counts::PROVIDER),
                ("gen_ai.request.model", &shown(&traced.request.model)),
            ];
            trireme_telemetry::set_attributes(&span, names.map(|(name, value)| (name, value.to_owned())));
        }
        let trace = self.tracing.begin(&traced.request, &context);
        // The call's limit and that of the request's parameters: the shorter one.
        let asked = request_timeout(&traced.request.parameters);
        if let Some(asked) = asked.filter(|&asked| asked > self.max_timeout) {
            let fault = format!(
                "'{REQUEST_TIMEOUT}' is {} ms, more than the gateway allows: send at most {}, the gateway's --max-timeout-ms",
                asked.as_millis(),
                self.max_timeout.as_millis()
            );
            return Err(with_id(InferError::invalid_arg(fault), &traced.request.id));
        }
        // The deadline of a call bounds how long its client waits: one behind the gateway's limit is no fault of the request.
        let limits = [traced.request.timeout.map(|timeout| timeout.min(self.max_timeout)), asked];
        traced.request.timeout = limits.into_iter().flatten().min();
        if let Some(timeout) = traced.request.timeout {
            context.ends_at(Instant::now() + timeout);
        }
        let mut prepared = span.in_scope(|| {
            self.repeat_query(&mut traced.request, context.permit())?;
            let labels = self.take_labels(&mut traced.request, context.permit())?;
            let mut metered = self.meter(&traced.request, &context)?;
            let Traced { request, rows, callers, .. } = traced;
            let options = InferOptions { rows, answer, traceparent, callers, trace, labels, spaces };
            match self.admit(request, &context, options, &span) {
                Ok(mut prepared) => {
                    prepared.request.metered = metered;
                    Ok(prepared)
                }
                Err(error) => {
                    metered.failed();
                    Err(error)
                }
            }
        });
        match &mut prepared {
            Ok(prepared) => {
                prepared.request.answered_id = answered_id;
                context.note_message(&prepared.message.request_id);
            }
            Err(error) => set_error(&span, error),
        }
        prepared
    }

    /// Checks a request and makes the message of it that goes into the pipeline.
    fn admit(
        &self,
        mut request: InferRequest,
        context: &RequestContext,
        options: InferOptions,
        span: &tracing::Span,
    ) -> Result<Prepared, InferError> {
        let InferOptions { rows, answer, traceparent, callers, trace, labels: label_scores, spaces } = options;
        let catalog = self.registry.catalog();
        let (version, served) = catalog.find(&request.model, request.version)?;
        if let Ok(capabilities) = &served.capabilities {
            name_prompt(capabilities, &mut request.parameters);
        }
        let other_name = served.config.take_other_names(&mut request.inputs, &mut request.outputs);
        served.config.check_outputs(&request.outputs, &request.id)?;
        let tensors = match rows {
            Rows::Configured => served.config.admit(&request.id, request.inputs)?,
            Rows::Independent => served.config.admit_split(&request.id, request.inputs)?,
        };

        let inputs: Vec<&str> = tensors.iter().map(|tensor| tensor.name()).collect();
        let outputs: Vec<&str> = request.outputs.iter().map(|output| output.name.as_str()).collect();
        let resolve = |model: &str, version| catalog.find(model, version).map(|(version, _)| version);
        let plan = catalog.plan(version, served, &request.parameters)?;
        let mut route = plan.route(version, &outputs, &inputs, resolve)?;
        let kept = KeptWindows::of(&catalog, &route, &request.parameters, rows_of(&tensors));
        if let Some(kept) = &kept {
            route = plan.route(version, &kept.outputs(&outputs, &plan), &inputs, resolve)?;
        }
        route.remaining().iter().try_for_each(|step| callers.check(&step.model))?;
        let level = |step: &ModelKey| {
            let found = catalog.find(&step.name, Some(step.version));
            let level = found.map_or(0, |(_, served)| served.config.priority_level(request.priority));
            catalog.lane_at(step, context.lane()).level(level)
        };
        let route = catalog.for_contents(route.at_levels(level));
        let answer = if served.config.decoupled { answer } else { AnswerForm::Whole };
        let steps = match answer {
            AnswerForm::Whole => route.in_ledger_order(),
            // An answer in parts is of one message, which goes from step to step.
            AnswerForm::InParts | AnswerForm::Part(_) => route.remaining().iter().collect(),
        };
        let steps = steps.into_iter().map(|step| &step.model);
        let equivalences = catalog.spaces().equivalences(route.model(), steps.clone());
        if let Some(asked) = &spaces {
            let checked = catalog.spaces().check(asked, &request.model, steps, &equivalences);
            checked.map_err(|error| with_id(error, &request.id))?;
        }
        let batch = (served.config.max_batch_size > 0).then(|| rows_of(&tensors));
        let by_user_code = route.remaining().iter().any(|step| {
            let found = catalog.find(&step.model.name, Some(step.model.version));
            found.is_ok_and(|(_, served)| served.config.runs_user_code())
        });
        let asked = SequenceRequest {
            plan: &plan,
            parameters: &request.parameters,
            rows: batch.unwrap_or(1),
            patience: request.timeout.unwrap_or_default().max(self.default_timeout),
        };
        let joined = sequences::join(&catalog, &asked, route).map_err(|error| with_id(error, &request.id))?;
        let (route, controls, turn) = match joined {
            Ok(InSequence { route, tensors, turn }) => (route, tensors, Some(turn)),
            Err(route) => (route, Vec::new(), None),
        };

        let model = ModelKey { name: request.model.into(), version };
        let asked = TextsAsked {
            catalog: &catalog,
            served,
            model: &model,
            route: &route,
            outputs: &request.outputs,
            parameters: &request.parameters,
            owner: &context.share(),
            by_user_code,
        };
        // The scores of several labels are those of one text together, and kept windows are several rows of one.
        let by_text = rows == Rows::Independent && turn.is_none() && label_scores.is_none() && kept.is_none();
        let texts = by_text.then_some(asked).and_then(|asked| self.terms_of_texts(&asked));
        let caches = self.cache.is_some() && served.config.response_cache;
        let origin = if caches { catalog.origin(served, &route, &request.outputs) } else { None };
        let cached = origin.map(|origin| Cached {
            key: Key::new(&model, origin, &tensors, &request.outputs, &request.parameters),
            changes: catalog.changes_of_contents(),
        });
        let counted = CountedRequest::begin(self.collector.own(), route.model(), &served.config, &tensors);
        let now = UnixMicros::now();
        let time = request.timeout.unwrap_or(self.default_timeout);
        let limit = Limit { time, is_own: request.timeout.is_some(), deadline: now.after(time) };
        let message = WorkMessage {
            request_id: self.dispatcher.request_id().into(),
            gateway: self.dispatcher.gateway().into(),
            deadline: limit.deadline,
            priority: request.priority,
            traceparent,
            client_id: request.id.as_str().into(),
            sent_at: now,
            route,
            tensors: [tensors, controls].concat(),
            parameters: Arc::new(request.parameters),
            ledger: Ledger::default(),
            answer,
            callers,
            job: context.job().map(Name::from),
            owner: context.share(),
        };
        // Responses of a decoupled model are sent at once, so they keep no order among requests.
        let keeps_order = served.config.dynamic_batching.as_ref().is_some_and(|batching| batching.preserve_ordering);
        let place = (keeps_order && !served.config.decoupled).then(|| self.dispatcher.enter(&message));
        let in_parts = match rows {
            Rows::Configured => served.config.max_rows_per_message.filter(|_| !served.config.decoupled),
            Rows::Independent => Some(served.config.max_rows_per_message.unwrap_or(INDEPENDENT_ROWS)),
        };
        let rows_per_message = in_parts.map(|rows| match served.config.max_batch_size {
            0 => rows,
            largest => rows.min(largest),
        });
        let all_rows = counted_rows(batch, rows, &message.tensors);
        let running = Running {
            answered_id: String::new(),
            id: request.id,
            model,
            outputs: request.outputs,
            other_name,
            served: served.clone(),
            rows: batch,
            counted_rows: all_rows,
            computed_rows: all_rows,
            texts,
            kept,
            dimensions: message.parameters.get("dimensions").and_then(ParameterValue::as_u64),
            steps: message.route.remaining().len(),
            by_user_code,
            labels: catalog.labels().clone(),
            label_scores,
            turn,
            rows_per_message,
            patience: context.patience(),
            limit,
            span: span.clone(),
            metered: Metered::default(),
            counted,
            trace,
            spaces,
            equivalences,
        };
        if let Some(trace) = &running.trace {
            trace.admitted(&message);
        }
        Ok(Prepared { request: running, message, cached, place })
    }

    /// Takes a request into the pipeline: as one message, or as several where it may be split and has to be.
    fn begin(&self, request: &mut Running, message: WorkMessage) -> Result<Exchange, InferError> {
        let turn = request.turn.take();
        let parts = match request.rows_per_message.filter(|_| turn.is_none()) {
            Some(rows) => rows::split(&message.tensors, rows as usize, self.dispatcher.message_bytes()),
            None => Ok(None),
        };
        let windows = request.kept.as_ref().map(|kept| kept.tensor.clone());
        let parts = parts.map(|parts| parts.map(|parts| parts.with_windows(windows)));
        let exchange = parts.and_then(|parts| match (parts, turn) {
            (Some(parts), _) => self.dispatcher.start_split(message, parts),
            (None, Some(turn)) => self.dispatcher.start_in_sequence(message, turn),
            (None, None) => self.dispatcher.start(message, request.patience),
        });
        exchange.map_err(|error| {
            request.counted.failed(&error);
            set_error(&request.span, &error);
            request.error(error)
        })
    }

    /// The one response that the pipeline makes to a request.
    async fn compute_all(&self, request: &mut Running, message: WorkMessage) -> Result<InferResponse, InferError> {
        let mut exchange = self.begin(request, message)?;
        let next = self.next(request, &mut exchange).await;
        next.unwrap_or_else(|| Err(no_answer())).map(|next| next.response)
    }
}

/// The rows of a request in its owner's usage: one where nothing says that it has more.
fn counted_rows(batch: Option<i64>, rows: Rows, tensors: &[Tensor]) -> u64 {
    let batch = batch.or_else(|| (rows == Rows::Independent).then(|| rows_of(tensors)));
    batch.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(1)
}

/// The batch dimension of a request.
fn rows_of(tensors: &[Tensor]) -> i64 {
    tensors.iter().filter_map(|tensor| tensor.shape().first().copied()).max().unwrap_or(1)
}

/// Names the prompt of queries or documents where a request says by NVIDIA NIM's parameter `input_type` what its texts are.
fn name_prompt(capabilities: &Capabilities, parameters: &mut Parameters) {
    let prompt = match parameters.get("input_type").and_then(ParameterValue::as_str) {
        Some("query") => capabilities.prompt_of_queries(),
        Some("passage") => capabilities.prompt_of_documents(),
        _ => None,
    };
    if let Some(prompt) = prompt {
        parameters.entry("prompt_name".to_owned()).or_insert_with(|| ParameterValue::String(prompt.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_type_of_nim_names_the_prompt() {
        let capabilities = Capabilities {
            query_prompt: Some("ask".to_owned()),
            prompts: ["ask", "document"].map(str::to_owned).into(),
            ..Capabilities::default()
        };
        let named = |given: &[(&str, &str)]| {
            let pairs = given.iter().map(|(name, value)| ((*name).to_owned(), ParameterValue::from(*value)));
            let mut parameters: Parameters = pairs.collect();
            name_prompt(&capabilities, &mut parameters);
            parameters.get("prompt_name").and_then(ParameterValue::as_str).map(str::to_owned)
        };
        assert_eq!(named(&[("input_type", "query")]).as_deref(), Some("ask"));
        assert_eq!(named(&[("input_type", "passage")]).as_deref(), Some("document"));
        assert_eq!(named(&[("input_type", "query"), ("prompt_name", "mine")]).as_deref(), Some("mine"));
        assert_eq!(named(&[("input_type", "other")]), None);
    }
}
