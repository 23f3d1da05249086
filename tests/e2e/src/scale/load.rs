//! A steady load of checked requests, in an open loop, during a scene.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::client::{self, Fault};

/// The most requests in flight. The load pauses when there are more, and the pause shows in the number of requests.
const AT_A_TIME: usize = 4000;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(90);

/// The longest duration of a load that is not stopped.
const LONGEST: Duration = Duration::from_secs(1800);

/// Number of faults whose texts are kept.
const KEPT: usize = 5;

/// A load that runs until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Tally>,
}

/// The outcome of the requests.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were answered as expected.
    pub right: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// Requests without an answer.
    pub unanswered: usize,
    /// Requests with a wrong answer.
    pub wrong: usize,
    /// How long the requests took that were answered as expected.
    pub times: Vec<Duration>,
    /// Texts of some of the other answers.
    pub faults: Vec<String>,
}

// === impl Load ===

impl Load {
    /// Sends `rate` requests per second, to the gateways and models in turn.
    pub fn start(gateways: Vec<SocketAddr>, models: Vec<String>, rate: f64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let raised = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(send(&gateways, &models, rate, &raised))
        });
        Load { stop, thread }
    }

    /// Stops the load, and waits for the answers to requests in flight.
    pub fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load does not panic")
    }
}

async fn send(gateways: &[SocketAddr], models: &[String], rate: f64, stop: &AtomicBool) -> Tally {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let started = Instant::now();
    let mut calls = JoinSet::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) && started.elapsed() < LONGEST {
        let due = started + Duration::from_secs_f64(number as f64 / rate);
        tokio::time::sleep_until(due.into()).await;
        let (gateway, model) = (gateways[number % gateways.len()], &models[number % models.len()]);
        let (request, tally) = (client::echo(model, number), tally.clone());
        calls.spawn(async move {
            let sent = Instant::now();
            let answer = client::ask(gateway, &request, LIMIT).await;
            let fault = client::fault(&answer, number);
            tally.lock().expect("no holder panics").count(fault, sent.elapsed());
        });
        number += 1;
        while calls.len() >= AT_A_TIME || calls.try_join_next().is_some() {
            if calls.len() >= AT_A_TIME {
                calls.join_next().await;
            }
        }
    }
    while calls.join_next().await.is_some() {}
    let tally = tally.lock().expect("no holder panics");
    tally.clone()
}

// === impl Tally ===

impl Tally {
    /// Counts an answer that took `took`.
    pub fn count(&mut self, fault: Option<Fault>, took: Duration) {
        let text = match fault {
            None => {
                self.right += 1;
                self.times.push(took);
                return;
            }
            Some(Fault::Refused(text)) => {
                self.refused += 1;
                text
            }
            Some(Fault::Unanswered(text)) => {
                self.unanswered += 1;
                text
            }
            Some(Fault::Wrong(text)) => {
                self.wrong += 1;
                text
            }
        };
        if self.faults.len() < KEPT {
            self.faults.push(text);
        }
    }

    /// Number of all requests.
    pub fn requests(&self) -> usize {
        self.right + self.refused + self.unanswered + self.wrong
    }

    /// Prints the texts of some faults.
    pub fn show_faults(&self) {
        self.faults.iter().for_each(|fault| println!("  fault: {}", fault.trim()));
    }
}
