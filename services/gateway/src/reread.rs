//! The files of a gateway that are read again while it runs: keys, restrictions, secrets and certificates, when they change and when the process is
//! told to. Files that cannot be used change nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use trireme_server::access::{Access, AccessArgs, files};
use trireme_server::connections::Tls;

use crate::grpc::{GrpcArgs, restrict};
use crate::http::{JobArgs, Webhooks};

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Files, and the way in which they are read again.
struct Source {
    what: &'static str,
    files: Vec<PathBuf>,
    seen: Mutex<Vec<Option<Seen>>>,
    again: Box<dyn Fn() -> anyhow::Result<()> + Send + Sync>,
}

/// The signs that a file has changed: its number, its length, and the time of its last write. A file that replaces another has another number.
type Seen = (u64, u64, SystemTime);

/// All files of a gateway that are read again.
#[derive(Default)]
pub struct Rereading(Vec<Source>);

// === impl Rereading ===

impl Rereading {
    /// The keys and restrictions of all ports.
    pub fn access(&mut self, args: &AccessArgs, access: &Access) {
        let (args, access) = (args.clone(), access.clone());
        let files = args.files();
        self.add("keys", files, move || {
            access.take_over(&Access::new(&args, &[])?);
            Ok(())
        });
    }

    /// The restrictions of gRPC.
    pub fn restricted(&mut self, args: &GrpcArgs, restricted: &Access) {
        let (args, restricted) = (args.clone(), restricted.clone());
        let files = files(&args.grpc_restricted_protocols).map(PathBuf::from).collect();
        self.add("restricted protocols", files, move || {
            restricted.take_over(&restrict(&args.grpc_restricted_protocols)?);
            Ok(())
        });
    }

    /// The secrets of webhooks.
    pub fn webhooks(&mut self, args: &JobArgs, webhooks: &Webhooks) {
        let (args, webhooks) = (args.clone(), webhooks.clone());
        let files = files(&args.jobs_webhook_secrets).map(PathBuf::from).collect();
        self.add("webhook secrets", files, move || {
            webhooks.sign_with(&args.webhook_secrets()?);
            Ok(())
        });
    }

    /// The certificates of a port.
    pub fn tls(&mut self, tls: &Tls) {
        let tls = tls.clone();
        self.add("certificates", tls.paths(), move || tls.reread());
    }

    fn add(
        &mut self,
        what: &'static str,
        files: Vec<PathBuf>,
        again: impl Fn() -> anyhow::Result<()> + Send + Sync + 'static,
    ) {
        if !files.is_empty() {
            self.0.push(Source { what, files, seen: Mutex::default(), again: Box::new(again) });
        }
    }

    /// Reads all of them again, and logs each.
    pub fn read(&self) {
        self.0.iter().for_each(Source::read);
    }

    /// Reads files again once they change, for ever. It begins with reading all of them: one may have changed since the start has read it.
    pub async fn follow(&self) {
        for source in &self.0 {
            source.has_changed();
            source.try_read();
        }
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.0.iter().filter(|source| source.has_changed()).for_each(Source::read);
        }
    }
}

// === impl Source ===

impl Source {
    fn has_changed(&self) -> bool {
        let now: Vec<_> = self.files.iter().map(|file| look(file)).collect();
        let mut seen = self.seen.lock();
        // Noted also when they cannot be used, so that the error is logged once.
        now != std::mem::replace(&mut *seen, now.clone())
    }

    fn read(&self) {
        if self.try_read() {
            tracing::info!(what = self.what, files = self.names(), "read again");
        }
    }

    /// Whether the files could be used; an error is logged.
    fn try_read(&self) -> bool {
        let read = (self.again)();
        if let Err(error) = &read {
            let error = format!("{error:#}");
            tracing::error!(what = self.what, files = self.names(), error, "cannot be read again; the last ones stay");
        }
        read.is_ok()
    }

    fn names(&self) -> String {
        self.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
    }
}

fn look(path: &Path) -> Option<Seen> {
    fs::metadata(path).and_then(|file| Ok((file.ino(), file.len(), file.modified()?))).ok()
}
