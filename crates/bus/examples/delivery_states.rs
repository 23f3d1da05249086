//! Writes `docs/delivery-states.md` from the table that the conformance suite walks: `cargo run -p trireme-bus --example delivery_states`.

#[path = "../tests/conformance/states/table.rs"]
mod table;

fn main() -> std::io::Result<()> {
    std::fs::write(table::file(), table::page())
}
