//! Ports for servers that cannot choose one themselves, or leave theirs for a while.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;

/// Below the ports that the system gives to listeners and connections that take any: while a server is away, none of those
/// gets its port.
const PORTS: Range<u16> = 15_000..30_000;

/// A port of 127.0.0.1 that is free now, and that nobody gets who takes any. Two who ask may get the same, once in a long
/// while.
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
