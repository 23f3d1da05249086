//! trireme-testkit
