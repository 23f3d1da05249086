use std::os::unix::fs::PermissionsExt;

use super::*;

const TEXT: Bytes = Bytes::from_static(b"text");

#[tokio::test]
async fn values_outlive_the_process_and_revisions_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::open(directory.path()).unwrap();
    let first = disk.put(Bucket::Jobs, "a", TEXT, Some(0), None).await.unwrap();
    let gone = disk.put(Bucket::Jobs, "b", TEXT, None, None).await.unwrap();
    assert!(disk.delete(Bucket::Jobs, "b", Some(gone)).await.unwrap());
    drop(disk);
    let disk = Disk::open(directory.path()).unwrap();
    assert_eq!(disk.get(Bucket::Jobs, "a").await.unwrap().unwrap().revision, first);
    assert_eq!(disk.get(Bucket::Jobs, "b").await.unwrap(), None);
    assert!(disk.put(Bucket::Jobs, "a", TEXT, Some(first), None).await.unwrap() > gone + 1);
    let again = disk.put(Bucket::Jobs, "a", TEXT, Some(first), None).await;
    assert!(matches!(again, Err(BusError::Conflict { .. })), "{again:?}");
}

#[tokio::test]
async fn only_the_owner_reads_what_is_kept() {
    let parent = tempfile::tempdir().unwrap();
    let (directory, file) = (parent.path().join("new/data"), parent.path().join("new/data/jobs.redb"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    drop(Disk::open(&directory).unwrap());
    assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
}

#[tokio::test]
async fn a_watch_reads_values_and_changes_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::open(directory.path()).unwrap();
    for number in 0..5 {
        disk.put(Bucket::Jobs, &format!("{number}"), TEXT, None, None).await.unwrap();
    }
    disk.delete(Bucket::Jobs, "2", None).await.unwrap();
    disk.put(Bucket::Objects, "other.0", TEXT, None, None).await.unwrap();
    let mut watch = disk.watch(Bucket::Jobs);
    let mut next = async || match watch.recv().await.unwrap() {
        Change::Put(entry) => format!("put {}", entry.key),
        Change::Deleted { key, .. } => format!("deleted {key}"),
        Change::Complete => "complete".to_owned(),
    };
    for expected in ["put 0", "put 1", "put 3", "put 4", "complete"] {
        assert_eq!(next().await, expected);
    }
    disk.put(Bucket::Jobs, "0", TEXT, None, None).await.unwrap();
    disk.delete(Bucket::Jobs, "1", None).await.unwrap();
    assert_eq!((next().await.as_str(), next().await.as_str()), ("put 0", "deleted 1"));
}

#[tokio::test]
async fn writes_that_wait_share_a_transaction_and_keep_their_own_results() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::open(directory.path()).unwrap();
    let puts = (0..300).map(|number| {
        let disk = disk.clone();
        // Every third write has the same new key.
        let key = if number % 3 == 0 { "same".to_owned() } else { format!("{number}") };
        async move { disk.put(Bucket::Jobs, &key, TEXT, Some(0), None).await }
    });
    let results = futures_util::future::join_all(puts).await;
    let mut revisions: Vec<u64> = results.iter().flatten().copied().collect();
    assert_eq!(revisions.len(), 201, "one of those for the same key, and all others");
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 201);
    assert!(
        results.iter().flat_map(|result| result.as_ref().err()).all(|error| matches!(error, BusError::Conflict { .. }))
    );
    assert_eq!(disk.next(Bucket::Jobs, revisions[199]).await.unwrap().unwrap().revision, revisions[200]);
}

#[tokio::test]
async fn a_value_lapses_and_is_swept() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::open(directory.path()).unwrap();
    disk.put(Bucket::Objects, "a.0", TEXT, None, Some(Duration::from_millis(1))).await.unwrap();
    disk.put(Bucket::Objects, "a.1", TEXT, None, Some(Duration::from_secs(60))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(disk.get(Bucket::Objects, "a.0").await.unwrap(), None);
    disk.sweep(UnixMicros::now()).await.unwrap();
    assert!(!disk.delete(Bucket::Objects, "a.0", None).await.unwrap());
    assert!(disk.delete(Bucket::Objects, "a.1", None).await.unwrap());
}
