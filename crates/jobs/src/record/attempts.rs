//! How often a job was begun in vain.

use serde::{Deserialize, Serialize};

/// How often a job is begun in vain, or its bytes are not there, before it is set aside.
pub(crate) const ATTEMPTS: u32 = 3;

/// How often a job was begun in vain. The counts are in its record, because a job that ends its gateway leaves nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attempts {
    /// Processes that have begun the job since it last made progress, and the last of these processes.
    pub begun: u32,
    pub by: String,
    /// Processes that have begun to write the job's output as columns, and the last of these processes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub joins: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub joins_by: String,
    /// Times that bytes of its input or output were not in the store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u32,
}

/// Whether a record leaves this count out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

// === impl Attempts ===

impl Attempts {
    /// The attempts of a request that this process accepts and begins, so that the beginning takes no further write.
    pub fn accepted(process: &str) -> Attempts {
        Attempts { begun: 1, by: process.to_owned(), ..Attempts::default() }
    }

    /// A process begins the job. The same one may begin it again: it has survived.
    pub fn begin(&mut self, process: &str) -> u32 {
        if self.by != process {
            self.begun += 1;
            process.clone_into(&mut self.by);
        }
        self.begun
    }

    /// A process begins to write the output as columns.
    pub fn begin_join(&mut self, process: &str) -> u32 {
        if self.joins_by != process {
            self.joins += 1;
            process.clone_into(&mut self.joins_by);
        }
        self.joins
    }

    /// The job has got on.
    pub fn get_on(&mut self) {
        (self.begun, self.lost) = (0, 0);
    }

    /// Whether the last process that has begun the job ended before the job got on, and the job is begun once more. A job that is set aside
    /// next needs no care.
    pub fn is_suspect(&self, process: &str) -> bool {
        (1..ATTEMPTS).contains(&self.begun) && self.by != process
    }
}
