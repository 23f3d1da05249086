//! The job of an output, in the file `OUT.job.json` beside it: what the rows are made of and how, and which bytes became the output.
//!
//! The file is written before the first row, and stays when the output is whole, so that a later run goes on with the same job or is refused.
//! Nothing that no job knows is changed: a file in the place of the output, of its errors, or of its parts ends the command.

use std::io::Read;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use trireme_columns::Reader;

use super::errors;
use super::identity::Identity;
use super::lock::LOCK;
use super::place::{Place, is_partial};
use crate::style::harmless;

/// The end of the name of a job's file.
const SUFFIX: &str = ".job.json";

/// The end of the name of the folder with an output's parts.
const PARTS: &str = ".parts";

/// The member that makes a file of JSON a job's, and the version of its form.
const FORM: &str = "trireme_bulk_job";
const VERSION: u64 = 1;

/// The term with the space of the vectors. A job does not know it where the model did not tell, or an earlier version has begun it.
const SPACE: &str = "space";

/// The terms of a job, in the order in which they are compared: a choice comes before the content that it changes.
const TERMS: [&str; 19] = [
    FORM,
    "format",
    "model",
    "choices.precision",
    "choices.graph",
    "choices.output",
    "choices.task",
    "choices.pooling",
    "choices.normalize",
    "choices.padding_side",
    "choices.long_texts",
    "choices.accept",
    "chunk",
    "content",
    SPACE,
    "width",
    "text_column",
    "id_column",
    "input",
];

/// The largest difference between two vectors of one text by one model, as a share of their length. Providers and widths of batches round
/// differently; another pooling, prompt or precision of 8 bits is further off.
const ROUNDING: f64 = 0.05;

/// The input and settings that an output's rows come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The format of the output.
    pub format: String,
    /// The model's name, if it has one.
    pub model: Option<String>,
    /// The flags about the model folder; null without one.
    pub choices: Value,
    /// How texts become windows; null where each text has one vector.
    pub chunk: Value,
    /// The digest of the model's files; `None` where a server has them.
    pub content: Option<String>,
    /// The space of the vectors, where the model tells it.
    pub space: Option<String>,
    /// The vector of one text, which tells the models of a server apart; empty where the content is known.
    pub probe: Vec<f32>,
    /// The width of the vectors.
    pub width: usize,
    /// The columns of the input.
    pub text_column: String,
    pub id_column: Option<String>,
    /// The bytes of the input.
    pub input: Identity,
}

/// The files that an earlier run has left.
pub struct Left {
    terms: Value,
    /// The contents that the output may have: that of the last run, and the one that is about to replace it.
    outputs: Vec<Identity>,
    is_whole: bool,
}

/// The job of an output.
pub struct Job {
    file: Place,
    output: Place,
    /// The folder of the parts, and of files that are being written.
    pub folder: Place,
    left: Left,
    /// The content that the output has, where that was looked at.
    written: Option<Identity>,
}

/// The place of the file of an output's job.
pub fn place(output: &Place) -> anyhow::Result<Place> {
    output.with(SUFFIX)
}

/// The folder of an output's parts.
pub fn folder(output: &Place) -> anyhow::Result<Place> {
    output.with(PARTS)
}

// === impl Terms ===

impl Terms {
    fn to_json(&self) -> Value {
        let Terms { format, model, choices, chunk, content, space, probe, width, text_column, id_column, input } = self;
        let probe: Vec<u8> = probe.iter().flat_map(|number| number.to_le_bytes()).collect();
        json!({
            FORM: VERSION, "format": format, "model": model, "choices": choices, "chunk": chunk, "content": content, "space": space, "width": width,
            "probe": BASE64_STANDARD.encode(probe), "text_column": text_column, "id_column": id_column, "input": input.to_string(),
        })
    }
}

/// A term of a job's file by its dotted name.
fn term<'a>(terms: &'a Value, name: &str) -> &'a Value {
    name.split('.').fold(terms, |found, name| &found[name])
}

/// The distance of the probes of two jobs, as a share of the first one's length; `None` where they are no vectors of one width.
fn distance(one: &Value, other: &Value) -> Option<f64> {
    let numbers = |terms: &Value| -> Option<Vec<f64>> {
        let bytes = BASE64_STANDARD.decode(terms["probe"].as_str()?).ok()?;
        Some(bytes.as_chunks::<4>().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))).collect())
    };
    let (one, other) = (numbers(one)?, numbers(other)?);
    let length = one.iter().map(|number| number * number).sum::<f64>().sqrt();
    let apart = one.iter().zip(&other).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt();
    (one.len() == other.len()).then(|| if apart == 0.0 { 0.0 } else { apart / length.max(f64::MIN_POSITIVE) })
}

// === impl Left ===

impl Left {
    /// The files of an earlier run for `output`. Errors where a file is in their place that no job knows.
    pub fn find(output: &Place) -> anyhow::Result<Option<Left>> {
        let file = place(output)?;
        if !file.exists()? {
            check_free(output, &file)?;
            return Ok(None);
        }
        let mut text = String::new();
        Reader::new(file.open()?, 0).read_to_string(&mut text).with_context(|| format!("cannot read {file}"))?;
        let terms: Value = serde_json::from_str(&text).unwrap_or_default();
        ensure!(
            terms[FORM].is_u64(),
            "{file} is no file of a job, expected JSON with '{FORM}': choose another OUT, or remove that file"
        );
        let outputs = terms["outputs"].as_array().into_iter().flatten();
        let outputs = outputs.filter_map(|output| output.as_str()?.parse().ok()).collect();
        Ok(Some(Left { outputs, is_whole: terms["whole"] == true, terms }))
    }

    /// Errors where the terms are others; the error names the first.
    fn check(&self, terms: &Value, output: &Place, file: &Place, folder: &Place) -> anyhow::Result<()> {
        let cure = || match self.is_whole {
            true => format!("choose another OUT, or remove {output}"),
            false => format!("choose another OUT, or remove {file} and {folder}"),
        };
        for name in TERMS {
            let (found, wanted) = (term(&self.terms, name), term(terms, name));
            if name == SPACE && found.is_null() {
                continue;
            }
            ensure!(
                found == wanted,
                "{output} is of another job: '{name}' is {} in {file}, and {wanted} for this command: {}",
                harmless(&found.to_string()),
                cure()
            );
        }
        let apart = distance(&self.terms, terms);
        ensure!(
            apart.is_some_and(|apart| apart <= ROUNDING),
            "{output} is of another job: the model gives another vector for a text than when {file} was written{}, so its files, pooling, \
             prompt or precision have changed: {}",
            apart.map(|apart| format!(" ({:.0} % off)", 100.0 * apart)).unwrap_or_default(),
            cure()
        );
        Ok(())
    }
}

/// Errors where a file is in the place of the output, or of a file beside it, that no job knows.
fn check_free(output: &Place, file: &Place) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for place in [output.clone(), errors::place(output)?] {
        if place.exists()? {
            found.push(place.to_string());
        }
    }
    let folder = folder(output)?;
    // A run that was cut off before its job was written has left no more than these.
    let begun = format!("{}.partial", file.to_string().rsplit('/').next().unwrap_or_default());
    let others = folder.names()?.iter().any(|name| *name != LOCK && *name != begun);
    if others || (folder.exists()? && !folder.is_folder()) {
        found.push(folder.to_string());
    }
    let [is, it] = if found.len() > 1 { ["are", "them"] } else { ["is", "it"] };
    ensure!(
        found.is_empty(),
        "{} {is} there already, and no {file} says that trireme bulk has written {it}: choose another OUT, or remove {it}",
        found.join(" and ")
    );
    Ok(())
}

// === impl Job ===

impl Job {
    /// The job of `output` with these terms, and whether the output is whole. `left` is what an earlier run has left.
    pub fn open(output: &Place, left: Option<Left>, terms: &Terms) -> anyhow::Result<(Job, bool)> {
        let (file, folder) = (place(output)?, folder(output)?);
        let (terms, is_there) = (terms.to_json(), output.exists()?);
        let left = match left {
            // The output was whole, and somebody has removed it: the command begins anew.
            Some(left) if left.is_whole && !is_there => {
                clear(&folder)?;
                None
            }
            left => left,
        };
        let output = output.clone();
        let Some(left) = left else {
            let left = Left { terms, outputs: Vec::new(), is_whole: false };
            let job = Job { file, output, folder, left, written: None };
            job.put()?;
            return Ok((job, false));
        };
        left.check(&terms, &output, &file, &folder)?;
        let is_whole = left.is_whole;
        let mut job = Job { file, output, folder, left, written: None };
        if is_whole {
            clear(&job.folder)?;
        } else if is_there {
            job.check_output()?;
        } else if job.left.outputs.is_empty() {
            // The file of errors is written behind the output.
            let errors = errors::place(&job.output)?;
            ensure!(!errors.exists()?, "{errors} is there already, and its job has not written it: move it away");
        }
        Ok((job, is_whole))
    }

    /// The space of all vectors of the output, where it was known when the job began.
    pub fn space(&self) -> Option<&str> {
        self.left.terms[SPACE].as_str()
    }

    /// Errors where the output is another file than a run of this job has written.
    pub fn check_output(&mut self) -> anyhow::Result<()> {
        let found = Identity::of(self.output.open()?.as_ref())?;
        ensure!(
            self.left.outputs.contains(&found),
            "{} is not the file that trireme bulk has written (it is {found}): choose another OUT, or move that file away and run the same \
             command",
            self.output
        );
        self.written = Some(found);
        Ok(())
    }

    /// Notes the content that the output is about to have.
    pub fn note(&mut self, content: Identity) -> anyhow::Result<()> {
        ensure!(
            self.written.is_some() || !self.output.exists()?,
            "{} has appeared before trireme bulk could write it: move it away and run the same command",
            self.output
        );
        self.left.outputs = self.written.clone().into_iter().chain([content]).collect();
        self.put()
    }

    /// Notes that the output is whole, and removes its parts.
    pub fn end(&mut self) -> anyhow::Result<()> {
        self.left.is_whole = true;
        self.put()?;
        clear(&self.folder)
    }

    fn put(&self) -> anyhow::Result<()> {
        let mut record = self.left.terms.clone();
        record["outputs"] = self.left.outputs.iter().map(ToString::to_string).collect();
        record["whole"] = self.left.is_whole.into();
        self.file.put(format!("{record}\n").into_bytes(), &self.folder)
    }
}

/// The names of the files of an output's parts: the ends of a window's rows and of its counts.
pub const PART: &str = ".part";
pub const COUNTS: &str = ".json";

/// The name of a window's file; names are in the order of rows.
pub fn window_name(first: u64, count: u64, end: &str) -> String {
    format!("{first:016}-{count}{end}")
}

/// The first row of a window and the number of its rows.
pub fn row_range(name: &str, end: &str) -> Option<(u64, u64)> {
    let (first, count) = name.strip_suffix(end)?.split_once('-')?;
    Some((first.parse().ok()?, count.parse().ok()?))
}

/// Removes the parts and counts of an output that is whole.
fn clear(folder: &Place) -> anyhow::Result<()> {
    let is_own = |name: &String| is_partial(name) || [PART, COUNTS].iter().any(|end| row_range(name, end).is_some());
    let names: Vec<_> = folder.names()?.into_iter().filter(is_own).collect();
    folder.remove(&names)
}
