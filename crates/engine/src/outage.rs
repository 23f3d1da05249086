//! Outages: times in which an instance cannot execute, for example because its process is being started again. The instance
//! takes no work during an outage.
//!
//! Not here: how an instance recovers, which is its backend's business, and how a worker treats a model all of whose
//! instances are out.

use tokio::sync::watch;

use crate::instance::Outage;

/// Whether an instance cannot execute now.
pub(crate) fn is_out(outage: Option<&watch::Receiver<Outage>>) -> bool {
    outage.is_some_and(|outage| outage.borrow().is_some())
}

/// Why none of the instances can execute, if so.
///
/// ```
/// # use tokio::sync::watch;
/// use trireme_engine::{Outage, all_out};
///
/// let (first, second) = (watch::Sender::new(Some("restarts".into())), watch::Sender::new(Outage::None));
/// assert_eq!(all_out(&[first.subscribe(), second.subscribe()]), None);
/// second.send_replace(Some("lost its device".into()));
/// assert_eq!(all_out(&[first.subscribe(), second.subscribe()]).as_deref(), Some("restarts"));
/// ```
pub fn all_out(outages: &[watch::Receiver<Outage>]) -> Outage {
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
