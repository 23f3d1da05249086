//! Compiles the gRPC interfaces in `proto/` to Rust: messages, server traits and, for tests, clients; and to the descriptors
//! that clients without these files ask for.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 3] = ["grpc_service.proto", "health.proto", "tei.proto"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    for file in FILES.into_iter().chain(["model_config.proto"]) {
        println!("cargo::rerun-if-changed={}", folder.join(file).display());
    }

    let mut compiler = protox::Compiler::new([folder])?;
    compiler.include_imports(true).open_files(FILES)?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("services.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        // Tensors stay slices of the received message.
        .bytes(".")
        // Ordered maps, so that of several faulty parameters the error always names the same one.
        .btree_map(".")
        // Clients bring their own transport.
        .build_transport(false)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
