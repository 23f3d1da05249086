//! Compiles the gRPC interface in `proto/` in Rust: messages, server traits and, for tests, clients.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 2] = ["grpc_service.proto", "health.proto"];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    for file in FILES.into_iter().chain(["model_config.proto"]) {
        println!("cargo::rerun-if-changed={}", folder.join(file).display());
    }

    let mut compiler = protox::Compiler::new([folder])?;
    compiler.include_imports(true).open_files(FILES)?;
    tonic_prost_build::configure()
        // Tensors stay slices of the message that they came in.
        .bytes(".")
        // Ordered maps: of several faulty parameters the same one is always named.
        .btree_map(".")
        // Connecting is for whoever has a transport.
        .build_transport(false)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
