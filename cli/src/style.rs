//! How tools write for a person: tables, colours on a terminal only, and names from elsewhere without control characters.

use std::fmt::Write;

use serde_json::Value;

/// Characters that turn the direction of the text behind them.
const DIRECTIONS: [char; 9] =
    ['\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}'];

/// The emphasis of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As it is.
    Plain,
    /// A heading.
    Strong,
    /// Good news.
    Good,
    /// A fault.
    Bad,
    /// Of less interest.
    Faint,
}

/// Whether standard output shows colours: on a terminal whose user does not object (`NO_COLOR`).
pub fn colours() -> bool {
    trireme_telemetry::shows_colours(&std::io::stdout())
}

/// A cell of a table.
pub type Cell = (String, Style);

/// A cell as it is.
pub fn cell(text: impl ToString) -> Cell {
    (text.to_string(), Style::Plain)
}

/// Text whose control characters, which a terminal would obey, are written as in Rust: `\u{1b}`, `\n`.
pub fn harmless(text: &str) -> String {
    escape(text, |c| c.escape_default().to_string())
}

/// Text of several lines, each of them harmless.
pub fn harmless_lines(text: &str) -> String {
    escape(text, |c| if c == '\n' { c.to_string() } else { c.escape_default().to_string() })
}

/// JSON in which control characters are escaped that JSON may have as they are.
pub fn harmless_json(value: &Value) -> String {
    escape(&value.to_string(), |c| format!("\\u{:04x}", u32::from(c)))
}

fn escape(text: &str, escaped: impl Fn(char) -> String) -> String {
    let is_obeyed = |c: char| c.is_control() || DIRECTIONS.contains(&c);
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match is_obeyed(c) {
            true => out.push_str(&escaped(c)),
            false => out.push(c),
        }
        out
    })
}

/// Writes lines of cells in columns; the first line is the heading. Columns named with a `>` in front are flush right.
pub fn table(out: &mut String, heading: &[&str], lines: &[Vec<Cell>], colours: bool) {
    let right: Vec<bool> = heading.iter().map(|name| name.starts_with('>')).collect();
    let names = heading.iter().map(|name| (name.trim_start_matches('>').to_owned(), Style::Faint)).collect();
    let safe = |line: &Vec<Cell>| -> Vec<Cell> { line.iter().map(|(text, style)| (harmless(text), *style)).collect() };
    let lines: Vec<Vec<Cell>> = std::iter::once(names).chain(lines.iter().map(safe)).collect();
    let widths: Vec<usize> =
        (0..heading.len()).map(|i| lines.iter().map(|line| line[i].0.chars().count()).max().unwrap_or(0)).collect();
    for line in &lines {
        let mut text = String::from("  ");
        for (i, (content, style)) in line.iter().enumerate() {
            let padding = " ".repeat(widths[i] - content.chars().count());
            let content = paint(content, *style, colours);
            let last = i + 1 == line.len();
            let _ = match (right[i], last) {
                (true, _) => write!(text, "{padding}{content}  "),
                (false, true) => write!(text, "{content}"),
                (false, false) => write!(text, "{content}{padding}  "),
            };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
}

/// A span of time in words.
pub fn age(seconds: f64) -> String {
    match seconds {
        ..60.0 => format!("{seconds:.1} s"),
        ..3600.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
}

/// The text in its colour.
pub fn paint(text: &str, style: Style, colours: bool) -> String {
    let text = harmless(text);
    let code = match style {
        _ if !colours => return text,
        Style::Plain => return text,
        Style::Strong => "1",
        Style::Good => "32",
        Style::Bad => "31",
        Style::Faint => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_control_characters_are_escaped() {
        let mut out = String::new();
        let lines = [vec![cell("a\x1b[31m"), cell(7)], vec![("long name".to_owned(), Style::Bad), cell(1234)]];
        table(&mut out, &["name", ">n"], &lines, false);
        assert_eq!(out, "  name            n\n  a\\u{1b}[31m     7\n  long name    1234\n");
        assert_eq!(paint("x", Style::Good, true), "\x1b[32mx\x1b[0m");
    }

    #[test]
    fn no_text_of_others_steers_a_terminal() {
        let text = "a\x1b[2J\u{9b}31m\u{202e}b\r\nc";
        assert_eq!(harmless(text), "a\\u{1b}[2J\\u{9b}31m\\u{202e}b\\r\\nc");
        assert_eq!(harmless_lines(text), "a\\u{1b}[2J\\u{9b}31m\\u{202e}b\\r\nc");
        let json = serde_json::json!({ "text": text });
        let written = harmless_json(&json);
        assert!(written.is_ascii(), "{written}");
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), json);
    }
}
