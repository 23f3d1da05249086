//! Names of owners.

/// The name under which an administrator's requests are counted. No owner of a key has parentheses in its name.
pub const ADMINISTRATOR: &str = "(administrator)";

/// Longest name of an owner, in bytes.
pub const LONGEST_NAME: usize = 64;

/// Whether an owner may have this name.
pub fn is_owner_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
}
