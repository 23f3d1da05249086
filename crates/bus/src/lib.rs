//! trireme-bus
