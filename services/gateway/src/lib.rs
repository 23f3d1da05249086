//! trireme-gateway
