//! Stops a run from another thread when no client waits for it any more.

use std::sync::Arc;

use ort::session::{HasSelectedOutputs, RunOptions};
use parking_lot::Mutex;
use trireme_engine::Stop;

/// The present run of an instance, if there is one.
#[derive(Default)]
pub struct Stopper(Mutex<Option<Arc<Shared>>>);

/// The options of a run that can be stopped, until they are dropped.
pub struct Stoppable<'a> {
    stopper: &'a Stopper,
    options: Arc<Shared>,
}

/// Options shared by the run and the thread that stops it.
struct Shared(RunOptions<HasSelectedOutputs>);

// SAFETY: ort restricts options with selected outputs to one thread, because two threads could write to outputs
// allocated beforehand. These options have no such outputs (`OnnxInstance::run_options` only names outputs). They are
// private to this file, whose other thread only calls `terminate`, which ONNX Runtime provides for this purpose.
#[allow(unsafe_code, reason = "selecting outputs spares copies of unneeded ones from a device")]
unsafe impl Sync for Shared {}

// === impl Stopper ===

impl Stopper {
    /// Makes the run with `options` stoppable. `options` must not have outputs allocated beforehand.
    pub fn begin(&self, options: RunOptions<HasSelectedOutputs>) -> Stoppable<'_> {
        let options = Arc::new(Shared(options));
        *self.0.lock() = Some(options.clone());
        Stoppable { stopper: self, options }
    }
}

impl Stop for Stopper {
    fn stop(&self) {
        if let Some(options) = self.0.lock().as_ref()
            && let Err(error) = options.0.terminate()
        {
            tracing::warn!(%error, "a run that no client waits for could not be stopped");
        }
    }
}

// === impl Stoppable ===

impl Stoppable<'_> {
    /// The options to start the run with.
    pub fn options(&self) -> &RunOptions<HasSelectedOutputs> {
        &self.options.0
    }
}

impl Drop for Stoppable<'_> {
    fn drop(&mut self) {
        self.stopper.0.lock().take();
    }
}
