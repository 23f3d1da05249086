//! The names of a packed graph's inputs and outputs.

/// The input `[1, tokens]` with the place of each token.
pub const PLACES: &str = "packing/places";

/// The name of an input, output or tensor in a group.
pub fn of_group(name: &str, group: usize) -> String {
    format!("{name}/group{group}")
}

/// The input of a group with the number of each position's token.
pub fn tokens(group: usize) -> String {
    of_group("packing/tokens", group)
}
