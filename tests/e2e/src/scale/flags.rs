//! The flags of the product's processes. No other file of the harness knows them.
//!
//! Depending on the version, the settings of queues are flags of gateways or of workers. So the harness looks for them
//! in the help of the gateway's binary, and gives them to workers if they are not there.

use std::sync::OnceLock;

use crate::product;

/// Options of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Copies that the broker keeps of each queue.
    pub replicas: usize,
    /// The most messages in a queue.
    pub queue_messages: usize,
    /// Milliseconds that a request may take.
    pub timeout_ms: u64,
    /// The log level of workers, as in `--log-level`.
    pub worker_log: &'static str,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Settings { replicas: 1, queue_messages: 10_000, timeout_ms: 60_000, worker_log: "info" }
    }
}

impl Settings {
    /// The flags of a gateway.
    pub fn gateway(&self, broker: &str) -> Vec<String> {
        let mut flags = vec![
            "--nats-url".to_owned(),
            broker.to_owned(),
            "--max-in-flight=20000".to_owned(),
            // All clients of the harness have one address.
            "--max-connections=20000".to_owned(),
            "--max-connections-per-address=20000".to_owned(),
            format!("--default-timeout-ms={}", self.timeout_ms),
        ];
        if gateways_take_queue_settings() {
            flags.extend(self.queue());
        }
        flags
    }

    /// The flags of a worker, without its name and its repository.
    pub fn worker(&self, broker: &str) -> Vec<String> {
        let mut flags = vec!["--nats-url".to_owned(), broker.to_owned(), "--nats-connect-timeout-secs=60".to_owned()];
        flags.push(format!("--log-level={}", self.worker_log));
        if !gateways_take_queue_settings() {
            flags.extend(self.queue());
        }
        flags
    }

    fn queue(&self) -> Vec<String> {
        vec![format!("--queue-replicas={}", self.replicas), format!("--queue-max-messages={}", self.queue_messages)]
    }
}

fn gateways_take_queue_settings() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let help = product("trireme-gateway").arg("--help").output().expect("the gateway shows its flags");
        String::from_utf8_lossy(&help.stdout).contains("--queue-replicas")
    })
}
