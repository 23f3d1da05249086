//! The effects of signals: SIGTERM, SIGINT and SIGQUIT stop a process, SIGHUP has it read files of keys and settings again, SIGUSR1 and SIGUSR2
//! do nothing.

use std::io::IsTerminal;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The signals that stop a process.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    /// Whether the process was started at a terminal: SIGHUP then also says that the terminal is gone.
    has_terminal: bool,
}

/// Lets signals through that a parent has blocked: a process inherits its mask, and would not hear SIGTERM. Called before there are other
/// threads, which inherit it in turn.
#[allow(unsafe_code, reason = "the C library's mask has no safe function")]
pub fn unblock() {
    // SAFETY: the set is on the stack and initialised by sigemptyset; the old mask is not asked for.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Listens for signals from now on: the first one that stops the process cancels the token, a second one ends the process at once. A process
/// whose terminal is closed stops, too.
pub fn shutdown_signal() -> anyhow::Result<CancellationToken> {
    let mut stops = Stops::listen()?;
    for ignored in [SignalKind::user_defined1(), SignalKind::user_defined2()] {
        // From the first listener on the signal no longer ends the process, whether or not somebody listens.
        drop(signal(ignored)?);
    }
    let token = CancellationToken::new();
    let raised = token.clone();
    #[allow(clippy::disallowed_methods, reason = "has to outlive every task set: it ends the process")]
    tokio::spawn(async move {
        stops.next().await;
        raised.cancel();
        stops.next().await;
        tracing::warn!("second signal: exiting at once");
        std::process::exit(1);
    });
    Ok(token)
}

/// Calls `reread` at each SIGHUP, for ever. Errors when the system lets nobody listen for it.
pub async fn at_hangups(mut reread: impl FnMut()) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    while hangup.recv().await.is_some() {
        reread();
    }
    std::future::pending().await
}

// === impl Stops ===

impl Stops {
    fn listen() -> anyhow::Result<Stops> {
        Ok(Stops {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            has_terminal: is_at_terminal(),
        })
    }

    /// Waits for a signal to stop. SIGHUP is none, unless the terminal is gone.
    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.quit.recv() => return,
                _ = self.hangup.recv() => {
                    if self.has_terminal && !is_at_terminal() {
                        return;
                    }
                    tracing::info!("SIGHUP: files that can be read again are read");
                    trireme_telemetry::reread_log_level();
                }
            }
        }
    }
}

fn is_at_terminal() -> bool {
    std::io::stdin().is_terminal() || std::io::stderr().is_terminal()
}
