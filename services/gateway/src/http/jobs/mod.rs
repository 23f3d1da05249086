//! Durable work: the flags, and the way in which jobs run calls on this gateway's own routes.
//!
//! Not here: what a job is and who runs it (`trireme-jobs`), the routes of jobs (`http::routes`).

pub mod form;
pub mod idempotency;
pub mod lists;
pub mod options;
pub mod ranges;
pub mod refused;
pub mod webhooks;

use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use axum::http::{HeaderName, HeaderValue, Request, StatusCode};
use bytes::Bytes;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{ArgAction, Args};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use trireme_inference::{IF_SPACE_HEADER, Lane};
use trireme_jobs::{Execute, Executed, JOB, JobAnswer, JobCall, OWNER, Options, Quotas, WebhookAnswer, WebhookCall};
use trireme_server::RequestContext;
use trireme_server::access::{Access, Given, read_all};
use trireme_server::budget::{Budget, BytesPermit};

use crate::registry::Registry;
use webhooks::{Target, WebhookSecret, Webhooks};

/// A client that sends nothing of a file for this long is gone.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(3600);

/// Bytes of a batch's error file at which the batch ends.
pub const MAX_ERROR_BYTES: u64 = 64 << 20;

/// Flags of durable work.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Durable work")]
pub struct JobArgs {
    /// Whether clients may have requests that are answered later (Prefer: respond-async), files and batches
    #[arg(long, env = "TRIREME_ALLOW_JOBS", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub allow_jobs: bool,

    /// Most requests of durable work that this gateway has in flight
    #[arg(long, env = "TRIREME_JOBS_IN_FLIGHT", value_name = "COUNT", default_value_t = 256)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub jobs_in_flight: usize,

    /// Hours that a durable request may wait, and that its answer and the files of a batch are kept
    #[arg(long, env = "TRIREME_JOBS_TIME_TO_LIVE_HOURS", value_name = "HOURS", default_value_t = 24)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=24 * 365))]
    pub jobs_time_to_live_hours: u64,

    /// Most bytes of files that an owner (a NAME of --api-key) has, those of batches' outputs among them; more is refused with 413.
    /// No limit by default
    #[arg(long, env = "TRIREME_JOBS_OWNER_BYTES", value_name = "BYTES")]
    pub jobs_owner_bytes: Option<u64>,

    /// Most files that an owner has; more are refused with 429. No limit by default
    #[arg(long, env = "TRIREME_JOBS_OWNER_FILES", value_name = "COUNT")]
    pub jobs_owner_files: Option<u64>,

    /// Most batches of an owner that have not ended; more are refused with 429. No limit by default
    #[arg(long, env = "TRIREME_JOBS_OWNER_BATCHES", value_name = "COUNT")]
    pub jobs_owner_batches: Option<u64>,

    /// Most durable requests of an owner that have not ended; more are refused with 429. No limit by default
    #[arg(long, env = "TRIREME_JOBS_OWNER_REQUESTS", value_name = "COUNT")]
    pub jobs_owner_requests: Option<u64>,

    /// Secret that signs the webhooks of durable work: whsec_ and 24 to 64 bytes in base64. Without one, webhooks are refused.
    /// May be given several times, also as `file:PATH` with one in each line: each call is then signed with all of them
    #[arg(
        long = "jobs-webhook-secret",
        env = "TRIREME_JOBS_WEBHOOK_SECRET",
        value_name = "SECRET",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub jobs_webhook_secrets: Vec<Given<WebhookSecret>>,

    /// Host, address or network (10.1.0.0/16) that webhooks may call although it is not public, also by http; may be given
    /// several times. Other webhooks go to public addresses by https
    #[arg(long = "jobs-webhook-allow", env = "TRIREME_JOBS_WEBHOOK_ALLOW", value_name = "HOST", value_delimiter = ',')]
    pub jobs_webhook_allow: Vec<Target>,
}

/// The beginning of the paths that name a model.
const MODELS: &str = "/v2/models/";

/// Runs calls on the routes of this gateway.
pub struct Runner {
    /// The routes that execute models.
    pub routes: Router,
    /// Knows which gateways are alive.
    pub registry: Registry,
    /// Knows the accounts of owners.
    pub access: Access,
    /// The budget for the bytes of requests and answers.
    pub budget: Budget,
    /// The bytes of running batches.
    pub batches: BytesPermit,
    /// Calls webhooks, if this gateway does.
    pub webhooks: Option<Webhooks>,
}

/// The headers of an answer that are about its way to the client, and are made anew when it is sent.
const OF_THE_HOP: [HeaderName; 8] =
    [CONNECTION, CONTENT_LENGTH, DATE, HeaderName::from_static("keep-alive"), TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// The header names that a durable request keeps. Others are about the connection, or secrets.
pub const KEPT_HEADERS: [&str; 7] = [
    "content-type",
    "content-encoding",
    "inference-header-content-length",
    "traceparent",
    "tracestate",
    "trireme-timeout-ms",
    IF_SPACE_HEADER,
];

// === impl JobArgs ===

impl JobArgs {
    /// The limits that the flags describe. Running batches may fill a quarter of the gateway's bytes, so that their calls have another one.
    pub fn options(&self, max_bytes_in_flight: u64) -> Options {
        Options {
            max_in_flight: self.jobs_in_flight,
            time_to_live: Duration::from_secs(self.jobs_time_to_live_hours * 3600),
            upload_patience: UPLOAD_PATIENCE,
            max_error_bytes: MAX_ERROR_BYTES,
            max_bytes: max_bytes_in_flight / 4,
            quotas: Quotas {
                bytes: self.jobs_owner_bytes,
                files: self.jobs_owner_files,
                batches: self.jobs_owner_batches,
                requests: self.jobs_owner_requests,
            },
        }
    }

    /// The caller of webhooks, if a secret was given.
    pub(crate) fn webhooks(&self) -> anyhow::Result<Option<Webhooks>> {
        let secrets = self.webhook_secrets()?;
        (!secrets.is_empty()).then(|| Webhooks::new(&secrets, &self.jobs_webhook_allow)).transpose()
    }

    /// The secrets that sign webhooks, files read now.
    pub fn webhook_secrets(&self) -> anyhow::Result<Vec<WebhookSecret>> {
        read_all("--jobs-webhook-secret", &self.jobs_webhook_secrets)
    }
}

// === impl Runner ===

#[async_trait]
impl Execute for Runner {
    async fn execute(&self, mut call: JobCall) -> Executed {
        let job = call.header(JOB).map(|job| String::from_utf8_lossy(job).into_owned());
        let owner = call.header(OWNER).map(String::from_utf8_lossy).unwrap_or_default();
        let account = self.access.account_of(&owner.into(), Lane::Bulk);
        call.headers.retain(|(name, _)| name != JOB && name != OWNER);
        let (size, permit) = (call.body.len() as u64, self.budget.permit_in(Lane::Bulk));
        let mut request = match request(call) {
            Ok(request) => request,
            Err(error) => return Executed::Answered(refusal(StatusCode::BAD_REQUEST, &error.to_string())),
        };
        let context = RequestContext::of_job(request.headers(), job, account, permit);
        if let Err(no_room) = context.permit().take(size) {
            return executed(refusal(StatusCode::SERVICE_UNAVAILABLE, &no_room.to_string()), &context);
        }
        request.extensions_mut().insert(context.clone());
        let Ok(response) = TowerToHyperService::new(self.routes.clone()).call(request).await;
        let (parts, body) = response.into_parts();
        let kept = |(name, value): (&HeaderName, &HeaderValue)| {
            (!OF_THE_HOP.contains(name)).then(|| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        };
        let headers = parts.headers.iter().filter_map(kept).collect();
        let answer = match axum::body::to_bytes(body, usize::MAX).await {
            Ok(body) => JobAnswer { status: parts.status.as_u16(), headers, body },
            Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &format!("the answer broke off: {error}")),
        };
        executed(answer, &context)
    }

    /// The model, with its version where the call names one; the route of a call that names no model.
    fn destination(&self, call: &JobCall) -> String {
        #[derive(Deserialize)]
        struct Named {
            model: String,
        }
        if let Some((model, _operation)) = call.path.strip_prefix(MODELS).and_then(|rest| rest.rsplit_once('/')) {
            return model.to_owned();
        }
        serde_json::from_slice(&call.body).map_or_else(|_| call.path.clone(), |Named { model }| model)
    }

    fn weight(&self, owner: &str) -> u32 {
        self.access.account_of(&owner.into(), Lane::Bulk).limits.share()
    }

    fn count_bytes(&self, before: u64, now: u64) {
        self.batches.add(now.saturating_sub(before));
        self.batches.give_back(before.saturating_sub(now));
    }

    async fn call(&self, call: WebhookCall) -> WebhookAnswer {
        match &self.webhooks {
            Some(webhooks) => webhooks.call(call).await,
            None => WebhookAnswer::failed("this gateway was started without --jobs-webhook-secret"),
        }
    }

    fn lives(&self, gateway: &str) -> bool {
        self.registry.lives(gateway)
    }
}

/// Whether an answer is one, or a refusal of a call that may be taken later. A refusal that is owed to what the client has set is an answer.
fn executed(answer: JobAnswer, context: &RequestContext) -> Executed {
    match answer.status {
        408 | 429 | 503 | 504 if !context.is_final() => Executed::Refused,
        _ => Executed::Answered(answer),
    }
}

fn request(call: JobCall) -> Result<Request<Body>, axum::http::Error> {
    let mut request = Request::post(&call.path);
    for (name, value) in &call.headers {
        request = request.header(name, value.as_ref());
    }
    request.body(Body::from(call.body))
}

fn refusal(status: StatusCode, message: &str) -> JobAnswer {
    let body = serde_json::json!({ "error": message }).to_string();
    let json = ("content-type".to_owned(), Bytes::from_static(b"application/json"));
    JobAnswer { status: status.as_u16(), headers: vec![json], body: body.into() }
}
