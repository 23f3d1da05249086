//! Outages of a whole model: while none of its instances can execute, the worker announces the model as recovering, pulls no
//! work for it, and gives the requests that wait here back to the bus. Another worker may execute them; otherwise they wait
//! in the model's queue.
//!
//! Not here: the outage of one instance (`engine`), and how an instance recovers; that is its backend's business.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use trireme_engine::{Outage, all_out};

use super::Models;
use crate::hosted::HostedModel;

/// How often the worker gives new deliveries back.
const LOOK: Duration = Duration::from_millis(100);

/// Pause before a delivery that was given back is delivered again.
const AGAIN: Duration = Duration::from_millis(100);

/// Follows the outages of a model's instances for as long as the model is hosted.
pub(crate) async fn watch(models: Arc<Models>, model: Arc<HostedModel>, mut outages: Vec<watch::Receiver<Outage>>) {
    let mut told: Outage = None;
    loop {
        let now = all_out(&outages);
        if now != told {
            model.queue.pause(now.is_some());
            let outage = now.as_ref().map(ToString::to_string);
            models.change(&model, |obstacles| obstacles.outage = outage).await;
            told = now;
        }
        if told.is_some() {
            model.give_back_waiting(AGAIN).await;
        }
        let changed = futures_util::future::select_all(outages.iter_mut().map(|outage| Box::pin(outage.changed())));
        let limit = if told.is_some() { LOOK } else { Duration::MAX };
        if let Ok((Err(_), ..)) = tokio::time::timeout(limit, changed).await {
            // An instance has ended: the model goes.
            return;
        }
    }
}
