//! trireme-e2e
