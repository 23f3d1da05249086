//! The header of a safetensors file: which tensors it holds, in which shapes.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use crate::regular;

/// No header is larger than this: the format's own limit.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// The shapes of the tensors in the file at `path`, by name. The format: eight bytes with the header's length, then JSON.
pub fn shapes(path: &Path) -> io::Result<BTreeMap<String, Vec<i64>>> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not a safetensors file: {what}"));
    let mut file = regular::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| damaged("it has less than eight bytes"))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || length > file.metadata()?.len() {
        return Err(damaged("its header is longer than the file"));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header)?;
    let Ok(Value::Object(tensors)) = serde_json::from_slice(&header) else {
        return Err(damaged("its header is not a JSON object"));
    };
    let shape = |value: &Value| value.get("shape")?.as_array()?.iter().map(Value::as_i64).collect::<Option<Vec<_>>>();
    Ok(tensors.iter().filter_map(|(name, value)| Some((name.clone(), shape(value)?))).collect())
}
