//! How connections come in, and how a listener stops. Before it closes, it takes in the connections that the kernel has accepted
//! already, perhaps with a request, because closing resets them.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// How long a connection may take to send its first request when the listener stops, before it counts as idle.
pub const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long to wait before accepting again when there is no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The next connection. A failed accept is repeated after a pause: the cause lasts, and repeating at once would take a whole CPU.
pub async fn accept(listener: &TcpListener) -> TcpStream {
    until_accepted(|| listener.accept()).await.0
}

async fn until_accepted<T, F: Future<Output = io::Result<T>>>(mut accept: impl FnMut() -> F) -> T {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The connections that wait to be accepted; the listener is closed.
pub fn take(listener: TcpListener) -> Vec<TcpStream> {
    let mut waiting = Vec::new();
    // Not through the runtime, which may not have noticed these connections.
    let Ok(listener) = listener.into_std() else { return waiting };
    while let Ok((stream, _)) = listener.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        waiting.extend(stream);
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_accepted_is_not_tried_without_pause() {
        let (begun, mut tries) = (tokio::time::Instant::now(), 0);
        let no_descriptor_left = || io::Error::from_raw_os_error(24);
        let accept = || {
            tries += 1;
            std::future::ready(if tries > 3 { Ok(()) } else { Err(no_descriptor_left()) })
        };
        until_accepted(accept).await;
        assert_eq!((tries, begun.elapsed()), (4, ACCEPT_PAUSE * 3));
    }
}
