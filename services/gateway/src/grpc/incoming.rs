//! What comes in: connections until the listener stops, and the bytes of their calls.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::body;
use super::unread::Unread;
use crate::backlog;
use crate::budget::{self, Budget};

/// The connections of a listener until `stop` is raised, those that wait then among them. There is no end of it: that would
/// end what goes on.
pub fn until(listener: TcpListener, stop: CancellationToken) -> impl Stream<Item = std::io::Result<TcpStream>> {
    let accepted = stream::unfold(Some((listener, stop)), |state| async {
        let (listener, stop) = state?;
        tokio::select! {
            accepted = backlog::accept(&listener) => Some((vec![accepted], Some((listener, stop)))),
            () = stop.cancelled() => Some((backlog::take(listener), None)),
        }
    });
    // Answers are small and awaited: they must not sit in a buffer.
    let set_up = |stream: &TcpStream| drop(stream.set_nodelay(true));
    accepted.flat_map(stream::iter).inspect(set_up).map(Ok).chain(stream::pending())
}

/// Whether calls of this path are work for a model; others are about the server.
fn infers(path: &str) -> bool {
    path.ends_with("/ModelInfer") || path.ends_with("/ModelStreamInfer")
}

/// Counts the bytes of a call in the budget until it is answered. The messages of a stream take theirs along.
pub async fn count(
    State((budget, unread, pause)): State<(Budget, Unread, Duration)>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let hold = if infers(path) { budget.hold() } else { budget.hold_of_control() };
    let streams = path.ends_with("/ModelStreamInfer");
    let (mut parts, body) = request.into_parts();
    let body = body::guard(body, streams, &hold, pause);
    parts.extensions.insert(hold.clone());
    unread.watch(budget::until_sent(next.run(Request::from_parts(parts, body)).await, hold))
}
