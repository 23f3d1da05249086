//! The files of a gateway that are read again while it runs: keys, restrictions, secrets and certificates. Files that cannot be used change
//! nothing.

use std::path::PathBuf;

use trireme_server::access::{Access, AccessArgs, files};
use trireme_server::connections::Tls;

use crate::grpc::{GrpcArgs, restrict};
use crate::http::{JobArgs, Webhooks};

/// Files, and the way in which they are read again.
struct Source {
    what: &'static str,
    files: Vec<PathBuf>,
    again: Box<dyn Fn() -> anyhow::Result<()> + Send + Sync>,
}

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
            self.0.push(Source { what, files, again: Box::new(again) });
        }
    }

    /// Reads all of them again, and logs each.
    pub fn read(&self) {
        for Source { what, files, again } in &self.0 {
            let files = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
            match again() {
                Ok(()) => tracing::info!(what, files, "read again"),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(what, files, error, "cannot be read again; the last ones stay");
                }
            }
        }
    }
}
