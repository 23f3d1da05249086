//! A broker that is killed and loses all messages in its memory, while one gateway has thousands of requests in flight.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::broker::{Broker, stored, traffic};
use super::calls::Calls;
use super::deployment::Deployment;
use super::findings::figure::WHOLE_MACHINE;
use super::findings::{Finding, Findings};
use super::flags::Settings;
use super::load::Tally;
use super::plan::Plan;
use super::shape::Shape;
use super::usage::MachineWatch;

/// How long a request may take: longer than all of them together take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The model. Four workers that each execute 32 requests in half a second answer 256 requests per second. So thousands
/// of requests are in flight before many of them are answered.
const MODEL: &str = "max_batch_size: 32 dynamic_batching { }
    parameters [{ key: 'execute_delay_ms' value { string_value: '500' } }]";

/// How long the harness tries to get the wanted number of requests in flight.
const FILLING: Duration = Duration::from_secs(180);

/// Calls that are begun before the ones begun are sent.
const CALLS_AT_ONCE: usize = 100;

/// Pause before the harness checks again whether requests were answered, to send others in their place.
const REFILL_PAUSE: Duration = Duration::from_millis(5);

/// Time between two readings of the broker's traffic.
const SAMPLE: Duration = Duration::from_millis(250);

/// A jump of the sequence number between two samples that one queue cannot make: it is a new queue.
const NEW_QUEUE: f64 = 1_000_000.0;

/// The length of the windows in which answers and messages are counted, in seconds.
const WINDOW: f64 = 1.0;

/// The share of the earlier answer rate that counts as recovered.
const RECOVERED: f64 = 0.8;

/// The state of the client while it runs.
#[derive(Default)]
struct Progress {
    sent: AtomicUsize,
    answered: AtomicUsize,
    /// Whether all wanted requests are in flight.
    full: AtomicBool,
    /// Whether the client sends no more requests.
    enough: AtomicBool,
    /// When answers arrived, in seconds since the start, and the outcome of requests.
    answers: Mutex<(Vec<f64>, Tally)>,
}

/// The broker's traffic at times since the client's start, in seconds: messages received, and messages taken in by
/// queues of work.
type Samples = Arc<Mutex<Vec<[f64; 3]>>>;

/// Fills the gateway, restarts the broker, and adds the outcome of the requests to the findings.
pub fn run(plan: &Plan, at: &str, findings: &mut Findings) {
    let shape = Shape { groups: 1, models_per_group: 1, workers_per_group: 4, gateways: 1, model: MODEL };
    let timeout_ms = TIMEOUT.as_millis() as u64;
    let settings = Settings { queue_messages: 4 * plan.in_flight, timeout_ms, ..Settings::default() };
    let mut deployment = Deployment::start(Broker::single(), shape, settings, plan.ready_limit);

    let (progress, started) = (Arc::new(Progress::default()), Instant::now());
    let (gateway, model, wanted) = (deployment.grpc, deployment.shape.model_name(0), plan.in_flight);
    let seen = progress.clone();
    let client = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(send(gateway, &model, wanted, started, seen));
    });
    let give_up = Instant::now() + FILLING + Duration::from_secs(5);
    while !progress.full.load(Ordering::Relaxed) && Instant::now() < give_up && !client.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let monitor = deployment.broker.monitors()[0];
    while queued(monitor) < wanted && Instant::now() < give_up && !client.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let sampling = Arc::new(AtomicBool::new(true));
    let (samples, sampler) = sample(monitor, started, sampling.clone());
    // Take some samples before the broker is killed.
    std::thread::sleep(4 * SAMPLE);
    let (in_flight, machine) = (progress.in_flight().min(queued(monitor)), MachineWatch::start());
    progress.enough.store(true, Ordering::Relaxed);
    let killed = started.elapsed().as_secs_f64();
    deployment.broker.restart();
    let back = started.elapsed().as_secs_f64();
    client.join().expect("the client does not panic");
    let machine = machine.percent();
    sampling.store(false, Ordering::Relaxed);
    sampler.join().expect("the sampler does not panic");
    deployment.check_running();

    let (mut answers, tally) = std::mem::take(&mut *progress.answers.lock().expect("no holder panics"));
    answers.sort_by(f64::total_cmp);
    tally.show_faults();
    let samples = samples.lock().expect("no holder panics");
    let after: Vec<[f64; 3]> = samples.iter().copied().filter(|[time, ..]| *time > back).collect();
    let figure = |name: &str, value: f64, unit: &'static str| Finding::new("broker restart", at, name, value, unit);
    findings.add(figure("in flight when the broker was killed", in_flight as f64, ""));
    findings.add(
        figure("short of the requests wanted in flight", wanted.saturating_sub(in_flight) as f64, "").at_most(0.0),
    );
    findings.add(figure("requests", tally.requests() as f64, ""));
    findings.add(figure("not answered with a result", (tally.requests() - tally.right) as f64, "").at_most(0.0));
    findings.add(figure(WHOLE_MACHINE, machine, "%"));
    findings.add(figure("broker was away for", back - killed, "s"));
    let first = answers.iter().find(|time| **time > back).map_or(f64::INFINITY, |time| time - killed);
    findings.add(figure("first answer after the kill", first, "s"));
    let recovered = recovered(&answers, killed).map_or(f64::INFINITY, |time| time - killed);
    findings.add(figure("recovered after the kill", recovered, "s"));
    let rates = rates(&after, 1);
    let peak = rates.iter().map(|[_, rate]| *rate).fold(0.0, f64::max);
    // In no second may there be as many messages as there are requests.
    let finding = figure("messages into the broker in a second after, peak", peak, "1/s");
    findings.add(finding.at_most(wanted as f64).over_time(relative(rates, killed)));
    let work_rates = self::rates(&after, 2);
    let peak = work_rates.iter().map(|[_, rate]| *rate).fold(0.0, f64::max);
    findings.add(figure("work published in a second after, peak", peak, "1/s").over_time(relative(work_rates, killed)));
    let published = after.iter().map(|[.., work]| *work).fold(0.0, f64::max);
    findings.add(figure("work published after", published, ""));
    let counted = counts(&answers);
    findings.add(
        figure("all are answered after the kill", answers.last().unwrap_or(&killed) - killed, "s")
            .over_time(relative(counted, killed)),
    );
}

// === impl Progress ===

impl Progress {
    fn in_flight(&self) -> usize {
        self.sent.load(Ordering::Relaxed).saturating_sub(self.answered.load(Ordering::Relaxed))
    }
}

/// Sends requests and keeps a few more than `wanted` of them in flight until `progress.enough` is set. Then waits for
/// all answers.
async fn send(gateway: SocketAddr, model: &str, wanted: usize, started: Instant, progress: Arc<Progress>) {
    let mut running = JoinSet::new();
    let kept = wanted + wanted / 20;
    let calls = Calls::connect(gateway, kept).await;
    let mut number = 0;
    while !progress.enough.load(Ordering::Relaxed) && started.elapsed() < FILLING {
        if progress.in_flight() >= kept {
            progress.full.store(true, Ordering::Relaxed);
            tokio::time::sleep(REFILL_PAUSE).await;
            continue;
        }
        let (calls, model, progress) = (calls.clone(), model.to_owned(), progress.clone());
        progress.sent.fetch_add(1, Ordering::Relaxed);
        running.spawn(async move {
            let sent = Instant::now();
            let fault = calls.echo(&model, number, TIMEOUT + Duration::from_secs(30)).await;
            progress.answered.fetch_add(1, Ordering::Relaxed);
            let mut answers = progress.answers.lock().expect("no holder panics");
            answers.0.push(started.elapsed().as_secs_f64());
            answers.1.count(fault, sent.elapsed());
        });
        number += 1;
        if number % CALLS_AT_ONCE == 0 {
            // Lets the calls be sent.
            tokio::task::yield_now().await;
        }
        while running.try_join_next().is_some() {}
    }
    while running.join_next().await.is_some() {}
}

/// The requests in the queue, those that workers hold among them.
fn queued(monitor: SocketAddr) -> usize {
    stored(monitor).map_or(0, |stored| (stored.last_work + 1.0 - stored.first_work).max(0.0) as usize)
}

/// Reads the broker's traffic at intervals.
fn sample(monitor: SocketAddr, started: Instant, go_on: Arc<AtomicBool>) -> (Samples, std::thread::JoinHandle<()>) {
    let samples = Samples::default();
    let taken = samples.clone();
    let thread = std::thread::spawn(move || {
        let mut work = Work::default();
        while go_on.load(Ordering::Relaxed) && started.elapsed() < FILLING + 2 * TIMEOUT {
            let now = started.elapsed().as_secs_f64();
            if let (Some(traffic), Some(stored)) = (traffic(&[monitor]), stored(monitor)) {
                let taken_in = work.taken_in(stored.first_work, stored.last_work);
                taken.lock().expect("no holder panics").push([now, traffic.messages_in, taken_in]);
            }
            std::thread::sleep(SAMPLE);
        }
    });
    (samples, thread)
}

/// Counts the messages that a queue has taken in since it was created, from their sequence numbers. The broker does not
/// report the number of the first message: gateways create queues whose numbers begin with the time, in microseconds.
/// The count misses messages that were acknowledged before the first sample of a new queue.
#[derive(Default)]
struct Work {
    first: f64,
    last: f64,
}

// === impl Work ===

impl Work {
    /// The number of messages that the queue has taken in. `first` is the number of the oldest message still in the queue,
    /// and `last` that of the newest.
    fn taken_in(&mut self, first: f64, last: f64) -> f64 {
        // The numbers of a queue that was created again are higher by the time in between.
        let is_new = last > self.last + NEW_QUEUE || self.first == 0.0;
        if is_new {
            self.first = first;
        }
        self.last = last;
        if self.first == 0.0 { 0.0 } else { (last + 1.0 - self.first).max(0.0) }
    }
}

/// The growth of a value of the samples, over windows of at least a second: times and rates.
fn rates(samples: &[[f64; 3]], index: usize) -> Vec<[f64; 2]> {
    let mut rates = Vec::new();
    let mut from: [f64; 3] = match samples.first() {
        // A server that was just started has counted from 0.
        Some([time, ..]) => [time - WINDOW, 0.0, 0.0],
        None => return rates,
    };
    for sample in samples {
        let took = sample[0] - from[0];
        if took >= WINDOW {
            rates.push([sample[0], (sample[index] - from[index]).max(0.0) / took]);
            from = *sample;
        }
    }
    rates
}

/// Answers in each second: times and numbers.
fn counts(answers: &[f64]) -> Vec<[f64; 2]> {
    let seconds = answers.last().map_or(0, |last| *last as usize + 1);
    let mut counts: Vec<[f64; 2]> = (0..seconds).map(|second| [second as f64 + WINDOW, 0.0]).collect();
    answers.iter().for_each(|time| counts[*time as usize][1] += 1.0);
    counts
}

/// When answers came as fast again as before `killed`: the end of the first such window.
fn recovered(answers: &[f64], killed: f64) -> Option<f64> {
    let first = answers.first().copied().filter(|first| *first < killed)?;
    let before = answers.iter().filter(|time| **time < killed).count() as f64 / (killed - first).max(WINDOW);
    let after: Vec<f64> = answers.iter().copied().filter(|time| *time >= killed).collect();
    let span = 2.0 * WINDOW;
    let enough = (before * RECOVERED * span).ceil().max(1.0) as usize;
    after.windows(enough).find(|window| window[window.len() - 1] - window[0] <= span).map(|window| window[0])
}

/// The same series with times since `since`.
fn relative(series: Vec<[f64; 2]>, since: f64) -> Vec<[f64; 2]> {
    series.into_iter().map(|[time, value]| [time - since, value]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_taken_over_a_second_at_least() {
        let samples = [[10.0, 100.0, 0.0], [10.5, 150.0, 5.0], [11.0, 300.0, 20.0], [13.0, 300.0, 40.0]];
        assert_eq!(rates(&samples, 1), [[10.0, 100.0], [11.0, 200.0], [13.0, 0.0]]);
        assert_eq!(rates(&samples, 2), [[10.0, 0.0], [11.0, 20.0], [13.0, 10.0]]);
        assert!(rates(&[], 1).is_empty());
    }

    #[test]
    fn a_queue_that_was_made_anew_is_counted_from_its_own_first_message() {
        let mut work = Work::default();
        let seen =
            [(0.0, 0.0), (5e9, 5e9 + 9.0), (5e9 + 8.0, 5e9 + 19.0), (9e9, 9e9 + 99.0), (9e9 + 50.0, 9e9 + 199.0)];
        let counted = seen.map(|(first, last)| work.taken_in(first, last));
        assert_eq!(counted, [0.0, 10.0, 20.0, 100.0, 200.0]);
    }

    #[test]
    fn recovery_is_the_start_of_the_first_time_with_as_many_answers_as_before() {
        let steady = |from: f64, count: usize| (0..count).map(move |number| from + number as f64 / 10.0);
        let answers: Vec<f64> = steady(0.0, 100).chain([12.0]).chain(steady(20.0, 50)).collect();
        assert_eq!(recovered(&answers, 10.0), Some(20.0));
        assert_eq!(recovered(&answers[..101], 10.0), None);
        assert_eq!(recovered(&[], 10.0), None);
        assert_eq!(counts(&[0.2, 0.9, 2.5]), [[1.0, 2.0], [2.0, 0.0], [3.0, 1.0]]);
    }
}
