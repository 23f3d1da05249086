//! Pulls a model's work from its queue, as long as the version takes work.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use trireme_bus::{Delivery, Reopening};
use trireme_engine::SHORT_RUN;
use trireme_inference::Lane;

use super::bounds;
use crate::hosted::HostedModel;

/// The current instances behind a pulling task; they may be replaced.
pub(crate) type Current = Arc<RwLock<Arc<HostedModel>>>;

/// Pulls work of both lanes for a model until `pulling` is cancelled, then takes in the deliveries that were on their way.
pub(crate) async fn pull(current: Current, pulling: CancellationToken) {
    tokio::join!(pull_lane(Lane::Live, current.clone(), pulling.clone()), pull_lane(Lane::Bulk, current, pulling));
}

/// Pulls work of a lane. Where the bus has lost the queue, it tries again until a gateway has made it again.
async fn pull_lane(lane: Lane, current: Current, pulling: CancellationToken) {
    let (shared, key) = {
        let model = current.read();
        (model.worker.clone(), model.key.clone())
    };
    // Under the lock: a task that replaces the model sees these deliveries in the old model's queue.
    let receive = |deliveries: Vec<Delivery>| {
        let model = current.read();
        let began = Instant::now();
        deliveries.into_iter().for_each(|delivery| model.receive(delivery, began.elapsed() < SHORT_RUN));
    };
    let mut reopening = Reopening::default();
    loop {
        let opened = match lane {
            Lane::Live => shared.bus.pull(&key).await,
            Lane::Bulk => shared.bus.pull_bulk(&key).await,
        };
        let error = match opened {
            Err(error) => error,
            Ok(mut consumer) => loop {
                reopening.works();
                let next = async {
                    let model = current.read().clone();
                    bounds::next(&model, lane, consumer.as_mut()).await
                };
                let next = tokio::select! {
                    next = next => next,
                    () = pulling.cancelled() => {
                        // A delivery that is given back could be delivered to the next worker that stops.
                        while let Some(deliveries) = consumer.stop().await {
                            receive(deliveries);
                        }
                        return;
                    }
                };
                match next {
                    Ok(deliveries) => receive(deliveries),
                    Err(error) => break error,
                }
            },
        };
        let pause = reopening.broke(&format_args!("pulling work of model '{key}' broke: {error}"));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = pulling.cancelled() => return,
        }
    }
}
