//! One instance of a model: texts start in waves, step in groups of equal length, and leave when they are done.
//! [`super::scheduler`] decides which group steps; a text's [`Search`](super::search::Search) chooses its next ids.

use std::collections::{BTreeMap, VecDeque};

use trireme_engine::{ExecuteRequest, ExecuteResponse, ExecuteTiming, Progress, StepwiseInstance, Ticket, one_line};
use trireme_inference::{ErrorCode, InferError, Name, Parameters};

use super::beams::Found;
use super::graphs::{Graphs, State, last_logits};
use super::request::{Format, Text};
use super::scheduler;

/// An instance of an encoder-decoder model.
pub struct Generator {
    graphs: Graphs,
    format: Format,
    jobs: BTreeMap<Ticket, Job>,
    waiting: VecDeque<Member>,
    /// Steps since the first waiting text arrived.
    waited: usize,
    groups: Vec<Group>,
    scratch: Vec<f32>,
}

/// A request being worked on.
struct Job {
    outputs: Vec<Name>,
    /// Whether each step's ids are a part of the answer.
    in_parts: bool,
    /// Ids in earlier parts of the answer.
    emitted: usize,
    /// The sequences found for each text; `None` while its search runs.
    found: Vec<Option<Vec<Found>>>,
}

/// A text of a request.
struct Member {
    ticket: Ticket,
    row: usize,
    text: Text,
}

/// Texts that step together.
struct Group {
    /// Length of their sequences so far, in ids.
    length: usize,
    /// How many times other groups have stepped since its last step.
    passed_over: u32,
    /// The texts. Each takes as many consecutive rows of `state` as its search is wide.
    members: Vec<Member>,
    state: State,
}

type Results = Vec<(Ticket, Progress)>;

// === impl Generator ===

impl Generator {
    /// An instance that runs `graphs`.
    pub fn new(graphs: Graphs, format: Format) -> Generator {
        let (jobs, waiting) = (BTreeMap::new(), VecDeque::new());
        Generator { graphs, format, jobs, waiting, waited: 0, groups: Vec::new(), scratch: Vec::new() }
    }

    fn running_rows(&self) -> usize {
        self.groups.iter().map(|group| group.state.rows()).sum()
    }

    fn waiting_rows(&self) -> usize {
        self.waiting.iter().map(|member| member.text.search.width()).sum()
    }

    /// Starts waiting texts, as many as there is room for.
    fn start(&mut self, results: &mut Results) {
        let running = self.running_rows();
        let mut free = self.format.limits.rows.saturating_sub(running);
        // Only waiting texts with room count, because only they would start.
        if !scheduler::starts(self.waiting_rows().min(free), running, self.waited) {
            self.waited += usize::from(!self.waiting.is_empty());
            return;
        }
        self.waited = 0;
        let mut wave = Vec::new();
        while let Some(member) = self.waiting.front().filter(|member| member.text.search.width() <= free) {
            free -= member.text.search.width();
            wave.extend(self.waiting.pop_front());
        }
        let lengths: Vec<usize> = wave.iter().map(|member| member.text.ids.len()).collect();
        let mut wave: Vec<Option<Member>> = wave.into_iter().map(Some).collect();
        for batch in scheduler::encoder_batches(&lengths) {
            let members: Vec<Member> = batch.into_iter().filter_map(|index| wave[index].take()).collect();
            let texts: Vec<_> = members.iter().map(|member| (&member.text.ids[..], &member.text.mask[..])).collect();
            let widened: Vec<usize> = (0..members.len())
                .flat_map(|index| std::iter::repeat_n(index, members[index].text.search.width()))
                .collect();
            let encoded = self.graphs.encode(&texts, self.format.defaults.pad());
            let encoded = encoded.and_then(|state| match widened.len() == state.rows() {
                true => Ok(state),
                false => State::assemble(&[(&state, &widened)], state.length()),
            });
            match encoded {
                Ok(state) => self.groups.push(Group { length: 1, passed_over: 0, members, state }),
                Err(error) => self.fail(members, &error, results),
            }
        }
        self.merge(results);
    }

    /// Merges groups of equal length.
    fn merge(&mut self, results: &mut Results) {
        let mixes = self.graphs.mixes_lengths();
        let mut groups: BTreeMap<usize, Vec<Group>> = BTreeMap::new();
        for group in self.groups.drain(..) {
            groups.entry(if mixes { 0 } else { group.length }).or_default().push(group);
        }
        let mut failed = Vec::new();
        for (_, mut alike) in groups {
            if alike.len() == 1 {
                self.groups.append(&mut alike);
                continue;
            }
            let longest = alike.iter().map(|group| group.state.length()).max().unwrap_or(0);
            let rows: Vec<Vec<usize>> = alike.iter().map(|group| (0..group.state.rows()).collect()).collect();
            let parts: Vec<_> = alike.iter().zip(&rows).map(|(group, rows)| (&group.state, &rows[..])).collect();
            let state = State::assemble(&parts, longest);
            let length = alike.iter().map(|group| group.length).max().unwrap_or(1);
            let passed_over = alike.iter().map(|group| group.passed_over).max().unwrap_or(0);
            let members: Vec<Member> = alike.into_iter().flat_map(|group| group.members).collect();
            match state {
                Ok(state) => self.groups.push(Group { length, passed_over, members, state }),
                Err(error) => failed.push((members, error)),
            }
        }
        for (members, error) in failed {
            self.fail(members, &error, results);
        }
    }

    /// Runs one step of the group that is next.
    fn step_group(&mut self, results: &mut Results) {
        let lengths: Vec<_> = self.groups.iter().map(|group| (group.length, group.passed_over)).collect();
        let Some(chosen) = scheduler::next(&lengths) else { return };
        self.groups.iter_mut().for_each(|group| group.passed_over += 1);
        let mut group = self.groups.swap_remove(chosen);
        group.passed_over = 0;
        match self.advance(&mut group, results) {
            Ok(()) if group.members.is_empty() => {}
            Ok(()) => {
                self.groups.push(group);
                self.merge(results);
            }
            Err(error) => self.fail(group.members, &error, results),
        }
    }

    fn advance(&mut self, group: &mut Group, results: &mut Results) -> ort::Result<()> {
        let sequences: Vec<&[i64]> = group.members.iter().flat_map(|member| member.text.search.sequences()).collect();
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.len()).collect();
        let mut logits = self.graphs.step(&mut group.state, &sequences, self.format.defaults.pad())?;
        drop(sequences);
        let (logits, vocabulary) = last_logits(&mut logits, &lengths, &mut self.scratch)?;

        let mut kept = Vec::with_capacity(lengths.len());
        let mut stays = Vec::with_capacity(group.members.len());
        let mut first = 0;
        for member in &mut group.members {
            let width = member.text.search.width();
            let own = &mut logits[first * vocabulary..(first + width) * vocabulary];
            let parents = member.text.search.advance(own, vocabulary);
            kept.extend(parents.iter().map(|parent| first + parent));
            stays.push((!parents.is_empty(), parents.len() == width));
            first += width;
        }
        group.length += 1;
        let same_rows = stays.iter().all(|(_, same)| *same);
        let members = std::mem::take(&mut group.members);
        for (member, (stays, _)) in members.into_iter().zip(stays) {
            self.report(&member, !stays, results);
            if stays {
                group.members.push(member);
            }
        }
        if group.members.is_empty() || kept.iter().copied().eq(0..lengths.len()) {
            return Ok(());
        }
        if same_rows {
            return group.state.reorder(&kept);
        }
        group.state = State::assemble(&[(&group.state, &kept)], longest_text(&group.members))?;
        Ok(())
    }

    /// Sends a text's result or, if the request wants parts, its new ids.
    fn report(&mut self, member: &Member, done: bool, results: &mut Results) {
        let Some(job) = self.jobs.get_mut(&member.ticket) else { return };
        if done {
            job.found[member.row] = Some(member.text.search.found());
            if job.found.iter().all(Option::is_some)
                && let Some(job) = self.jobs.remove(&member.ticket)
            {
                results.push((member.ticket, Progress::Done(self.answer(job))));
            }
            return;
        }
        if job.in_parts {
            let found = member.text.search.found();
            let part = self.format.write(&job.outputs, &found, 1, job.emitted, false);
            job.emitted = found.first().map_or(0, |found| found.ids.len());
            match part {
                Ok(outputs) => results.push((member.ticket, Progress::Part(outputs, Parameters::default()))),
                Err(error) => {
                    self.jobs.remove(&member.ticket);
                    results.push((member.ticket, Progress::Done(Err(error))));
                }
            }
        }
    }

    fn answer(&self, job: Job) -> Result<ExecuteResponse, InferError> {
        let rows = job.found.len();
        let found: Vec<Found> = job.found.into_iter().flatten().flatten().collect();
        let outputs = self.format.write(&job.outputs, &found, rows, job.emitted, true)?;
        let timing = ExecuteTiming { batch_size: rows.try_into().unwrap_or(u32::MAX), ..ExecuteTiming::default() };
        Ok(ExecuteResponse { outputs, timing, ..ExecuteResponse::default() })
    }

    /// Ends the requests of `members` with an error.
    fn fail(&mut self, members: Vec<Member>, error: &ort::Error, results: &mut Results) {
        let reason = one_line(error.message());
        for member in members {
            if self.jobs.remove(&member.ticket).is_some() {
                let message = format!("model '{}': onnxruntime: {reason}", self.format.model);
                results.push((member.ticket, Progress::Done(Err(InferError::new(ErrorCode::Internal, message)))));
            }
        }
    }

    /// Drops texts whose requests have ended.
    fn drop_ended(&mut self, results: &mut Results) {
        let jobs = &self.jobs;
        let lives = |member: &Member| jobs.contains_key(&member.ticket);
        self.waiting.retain(lives);
        let mut failed = Vec::new();
        let mut groups = std::mem::take(&mut self.groups);
        groups.retain_mut(|group| {
            if group.members.iter().all(lives) {
                return true;
            }
            let (mut kept, mut first) = (Vec::new(), 0);
            for member in &group.members {
                let rows = first..first + member.text.search.width();
                first = rows.end;
                kept.extend(rows.filter(|_| lives(member)));
            }
            group.members.retain(lives);
            if group.members.is_empty() {
                return false;
            }
            match State::assemble(&[(&group.state, &kept)], longest_text(&group.members)) {
                Ok(state) => group.state = state,
                Err(error) => failed.push((std::mem::take(&mut group.members), error)),
            }
            !group.members.is_empty()
        });
        self.groups = groups;
        for (members, error) in failed {
            self.fail(members, &error, results);
        }
    }
}

impl StepwiseInstance for Generator {
    fn room(&self) -> usize {
        let rows = self.format.limits.rows;
        let free = rows.saturating_sub(self.running_rows() + self.waiting_rows());
        free.div_ceil(self.format.defaults.width().max(1))
    }

    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
        let (settings, texts) = self.format.read(&request)?;
        // An unknown output is refused before the request waits.
        self.format.write(&request.outputs, &[], 0, 0, true)?;
        let job = Job {
            outputs: request.outputs,
            in_parts: request.in_parts && texts.len() == 1 && settings.width() == 1,
            emitted: 0,
            found: texts.iter().map(|_| None).collect(),
        };
        self.jobs.insert(ticket, job);
        self.waiting.extend(texts.into_iter().enumerate().map(|(row, text)| Member { ticket, row, text }));
        Ok(())
    }

    fn leave(&mut self, ticket: Ticket) {
        self.jobs.remove(&ticket);
    }

    fn step(&mut self) -> Results {
        let mut results = Vec::new();
        self.drop_ended(&mut results);
        self.start(&mut results);
        self.step_group(&mut results);
        results
    }
}

fn longest_text(members: &[Member]) -> usize {
    members.iter().map(|member| member.text.ids.len()).max().unwrap_or(0)
}
