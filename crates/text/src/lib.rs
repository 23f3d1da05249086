//! trireme-text
