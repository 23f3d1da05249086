//! All tests of this folder in one program, because each program that is linked takes seconds.

mod control;
mod keep_alive;
mod loads;
mod messages;
mod registry;
mod stepwise;
mod worker;
