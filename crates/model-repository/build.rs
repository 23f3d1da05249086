//! Compiles `proto/model_config.proto` in Rust, twice over: to private message types, and to the descriptor that the
//! text format and JSON are read and written by.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo::rerun-if-changed={}", folder.join("model_config.proto").display());

    let mut compiler = protox::Compiler::new([folder])?;
    compiler.open_file("model_config.proto")?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("model_config.bin"), compiler.encode_file_descriptor_set())?;
    // Ordered maps: a message prints the same way every time.
    prost_build::Config::new().btree_map(["."]).compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
