//! The model repository: `config.pbtxt` to a validated [`ModelConfig`], version directories to the versions that are served, and
//! ensembles to type-checked routes.
//!
//! Invariants:
//! - A [`ModelConfig`] that exists is valid and normalized: defaults are filled in, names are unique, an ensemble's data flow is
//!   sound. Its fields agree with the message that `/config` prints.
//! - A route plan of [`compile_ensemble`] fits the configurations of all its steps: datatypes and shapes that meet agree, and
//!   every required input has a source.
//! - A path in a [`ModelConfig`] stays within the model's own folder, unless the operator has put a link there. A configuration
//!   that came with a request names no files outside ([`requested`]).
//! - Error texts are Triton's where it has one, because clients and tests match them; further details follow after Triton's text.
//!
//! A Hugging Face folder is a second way to a repository: `folder` derives the configurations from its files.
//!
//! The path of a configuration: `parse` reads text or JSON into the generated message, `normalize` fills in the defaults,
//! `validate` checks it, `view` turns it into [`ModelConfig`].
//!
//! Not here: loading models (the services do), watching for changes, any I/O besides reading repositories and model folders,
//! and laying down the files of models that came with a request or are made of a folder.

mod agents;
mod answer;
mod backends;
mod batch_dimension;
mod check;
mod complete;
mod config;
mod digest;
mod ensemble;
mod error;
mod fields;
mod fingerprint;
mod folder;
mod follow;
mod nli;
mod normalize;
mod other_names;
mod parse;
mod repository;
mod requested;
mod sequence;
mod sequence_batching;
mod sources;
mod space;
mod task;
mod temporary;
mod torch;
mod validate;
mod view;

/// The generated message types; private, so that no other crate depends on them.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

pub use answer::ExpectedAnswer;
pub use backends::{BACKENDS, KnownBackend, onnx_instead};
pub use config::{
    AutoComplete, DynamicBatching, EnsembleStep, InstanceGroup, InstanceKind, ModelConfig, ModelInput, ModelOutput,
    ModelWarmup, Optimization, QueuePolicy, VersionPolicy, WarmupData, WarmupInput,
};
pub use digest::digest_of_file;
pub use ensemble::{CompiledEnsemble, EnsembleError, compile_ensemble, plan_single};
pub use error::RepositoryError;
pub use folder::{
    Accelerator, Choices, Derived, DerivedModel, EQUIVALENT_SPACES, EquivalentSpaces, Export, FolderChoices,
    FolderDescription, FolderError, LongTexts, Measured, NeededError, PaddingSide, Placement, Precision, Row,
    folder_fields, folder_name, hub_name, is_model_folder, model_folders_in, needed_files, needed_to_export, place,
    snapshot,
};
pub use follow::{Change, FollowedFolders};
pub use nli::Nli;
pub use other_names::OtherName;
pub use repository::{BrokenModel, Replacement, Repository, RepositoryModel, Uploaded};
pub use sequence_batching::{Fact, SequenceBatching, SequenceControl, SequenceState};
pub use sources::{BrokenFolder, ModelFolder, ModelSources, SourceError, check_choices};
pub use task::{CLASSES, Task};
pub use temporary::{TemporaryFolder, remove_leftovers};
pub use torch::{torch_file, torch_file_beside};
