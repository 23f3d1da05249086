//! The plan of a run: which scenes, and how large.

use std::time::Duration;

use super::shape::Size;

/// The scenes. They are independent, except that the first three share a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scene {
    /// The cost of a deployment at rest, on one broker.
    Idle,
    /// Workers that join and leave under load.
    Join,
    /// How long a gateway takes to tell its metrics and statistics.
    Read,
    /// The cost of a deployment at rest, on a cluster of three brokers.
    Cluster,
    /// More idle workers on one model than JetStream lets wait by default.
    Crowd,
    /// A broker that restarts under thousands of requests.
    Restart,
}

/// The size and duration of the scenes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Deployments to measure, in order.
    pub sizes: Vec<Size>,
    /// Scenes to run.
    pub scenes: Vec<Scene>,
    /// How long a deployment at rest is watched.
    pub watch: Duration,
    /// How long a deployment is left alone before it is watched.
    pub settle: Duration,
    /// How long a deployment may take to get ready.
    pub ready_limit: Duration,
    /// Workers that join and leave at once.
    pub joining: usize,
    /// Requests per second meanwhile, over all gateways.
    pub rate: f64,
    /// Workers on one model in the scene of the crowd.
    pub crowd: usize,
    /// Requests in flight when the broker restarts.
    pub in_flight: usize,
    /// Copies of each queue in the cluster of brokers.
    pub replicas: usize,
}

// === impl Plan ===

impl Plan {
    /// Whether a scene is to run.
    pub fn has(&self, scene: Scene) -> bool {
        self.scenes.contains(&scene)
    }
}
