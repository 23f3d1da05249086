//! Outages: times in which an instance cannot execute, for example because its process is being started again. The instance
//! takes no work during an outage. While all instances of a model are out, the worker announces the model as recovering, pulls no
//! work for it, and gives the requests that wait here back to the bus. Another worker may execute them; otherwise they wait
//! in the model's queue.
//!
//! Not here: how an instance recovers; that is its backend's business.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use trireme_bus::ModelState;

use crate::backend::Outage;
use crate::hosted::{HostedModel, Work};
use crate::models::Models;

/// How often an instance that is out checks whether its queue is closed, and how often the worker gives new deliveries back.
const LOOK: Duration = Duration::from_millis(100);

/// Pause before a delivery that was given back is delivered again.
const AGAIN: Duration = Duration::from_millis(100);

// === impl HostedModel ===

impl HostedModel {
    /// Waits on an instance's thread until the instance can execute or the queue is closed.
    pub(crate) fn wait_out(&self, outage: Option<&watch::Receiver<Outage>>) {
        let Some(mut outage) = outage.filter(|_| is_out(outage)).cloned() else { return };
        self.worker.tasks.runtime().block_on(async {
            while !self.queue.is_closed() {
                let over = outage.wait_for(Option::is_none);
                if tokio::time::timeout(LOOK, over).await.is_ok() {
                    return;
                }
            }
        });
    }

    /// Gives requests back to the bus that an instance took without knowing that it is out.
    pub(crate) fn return_work(self: &Arc<Self>, work: Vec<Work>) {
        let this = self.clone();
        self.settle(async move { this.hand_back_work(work, AGAIN).await });
    }
}

/// Whether an instance cannot execute now.
pub(crate) fn is_out(outage: Option<&watch::Receiver<Outage>>) -> bool {
    outage.is_some_and(|outage| outage.borrow().is_some())
}

/// Follows the outages of a model's instances for as long as the model is hosted.
pub(crate) async fn watch(models: Arc<Models>, model: Arc<HostedModel>, mut outages: Vec<watch::Receiver<Outage>>) {
    let mut told: Outage = None;
    loop {
        let now = all_out(&outages);
        if now != told {
            model.queue.pause(now.is_some());
            let state = match &now {
                Some(reason) => ModelState::Recovering(reason.to_string()),
                None => ModelState::Ready,
            };
            models.change(&model, state).await;
            told = now;
        }
        if told.is_some() {
            model.hand_back(AGAIN).await;
        }
        let changed = futures_util::future::select_all(outages.iter_mut().map(|outage| Box::pin(outage.changed())));
        let limit = if told.is_some() { LOOK } else { Duration::MAX };
        if let Ok((Err(_), ..)) = tokio::time::timeout(limit, changed).await {
            // An instance has ended: the model goes.
            return;
        }
    }
}

/// Why none of the instances can execute, if so.
fn all_out(outages: &[watch::Receiver<Outage>]) -> Outage {
    let mut reasons = outages.iter().map(|outage| outage.borrow().clone());
    let first = reasons.next().flatten();
    reasons.all(|reason| reason.is_some()).then_some(first).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_out_when_all_of_its_instances_are() {
        let senders: Vec<_> = (0..2).map(|_| watch::Sender::new(Outage::None)).collect();
        let outages: Vec<_> = senders.iter().map(watch::Sender::subscribe).collect();
        assert_eq!(all_out(&outages), None);
        senders[1].send_replace(Some("gone".into()));
        assert_eq!(all_out(&outages), None, "the first one works");
        senders[0].send_replace(Some("lost".into()));
        assert_eq!(all_out(&outages).as_deref(), Some("lost"));
    }
}
