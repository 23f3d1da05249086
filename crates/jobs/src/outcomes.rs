//! The ends of a batch's lines, as lines of the output or of the errors.

use serde_json::{Value, json};

use crate::call::JobAnswer;

/// The end of a line: a line of the output, or of the errors.
pub struct Outcome {
    pub text: Vec<u8>,
    pub is_error: bool,
}

/// The outcome of a line that ran. `None` is a line that had no answer in time.
pub fn outcome(batch: &str, number: u64, custom_id: &Value, answer: Option<JobAnswer>) -> Outcome {
    let Some(answer) = answer else {
        let message = format!("line {} had no answer before the batch expired", number);
        return refusal(batch, number, custom_id, "batch_expired", &message);
    };
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&answer.body).is_ok();
    if !is_json || answer.body.contains(&b'\n') {
        let message = format!("the answer to line {} is no JSON in one line; use a route with JSON answers", number);
        return refusal(batch, number, custom_id, "invalid_answer", &message);
    }
    let id = line_id(batch, number);
    let mut text = format!(
        r#"{{"id":"{id}","custom_id":{},"response":{{"status_code":{},"request_id":"{id}","body":"#,
        custom_id, answer.status
    )
    .into_bytes();
    text.extend_from_slice(&answer.body);
    text.extend_from_slice(b"},\"error\":null}\n");
    Outcome { text, is_error: answer.status >= 400 }
}

/// The outcome of a line that has no answer.
pub fn refusal(batch: &str, number: u64, custom_id: &Value, code: &str, message: &str) -> Outcome {
    let error = json!({"code": code, "message": message});
    let id = line_id(batch, number);
    let line = json!({"id": id, "custom_id": custom_id, "response": null, "error": error});
    Outcome { text: format!("{line}\n").into_bytes(), is_error: true }
}

/// The id of a line's request.
fn line_id(batch: &str, number: u64) -> String {
    format!("{}-{number}", batch.replace("batch_", "batch_req_"))
}
