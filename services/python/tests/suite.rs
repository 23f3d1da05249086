//! All tests of this folder in one program, because each program that is linked takes seconds.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up shall fail")]

mod child;
mod execute;
mod model;
