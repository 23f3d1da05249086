//! trireme-runtime
