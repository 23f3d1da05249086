//! Writes the golden vectors of the message contract: `cargo run -p trireme-bus --example golden`.
//!
//! A difference from the committed files is a change of the contract: see "Versions" in `docs/message-contract.md`.

#[path = "../tests/golden/vectors.rs"]
mod vectors;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = vectors::folder();
    std::fs::create_dir_all(&folder)?;
    for vector in vectors::all() {
        std::fs::write(folder.join(format!("{}.msgpack", vector.name)), vector.message.encode()?)?;
        std::fs::write(folder.join(format!("{}.json", vector.name)), vector.describe())?;
        println!("{}: {}", vector.name, vector.about);
    }
    Ok(())
}
