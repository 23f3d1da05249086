//! The records of files, of uploads and of their parts.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::object::Object;

/// A file that a client uploaded or a batch wrote. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub(crate) purpose: Purpose,
    /// The client whose file it is.
    pub(crate) client: String,
    /// The batches that read it. Some may have ended.
    pub(crate) used_by: Vec<String>,
    /// The upload that it is a part of.
    pub(crate) upload: Option<String>,
    /// A digest that differs for another file under the same key of its client; of an upload that is complete, for other parts.
    pub(crate) digest: Bytes,
    /// Of an upload: how long its file is kept, in seconds.
    pub(crate) lapse: Option<u64>,
    /// Of an upload that is complete, and of a file that has arrived under a client's key: the id of the file that has its bytes, or gets
    /// them.
    pub(crate) file: Option<String>,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written.
    pub created: u64,
    /// When it is deleted.
    pub expires: Option<u64>,
    /// Its bytes, in this order.
    pub(crate) objects: Vec<Object>,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// A file that batches read.
    Batch,
    /// A file that a batch has written.
    BatchOutput,
    /// An upload that is not complete.
    Upload,
    /// A part of one.
    Part,
    /// An upload whose parts become a file or have become one. It has their bytes until the file is written.
    Joined,
    /// A file whose bytes still arrive.
    Arriving,
    /// A record that was deleted; of a file, some of its bytes may still be there. It is written before the record goes: when a broker crashes
    /// and has dropped the deletion, the last value that its log has comes back (nats-server issue 8505), and that is this one.
    Deleted,
}

// === impl Purpose ===

impl Purpose {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Batch => "batch",
            Purpose::BatchOutput => "batch_output",
            Purpose::Upload => "upload",
            Purpose::Part => "upload_part",
            Purpose::Joined => "upload_joined",
            Purpose::Arriving => "arriving",
            Purpose::Deleted => "deleted",
        }
    }

    /// Whether clients see such records as files.
    pub fn is_file(self) -> bool {
        matches!(self, Purpose::Batch | Purpose::BatchOutput)
    }
}

// === impl File ===

impl File {
    /// A file without bytes.
    pub(crate) fn new(client: &str, name: &str, purpose: Purpose, created: u64) -> File {
        File {
            name: name.to_owned(),
            purpose,
            client: client.to_owned(),
            used_by: Vec::new(),
            upload: None,
            digest: Bytes::new(),
            lapse: None,
            file: None,
            bytes: 0,
            created,
            expires: None,
            objects: Vec::new(),
        }
    }

    /// A word that differs for other bytes under its id: a batch that goes on after a crash may write its output again.
    pub fn version(&self) -> String {
        format!("{:x}-{:x}", self.created, self.bytes)
    }

    /// Whether the store drops the record by itself when its time is over: the output of a batch, an upload, and one whose file is there.
    pub(crate) fn lapses(&self) -> bool {
        match self.purpose {
            Purpose::BatchOutput | Purpose::Upload => true,
            Purpose::Joined => self.objects.is_empty(),
            Purpose::Batch | Purpose::Part | Purpose::Arriving | Purpose::Deleted => false,
        }
    }

    /// Its purpose in the API.
    pub fn purpose_name(&self) -> &'static str {
        self.purpose.name()
    }
}
