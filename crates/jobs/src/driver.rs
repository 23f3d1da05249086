//! Follows the store of jobs: runs what this gateway owns, and takes over the jobs of gateways that are gone.

mod care;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, JoinSet};
use trireme_bus::{Bucket, Bus, Change, Entry, queue_pause};

use crate::call::Execute;
use crate::id::Id;
use crate::index::Index;
use crate::jobs::{Client, Jobs, JobsState, Options};
use crate::pace::Paces;
use crate::record::{Asked, BatchState, Counts, Record, Step};
use crate::room::Rooms;
use crate::statistics::Statistics;
use crate::store::new_id;
use crate::turns::{Turn, Turns, until};
use crate::{batch, store};

/// How often the owners of other jobs are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How long after a job's run the watch may show its outcome, before the job is run again.
const AGAIN: Duration = Duration::from_secs(2);

/// Most webhooks that are called at the same time, calls that take longer than [`QUICK`] not among them: their receivers delay nobody
/// else's.
const CALLS: usize = 512;
const QUICK: Duration = Duration::from_secs(1);

/// Most calls of webhooks that have not ended.
const OPEN_CALLS: usize = 4096;

/// A job whose last gateway ended before it got on is begun while no other one of the kind is: it may have ended its gateway. The next one
/// begins when it has got on, or after this time.
const TRIAL: Duration = Duration::from_secs(30);

/// A job with something left to do. Most jobs are requests that wait, so what others have lies in a box.
enum Open {
    /// The next step of a job of this gateway begins at this time, in seconds since 1970.
    Later(Box<Step>, u64),
    /// A request of this gateway that waits for its turn, or to be tried again.
    Waits,
    /// This gateway runs it.
    Runs(Box<Running>),
    /// This gateway calls its webhook, after so many calls before.
    Calls { task: AbortHandle, attempts: u32 },
    /// Its run is over. It is run again at this time, in seconds since 1970, unless the watch shows its outcome before.
    Ran(Box<Step>, u64),
    /// Another gateway owns it.
    Others(Arc<str>),
}

/// A job that this gateway runs.
struct Running {
    task: AbortHandle,
    step: Step,
    /// A batch hears on it that it was cancelled.
    stop: Option<tokio::sync::watch::Sender<bool>>,
}

/// The end of a task.
struct Ended {
    id: Id,
    /// The request, if it was refused and is to be tried again.
    again: Option<Turn<Id>>,
}

/// The end of a task that looks after the store.
enum Cared {
    Done,
    /// Files that were to be deleted, when, and when they are to be looked at again.
    Swept(Vec<(Id, u64, Option<u64>)>),
}

struct Driver {
    jobs: Jobs,
    open: HashMap<Id, Open>,
    /// The names of other gateways that own jobs, or did.
    gateways: HashSet<Arc<str>>,
    /// The batches of this gateway that have not ended.
    batches: HashMap<Id, (BatchState, Counts)>,
    /// Jobs whose last gateway ended before they got on, and the one that is tried since this time.
    suspects: HashSet<Id>,
    trial: Option<(Id, Instant)>,
    /// The files that gateways delete, of any gateway, and when; and the jobs that lapse while their webhooks wait.
    expiring: HashMap<Id, u64>,
    lapsing: BTreeSet<(u64, Id)>,
    /// Requests of this gateway by their destinations, oldest first. Some may have ended since.
    turns: Turns<Id>,
    /// The jobs of this gateway that are run, or run again, at a time: when, and the id.
    later: BTreeSet<(u64, Id)>,
    /// The webhooks that are due at a time: when, how many calls there were, and the id.
    webhooks: BTreeSet<(u64, u32, Id)>,
    running: JoinSet<Ended>,
    /// The tasks of requests; those of batches are not counted.
    requests: HashSet<tokio::task::Id>,
    /// The tasks that call webhooks.
    calls: HashMap<tokio::task::Id, Instant>,
    /// When the reserve of the store is looked after next.
    reserve_at: Instant,
    /// The tasks that look after the store, beside everything else: at most one of each.
    caring: JoinSet<Cared>,
    filling: Option<AbortHandle>,
    sweeping: Option<AbortHandle>,
    taking_over: Option<AbortHandle>,
}

// === impl Jobs ===

impl Jobs {
    /// Opens the store of jobs and runs what belongs to this gateway until the returned future is dropped.
    pub fn open(
        bus: Arc<dyn Bus>,
        own: &str,
        execute: Arc<dyn Execute>,
        options: Options,
    ) -> (Jobs, impl Future<Output = ()> + Send + 'static) {
        let paces = Paces::new(options.max_in_flight);
        let index = Arc::new(Index::new(bus.clone(), options.time_to_live, options.quotas.requests.is_some()));
        let (ended, _) = tokio::sync::broadcast::channel(1024);
        let jobs = Jobs(
            Arc::new(JobsState {
                bus,
                own: own.to_owned(),
                process: new_id("").split_off(16),
                rooms: Rooms::new(options.max_bytes, execute.clone()),
                execute,
                options,
                paces,
                counters: Default::default(),
                index,
                reserve_is_short: true.into(),
                ended,
            }),
            Client::Everybody,
        );
        (jobs.clone(), run(jobs))
    }

    /// How much durable work this gateway has. The load is that of the last second.
    pub fn statistics(&self) -> Statistics {
        self.0.counters.read(self.0.paces.limit() as u64)
    }
}

/// Runs jobs until it is dropped.
async fn run(jobs: Jobs) {
    let paces = jobs.0.paces.clone();
    let mut driver = Driver {
        turns: Turns::new(&paces),
        jobs,
        open: HashMap::new(),
        gateways: HashSet::new(),
        batches: HashMap::new(),
        suspects: HashSet::new(),
        trial: None,
        expiring: HashMap::new(),
        lapsing: BTreeSet::new(),
        later: BTreeSet::new(),
        webhooks: BTreeSet::new(),
        running: JoinSet::new(),
        requests: HashSet::new(),
        calls: HashMap::new(),
        reserve_at: Instant::now(),
        caring: JoinSet::new(),
        filling: None,
        sweeping: None,
        taking_over: None,
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    driver.count_load();
    // Watches that have failed since the last one that has shown all records.
    let mut failures = 0;
    loop {
        if failures > 0 {
            tokio::time::sleep(queue_pause(failures - 1)).await;
        }
        failures = failures.saturating_add(1);
        let watch = driver.jobs.0.bus.watch(Bucket::Jobs).await;
        let mut changes = match watch {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "the store of jobs cannot be followed; trying again");
                continue;
            }
        };
        loop {
            let room = paces.changed();
            driver.begin_due();
            driver.begin();
            driver.call_webhooks();
            let again = driver.turns.next_at(Instant::now());
            tokio::select! {
                change = changes.recv() => match change {
                    Some(Change::Put(entry)) => {
                        driver.jobs.0.index.see(entry.revision);
                        driver.put(&entry);
                    }
                    Some(Change::Deleted { key, revision }) => {
                        driver.jobs.0.index.see(revision);
                        driver.jobs.0.index.remove(&key);
                        driver.close(&Id::from(key.as_str()));
                    }
                    Some(Change::Complete) => {
                        driver.jobs.0.index.complete();
                        failures = 0;
                    }
                    None => break,
                },
                Some(ended) = driver.running.join_next_with_id() => driver.ended(ended),
                Some(cared) = driver.caring.join_next() => driver.cared(cared),
                () = room => {}
                () = until(again) => {}
                _ = tick.tick() => {
                    driver.take_over();
                    driver.sweep();
                    driver.drop_lapsed();
                    driver.keep_reserve();
                    driver.count_load();
                }
            }
        }
    }
}

// === impl Driver ===

impl Driver {
    fn put(&mut self, entry: &Entry) {
        let record = match store::decode(&entry.value) {
            Ok(record) => record,
            Err(error) => return tracing::warn!(job = entry.key, %error, "a job that cannot be read is left alone"),
        };
        // Ids have no characters that keys escape.
        let id = Id::from(entry.key.as_str());
        self.jobs.0.index.put(&entry.key, &record, entry.revision);
        if let Record::File(file) = &record {
            match file.expires.filter(|_| !file.lapses()) {
                Some(at) => self.expiring.insert(id, at),
                None => self.expiring.remove(&id),
            };
            return;
        }
        let (Some(owner), Some((step, at))) = (record.open_for(), record.step()) else { return self.close(&id) };
        if let Some(end) = record.lapses(self.jobs.0.options.time_to_live) {
            self.lapsing.insert((end, id.clone()));
        }
        if owner != self.jobs.0.own {
            self.close(&id);
            let owner = self.gateway(owner);
            self.open.insert(id, Open::Others(owner));
            return;
        }
        if step == Step::Webhook {
            let attempts = record.webhook().map_or(0, |webhook| webhook.attempts);
            if !matches!(self.open.get(&id), Some(Open::Calls { attempts: own, .. }) if *own == attempts) {
                // It has ended, or a call has.
                self.close(&id);
                self.webhooks.insert((at, attempts, id.clone()));
                self.open.insert(id, Open::Later(Box::new(step), at));
            }
            return;
        }
        if let Record::Batch(batch) = &record {
            self.batches.insert(id.clone(), (batch.state, batch.progress()));
        }
        if record.is_suspect(&self.jobs.0.process) {
            self.suspects.insert(id.clone());
        } else if record.has_got_on() {
            self.clear(&id);
        }
        match (self.open.get(&id), &record) {
            (Some(Open::Runs(running)), Record::Batch(batch)) => {
                let Some(stop) = &running.stop else { return };
                stop.send_if_modified(|stop| {
                    let cancelled = batch.state == BatchState::Cancelling && !*stop;
                    *stop |= cancelled;
                    cancelled
                });
            }
            (Some(Open::Runs(_) | Open::Waits | Open::Ran(..)), _) => {}
            _ if at > self.jobs.now() => {
                self.later.insert((at, id.clone()));
                self.open.insert(id, Open::Later(Box::new(step), at));
            }
            _ => self.run(id, step),
        }
    }

    /// The name of another gateway, which all of its jobs share.
    fn gateway(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.gateways.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.gateways.insert(name.clone());
        name
    }

    /// Begins the jobs whose time has come.
    fn begin_due(&mut self) {
        let now = self.jobs.now();
        while let Some((at, id)) = self.later.pop_first() {
            if at > now {
                self.later.insert((at, id));
                return;
            }
            // It may have been cancelled or taken over meanwhile.
            if let Some(Open::Later(step, own) | Open::Ran(step, own)) = self.open.get(&id)
                && *own == at
            {
                let step = (**step).clone();
                self.run(id, step);
            }
        }
    }

    /// Runs a job whose time has come.
    fn run(&mut self, id: Id, step: Step) {
        if self.suspects.contains(&id) {
            let is_other = |(trial, since): &(Id, Instant)| *trial != id && since.elapsed() < TRIAL;
            if self.trial.as_ref().is_some_and(is_other) {
                let at = self.jobs.now() + AGAIN.as_secs();
                self.later.insert((at, id.clone()));
                self.open.insert(id, Open::Ran(Box::new(step), at));
                return;
            }
            self.trial = Some((id.clone(), Instant::now()));
        }
        match step {
            Step::Request(asked) => {
                self.open.insert(id.clone(), Open::Waits);
                let owner = self.jobs.owner(&asked.client);
                self.turns.push(asked.destination, owner, asked.bytes, id);
            }
            Step::Batch => self.run_batch(id),
            Step::Webhook => {}
        }
    }

    /// Calls as many of the webhooks that are due as may be called at the same time.
    fn call_webhooks(&mut self) {
        let now = self.jobs.now();
        let quick = self.calls.values().filter(|since| since.elapsed() < QUICK).count();
        let mut room = CALLS.saturating_sub(quick).min(OPEN_CALLS.saturating_sub(self.calls.len()));
        while room > 0
            && let Some((at, attempts, id)) = self.webhooks.pop_first()
        {
            if at > now {
                self.webhooks.insert((at, attempts, id));
                return;
            }
            if !matches!(self.open.get(&id), Some(Open::Later(step, own)) if **step == Step::Webhook && *own == at) {
                continue;
            }
            let (jobs, own) = (self.jobs.clone(), id.clone());
            let task = self.running.spawn(async move {
                if let Err(error) = jobs.call_webhook(&own.to_string()).await {
                    tracing::warn!(job = %own, %error, "a webhook could not be called, because of the store; trying again");
                }
                Ended { id: own, again: None }
            });
            self.calls.insert(task.id(), Instant::now());
            room -= 1;
            self.open.insert(id, Open::Calls { task, attempts });
        }
    }

    /// Forgets a job that has ended or belongs to another gateway; stops running it.
    fn close(&mut self, id: &Id) {
        self.expiring.remove(id);
        self.batches.remove(id);
        self.clear(id);
        match self.open.remove(id) {
            Some(Open::Runs(running)) => running.task.abort(),
            // A webhook is not among them.
            Some(Open::Later(_, at) | Open::Ran(_, at)) => drop(self.later.remove(&(at, id.clone()))),
            // A call ends by itself: its record may be written and its result not counted yet.
            Some(Open::Calls { .. } | Open::Waits | Open::Others(_)) | None => {}
        }
        // An error says that nobody waits for it.
        let _ = self.jobs.0.ended.send(id.to_string());
    }

    /// Begins as many waiting requests as the pace of their destinations allows.
    fn begin(&mut self) {
        while let Some((turn, slot)) = self.turns.begin(Instant::now()) {
            let id = turn.item.clone();
            if !matches!(self.open.get(&id), Some(Open::Waits)) {
                continue;
            }
            let (destination, client) = (turn.destination.clone(), turn.owner.name.clone());
            let step = Step::Request(Asked { destination, client, bytes: turn.bytes.into() });
            let jobs = self.jobs.clone();
            let task = self.running.spawn(async move {
                let refused = jobs.run_request(&turn.item.to_string(), &slot).await.unwrap_or_else(|error| {
                    tracing::warn!(request = %turn.item, %error, "a durable request could not be run; trying again");
                    false
                });
                Ended { id: turn.item.clone(), again: refused.then_some(turn) }
            });
            self.requests.insert(task.id());
            self.open.insert(id, Open::Runs(Box::new(Running { task, step, stop: None })));
        }
    }

    /// A job is suspect no more.
    fn clear(&mut self, id: &Id) {
        self.suspects.remove(id);
        if self.trial.take_if(|(trial, _)| trial == id).is_some() {
            // The next one begins at once.
            let waits = |id: &Id| match self.open.get(id) {
                Some(Open::Ran(step, at)) => Some((id.clone(), step.clone(), *at)),
                _ => None,
            };
            if let Some((next, step, at)) = self.suspects.iter().find_map(waits) {
                self.later.remove(&(at, next.clone()));
                self.later.insert((0, next.clone()));
                self.open.insert(next, Open::Ran(step, 0));
            }
        }
    }

    fn run_batch(&mut self, id: Id) {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (jobs, own) = (self.jobs.clone(), id.clone());
        let task = self.running.spawn(async move {
            if let Err(error) = batch::run(&jobs, &own.to_string(), stopped).await {
                tracing::warn!(batch = %own, %error, "a batch could not go on; trying again from its checkpoint");
            }
            Ended { id: own, again: None }
        });
        self.open.insert(id, Open::Runs(Box::new(Running { task, step: Step::Batch, stop: Some(stop) })));
    }

    /// Notes that a task is over. The outcome of its job is what the watch shows, not what the task says: the task may have read the record
    /// from a broker that is behind the others, so that it was missing or had another owner.
    fn ended(&mut self, ended: Result<(tokio::task::Id, Ended), tokio::task::JoinError>) {
        let task = match &ended {
            Ok((task, _)) => *task,
            Err(error) => error.id(),
        };
        self.requests.remove(&task);
        self.calls.remove(&task);
        let Ended { id, again } = match ended {
            Ok((_, ended)) => ended,
            Err(error) if error.is_panic() => return self.died(task, &error),
            Err(_) => return,
        };
        let at = self.jobs.now() + AGAIN.as_secs();
        match (self.open.get(&id), again) {
            (Some(Open::Runs(running)), Some(turn)) if running.task.id() == task => {
                self.turns.push_refused(turn, Instant::now());
                self.open.insert(id, Open::Waits);
            }
            (Some(Open::Runs(running)), None) if running.task.id() == task => {
                let step = Box::new(running.step.clone());
                self.later.insert((at, id.clone()));
                self.open.insert(id, Open::Ran(step, at));
            }
            (Some(Open::Calls { task: own, attempts }), _) if own.id() == task => {
                self.webhooks.insert((at, *attempts, id.clone()));
                self.open.insert(id, Open::Later(Box::new(Step::Webhook), at));
            }
            _ => {}
        }
    }

    /// Ends the job of a task that has panicked. It would panic again.
    fn died(&mut self, task: tokio::task::Id, error: &tokio::task::JoinError) {
        let of_task = |open: &Open| match open {
            Open::Runs(running) if running.task.id() == task => Some(running.step.clone()),
            Open::Calls { task: own, .. } if own.id() == task => Some(Step::Webhook),
            _ => None,
        };
        let found = self.open.iter().find_map(|(id, open)| Some((id.clone(), of_task(open)?)));
        let Some((id, step)) = found else { return tracing::error!(%error, "a job died") };
        tracing::error!(job = %id, %error, "a job died");
        let (jobs, own) = (self.jobs.clone(), id.clone());
        let task = self.running.spawn(async move {
            if let Err(error) = jobs.fail(&own.to_string()).await {
                tracing::warn!(job = %own, %error, "a job that has died could not be ended yet");
            }
            Ended { id: own, again: None }
        });
        self.open.insert(id, Open::Runs(Box::new(Running { task, step, stop: None })));
    }
}
