//! Durable requests: accepted, looked at, cancelled, and run by their owner.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use trireme_bus::BusError;

use crate::call::{CallOf, Executed, JobAnswer, JobCall};
use crate::error::JobError;
use crate::jobs::{JobOptions, Jobs};
use crate::pace::Slot;
use crate::quotas::Usage;
use crate::record::{ATTEMPTS, Attempts, Body, Record};
use crate::record::{Request, RequestState, Webhook};
use crate::store::{StoredRecord, new_id};

/// The kind of job in errors.
const KIND: &str = "request";

/// The prefix of ids.
const PREFIX: &str = "req_";

/// The prefixes of ids that a client's key may stand for.
const KEYED: [&str; 3] = [PREFIX, "file-", "batch_"];

/// Objects live for this much longer than the records that name them.
const SLACK: Duration = Duration::from_secs(3600);

/// A job that has run for so long has not ended its gateway: whatever ends gateways does so early.
pub(crate) const GETS_ON: Duration = Duration::from_secs(20);

/// How a call was tried.
pub(crate) enum Tried {
    /// It has an answer.
    Answered(JobAnswer),
    /// It is to be tried again.
    Refused,
    /// It had no answer in time.
    Expired,
}

/// A request that is in the store.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Its id.
    pub id: String,
    /// Its record.
    pub request: Request,
    /// Whether it was there before, under the client's key.
    pub was_there: bool,
}

// === impl Jobs ===

impl Jobs {
    /// Accepts a request: it is in the store when this returns. With `key` a second request with the same key is the first
    /// one; [`JobError::OtherRequest`] if it has another path, header or body.
    pub async fn accept(&self, call: JobCall, key: Option<&str>) -> Result<Accepted, JobError> {
        self.accept_on(call, key, JobOptions::default()).await
    }

    /// Like [`Jobs::accept`], for a request that begins later or has a webhook. With another time or URL it is
    /// another request to its key.
    pub async fn accept_on(&self, call: JobCall, key: Option<&str>, terms: JobOptions) -> Result<Accepted, JobError> {
        let digest = digest(&call, &terms);
        let id = match key {
            Some(key) => format!("{PREFIX}{}", self.id_of_key(key)),
            None => new_id(PREFIX),
        };
        if key.is_some()
            && let Some(there) = self.accepted_before(&id, &digest).await?
        {
            return Ok(there);
        }
        if let Some(key) = key {
            self.check_key(key, PREFIX).await?;
        }
        let _promised = self.promise(&id, Usage { requests: 1, ..Usage::default() }).await?;
        let (created, live) = (self.now(), self.0.options.time_to_live);
        let name = format!("{id}-{}", hex(&digest, 8));
        let start = created.max(terms.not_before.unwrap_or_default());
        let lapse = Duration::from_secs(start - created) + live + SLACK;
        let body = self.keep(name, &call.body, Some(lapse)).await?;
        let request = Request {
            owner: self.0.own.clone(),
            created,
            expires: start + live.as_secs(),
            ended: None,
            state: RequestState::Queued,
            not_before: terms.not_before,
            webhook: terms.webhook.map(Webhook::new),
            client: self.client().to_owned(),
            digest: digest.clone(),
            destination: self.0.execute.destination(&call),
            call: JobCall { body: Bytes::new(), ..call },
            body,
            attempts: Attempts::accepted(&self.0.process),
            answer: None,
            answer_body: Body::Here(Bytes::new()),
        };
        let record = Record::Request(request.clone());
        if self.replace(&id, &record, 0, None).await?.is_some() {
            return Ok(Accepted { id, request, was_there: false });
        }
        let there = self.accepted_before(&id, &digest).await?;
        there.ok_or_else(|| BusError::Conflict { key: id }.into())
    }

    /// The random-looking part of the id that a client's key stands for: another client's is another one.
    pub(crate) fn id_of_key(&self, key: &str) -> String {
        let digest = match self.client() {
            "" => sha256(&[key.as_bytes()]),
            client => sha256(&[client.as_bytes(), key.as_bytes()]),
        };
        hex(&digest, 16)
    }

    /// An error if the client has used a key on another route, for something else than ids that begin with `prefix`.
    pub(crate) async fn check_key(&self, key: &str, prefix: &str) -> Result<(), JobError> {
        let key = self.id_of_key(key);
        for other in KEYED.into_iter().filter(|other| *other != prefix) {
            let id = format!("{other}{key}");
            // The index has all files and batches.
            if self.0.index.knows(&id) || (other == PREFIX && self.read(&id).await?.is_some()) {
                return Err(JobError::OtherRequest);
            }
        }
        Ok(())
    }

    async fn accepted_before(&self, id: &str, digest: &Bytes) -> Result<Option<Accepted>, JobError> {
        match self.read(id).await?.map(|kept| kept.record) {
            Some(Record::Request(request)) if request.digest == digest && self.sees(&request.client) => {
                Ok(Some(Accepted { id: id.to_owned(), request, was_there: true }))
            }
            Some(_) => Err(JobError::OtherRequest),
            None => Ok(None),
        }
    }

    /// The record of a request.
    pub async fn request(&self, id: &str) -> Result<Request, JobError> {
        match self.read(id).await?.map(|kept| kept.record) {
            Some(Record::Request(request)) if self.sees(&request.client) => Ok(request),
            _ => Err(unknown(id)),
        }
    }

    /// The answer to a request that is [`RequestState::Completed`].
    pub async fn answer(&self, request: &Request) -> Result<Option<JobAnswer>, JobError> {
        let Some(answer) = &request.answer else { return Ok(None) };
        Ok(Some(JobAnswer { body: self.body(&request.answer_body).await?, ..answer.clone() }))
    }

    /// Waits until a request has ended, for `patience` at most. Returns its record.
    pub async fn wait(&self, id: &str, patience: Duration) -> Result<Request, JobError> {
        /// A look at the store, in case that this gateway missed the change.
        const LOOK: Duration = Duration::from_secs(1);
        let until = Instant::now() + patience;
        let mut ended = self.0.ended.subscribe();
        loop {
            let request = self.request(id).await?;
            let left = until.saturating_duration_since(Instant::now());
            if request.state != RequestState::Queued || left.is_zero() {
                return Ok(request);
            }
            let look = tokio::time::sleep(left.min(LOOK));
            tokio::pin!(look);
            loop {
                tokio::select! {
                    heard = ended.recv() => if heard.map_or(true, |heard| heard == id) { break },
                    () = &mut look => break,
                }
            }
        }
    }

    /// Cancels a request that has not ended, and deletes one that has. Returns its record before.
    pub async fn cancel_request(&self, id: &str) -> Result<Request, JobError> {
        let mut before = None;
        let live = self.0.options.time_to_live;
        self.change(id, |record| {
            let Record::Request(request) = record else { return None };
            if !self.sees(&request.client) {
                return None;
            }
            before = Some(request.clone());
            (request.state == RequestState::Queued).then(|| {
                request.state = RequestState::Cancelled;
                request.ended = Some(self.now());
                Some(live)
            })
        })
        .await?;
        let before = before.ok_or_else(|| unknown(id))?;
        self.discard(&before.body).await;
        if before.state != RequestState::Queued {
            self.discard(&before.answer_body).await;
            self.drop_record(id).await?;
        }
        Ok(before)
    }

    /// Tries a request of this gateway. Returns whether it was refused, and is to be tried again.
    pub(crate) async fn run_request(&self, id: &str, slot: &Slot) -> Result<bool, JobError> {
        let Some(StoredRecord { record: Record::Request(mut request), mut revision }) = self.read(id).await? else {
            return Ok(false);
        };
        if request.state != RequestState::Queued || request.owner != self.0.own {
            return Ok(false);
        }
        let live = self.0.options.time_to_live;
        let process = &self.0.process;
        let is_new = request.attempts.by != *process;
        let is_set_aside = request.attempts.begin(process) > ATTEMPTS;
        if is_new && !is_set_aside {
            match self.replace(id, &Record::Request(request.clone()), revision, None).await? {
                Some(written) => revision = written,
                None => return Ok(false),
            }
        }
        let tried = match self.body(&request.body).await {
            _ if is_set_aside => Tried::Answered(JobAnswer::error(
                500,
                &format!("{ATTEMPTS} gateways have ended while they worked on this request, so it is set aside"),
            )),
            Ok(body) => {
                let call = JobCall { body, ..request.call.clone() };
                let of = CallOf { job: id.to_owned(), owner: request.client.as_str().into() };
                let attempt = self.attempt(&call, of, request.expires, slot);
                tokio::pin!(attempt);
                match tokio::time::timeout(GETS_ON, &mut attempt).await {
                    Ok(tried) => tried,
                    Err(_) => {
                        // A store that is away for a moment is no reason to end the call.
                        if let Ok(Some(written)) = self.get_on(id, &mut request, revision).await {
                            revision = written;
                        }
                        attempt.await
                    }
                }
            }
            // A broker of a cluster may have it later.
            Err(JobError::Lost(_)) if request.attempts.lost + 1 < ATTEMPTS => {
                request.attempts.lost += 1;
                return self.replace(id, &Record::Request(request), revision, None).await.map(|_| true);
            }
            Err(JobError::Lost(why)) => Tried::Answered(JobAnswer::error(500, &format!("the request is lost: {why}"))),
            Err(error) => return Err(error),
        };
        if matches!(tried, Tried::Refused) {
            // Its gateway has survived. The count of the process that accepted it says nothing, so it stays.
            if request.attempts.begun > 1 {
                self.get_on(id, &mut request, revision).await?;
            }
            return Ok(true);
        }
        request.ended = Some(self.now());
        match tried {
            Tried::Answered(answer) => {
                let name = format!("{id}-answer-{:08x}", fastrand::u32(..));
                request.answer_body = self.keep(name, &answer.body, Some(live + SLACK)).await?;
                request.answer = Some(JobAnswer { body: Bytes::new(), ..answer });
                request.state = RequestState::Completed;
            }
            Tried::Refused | Tried::Expired => request.state = RequestState::Expired,
        }
        let sent = std::mem::replace(&mut request.body, Body::Here(Bytes::new()));
        // Otherwise it was cancelled, or another gateway took it over. The answer's object lapses: it is not deleted, because a write whose
        // confirmation was lost may be refused the second time although the store has it, and then the record names this answer.
        if self.replace(id, &Record::Request(request), revision, Some(live)).await?.is_some() {
            self.discard(&sent).await;
        }
        Ok(false)
    }

    /// Notes that a gateway has survived a request. Returns the revision of the record, unless it was changed meanwhile.
    async fn get_on(&self, id: &str, request: &mut Request, revision: u64) -> Result<Option<u64>, JobError> {
        request.attempts.get_on();
        self.replace(id, &Record::Request(request.clone()), revision, None).await
    }

    /// Tries a call once, until `expires` at most.
    pub(crate) async fn attempt(&self, call: &JobCall, of: CallOf, expires: u64, slot: &Slot) -> Tried {
        let left = Duration::from_secs(expires.saturating_sub(self.now()));
        let _in_flight = self.0.counters.call();
        match tokio::time::timeout(left, self.0.execute.execute(call.clone(), of)).await {
            Ok(Executed::Answered(answer)) => {
                slot.answered();
                Tried::Answered(answer)
            }
            Ok(Executed::Refused) => {
                slot.refused(Instant::now());
                Tried::Refused
            }
            Err(_) => Tried::Expired,
        }
    }
}

fn unknown(id: &str) -> JobError {
    JobError::Unknown { kind: KIND, id: id.to_owned() }
}

fn digest(call: &JobCall, terms: &JobOptions) -> Bytes {
    let mut parts = vec![call.path.as_bytes()];
    let not_before = terms.not_before.map(u64::to_le_bytes);
    // A request without terms has the digest that it had before there were any.
    parts.extend(not_before.as_ref().map(|at| at.as_slice()));
    parts.extend(terms.webhook.as_ref().map(|url| url.as_bytes()));
    for (name, value) in &call.headers {
        match name.as_str() {
            // They say who asked, and how patiently, not what.
            "traceparent" | "tracestate" | "trireme-timeout-ms" => {}
            // Its parameters change no answer: a repetition may come from another client.
            "content-type" => {
                let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
                parts.extend([name.as_bytes(), kind.trim_ascii()]);
            }
            _ => parts.extend([name.as_bytes(), value.as_ref()]),
        }
    }
    parts.push(&call.body);
    Bytes::copy_from_slice(&sha256(&parts))
}

/// SHA-256 of parts and their lengths.
pub(crate) fn sha256(parts: &[&[u8]]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    context.finish().as_ref().to_vec()
}

/// The first `bytes` bytes in hexadecimal digits.
fn hex(digest: &[u8], bytes: usize) -> String {
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}
