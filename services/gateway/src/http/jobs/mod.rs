//! Durable work: the flags, and what its routes share.
//!
//! Not here: what a job is (`trireme-jobs`), how its calls run (`http::runner`), the routes of jobs (`http::routes`).

pub mod form;
pub mod idempotency;
pub mod lists;
pub mod options;
pub mod ranges;
pub mod refused;
pub mod shown;
pub mod webhooks;

use std::time::Duration;

use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{ArgAction, Args};
use trireme_jobs::{Options, Quotas};
use trireme_server::access::{Given, read_all};

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
