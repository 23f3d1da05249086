//! Models that lie elsewhere: a word such as `hf://org/name` or `s3://bucket/folder` in, a local folder out.
//!
//! Each file is downloaded under a temporary name, its size and digest are checked, and it is renamed then. A folder appears
//! under its final name when all of its files are there, so that no process ever reads a part of a model. A download that was
//! cut off goes on where it ended, in this process or a later one.
//!
//! Other files that lie elsewhere, such as those of jobs, are read and written where they lie: [`Object`].
//!
//! Models of the Hugging Face hub lie in Hugging Face's own cache, so that its Python libraries and this crate share files.
//! Not here: reading the downloaded files, which is the work of the crate for model repositories.

mod address;
mod cache;
mod error;
mod fetch;
mod folder_cache;
mod http;
mod hub;
mod hub_cache;
mod lock;
mod object;
mod progress;
mod remote;
mod settings;
mod source;
mod store;
mod transfer;
mod web;

pub use address::is_remote;
pub use error::FetchError;
pub use fetch::fetch;
pub use object::{Object, Upload};
pub use settings::Settings;
