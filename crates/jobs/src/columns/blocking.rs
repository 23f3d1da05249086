//! Objects in the store as files, for the libraries of columns: they read and write on threads that block.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use trireme_columns::Source;

use crate::error::JobError;
use crate::jobs::Jobs;
use crate::objects::{self, Part, Reader};
use crate::record::Object;

/// Parts that a reader keeps: it goes on in each column by turns.
const PARTS: usize = 64;

/// The store, for threads that block. The libraries for columns pass its errors on as words only, so it keeps the last one: a fault of
/// the store is over some time, one of the data is not. Clones are the same.
#[derive(Clone)]
pub(super) struct Access {
    jobs: Jobs,
    runtime: Handle,
    fault: Arc<Mutex<Option<JobError>>>,
    /// Nobody waits for the work any more.
    is_over: Arc<AtomicBool>,
}

/// Ends the work of a thread that blocks when nobody waits for it any more: its next read or write fails.
pub(super) struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Parts of objects in the store, as a file. May be read on threads that block.
pub(super) struct Stored {
    access: Access,
    objects: Vec<Object>,
    /// The parts that were read last, by object.
    kept: Mutex<VecDeque<(usize, Part)>>,
}

/// An object in the store that is written. May be written on threads that block.
pub(super) struct Sink<'a> {
    pub access: Access,
    pub writer: objects::Writer<'a>,
}

/// The bytes of an object, part after part. May be read on threads that block.
pub(super) struct Parts {
    access: Access,
    reader: Reader,
    bytes: Bytes,
}

// === impl Access ===

impl Access {
    pub fn of(jobs: &Jobs) -> Access {
        let (jobs, runtime) = (jobs.clone(), Handle::current());
        Access { jobs, runtime, fault: Arc::default(), is_over: Arc::default() }
    }

    /// The work goes on until this is dropped.
    pub fn waits(&self) -> Waits {
        Waits(self.is_over.clone())
    }

    /// Waits for the store.
    #[allow(clippy::disallowed_methods, reason = "the store answers without another thread for blocking work")]
    pub fn wait<T>(&self, asking: impl Future<Output = Result<T, JobError>>) -> io::Result<T> {
        if self.is_over.load(Ordering::Relaxed) {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        self.runtime.block_on(asking).map_err(|error| {
            let words = io::Error::other(error.to_string());
            if let Ok(mut fault) = self.fault.lock() {
                *fault = Some(error);
            }
            words
        })
    }

    /// Tells a fault of the store, which is an error, from one of the data. Bytes that are lost are one of the data once they were looked for
    /// often enough.
    pub fn judge<T>(&self, outcome: Result<T, String>) -> Result<Result<T, String>, JobError> {
        let fault = self.fault.lock().ok().and_then(|mut fault| fault.take());
        match fault.filter(|_| outcome.is_err()) {
            Some(fault) => Err(fault),
            None => Ok(outcome),
        }
    }
}

// === impl Stored ===

impl Stored {
    pub fn of(access: &Access, objects: &[Object]) -> Stored {
        Stored { access: access.clone(), objects: objects.to_vec(), kept: Mutex::default() }
    }

    /// The part of an object with this byte of it.
    fn part(&self, object: usize, offset: u64) -> io::Result<Part> {
        let poisoned = |_| io::Error::other("a reader of this file has panicked");
        let is_wanted = |(own, part): &&(usize, Part)| *own == object && part.contains(offset);
        let found = self.kept.lock().map_err(poisoned)?.iter().find(is_wanted).map(|(_, part)| part.clone());
        if let Some(part) = found {
            return Ok(part);
        }
        let bus = self.access.jobs.0.bus.as_ref();
        let (_, part) = self.access.wait(objects::find(bus, &self.objects[object], offset))?;
        let mut kept = self.kept.lock().map_err(poisoned)?;
        if kept.len() == PARTS {
            kept.pop_front();
        }
        kept.push_back((object, part.clone()));
        Ok(part)
    }
}

impl Source for Stored {
    fn size(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    fn read(&self, from: u64, length: usize) -> io::Result<Bytes> {
        if from.checked_add(length as u64).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = BytesMut::with_capacity(length);
        let (mut skip, mut index) = (from, 0);
        while bytes.len() < length {
            let object = self.objects.get(index).ok_or(io::ErrorKind::UnexpectedEof)?;
            if skip >= object.bytes {
                skip -= object.bytes;
                index += 1;
                continue;
            }
            let within = self.part(index, skip)?.from(skip);
            let within = &within[..within.len().min(length - bytes.len())];
            bytes.extend_from_slice(within);
            skip += within.len() as u64;
        }
        Ok(bytes.freeze())
    }
}

// === impl Parts ===

impl Parts {
    pub fn of(access: &Access, object: &Object) -> Parts {
        Parts { access: access.clone(), reader: Reader::new(object.clone()), bytes: Bytes::new() }
    }
}

impl BufRead for Parts {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.bytes.is_empty() {
            let next = self.reader.next(self.access.jobs.0.bus.as_ref());
            self.bytes = self.access.wait(next)?.unwrap_or_default();
        }
        Ok(&self.bytes)
    }

    fn consume(&mut self, amount: usize) {
        let _ = self.bytes.split_to(amount.min(self.bytes.len()));
    }
}

impl Read for Parts {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        self.consume(count);
        Ok(count)
    }
}

// === impl Sink ===

impl Sink<'_> {
    pub fn finish(self) -> io::Result<Object> {
        let Sink { access, writer } = self;
        access.wait(async { Ok(writer.finish().await?) })
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Sink { access, writer } = self;
        access.wait(async { Ok(writer.write(bytes).await?) })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::{jobs, written};

    /// The output of a batch, in parts of any size, is the input of another one.
    #[tokio::test(flavor = "multi_thread")]
    async fn any_range_of_a_file_of_columns_is_the_slice_of_the_whole() {
        let jobs = jobs();
        let (mut objects, mut whole) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let checkpoints: Vec<_> = (0..20).map(|_| fastrand::usize(..4000)).chain([1 << 20, 7]).collect();
            let (object, bytes) = written(&jobs, number.to_string(), &checkpoints).await;
            objects.push(object);
            whole.extend(bytes);
        }
        let source = Stored::of(&Access::of(&jobs), &objects);
        let reading = tokio::task::spawn_blocking(move || {
            for _ in 0..200 {
                let from = fastrand::usize(..whole.len());
                let length = fastrand::usize(..=(whole.len() - from).min(100_000));
                assert!(
                    source.read(from as u64, length).unwrap() == whole[from..from + length],
                    "{length} from {from}"
                );
            }
            assert!(source.read(1, whole.len()).is_err());
        });
        reading.await.unwrap();
    }
}
