//! Finds requests that the broker has lost. Until a request is answered, its gateway is responsible for it. A broker
//! can lose a message that it has confirmed: when the broker is gone, or when a stream was emptied, created again or
//! rolled back.
//!
//! From publishing to the answer, a request is in the queue of one of its steps, waiting or delivered to a worker. A
//! worker settles its delivery only after the next queue has confirmed the work, and the gateway itself settles the
//! last delivery. So the reconciler looks for a request that has no answer for a while in the queues of its route, in
//! their order. A request that is in none of them, twice in a row, is lost, and its flight publishes it again with its
//! next id.
//!
//! For all requests together, the reconciler asks the broker once for each queue.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_bus::{Bus, BusError, Connection, original_id};
use trireme_inference::{ModelKey, Route};
use trireme_runtime::TaskSet;

/// A request is not looked for until this long after it was published: nearly all are answered by then.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The same after the connection to the broker was lost: the gateway soon gets the answers that the broker still has.
pub(super) const PATIENCE_AFTER_LOSS: Duration = Duration::from_millis(300);

/// Time between two looks at the queues.
const PERIOD: Duration = Duration::from_secs(1);

/// Number of looks in a row that have to miss a request. A request that moves to the next queue during a look may be
/// missed once.
const LOOKS: u32 = 2;

/// Most requests that are published again after one look, so that a broker that has just come back is not flooded. The others are
/// published after the next looks.
const MOST_AT_ONCE: usize = 4096;

/// The requests of a gateway that are looked for. Clones are the same.
#[derive(Clone)]
pub(super) struct Reconciler {
    sought: Arc<Mutex<HashMap<u64, Sought>>>,
    next: Arc<std::sync::atomic::AtomicU64>,
    begun: Arc<Notify>,
}

/// The search for a request; it ends when this is dropped.
pub(super) struct Search {
    reconciler: Reconciler,
    number: u64,
    lost: Arc<Notify>,
}

struct Sought {
    /// The id without the suffix of a request that was sent again.
    request_id: String,
    /// The queues of its steps in order, each with the request's level.
    queues: Vec<(ModelKey, u32)>,
    missed: u32,
    lost: Arc<Notify>,
}

// === impl Reconciler ===

impl Reconciler {
    /// Looks for the requests of `gateway` for as long as `tasks` runs.
    pub fn start(bus: Arc<dyn Bus>, gateway: &str, tasks: &TaskSet) -> Reconciler {
        let reconciler = Reconciler { sought: Arc::default(), next: Arc::default(), begun: Arc::new(Notify::new()) };
        let (this, gateway) = (reconciler.clone(), gateway.to_owned());
        tasks.spawn_until_stop("reconcile", async move {
            loop {
                this.look(bus.as_ref(), &gateway).await;
            }
        });
        reconciler
    }

    /// Starts to look for a request.
    pub fn seek(&self, request_id: &str, route: &Route) -> Search {
        let queues = route.remaining().iter().map(|step| (step.model.clone(), step.level)).collect();
        let (number, lost) = (self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed), Arc::new(Notify::new()));
        let request_id = original_id(request_id).to_owned();
        self.sought.lock().insert(number, Sought { request_id, queues, missed: 0, lost: lost.clone() });
        self.begun.notify_one();
        Search { reconciler: self.clone(), number, lost }
    }

    async fn look(&self, bus: &dyn Bus, gateway: &str) {
        if self.sought.lock().is_empty() {
            self.begun.notified().await;
        }
        if *bus.connection().borrow() != Connection::Down {
            let queues = in_order(self.sought.lock().values());
            let mut found = HashMap::new();
            for (model, levels) in queues {
                let levels: Vec<u32> = levels.into_iter().collect();
                let requests = bus.unsettled(&model, &levels, gateway).await;
                if let Err(error) = &requests {
                    tracing::debug!(%model, %error, "a queue cannot be looked at; its requests are not taken for lost");
                }
                found.insert(model, requests.map(|ids| ids.iter().map(|id| original_id(id).to_owned()).collect()));
            }
            self.judge(&found);
        }
        tokio::time::sleep(PERIOD).await;
    }

    fn judge(&self, found: &HashMap<ModelKey, Result<HashSet<String>, BusError>>) {
        let mut lost = 0;
        for sought in self.sought.lock().values_mut() {
            match is_missing(sought, found) {
                Some(true) => sought.missed += 1,
                // The request was found, or a queue could not be read.
                None | Some(false) => sought.missed = 0,
            }
            if sought.missed >= LOOKS && lost < MOST_AT_ONCE {
                (sought.missed, lost) = (0, lost + 1);
                sought.lost.notify_one();
            }
        }
        if lost > 0 {
            tracing::info!(requests = lost, "requests that are in none of their queues are published again");
        }
    }
}

// === impl Search ===

impl Search {
    /// Waits until the search has found that the request is lost. Cancel safe.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.reconciler.sought.lock().remove(&self.number);
    }
}

/// The queues to read, with the levels to read in each; queues of earlier steps come first. A request only moves from
/// one queue to a later one, so a request that is in any of them is found.
fn in_order<'a>(sought: impl Iterator<Item = &'a Sought>) -> Vec<(ModelKey, std::collections::BTreeSet<u32>)> {
    let mut queues: BTreeMap<ModelKey, (usize, std::collections::BTreeSet<u32>)> = BTreeMap::new();
    for sought in sought {
        for (place, (model, level)) in sought.queues.iter().enumerate() {
            let queue = queues.entry(model.clone()).or_default();
            queue.0 = queue.0.max(place);
            queue.1.insert(*level);
        }
    }
    let mut queues: Vec<_> = queues.into_iter().collect();
    queues.sort_by_key(|(_, (place, _))| *place);
    queues.into_iter().map(|(model, (_, levels))| (model, levels)).collect()
}

/// Whether the request is missing from all of its queues. `None` if a queue was not read, or could not be read.
fn is_missing(sought: &Sought, found: &HashMap<ModelKey, Result<HashSet<String>, BusError>>) -> Option<bool> {
    let mut all_seen = true;
    for (model, _) in &sought.queues {
        match found.get(model) {
            Some(Ok(requests)) if requests.contains(&sought.request_id) => return Some(false),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => all_seen = false,
        }
    }
    all_seen.then_some(true)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn key(name: &str) -> ModelKey {
        ModelKey { name: name.into(), version: 1 }
    }

    fn sought(id: &str, models: &[&str]) -> Sought {
        let queues = models.iter().map(|name| (key(name), 0)).collect();
        Sought { request_id: id.to_owned(), queues, missed: 0, lost: Arc::new(Notify::new()) }
    }

    #[test]
    fn a_request_is_missing_when_all_its_queues_are_known_to_lack_it() {
        let lost = || Err(BusError::Unreachable("away".to_owned()));
        let has = |ids: &[&str]| Ok(ids.iter().map(|id| (*id).to_owned()).collect::<HashSet<_>>());
        let found = HashMap::from([(key("a"), has(&["1"])), (key("b"), has(&[])), (key("c"), lost())]);
        assert_eq!(is_missing(&sought("1", &["a", "b"]), &found), Some(false));
        assert_eq!(is_missing(&sought("2", &["a", "b"]), &found), Some(true));
        assert_eq!(is_missing(&sought("2", &["b", "c"]), &found), None, "it may be where nobody can look");
        assert_eq!(is_missing(&sought("1", &["a", "c"]), &found), Some(false), "it was found");
        assert_eq!(is_missing(&sought("2", &["d"]), &found), None, "it began to be sought meanwhile");
    }

    #[tokio::test]
    async fn lost_requests_are_published_again_in_portions() {
        let reconciler = Reconciler { sought: Arc::default(), next: Arc::default(), begun: Arc::new(Notify::new()) };
        let lost: Vec<_> = (0..MOST_AT_ONCE as u64 + 1)
            .map(|number| {
                let sought = sought(&number.to_string(), &["a"]);
                let lost = sought.lost.clone();
                reconciler.sought.lock().insert(number, sought);
                lost
            })
            .collect();
        let found = HashMap::from([(key("a"), Ok(HashSet::new()))]);
        let published = || {
            reconciler.judge(&found);
            lost.iter().filter(|lost| lost.notified().now_or_never().is_some()).count()
        };
        assert_eq!([published(), published(), published()], [0, MOST_AT_ONCE, 1]);
    }

    #[test]
    fn queues_of_earlier_steps_are_looked_at_first() {
        let all = [sought("1", &["z", "m", "a"]), sought("2", &["m", "a"])];
        let order: Vec<_> = in_order(all.iter()).into_iter().map(|(model, _)| model.name).collect();
        assert_eq!(order, ["z", "m", "a"]);
    }
}
