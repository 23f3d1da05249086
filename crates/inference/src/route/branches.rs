//! Splits a route that forks into branches that can run at the same time and join.
//!
//! A route lists its steps in one order in which every input exists when it is needed. If steps do not need each other,
//! that order is stricter than necessary. This module splits the route into branches: chains of steps that one message
//! goes through. A branch ends before a step that waits for several branches, and after a step for which several others
//! wait.
//!
//! Invariants, for any order in which branches end: each step is in one branch; a branch begins when all branches whose
//! tensors it takes have ended; the tensors left at the end are those that the linear route leaves, in the same order.
//!
//! Not here: sending branches and waiting for them (the gateway).

use std::collections::{BTreeMap, BTreeSet};

use super::{Route, Step, let_die};
use crate::{Name, Tensor};

/// A request whose route forks: its branches, and the tensors that they have returned so far.
#[derive(Clone, Debug)]
pub struct Branches {
    /// The branches that have not begun.
    waiting: BTreeMap<usize, Waiting>,
    ended: BTreeSet<usize>,
    live: Vec<Tensor>,
    /// Live tensors that are not outputs of the request.
    passing: BTreeSet<Name>,
    /// The position of each step's outputs among all outputs.
    places: BTreeMap<Name, usize>,
}

/// A chain of steps that can run now, with its input tensors.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Its number among the request's branches; a retry of the branch has the same number.
    pub number: usize,
    /// Its steps. The tensors left at their end are those that other branches or the client need.
    pub route: Route,
    /// The tensors that the steps take.
    pub tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Waiting {
    route: Route,
    takes: Vec<String>,
    /// Numbers of the branches that have to end before this one begins.
    after: BTreeSet<usize>,
}

// === impl Route ===

impl Route {
    /// The route's branches, for a request that brings `tensors`. `None` if each step needs its predecessor: the route is one
    /// chain.
    pub fn branches(&self, tensors: &[Tensor]) -> Option<Branches> {
        let steps = self.remaining();
        if steps.windows(2).all(|pair| takes_from(&pair[1], &pair[0])) {
            return None;
        }
        let after = immediate(steps);
        let chains = chains(&after);
        let outputs = || steps.iter().flat_map(|step| &step.outputs);
        let waiting = chains.iter().enumerate().map(|(number, chain)| {
            let ends_before = |step: &usize| chains.iter().position(|chain| chain.last() == Some(step));
            let after = after[chain[0]].iter().filter_map(ends_before).collect();
            (number, self.branch(chain, after))
        });
        Some(Branches {
            waiting: waiting.collect(),
            ended: BTreeSet::new(),
            live: tensors.to_vec(),
            passing: steps.iter().flat_map(|step| step.dead.iter().cloned()).collect(),
            places: outputs().enumerate().map(|(place, output)| (output.tensor.clone(), place)).collect(),
        })
    }

    /// The steps in the order of the ledger of an answer in one piece: branch after branch, where the route forks.
    pub fn in_ledger_order(&self) -> Vec<&Step> {
        let steps = self.remaining();
        chains(&immediate(steps)).into_iter().flatten().map(|step| &steps[step]).collect()
    }

    /// The branch of these steps, which waits for the branches `after`.
    fn branch(&self, chain: &[usize], after: BTreeSet<usize>) -> Waiting {
        let all = self.remaining();
        let mut steps: Vec<Step> = chain.iter().map(|&step| all[step].clone()).collect();
        let made: BTreeSet<&str> = chain.iter().flat_map(|&step| outputs(&all[step])).collect();
        let mut takes: Vec<&str> = Vec::new();
        for tensor in chain.iter().flat_map(|&step| inputs(&all[step])) {
            if !made.contains(tensor) && !takes.contains(&tensor) {
                takes.push(tensor);
            }
        }
        let others = all.iter().enumerate().filter(|(step, _)| !chain.contains(step));
        let taken_elsewhere: BTreeSet<&str> = others.flat_map(|(_, step)| inputs(step)).collect();
        let passing: BTreeSet<&str> = all.iter().flat_map(|step| step.dead.iter().map(Name::as_str)).collect();
        // Tensors that the branch takes stay with the request. Only tensors that it makes have to come back.
        let_die(&mut steps, &takes, |tensor| {
            made.contains(tensor) && (taken_elsewhere.contains(tensor) || !passing.contains(tensor))
        });
        let takes = takes.into_iter().map(str::to_owned).collect();
        Waiting { route: Route::resume(self.model.clone(), self.ensemble, 0, steps), takes, after }
    }
}

// === impl Branches ===

impl Branches {
    /// A branch that can begin. Each branch is returned once. `None` if all remaining branches wait for others.
    pub fn begin(&mut self) -> Option<Branch> {
        let ready = self.waiting.iter().find(|(_, branch)| branch.after.is_subset(&self.ended));
        let number = *ready?.0;
        let Waiting { route, takes, .. } = self.waiting.remove(&number)?;
        let find = |name: &String| self.live.iter().find(|tensor| tensor.name() == name).cloned();
        let tensors = takes.iter().filter_map(find).collect();
        self.drop_dead();
        Some(Branch { number, route, tensors })
    }

    /// Ends a branch, which returned these tensors.
    pub fn end(&mut self, number: usize, tensors: Vec<Tensor>) {
        self.ended.insert(number);
        self.live.extend(tensors);
        self.drop_dead();
    }

    /// The request's outputs, when all branches have ended: those that the route's last step would have left.
    pub fn outputs(mut self) -> Vec<Tensor> {
        self.live.sort_by_key(|tensor| self.places.get(tensor.name()));
        self.live
    }

    fn drop_dead(&mut self) {
        let taken = |name: &str| self.waiting.values().any(|branch| branch.takes.iter().any(|taken| taken == name));
        self.live.retain(|tensor| !self.passing.contains(tensor.name()) || taken(tensor.name()));
    }
}

fn inputs(step: &Step) -> impl Iterator<Item = &str> {
    step.inputs.iter().map(|input| input.tensor.as_str())
}

fn outputs(step: &Step) -> impl Iterator<Item = &str> {
    step.outputs.iter().map(|output| output.tensor.as_str())
}

fn takes_from(step: &Step, before: &Step) -> bool {
    inputs(step).any(|tensor| outputs(before).any(|output| output == tensor))
}

/// For each step, the steps that it waits for directly: a step is left out if another one in the set waits for it anyway.
fn immediate(steps: &[Step]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(steps.len());
    let mut immediate = Vec::with_capacity(steps.len());
    for (number, step) in steps.iter().enumerate() {
        let direct: BTreeSet<usize> = (0..number).filter(|&before| takes_from(step, &steps[before])).collect();
        let through: BTreeSet<usize> = direct.iter().flat_map(|&before| &all[before]).copied().collect();
        immediate.push(direct.difference(&through).copied().collect());
        all.push(direct.union(&through).copied().collect());
    }
    immediate
}

/// Splits the steps into the longest chains: in a chain, each step waits for its predecessor alone, and no other step waits for
/// that predecessor.
fn chains(after: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for (step, before) in after.iter().enumerate() {
        let only = before.first().filter(|_| before.len() == 1);
        let unforked = only.filter(|only| after.iter().filter(|before| before.contains(only)).count() == 1);
        match chains.iter_mut().find(|chain| unforked.is_some() && chain.last() == unforked) {
            Some(chain) => chain.push(step),
            None => chains.push(vec![step]),
        }
    }
    chains
}

#[cfg(test)]
mod tests;
