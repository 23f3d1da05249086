//! Chat templates in Jinja, with what transformers gives to them: `raise_exception`, `strftime_now`, `tojson` that escapes nothing, the
//! methods of Python's strings, `{% break %}`, and blocks that leave no blank lines.

use std::borrow::Cow;
use std::fmt::Write;
use std::io;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Without an extension that would have values escaped.
const NAME: &str = "chat_template";

/// Instructions that a rendering may take: a template of the hub takes some hundred, and one that loops without an end is an error.
const FUEL: u64 = 1_000_000;

/// A template that was parsed.
#[derive(Debug)]
pub(super) struct Template(Environment<'static>);

/// JSON as Python writes it, with a blank behind each comma and colon.
struct Spaced;

// === impl Template ===

impl Template {
    pub(super) fn parse(source: &str) -> Result<Template, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, without_generation(source).into_owned()).map_err(said)?;
        Ok(Template(environment))
    }

    pub(super) fn render(&self, variables: Value) -> Result<String, String> {
        self.0.get_template(NAME).and_then(|template| template.render(variables)).map_err(said)
    }
}

/// An error with the line of the template that it is in.
fn said(error: Error) -> String {
    let place = error.line().map_or(String::new(), |line| format!(" in line {line}"));
    format!("{}{place}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", DateTime::<Utc>::from(SystemTime::now()).format(format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("'{format}' is no format of dates")))?;
    Ok(text)
}

fn to_json(value: &Value, arguments: Kwargs) -> Result<Value, Error> {
    let mut bytes = Vec::new();
    // The other arguments of Python's json.dumps change nothing in texts and numbers.
    for name in ["ensure_ascii", "separators", "sort_keys"] {
        arguments.get::<Option<Value>>(name)?;
    }
    let written = match arguments.get::<Option<usize>>("indent")? {
        Some(width) => {
            let indent = vec![b' '; width.min(64)];
            value.serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(&indent)))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
    };
    arguments.assert_all_used()?;
    written.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))?;
    Ok(Value::from_safe_string(String::from_utf8(bytes).expect("JSON is text")))
}

/// The template without the block `generation`, which marks what an assistant says and changes no text.
fn without_generation(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        match tag.trim_matches(|c: char| matches!(c, '{' | '}' | '%' | '-' | '+') || c.is_whitespace()) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

// === impl Spaced ===

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn render(source: &str) -> Result<String, String> {
        let list = Value::from(vec![Value::from(1), Value::from("<é>")]);
        let message = Value::from_pairs([("role", Value::from("user")), ("list", list), ("none", Value::from(()))]);
        Template::parse(source)?.render(context! { messages => vec![message], tools => () })
    }

    #[test]
    fn templates_have_the_helpers_of_transformers() {
        let shown = |source: &str| render(source).expect("a template that renders");
        assert_eq!(shown("{{ messages[0].list | tojson }}"), r#"[1, "<é>"]"#);
        assert_eq!(shown("{{ messages[0] | tojson }}"), r#"{"role": "user", "list": [1, "<é>"], "none": null}"#);
        assert_eq!(shown("{{ [1] | tojson(indent=4) }}"), "[\n    1\n]");
        assert_eq!(shown("{{ messages[0].role.upper().strip('U') + ' a b '.split()[-1] }}"), "SERb");
        assert_eq!(shown("{% for m in messages %}\n{{ m.role }}\n{% endfor %}\n"), "user\n");
        assert_eq!(shown("{%- generation -%} x {%- endgeneration %}y"), "xy");
        assert_eq!(shown("{{ true }} {{ none }} {{ strftime_now('%Y') | length }}"), "True None 4");
        assert_eq!(shown("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"), "01");
        assert_eq!(shown("{{ messages | selectattr('role', 'equalto', 'system') | list | length }}"), "0");
        let query =
            "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='role') | first | default('d') }}";
        assert_eq!(shown(query), "d");
    }

    #[test]
    fn errors_say_what_and_where() {
        assert_eq!(render("\n{{ raise_exception('no system') }}").unwrap_err(), "no system in line 2");
        let endless = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        assert!(render(endless).unwrap_err().contains("fuel"), "{:?}", render(endless));
        assert!(render("{% for %}").unwrap_err().contains("in line 1"));
        assert!(render("{{ strftime_now('%!') }}").unwrap_err().starts_with("'%!' is no format of dates"));
    }
}
