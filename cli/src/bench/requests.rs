//! The requests that are sent, made of the model's metadata: texts for BYTES inputs, zeros for numbers.

use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use clap::ValueEnum;
use serde_json::{Value, json};

/// The text in BYTES inputs when no file of texts is given.
const DEFAULT_TEXT: &str = "The quick brown fox jumps over the lazy dog.";

/// The texts of a file: plain lines, or lines that are JSON objects with a `text`.
pub fn read_texts(path: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let Some(path) = path else { return Ok(vec![DEFAULT_TEXT.to_owned()]) };
    let file = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(object)) => object.get("text")?.as_str().map(str::to_owned),
        _ => Some(line.to_owned()),
    };
    let texts: Vec<_> = file.lines().filter(|line| !line.trim().is_empty()).filter_map(text).collect();
    anyhow::ensure!(!texts.is_empty(), "{} holds no text", path.display());
    Ok(texts)
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
    /// The server, `HOST:PORT`.
    pub server: &'a str,
    /// The model.
    pub model: &'a str,
    /// Elements of each dimension that the model leaves open: texts of a request.
    pub dimension: i64,
}

// === impl Target ===

impl Target<'_> {
    /// A whole HTTP request per text in this form. Where a request takes several texts, those that follow come along.
    pub fn requests(&self, form: Form, metadata: &[u8], texts: &[String]) -> anyhow::Result<Vec<Bytes>> {
        let metadata: Value = serde_json::from_slice(metadata).context("the model's metadata is not JSON")?;
        let inputs = metadata["inputs"].as_array().context("the model's metadata has no inputs")?;
        let request = |first: usize| match form {
            Form::Binary => self.binary(inputs, texts, first),
            Form::Json => self.json(inputs, texts, first),
            Form::Openai => Ok(self.openai("float", texts, first)),
            Form::OpenaiBase64 => Ok(self.openai("base64", texts, first)),
        };
        (0..texts.len()).map(request).collect()
    }

    /// Tensors in binary, outputs in binary.
    fn binary(&self, inputs: &[Value], texts: &[String], first: usize) -> anyhow::Result<Bytes> {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for input in inputs {
            let (shape, count) = self.shape(input);
            let before = data.len();
            match input["datatype"].as_str() {
                Some("BYTES") => {
                    for text in texts.iter().cycle().skip(first).take(count) {
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
    fn json(&self, inputs: &[Value], texts: &[String], first: usize) -> anyhow::Result<Bytes> {
        let tensor = |input: &Value| {
            let (shape, count) = self.shape(input);
            let data: Value = match input["datatype"].as_str() {
                Some("BYTES") => texts.iter().cycle().skip(first).take(count).map(String::as_str).collect(),
                Some("BOOL") => vec![false; count].into(),
                Some(_) => vec![0; count].into(),
                None => anyhow::bail!("the model's metadata has an input without datatype"),
            };
            Ok(json!({ "name": input["name"], "datatype": input["datatype"], "shape": shape, "data": data }))
        };
        let inputs = inputs.iter().map(tensor).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(self.post(&self.infer(), JSON, json!({ "inputs": inputs }).to_string().as_bytes()))
    }

    /// OpenAI's words: a text for itself, or a list of several.
    fn openai(&self, encoding_format: &str, texts: &[String], first: usize) -> Bytes {
        let count = usize::try_from(self.dimension).unwrap_or(1).max(1);
        let input: Value = match count {
            1 => texts[first].as_str().into(),
            _ => texts.iter().cycle().skip(first).take(count).map(String::as_str).collect(),
        };
        let body = json!({ "model": self.model, "input": input, "encoding_format": encoding_format });
        self.post("/v1/embeddings", JSON, body.to_string().as_bytes())
    }

    fn infer(&self) -> String {
        format!("/v2/models/{}/infer", self.model)
    }

    /// A request with these headers, lines that end.
    fn post(&self, path: &str, headers: &str, body: &[u8]) -> Bytes {
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n{headers}\r\n", self.server, body.len());
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

fn element_size(datatype: &str) -> anyhow::Result<usize> {
    Ok(match datatype {
        "BOOL" | "UINT8" | "INT8" => 1,
        "UINT16" | "INT16" | "FP16" | "BF16" => 2,
        "UINT32" | "INT32" | "FP32" => 4,
        "UINT64" | "INT64" | "FP64" => 8,
        other => anyhow::bail!("an input has the datatype {other}, which is unknown"),
    })
}
