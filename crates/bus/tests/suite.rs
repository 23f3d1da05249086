//! All tests of this folder in one program, because each program that is linked takes seconds.

mod cluster;
mod conformance;
mod in_process;
mod lapses;
mod nats;
