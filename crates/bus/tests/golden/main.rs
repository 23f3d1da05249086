//! The committed golden vectors of the message contract: this build decodes them as described and encodes the same
//! bytes.

mod vectors;

use std::collections::BTreeSet;
use std::fs;

use bytes::Bytes;
use serde_json::Value;
use vectors::{all, folder};

#[test]
fn every_vector_decodes_to_what_it_says_and_encodes_to_its_bytes() {
    for vector in all() {
        let read = |ending: &str| {
            let path = folder().join(format!("{}.{ending}", vector.name));
            fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let body = Bytes::from(read("msgpack"));
        let decoded = vector.message.decode(&body).unwrap_or_else(|error| panic!("{}: {error}", vector.name));
        assert_eq!(decoded, vector.message, "{}", vector.name);
        assert_eq!(vector.message.encode().unwrap(), body, "{} is encoded to the committed bytes", vector.name);
        // Compared as values, because the order of keys has no meaning.
        let [described, committed] =
            [vector.describe().into_bytes(), read("json")].map(|text| serde_json::from_slice::<Value>(&text).unwrap());
        assert_eq!(described, committed, "{} is as its description says", vector.name);
    }
}

#[test]
fn there_are_no_other_vectors() {
    let expected: BTreeSet<_> =
        all().iter().flat_map(|v| [format!("{}.json", v.name), format!("{}.msgpack", v.name)]).collect();
    let found: BTreeSet<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json") || name.ends_with(".msgpack"))
        .collect();
    assert_eq!(found, expected);
}
