//! The deployment's settings: limits, storage and copies of its queues and stores. They are one value on the bus, so
//! all processes have the same, whichever starts last. The first gateway writes them; later an operator may change them
//! (`trireme settings`).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), trireme_bus::BusError> {
//! use trireme_bus::{Bus, InProcess, QueueOptions};
//!
//! // This bus writes the settings that it is made with, so another gateway finds them.
//! let bus: &dyn Bus = &InProcess::default();
//! let others = QueueOptions { max_attempts: 5, ..QueueOptions::default() };
//! assert_eq!(bus.init_settings(&others).await?, QueueOptions::default());
//!
//! bus.change_settings(&others).await?;
//! assert_eq!(bus.find_settings().await?, Some(others));
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use crate::{Bucket, Bus, BusError, Entry, QueueOptions};

/// The key of the one value.
const KEY: &str = "deployment";

/// How often a process looks for settings that are missing, and how often it logs that they are.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const SAY_AGAIN: Duration = Duration::from_secs(5);

impl dyn Bus + '_ {
    /// The settings, if they have been written.
    pub async fn find_settings(&self) -> Result<Option<QueueOptions>, BusError> {
        self.get(Bucket::Settings, KEY).await?.map(|entry| read(&entry.value)).transpose()
    }

    /// Waits until the first gateway has written the settings.
    pub async fn settings(&self) -> Result<QueueOptions, BusError> {
        let mut said = std::time::Instant::now();
        loop {
            match self.find_settings().await {
                Ok(Some(settings)) => return Ok(settings),
                Err(error @ (BusError::Refused { .. } | BusError::Envelope(_))) => return Err(error),
                Ok(None) | Err(_) if said.elapsed() < SAY_AGAIN => {}
                missing => {
                    said = std::time::Instant::now();
                    let error = missing.err().map(|error| error.to_string());
                    tracing::warn!(
                        error,
                        "no gateway has written this deployment's settings yet; waiting for one (trireme gateway, with the same --nats-url and --deployment)"
                    );
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Writes the settings unless there are some already. Returns the settings that hold.
    pub async fn init_settings(&self, wanted: &QueueOptions) -> Result<QueueOptions, BusError> {
        match self.put(Bucket::Settings, KEY, write(wanted), Some(0), None).await {
            Ok(_) => Ok(wanted.clone()),
            Err(BusError::Conflict { .. }) => match self.find_settings().await? {
                Some(settings) => Ok(settings),
                None => Err(BusError::Unreachable("the deployment's settings were deleted just now".to_owned())),
            },
            Err(error) => Err(error),
        }
    }

    /// Writes the settings, whether or not there are some already.
    pub async fn change_settings(&self, settings: &QueueOptions) -> Result<(), BusError> {
        self.put(Bucket::Settings, KEY, write(settings), None, None).await.map(drop)
    }
}

/// The settings in an entry of their store. `None` if the entry has another key or cannot be read.
pub(crate) fn of(entry: &Entry) -> Option<QueueOptions> {
    let settings = (entry.key == KEY).then(|| read(&entry.value))?;
    settings.inspect_err(|error| tracing::error!(%error, "ignored malformed settings")).ok()
}

fn write(settings: &QueueOptions) -> bytes::Bytes {
    serde_json::to_vec(settings).expect("numbers and switches become JSON").into()
}

fn read(value: &[u8]) -> Result<QueueOptions, BusError> {
    serde_json::from_slice(value)
        .map_err(|error| BusError::Refused { action: "reading the deployment's settings", reason: error.to_string() })
}
