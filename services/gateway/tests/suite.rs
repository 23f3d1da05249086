//! All tests of this folder in one program, because each program that is linked takes seconds.

mod answers;
mod control;
mod document;
mod exposure;
mod grpc;
mod spaces;
mod text_cache;
