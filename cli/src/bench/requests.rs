//! The requests that are sent, made of the model's metadata: texts for BYTES inputs, zeros for numbers.

use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use clap::ValueEnum;
use serde_json::{Value, json};

/// The texts in BYTES inputs when no file of texts is given, one a line: questions, sentences and paragraphs.
const DEFAULT_TEXTS: &str = include_str!("texts.txt");

/// A line of a file of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The text.
    pub text: String,
    /// The other text of a pair.
    pub pair: Option<String>,
}

/// The lines of a file: plain texts, or JSON objects with a `text` and, for pairs, a `text_pair`. Without a file they are texts that the
/// program has.
pub fn read_lines(path: Option<&Path>) -> anyhow::Result<Vec<Line>> {
    let Some(path) = path else { return Ok(DEFAULT_TEXTS.lines().map(Line::from).collect()) };
    let file = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<_> = file.lines().filter(|line| !line.trim().is_empty()).filter_map(Line::parse).collect();
    anyhow::ensure!(!lines.is_empty(), "{} holds no text", path.display());
    Ok(lines)
}

/// In which form requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// The v2 protocol, tensors in binary
    Binary,
    /// The v2 protocol, tensors as JSON
    Json,
    /// OpenAI's /v1/embeddings, vectors as JSON numbers
    Openai,
    /// OpenAI's /v1/embeddings, vectors in base64, as OpenAI's own client asks for them
    OpenaiBase64,
}

/// Where requests go.
pub struct Target<'a> {
    /// The headers of each request, lines that end.
    pub headers: &'a str,
    /// The model.
    pub model: &'a str,
    /// Elements of each dimension that the model leaves open: texts of a request.
    pub dimension: i64,
}

/// The requests of a measurement, and their contents.
pub struct Requests {
    /// Whole HTTP requests.
    pub sent: Vec<Bytes>,
    /// Texts of each; 0 where the model takes none.
    pub texts: usize,
}

// === impl Line ===

impl From<&str> for Line {
    fn from(text: &str) -> Line {
        Line { text: text.to_owned(), pair: None }
    }
}

impl Line {
    /// `None` for a JSON object without a `text`.
    fn parse(line: &str) -> Option<Line> {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else { return Some(line.into()) };
        let field = |name| Some(object.get(name)?.as_str()?.to_owned());
        Some(Line { text: field("text")?, pair: field("text_pair") })
    }

    /// The text for the input with this many BYTES inputs before it. A line without a pair has one text for all inputs.
    fn text_for(&self, before: usize) -> &str {
        self.pair.as_deref().filter(|_| before > 0).unwrap_or(&self.text)
    }
}

// === impl Target ===

impl Target<'_> {
    /// A whole HTTP request per line in this form. Where a request takes several texts, those that follow come along.
    pub fn requests(&self, form: Form, metadata: &[u8], lines: &[Line]) -> anyhow::Result<Requests> {
        let metadata: Value = serde_json::from_slice(metadata).context("the model's metadata is not JSON")?;
        let inputs = metadata["inputs"].as_array().context("the model's metadata has no inputs")?;
        let request = |first: usize| match form {
            Form::Binary => self.binary(inputs, lines, first),
            Form::Json => self.json(inputs, lines, first),
            Form::Openai => self.openai("float", lines, first),
            Form::OpenaiBase64 => self.openai("base64", lines, first),
        };
        let texts = match form {
            Form::Binary | Form::Json => {
                let of_texts = inputs.iter().filter(|input| input["datatype"] == "BYTES");
                of_texts.map(|input| self.shape(input).1).max().unwrap_or(0)
            }
            Form::Openai | Form::OpenaiBase64 => self.count(),
        };
        let distinct = if texts == 0 { 1 } else { lines.len() };
        Ok(Requests { sent: (0..distinct).map(request).collect::<Result<_, _>>()?, texts })
    }

    /// Tensors in binary, outputs in binary.
    fn binary(&self, inputs: &[Value], lines: &[Line], first: usize) -> anyhow::Result<Bytes> {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for (at, input) in inputs.iter().enumerate() {
            let (shape, count) = self.shape(input);
            let before = data.len();
            match input["datatype"].as_str() {
                Some("BYTES") => {
                    for line in lines.iter().cycle().skip(first).take(count) {
                        let text = line.text_for(texts_before(inputs, at));
                        data.extend_from_slice(&(text.len() as u32).to_le_bytes());
                        data.extend_from_slice(text.as_bytes());
                    }
                }
                Some(datatype) => data.resize(before + count * element_size(datatype)?, 0),
                None => anyhow::bail!("the model's metadata has an input without datatype"),
            }
            header.push(json!({
                "name": input["name"], "datatype": input["datatype"], "shape": shape,
                "parameters": { "binary_data_size": data.len() - before },
            }));
        }
        let header = json!({ "inputs": header, "parameters": { "binary_data_output": true } }).to_string();
        let length = format!("Inference-Header-Content-Length: {}\r\n", header.len());
        Ok(self.post(&self.infer(), &length, &[header.as_bytes(), &data].concat()))
    }

    /// Tensors as JSON, outputs as JSON.
    fn json(&self, inputs: &[Value], lines: &[Line], first: usize) -> anyhow::Result<Bytes> {
        let tensor = |(at, input): (usize, &Value)| {
            let (shape, count) = self.shape(input);
            let data: Value = match input["datatype"].as_str() {
                Some("BYTES") => {
                    let text = |line| Line::text_for(line, texts_before(inputs, at));
                    lines.iter().cycle().skip(first).take(count).map(text).collect()
                }
                Some("BOOL") => vec![false; count].into(),
                Some(_) => vec![0; count].into(),
                None => anyhow::bail!("the model's metadata has an input without datatype"),
            };
            Ok(json!({ "name": input["name"], "datatype": input["datatype"], "shape": shape, "data": data }))
        };
        let inputs = inputs.iter().enumerate().map(tensor).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(self.post(&self.infer(), JSON, json!({ "inputs": inputs }).to_string().as_bytes()))
    }

    /// OpenAI's words: a text for itself, or a list of several.
    fn openai(&self, encoding_format: &str, lines: &[Line], first: usize) -> anyhow::Result<Bytes> {
        anyhow::ensure!(lines[first].pair.is_none(), "/v1/embeddings takes no pairs of texts");
        let count = self.count();
        let input: Value = match count {
            1 => lines[first].text.as_str().into(),
            _ => lines.iter().cycle().skip(first).take(count).map(|line| line.text.as_str()).collect(),
        };
        let body = json!({ "model": self.model, "input": input, "encoding_format": encoding_format });
        Ok(self.post("/v1/embeddings", JSON, body.to_string().as_bytes()))
    }

    /// Texts of a request in OpenAI's words.
    fn count(&self) -> usize {
        usize::try_from(self.dimension).unwrap_or(1).max(1)
    }

    fn infer(&self) -> String {
        format!("/v2/models/{}/infer", self.model)
    }

    /// A request with these headers, lines that end.
    fn post(&self, path: &str, headers: &str, body: &[u8]) -> Bytes {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\n{}Content-Length: {length}\r\n{headers}\r\n", self.headers);
        Bytes::from([head.as_bytes(), body].concat())
    }

    /// The shape of an input, and its elements.
    fn shape(&self, input: &Value) -> (Vec<i64>, usize) {
        let shape = input["shape"].as_array().into_iter().flatten().filter_map(Value::as_i64);
        let shape: Vec<i64> = shape.map(|size| if size < 0 { self.dimension } else { size }).collect();
        let count = shape.iter().product::<i64>().max(0) as usize;
        (shape, count)
    }
}

const JSON: &str = "Content-Type: application/json\r\n";

/// How many BYTES inputs there are before the one at `at`.
fn texts_before(inputs: &[Value], at: usize) -> usize {
    inputs[..at].iter().filter(|input| input["datatype"] == "BYTES").count()
}

fn element_size(datatype: &str) -> anyhow::Result<usize> {
    Ok(match datatype {
        "BOOL" | "UINT8" | "INT8" => 1,
        "UINT16" | "INT16" | "FP16" | "BF16" => 2,
        "UINT32" | "INT32" | "FP32" => 4,
        "UINT64" | "INT64" | "FP64" => 8,
        other => anyhow::bail!("an input has the datatype {other}, which is unknown"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: &str = r#"{"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [-1]},
        {"name": "TEXT_PAIR", "datatype": "BYTES", "shape": [-1]}]}"#;

    /// The data of both inputs in the first request of these lines.
    fn first_request(lines: &[&str], dimension: i64) -> (Value, Value) {
        let lines: Vec<_> = lines.iter().copied().filter_map(Line::parse).collect();
        let target = Target { headers: "", model: "m", dimension };
        let Requests { sent: requests, texts: count } = target.requests(Form::Json, PAIRS.as_bytes(), &lines).unwrap();
        assert_eq!(count as i64, dimension);
        let Requests { sent: binary, .. } = target.requests(Form::Binary, PAIRS.as_bytes(), &lines).unwrap();
        let (_, body) = std::str::from_utf8(&requests[0]).unwrap().split_once("\r\n\r\n").unwrap();
        let inputs: Value = serde_json::from_str::<Value>(body).unwrap()["inputs"].take();
        let data: Vec<&Value> = inputs.as_array().unwrap().iter().map(|input| &input["data"]).collect();
        let texts = data.iter().flat_map(|texts| texts.as_array().unwrap()).filter_map(Value::as_str);
        let expected: Vec<u8> =
            texts.flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()).collect();
        assert!(binary[0].ends_with(&expected), "the binary form has the same texts");
        (data[0].clone(), data[1].clone())
    }

    #[test]
    fn a_pair_goes_to_two_inputs_and_a_plain_text_to_both() {
        let pair = r#"{"text": "who rows", "text_pair": "the crew"}"#;
        assert_eq!(first_request(&[pair], 1), (json!(["who rows"]), json!(["the crew"])));
        let two = first_request(&[pair, "a boat"], 2);
        assert_eq!(two, (json!(["who rows", "a boat"]), json!(["the crew", "a boat"])));
    }

    #[test]
    fn pairs_are_refused_where_a_request_has_one_text() {
        let line = Line { pair: Some("the crew".to_owned()), .."who rows".into() };
        let target = Target { headers: "", model: "m", dimension: 1 };
        let error = target.requests(Form::Openai, PAIRS.as_bytes(), &[line]).err().unwrap().to_string();
        assert_eq!(error, "/v1/embeddings takes no pairs of texts");
    }

    #[test]
    fn texts_of_its_own_differ_in_words_and_length() {
        let lines = read_lines(None).unwrap();
        let words = |line: &Line| line.text.split_whitespace().count();
        let mut lengths: Vec<usize> = lines.iter().map(words).collect();
        lengths.sort_unstable();
        lengths.dedup();
        assert!(lengths.len() > 15 && lengths[0] < 6 && lengths.last().is_some_and(|last| *last > 100), "{lengths:?}");
        let mut texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), lines.len(), "each text is there once");
    }
}
