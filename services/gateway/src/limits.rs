//! Limits of owners over all gateways: each gateway tells the others its admitted amounts, and counts theirs.
//!
//! A message goes at most every [`TELL_EVERY`], and only after an owner with a limit per minute was admitted. So no request waits for the
//! bus, and a limit is exceeded at most by the amounts that the other gateways admit until they hear that it is reached. The amounts of a
//! gateway that has ended lapse within a minute. While the bus cannot be reached each gateway counts alone, and tells the others afterwards.
//!
//! Not here: the counts (`trireme_server::owners`). Requests in flight are counted at each gateway.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use trireme_bus::{Bus, BusError, Connection};
use trireme_runtime::TaskSet;
use trireme_server::owners::{Others, Owners, Tally};

/// The topic.
const ADMITTED: &str = "admitted";

/// Least time between two messages of a gateway.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// A message of a gateway to the others.
#[derive(Serialize, Deserialize)]
struct Told {
    /// The gateway's process, by a name that no other one has or had.
    gateway: String,
    /// Whether it may have missed messages: the others then tell all that they have admitted within a minute.
    asks: bool,
    owners: Vec<Tally>,
}

/// A gateway's part in that.
struct Sharing {
    bus: Arc<dyn Bus>,
    own: String,
    owners: Owners,
    others: Others,
    /// Whether it has to ask the others, and to tell all.
    asks: bool,
    tells_all: bool,
}

/// Tells other gateways the admitted amounts of `owners`, and counts theirs, for as long as `tasks` runs. `own` is the name of this
/// process. Nothing is done where the process is alone on its bus.
pub async fn share(bus: Arc<dyn Bus>, own: &str, owners: &Owners, tasks: &TaskSet) -> Result<(), BusError> {
    if !bus.is_shared() {
        return Ok(());
    }
    let mut heard = bus.subscribe(ADMITTED).await?;
    // A name may come again; with another start it does not.
    let own = format!("{own}-{}", bus.now().0);
    let owners = owners.clone();
    let mut sharing = Sharing { bus, own, owners, others: Others::default(), asks: true, tells_all: false };
    tasks.spawn_until_stop("limits of owners", async move {
        let mut connection = sharing.bus.connection();
        let (mut has_news, mut due) = (true, Instant::now());
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(due), if has_news => {
                    has_news = sharing.tell().await;
                    due = Instant::now() + TELL_EVERY;
                }
                () = sharing.owners.changed(), if !has_news => has_news = true,
                told = heard.recv() => {
                    let Some(told) = told else { return };
                    has_news |= sharing.hear(&told.body);
                }
                // Messages may be lost while the connection is.
                Ok(()) = connection.changed() => {
                    sharing.asks |= matches!(*connection.borrow_and_update(), Connection::Up(_));
                    sharing.tells_all |= sharing.asks;
                    has_news |= sharing.asks;
                }
            }
        }
    });
    Ok(())
}

// === impl Sharing ===

impl Sharing {
    /// Tells the others the changed amounts. Returns whether there is more to tell.
    async fn tell(&mut self) -> bool {
        let (owners, again) = self.owners.tell(self.tells_all);
        if owners.is_empty() && !self.asks {
            self.tells_all = false;
            return false;
        }
        let told = Told { gateway: self.own.clone(), asks: self.asks, owners };
        let body = serde_json::to_vec(&told).map(Bytes::from).unwrap_or_default();
        match self.bus.publish_to(ADMITTED, body).await {
            Ok(()) => {
                (self.asks, self.tells_all) = (false, false);
                again
            }
            Err(error) => {
                tracing::debug!(%error, "other gateways could not be told what owners were admitted");
                self.tells_all = true;
                true
            }
        }
    }

    /// Takes in a message. Returns whether there is something to tell.
    fn hear(&mut self, body: &[u8]) -> bool {
        let told: Told = match serde_json::from_slice(body) {
            Ok(told) => told,
            Err(error) => {
                tracing::warn!(%error, "ignored a malformed message about limits of owners");
                return false;
            }
        };
        if told.gateway == self.own {
            return false;
        }
        self.others.hear(&self.owners, &told.gateway, told.owners, Instant::now().into_std());
        self.tells_all |= told.asks;
        told.asks
    }
}
