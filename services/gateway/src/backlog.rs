//! How a listener stops: connections that the kernel has accepted already, with a request in them perhaps, are taken in
//! before it closes, because closing resets them.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// What a connection that was taken in last has to show its first request, before it counts as idle.
pub const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// The connections that wait to be accepted; the listener is closed.
pub fn take(listener: TcpListener) -> Vec<TcpStream> {
    let mut waiting = Vec::new();
    // Directly: whether the runtime has noticed them by now means nothing.
    let Ok(listener) = listener.into_std() else { return waiting };
    while let Ok((stream, _)) = listener.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        waiting.extend(stream);
    }
    waiting
}
