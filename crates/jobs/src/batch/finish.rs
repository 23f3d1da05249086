//! The end of a batch: its output and its errors become files.

use std::time::Duration;

use trireme_columns::Format;

use super::{LINES, Run, SLACK};
use crate::columns;
use crate::error::JobError;
use crate::outcomes::Outcome;
use crate::record::{ATTEMPTS, BatchState, Counts, File, Object};
use crate::turns::Turns;

/// How long the output of a cancelled batch may take to become columns. After that it stays lines.
const CANCELS: Duration = Duration::from_secs(3);

impl Run<'_> {
    /// Ends the batch for a reason. The answers that it has are published.
    pub(super) async fn fail(mut self, why: String) -> Result<(), JobError> {
        self.batch.failure = Some(why);
        self.finish(BatchState::Failed).await
    }

    /// Ends the batch: writes the lines that have ended, and makes files of output and errors.
    pub(super) async fn finish(mut self, mut state: BatchState) -> Result<(), JobError> {
        // Other jobs get the room.
        self.turns = Turns::new(&self.jobs.0.paces);
        let chunks = std::mem::take(&mut self.chunks).into_iter();
        let ended: Vec<Outcome> =
            chunks.flat_map(|chunk| chunk.outcomes).flatten().map(|(outcome, _)| outcome).collect();
        self.batch.ahead = Counts::default();
        let table = self.table().await?;
        if table.is_some() {
            // Before it is tried: the count outlives a gateway that does not.
            self.batch.attempts.begin_join(&self.jobs.0.process);
            self.save(None).await?;
        }
        let (output, errors) = self.write(ended.into_iter()).await?;
        let live = self.jobs.0.options.time_to_live;
        let mut publish = Vec::new();
        let (mut whole, mut suffix) = (output.clone(), LINES);
        if let Some(table) = table.filter(|_| output.bytes > 0) {
            match self.joined(&table, state, [&output, &errors]).await? {
                Ok(object) => (whole, suffix) = (object, table.1.suffix()),
                // The answers are kept as lines.
                Err(_) if state == BatchState::Cancelled => {}
                Err(why) => {
                    state = BatchState::Failed;
                    self.batch.failure.get_or_insert_with(|| format!("file '{}': {why}", self.batch.input));
                }
            }
        }
        for (object, what, suffix) in [(&whole, "output", suffix), (&errors, "errors", LINES)] {
            let id = format!("file-{}-{what}", self.id);
            publish.push((object.bytes > 0).then_some(id));
            if let Some(Some(id)) = publish.last() {
                let name = format!("{}_{what}.{suffix}", self.id);
                let keep = self.batch.keeps(live);
                self.jobs.publish(id, self.lease(), &self.batch.client, name, object, keep).await?;
            }
        }
        self.batch.errors = publish.pop().flatten();
        self.batch.output = publish.pop().flatten();
        self.batch.checkpoint.output = output;
        self.batch.checkpoint.errors = errors;
        if self.batch.cancelling.is_some() && state != BatchState::Failed {
            state = BatchState::Cancelled;
        }
        self.batch.state = state;
        self.batch.ended = Some(self.jobs.now());
        self.save(Some(live)).await?;
        Ok(())
    }

    /// The input, if it has columns and is still there.
    async fn table(&mut self) -> Result<Option<(File, Format)>, JobError> {
        match self.jobs.file(&self.batch.input).await {
            Ok(file) => Ok(columns::format(&file).map(|format| (file, format))),
            Err(JobError::Unknown { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The output in the format of `table`; why it stays lines.
    async fn joined(
        &mut self,
        (file, format): &(File, Format),
        state: BatchState,
        [output, errors]: [&Object; 2],
    ) -> Result<Result<Object, String>, JobError> {
        if self.batch.attempts.lost >= ATTEMPTS {
            return Ok(Err("its bytes are lost".to_owned()));
        }
        if self.batch.attempts.joins > ATTEMPTS {
            return Ok(Err(format!("{ATTEMPTS} gateways have ended while they wrote its output as columns")));
        }
        let left = Duration::from_secs(self.batch.expires.saturating_sub(self.jobs.now()));
        let lapse = Some(left + self.batch.keeps(self.jobs.0.options.time_to_live) + SLACK);
        let joining = columns::join(self.lease(), file, *format, [output, errors], lapse);
        match state {
            BatchState::Cancelled => tokio::time::timeout(CANCELS, joining).await.unwrap_or_else(|_| {
                Ok(Err("the batch was cancelled before its output was written as columns".to_owned()))
            }),
            _ => joining.await,
        }
    }
}
