//! trireme
fn main() {}
