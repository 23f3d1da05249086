//! The host that this process runs on.

/// This host's name, or `unknown-host`.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown-host".to_owned(),
        name => name.to_owned(),
    }
}
