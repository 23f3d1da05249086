//! trireme-protocol
