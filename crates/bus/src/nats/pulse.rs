//! Whether the broker takes work, as each process sees it.
//!
//! One gateway at a time writes to a stream on the broker's disk each second, and says on a topic how that went. The stream
//! is there for nothing else: a stream that was written to while the disk was full takes nothing until its broker starts
//! again (nats-server 2.15).
//! Every process listens: a pulse that arrives shows that the broker is reached, that JetStream works, and whether its
//! store takes writes. The gateway that has heard no pulse for a second makes the next one. A process that hears none
//! for longer, because no gateway lives, asks JetStream by itself. So the broker has one
//! write each second and a message to each process, however many there are.
//!
//! A process looks over a connection of its own, which it opens with the first look: on the one that everything else shares, a
//! question waits behind all that is being sent, and a busy process would take a live broker for dead.

use std::time::{Duration, Instant};

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::stream;
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::connect::Way;
use super::connection::Nats;
use super::errors::{chain, is_full, is_no_stream};
use super::{account, buckets, topics};
use crate::{Bucket, BusError, BusFault, Connection, FaultKind};

/// The topic of pulses.
const PULSE: &str = "pulse";

/// The bytes that the stream which gateways write to may take.
const STREAM_BYTES: i64 = 64 << 10;

/// A page of a file system: a smaller write can succeed on a full disk.
const WRITTEN: Bytes = Bytes::from_static(&[0; 4096]);

/// Time between two pulses, and the longest random delay that a gateway adds, so that one gateway is first.
const PERIOD: Duration = Duration::from_secs(1);
const JITTER: Duration = Duration::from_millis(250);

/// A process that is no gateway asks JetStream by itself when it has heard no pulse for this long, and up to half of it.
const SILENCE: Duration = Duration::from_secs(2);

/// How long the broker may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// A pulse.
#[derive(Debug, Serialize, Deserialize)]
struct Pulse {
    /// The fault of the broker's store.
    store: Option<StoreFault>,
}

/// A fault of the broker's store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoreFault {
    kind: FaultKind,
    /// Whether queues are in that store.
    stops_requests: bool,
    /// How long it has lasted, in milliseconds.
    for_ms: u64,
    reason: String,
}

/// The part of JetStream's answer that is used here.
#[derive(Deserialize)]
struct Answer {
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    code: u16,
    #[serde(default)]
    description: String,
}

/// The knowledge of this process about the broker.
struct Watched {
    fault: watch::Sender<Option<BusFault>>,
    /// The last sign that the broker is reached.
    proved: Instant,
    /// Whether this gateway may write pulses: the broker's users or the limits of the account may be against it.
    may_write: bool,
    /// The connection for looks, while there is one.
    link: Option<Nats>,
}

// === impl Nats ===

impl Nats {
    /// Makes and hears pulses for as long as the connection is open, and keeps `fault`.
    pub(super) async fn follow_pulse(&self, fault: watch::Sender<Option<BusFault>>, way: Way) -> Result<(), BusError> {
        let mut heard = topics::subscribe(self, PULSE, false).await?;
        let nats = self.clone();
        crate::spawn("nats pulse", async move {
            let mut connection = nats.connection.follow();
            let mut watched = Watched { fault, proved: Instant::now(), may_write: true, link: None };
            let mut due = Instant::now() + nats.pause();
            while !nats.is_closed() {
                tokio::select! {
                    pulse = heard.recv() => {
                        let Some(pulse) = pulse else { return };
                        watched.hear(&pulse.body);
                        // A process that is no gateway does not look while gateways do.
                        if !nats.makes_streams {
                            watched.link = None;
                        }
                        due = Instant::now() + nats.pause();
                    }
                    Ok(()) = connection.changed() => match *connection.borrow_and_update() {
                        Connection::Down => {
                            watched.link = None;
                            watched.lost("the connection is lost");
                        }
                        Connection::Up(_) => {
                            watched.may_write = true;
                            due = Instant::now() + JITTER.mul_f64(fastrand::f64());
                        }
                    },
                    () = tokio::time::sleep_until(due.into()) => {
                        if nats.is_down() {
                            watched.lost("the connection is lost");
                        } else {
                            match nats.beat(&mut watched, &way).await {
                                Ok(store) => watched.found(store),
                                Err(reason) => watched.lost(&reason),
                            }
                        }
                        let is_faulty = watched.fault.borrow().is_some();
                        due = Instant::now() + if is_faulty { PERIOD } else { nats.pause() };
                    }
                }
            }
        });
        Ok(())
    }

    /// The time after a sign of life at which this process looks for itself.
    fn pause(&self) -> Duration {
        match self.makes_streams {
            true => PERIOD + JITTER.mul_f64(fastrand::f64()),
            false => SILENCE.mul_f64(1.0 + fastrand::f64() / 2.0),
        }
    }

    /// Looks whether the broker takes work; a gateway also says so. Returns the fault of the broker's store. The
    /// error says why the broker is not reached: neither over the connection for looks nor over the shared one.
    async fn beat(&self, watched: &mut Watched, way: &Way) -> Result<Option<StoreFault>, String> {
        if watched.link.is_none() {
            watched.link = match tokio::time::timeout(LIMIT, way.connect()).await {
                Ok(Ok((client, jetstream))) => Some(Nats { client, jetstream, ..self.clone() }),
                failed => {
                    tracing::debug!(error = ?failed.map(|made| made.err()), "no connection of its own for the pulse");
                    None
                }
            };
        }
        if let Some(link) = watched.link.clone() {
            match link.look(watched).await {
                Ok(store) => return Ok(store),
                Err(_) => {
                    // The next look opens another one, perhaps to another broker.
                    watched.link = None;
                    return self.round_trip().await.map(|()| None);
                }
            }
        }
        self.look(watched).await
    }

    async fn look(&self, watched: &mut Watched) -> Result<Option<StoreFault>, String> {
        if !self.makes_streams {
            return self.round_trip().await.map(|()| None);
        }
        let store = self.look_at_store(watched).await?;
        let stops_requests = self.settings.lock().as_ref().is_some_and(|settings| settings.file_storage);
        let store = store.map(|(kind, reason)| {
            let for_ms = u64::try_from(watched.lasts(kind).as_millis()).unwrap_or(u64::MAX);
            StoreFault { kind, stops_requests, for_ms, reason }
        });
        let pulse = serde_json::to_vec(&Pulse { store: store.clone() }).expect("words and numbers become JSON");
        if let Err(error) = topics::publish_to(self, PULSE, pulse.into()).await {
            tracing::debug!(%error, "a pulse could not be sent");
        }
        Ok(store)
    }

    /// The fault of the broker's store. The error says why the broker is not reached.
    async fn look_at_store(&self, watched: &mut Watched) -> Result<Option<(FaultKind, String)>, String> {
        let names = [self.names.pulse(), self.names.pulse_stream()];
        let written = async {
            tokio::select! {
                written = self.write_pulse() => written,
                refusal = self.refused(|refusal| names.iter().any(|name| refusal.contains(name))) => Ok(Some(refusal)),
            }
        };
        let found = match watched.may_write {
            true => tokio::time::timeout(LIMIT, written).await,
            false => return self.round_trip().await.map(|()| None),
        };
        let reason = match found {
            Ok(Ok(None)) => return Ok(None),
            Ok(Ok(Some(refusal))) => {
                watched.may_write = false;
                tracing::warn!(
                    refusal,
                    "this gateway cannot see whether the broker's disk is full: it needs room for one more stream, and the \
                     permissions that deploy/nats/permissions.py writes"
                );
                return Ok(None);
            }
            Ok(Err(error)) if is_full(&error) => return Ok(Some((FaultKind::StoreFull, chain(&error)))),
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("a write was not confirmed within {} s", LIMIT.as_secs()),
        };
        self.round_trip().await?;
        Ok(Some((FaultKind::StoreSilent, reason)))
    }

    /// Writes to the broker's disk. Returns why the stream for that cannot be made, if a limit of the account is why.
    async fn write_pulse(&self) -> Result<Option<String>, PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_EXPECTED_STREAM, &*self.names.pulse_stream());
        let subject = self.names.pulse();
        let write =
            async || self.jetstream.publish_with_headers(subject.clone(), headers.clone(), WRITTEN).await?.await;
        match write().await {
            Err(error) if is_no_stream(&error) => {
                match self.make_pulse_stream().await {
                    Err(BusError::OverLimit { reason }) => return Ok(Some(reason)),
                    made => made.map_err(|error| PublishError::with_source(PublishErrorKind::Other, error))?,
                }
                write().await.map(|_| None)
            }
            written => written.map(|_| None),
        }
    }

    async fn make_pulse_stream(&self) -> Result<(), BusError> {
        let config = account::fit(account::SMALL, self.pulse_config(), &self.account());
        self.create_or_update("making the stream of pulses", &config, |_| Some(config.clone())).await.map(drop)
    }

    pub(super) fn pulse_config(&self) -> stream::Config {
        stream::Config {
            name: self.names.pulse_stream(),
            description: Some("whether the disk takes writes".to_owned()),
            subjects: vec![self.names.pulse()],
            max_messages: 1,
            max_bytes: STREAM_BYTES,
            num_replicas: self.replicas(),
            ..Default::default()
        }
    }

    /// Whether JetStream answers. A cluster without a leader does not, or says so.
    async fn round_trip(&self) -> Result<(), String> {
        let subject = format!("{}.STREAM.INFO.{}", self.api, buckets::stream(&self.names, Bucket::Settings));
        let answer = match tokio::time::timeout(LIMIT, self.client.request(subject, Bytes::new())).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(format!("JetStream does not answer: {}", chain(&error))),
            Err(_) => return Err(format!("JetStream did not answer within {} s", LIMIT.as_secs())),
        };
        match serde_json::from_slice(&answer.payload) {
            Ok(Answer { error: Some(ApiError { code: 500.., description }) }) => Err(description),
            // That a stream does not exist is an answer, too.
            Ok(_) => Ok(()),
            Err(error) => Err(format!("JetStream's answer cannot be read: {error}")),
        }
    }
}

// === impl Watched ===

impl Watched {
    fn hear(&mut self, body: &[u8]) {
        match serde_json::from_slice::<Pulse>(body) {
            Ok(Pulse { store }) => self.found(store),
            Err(error) => tracing::debug!(%error, "ignored a pulse that cannot be read"),
        }
    }

    /// The broker is reached, and its store is like this.
    fn found(&mut self, store: Option<StoreFault>) {
        self.proved = Instant::now();
        self.set(store.map(|StoreFault { kind, stops_requests, for_ms, reason }| BusFault {
            kind,
            stops_requests,
            since: self.proved.checked_sub(Duration::from_millis(for_ms)).unwrap_or(self.proved),
            reason,
        }));
    }

    /// The broker is not reached.
    fn lost(&mut self, reason: &str) {
        let (kind, since) = (FaultKind::Unreachable, self.proved);
        self.set(Some(BusFault { kind, stops_requests: true, since, reason: reason.to_owned() }));
    }

    /// How long a fault of this kind has lasted.
    fn lasts(&self, kind: FaultKind) -> Duration {
        let fault = self.fault.borrow();
        fault.as_ref().filter(|fault| fault.kind == kind).map_or(Duration::ZERO, |fault| fault.since.elapsed())
    }

    fn set(&mut self, fault: Option<BusFault>) {
        let kind = |fault: &Option<BusFault>| fault.as_ref().map(|fault| fault.kind);
        let before = kind(&self.fault.borrow());
        match &fault {
            Some(fault) if before != Some(fault.kind) => tracing::warn!("{fault}"),
            None if before.is_some() => tracing::info!("the broker takes work again"),
            Some(_) | None => {}
        }
        self.fault.send_if_modified(|now| {
            let is_news = *now != fault;
            *now = fault;
            is_news
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Watched {
        Watched { fault: watch::channel(None).0, proved: Instant::now(), may_write: true, link: None }
    }

    #[test]
    fn a_fault_lasts_from_the_last_sign_of_life_on() {
        let mut watched = watched();
        watched.proved = Instant::now().checked_sub(Duration::from_secs(7)).expect("the clock is older");
        watched.lost("the connection is lost");
        assert!(watched.fault.borrow().as_ref().is_some_and(BusFault::is_grave));
        watched.hear(br#"{"store": null}"#);
        assert_eq!(*watched.fault.borrow(), None);
    }

    #[test]
    fn others_learn_of_a_full_store_from_the_pulse() {
        let mut watched = watched();
        let pulse = |stops: bool| {
            format!(
                r#"{{"store": {{"kind": "store_full", "stops_requests": {stops}, "for_ms": 9000, "reason": "insufficient resources"}}}}"#
            )
        };
        watched.hear(pulse(false).as_bytes());
        assert!(watched.fault.borrow().as_ref().is_some_and(|fault| !fault.is_grave()));
        watched.hear(pulse(true).as_bytes());
        assert!(watched.fault.borrow().as_ref().is_some_and(BusFault::is_grave));
        assert!(watched.lasts(FaultKind::StoreFull) >= Duration::from_secs(9));
        assert_eq!(watched.lasts(FaultKind::StoreSilent), Duration::ZERO);
        watched.hear(b"rubbish");
        assert!(watched.fault.borrow().is_some());
    }
}
