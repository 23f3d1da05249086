//! JSON requests to the routes of a sandbox, and the numbers in their answers.

use std::borrow::Borrow;

use serde_json::Value;

use crate::{Request, Response, Sandbox};

/// The response to a JSON body that is posted to `path`.
#[track_caller]
pub fn ask(sandbox: &Sandbox, path: &str, body: &Value) -> Response {
    sandbox.send(&Request::post(path, body.to_string()).header("Content-Type", "application/json"))
}

/// The JSON of a response with status 200.
///
/// # Panics
/// When the status is another one.
#[track_caller]
pub fn answer(sandbox: &Sandbox, path: &str, body: impl Borrow<Value>) -> Value {
    let response = ask(sandbox, path, body.borrow());
    assert_eq!(response.status, 200, "{path} {}: {}", body.borrow(), response.text());
    response.json()
}

/// The numbers of a list.
///
/// # Panics
/// When the value is no list of numbers.
#[track_caller]
pub fn numbers(value: &Value) -> Vec<f32> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter().map(|number| number.as_f64().unwrap_or_else(|| panic!("no number: {number}")) as f32).collect()
}
