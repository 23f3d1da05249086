//! Tensor datatypes under their three names: on the wire (`FP32`), in config.pbtxt (`TYPE_FP32`) and in this code.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Datatype of a tensor's elements. The wire names are those of the v2 protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "each variant is the protocol's own word")]
pub enum DataType {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bytes,
    Bf16,
}

// === impl DataType ===

impl DataType {
    /// Every datatype, in the order of Triton's `DataType` enum.
    pub const ALL: [DataType; 14] = [
        DataType::Bool,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Fp16,
        DataType::Fp32,
        DataType::Fp64,
        DataType::Bytes,
        DataType::Bf16,
    ];

    /// The name on the wire: `FP32`, `INT64`, `BYTES`.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Bool => "BOOL",
            DataType::Uint8 => "UINT8",
            DataType::Uint16 => "UINT16",
            DataType::Uint32 => "UINT32",
            DataType::Uint64 => "UINT64",
            DataType::Int8 => "INT8",
            DataType::Int16 => "INT16",
            DataType::Int32 => "INT32",
            DataType::Int64 => "INT64",
            DataType::Fp16 => "FP16",
            DataType::Fp32 => "FP32",
            DataType::Fp64 => "FP64",
            DataType::Bytes => "BYTES",
            DataType::Bf16 => "BF16",
        }
    }

    /// The name in config.pbtxt: `TYPE_FP32`, and `TYPE_STRING` for BYTES.
    pub const fn config_name(self) -> &'static str {
        match self {
            DataType::Bool => "TYPE_BOOL",
            DataType::Uint8 => "TYPE_UINT8",
            DataType::Uint16 => "TYPE_UINT16",
            DataType::Uint32 => "TYPE_UINT32",
            DataType::Uint64 => "TYPE_UINT64",
            DataType::Int8 => "TYPE_INT8",
            DataType::Int16 => "TYPE_INT16",
            DataType::Int32 => "TYPE_INT32",
            DataType::Int64 => "TYPE_INT64",
            DataType::Fp16 => "TYPE_FP16",
            DataType::Fp32 => "TYPE_FP32",
            DataType::Fp64 => "TYPE_FP64",
            DataType::Bytes => "TYPE_STRING",
            DataType::Bf16 => "TYPE_BF16",
        }
    }

    /// The datatype that config.pbtxt calls `name` (`TYPE_STRING` is BYTES).
    pub fn from_config_name(name: &str) -> Option<DataType> {
        DataType::ALL.into_iter().find(|d| d.config_name() == name)
    }

    /// Bytes of one element, `None` for BYTES, whose elements carry their own length.
    pub const fn element_size(self) -> Option<usize> {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(1),
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => Some(2),
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => Some(4),
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => Some(8),
            DataType::Bytes => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataType {
    type Err = ();

    /// Parses the wire name; config names and other spellings are errors.
    fn from_str(name: &str) -> Result<Self, ()> {
        DataType::ALL.into_iter().find(|d| d.name() == name).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for datatype in DataType::ALL {
            assert_eq!(datatype.name().parse(), Ok(datatype));
            assert_eq!(DataType::from_config_name(datatype.config_name()), Some(datatype));
        }
        assert_eq!("TYPE_FP32".parse::<DataType>(), Err(()));
    }
}
