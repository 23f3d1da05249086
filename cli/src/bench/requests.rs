//! The requests that are sent, made from the model's metadata: texts for BYTES inputs, zeros for numbers.

use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
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

/// A whole HTTP request per text, tensors in binary, outputs in binary. Where an input takes several texts, those that
/// follow come along.
pub fn build(
    server: &str,
    model: &str,
    metadata: &[u8],
    texts: &[String],
    dimension: i64,
) -> anyhow::Result<Vec<Bytes>> {
    let metadata: Value = serde_json::from_slice(metadata).context("the model's metadata is not JSON")?;
    let inputs = metadata["inputs"].as_array().context("the model's metadata has no inputs")?;
    let request = |first: usize| {
        let (mut header, mut data) = (Vec::new(), Vec::new());
        for input in inputs {
            let shape: Vec<i64> = input["shape"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
            let shape: Vec<i64> = shape.iter().map(|&d| if d < 0 { dimension } else { d }).collect();
            let count = shape.iter().product::<i64>().max(0) as usize;
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
        let mut request = format!(
            "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {server}\r\nContent-Length: {}\r\n\
             Inference-Header-Content-Length: {}\r\n\r\n{header}",
            header.len() + data.len(),
            header.len()
        )
        .into_bytes();
        request.extend_from_slice(&data);
        Ok(Bytes::from(request))
    };
    (0..texts.len()).map(request).collect()
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
