//! One file from its place into a cache: resumed where it ended, checked, renamed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use ring::digest::{Context, SHA256};
use trireme_inference::Backoff;

use crate::FetchError;
use crate::progress::Progress;
use crate::remote::RemoteFile;
use crate::source::Source;

/// Failures in a row, without a byte between them, that end a download.
const ATTEMPTS: u32 = 5;

/// The pauses before a download goes on after failures in a row.
const GO_ON: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(8));

/// Puts the content of `file` at `target`. Meanwhile it lies at `partial`, from where a later call goes on.
pub(crate) async fn download(
    source: &Source,
    file: &RemoteFile,
    partial: &Path,
    target: &Path,
    progress: &mut Progress,
) -> Result<(), FetchError> {
    for path in [partial, target] {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(FetchError::io(parent))?;
        }
    }
    progress.expect(file.size);
    let url = source.url(file);
    let (mut failures, mut restarted) = (0, false);
    loop {
        let before = length(partial);
        let failed = match receive(source, file, partial, progress).await {
            Ok(()) => match check(file, &url, partial) {
                Ok(()) => return fs::rename(partial, target).map_err(FetchError::io(target)),
                // A download that went on where another ended may have put two contents together.
                Err(fault @ (FetchError::Digest { .. } | FetchError::Size { .. })) => {
                    fs::remove_file(partial).map_err(FetchError::io(partial))?;
                    if restarted {
                        return Err(fault);
                    }
                    restarted = true;
                    fault
                }
                Err(fault) => return Err(fault),
            },
            Err(fault) if fault.is_transient() => fault,
            Err(fault) => return Err(fault),
        };
        failures = if length(partial) > before { 0 } else { failures + 1 };
        if failures >= ATTEMPTS {
            return Err(failed);
        }
        let pause = GO_ON.scattered_after(failures + 1);
        tracing::warn!(received = length(partial), "the download is continued in {} ms: {failed}", pause.as_millis());
        tokio::time::sleep(pause).await;
    }
}

/// Appends to `partial` what comes. A connection that is cut is an error; what ends as the server means it is not.
async fn receive(
    source: &Source,
    file: &RemoteFile,
    partial: &Path,
    progress: &mut Progress,
) -> Result<(), FetchError> {
    let there = length(partial);
    if there > 0 && file.size == Some(there) {
        return Ok(());
    }
    let from = if file.size.is_some_and(|size| there > size) { 0 } else { there };
    let mut body = source.read(file, from).await?;
    // A server that does not send parts sends all of it.
    let start = if body.from == from { from } else { 0 };
    if body.from != start {
        let (url, found) = (source.url(file), format!("byte {}", body.from));
        return Err(FetchError::Answer { url, expected: "the part that was asked for", found });
    }
    let mut out =
        File::options().create(true).truncate(false).write(true).open(partial).map_err(FetchError::io(partial))?;
    out.set_len(start).map_err(FetchError::io(partial))?;
    std::io::Seek::seek(&mut out, std::io::SeekFrom::Start(start)).map_err(FetchError::io(partial))?;
    while let Some(piece) = body.bytes.next().await {
        let piece = piece.map_err(|why| FetchError::Unreachable { url: source.url(file), why })?;
        out.write_all(&piece).map_err(FetchError::io(partial))?;
        progress.add(&file.name, piece.len());
    }
    out.sync_data().map_err(FetchError::io(partial))
}

/// Compares the received file with the size and the digest that the server gave.
fn check(file: &RemoteFile, url: &str, partial: &Path) -> Result<(), FetchError> {
    let found = length(partial);
    if let Some(expected) = file.size.filter(|size| *size != found) {
        return Err(FetchError::Size { url: url.to_owned(), expected, found });
    }
    if let Some(expected) = &file.sha256 {
        let found = sha256(partial).map_err(FetchError::io(partial))?;
        if found != expected.to_lowercase() {
            return Err(FetchError::Digest { url: url.to_owned(), expected: expected.clone(), found });
        }
    }
    Ok(())
}

/// The digest of a file in hexadecimal digits.
fn sha256(path: &Path) -> std::io::Result<String> {
    let (mut context, mut file) = (Context::new(&SHA256), File::open(path)?);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => context.update(&buffer[..read]),
        }
    }
    Ok(hex(context.finish().as_ref()))
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}
