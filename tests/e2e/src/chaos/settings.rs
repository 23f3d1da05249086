//! The flags of the processes under test, and the names of their streams. No other file knows them.

use std::time::Duration;

use super::member::Role;
use super::shape::Shape;

/// A queue's `ack_wait`, short so that faults can follow each other quickly.
pub(super) const ACK_WAIT: Duration = Duration::from_secs(1);

/// The subjects of all work, at any depth.
pub(super) const WORK_SUBJECTS: &str = "trireme.work.>";

/// The prefix of the names of work streams.
pub(super) const WORK_STREAMS: &str = "trireme_work_";

/// The stream of the registry.
pub(super) const REGISTRY: &str = "KV_trireme_registry";

/// The stream of bodies that are larger than the broker's limit.
pub(super) const CLAIMS: &str = "trireme_claims";

/// The streams of durable work, which are in files wherever queues are.
pub(super) const JOBS: [&str; 2] = ["trireme_jobs", "trireme_objects"];

/// The flags of a process of this role, except for paths and addresses.
pub(super) fn arguments(role: Role, shape: &Shape) -> Vec<String> {
    let mut arguments = Vec::new();
    if role == Role::Gateway {
        arguments.extend(["--default-timeout-ms".to_owned(), shape.deadline.as_millis().to_string()]);
        arguments.extend(queue_arguments(shape));
    }
    arguments
}

fn queue_arguments(shape: &Shape) -> Vec<String> {
    let mut arguments = vec!["--ack-wait-ms".to_owned(), ACK_WAIT.as_millis().to_string()];
    if shape.files || shape.disk.is_some() {
        arguments.extend(["--queue-storage", "file"].map(str::to_owned));
    }
    arguments
}
