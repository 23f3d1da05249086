//! Files of models in the formats of others, read as far as a description of the model needs it: the outline of an ONNX graph and a digest of
//! what it computes, the tensors
//! of safetensors and of PyTorch's files; and how files are opened ([`regular`]).
//!
//! Not here: what a folder of such files is (`model-repository`), running a graph.

pub mod canonical;
mod ending;
pub mod onnx;
pub mod regular;
pub mod safetensors;
mod stored_zip;
pub mod torch_file;
