//! trireme-model
