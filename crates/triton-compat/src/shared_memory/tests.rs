//! Regions on real files, in a folder that stands for `/dev/shm`.

use std::fs;

use tempfile::TempDir;

use super::*;

const LENGTH: u64 = 4096;

fn objects() -> (TempDir, SharedMemory) {
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..LENGTH).map(|i| i as u8).collect();
    fs::write(directory.path().join("object"), bytes).unwrap();
    let memory = SharedMemory::within(directory.path());
    (directory, memory)
}

fn region(key: &str, offset: u64, byte_size: u64) -> SystemRegion {
    SystemRegion { key: key.to_owned(), offset, byte_size }
}

fn part(region: &str, offset: u64, byte_size: u64) -> SharedMemoryPart {
    SharedMemoryPart { region: region.to_owned(), offset, byte_size }
}

#[track_caller]
fn assert_refused<T>(outcome: Result<T, InferError>, code: ErrorCode, message: &str) {
    let error = outcome.err().expect("a refusal");
    assert_eq!((error.code, error.message.as_str()), (code, message));
}

#[test]
fn parts_are_counted_from_where_their_region_begins() {
    let (directory, memory) = objects();
    memory.register("r", region("/object", 16, 32)).unwrap();
    assert_eq!(memory.find(&part("r", 4, 3)).unwrap().read().unwrap(), [20u8, 21, 22][..]);
    memory.find(&part("r", 30, 2)).unwrap().write(b"xy").unwrap();
    let found = fs::read(directory.path().join("object")).unwrap();
    assert_eq!((&found[44..50], found.len() as u64), (&[44, 45, b'x', b'y', 48, 49][..], LENGTH));
}

#[test]
fn what_is_outside_a_region_is_not_found() {
    let (_directory, memory) = objects();
    memory.register("r", region("object", 16, 32)).unwrap();
    let offset = "Invalid offset for shared memory region: 'r'";
    let size = "Invalid offset + byte size for shared memory region: 'r'";
    for (at, length, message) in
        [(32, 1, offset), (u64::MAX, 1, offset), (0, 33, size), (31, 2, size), (31, u64::MAX, size), (0, 0, size)]
    {
        assert_refused(memory.find(&part("r", at, length)), ErrorCode::InvalidArg, message);
    }
    let unknown = "Unable to find shared memory region: 'other'";
    assert_refused(memory.find(&part("other", 0, 1)), ErrorCode::NotFound, unknown);
}

#[test]
fn a_region_has_to_fit_its_object() {
    let (_directory, memory) = objects();
    let message = "failed to register shared memory region 'r': invalid args";
    for (offset, size) in [(0, LENGTH + 1), (LENGTH, 1), (1, LENGTH), (0, 0), (u64::MAX, 2), (2, u64::MAX)] {
        assert_refused(memory.register("r", region("object", offset, size)), ErrorCode::InvalidArg, message);
    }
    memory.register("r", region("object", 0, LENGTH)).unwrap();
}

#[test]
fn keys_lead_nowhere_else() {
    let (directory, memory) = objects();
    let inside = directory.path().join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("object"), [0; 8]).unwrap();
    std::os::unix::fs::symlink(directory.path().join("object"), directory.path().join("link")).unwrap();
    let long = "x".repeat(NAME_MAX + 1);
    for key in
        ["", "/", ".", "..", "/..", "inside", "inside/object", "/../object", "./object", "link", "none", "a\0b", &long]
    {
        let message = format!("Unable to open shared memory region: '{key}'");
        assert_refused(memory.register("r", region(key, 0, 1)), ErrorCode::Internal, &message);
    }
}

#[test]
fn names_are_unique_until_they_are_given_back() {
    let (_directory, memory) = objects();
    memory.register("b", region("object", 0, 8)).unwrap();
    memory.register("a", region("object", 8, 8)).unwrap();
    let twice = memory.register("a", region("none", 0, 8));
    assert_refused(twice, ErrorCode::AlreadyExists, "shared memory region 'a' already in manager");
    let listed = memory.status(None).unwrap();
    assert_eq!(listed, [("a".to_owned(), region("object", 8, 8)), ("b".to_owned(), region("object", 0, 8))]);
    assert_eq!(memory.status(Some("b")).unwrap(), listed[1..]);

    let held = memory.find(&part("a", 0, 1)).unwrap();
    memory.unregister(Some("a"));
    memory.unregister(Some("a"));
    assert_refused(memory.status(Some("a")), ErrorCode::NotFound, "Unable to find system shared memory region: 'a'");
    assert_eq!(held.read().unwrap(), [8u8][..]);
    memory.unregister(None);
    assert_eq!(memory.status(None).unwrap(), []);
}

#[test]
fn an_object_that_was_cut_short_is_neither_read_nor_made_longer() {
    let (directory, memory) = objects();
    memory.register("r", region("object", 0, LENGTH)).unwrap();
    let found = memory.find(&part("r", 100, 50)).unwrap();
    let object = OpenOptions::new().write(true).open(directory.path().join("object")).unwrap();
    object.set_len(120).unwrap();
    let message = "unable to use 'object' of shared memory region 'r': it has 120 bytes left, expected at least 150";
    assert_refused(found.read(), ErrorCode::InvalidArg, message);
    assert_refused(found.write(&[1; 50]), ErrorCode::InvalidArg, message);
    found.write(&[1; 20]).unwrap();
    assert_eq!(object.metadata().unwrap().len(), 120);
}

#[test]
fn regions_and_tensors_are_bounded() {
    let (directory, memory) = objects();
    for name in 0..MAX_REGIONS {
        memory.register(&name.to_string(), region("object", 0, 1)).unwrap();
    }
    let message = "failed to register shared memory region 'r': there are 1024 already, which is the most";
    assert_refused(memory.register("r", region("object", 0, 1)), ErrorCode::Unavailable, message);

    memory.unregister(None);
    // As long as it says, but without a byte of memory behind it.
    File::create(directory.path().join("hollow")).unwrap().set_len(MAX_PART + 1).unwrap();
    memory.register("r", region("hollow", 0, MAX_PART + 1)).unwrap();
    let message = "a tensor of 2147483648 bytes in shared memory region 'r' exceeds the maximum of 2147483647 bytes";
    assert_refused(memory.find(&part("r", 0, MAX_PART + 1)), ErrorCode::InvalidArg, message);
}

#[tokio::test(flavor = "multi_thread")]
async fn much_is_copied_beside_the_other_requests() {
    let (directory, memory) = objects();
    let size = COPIED_AT_ONCE + 1;
    fs::write(directory.path().join("large"), vec![7; size as usize]).unwrap();
    memory.register("r", region("large", 0, size)).unwrap();
    let found = memory.find(&part("r", 0, size)).unwrap();
    assert!(found.read().unwrap().iter().all(|&byte| byte == 7));
    found.write(&vec![8; size as usize]).unwrap();
    assert!(found.read().unwrap().iter().all(|&byte| byte == 8));
}
