//! Files of models in the formats of other projects, read as far as a description of the model needs it: the outline of an ONNX graph and a
//! digest of its computation, the tensors of safetensors and of PyTorch's files; and how files are opened ([`regular`]).
//!
//! Not here: the meaning of a folder of such files (`model-repository`), running a graph.

pub mod canonical;
mod ending;
pub mod onnx;
pub mod regular;
pub mod safetensors;
mod stored_zip;
pub mod torch_file;
