//! Metering of requests: against their owners' limits before they run, and in the usage of their owners when they have ended.
//!
//! Requests of models to other models, and of this process itself, belong to nobody: they have no limits and are not counted.

use trireme_inference::{Cause, InferError, InferRequest, Ledger};
use trireme_server::RequestContext;
use trireme_server::owners::{Account, Admitted, LimitReached};

use super::Handlers;
use crate::usage::{Counts, Usage, Used};

/// A request of an owner. A request that is dropped before it has ended counts as an error: its client has left.
#[derive(Default)]
pub struct Metered(Option<Open>);

struct Open {
    usage: Usage,
    account: Account,
    /// The model, if there is one of this name: nobody but the operator makes names of counts.
    model: Option<String>,
    is_new: bool,
    admitted: Option<Admitted>,
    /// The highest count of any part of the answer so far.
    tokens: u64,
    compute_us: u64,
    cached_tokens: u64,
    rows: u64,
    is_cached: bool,
}

/// The rows of a request that the pipeline computes.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    /// Their number.
    pub rows: u64,
    /// The messages that they travel in.
    pub messages: u64,
}

impl Handlers {
    /// Takes a request in within the limits of its owner.
    pub(super) fn meter(&self, request: &InferRequest, context: &RequestContext) -> Result<Metered, InferError> {
        let Some(account) = context.account() else { return Ok(Metered(None)) };
        let catalog = self.registry.catalog();
        let found = catalog.find(&request.model, request.version).ok();
        let mut open = Open {
            usage: self.usage.clone(),
            model: found.map(|_| request.model.clone()),
            is_new: context.begin_part(),
            admitted: None,
            tokens: 0,
            cached_tokens: 0,
            compute_us: 0,
            rows: 0,
            is_cached: false,
            account: account.clone(),
        };
        let has_texts =
            found.is_some_and(|(_, served)| served.capabilities.as_ref().is_ok_and(|it| !it.tasks.is_empty()));
        let most = if has_texts { most_tokens(request) } else { 0 };
        match open.account.begin(open.is_new, most) {
            Ok(admitted) => open.admitted = Some(admitted),
            Err(reached) => {
                open.count(Counts { refused: 1, ..Counts::default() });
                return Err(refusal(&reached));
            }
        }
        Ok(Metered(Some(open)))
    }
}

/// More tokens than texts have: a token is a byte of them or more, and each text has a few marks.
fn most_tokens(request: &InferRequest) -> u64 {
    request.inputs.iter().map(|input| input.data.len() as u64).sum()
}

fn refusal(reached: &LimitReached) -> InferError {
    let retry_after = Some(reached.retry_after);
    InferError { retry_after, ..InferError::unavailable(reached.to_string()).because(Cause::OwnerLimit) }
}

// === impl Metered ===

impl Metered {
    /// A part of the answer, or all of it. `rows` are those of the request, of which some may come from the text cache.
    pub fn part(&mut self, ledger: &Ledger, rows: u64, computed: Computed) {
        let Some(open) = &mut self.0 else { return };
        open.rows = rows;
        open.is_cached = !ledger.0.is_empty() && ledger.0.iter().all(|hop| !hop.ran());
        open.tokens = open.tokens.max(ledger.texts().map_or(0, |texts| texts.tokens));
        open.cached_tokens = open.cached_tokens.max(ledger.cached().tokens);
        open.compute_us = open.compute_us.max(model_time(ledger, computed));
    }

    /// The request has its answer.
    pub fn answered(&mut self) {
        if let Some(mut open) = self.0.take() {
            open.count(Counts {
                requests: u64::from(open.is_new),
                cached: u64::from(open.is_cached),
                rows: open.rows,
                tokens: open.tokens,
                cached_tokens: open.cached_tokens,
                compute_us: open.compute_us,
                ..Counts::default()
            });
            if let Some(admitted) = open.admitted.take() {
                admitted.end(open.tokens);
            }
        }
    }

    /// The request has failed; its tokens do not count.
    pub fn failed(&mut self) {
        if let Some(mut open) = self.0.take() {
            open.fail();
            if let Some(admitted) = open.admitted.take() {
                admitted.end(0);
            }
        }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        if let Some(open) = &self.0 {
            open.fail();
        }
    }
}

// === impl Open ===

impl Open {
    fn fail(&self) {
        self.count(Counts { requests: u64::from(self.is_new), errors: 1, ..Counts::default() });
    }

    fn count(&self, counts: Counts) {
        if let Some(model) = &self.model {
            let Account { owner, lane, .. } = &self.account;
            self.usage.count(&Used { owner: owner.name(), model, lane: *lane }, &counts);
        }
    }
}

/// The time of all steps, in microseconds: of each batch the part of the request's rows, of a run without a batch all of it. Where the rows
/// travelled in several messages, the ledger has the times of one, which stand for those of the others.
fn model_time(ledger: &Ledger, Computed { rows, messages }: Computed) -> u64 {
    let share = |batch: u64, time: u64| match batch {
        0 | 1 => time.saturating_mul(messages),
        _ => (u128::from(time) * u128::from(rows) / u128::from(batch)) as u64,
    };
    let hops = ledger.0.iter().filter(|hop| hop.ran());
    let times = hops.map(|hop| {
        let time = hop.compute_input_us.saturating_add(hop.compute_infer_us).saturating_add(hop.compute_output_us);
        share(hop.batch_size.into(), time)
    });
    times.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use trireme_inference::Hop;

    use super::*;

    #[test]
    fn model_time_is_the_part_of_the_rows_in_each_batch() {
        let hop = |worker: &str, compute_infer_us, batch_size| Hop {
            worker: worker.into(),
            compute_infer_us,
            compute_input_us: 4,
            batch_size,
            ..Hop::default()
        };
        let computed = |rows, messages| Computed { rows, messages };
        let ledger = Ledger(vec![hop("w", 96, 8), hop("w", 36, 2), hop("", 1_000_000, 1)]);
        assert_eq!(model_time(&ledger, computed(2, 1)), 25 + 40);
        assert_eq!(model_time(&Ledger(vec![hop("w", 96, 32)]), computed(64, 2)), 200, "rows in two messages");
        let twice = model_time(&Ledger(vec![hop("w", 96, 1)]), computed(64, 2));
        assert_eq!(twice, 200, "a step without batches ran twice");
        assert_eq!(model_time(&Ledger(vec![hop("w", 96, 0)]), computed(1, 1)), 100);
    }
}
