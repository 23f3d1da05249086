//! The shared memory extension: regions in JSON, and the part of a region in which a tensor lies.

use bytes::Bytes;
use trireme_inference::{InferError, SharedMemoryPart};

use crate::json::{self, Value, Writer};
use crate::refusal::unable_to_parse;

/// A client's description of a region of system memory to register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemRegion {
    /// The memory object's name, as `shm_open` takes it.
    pub key: String,
    /// The offset of the region in the memory object, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub byte_size: u64,
}

/// The body of a request to register a region of system memory.
pub fn decode_register_request(body: &[u8]) -> Result<SystemRegion, InferError> {
    let [key, offset, byte_size] = json::parse(body)?.pick(["key", "offset", "byte_size"]);
    let missing =
        |name| move || InferError::invalid_arg(format!("Shared memory register request has no '{name}' field"));
    Ok(SystemRegion {
        key: key.ok_or_else(missing("key"))?.as_text()?.into_owned(),
        offset: offset.map_or(Ok(0), |offset| offset.as_u64())?,
        byte_size: byte_size.ok_or_else(missing("byte_size"))?.as_u64()?,
    })
}

/// The list of regions with the names under which they are registered.
pub fn encode_status<'a>(regions: impl Iterator<Item = (&'a str, &'a SystemRegion)>) -> Bytes {
    let mut w = Writer::default();
    w.array(|w| {
        for (name, region) in regions {
            w.object(|w| {
                w.name("name").string(name);
                w.name("key").string(&region.key);
                w.name("offset").integer(region.offset);
                w.name("byte_size").integer(region.byte_size);
            });
        }
    });
    w.into_bytes()
}

/// The place of a tensor in shared memory, if its parameters name a region. A missing size counts as 0.
pub(crate) fn decode_part(parameters: Option<&Value<'_>>) -> Result<Option<SharedMemoryPart>, InferError> {
    const NAMES: [&str; 3] = ["shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"];
    let Some([Some(region), offset, byte_size]) = parameters.map(|parameters| parameters.pick(NAMES)) else {
        return Ok(None);
    };
    let region = region.as_text().map_err(unable_to_parse(NAMES[0]))?.into_owned();
    let number = |value: Option<Value<'_>>, name| match value {
        Some(value) => value.as_u64().map_err(unable_to_parse(name)),
        None => Ok(0),
    };
    let (offset, byte_size) = (number(offset, NAMES[1])?, number(byte_size, NAMES[2])?);
    Ok(Some(SharedMemoryPart { region, offset, byte_size }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_inference::ErrorCode;

    #[test]
    fn regions_are_read_and_listed() {
        let region = decode_register_request(br#"{"key":"/k","byte_size":8,"more":1}"#).unwrap();
        assert_eq!(region, SystemRegion { key: "/k".to_owned(), offset: 0, byte_size: 8 });
        let listed = encode_status([("r", &region), ("s", &SystemRegion { offset: 4, ..region.clone() })].into_iter());
        let expected =
            r#"[{"name":"r","key":"/k","offset":0,"byte_size":8},{"name":"s","key":"/k","offset":4,"byte_size":8}]"#;
        assert_eq!(listed, expected);
        assert_eq!(encode_status([].into_iter()), "[]");
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_said_in_tritons_words() {
        use ErrorCode::{Internal, InvalidArg};
        let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
        let table = [
            ("{}", InvalidArg, "Shared memory register request has no 'key' field"),
            (r#"{"key":"/k"}"#, InvalidArg, "Shared memory register request has no 'byte_size' field"),
            (r#"{"key":5,"byte_size":8}"#, Internal, "attempt to access JSON non-string as string"),
            (r#"{"key":"/k","byte_size":-1}"#, Internal, unsigned),
            (r#"{"key":"/k","byte_size":8,"offset":"x"}"#, Internal, unsigned),
            ("", Internal, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ];
        for (body, code, message) in table {
            let error = decode_register_request(body.as_bytes()).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (code, message), "{body}");
        }
    }
}
