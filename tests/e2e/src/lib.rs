//! End-to-end tests: the product's own binaries and a real nats-server, talked to over sockets as a client talks to them.
//!
//! A test says what it needs with [`Setup`] and gets a [`Sandbox`]: processes on ports and in folders of their own, so
//! that tests run beside each other. [`Mode`] is how the system is put together; a test that holds for every way is
//! listed in [`in_every_mode!`]. The files in `tests/` are one theme each.
//!
//! Invariants:
//! - Nothing here links the product: what is tested is what is shipped. `cargo build --workspace` has to come first.
//! - Every wait has a limit, and nothing outlives its sandbox. When a test fails, the ends of all logs are printed.
//! - Ports are chosen by the processes that listen on them.
//!
//! Not here: what one crate can show alone (its own tests), and comparisons with other servers.

pub mod chaos;
mod http;
mod load;
mod overload;
mod process;
mod repository;
mod sandbox;
mod tools;
mod wire;

pub use http::{Request, Response};
pub use load::{Outcome, load};
pub use overload::{Bound, Demands, Level, Scene, Summary, Times, overload};
pub use process::Process;
pub use repository::{Golden, ModelFolder, basic_repository, golden, seed_repository};
pub use sandbox::{Mode, Sandbox, Setup, Stage};
pub use tools::{demo_repository, onnxruntime_library, product, python, wait_until, workspace};
pub use wire::{Wire, WireMessage};

/// Makes each of the functions, which take a [`Mode`], a test in every mode: `all_in_one::NAME` and `services::NAME`.
#[macro_export]
macro_rules! in_every_mode {
    ($($name:ident),+ $(,)?) => {
        mod all_in_one {
            $(#[test] fn $name() { super::$name($crate::Mode::AllInOne); })+
        }
        mod services {
            $(#[test] fn $name() { super::$name($crate::Mode::Services); })+
        }
    };
}
