//! The two ways to embed texts: a server over HTTP, and the pipeline in this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use trireme_gateway::{Chunking, Embedded, Embedder};
use trireme_inference::{Backoff, Cause, ErrorCode, IF_SPACE_HEADER, InferError, KEEP};

use super::rows::{Embedding, Facts, Outcome};
use crate::client::{Answer, Client};
use crate::output;

/// The header that puts requests into the bulk lane.
const BULK: (&str, &str) = ("priority", "u=7");

/// The pauses before texts are asked for again that could not be taken.
const ASK_AGAIN: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// The longest pause that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// From this pause on, the user hears of it; once in [`SAID_AGAIN`], whatever the number of requests that wait.
const WORTH_SAYING: Duration = Duration::from_secs(2);
const SAID_AGAIN: Duration = Duration::from_secs(10);

/// How often a pause looks whether the run ends.
const LOOK: Duration = Duration::from_millis(50);

/// How long a request of this process waits for room in a full queue.
const PATIENCE: Duration = Duration::from_secs(60);

/// A text that every model takes, to learn the width of its vectors.
const PROBE: &str = "text";

/// Why texts have no vectors.
#[derive(Debug, PartialEq)]
pub enum Refused {
    /// These texts are refused.
    Texts(String),
    /// Every text would be refused: the key or the model is wrong.
    Everything(String),
    /// They may be taken later, after this time if it is known.
    Later(String, Option<Duration>),
    /// There was no answer. A server that answered before may come back.
    Absent(String),
}

/// Vectors of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    /// By text its vectors: one, or those of its windows.
    pub rows: Vec<Vec<Embedding>>,
    /// The counts of the texts.
    pub facts: Facts,
    /// The space of the vectors, as `trireme-space` tells it.
    pub space: Option<String>,
}

/// Embeds texts.
pub trait Embed: Sync {
    /// The vectors of each text. `if_space`, the value of the header `If-Space`, lists the spaces that they may have.
    fn ask(&self, texts: &[String], if_space: Option<&str>) -> Result<Vectors, Refused>;

    /// Most tokens of a text, where that is known: longer ones are cut.
    fn most_tokens(&self) -> Option<u64> {
        None
    }
}

/// The model of a run, and the spaces of which its vectors have to have one.
pub struct Asker<'a> {
    pub embed: &'a dyn Embed,
    pub if_space: Option<String>,
}

/// A server.
pub struct Remote {
    pub client: Client,
    pub model: String,
    pub chunking: Option<Chunking>,
}

/// The pipeline in this process.
pub struct Own {
    pub embedder: Embedder,
    /// The model's name; `None` is the only one that embeds.
    pub model: Option<String>,
    pub chunking: Option<Chunking>,
    pub runtime: Handle,
}

// === impl Remote ===

impl Embed for Remote {
    fn ask(&self, texts: &[String], if_space: Option<&str>) -> Result<Vectors, Refused> {
        let mut body = json!({"model": self.model, "input": texts, "encoding_format": "base64"});
        if let Some(Chunking { max_tokens, overlap }) = self.chunking {
            body["chunking"] = json!({"fold": KEEP});
            let numbers = [("max_tokens", max_tokens), ("overlap", overlap)];
            numbers
                .iter()
                .filter(|(_, number)| number.is_some())
                .for_each(|(name, number)| body["chunking"][name] = json!(number));
        }
        let headers: Vec<_> = [BULK].into_iter().chain(if_space.map(|spaces| (IF_SPACE_HEADER, spaces))).collect();
        match self.client.try_post("/v1/embeddings", &headers, &body) {
            Ok(Answer { status: 200, body, tokens, truncated, space, .. }) => {
                let rows = read_vectors(&body, texts.len());
                let rows = rows.map_err(|error| Refused::Texts(format!("{error:#}")))?;
                Ok(Vectors { rows, facts: Facts { tokens, cut: truncated }, space })
            }
            Ok(answer @ Answer { status: 408 | 429 | 502..=504, .. }) => {
                Err(Refused::Later(answer.fault(), answer.retry_after))
            }
            Ok(answer @ Answer { status: 401 | 403..=405 | 412, .. }) => Err(Refused::Everything(answer.fault())),
            Ok(answer) => Err(Refused::Texts(answer.fault())),
            Err(error) => Err(Refused::Absent(format!("{error:#}"))),
        }
    }

    fn most_tokens(&self) -> Option<u64> {
        let body = json!({"model": self.model, "prompt": PROBE});
        self.client.try_post("/tokenize", &[BULK], &body).ok()?.body["max_model_len"].as_u64()
    }
}

fn read_vectors(body: &Value, count: usize) -> anyhow::Result<Vec<Vec<Embedding>>> {
    let data = body["data"].as_array().context("the server's answer has no 'data'")?;
    let row = |(place, row): (usize, &Value)| {
        let text = row["embedding"].as_str().context("the server gave a vector that is not in base64")?;
        let bytes = BASE64_STANDARD.decode(text).context("the server gave a vector that is not in base64")?;
        let vector =
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
        let characters = row["start"].as_u64().zip(row["end"].as_u64()).map(|(start, end)| start..end);
        // An entry of a window has the number of its text.
        let number = if characters.is_some() { row["index"].as_u64().unwrap_or(u64::MAX) as usize } else { place };
        Ok((number, Embedding { characters, vector }))
    };
    by_text(data.iter().enumerate().map(row).collect::<anyhow::Result<Vec<_>>>()?, count)
}

/// The vectors by text, each of which has one at least. They come with the numbers of their texts.
fn by_text(vectors: Vec<(usize, Embedding)>, count: usize) -> anyhow::Result<Vec<Vec<Embedding>>> {
    let mut rows = vec![Vec::new(); count];
    for (number, vector) in vectors {
        let of = rows.get_mut(number);
        of.with_context(|| format!("the server gave a vector of text {number}, expected one of {count} texts"))?
            .push(vector);
    }
    let found = rows.iter().filter(|vectors| !vectors.is_empty()).count();
    ensure!(found == count, "the server gave vectors of {found} texts, expected those of {count}");
    Ok(rows)
}

// === impl Own ===

#[allow(clippy::disallowed_methods, reason = "the threads are the command's own")]
impl Embed for Own {
    fn ask(&self, texts: &[String], if_space: Option<&str>) -> Result<Vectors, Refused> {
        let asking = self.embedder.embed(self.model.as_deref(), texts, self.chunking, PATIENCE, if_space);
        let asked = self.runtime.block_on(asking).map_err(|InferError { code, message, cause, .. }| match code {
            _ if cause == Some(Cause::OtherSpace) => Refused::Everything(message),
            ErrorCode::NotFound => Refused::Everything(message),
            ErrorCode::Unavailable => Refused::Later(message, None),
            _ => Refused::Texts(message),
        });
        let Embedded { vectors, windows, texts: counts, space } = asked?;
        let row = |(place, vector): (usize, Vec<f32>)| {
            let window = windows.as_ref().and_then(|windows| windows.get(place));
            let characters = window.map(|window| window.start..window.end);
            (window.map_or(place, |window| window.text), Embedding { characters, vector })
        };
        let rows = by_text(vectors.into_iter().enumerate().map(row).collect(), texts.len());
        let rows = rows.map_err(|error| Refused::Texts(format!("{error:#}")))?;
        let facts = counts.map(|facts| Facts { tokens: facts.tokens, cut: facts.truncated });
        Ok(Vectors { rows, facts: facts.unwrap_or_default(), space })
    }

    fn most_tokens(&self) -> Option<u64> {
        self.runtime.block_on(self.embedder.max_length(self.model.as_deref()))
    }
}

/// The vector of a text and its space. Errors where the model embeds nothing, and where no server answers before the first row is read.
pub fn probe(asker: &Asker<'_>) -> anyhow::Result<(Vec<f32>, Option<String>)> {
    let texts = [PROBE.to_owned()];
    if let Err(Refused::Absent(why)) = asker.embed.ask(&texts, asker.if_space.as_deref()) {
        anyhow::bail!(why);
    }
    let found = insist(asker, &texts, &AtomicBool::new(false))?;
    let first = |rows: Vec<Vec<Embedding>>| rows.into_iter().flatten().next().map(|embedding| embedding.vector);
    match found.map(|Vectors { rows, space, .. }| (first(rows).unwrap_or_default(), space)) {
        Ok((vector, space)) if !vector.is_empty() => Ok((vector, space)),
        Err(why) => anyhow::bail!("the model does not embed the text '{PROBE}': {why}"),
        _ => anyhow::bail!("the model gives no vector for the text '{PROBE}'"),
    }
}

/// The vector of each text, or the reason why there is none. Texts that are refused together are asked for one by one. An error
/// ends the run: every text would fail, or `stop` was raised while texts could not be taken.
pub fn outcomes(asker: &Asker<'_>, texts: &[String], stop: &AtomicBool) -> anyhow::Result<(Vec<Outcome>, Facts)> {
    match (insist(asker, texts, stop)?, texts) {
        (Ok(Vectors { rows, facts, .. }), _) => Ok((rows.into_iter().map(Ok).collect(), facts)),
        (Err(why), [_]) => Ok((vec![Err(why)], Facts::default())),
        (Err(_), texts) => {
            let mut all = Facts::default();
            let mut alone = |text: &String| {
                let found = insist(asker, std::slice::from_ref(text), stop)?;
                Ok(found.and_then(|Vectors { rows, facts, .. }| {
                    all += facts;
                    rows.into_iter().next().ok_or_else(|| "no vector".to_owned())
                }))
            };
            let found = texts.iter().map(&mut alone).collect::<anyhow::Result<_>>()?;
            Ok((found, all))
        }
    }
}

/// The vectors of texts, or why there are none. Asks again for as long as they may be taken later.
fn insist(asker: &Asker<'_>, texts: &[String], stop: &AtomicBool) -> anyhow::Result<Result<Vectors, String>> {
    let mut refusals = 0u32;
    loop {
        let (why, after) = match asker.embed.ask(texts, asker.if_space.as_deref()) {
            Ok(vectors) if vectors.rows.len() == texts.len() => return Ok(Ok(vectors)),
            Ok(Vectors { rows, .. }) => {
                return Ok(Err(format!("there are {} vectors for {} texts", rows.len(), texts.len())));
            }
            Err(Refused::Texts(why)) => return Ok(Err(why)),
            Err(Refused::Everything(why)) => {
                anyhow::bail!("{why}; the same command goes on once that is put right")
            }
            Err(Refused::Later(why, after)) => (why, after),
            Err(Refused::Absent(why)) => (why, None),
        };
        ensure!(!stop.load(Ordering::Relaxed), "{why}");
        refusals = refusals.saturating_add(1);
        let wait = pause_of(ASK_AGAIN.after(refusals), after);
        if wait >= WORTH_SAYING {
            say(&format!("no request is taken now ({why}): asks again in {} s", wait.as_secs()));
        }
        let until = Instant::now() + wait;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK.min(wait));
        }
    }
}

/// The pause before texts are asked for again, where a server may have asked for one.
fn pause_of(own: Duration, asked: Option<Duration>) -> Duration {
    asked.unwrap_or(own).clamp(own, LONGEST_ASKED)
}

/// Warns, unless that was done a moment ago.
fn say(text: &str) {
    static SAID: Mutex<Option<Instant>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.is_none_or(|said| said.elapsed() >= SAID_AGAIN) {
        *said = Some(Instant::now());
        output::warn(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Picky;

    const PICKY: Asker<'_> = Asker { embed: &Picky, if_space: None };

    impl Embed for Picky {
        fn ask(&self, texts: &[String], _: Option<&str>) -> Result<Vectors, Refused> {
            match texts {
                texts if texts.iter().any(|text| text == "bad") => Err(Refused::Texts("a bad text".to_owned())),
                texts if texts.iter().any(|text| text == PROBE) => Err(Refused::Absent("no server".to_owned())),
                texts if texts.iter().any(|text| text == "worse") => {
                    Err(Refused::Everything("no such model".to_owned()))
                }
                texts => {
                    let facts = Facts { tokens: texts.len() as u64, cut: 0 };
                    let rows = texts.iter().map(|text| vec![Embedding::of_text(vec![text.len() as f32])]).collect();
                    Ok(Vectors { rows, facts, space: None })
                }
            }
        }
    }

    fn asked(texts: &[&str]) -> anyhow::Result<(Vec<Outcome>, Facts)> {
        outcomes(&PICKY, &texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), &AtomicBool::new(false))
    }

    #[test]
    fn one_bad_text_costs_no_other_its_vector() {
        let (found, facts) = asked(&["a", "bad", "bb"]).unwrap();
        let vector = |number| Ok(vec![Embedding::of_text(vec![number])]);
        assert_eq!(found, [vector(1.0), Err("a bad text".to_owned()), vector(2.0)]);
        assert_eq!(facts.tokens, 2, "those of texts with vectors are counted");
        assert_eq!(probe(&PICKY).unwrap_err().to_string(), "no server", "it is not waited for");
    }

    #[test]
    fn a_wrong_model_is_no_fault_of_a_text() {
        let error = asked(&["a", "worse"]).unwrap_err().to_string();
        assert!(error.contains("no such model") && error.contains("goes on"), "{error}");
    }

    #[test]
    fn a_server_cannot_make_a_run_wait_for_hours() {
        let seconds = Duration::from_secs;
        assert_eq!(pause_of(ASK_AGAIN.after(1), None), ASK_AGAIN.after(1));
        assert_eq!(pause_of(ASK_AGAIN.after(1), Some(seconds(5))), seconds(5));
        assert_eq!(pause_of(ASK_AGAIN.after(1), Some(seconds(0))), ASK_AGAIN.after(1));
        assert_eq!(pause_of(ASK_AGAIN.longest(), Some(seconds(86_400))), LONGEST_ASKED);
    }

    #[test]
    fn vectors_are_read_from_base64() {
        let encoded = BASE64_STANDARD.encode([1.5f32, -2.0].map(f32::to_le_bytes).concat());
        let body = json!({"data": [{"embedding": encoded}]});
        assert_eq!(read_vectors(&body, 1).unwrap(), [vec![Embedding::of_text(vec![1.5, -2.0])]]);
        let fault = |body: &Value, count| read_vectors(body, count).unwrap_err().to_string();
        assert_eq!(fault(&body, 2), "the server gave vectors of 1 texts, expected those of 2");
        assert_eq!(fault(&body, 0), "the server gave a vector of text 0, expected one of 0 texts");
        assert!(fault(&json!({"data": [{"embedding": [1.5]}]}), 1).contains("base64"));
        // Windows are those of the text that they name.
        let window =
            |index, start, end| json!({"index": index, "window": 0, "start": start, "end": end, "embedding": encoded});
        let body = json!({"data": [window(0, 0, 5), window(1, 0, 7), window(1, 6, 9)]});
        let found = read_vectors(&body, 2).unwrap();
        let characters: Vec<Vec<_>> =
            found.iter().map(|rows| rows.iter().map(|row| row.characters.clone()).collect()).collect();
        assert_eq!(characters, [vec![Some(0..5)], vec![Some(0..7), Some(6..9)]]);
        assert_eq!(fault(&body, 1), "the server gave a vector of text 1, expected one of 1 texts");
    }
}
