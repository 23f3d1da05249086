//! An owner's requests, as far as limits count them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use trireme_inference::Lane;

use super::limits::{Limits, OwnerLimits};
use super::name::ADMINISTRATOR;
use super::rate::{Amount, Rate, Tally};

/// The `Retry-After` of a client whose owner has too many requests in flight.
const IN_FLIGHT_PAUSE: Duration = Duration::from_secs(1);

/// How many times a change is sent to other gateways: a message may be lost.
const TIMES_TOLD: u8 = 2;

/// An owner.
#[derive(Debug)]
pub struct Owner {
    name: Arc<str>,
    since: Instant,
    counts: Mutex<Counts>,
    /// Notified when the counts of any owner have to be sent to other gateways.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Counts {
    requests: Rate,
    tokens: Rate,
    in_flight: u64,
    /// How many more times they have to be sent to other gateways.
    untold: u8,
}

/// All owners whose keys were used. Clones are the same. Nobody but the operator makes names of owners.
#[derive(Clone, Debug, Default)]
pub struct Owners(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    owners: Mutex<HashMap<Arc<str>, Arc<Owner>>>,
    changed: Arc<Notify>,
}

/// The owner of a request, with the limits and the lane that it counts in.
#[derive(Clone, Debug)]
pub struct Account {
    /// The owner.
    pub owner: Arc<Owner>,
    /// The limits of the owner.
    pub limits: OwnerLimits,
    /// The lane of the request.
    pub lane: Lane,
}

/// A request within its owner's limits. It is in flight until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Admitted {
    owner: Arc<Owner>,
    /// The tokens that were reserved, and the second in which they count.
    reserved: Option<(u64, u64)>,
    is_in_flight: bool,
}

/// A request is beyond a limit of its owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("owner '{owner}' {what} ({limit}): send the request again in {} s", retry_after.as_secs_f64().ceil())]
pub struct LimitReached {
    owner: Arc<str>,
    what: String,
    limit: String,
    /// After how long there is room.
    pub retry_after: Duration,
}

/// A limit per minute, for the headers of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateState {
    /// The limit.
    pub limit: u64,
    /// How much of it is left.
    pub remaining: u64,
    /// After how long all of it is there again, if nothing more is asked for.
    pub reset: Duration,
}

// === impl Owners ===

impl Owners {
    /// The account of a request by the key of this owner; `None` is an administrator, without limits.
    pub(crate) fn account(&self, owner: Option<&Arc<str>>, limits: &Limits, lane: Lane) -> Account {
        match owner {
            Some(name) => Account { owner: self.named(name), limits: limits.of(name), lane },
            None => self.unlimited(&ADMINISTRATOR.into(), None, lane),
        }
    }

    /// The account of a request that no limit of this owner counts; it has its share beside other owners.
    pub(crate) fn unlimited(&self, owner: &Arc<str>, weight: Option<u64>, lane: Lane) -> Account {
        Account { owner: self.named(owner), limits: OwnerLimits { weight, ..OwnerLimits::default() }, lane }
    }

    /// Waits until an owner's counts have to be sent to other gateways.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    pub(super) fn all(&self) -> Vec<Arc<Owner>> {
        self.0.owners.lock().values().cloned().collect()
    }

    /// The owner of this name.
    pub(super) fn named(&self, name: &Arc<str>) -> Arc<Owner> {
        let mut owners = self.0.owners.lock();
        if let Some(owner) = owners.get(name) {
            return owner.clone();
        }
        let changed = self.0.changed.clone();
        let owner = Arc::new(Owner { name: name.clone(), since: Instant::now(), counts: Mutex::default(), changed });
        owners.insert(name.clone(), owner.clone());
        owner
    }
}

// === impl Owner ===

impl Owner {
    /// The owner's name; empty where no key is asked for.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The counts that other gateways have to learn; with `all`, also those that were sent before. The flag says whether to send them again.
    pub(super) fn tell(&self, all: bool) -> Option<(Tally, bool)> {
        let (now, mut counts) = (self.since.elapsed(), self.counts.lock());
        let (requests, tokens) = (counts.requests.told(now), counts.tokens.told(now));
        let is_wanted = counts.untold > 0 || all && (requests.recent > 0 || tokens.recent > 0);
        counts.untold = counts.untold.saturating_sub(1);
        is_wanted.then(|| (Tally { owner: self.name.to_string(), requests, tokens }, counts.untold > 0))
    }

    /// Takes in another gateway's counts; `before` are the totals of requests and tokens that it sent last.
    pub(super) fn hear(&self, before: Option<(u64, u64)>, requests: Amount, tokens: Amount) {
        let (now, mut counts) = (self.since.elapsed(), self.counts.lock());
        counts.requests.hear(now, before.map(|before| before.0), requests);
        counts.tokens.hear(now, before.map(|before| before.1), tokens);
    }

    fn reached(&self, what: String, limit: String, retry_after: Duration) -> LimitReached {
        LimitReached { owner: self.name.clone(), what, limit, retry_after }
    }
}

// === impl Account ===

impl Account {
    /// The owner in the order of requests that wait.
    pub fn share(&self) -> trireme_inference::Owner {
        trireme_inference::Owner::new(&*self.owner.name, self.limits.share())
    }

    /// Takes a request in, if its owner's limits have room for it and for at most this many tokens. More tokens than the limit of a minute
    /// have room when no others count. `is_new`: it is no further part of a request that was taken in.
    pub fn begin(&self, is_new: bool, tokens: u64) -> Result<Admitted, LimitReached> {
        let owner = &self.owner;
        let OwnerLimits { requests_per_minute, tokens_per_minute, in_flight, weight: _ } = self.limits;
        let (now, mut counts) = (owner.since.elapsed(), owner.counts.lock());
        if let Some(limit) = in_flight.filter(|&limit| counts.in_flight >= limit) {
            let what = format!("has {} requests in flight, {limit} may be", counts.in_flight);
            return Err(owner.reached(what, format!("in-flight={limit}"), IN_FLIGHT_PAUSE));
        }
        if let Some(limit) = requests_per_minute.filter(|_| is_new)
            && counts.requests.sum(now) >= limit
        {
            let what = format!("has sent {} requests within a minute, {limit} may be sent", counts.requests.sum(now));
            return Err(owner.reached(what, format!("rpm={limit}"), counts.requests.until(now, limit - 1)));
        }
        let reserved = tokens_per_minute.map(|limit| (limit, tokens.min(limit)));
        if let Some((limit, wanted)) = reserved
            && counts.tokens.sum(now).saturating_add(wanted) > limit
        {
            let used = counts.tokens.sum(now);
            let what =
                format!("has used {used} tokens within a minute and may use {limit}, this request up to {tokens}");
            return Err(owner.reached(what, format!("tpm={limit}"), counts.tokens.until(now, limit - wanted)));
        }
        if requests_per_minute.is_some() && is_new {
            counts.requests.add(now, 1);
        }
        let reserved = reserved.map(|(_, wanted)| (wanted, counts.tokens.add(now, wanted)));
        let is_in_flight = in_flight.is_some();
        counts.in_flight += u64::from(is_in_flight);
        if requests_per_minute.is_some() && is_new || reserved.is_some() {
            counts.untold = TIMES_TOLD;
            owner.changed.notify_one();
        }
        Ok(Admitted { owner: owner.clone(), reserved, is_in_flight })
    }

    /// The limit of requests per minute, if there is one.
    pub fn requests(&self) -> Option<RateState> {
        Some(self.state(self.limits.requests_per_minute?, |counts| &mut counts.requests))
    }

    /// The limit of tokens per minute, if there is one.
    pub fn tokens(&self) -> Option<RateState> {
        Some(self.state(self.limits.tokens_per_minute?, |counts| &mut counts.tokens))
    }

    fn state(&self, limit: u64, rate: fn(&mut Counts) -> &mut Rate) -> RateState {
        let (now, mut counts) = (self.owner.since.elapsed(), self.owner.counts.lock());
        let rate = rate(&mut counts);
        RateState { limit, remaining: limit.saturating_sub(rate.sum(now)), reset: rate.until(now, 0) }
    }
}

// === impl Admitted ===

impl Admitted {
    /// The request has been answered and has had so many tokens, which count in place of the reserved ones. Without this the
    /// reserved ones go on counting: its client has left, and the tokens that it has had are not known.
    pub fn end(mut self, tokens: u64) {
        let Some((reserved, second)) = self.reserved.take() else { return };
        let (now, mut counts) = (self.owner.since.elapsed(), self.owner.counts.lock());
        match tokens.checked_sub(reserved) {
            Some(more) => drop(counts.tokens.add(now, more)),
            None => counts.tokens.take_back(second, reserved - tokens),
        }
        counts.untold = TIMES_TOLD;
        self.owner.changed.notify_one();
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.is_in_flight {
            self.owner.counts.lock().in_flight -= 1;
        }
    }
}

// === impl RateState ===

impl RateState {
    /// The headers of an answer, as OpenAI's clients read them. `what` is `requests` or `tokens`.
    pub fn headers(&self, what: &str) -> [(String, String); 3] {
        let name = |part: &str| format!("x-ratelimit-{part}-{what}");
        [
            (name("limit"), self.limit.to_string()),
            (name("remaining"), self.remaining.to_string()),
            (name("reset"), short(self.reset)),
        ]
    }
}

/// A time as OpenAI's headers have it: `6m0s`, `8.64s`, `120ms`.
fn short(time: Duration) -> String {
    let millis = time.as_millis();
    match (millis / 60_000, millis % 60_000) {
        (0, millis) if millis < 1000 => format!("{millis}ms"),
        (0, millis) => format!("{}s", millis as f64 / 1000.0),
        (minutes, millis) => format!("{minutes}m{}s", millis as f64 / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn account(limits: &str) -> Account {
        let owner = Owners::default().named(&"alice".into());
        Account { owner, limits: limits.parse().unwrap(), lane: Lane::Live }
    }

    #[test]
    fn requests_of_the_same_instant_do_not_pass_a_limit() {
        for (limits, tokens, expected) in
            [("rpm=5", 0, 5), ("in-flight=5", 0, 5), ("tpm=100", 20, 5), ("tpm=100,rpm=3", 20, 3)]
        {
            let (account, barrier, passed) = (account(limits), Barrier::new(24), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for _ in 0..24 {
                    scope.spawn(|| {
                        barrier.wait();
                        let admitted = account.begin(true, tokens);
                        passed.fetch_add(u64::from(admitted.is_ok()), Ordering::Relaxed);
                        // All of them are in flight together.
                        barrier.wait();
                    });
                }
            });
            assert_eq!(passed.into_inner(), expected, "{limits}");
        }
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_dropped() {
        let account = account("in-flight=1");
        let first = account.begin(true, 0).unwrap();
        let refused = account.begin(true, 0).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "owner 'alice' has 1 requests in flight, 1 may be (in-flight=1): send the request again in 1 s"
        );
        first.end(7);
        drop(account.begin(true, 0).unwrap());
        drop(account.begin(true, 0).unwrap());
    }

    #[test]
    fn tokens_of_an_answer_count_in_place_of_those_reserved() {
        let account = account("tpm=100");
        let left = || account.tokens().unwrap().remaining;
        let first = account.begin(true, 80).unwrap();
        let refused = account.begin(true, 21).unwrap_err();
        assert!(refused.to_string().contains("has used 80 tokens within a minute and may use 100"), "{refused}");
        assert!(refused.retry_after > Duration::from_secs(50), "{refused:?}");
        first.end(30);
        assert_eq!(left(), 70);
        account.begin(true, 70).unwrap().end(90);
        assert_eq!(left(), 0, "30 and 90");
        assert!(account.begin(true, 1).is_err());
    }

    #[test]
    fn a_request_above_the_limit_of_a_minute_runs_alone() {
        let account = account("tpm=100");
        account.begin(true, 5000).unwrap().end(90);
        assert!(account.begin(true, 5000).is_err(), "others count");
        assert_eq!(account.tokens().unwrap().remaining, 10);
        // Its client has left.
        drop(account.begin(true, 10).unwrap());
        assert_eq!(account.tokens().unwrap().remaining, 0);
    }

    #[test]
    fn parts_of_a_request_are_one_request() {
        let account = account("rpm=1");
        account.begin(true, 0).unwrap().end(0);
        account.begin(false, 0).unwrap().end(0);
        assert!(account.begin(true, 0).is_err());
        let RateState { limit, remaining, reset } = account.requests().unwrap();
        assert_eq!((limit, remaining), (1, 0));
        assert!(reset > Duration::from_secs(58) && reset <= Duration::from_secs(61), "{reset:?}");
    }

    #[test]
    fn headers_have_the_shapes_of_openais() {
        let state = RateState { limit: 60, remaining: 59, reset: Duration::from_millis(8640) };
        let headers = state.headers("requests").map(|(name, value)| format!("{name}: {value}"));
        let expected = [
            "x-ratelimit-limit-requests: 60",
            "x-ratelimit-remaining-requests: 59",
            "x-ratelimit-reset-requests: 8.64s",
        ];
        assert_eq!(headers, expected);
        for (millis, text) in [(0, "0ms"), (120, "120ms"), (1000, "1s"), (60_000, "1m0s"), (360_500, "6m0.5s")] {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
    }
}
