//! Which content of a model version is served where workers have several: two folders under one name, the same one before and
//! after its files have changed, or flags that change its answers. Without a choice, all workers of a version would answer in turn.
//!
//! The store of the registry has a choice for each version of a model or model folder. Gateways write a choice over the revision that
//! they have read, when a worker asks whether it may serve. They choose the first content of a version, the worker's content where no
//! worker has the chosen one any more, or the worker's content if it is started to switch to it. A worker serves once its content is chosen
//! and all workers with another content have yielded to that choice. A worker yields when it holds no requests any more.
//!
//! The events of the store come in the order of its changes, and a gateway answers only when it has seen the worker's entry. So the entry
//! is either before the choice of another content, and then holds up that choice until its worker yields, or behind that choice, and then
//! the gateway knows the choice. No clock and no lapse has a part in this, except that the entries of a worker that is not heard any more
//! are deleted.
//!
//! Not here: the questions, and how a worker yields (the runtime's `content`).

use std::collections::{BTreeMap, BTreeSet};

use trireme_bus::{Content, ContentChoice, Verdict, WorkerEntry};
use trireme_inference::UnixMicros;

/// How many workers a reason names.
const NAMED: usize = 3;

/// Digits of a digest that a reason shows, with the algorithm's name.
const SHOWN: usize = 19;

/// The decision about a worker's question.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// It is answered.
    Pass(Verdict),
    /// A content is to be chosen first, over the choice with this revision.
    Choose(ContentChoice, u64),
    /// The store has not shown the worker's entry yet.
    Unseen,
}

/// An entry whose content is known.
#[derive(Clone, Copy)]
pub(super) struct Rival<'a> {
    entry: &'a WorkerEntry,
    content: &'a Content,
}

/// The choices by model and version, each with its revision and the reading of the store that brought it.
#[derive(Debug, Default)]
pub(super) struct Choices(BTreeMap<(String, i64), (ContentChoice, u64, u64)>);

// === impl Rival ===

impl<'a> Rival<'a> {
    pub fn of(entry: &'a WorkerEntry) -> Option<Rival<'a>> {
        Some(Rival { entry, content: entry.content.as_ref()? })
    }
}

// === impl Choices ===

impl Choices {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes in a choice; one that was not known only with `has_room`. Returns whether it changes anything.
    pub fn take(&mut self, choice: ContentChoice, revision: u64, pass: u64, has_room: bool) -> bool {
        let key = (choice.of.clone(), choice.version);
        if !has_room && !self.0.contains_key(&key) {
            return false;
        }
        let before = self.0.insert(key, (choice.clone(), revision, pass));
        before.is_none_or(|(before, ..)| before != choice)
    }

    /// Forgets the choices that the store has lost.
    pub fn lose(&mut self, is_lost: impl Fn(u64) -> bool) {
        self.0.retain(|_, (.., pass)| !is_lost(*pass));
    }

    /// Whether another content than the entry's is chosen.
    pub fn refuses(&self, entry: &WorkerEntry) -> bool {
        let Some(content) = &entry.content else { return false };
        self.find(content, entry.model.version).is_some_and(|(choice, _)| choice.digest != content.digest)
    }

    fn find(&self, content: &Content, version: i64) -> Option<(&ContentChoice, u64)> {
        let (choice, revision, _) = self.0.get(&(content.of.clone(), version))?;
        Some((choice, *revision))
    }
}

/// Judges the question of the worker with this entry, among the entries of all workers.
pub(super) fn judge<'a>(
    entry: &WorkerEntry,
    switch: bool,
    choices: &Choices,
    rivals: impl Iterator<Item = Rival<'a>>,
) -> Judgement {
    let Some(own) = &entry.content else { return Judgement::Pass(Verdict::Serve) };
    let version = entry.model.version;
    let peers: Vec<_> =
        rivals.filter(|rival| rival.content.of == own.of && rival.entry.model.version == version).collect();
    let chosen = choices.find(own, version);
    let wanted = match chosen {
        _ if switch => &own.digest,
        Some((choice, _)) if peers.iter().any(|peer| peer.content.digest == choice.digest) => &choice.digest,
        Some(_) => &own.digest,
        // A store that was emptied has lost the choice: the content that has been served longest was chosen.
        None => {
            let serving = peers.iter().filter(|peer| peer.content.yields_to.is_none());
            serving.min_by_key(|peer| peer.entry.since).map_or(&own.digest, |peer| &peer.content.digest)
        }
    };
    let choice = match chosen {
        Some((choice, _)) if choice.digest == *wanted => choice,
        _ => {
            let (before, revision) = chosen.map_or((0, 0), |(choice, revision)| (choice.number, revision));
            let number = UnixMicros::now().0.max(before + 1);
            let choice = ContentChoice { of: own.of.clone(), version, digest: wanted.clone(), number };
            return Judgement::Choose(choice, revision);
        }
    };
    let (same, others): (Vec<_>, Vec<_>) = peers.into_iter().partition(|peer| peer.content.digest == choice.digest);
    if own.digest != choice.digest {
        let reason = format!(
            "this worker has other files, flags or packages ({}) under the name '{}' version {version} than {} ({}), whose content is served; it takes \
             over when they are gone, or at once if it is started with --other-content=switch",
            short(&own.digest),
            own.of,
            names(&same),
            short(&choice.digest)
        );
        return Judgement::Pass(Verdict::Yield { number: choice.number, reason });
    }
    let busy: Vec<_> = others.into_iter().filter(|peer| peer.content.yields_to != Some(choice.number)).collect();
    match busy.is_empty() {
        true => Judgement::Pass(Verdict::Serve),
        false => {
            let reason = format!(
                "waits until {} finish with other files, flags or packages under the name '{}'",
                names(&busy),
                own.of
            );
            Judgement::Pass(Verdict::Wait { reason })
        }
    }
}

/// The choices that some worker has not yielded to, or that no worker has the content of.
pub(super) fn contested<'a>(choices: &Choices, rivals: impl Iterator<Item = Rival<'a>>) -> Vec<ContentChoice> {
    let (mut held, mut others, mut busy) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for rival in rivals {
        let version = rival.entry.model.version;
        let Some((choice, _)) = choices.find(rival.content, version) else { continue };
        let key = (&rival.content.of, version);
        match rival.content.digest == choice.digest {
            true => drop(held.insert(key)),
            false => {
                others.insert(key);
                if rival.content.yields_to != Some(choice.number) {
                    busy.insert(key);
                }
            }
        }
    }
    let is_contested = |key: &(&String, i64)| busy.contains(key) || (others.contains(key) && !held.contains(key));
    let all = choices.0.values().map(|(choice, ..)| choice);
    all.filter(|choice| is_contested(&(&choice.of, choice.version))).cloned().collect()
}

/// The workers of some entries: the first of them by name.
fn names(peers: &[Rival<'_>]) -> String {
    let workers: BTreeSet<&str> = peers.iter().map(|peer| peer.entry.worker.as_str()).collect();
    let named = workers.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match workers.len().saturating_sub(NAMED) {
        0 if workers.is_empty() => "workers that are gone".to_owned(),
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn short(digest: &str) -> &str {
    digest.get(..SHOWN).unwrap_or(digest)
}

#[cfg(test)]
mod tests;
