//! End-to-end tests: the product's own binaries and a real nats-server, reached over sockets as by a client.
//!
//! A test describes its needs with [`Setup`] and gets a [`Sandbox`]: processes with ports and folders of their own, so that tests
//! can run in parallel; or it uses a [`Shared`] one. [`Mode`] is how the system is deployed; a test that holds in every mode is listed in [`in_every_mode!`] or
//! [`in_one_mode!`].
//! Each file in `tests/` has one theme.
//!
//! Invariants:
//! - Nothing here links the product, so that the shipped binaries are tested. `cargo build --workspace` has to come
//!   first. The one exception is [`scale`], which simulates hundreds of workers and gateways in a few processes.
//! - Every wait has a limit, and no process outlives its sandbox, or the test program if the sandbox is a shared one. When a test fails, the ends of all logs are printed.
//! - Processes that listen choose their ports themselves.
//!
//! Not here: behaviour that one crate can show alone (its own tests), and comparisons with other servers.

mod asking;
pub mod chaos;
mod http;
mod load;
mod messages;
mod overload;
mod process;
mod repository;
mod sandbox;
pub mod scale;
mod shared;
pub mod siege;
mod texts;
mod tools;
mod wire;

pub use asking::{answer, ask, numbers};
pub use http::{Request, Response};
pub use load::{Outcome, load, load_during};
pub use overload::{Bound, Demands, Level, Loop, Round, Scene, Summary, Times, overload};
pub use process::{Process, children};
pub use repository::{Golden, ModelFolder, basic_repository, golden, seed_repository};
pub use sandbox::{Mode, Sandbox, Setup, Stage};
pub use shared::Shared;
pub use texts::{KEY, MAX_BODY, TextsServer, TextsState, texts_repository};
pub use tools::{demo_repository, onnxruntime_library, product, python, wait_until, workspace};
pub use wire::{Wire, WireMessage};

/// Makes each of the functions, which take a [`Mode`], a test in every mode: `all_in_one::NAME` and `services::NAME`. For themes
/// in which delivery is the subject.
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

/// As [`in_every_mode!`], but `make test` leaves `services::NAME` to `make test-all`. For themes whose results do not depend on the
/// message's way.
#[macro_export]
macro_rules! in_one_mode {
    ($($name:ident),+ $(,)?) => {
        mod all_in_one {
            $(#[test] fn $name() { super::$name($crate::Mode::AllInOne); })+
        }
        mod services {
            $(#[test] #[ignore = "make test-all runs it"] fn $name() { super::$name($crate::Mode::Services); })+
        }
    };
}
