//! From windows of rows to windows with outcomes.
//!
//! The texts of a window are sorted by length and cut into groups, so that rows of a run of the model are about as long as each
//! other. Groups are asked for in parallel; the groups of the next window follow without a pause. Windows are written whole and in
//! their order, so a run that is cut off loses the windows in work and nothing else. A window is as large as
//! what the model answers in [`WINDOW_TIME`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::ask::{Asker, outcomes};
use super::progress::Progress;
use super::rows::{Embedding, Facts, Outcome, Totals, Window};

/// How long the model should need for a window.
const WINDOW_TIME: Duration = Duration::from_secs(15);

/// Rows of the first window, and the fewest of later ones.
const FIRST_ROWS: usize = 2048;
const FEWEST_ROWS: usize = 512;

/// The most rows of a window, and the most bytes of its vectors.
const MOST_ROWS: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// Windows that are read and not yet written.
const WINDOWS: usize = 2;

/// The input, window by window.
pub trait Input: Send {
    /// The next rows, about `rows` of them; `None` behind the last.
    fn next(&mut self, rows: usize) -> anyhow::Result<Option<Window>>;
}

/// The output.
pub trait Output {
    /// Appends the rows of a window with one outcome for each. `totals` are those of all rows up to the last of these.
    fn write(&mut self, window: &Window, outcomes: &[Outcome], totals: &Totals) -> anyhow::Result<()>;

    /// Makes the output whole, behind its last row, and writes the file of its errors. Returns the number of rows without a vector.
    fn finish(self: Box<Self>) -> anyhow::Result<u64>;
}

/// How texts are sent.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Most texts of a group.
    pub texts: usize,
    /// Most bytes of a group: its texts times the longest of them. A single text may be longer.
    pub bytes: usize,
    /// Groups in flight.
    pub window: usize,
}

/// Texts that are sent together.
struct Group {
    window: u64,
    /// The places of the texts within the window.
    places: Vec<usize>,
    texts: Vec<String>,
}

/// The messages to the writer.
enum Event {
    /// Rows that were read. Texts have been taken out of it and are in work.
    Window(u64, Window, Vec<Option<Outcome>>),
    /// Outcomes of a window's rows.
    Outcomes(u64, Vec<(usize, Outcome)>, Facts),
    /// The run ends.
    Fault(anyhow::Error),
}

/// A window that lacks outcomes.
struct Unfinished {
    window: Window,
    outcomes: Vec<Option<Outcome>>,
    facts: Facts,
    missing: usize,
}

/// Answers all rows of the input.
pub fn run(
    asker: &Asker<'_>,
    input: &mut dyn Input,
    output: &mut dyn Output,
    sending: Sending,
    width: usize,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let (send, groups) = sync_channel::<Group>(sending.window);
    let (tell, events) = sync_channel::<Event>(sending.window);
    // A place for each window that was read and not written.
    let (enter, leave) = sync_channel::<()>(WINDOWS);
    let (rows, stop) = (AtomicUsize::new(FIRST_ROWS), AtomicBool::new(false));
    std::thread::scope(|threads| {
        let (rows, stop) = (&rows, &stop);
        // The workers alone have the receiver, so the reader hears when they have all ended.
        let groups = Arc::new(Mutex::new(groups));
        for _ in 0..sending.window {
            let (groups, tell) = (groups.clone(), tell.clone());
            threads.spawn(move || work(asker, stop, &groups, &tell));
        }
        drop(groups);
        threads.spawn(move || {
            if let Err(error) = read(input, sending, rows, &enter, &send, &tell) {
                let _ = tell.send(Event::Fault(error));
            }
        });
        let written = write(&events, &leave, output, rows, width, progress);
        // Without their receivers the other threads end, and no worker tries on.
        stop.store(true, Ordering::Relaxed);
        drop((events, leave));
        written
    })
}

/// Reads windows and cuts them into groups until the end, or until nobody takes them.
fn read(
    input: &mut dyn Input,
    sending: Sending,
    rows: &AtomicUsize,
    enter: &SyncSender<()>,
    send: &SyncSender<Group>,
    tell: &SyncSender<Event>,
) -> anyhow::Result<()> {
    let mut number = 0;
    while let Some(mut window) = input.next(rows.load(Ordering::Relaxed))? {
        let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(window.texts.len());
        let mut texts = Vec::with_capacity(window.texts.len());
        for (place, text) in std::mem::take(&mut window.texts).into_iter().enumerate() {
            match text {
                Ok(text) if text.is_empty() => outcomes.push(Some(Err("an empty text".to_owned()))),
                Ok(text) => {
                    outcomes.push(None);
                    texts.push((place, text));
                }
                Err(why) => outcomes.push(Some(Err(why))),
            }
        }
        let taken = enter.send(()).is_ok() && tell.send(Event::Window(number, window, outcomes)).is_ok();
        if !taken
            || !group(texts, sending).all(|(places, texts)| send.send(Group { window: number, places, texts }).is_ok())
        {
            return Ok(());
        }
        number += 1;
    }
    Ok(())
}

/// Groups of texts of like length, the longest first, so that the end of a window is short.
fn group(mut texts: Vec<(usize, String)>, sending: Sending) -> impl Iterator<Item = (Vec<usize>, Vec<String>)> {
    texts.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
    let mut texts = texts.into_iter().peekable();
    std::iter::from_fn(move || {
        let longest = texts.peek()?.1.len().max(1);
        let count = (sending.bytes / longest).clamp(1, sending.texts.max(1));
        Some(texts.by_ref().take(count).unzip())
    })
}

/// Asks for groups until there are none.
fn work(asker: &Asker<'_>, stop: &AtomicBool, groups: &Mutex<Receiver<Group>>, tell: &SyncSender<Event>) {
    loop {
        let group = match groups.lock() {
            Ok(groups) => groups.recv(),
            Err(_) => return,
        };
        let Ok(Group { window, places, texts }) = group else { return };
        let event = match outcomes(asker, &texts, stop) {
            Ok((outcomes, facts)) => Event::Outcomes(window, places.into_iter().zip(outcomes).collect(), facts),
            Err(error) => Event::Fault(error),
        };
        if tell.send(event).is_err() {
            return;
        }
    }
}

/// Writes windows in their order.
fn write(
    events: &Receiver<Event>,
    leave: &Receiver<()>,
    output: &mut dyn Output,
    rows: &AtomicUsize,
    width: usize,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let (mut unfinished, mut next) = (BTreeMap::<u64, Unfinished>::new(), 0);
    let (began, mut answered, mut vectors) = (Instant::now(), 0, 0);
    let mut totals = progress.totals;
    let before = totals.took;
    for event in events {
        match event {
            Event::Fault(error) => return Err(error),
            Event::Window(number, window, outcomes) => {
                let refused = outcomes.iter().flatten().count();
                progress.answered(refused as u64, refused as u64, Facts::default());
                let missing = outcomes.len() - refused;
                unfinished.insert(number, Unfinished { window, outcomes, facts: Facts::default(), missing });
            }
            Event::Outcomes(number, outcomes, facts) => {
                // A window is announced before its groups are sent.
                let Some(unfinished) = unfinished.get_mut(&number) else { continue };
                let (count, mut errors) = (outcomes.len(), 0);
                for (place, outcome) in outcomes {
                    let outcome = fitting(outcome, width);
                    errors += u64::from(outcome.is_err());
                    vectors += outcome.as_ref().map_or(0, Vec::len);
                    unfinished.outcomes[place] = Some(outcome);
                }
                progress.answered(count as u64, errors, facts);
                answered += count;
                unfinished.missing -= count;
                unfinished.facts += facts;
            }
        }
        while let Some(first) =
            unfinished.first_entry().filter(|first| *first.key() == next && first.get().missing == 0)
        {
            let Unfinished { window, outcomes, facts, .. } = first.remove();
            let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
            totals.errors += outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64;
            totals.facts += facts;
            totals.took = before + began.elapsed();
            output.write(&window, &outcomes, &totals)?;
            let _ = leave.recv();
            next += 1;
            // A row with windows has a vector for each.
            let bytes = 4 * width * usize::div_ceil(vectors, answered.max(1));
            let most = (MOST_BYTES / bytes.max(1)).clamp(FEWEST_ROWS, MOST_ROWS);
            let rate = answered as f64 / began.elapsed().as_secs_f64().max(1e-3);
            rows.store(((rate * WINDOW_TIME.as_secs_f64()) as usize).clamp(FEWEST_ROWS, most), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// A vector of another width than the first one would not fit into the output.
fn fitting(outcome: Outcome, width: usize) -> Outcome {
    let vectors = outcome?;
    match vectors.iter().find(|embedding| embedding.vector.len() != width) {
        Some(Embedding { vector, .. }) => {
            Err(format!("the model gave a vector of {} numbers, expected {width} as for other texts", vector.len()))
        }
        None => Ok(vectors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::ask::{Embed, Refused, Vectors};
    use crate::bulk::rows::{Id, Rest};

    struct Lengths;

    impl Embed for Lengths {
        fn ask(&self, texts: &[String], _: Option<&str>) -> Result<Vectors, Refused> {
            let facts = Facts { tokens: texts.len() as u64, cut: 0 };
            match texts.iter().any(|text| text == "wrong model") {
                true => Err(Refused::Everything("no such model".to_owned())),
                false => {
                    let rows = texts.iter().map(|text| vec![Embedding::of_text(vec![text.len() as f32])]).collect();
                    Ok(Vectors { rows, facts, space: None })
                }
            }
        }
    }

    struct Numbered(std::vec::IntoIter<String>);

    impl Input for Numbered {
        fn next(&mut self, _: usize) -> anyhow::Result<Option<Window>> {
            let texts: Vec<_> = self.0.by_ref().take(7).map(Ok).collect();
            let ids = vec![Id::from(0u64); texts.len()];
            Ok((!texts.is_empty()).then_some(Window { texts, rest: Rest::Ids(ids) }))
        }
    }

    #[derive(Default)]
    struct Kept(Vec<Outcome>, Totals);

    impl Output for Kept {
        fn write(&mut self, _: &Window, outcomes: &[Outcome], totals: &Totals) -> anyhow::Result<()> {
            self.0.extend_from_slice(outcomes);
            self.1 = *totals;
            let errors = self.0.iter().filter(|outcome| outcome.is_err()).count() as u64;
            assert_eq!((totals.errors, totals.facts.tokens), (7 + errors, self.0.len() as u64 - errors));
            Ok(())
        }

        fn finish(self: Box<Self>) -> anyhow::Result<u64> {
            Ok(0)
        }
    }

    fn answered(texts: Vec<String>) -> anyhow::Result<Vec<Outcome>> {
        let sending = Sending { texts: 3, bytes: 64, window: 4 };
        let (mut input, mut output) = (Numbered(texts.into_iter()), Kept::default());
        let mut progress = Progress::new(None, 0, Totals { errors: 7, ..Totals::default() });
        run(&Asker { embed: &Lengths, if_space: None }, &mut input, &mut output, sending, 1, &mut progress)?;
        assert_eq!((output.1.errors, output.1.facts), (progress.totals.errors, progress.totals.facts));
        Ok(output.0)
    }

    #[test]
    fn outcomes_are_in_the_order_of_the_rows() {
        let texts: Vec<String> = (0..100).map(|n: usize| "x".repeat(n * 37 % 50)).collect();
        let found = answered(texts.clone()).unwrap();
        assert_eq!(found.len(), texts.len());
        for (text, outcome) in texts.iter().zip(found) {
            match text.len() {
                0 => assert_eq!(outcome, Err("an empty text".to_owned())),
                length => assert_eq!(outcome, Ok(vec![Embedding::of_text(vec![length as f32])])),
            }
        }
    }

    #[test]
    fn a_wrong_model_ends_the_run() {
        let mut texts = vec!["a".to_owned(); 50];
        texts[20] = "wrong model".to_owned();
        assert!(answered(texts).unwrap_err().to_string().contains("no such model"));
    }

    #[test]
    fn groups_hold_texts_of_like_length() {
        let texts: Vec<(usize, String)> = [1, 30, 2, 29, 3, 90].iter().map(|n| "x".repeat(*n)).enumerate().collect();
        let groups: Vec<Vec<usize>> =
            group(texts, Sending { texts: 2, bytes: 64, window: 1 }).map(|(places, _)| places).collect();
        assert_eq!(groups, [vec![5], vec![1, 3], vec![4, 2], vec![0]]);
    }
}
