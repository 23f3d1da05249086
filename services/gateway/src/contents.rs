//! Answers workers that ask whether they may serve their content. The rules are in `registry::contents`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use trireme_bus::{Bus, BusError, ContentChoice, TopicMessage, Verdict};
use trireme_runtime::TaskSet;

use crate::registry::{Judgement, Registry};

/// Most messages that are judged at a time; others wait.
const MOST: usize = 256;

/// How long a message may wait for the store to show the worker's entry, or the choice that was written.
const LIMIT: Duration = Duration::from_secs(3);

/// Answers messages until `tasks` stop.
pub async fn answer_all(bus: Arc<dyn Bus>, registry: Registry, tasks: &TaskSet) -> Result<(), BusError> {
    let mut messages = bus.content_questions().await?;
    tasks.spawn_until_stop("contents", async move {
        let mut judging = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = messages.recv(), if judging.len() < MOST => match message {
                    Some(message) => judging.push(answer(bus.clone(), registry.clone(), message)),
                    None => return,
                },
                Some(()) = judging.next() => {}
            }
        }
    });
    Ok(())
}

async fn answer(bus: Arc<dyn Bus>, registry: Registry, message: TopicMessage) {
    let verdict = tokio::time::timeout(LIMIT, judge(bus.as_ref(), &registry, &message)).await.ok().flatten();
    if let Err(error) = message.pass_verdict(verdict.as_ref()).await {
        tracing::debug!(%error, "could not answer which content is served; the worker asks again");
    }
}

/// The verdict. `None`: the message cannot be read, or the store cannot be written.
async fn judge(bus: &dyn Bus, registry: &Registry, message: &TopicMessage) -> Option<Verdict> {
    let message = message.about_content()?;
    let mut seen = registry.seen();
    loop {
        seen.borrow_and_update();
        match registry.judge(&message) {
            Judgement::Pass(verdict) => return Some(verdict),
            Judgement::Choose(choice, revision) => match bus.choose_content(&choice, revision).await {
                Ok(_) if revision == 0 => {}
                Ok(_) => {
                    let ContentChoice { of, version, digest, .. } = choice;
                    tracing::info!(model = of, version, digest, "another content is served from now on");
                }
                // Another gateway has chosen: the store shows it. It has shown it already where the gateway took it for lost with the rest of a
                // store that was emptied and filled again.
                Err(BusError::Conflict { .. }) => {
                    if let Some((stored, revision)) = bus.stored_choice(&choice).await.ok()?
                        && registry.found_choice(stored, revision)
                    {
                        continue;
                    }
                }
                Err(error) => {
                    tracing::warn!(of = choice.of, %error, "no content could be chosen; the worker asks again");
                    return None;
                }
            },
            Judgement::Unseen => {}
        }
        seen.changed().await.ok()?;
    }
}
