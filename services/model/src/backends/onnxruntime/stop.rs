//! Ends a run from another thread, when nobody waits for it any more.

use std::sync::Arc;

use ort::session::{HasSelectedOutputs, RunOptions};
use parking_lot::Mutex;
use trireme_runtime::Stop;

/// The run of an instance that is under way, if any.
#[derive(Default)]
pub struct Stopper(Mutex<Option<Arc<Shared>>>);

/// The options of a run that can be stopped, until they are dropped.
pub struct Stoppable<'a> {
    stopper: &'a Stopper,
    options: Arc<Shared>,
}

/// Options that the run and who stops it look at.
struct Shared(RunOptions<HasSelectedOutputs>);

// SAFETY: ort keeps options with selected outputs to one thread because outputs that were allocated beforehand would be
// written to by two. Those here have none (`OnnxInstance::run_options` names outputs only), and they are private to this
// file, whose other thread calls nothing but `terminate`, which ONNX Runtime has for that.
#[allow(unsafe_code, reason = "selecting outputs spares copies from a device of those that nobody needs")]
unsafe impl Sync for Shared {}

// === impl Stopper ===

impl Stopper {
    /// From now on a run with `options` can be stopped. `options` has no outputs allocated beforehand.
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
            tracing::warn!(%error, "a run that nobody waits for could not be stopped");
        }
    }
}

// === impl Stoppable ===

impl Stoppable<'_> {
    /// What the run is started with.
    pub fn options(&self) -> &RunOptions<HasSelectedOutputs> {
        &self.options.0
    }
}

impl Drop for Stoppable<'_> {
    fn drop(&mut self) {
        self.stopper.0.lock().take();
    }
}
