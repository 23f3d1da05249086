//! How an executed batch is counted. Usually it is one run. An instance may also run a batch's requests one by one, for example
//! when one request would fail the others.

use trireme_inference::Executed;

use crate::batching::Description;
use crate::request::ExecuteTiming;

/// The runs, each with its timing and size.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Runs(Vec<(ExecuteTiming, Size)>);

/// The size of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    /// Sum of its requests' rows.
    rows: u64,
    /// Sum over its requests of rows times length.
    tokens: u64,
    /// Length of its longest request.
    length: u64,
}

/// The counted form of a run with this timing.
pub fn executed(timing: &ExecuteTiming) -> Executed {
    Executed {
        batch_size: timing.batch_size.max(1),
        compute_input: timing.compute_input,
        compute_infer: timing.compute_infer,
        compute_output: timing.compute_output,
    }
}

// === impl Runs ===

impl Runs {
    /// Finds the runs behind the results of one batch: neighbours with equal timings ran together, as far as their rows
    /// fit into the timing's batch size. Requests that failed have no timing.
    pub fn of(requests: impl IntoIterator<Item = (Description, Option<ExecuteTiming>)>) -> Runs {
        let mut runs: Vec<(ExecuteTiming, Size)> = Vec::new();
        for (description, timing) in requests {
            let Some(timing) = timing else { continue };
            let (rows, length) = (u64::from(description.rows), u64::from(description.length));
            let together = |(other, size): &&mut (ExecuteTiming, Size)| {
                *other == timing && size.rows + rows <= u64::from(timing.batch_size)
            };
            let size = match runs.last_mut().filter(together) {
                Some((_, size)) => size,
                None => {
                    runs.push((timing, Size::default()));
                    &mut runs.last_mut().expect("pushed just now").1
                }
            };
            size.rows += rows;
            size.tokens += rows * length;
            size.length = size.length.max(length);
        }
        Runs(runs)
    }

    /// The runs in their counted form.
    pub fn executed(&self) -> impl Iterator<Item = Executed> {
        self.0.iter().map(|(timing, _)| executed(timing))
    }

    /// Number of tokens, padding included, and the number of padding tokens among them.
    pub fn tokens(&self) -> (u64, u64) {
        let executed: u64 = self.0.iter().map(|(_, size)| size.rows * size.length).sum();
        let useful: u64 = self.0.iter().map(|(_, size)| size.tokens).sum();
        (executed, executed - useful)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(rows: u32, length: u32, batch_size: u32) -> (Description, Option<ExecuteTiming>) {
        let timing = ExecuteTiming { batch_size, compute_infer: Duration::from_millis(1), ..Default::default() };
        (Description { rows, length, signature: 0 }, Some(timing))
    }

    #[test]
    fn a_batch_is_one_run_with_its_padding() {
        let runs = Runs::of([request(1, 10, 4), request(2, 4, 4), request(1, 10, 4)]);
        assert_eq!(runs.executed().map(|run| run.batch_size).collect::<Vec<_>>(), [4]);
        assert_eq!(runs.tokens(), (40, 12));
    }

    #[test]
    fn requests_that_ran_alone_are_runs_of_their_own() {
        let failed = (Description { rows: 1, length: 9, signature: 0 }, None);
        let runs = Runs::of([request(1, 5, 1), failed, request(1, 7, 1), request(3, 1, 3)]);
        assert_eq!(runs.executed().map(|run| run.batch_size).collect::<Vec<_>>(), [1, 1, 3]);
        assert_eq!(runs.tokens(), (15, 0));
    }

    #[test]
    fn a_backend_that_says_nothing_ran_each_alone() {
        let silent = (Description { rows: 1, length: 1, signature: 0 }, Some(ExecuteTiming::default()));
        let runs = Runs::of([silent, silent]);
        assert_eq!(runs.executed().map(|run| run.batch_size).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(Runs::of([]), Runs::default());
    }
}
