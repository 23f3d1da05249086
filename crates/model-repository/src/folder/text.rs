//! config.pbtxt as text, each line with where it came from as a comment.

use std::fmt::Write;

use super::origin::Derived;

/// A configuration that is being written.
pub(crate) struct Text(String);

/// A tensor of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// `TYPE_INT64`.
    pub(crate) data_type: &'static str,
    /// With the batch dimension.
    pub(crate) dims: Vec<i64>,
    pub(crate) optional: bool,
    /// A comment; may be empty.
    pub(crate) origin: String,
    pub(crate) label_file: Option<&'static str>,
}

// === impl Tensor ===

impl Tensor {
    pub(crate) fn new(name: &str, data_type: &'static str, dims: &[i64]) -> Tensor {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        Tensor { name, data_type, dims, optional: false, origin: String::new(), label_file: None }
    }

    pub(crate) fn origin(self, origin: impl Into<String>) -> Tensor {
        Tensor { origin: origin.into(), ..self }
    }

    pub(crate) fn optional(self) -> Tensor {
        Tensor { optional: true, ..self }
    }
}

// === impl Text ===

impl Text {
    /// The beginning: a description, the model's name, and `backend: "…"` or `platform: "…"`. All dims spell the batch out.
    pub(crate) fn new(what: &str, name: &str, kind: (&str, &str)) -> Text {
        let mut text = Text(String::new());
        text.line(&format!("# {}", one_line(what)), "");
        text.line(&format!("name: {}", quoted(name)), "");
        text.line(&format!("{}: {}", kind.0, quoted(kind.1)), "");
        text.line("max_batch_size: 0", "the first of all dims below is the rows, any number of them");
        text.line("version_policy { all { } }", "a version goes when its directory is removed");
        text
    }

    pub(crate) fn blank(&mut self) {
        self.0.push('\n');
    }

    pub(crate) fn line(&mut self, line: &str, origin: &str) {
        let _ = match origin {
            "" => writeln!(self.0, "{line}"),
            origin => writeln!(self.0, "{line}  # {}", one_line(origin)),
        };
    }

    /// `input [ … ]` or `output [ … ]`.
    pub(crate) fn tensors(&mut self, role: &str, tensors: &[Tensor]) {
        self.line(&format!("{role} ["), "");
        for (index, tensor) in tensors.iter().enumerate() {
            let dims = tensor.dims.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            let name = quoted(&tensor.name);
            let mut line = format!("  {{ name: {name} data_type: {} dims: [ {dims} ]", tensor.data_type);
            if tensor.optional {
                line.push_str(" optional: true");
            }
            if let Some(file) = tensor.label_file {
                let _ = write!(line, " label_filename: {}", quoted(file));
            }
            line.push_str(if index + 1 < tensors.len() { " }," } else { " }" });
            self.line(&line, &tensor.origin);
        }
        self.line("]", "");
    }

    pub(crate) fn parameter(&mut self, key: &str, value: &str, origin: &str) {
        let (key, value) = (quoted(key), quoted(value));
        self.line(&format!("parameters {{ key: {key} value {{ string_value: {value} }} }}"), origin);
    }

    pub(crate) fn derived(&mut self, key: &str, value: Option<&Derived<impl ToString>>) {
        if let Some(Derived { value, origin }) = value {
            self.parameter(key, &value.to_string(), origin);
        }
    }

    /// A step of an ensemble; each entry of a map is the step's tensor and the ensemble's.
    pub(crate) fn step(
        &mut self,
        (model, version): (&str, i64),
        inputs: &[(String, String)],
        outputs: &[(String, String)],
        last: bool,
    ) {
        self.line("    {", "");
        self.line(&format!("      model_name: {}", quoted(model)), "");
        self.line(&format!("      model_version: {version}"), "");
        for (map, entries) in [("input_map", inputs), ("output_map", outputs)] {
            for (own, ensemble) in entries {
                self.line(&format!("      {map} {{ key: {} value: {} }}", quoted(own), quoted(ensemble)), "");
            }
        }
        self.line(if last { "    }" } else { "    }," }, "");
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

/// A string of the text format.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\{byte:03o}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A comment ends with its line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ModelConfig;

    proptest! {
        #[test]
        fn any_text_comes_back_from_a_parameter(value: String, origin: String) {
            let mut text = Text::new("a test", "m", ("backend", "identity"));
            text.parameter("key", &value, &origin);
            let config = ModelConfig::parse(&text.finish(), "m").unwrap();
            prop_assert_eq!(&config.parameters["key"], &value);
        }
    }
}
