//! A script in the user's Python that makes variants of one file.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::Context;
use serde_json::{Value, json};

use crate::python::{last_lines, not_started};

const SCRIPT: &str = include_str!("quantize.py");

/// The script, with a file opened.
pub struct Quantizer {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Collects what Python writes to standard error.
    words: Option<JoinHandle<String>>,
    /// The matrices of the graph that can be quantized, by their nodes' names, with their number of weights.
    pub matrices: BTreeMap<String, u64>,
    /// The tool and its version.
    pub by: String,
    /// Whether Python has what kind `blocks` needs.
    pub has_blocks: bool,
}

// === impl Quantizer ===

impl Quantizer {
    /// Opens the ONNX file `model`; variants are made by way of the folder `work`.
    pub fn open(python: &Path, model: &Path, work: &Path) -> anyhow::Result<Quantizer> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| not_started(python))?;
        let (questions, answers) = (child.stdin.take().context("no pipe")?, child.stdout.take().context("no pipe")?);
        let mut errors = child.stderr.take().context("no pipe")?;
        let words = std::thread::Builder::new().spawn(move || {
            let mut words = Vec::new();
            let _ = errors.read_to_end(&mut words);
            String::from_utf8_lossy(&words).into_owned()
        })?;
        let (answers, words) = (BufReader::new(answers), Some(words));
        let (matrices, by) = (BTreeMap::new(), String::new());
        let mut quantizer = Quantizer { child, questions, answers, words, matrices, by, has_blocks: false };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let opened = quantizer.ask(&json!({ "do": "open", "model": model, "work": work, "threads": threads }))?;
        let counts = opened["matmuls"].as_object().context("the script named no matrices")?;
        quantizer.matrices = counts.iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap_or(0))).collect();
        quantizer.by = opened["by"].as_str().unwrap_or_default().to_owned();
        quantizer.has_blocks = opened["blocks"] == true;
        Ok(quantizer)
    }

    /// Makes the base of the kinds `smooth` and `usmooth`, by the activations of these rows of token ids: factors that change nothing
    /// at full precision take large values out of the activations. Gives the number of matrices that have factors.
    pub fn smooth(&mut self, rows: &[Value]) -> anyhow::Result<u64> {
        let found = self.ask(&json!({ "do": "smooth", "rows": rows }))?;
        found["smoothed"].as_u64().context("the script named no number of matrices")
    }

    /// How far each matrix alone, quantized, moves the results for these rows of token ids.
    pub fn damage(&mut self, kind: &str, rows: &[Value]) -> anyhow::Result<BTreeMap<String, f64>> {
        let found = self.ask(&json!({ "do": "damage", "kind": kind, "rows": rows }))?;
        let damage = found["damage"].as_object().context("the script named no damage")?;
        Ok(damage.iter().map(|(name, value)| (name.clone(), value.as_f64().unwrap_or(f64::INFINITY))).collect())
    }

    /// Writes the variant that leaves out these matrices.
    pub fn quantize(&mut self, kind: &str, leave_out: &[String], output: &Path) -> anyhow::Result<()> {
        self.ask(&json!({ "do": "quantize", "kind": kind, "leave_out": leave_out, "output": output })).map(drop)
    }

    /// Leaves notes in the metadata of a file.
    pub fn sign(&mut self, path: &Path, notes: &Value) -> anyhow::Result<()> {
        self.ask(&json!({ "do": "sign", "path": path, "notes": notes })).map(drop)
    }

    /// A question and its answer. Lines of progress are shown in the log.
    fn ask(&mut self, question: &Value) -> anyhow::Result<Value> {
        let sent = writeln!(self.questions, "{question}").and_then(|()| self.questions.flush());
        let mut line = String::new();
        while sent.is_ok() && self.answers.read_line(&mut line).context("reading from Python")? > 0 {
            let answer: Value = serde_json::from_str(&line).context("the script wrote no JSON")?;
            match answer["progress"].as_str() {
                Some(progress) => tracing::info!("{progress}"),
                None => return Ok(answer),
            }
            line.clear();
        }
        let status = self.child.wait().context("waiting for Python")?;
        let words = self.words.take().and_then(|words| words.join().ok()).unwrap_or_default();
        anyhow::bail!(
            "Python could not make variants ({status}); it needs onnxruntime and onnx (pip install onnxruntime onnx), and another one \
             is named by --python:\n{}",
            last_lines(&words)
        )
    }
}

impl Drop for Quantizer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
