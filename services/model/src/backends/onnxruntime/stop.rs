//! Stops a run from another thread when no client waits for it any more.

use std::sync::Arc;

use ort::session::{RunOptions, SelectedOutputMarker};
use parking_lot::Mutex;
use trireme_engine::Stop;

/// The present run of an instance, if there is one.
#[derive(Default)]
pub struct Stopper(Mutex<Option<Arc<dyn Terminate>>>);

/// The options of a run that can be stopped, until they are dropped.
pub struct Stoppable<'a, O: SelectedOutputMarker> {
    stopper: &'a Stopper,
    options: Arc<Shared<O>>,
}

/// Options shared by the run and the thread that stops it.
struct Shared<O: SelectedOutputMarker>(RunOptions<O>);

/// The only use of a run's options by the thread that stops the run.
trait Terminate: Send + Sync {
    fn terminate(&self) -> ort::Result<()>;
}

// SAFETY: ort restricts options with selected outputs to one thread, because two threads could write to outputs
// allocated beforehand. These options have no such outputs (`OnnxInstance::run_plain` only names outputs). They are
// private to this file, whose other thread only calls `terminate`, which ONNX Runtime provides for this purpose.
#[allow(unsafe_code, reason = "selecting outputs spares copies of unneeded ones from a device")]
unsafe impl<O: SelectedOutputMarker> Sync for Shared<O> {}

// === impl Stopper ===

impl Stopper {
    /// Makes the run with `options` stoppable. `options` must not have outputs allocated beforehand.
    pub fn begin<O: SelectedOutputMarker + 'static>(&self, options: RunOptions<O>) -> Stoppable<'_, O> {
        let options = Arc::new(Shared(options));
        *self.0.lock() = Some(options.clone());
        Stoppable { stopper: self, options }
    }
}

impl Stop for Stopper {
    fn stop(&self) {
        if let Some(options) = self.0.lock().as_ref()
            && let Err(error) = options.terminate()
        {
            tracing::warn!(%error, "a run that no client waits for could not be stopped");
        }
    }
}

impl<O: SelectedOutputMarker> Terminate for Shared<O> {
    fn terminate(&self) -> ort::Result<()> {
        self.0.terminate()
    }
}

// === impl Stoppable ===

impl<O: SelectedOutputMarker> Stoppable<'_, O> {
    /// The options to start the run with.
    pub fn options(&self) -> &RunOptions<O> {
        &self.options.0
    }
}

impl<O: SelectedOutputMarker> Drop for Stoppable<'_, O> {
    fn drop(&mut self) {
        self.stopper.0.lock().take();
    }
}
