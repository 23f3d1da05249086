//! Which entries of a registry serve a version: those with the chosen content, whose instances can execute. The rules of the choice are in
//! `registry::contents`.

use std::collections::BTreeMap;

use trireme_bus::{ContentChoice, ContentQuestion, ModelState};
use trireme_inference::{ModelKey, Name};

use super::super::contents::{Judgement, Rival, contested, judge};
use super::super::spaces::Spaces;
use super::{Live, MAX_KNOWN, State};

// === impl State ===

impl State {
    /// Takes in from the bus that a content was chosen.
    pub fn chosen(&mut self, choice: ContentChoice, revision: u64) -> bool {
        self.see(revision);
        self.found_choice(choice, revision)
    }

    /// Takes in a choice that was found in the store. Not one that the bus has still to bring: the entries before it come first. Returns
    /// whether it changes anything.
    pub fn found_choice(&mut self, choice: ContentChoice, revision: u64) -> bool {
        if revision > self.last_revision {
            return false;
        }
        let has_room = self.choices.len() < MAX_KNOWN;
        self.choices.take(choice, revision, self.pass, has_room)
    }

    /// The entries whose content is known.
    fn rivals(&self) -> impl Iterator<Item = Rival<'_>> {
        self.entries.values().filter_map(|live| Rival::of(&live.entry))
    }

    /// Judges a worker's question about its content. The store's events come in the order of its changes, so of two contents
    /// one is judged with the other's entry and choice known.
    pub fn judge(&self, question: &ContentQuestion) -> Judgement {
        match self.entries.get(&question.key) {
            Some(live) if self.is_complete && live.is_stored() && live.entry.since >= question.since => {
                judge(&live.entry, question.switch, &self.choices, self.rivals())
            }
            _ => Judgement::Unseen,
        }
    }

    /// The choices that workers have to hear of: of those that serve another content, or could take over.
    pub fn contested(&self) -> Vec<ContentChoice> {
        contested(&self.choices, self.rivals())
    }

    /// The reasons of the workers whose content is refused, by model version.
    pub fn refused(&self) -> BTreeMap<ModelKey, Vec<String>> {
        let mut refused: BTreeMap<ModelKey, Vec<String>> = BTreeMap::new();
        for entry in self.entries.values().map(Live::entry).filter(|entry| self.choices.refuses(entry)) {
            if let ModelState::Recovering(reason) = &entry.state {
                refused.entry(entry.model.clone()).or_default().push(format!("{}: {reason}", entry.worker));
            }
        }
        refused
    }

    /// The faults in files of versions that are served, and the reasons of the workers whose content is refused.
    pub(super) fn doubts(&self) -> BTreeMap<ModelKey, Vec<String>> {
        let mut doubts = self.refused();
        for (model, fault) in &self.faulty {
            doubts.entry(model.clone()).or_default().insert(0, fault.clone());
        }
        doubts
    }

    /// The entries that say how a version is served. While workers serve the chosen content of a version, those with another
    /// one do not.
    pub(super) fn serving(&self) -> impl Iterator<Item = &Live> {
        let is_served = |live: &Live| matches!(live.entry.state, ModelState::Ready | ModelState::Recovering(_));
        let is_chosen = |live: &Live| !self.choices.refuses(&live.entry);
        let has_chosen = move |model: &ModelKey| {
            self.entries.values().any(|live| live.entry.model == *model && is_served(live) && is_chosen(live))
        };
        let entries = self.entries.values();
        entries.filter(move |live| is_served(live) && (is_chosen(live) || !has_chosen(&live.entry.model)))
    }

    /// The content of each version: the one that is served, or the next one where the workers of that have gone. Of several that may be the
    /// next one, any: a request that was admitted for another one is admitted anew.
    pub(super) fn contents(&self) -> BTreeMap<ModelKey, Name> {
        let mut contents: BTreeMap<ModelKey, &str> = BTreeMap::new();
        for entry in self.serving().map(Live::entry) {
            let Some(content) = &entry.content else { continue };
            // The same one for all steps of a folder.
            let chosen = contents.entry(entry.model.clone()).or_insert(&content.digest);
            *chosen = (*chosen).min(&content.digest);
        }
        contents.into_iter().map(|(model, digest)| (model, digest.into())).collect()
    }

    /// The space of each version, as the workers that serve it announce it.
    pub(super) fn spaces(&self) -> Spaces {
        let mut spaces = Spaces::default();
        for entry in self.serving().map(Live::entry) {
            spaces.tell(&entry.model, entry.content.as_ref());
        }
        spaces
    }

    /// The versions that are served but that no worker can execute now, each with a reason.
    pub(super) fn recovering(&self) -> BTreeMap<ModelKey, String> {
        let mut recovering = BTreeMap::new();
        for entry in self.entries.values().map(Live::entry) {
            if let ModelState::Recovering(reason) = &entry.state {
                recovering.insert(entry.model.clone(), reason.clone());
            }
        }
        for entry in self.entries.values().map(Live::entry).filter(|entry| entry.state == ModelState::Ready) {
            recovering.remove(&entry.model);
        }
        recovering
    }
}
