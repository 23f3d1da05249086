//! Ports for servers that cannot choose a port themselves, or that stop for a while and return to the same port.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;

/// Below the range from which the system assigns ports, so that no other process is assigned a server's port while the
/// server is stopped.
const PORTS: Range<u16> = 15_000..30_000;

/// A free port of 127.0.0.1 outside the system's range. Two callers may get the same one, but rarely.
pub fn quiet_port() -> u16 {
    let any = || PORTS.start + (RandomState::new().hash_one(0) % PORTS.len() as u64) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(any).find(is_free).expect("it goes on for ever")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_differ() {
        let mut ports: Vec<u16> = (0..20).map(|_| quiet_port()).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)));
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() > 10, "{ports:?}");
    }
}
