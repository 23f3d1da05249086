//! Limits on the connections of a port: in all, and from one address. When a new connection finds no room, an idle connection is
//! closed for it.
//!
//! Invariants:
//! - A port has no more connections than its limit and [`SPARE`] beyond it. The spare connections answer health checks only, so
//!   that health checks succeed however many clients are connected.
//! - Only a connection without a request is closed. Connections that never had a request go first, then the connection that has
//!   been idle for longest.
//! - An address has no more connections than its limit, apart from spare ones.
//!
//! Not here: how long a connection may be silent (the listeners), and how connections are closed.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Connections beyond the limit of a port, for health checks.
const SPARE: usize = 32;

/// How long a connection for health checks may be silent.
const SPARE_TIMEOUT: Duration = Duration::from_secs(5);

/// File descriptors that a process needs beside clients' connections: for the broker, models and shared memory regions.
const OTHER_FILES: u64 = 256;

/// Lowest limit of a port, whatever the limit of file descriptors.
const LEAST: usize = 64;

/// Ports that clients connect to.
const PORTS: u64 = 3;

/// Flags about connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Access and connections")]
pub struct ConnectionArgs {
    /// Most connections of each port. Beyond that an idle connection is closed for a new one, and a few more connections are
    /// accepted for health checks. The limit is lowered where the process may not have as many files open
    #[arg(long, env = "TRIREME_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 8192)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Most connections of each port that come from one address; half of --max-connections by default
    #[arg(long, env = "TRIREME_MAX_CONNECTIONS_PER_ADDRESS", value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_address: Option<u32>,
}

/// Connection limits of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At a port.
    pub port: usize,
    /// From one address.
    pub address: usize,
}

/// The address that a request came from. In the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// Marks a request of a connection beyond the limit, which is for health checks only. In the extensions of such requests.
#[derive(Clone, Copy, Debug)]
pub struct Spare;

/// The connections of a port. Clones are the same.
#[derive(Clone)]
pub struct ConnectionLimiter(Arc<Shared>);

struct Shared {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Connections within the limit.
    usual: Pool,
    /// Connections beyond it.
    spare: Pool,
    /// How many of the usual ones each address has.
    by_address: HashMap<IpAddr, usize>,
    turns: u64,
}

/// Connections that take the place of one another.
#[derive(Default)]
struct Pool {
    /// Connections that were not asked to close.
    count: usize,
    /// The idle connections, in the order in which they are closed: those that never had a request first, then by when they
    /// became idle.
    idle: BTreeMap<Turn, Idle>,
}

type Turn = (bool, u64);

struct Idle {
    address: IpAddr,
    leave: CancellationToken,
}

/// A connection that was admitted. Dropping it makes room for another connection.
pub struct Place {
    limiter: ConnectionLimiter,
    /// Where the connection comes from.
    pub peer: Peer,
    /// Whether it is for health checks only.
    pub is_spare: bool,
    /// Raised when the connection has to make room for another one.
    pub leave: CancellationToken,
    state: Mutex<State>,
    requests: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    turn: Option<Turn>,
    has_begun: bool,
}

/// A request in progress. While it lives, its connection is not idle.
pub struct Busy(Arc<Place>);

// === impl Peer ===

impl Peer {
    /// Whether the peer is on this host.
    pub fn is_local(self) -> bool {
        self.0.is_loopback()
    }
}

// === impl ConnectionArgs ===

impl ConnectionArgs {
    /// The limits of each port, no more than the process can have open.
    pub fn limits(&self) -> Limits {
        let wanted = usize::try_from(self.max_connections).unwrap_or(usize::MAX);
        let possible = getrlimit(Resource::Nofile).current.map_or(usize::MAX, room_for_connections);
        if possible < wanted {
            tracing::info!(
                max_connections = possible,
                "--max-connections is {wanted}, more than this process may have open: raise its limit of open files"
            );
        }
        let port = wanted.min(possible);
        let address = self.max_connections_per_address.and_then(|count| usize::try_from(count).ok());
        Limits { port, address: address.unwrap_or(port.div_ceil(2)).min(port) }
    }
}

/// How many connections each port may have where so many files may be open.
fn room_for_connections(files: u64) -> usize {
    let room = files.saturating_sub(OTHER_FILES) / PORTS;
    usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(SPARE).max(LEAST)
}

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    /// A port without connections.
    pub fn new(limits: Limits) -> ConnectionLimiter {
        ConnectionLimiter(Arc::new(Shared { limits, table: Mutex::default() }))
    }

    /// Admits a connection. `None` when there is no room, or when its client has closed it already.
    pub fn admit(&self, stream: &TcpStream) -> Option<Arc<Place>> {
        self.place(stream.peer_addr().ok()?)
    }

    fn place(&self, from: SocketAddr) -> Option<Arc<Place>> {
        let Shared { limits, table } = &*self.0;
        let address = from.ip().to_canonical();
        let mut table = table.lock();
        let of_address = table.by_address.get(&address).copied().unwrap_or_default();
        let is_spare = of_address >= limits.address && !table.make_room(false, |idle| idle.address == address)
            || table.usual.count >= limits.port && !table.make_room(false, |_| true);
        if is_spare && table.spare.count >= SPARE && !table.make_room(true, |_| true) {
            tracing::debug!(%address, "refused a connection: there are as many as may be");
            return None;
        }
        table.pool(is_spare).count += 1;
        if !is_spare {
            *table.by_address.entry(address).or_default() += 1;
        }
        drop(table);
        let place = Arc::new(Place {
            limiter: self.clone(),
            peer: Peer(address),
            is_spare,
            leave: CancellationToken::new(),
            state: Mutex::default(),
            requests: watch::Sender::new(0),
        });
        place.rest();
        Some(place)
    }
}

// === impl Table ===

impl Table {
    fn pool(&mut self, is_spare: bool) -> &mut Pool {
        if is_spare { &mut self.spare } else { &mut self.usual }
    }

    /// Asks a connection without a request to close, if one exists.
    fn make_room(&mut self, is_spare: bool, may_leave: impl Fn(&Idle) -> bool) -> bool {
        let pool = self.pool(is_spare);
        let Some(turn) = pool.idle.iter().find(|(_, idle)| may_leave(idle)).map(|(turn, _)| *turn) else {
            return false;
        };
        if let Some(idle) = pool.idle.remove(&turn) {
            idle.leave.cancel();
            self.remove(is_spare, idle.address);
        }
        true
    }

    /// Forgets a connection.
    fn remove(&mut self, is_spare: bool, address: IpAddr) {
        self.pool(is_spare).count -= 1;
        if !is_spare {
            self.forget(address);
        }
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

// === impl Place ===

impl Place {
    /// Notes a request.
    pub fn begin(self: &Arc<Place>) -> Busy {
        self.requests.send_modify(|requests| *requests += 1);
        let mut state = self.state.lock();
        state.has_begun = true;
        if let Some(turn) = state.turn.take() {
            self.limiter.0.table.lock().pool(self.is_spare).idle.remove(&turn);
        }
        drop(state);
        Busy(self.clone())
    }

    /// Whether the connection ever had a request.
    pub fn has_begun(&self) -> bool {
        self.state.lock().has_begun
    }

    /// How long this connection may be silent, where others may for `timeout`.
    pub fn timeout(&self, timeout: Duration) -> Duration {
        if self.is_spare { timeout.min(SPARE_TIMEOUT) } else { timeout }
    }

    /// Waits until the connection has had no request for so long.
    pub async fn idle_for(&self, limit: Duration) {
        let mut requests = self.requests.subscribe();
        loop {
            let is_idle = *requests.borrow_and_update() == 0;
            match is_idle {
                true if tokio::time::timeout(limit, requests.changed()).await.is_err() => return,
                true => {}
                false => drop(requests.changed().await),
            }
        }
    }

    /// Enters the connection among the idle ones, unless it has a request or has to close.
    fn rest(&self) {
        let mut state = self.state.lock();
        if self.leave.is_cancelled() || *self.requests.borrow() > 0 {
            return;
        }
        let mut table = self.limiter.0.table.lock();
        table.turns += 1;
        let turn = (state.has_begun, table.turns);
        table.pool(self.is_spare).idle.insert(turn, Idle { address: self.peer.0, leave: self.leave.clone() });
        state.turn = Some(turn);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.limiter.0.table.lock();
        if let Some(turn) = self.state.get_mut().turn.take() {
            table.pool(self.is_spare).idle.remove(&turn);
        }
        // A connection that was asked to close is no longer counted.
        if !self.leave.is_cancelled() {
            table.remove(self.is_spare, self.peer.0);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.requests.send_modify(|requests| *requests -= 1);
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 1).into()
    }

    fn limiter(port: usize, address: usize) -> ConnectionLimiter {
        ConnectionLimiter::new(Limits { port, address })
    }

    #[test]
    fn an_idle_connection_goes_for_a_new_one_the_silent_ones_first() {
        let limiter = limiter(3, 3);
        let [used, silent, newer] = [1, 1, 2].map(|last| limiter.place(from(last)).unwrap());
        drop(used.begin());
        let fourth = limiter.place(from(3)).unwrap();
        assert!(silent.leave.is_cancelled() && !used.leave.is_cancelled() && !newer.leave.is_cancelled());
        let working = fourth.begin();
        drop(silent);
        let _fifth = limiter.place(from(3)).unwrap().begin();
        assert!(newer.leave.is_cancelled(), "that of the other address has had no request");
        let _sixth = limiter.place(from(3)).unwrap();
        assert!(used.leave.is_cancelled() && !fourth.leave.is_cancelled(), "one with a request in hand stays");
        drop(working);
    }

    #[test]
    fn health_checks_have_room_when_all_others_work() {
        let limiter = limiter(2, 100);
        let working: Vec<_> = (0..2).map(|_| limiter.place(from(1)).unwrap().begin()).collect();
        let spare: Vec<_> = (0..SPARE).map(|_| limiter.place(from(1)).unwrap()).collect();
        assert!(spare.iter().all(|place| place.is_spare));
        let watching = limiter.place(from(2)).unwrap();
        assert!(spare[0].leave.is_cancelled(), "a silent one goes");
        let checks: Vec<_> = spare[1..].iter().chain([&watching]).map(Place::begin).collect();
        assert!(limiter.place(from(1)).is_none());
        drop(checks);
        drop(watching);
        assert_eq!(spare[1].timeout(Duration::from_secs(100)), SPARE_TIMEOUT);
        drop(spare);
        drop(working);
        assert!(!limiter.place(from(1)).unwrap().is_spare);
    }

    #[test]
    fn an_address_has_its_part() {
        let limiter = limiter(10, 2);
        let working: Vec<_> = (0..2).map(|_| limiter.place(from(1)).unwrap().begin()).collect();
        assert!(limiter.place(from(1)).unwrap().is_spare);
        let other = limiter.place(from(2)).unwrap();
        assert!(!other.is_spare);
        drop(working);
        let [first, second, third] = [1, 1, 1].map(|last| limiter.place(from(last)).unwrap());
        assert!(first.leave.is_cancelled() && !second.leave.is_cancelled(), "its own goes");
        assert!(!other.leave.is_cancelled());
        drop((first, second, third, other));
        let table = limiter.0.table.lock();
        let counts = (table.usual.count, table.spare.count, table.by_address.len(), table.usual.idle.len());
        assert_eq!(counts, (0, 0, 0, 0), "all is given back");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_has_no_request() {
        let limit = Duration::from_secs(10);
        let place = limiter(1, 1).place(from(1)).unwrap();
        let request = place.begin();
        assert!(tokio::time::timeout(limit * 10, place.idle_for(limit)).await.is_err());
        drop(request);
        let begun = tokio::time::Instant::now();
        place.idle_for(limit).await;
        assert_eq!(begun.elapsed(), limit);
    }

    #[test]
    fn files_bound_connections() {
        assert_eq!(room_for_connections(1024), 224);
        assert_eq!(room_for_connections(100), LEAST);
        assert!(room_for_connections(1 << 20) > 100_000);
        let args = ConnectionArgs { max_connections: 10, max_connections_per_address: None };
        assert_eq!(args.limits(), Limits { port: 10, address: 5 });
        let args = ConnectionArgs { max_connections: 10, max_connections_per_address: Some(20) };
        assert_eq!(args.limits(), Limits { port: 10, address: 10 });
    }
}
