//! trireme-telemetry
