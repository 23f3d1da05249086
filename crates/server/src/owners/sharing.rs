//! The counts of owners with limits that gateways send each other, so that a limit per minute holds at all gateways together.
//!
//! A gateway sends the total that it has admitted since it began, so the next message makes up for a lost one. For that, each change is sent
//! twice. The other gateways count the difference to the total before, in their own time.
//!
//! Not here: the messages' way, and when they are sent (the gateway).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::name::LONGEST_NAME;
use super::owner::Owners;
use super::rate::Tally;

/// After this time a gateway's counts of an owner are forgotten: all of them have lapsed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

/// Most owners of all other gateways together: more than any deployment has, so that made-up messages do not use up the memory.
const MOST_HEARD: usize = 100_000;

/// The counts that other gateways have sent.
#[derive(Debug, Default)]
pub struct Others {
    /// By gateway and owner.
    heard: HashMap<(String, String), Heard>,
    /// When old ones were last forgotten.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Heard {
    at: Instant,
    requests: u64,
    tokens: u64,
}

// === impl Owners ===

impl Owners {
    /// How much this gateway has admitted: of the owners for whom that has changed, or of all with something within the last minute. The
    /// flag says whether some of it has to be sent again.
    pub fn tell(&self, all: bool) -> (Vec<Tally>, bool) {
        let (mut tallies, mut again) = (Vec::new(), false);
        for owner in self.all() {
            if let Some((tally, more)) = owner.tell(all) {
                tallies.push(tally);
                again |= more;
            }
        }
        (tallies, again)
    }
}

// === impl Others ===

impl Others {
    /// Takes in a gateway's counts of owners.
    pub fn hear(&mut self, owners: &Owners, gateway: &str, tallies: Vec<Tally>, now: Instant) {
        self.sweep(now);
        for Tally { owner, requests, tokens } in tallies {
            let key = (gateway.to_owned(), owner);
            let before = self.heard.get(&key).map(|heard| (heard.requests, heard.tokens));
            if key.1.len() > LONGEST_NAME || before.is_none() && self.heard.len() >= MOST_HEARD {
                continue;
            }
            owners.named(&key.1.as_str().into()).hear(before, requests, tokens);
            self.heard.insert(key, Heard { at: now, requests: requests.total, tokens: tokens.total });
        }
    }

    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) > FORGOTTEN_AFTER) {
            self.heard.retain(|_, heard| now.saturating_duration_since(heard.at) < FORGOTTEN_AFTER);
            self.swept = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::Lane;

    use super::super::limits::OwnerLimits;
    use super::super::owner::Account;
    use super::*;

    fn account(owners: &Owners, name: &str, limits: &str) -> Account {
        let limits: OwnerLimits = limits.parse().unwrap();
        Account { owner: owners.named(&name.into()), limits, lane: Lane::Live }
    }

    /// Gateways that hear each other at once.
    struct Deployment(Vec<(Owners, Others)>);

    impl Deployment {
        fn of(gateways: usize) -> Deployment {
            Deployment((0..gateways).map(|_| Default::default()).collect())
        }

        /// Everybody tells, and the others hear it.
        fn tell(&mut self) {
            let now = Instant::now();
            for teller in 0..self.0.len() {
                let (tallies, _) = self.0[teller].0.tell(false);
                for listener in (0..self.0.len()).filter(|&listener| listener != teller) {
                    let (owners, others) = &mut self.0[listener];
                    others.hear(owners, &teller.to_string(), tallies.clone(), now);
                }
            }
        }
    }

    #[test]
    fn a_limit_holds_at_all_gateways_together() {
        for order in [[0, 1, 2], [0, 0, 0], [2, 2, 1]] {
            let mut deployment = Deployment::of(3);
            let accounts: Vec<_> =
                deployment.0.iter().map(|(owners, _)| account(owners, "alice", "rpm=30,tpm=1000")).collect();
            let mut admitted = 0;
            for round in 0..60 {
                if let Ok(request) = accounts[order[round % 3]].begin(true, 10) {
                    admitted += 1;
                    request.end(20);
                }
                deployment.tell();
            }
            assert_eq!(admitted, 30, "{order:?}");
            for account in &accounts {
                assert_eq!(account.requests().unwrap().remaining, 0);
                assert_eq!(account.tokens().unwrap().remaining, 400);
                let refused = account.begin(true, 10).unwrap_err();
                assert!(refused.to_string().contains("has sent 30 requests within a minute"), "{refused}");
                assert!(refused.retry_after > Duration::from_secs(50), "{refused:?}");
            }
        }
    }

    #[test]
    fn each_change_is_told_twice_and_then_nothing() {
        let owners = Owners::default();
        assert_eq!(owners.tell(false), (vec![], false));
        account(&owners, "alice", "rpm=5").begin(true, 0).unwrap().end(0);
        account(&owners, "bob", "in-flight=5").begin(true, 0).unwrap().end(0);
        let (first, again) = owners.tell(false);
        assert_eq!((first.len(), first[0].owner.as_str(), again), (1, "alice", true));
        assert_eq!(owners.tell(false), (first.clone(), false));
        assert_eq!(owners.tell(false), (vec![], false));
        assert_eq!(owners.tell(true), (first, false), "one that asks is told all");
    }

    #[test]
    fn a_gateway_that_was_silent_is_forgotten_and_heard_again() {
        let (there, here, mut others) = (Owners::default(), Owners::default(), Others::default());
        let (sender, receiver) = (account(&there, "a", "rpm=10"), account(&here, "a", "rpm=10"));
        let tell = |others: &mut Others, now| others.hear(&here, "there", there.tell(true).0, now);
        let begun = Instant::now();
        drop(sender.begin(true, 0).unwrap());
        tell(&mut others, begun);
        tell(&mut others, begun + FORGOTTEN_AFTER / 2);
        assert_eq!(receiver.requests().unwrap().remaining, 9);
        tell(&mut others, begun + 2 * FORGOTTEN_AFTER);
        assert_eq!(others.heard.len(), 1);
        let long = Tally { owner: "x".repeat(LONGEST_NAME + 1), ..there.tell(true).0.remove(0) };
        others.hear(&here, "there", vec![long], begun);
        assert_eq!(others.heard.len(), 1);
    }
}
