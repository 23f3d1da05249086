//! `trireme infer`: text in, answer out, from any server of the v2 protocol. For a person at a terminal; programs have
//! client libraries.

use std::fmt::Write;
use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use trireme_runtime::service;

use crate::client::{Client, ServerArgs};
use crate::style::{harmless, harmless_json, harmless_lines};

/// Numbers of a row that are shown; the rest is counted.
const SHOWN: usize = 6;

/// Rows of an output that are shown likewise.
const SHOWN_ROWS: usize = 20;

/// Flags of `trireme infer`.
#[derive(Args)]
pub struct InferArgs {
    /// Model to ask
    #[arg(value_name = "MODEL")]
    model: String,

    /// Texts for the model's text input; without any, the lines of standard input
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,

    /// Version of the model; its latest without it
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,

    /// An input as JSON: INPUT0=[[1,2,3]]; may be given several times
    #[arg(long = "input", value_name = "NAME=JSON")]
    inputs: Vec<String>,

    /// A parameter of the request: a number, true, false, or else text; may be given several times
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,

    /// Show where the time went
    #[arg(long)]
    timing: bool,

    /// Print the server's answer as it is
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub fn run(args: &InferArgs) -> ExitCode {
    match ask(args) {
        Ok(text) => crate::output::write_out(text.as_bytes()),
        Err(error) => service::fail(&error),
    }
}

fn ask(args: &InferArgs) -> anyhow::Result<String> {
    let client = Client::new(&args.server)?;
    let version = args.version.as_ref().map(|version| format!("/versions/{version}")).unwrap_or_default();
    let path = format!("/v2/models/{}{version}", args.model);
    let metadata = client.get(&path)?;
    let inputs = metadata["inputs"].as_array().context("the model's metadata has no inputs")?;
    let mut request = json!({ "inputs": tensors(inputs, &args.inputs, || texts(args))? });
    if !args.parameters.is_empty() {
        request["parameters"] = Value::Object(parameters(&args.parameters)?);
    }
    let (answer, told) = client.post(&format!("{path}/infer"), &request)?;
    if args.json {
        return Ok(format!("{}\n", harmless_json(&answer)));
    }
    let mut text = String::new();
    for output in answer["outputs"].as_array().into_iter().flatten() {
        show(&mut text, output)?;
    }
    if !told.space.is_empty() {
        writeln!(text, "space  {}", harmless(&told.space))?;
    }
    if args.timing {
        write!(text, "\n{}", show_timing(&told.timing))?;
    }
    Ok(text)
}

/// The texts to send: the arguments, or the lines of standard input.
fn texts(args: &InferArgs) -> anyhow::Result<Vec<String>> {
    if !args.texts.is_empty() {
        return Ok(args.texts.clone());
    }
    let mut stdin = std::io::stdin();
    ensure!(!stdin.is_terminal(), "no text given: trireme infer {} \"some text\"", args.model);
    let mut text = String::new();
    stdin.read_to_string(&mut text).context("reading standard input")?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// The request's inputs: those given by name, and the texts for the one BYTES input that is left.
fn tensors(
    inputs: &[Value],
    given: &[String],
    texts: impl FnOnce() -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<Vec<Value>> {
    let mut tensors = Vec::new();
    let mut left: Vec<&Value> = inputs.iter().collect();
    for input in given {
        let (name, data) = input.split_once('=').with_context(|| format!("--input {input}: expected NAME=JSON"))?;
        let known = inputs.iter().filter_map(|input| input["name"].as_str());
        let known = harmless(&known.collect::<Vec<_>>().join(", "));
        let Some(position) = left.iter().position(|input| input["name"] == name) else {
            bail!("--input {name}: the model's inputs are {known}");
        };
        let input = left.remove(position);
        let data: Value = serde_json::from_str(data).with_context(|| format!("--input {name}: '{data}'"))?;
        tensors.push(json!({ "name": name, "datatype": input["datatype"], "shape": shape(&data), "data": data }));
    }
    let mut text_inputs = left.iter().filter(|input| input["datatype"] == "BYTES");
    match (text_inputs.next(), text_inputs.next()) {
        (Some(input), None) => {
            let texts = texts()?;
            let dimensions = input["shape"].as_array().map_or(1, Vec::len).max(1);
            // One text a row; whatever other dimensions the input has are 1.
            let shape: Vec<usize> = std::iter::once(texts.len()).chain(vec![1; dimensions - 1]).collect();
            tensors.push(json!({ "name": input["name"], "datatype": "BYTES", "shape": shape, "data": texts }));
        }
        (Some(_), Some(_)) => bail!("the model has several text inputs: give each by --input NAME='[\"text\"]'"),
        (None, _) => {}
    }
    Ok(tensors)
}

/// The shape of nested lists, as their first elements have it.
fn shape(data: &Value) -> Vec<usize> {
    match data.as_array() {
        Some(list) => std::iter::once(list.len()).chain(list.first().map(shape).unwrap_or_default()).collect(),
        None => Vec::new(),
    }
}

fn parameters(given: &[String]) -> anyhow::Result<Map<String, Value>> {
    let parameter = |text: &String| {
        let (name, value) = text.split_once('=').with_context(|| format!("--parameter {text}: expected NAME=VALUE"))?;
        // Anything but a JSON number or truth value is text.
        let value = serde_json::from_str(value).ok().filter(|value: &Value| value.is_number() || value.is_boolean());
        let value = value.unwrap_or_else(|| Value::from(text.split_once('=').map_or("", |(_, value)| value)));
        Ok((name.to_owned(), value))
    };
    given.iter().map(parameter).collect()
}

// === Showing ===

/// Writes an output: its name and kind, then a row a line.
fn show(text: &mut String, output: &Value) -> anyhow::Result<()> {
    let shape: Vec<usize> =
        output["shape"].as_array().into_iter().flatten().filter_map(|d| Some(d.as_u64()? as usize)).collect();
    let [name, datatype] = ["name", "datatype"].map(|field| harmless(output[field].as_str().unwrap_or_default()));
    writeln!(text, "{name}  {datatype}{shape:?}")?;
    let data = output["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let width = shape.get(1..).unwrap_or_default().iter().product::<usize>().max(1);
    for row in data.chunks(width).take(SHOWN_ROWS) {
        let shown: Vec<String> = row.iter().take(SHOWN).map(element).collect();
        let more = row.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!("  … {more} more") } else { String::new() };
        writeln!(text, "  {}{more}", shown.join("  "))?;
    }
    let rows = data.len().div_ceil(width);
    if rows > SHOWN_ROWS {
        writeln!(text, "  … {} more rows", rows - SHOWN_ROWS)?;
    }
    Ok(())
}

fn element(value: &Value) -> String {
    match value {
        Value::String(text) => harmless_lines(text),
        Value::Number(number) if number.is_f64() => format!("{:>9.5}", number.as_f64().unwrap_or(f64::NAN)),
        other => harmless_json(other),
    }
}

/// The entries of a Server-Timing header, one a line.
fn show_timing(header: &str) -> String {
    let mut text = String::new();
    for entry in harmless(header).split(", ").filter(|entry| !entry.is_empty()) {
        let mut parts = entry.split(';');
        let name = parts.next().unwrap_or_default();
        let mut part = |key: &str| parts.next().and_then(|part| part.strip_prefix(key)).unwrap_or_default().to_owned();
        let (duration, description) = (part("dur="), part("desc="));
        let _ = writeln!(text, "  {name:<24}{duration:>10} ms  {}", description.trim_matches('"'));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Vec<Value> {
        vec![
            json!({"name": "TEXT", "datatype": "BYTES", "shape": [-1, -1]}),
            json!({"name": "K", "datatype": "INT32", "shape": [1]}),
        ]
    }

    #[test]
    fn texts_go_to_the_text_input_and_the_rest_by_name() {
        let texts = || Ok(vec!["a".to_owned(), "b".to_owned()]);
        let made = tensors(&inputs(), &["K=[[3,4]]".to_owned()], texts).unwrap();
        assert_eq!(made[0], json!({"name": "K", "datatype": "INT32", "shape": [1, 2], "data": [[3, 4]]}));
        assert_eq!(made[1], json!({"name": "TEXT", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}));
    }

    #[test]
    fn wrong_inputs_are_named() {
        let no_texts = || Ok(vec![]);
        let error = |given: &str| tensors(&inputs(), &[given.to_owned()], no_texts).unwrap_err().to_string();
        assert_eq!(error("L=1"), "--input L: the model's inputs are TEXT, K");
        assert_eq!(error("K"), "--input K: expected NAME=JSON");
        assert_eq!(error("K=[1"), "--input K: '[1'");
        let two = vec![inputs()[0].clone(), json!({"name": "OTHER", "datatype": "BYTES", "shape": [1]})];
        assert!(tensors(&two, &[], no_texts).unwrap_err().to_string().starts_with("the model has several text inputs"));
    }

    #[test]
    fn parameters_have_the_type_they_look_like() {
        let given = ["n=3", "b=true", "t=3 texts", "e=a=b"].map(str::to_owned);
        let expected = json!({"n": 3, "b": true, "t": "3 texts", "e": "a=b"});
        assert_eq!(Value::Object(parameters(&given).unwrap()), expected);
    }

    #[test]
    fn long_outputs_are_cut() {
        let mut text = String::new();
        let data: Vec<f64> = (0..16).map(f64::from).collect();
        show(&mut text, &json!({"name": "e", "datatype": "FP32", "shape": [2, 8], "data": data})).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "e  FP32[2, 8]");
        assert!(lines[1].starts_with("    0.00000") && lines[1].ends_with("… 2 more"), "{text}");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn the_texts_of_a_server_steer_no_terminal() {
        let evil = "a\x1b]0;title\x07\u{9b}2J";
        let mut text = String::new();
        for data in [json!([evil]), json!([{evil: evil}])] {
            show(&mut text, &json!({"name": evil, "datatype": evil, "shape": [1], "data": data})).unwrap();
        }
        text.push_str(&show_timing(&format!("{evil};dur=1;desc=\"{evil}\"")));
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert_eq!(text.lines().next().unwrap(), r"a\u{1b}]0;title\u{7}\u{9b}2J  a\u{1b}]0;title\u{7}\u{9b}2J[1]");
    }

    #[test]
    fn timing_is_one_step_a_line() {
        let text = show_timing(r#"tok;dur=0.163;desc="queue=0.053 batch=1", model;dur=5.2;desc="queue=0""#);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("0.163 ms  queue=0.053 batch=1"), "{text}");
    }
}
