//! The ends of a batch's lines, as lines of the output or of the errors.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::call::JobAnswer;
use crate::record::Usage;

/// The header of an answer that says which space it is of.
const SPACE: &str = "trireme-space";

/// The end of a line: a line of the output, or of the errors.
pub struct Outcome {
    pub text: Vec<u8>,
    pub is_error: bool,
    /// The tokens that its answer counts.
    pub usage: Usage,
}

/// The part of an answer that says how many tokens it took. The words are those of OpenAI's embeddings and of its chats.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answered {
    #[serde(deserialize_with = "counted")]
    usage: Usage,
}

fn counted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Usage, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Counted {
        #[serde(alias = "input_tokens")]
        prompt_tokens: u64,
        #[serde(alias = "output_tokens")]
        completion_tokens: u64,
        total_tokens: u64,
        prompt_tokens_details: Option<Details>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Details {
        cached_tokens: u64,
    }
    let value = Value::deserialize(deserializer)?;
    // A `usage` of another form is not counted.
    let counted = Counted::deserialize(value).unwrap_or_default();
    let output = counted.completion_tokens;
    let input = counted.prompt_tokens.max(counted.total_tokens.saturating_sub(output));
    let cached = counted.prompt_tokens_details.map_or(0, |details| details.cached_tokens).min(input);
    Ok(Usage { input, cached, output })
}

/// The outcome of a line that ran. `None` is a line that had no answer in time.
pub fn outcome(batch: &str, number: u64, custom_id: &Value, answer: Option<JobAnswer>) -> Outcome {
    let Some(answer) = answer else {
        let message = format!("line {} had no answer before the batch expired", number);
        return refusal(batch, number, custom_id, "batch_expired", &message);
    };
    let read = match answer.body.first() {
        Some(b'{') => serde_json::from_slice(&answer.body).map(|Answered { usage }| usage),
        _ => serde_json::from_slice(&answer.body).map(|serde::de::IgnoredAny| Usage::default()),
    };
    let Some(usage) = read.ok().filter(|_| !answer.body.contains(&b'\n')) else {
        let message = format!("the answer to line {} is no JSON in one line; use a route with JSON answers", number);
        return refusal(batch, number, custom_id, "invalid_answer", &message);
    };
    let id = line_id(batch, number);
    let mut text = format!(
        r#"{{"id":"{id}","custom_id":{},"response":{{"status_code":{},"request_id":"{id}","body":"#,
        custom_id, answer.status
    )
    .into_bytes();
    text.extend_from_slice(&answer.body);
    if let Some((_, space)) = answer.headers.iter().find(|(name, _)| name == SPACE) {
        let space = Value::from(String::from_utf8_lossy(space));
        text.extend_from_slice(format!(r#","space":{space}"#).as_bytes());
    }
    text.extend_from_slice(b"},\"error\":null}\n");
    Outcome { text, is_error: answer.status >= 400, usage }
}

/// The outcome of a line that has no answer.
pub fn refusal(batch: &str, number: u64, custom_id: &Value, code: &str, message: &str) -> Outcome {
    let error = json!({"code": code, "message": message});
    let id = line_id(batch, number);
    let line = json!({"id": id, "custom_id": custom_id, "response": null, "error": error});
    Outcome { text: format!("{line}\n").into_bytes(), is_error: true, usage: Usage::default() }
}

/// The id of a line's request.
fn line_id(batch: &str, number: u64) -> String {
    format!("{}-{number}", batch.replace("batch_", "batch_req_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_space_of_its_answer() {
        let line = |headers: &[(&str, &str)]| -> Value {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned().into()));
            let answer = JobAnswer { status: 200, headers: headers.collect(), body: "{\"a\":1}".into() };
            serde_json::from_slice(&outcome("batch_1", 1, &Value::Null, Some(answer)).text).unwrap()
        };
        let known = line(&[("content-type", "application/json"), ("trireme-space", "ab.\"cd")]);
        assert_eq!((&known["response"]["space"], &known["response"]["body"]), (&json!("ab.\"cd"), &json!({"a": 1})));
        assert_eq!(line(&[])["response"].get("space"), None);
    }

    #[test]
    fn the_tokens_of_an_answer_are_counted_where_it_names_them() {
        let usage = |body: &str| {
            let answer = JobAnswer { status: 200, headers: Vec::new(), body: body.to_owned().into() };
            let outcome = outcome("batch_1", 1, &Value::Null, Some(answer));
            assert!(!outcome.is_error, "{body}");
            let Usage { input, cached, output } = outcome.usage;
            (input, cached, output)
        };
        assert_eq!(usage(r#"{"data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}}"#), (7, 0, 0));
        let of_cache = r#"{"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}}"#;
        assert_eq!(usage(of_cache), (7, 5, 0));
        assert_eq!(usage(r#"{"usage": {"prompt_tokens": 7, "prompt_tokens_details": null}}"#), (7, 0, 0));
        assert_eq!(usage(r#"{"usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}"#), (3, 0, 2));
        assert_eq!(usage(r#"{"usage": {"total_tokens": 9}}"#), (9, 0, 0));
        for none in ["[1]", "{}", r#"{"usage": null}"#, r#"{"usage": "none"}"#, r#"{"usage": {"total_tokens": -1}}"#] {
            assert_eq!(usage(none), (0, 0, 0), "{none}");
        }
    }
}
